//! Thread that writes the log.
//!
//! A log reader may hang, and a disk may be full. That costs lines, which are counted, but never blocks a
//! serving thread. The usual writer blocks on the one, and panics on the other.
//!
//! Owns the bound on waiting lines, and the count of lost ones.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

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
    let (lines, thread) = builder.thread_name("log").finish(Output { out, is_cut: false });
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

struct Output<W> {
    out: W,
    /// Whether the last line was cut off, as by a full disk.
    is_cut: bool,
}

impl<W: Write> Output<W> {
    fn try_write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_cut {
            self.out.write_all(b"\n")?;
            self.is_cut = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.is_cut = !rest.is_empty();
        }
        Ok(())
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.try_write(line).is_err() {
            UNWRITTEN.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        drop(self.out.flush());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Disk with room for so many bytes.
    struct Disk {
        written: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_after_one_that_was_cut_is_a_line() {
        let mut output = Output { out: Disk { written: Vec::new(), room: 7 }, is_cut: false };
        for line in ["one\n", "two, cut\n", "lost\n"] {
            assert_eq!(output.write(line.as_bytes()).unwrap(), line.len());
        }
        output.out.room = 100;
        output.write_all(b"three\n").unwrap();
        assert_eq!(String::from_utf8_lossy(&output.out.written), "one\ntwo\nthree\n");
    }
}
