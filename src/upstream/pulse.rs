//! Signs of life of the server of one connection, for all clients that share it.
//!
//! Owns when it was last heard, when one of the clients last set out to ask it for a sign, and whether it gave none in time. Knows neither
//! streams nor what is asked.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Times of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessTimes {
    /// Silence before the question.
    pub after: Duration,
    /// Longest time for its answer.
    pub timeout: Duration,
}

impl Default for LivenessTimes {
    fn default() -> Self {
        Self { after: Duration::from_secs(30), timeout: Duration::from_secs(10) }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When something last came, or was last asked for.
    newest: Option<Instant>,
    /// When something last came.
    heard: Option<Instant>,
    is_gone: bool,
}

impl Pulse {
    /// Notes that something came from the server.
    pub(super) fn heard(&self, now: Instant) {
        let mut state = self.0.lock();
        (state.newest, state.heard) = (Some(now), Some(now));
    }

    /// When something last came from the server.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        self.0.lock().heard
    }

    /// Whether the caller is to ask for a sign: nothing came for `after` since then, and nobody else asks.
    pub(super) fn is_due(&self, since: Instant, after: Duration, now: Instant) -> bool {
        let mut state = self.0.lock();
        let is_due = now >= state.newest.map_or(since, |newest| newest.max(since)) + after;
        if is_due {
            state.newest = Some(now);
        }
        is_due
    }

    /// Notes that the server did not answer a question of that time. It is there if another client heard it since. Returns whether this
    /// is how it is found to be gone.
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
