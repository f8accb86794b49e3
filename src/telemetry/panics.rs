//! Panics: told in the log as everything else, and counted.
//!
//! The hook of the standard library writes to stderr by itself, as text among lines of JSON, and waits where nobody reads it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::sync::atomic::{AtomicU64, Ordering};

/// Panics since the start; a process has one hook.
static PANICS: AtomicU64 = AtomicU64::new(0);
/// Characters of a message, in which there may be words of a peer.
const LONGEST: usize = 500;

/// Has panics told in the log from now on. With `RUST_BACKTRACE=1` it has a backtrace too.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::current();
        let said: String = panic.payload_as_str().unwrap_or_default().chars().take(LONGEST).collect();
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
