//! Minimum rate at which a peer has to read.
//!
//! A peer that reads nothing is disconnected after `stall_timeout`. One that reads a byte now and
//! then would cost as much. So the timeout restarts only after [`MIN_BYTES`] bytes, and stops when
//! nothing waits for the peer. Time in which we do not wait for the peer does not count: a window
//! may be open for long before its stream has its turn.
//!
//! Example: 1 MiB waits and the timeout is 60 s. A peer that takes 40 KiB within 50 s gets another
//! 60 s. A peer that takes 256 bytes every 2 s has taken 7.5 KiB after 60 s and is disconnected.

use std::time::{Duration, Instant};

/// Bytes that a peer must take within a stall timeout while more is waiting. Half of HTTP/2's
/// initial window: a peer that returns its window as it reads has taken as much.
pub const MIN_BYTES: usize = 32 << 10;

/// Wait for a peer to take bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinRate {
    /// Start of the wait, moved back by its earlier parts; `None` while we do not wait.
    since: Option<Instant>,
    /// Duration of the earlier parts.
    waited: Duration,
    taken: usize,
}

impl MinRate {
    /// Start of the wait; `None` while we do not wait for the peer.
    pub const fn since(&self) -> Option<Instant> {
        self.since
    }

    pub fn wait(&mut self, now: Instant) {
        let waited = self.waited;
        self.since.get_or_insert_with(|| now.checked_sub(waited).unwrap_or(now));
    }

    /// Interrupts the wait: the peer could take something, and it is our turn.
    pub fn pause(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.waited = now.saturating_duration_since(since);
        }
    }

    pub const fn take(&mut self, bytes: usize) {
        if self.since.is_some() || !self.waited.is_zero() {
            self.taken = self.taken.saturating_add(bytes);
        }
        if self.taken >= MIN_BYTES {
            self.end();
        }
    }

    /// Ends the wait: nothing is left to take.
    pub const fn end(&mut self) {
        *self = Self { since: None, waited: Duration::ZERO, taken: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_begins_anew_once_enough_was_taken() {
        let (mut min_rate, start) = (MinRate::default(), Instant::now());
        min_rate.take(MIN_BYTES);
        assert_eq!(min_rate.since(), None, "it is not waited for");
        min_rate.wait(start);
        min_rate.take(MIN_BYTES - 1);
        let later = start + Duration::from_secs(9);
        min_rate.wait(later);
        assert_eq!(min_rate.since(), Some(start));
        min_rate.take(1);
        min_rate.wait(later);
        assert_eq!(min_rate.since(), Some(later));
        min_rate.take(MIN_BYTES - 1);
        min_rate.end();
        min_rate.wait(later);
        min_rate.take(1);
        assert_eq!(min_rate.since(), Some(later), "bytes of the last wait do not count");
    }

    #[test]
    fn our_own_time_does_not_count() {
        let (mut min_rate, start) = (MinRate::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        min_rate.wait(at(1000));
        min_rate.pause(at(1002));
        min_rate.take(10);
        assert_eq!(min_rate.since(), None);
        min_rate.wait(at(1100));
        assert_eq!(min_rate.since(), Some(at(1098)));
    }
}
