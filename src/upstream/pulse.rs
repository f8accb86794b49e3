//! Signs of life of one connection's server, for all clients that share it.
//!
//! Owns the last sign, the last health check, and whether an answer was missed. Knows neither streams nor the
//! check.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Times of the health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessTimes {
    /// Silence before the check.
    pub after: Duration,
    /// Longest time for its answer.
    pub timeout: Duration,
}

impl Default for LivenessTimes {
    fn default() -> Self {
        Self { after: Duration::from_secs(30), timeout: Duration::from_secs(10) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Time of the last message or check.
    newest: Option<Instant>,
    /// Time of the last message.
    heard: Option<Instant>,
    is_gone: bool,
}

impl Pulse {
    pub(super) fn heard(&self, now: Instant) {
        let mut state = self.0.lock();
        (state.newest, state.heard) = (Some(now), Some(now));
    }

    pub(super) fn last_heard(&self) -> Option<Instant> {
        self.0.lock().heard
    }

    /// Whether the caller must check: nothing came for `after` since then, and no other client checks.
    pub(super) fn is_due(&self, since: Instant, after: Duration, now: Instant) -> bool {
        let mut state = self.0.lock();
        let is_due = now >= state.newest.map_or(since, |newest| newest.max(since)) + after;
        if is_due {
            state.newest = Some(now);
        }
        is_due
    }

    /// Notes that a check of that time is unanswered. A later message to another client disproves it. Returns
    /// whether this call finds the server gone.
    pub(super) fn unanswered(&self, asked: Instant) -> bool {
        let mut state = self.0.lock();
        let is_first = !state.is_gone && state.newest.is_none_or(|newest| newest <= asked);
        state.is_gone |= is_first;
        is_first
    }

    pub(super) fn is_gone(&self) -> bool {
        self.0.lock().is_gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_clients_asks() {
        let (pulse, begun, after) = (Pulse::default(), Instant::now(), Duration::from_secs(30));
        let at = |second| begun + Duration::from_secs(second);
        assert!(!pulse.is_due(begun, after, at(29)));
        assert!(pulse.is_due(begun, after, at(30)));
        assert!(!pulse.is_due(begun, after, at(31)), "another one asks");
        pulse.heard(at(32));
        assert!(!pulse.is_due(begun, after, at(61)));
        assert!(!pulse.is_due(at(40), after, at(69)), "it was asked for something since");
        assert!(pulse.is_due(at(40), after, at(70)));
    }

    #[test]
    fn a_server_that_another_client_hears_is_there() {
        let (pulse, begun) = (Pulse::default(), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        assert!(pulse.is_due(begun, Duration::from_secs(30), at(30)));
        pulse.heard(at(35));
        assert!(!pulse.unanswered(at(30)) && !pulse.is_gone());
        assert!(pulse.is_due(begun, Duration::from_secs(30), at(65)));
        assert!(pulse.unanswered(at(65)) && pulse.is_gone());
        assert!(!pulse.unanswered(at(65)), "it is found once");
    }
}
