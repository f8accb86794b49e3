//! Time in which responses of the control plane are on their way.
//!
//! Owns, for a connection, how long a part of some message had come and the rest had not. Such a time is no silence of the control
//! plane, for no node group: what is awaited may be behind that message. Knows nothing of the content of messages.
//!
//! Example: over 1 Mbit/s, 4 MiB take 34 s. In these 34 s nothing else comes, on no stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Transfers on one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Time up to `until`.
    total: Duration,
    /// Number of streams on which a part of a message has come, and when the last byte came on any of them.
    under_way: usize,
    until: Option<Instant>,
}

/// Longest time between two frames of a message. A server that sends nothing for longer has gone silent.
const STALL: Duration = Duration::from_secs(5);

impl State {
    fn at(&self, now: Instant) -> Duration {
        let since = self.until.filter(|_| self.under_way > 0);
        self.total + since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since).min(STALL))
    }

    fn advance(&mut self, now: Instant) {
        self.total = self.at(now);
        self.until = Some(now);
    }
}

impl Transfers {
    /// Messages of one stream.
    pub(crate) fn of_stream(&self) -> Transfer {
        Transfer { of: self.clone(), is_under_way: false }
    }

    /// Whether a part of a message has come and the rest has not.
    pub(crate) fn is_under_way(&self) -> bool {
        self.0.lock().under_way > 0
    }

    /// When the last byte came, while a part of a message has come and the rest has not.
    pub(super) fn incomplete_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        state.until.filter(|_| state.under_way > 0)
    }

    /// Time in which messages were on their way, and whether one is, of which bytes came lately.
    pub(super) fn so_far(&self, now: Instant) -> (Duration, bool) {
        let state = self.0.lock();
        let is_fresh = state.until.is_some_and(|last| now.saturating_duration_since(last) < STALL);
        (state.at(now), state.under_way > 0 && is_fresh)
    }
}

/// Messages of one stream, of which one at a time is on its way.
#[derive(Debug)]
pub(crate) struct Transfer {
    of: Transfers,
    is_under_way: bool,
}

impl Transfer {
    /// Notes that bytes were read, and whether they end within a message.
    pub(crate) fn read(&mut self, is_under_way: bool, now: Instant) {
        if !is_under_way && !self.is_under_way {
            return;
        }
        let mut state = self.of.0.lock();
        state.advance(now);
        state.under_way = state.under_way + usize::from(is_under_way) - usize::from(self.is_under_way);
        self.is_under_way = is_under_way;
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.read(false, super::wait::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_a_message_of_any_stream_is_on_its_way() {
        let begun = super::super::wait::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let transfers = Transfers::default();
        let (mut first, mut second) = (transfers.of_stream(), transfers.of_stream());
        let total = |seconds| transfers.so_far(at(seconds)).0.as_secs();
        let goes_on = |seconds| transfers.so_far(at(seconds)).1;
        first.read(false, at(10));
        assert_eq!(total(20), 0, "whole messages");
        first.read(true, at(20));
        assert_eq!(total(22), 2);
        second.read(true, at(22));
        first.read(false, at(23));
        assert_eq!(total(24), 4, "that of the second stream is still on its way");
        second.read(true, at(25));
        assert_eq!(total(60), 5 + 5, "a stall counts for 5 s");
        second.read(false, at(60));
        assert_eq!(total(90), 10);
        assert!(!goes_on(90));
        first.read(true, at(90));
        assert!(goes_on(94) && !goes_on(95));
        drop(first);
        assert_eq!(total(95), total(1_000), "a stream that ended brings nothing more");
    }
}
