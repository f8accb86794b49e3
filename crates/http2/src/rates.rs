//! Rates of a peer: at least so many bytes read, at most so many frames that do no work.
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

/// Capacity in frames. A proxy in front of a thousand clients resets a thousand streams when it
/// goes.
const BURST: u32 = 2000;
/// Refill, in frames per second.
const PER_SECOND: u32 = 500;
/// Bytes of a refused header block that cost as much as one frame.
const HEAD_BYTES: usize = 256;
/// Frames that a peer earns with each frame it is sent: two WINDOW_UPDATEs, a PING that measures
/// the path, and one more.
const EARNED: u32 = 4;

/// Token bucket of one connection. Refills over time and with each frame sent to the peer, since clients that measure
/// the path answer data with PING.
///
/// Example: a peer may reset 2000 streams at once, then 500 per second.
#[derive(Debug)]
pub(super) struct WorkBudget {
    left: u32,
    at: Instant,
}

impl WorkBudget {
    pub(super) const fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    /// Charges one frame, and a refused header block of `bytes` in it: that was decoded to its end, since later
    /// blocks build upon it. Returns false if the budget is used up.
    pub(super) fn spend(&mut self, now: Instant, bytes: usize) -> bool {
        if self.left == 0 {
            let since = now.saturating_duration_since(self.at).min(Duration::from_secs(60));
            self.left = (since.as_millis() as u32 * PER_SECOND / 1000).min(BURST);
            self.at = now;
        }
        let borne = self.left > 0;
        let frames = u32::try_from(1 + bytes / HEAD_BYTES).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(frames);
        borne
    }

    pub(super) fn earn(&mut self) {
        self.left = (self.left + EARNED).min(BURST);
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

    #[test]
    fn it_runs_out_and_comes_back() {
        let start = Instant::now();
        let mut work_budget = WorkBudget::new(start);
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(start, 0)).count(), BURST as usize);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(later, 0)).count(), PER_SECOND as usize);
        work_budget.earn();
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(later, 0)).count(), EARNED as usize);
        let full = later + Duration::from_secs(60);
        let heads = (0..BURST).filter(|_| work_budget.spend(full, 16 << 10)).count();
        assert_eq!(heads, (BURST as usize).div_ceil(1 + (16 << 10) / HEAD_BYTES), "large heads are dear");
        let much_later = start + Duration::from_secs(100_000);
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(much_later, 0)).count(), BURST as usize);
    }
}
