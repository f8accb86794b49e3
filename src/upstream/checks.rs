//! Whether health checks of a server tell that it is there.
//!
//! A server may be well and leave them unanswered: one of gRPC with a pool of threads, each of which a stream takes, has none left for a
//! health service. Its connection is given up for that, and its streams are answered at once on the next one. Where that
//! happens again, and no check was ever answered in between, checks say nothing of the server.
//!
//! Owns that judgement. Knows nothing of connections.

use std::time::{Duration, Instant};

/// Time between the end of a connection and the first answer on the next one, in which a server that hung is seldom mended.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Times in a row that checks misled before they are given up. One may be a pause of the server that ended just then.
const MISLED: u32 = 2;

/// Outcome of the checks of one server.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// When a connection was given up because a check stayed unanswered.
    given_up: Option<Instant>,
    misled: u32,
}

impl Checks {
    /// Whether the server is to be asked.
    pub(super) const fn are_heeded(&self) -> bool {
        self.misled < MISLED
    }

    /// Notes that a check was answered.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Notes that a connection was given up for want of an answer.
    pub(super) fn gave_up(&mut self, now: Instant) {
        self.given_up = Some(now);
    }

    /// Notes that the server answered a stream. Returns whether that shows that its checks say nothing.
    pub(super) fn stream_answered(&mut self, now: Instant) -> bool {
        let since = self.given_up.take().map(|at| now.saturating_duration_since(at));
        let was_heeded = self.are_heeded();
        if let Some(since) = since {
            self.misled = if since <= AT_ONCE { self.misled + 1 } else { 0 };
        }
        was_heeded && !self.are_heeded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_that_mislead_twice_are_given_up() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut checks = Checks::default();
        assert!(!checks.stream_answered(at(0)));
        checks.gave_up(at(41));
        assert!(!checks.stream_answered(at(42)) && checks.are_heeded());
        assert!(!checks.stream_answered(at(43)), "the answer to another client");
        checks.gave_up(at(83));
        assert!(checks.stream_answered(at(84)) && !checks.are_heeded());
        assert!(!checks.stream_answered(at(85)), "told once");
    }

    #[test]
    fn a_server_that_hung_is_asked_again() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut checks = Checks::default();
        for outage in [0, 100, 200] {
            checks.gave_up(at(outage));
            checks.stream_answered(at(outage + 11));
        }
        for pause in [300, 400, 500] {
            checks.gave_up(at(pause));
            checks.stream_answered(at(pause + 1));
            checks.answered();
        }
        assert!(checks.are_heeded());
    }
}
