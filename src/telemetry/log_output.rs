//! Log: its level while the program runs, its thread, and lines that peers cannot forge.
//!
//! A log reader may hang, and a disk may be full. That costs lines, which are counted, but never blocks a
//! serving thread. The usual writer blocks on the one, and panics on the other. Owns the bound on waiting lines, and the count
//! of lost ones.
//!
//! Each event is one line, whatever peers put into names. A line break could forge a line, and control characters could steer
//! the operator's terminal. Writers of events escape those below U+0020; ESC may be there for colours.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::terminal;

/// Lines of a few KiB at most.
const WAITING: usize = 4096;

/// Lines without room; a process has one log.
static CROWDED_OUT: OnceLock<ErrorCounter> = OnceLock::new();
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);
/// Lost lines that the log has reported.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Dropping the guard writes waiting lines, for a second at most.
pub fn write_log_to(out: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    let builder = NonBlockingBuilder::default().buffered_lines_limit(WAITING).lossy(true);
    let (lines, thread) = builder.thread_name("log").finish(Output(out));
    drop(CROWDED_OUT.set(lines.error_counter()));
    (lines, thread)
}

pub(super) fn lost_lines() -> u64 {
    let crowded_out = CROWDED_OUT.get().map_or(0, ErrorCounter::dropped_lines);
    crowded_out as u64 + UNWRITTEN.load(Ordering::Relaxed)
}

/// Logs how many lines were lost since the last call.
pub fn report_lost_lines() {
    let lost = lost_lines();
    let since = lost - TOLD.swap(lost, Ordering::Relaxed);
    if since > 0 {
        tracing::warn!(
            since,
            lost,
            "lines of the log were lost: stderr was not read, or could not be written to"
        );
    }
}

struct Output<W>(W);

impl<W: Write> Write for Output<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.write_all(line).is_err() {
            UNWRITTEN.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        drop(self.0.flush());
        Ok(())
    }
}

/// Since the start; a process has one hook.
static PANICS: AtomicU64 = AtomicU64::new(0);
/// Characters of a message, which may quote a peer.
const LONGEST_PANIC: usize = 500;

/// Logs panics. The standard hook would write text among lines of JSON. Adds a backtrace with
/// `RUST_BACKTRACE=1`.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::current();
        let said: String = panic.payload_as_str().unwrap_or_default().chars().take(LONGEST_PANIC).collect();
        let location = panic.location().map(ToString::to_string);
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        tracing::error!(
            said,
            location,
            thread = thread.name(),
            backtrace,
            "a panic: this is a defect; please report it"
        );
    }));
}

pub(super) fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

#[derive(Debug)]
pub struct Lines<W>(pub W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event)?;
        Ok(event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if text.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\x1b')) {
            return self.0.write_all(event);
        }
        let mut line = String::with_capacity(event.len() + 16);
        for c in String::from_utf8_lossy(text).chars() {
            match c {
                '\n' => line.push_str("\\n"),
                '\r' => line.push_str("\\r"),
                '\t' | '\x1b' => line.push(c),
                other => terminal::push_json(&mut line, other),
            }
        }
        if text.len() < event.len() {
            line.push('\n');
        }
        self.0.write_all(line.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

const LONGEST: usize = 1 << 10;

#[derive(Debug)]
pub struct LogLevel {
    /// In force, as it was written.
    level: Mutex<String>,
    handle: reload::Handle<EnvFilter, Registry>,
}

impl LogLevel {
    /// Returns a filter with this level, and what changes it. Ignores an unreadable level.
    pub fn new(level: &str) -> (reload::Layer<EnvFilter, Registry>, Self) {
        let filter = EnvFilter::builder().parse_lossy(with_quiet(level));
        let (filter, handle) = reload::Layer::new(filter);
        (filter, Self { level: Mutex::new(level.to_owned()), handle })
    }

    /// Changes the level, and returns the old one.
    ///
    /// # Errors
    ///
    /// Reason for which it cannot be used, for operators.
    pub fn set(&self, level: &str) -> Result<String, String> {
        let allowed = "it has to be off, error, warn, info, debug or trace, or filters as in `info,deltafan::upstream=debug`";
        if level.is_empty() || level.len() > LONGEST {
            return Err(format!("`level` is empty or longer than {LONGEST} bytes; {allowed}"));
        }
        // A word that is no level would be a target, and all others would be silent.
        let is_level = |part: &str| {
            let level = part.rsplit('=').next().unwrap_or(part);
            !level.is_empty() && level.parse::<LevelFilter>().is_ok()
        };
        if let Some(part) = level.split(',').find(|part| !is_level(part)) {
            let part: String = part.chars().take(60).flat_map(char::escape_debug).collect();
            return Err(format!("`{part}` has no level; {allowed}"));
        }
        let filter = EnvFilter::builder().with_regex(false).parse(with_quiet(level));
        let filter = filter.map_err(|error| format!("`level` cannot be read: {error}; {allowed}"))?;
        let mut current = self.level.lock();
        self.handle.reload(filter).map_err(|error| error.to_string())?;
        Ok(std::mem::replace(&mut *current, level.to_owned()))
    }
}

/// rustls warns of each renegotiation that a peer asks for.
fn with_quiet(level: &str) -> String {
    format!("rustls=error,{level}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let mut lines = Lines(Vec::new());
        for event in [
            "plain \u{1b}[2mgr\u{e9}y\n",
            "type a\r\n2026-11-22 ERROR forged\n",
            "no end\nof it",
            "\u{9b}31m\u{7f}\u{202e}\n",
        ] {
            lines.write_all(event.as_bytes()).expect("memory");
        }
        let written = String::from_utf8(lines.0).expect("text");
        let expected = [
            "plain \u{1b}[2mgr\u{e9}y",
            "type a\\r\\n2026-11-22 ERROR forged",
            "no end\\nof it\\u009b31m\\u007f\\u202e",
        ];
        assert_eq!(written.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_level_that_cannot_be_read_changes_nothing() {
        let (_filter, log) = LogLevel::new("info");
        let long = "info,".repeat(1_000);
        for wrong in ["", "loud", "a=b=c", "deltafan=loud", "info,deltafan", "info,,warn", "a=", &long] {
            let fault = log.set(wrong).expect_err(wrong);
            assert!(fault.contains("off, error, warn"), "{fault}");
        }
        assert_eq!(log.set("debug").unwrap(), "info");
        assert_eq!(log.set("info,deltafan::upstream=debug").unwrap(), "debug");
        assert_eq!(log.set("warn").unwrap(), "info,deltafan::upstream=debug");
    }
}
