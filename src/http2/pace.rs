//! How fast a peer has to take what waits for it.
//!
//! A peer that reads nothing is given up after `stall_timeout`, and one that reads a byte now and then costs as much: a wait
//! begins anew once [`LEAST`] bytes were taken, and ends when nothing waits any more.
//!
//! Example: 1 MiB waits, the timeout is 60 s. A peer that takes 70 KiB within 50 s has 60 s from there; one that takes 1 KiB
//! every second but one has taken 30 KiB after 60 s, and is given up.

use std::time::Instant;

/// What a peer has to take in a `stall_timeout` while more waits for it, in bytes.
pub const LEAST: usize = 64 << 10;

/// A wait for a peer that is to take something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    since: Option<Instant>,
    taken: usize,
}

impl Pace {
    /// Since when it is waited for.
    pub const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Something waits for it, if nothing did before.
    pub fn wait(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// It has taken so many bytes.
    pub const fn take(&mut self, bytes: usize) {
        if self.since.is_some() {
            self.taken = self.taken.saturating_add(bytes);
        }
        if self.taken >= LEAST {
            self.end();
        }
    }

    /// Nothing waits for it.
    pub const fn end(&mut self) {
        *self = Self { since: None, taken: 0 };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
}
