//! How fast a peer has to take what waits for it.
//!
//! A peer that reads nothing is given up after `stall_timeout`, and one that reads a byte now and then costs as much: a wait
//! begins anew once [`LEAST`] bytes were taken, and ends when nothing waits any more. Time in which it was not waited for does
//! not count: a window may be open for long before its stream has its turn.
//!
//! Example: 1 MiB waits, the timeout is 60 s. A peer that takes 40 KiB within 50 s has 60 s from there; one that takes 256
//! bytes every second but one has taken 7.5 KiB after 60 s, and is given up.

use std::time::{Duration, Instant};

/// Bytes that a peer has to take in a `stall_timeout` while more waits for it. Half of the window that HTTP/2 begins with:
/// a peer that opens it as it reads has taken as much.
pub const LEAST: usize = 32 << 10;

/// A wait for a peer that is to take something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// While it is waited for: since when, earlier parts of the wait included.
    since: Option<Instant>,
    /// Of the parts that are over.
    waited: Duration,
    taken: usize,
}

impl Pace {
    /// Since when it is waited for; `None` while it is not.
    pub const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// It is waited for, from now on or already.
    pub fn wait(&mut self, now: Instant) {
        let waited = self.waited;
        self.since.get_or_insert_with(|| now.checked_sub(waited).unwrap_or(now));
    }

    /// It could take something, and it is our turn.
    pub fn pause(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.waited = now.saturating_duration_since(since);
        }
    }

    /// It has taken so many bytes.
    pub const fn take(&mut self, bytes: usize) {
        if self.since.is_some() || !self.waited.is_zero() {
            self.taken = self.taken.saturating_add(bytes);
        }
        if self.taken >= LEAST {
            self.end();
        }
    }

    /// Nothing waits for it.
    pub const fn end(&mut self) {
        *self = Self { since: None, waited: Duration::ZERO, taken: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_begins_anew_once_enough_was_taken() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.take(LEAST);
        assert_eq!(pace.since(), None, "it is not waited for");
        pace.wait(start);
        pace.take(LEAST - 1);
        let later = start + Duration::from_secs(9);
        pace.wait(later);
        assert_eq!(pace.since(), Some(start));
        pace.take(1);
        pace.wait(later);
        assert_eq!(pace.since(), Some(later));
        pace.take(LEAST - 1);
        pace.end();
        pace.wait(later);
        pace.take(1);
        assert_eq!(pace.since(), Some(later), "bytes of the last wait do not count");
    }

    #[test]
    fn our_own_time_does_not_count() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        pace.wait(at(1000));
        pace.pause(at(1002));
        pace.take(10);
        assert_eq!(pace.since(), None);
        pace.wait(at(1100));
        assert_eq!(pace.since(), Some(at(1098)));
    }
}
