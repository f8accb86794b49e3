//! Thread that writes the log.
//!
//! The reader of a log may hang, and its disk be full. That costs lines, which are counted, and never the time of a thread that
//! serves, nor the task that logs: the usual writer blocks on the one, and panics at the other.
//!
//! Owns the bound on lines that wait, and the count of those that were lost.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait to be written. Each is of a few KiB at most.
const WAITING: usize = 4096;

/// Lines that found no room; there is one log in a process.
static CROWDED_OUT: OnceLock<ErrorCounter> = OnceLock::new();
/// Lines that could not be written.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);
/// Lost lines that the log has told of.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Starts the thread. Lines that wait are written when the guard is dropped, for a second at most.
pub fn write_log_to(out: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    let builder = NonBlockingBuilder::default().buffered_lines_limit(WAITING).lossy(true);
    let (lines, thread) = builder.thread_name("log").finish(Output(out));
    drop(CROWDED_OUT.set(lines.error_counter()));
    (lines, thread)
}

/// Number of lines that were lost since the start.
pub(super) fn lost_lines() -> u64 {
    let crowded_out = CROWDED_OUT.get().map_or(0, ErrorCounter::dropped_lines);
    crowded_out as u64 + UNWRITTEN.load(Ordering::Relaxed)
}

/// Logs that lines were lost since it was last called.
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

/// Output that loses what it cannot write.
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
