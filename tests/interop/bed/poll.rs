//! Waiting for something to become true.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long anything may take that is only a matter of a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_millis(20);

/// Asks again and again until `attempt` succeeds, and returns what it found; panics with its last complaint.
pub(crate) fn eventually<T>(
    patience: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(complaint) if Instant::now() >= deadline => {
                panic!("not within {patience:?}: {what}: {complaint}")
            }
            Err(_) => thread::sleep(INTERVAL),
        }
    }
}

/// Checks again and again that `attempt` succeeds, for as long as `duration`.
pub(crate) fn always(duration: Duration, what: &str, mut attempt: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + duration;
    while Instant::now() < deadline {
        if let Err(complaint) = attempt() {
            panic!("it does not hold that {what}: {complaint}");
        }
        thread::sleep(INTERVAL);
    }
}
