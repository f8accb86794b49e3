//! Time in which responses of the control plane are on their way.
//!
//! Owns, for a connection, how long some message was incomplete. Such a time is no silence for any node
//! group, because awaited messages may be behind that one. Knows nothing of the content of messages.
//!
//! Example: over 1 Mbit/s, 4 MiB take 34 s. In these 34 s nothing else comes, on no stream.
//!
//! Time counts only as far as bytes have earned it: otherwise a trickling message would keep its server in
//! use for hours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Returns the current time. Tests may pause tokio's clock.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[derive(Clone, Debug, Default)]
pub struct Transfers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Time up to `until`.
    total: Duration,
    /// Number of streams with an incomplete message, and the time of their last byte.
    under_way: usize,
    until: Option<Instant>,
    /// Time that counts if nothing more comes; full at the beginning of a message.
    earned: Duration,
}

/// Bytes that earn a second, on an almost unusable link.
const BYTES_PER_SECOND: u32 = 4 << 10;

/// Longest time between two frames of a message. After that the server counts as silent.
const STALL: Duration = Duration::from_secs(5);

impl State {
    fn at(&self, now: Instant) -> Duration {
        let since = self.until.filter(|_| self.under_way > 0);
        let counts = |since| now.saturating_duration_since(since).min(self.earned);
        self.total + since.map_or(Duration::ZERO, counts)
    }

    fn advance(&mut self, bytes: usize, now: Instant) {
        let total = self.at(now);
        let spent = total - self.total;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.earned = (self.earned - spent + Duration::from_secs(1) * bytes / BYTES_PER_SECOND).min(STALL);
        (self.total, self.until) = (total, Some(now));
    }
}

impl Transfers {
    pub fn of_stream(&self) -> Transfer {
        Transfer { of: self.clone(), is_under_way: false }
    }

    pub fn is_under_way(&self) -> bool {
        self.0.lock().under_way > 0
    }

    /// Time of the last byte, while a message is incomplete.
    pub fn incomplete_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        state.until.filter(|_| state.under_way > 0)
    }

    /// Time of transfers, and whether one is under way with recent bytes.
    pub fn so_far(&self, now: Instant) -> (Duration, bool) {
        let state = self.0.lock();
        let is_fresh = state.until.is_some_and(|last| now.saturating_duration_since(last) < state.earned);
        (state.at(now), state.under_way > 0 && is_fresh)
    }
}

/// Messages of one stream, which come one at a time.
#[derive(Debug)]
pub struct Transfer {
    of: Transfers,
    is_under_way: bool,
}

impl Transfer {
    /// Notes bytes that were read, and whether they end within a message.
    pub fn read(&mut self, bytes: usize, is_under_way: bool, now: Instant) {
        if !is_under_way && !self.is_under_way {
            return;
        }
        let mut state = self.of.0.lock();
        state.advance(bytes, now);
        if state.under_way == 0 {
            state.earned = STALL;
        }
        state.under_way = state.under_way + usize::from(is_under_way) - usize::from(self.is_under_way);
        self.is_under_way = is_under_way;
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.read(0, false, now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that earn as much time as may be had.
    const MUCH: usize = 1 << 20;

    #[test]
    fn time_counts_while_a_message_of_any_stream_is_on_its_way() {
        let begun = now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let transfers = Transfers::default();
        let (mut first, mut second) = (transfers.of_stream(), transfers.of_stream());
        let total = |seconds| transfers.so_far(at(seconds)).0.as_secs();
        let goes_on = |seconds| transfers.so_far(at(seconds)).1;
        first.read(MUCH, false, at(10));
        assert_eq!(total(20), 0, "whole messages");
        first.read(MUCH, true, at(20));
        assert_eq!(total(22), 2);
        second.read(MUCH, true, at(22));
        first.read(MUCH, false, at(23));
        assert_eq!(total(24), 4, "that of the second stream is still on its way");
        second.read(MUCH, true, at(25));
        assert_eq!(total(60), 5 + 5, "a stall counts for 5 s");
        second.read(MUCH, false, at(60));
        assert_eq!(total(90), 10);
        assert!(!goes_on(90));
        first.read(MUCH, true, at(90));
        assert!(goes_on(94) && !goes_on(95));
        drop(first);
        assert_eq!(total(95), total(1_000), "a stream that ended brings nothing more");
    }

    #[test]
    fn a_message_that_trickles_is_silence() {
        let begun = now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let transfers = Transfers::default();
        let mut trickles = transfers.of_stream();
        trickles.read(1, true, at(0));
        for second in 1..=600 {
            trickles.read(1, true, at(second));
        }
        assert_eq!(transfers.so_far(at(601)).0.as_secs(), 5, "a message has that time when it begins");
        assert!(!transfers.so_far(at(601)).1);
        let (slow, mut comes) = (Transfers::default(), 0);
        let mut message = slow.of_stream();
        for second in 0..=600 {
            message.read(8 << 10, true, at(second));
            comes += 1;
        }
        assert_eq!((slow.so_far(at(600)).0.as_secs(), comes), (600, 601));
    }
}
