//! Readiness: whether clients should be sent to this relay.
//!
//! Pure, as [`Mux`](super::Mux) is. A relay that was ever answered is ready for good, as it has
//! resources to serve. One that was never answered is empty, and not ready once it asks. Without
//! clients it asks for nothing and cannot be answered, so until then it is ready.

use std::time::{Duration, Instant};

use super::UpstreamState;
use super::silence::SILENT;

/// Decides whether a relay is ready.
#[derive(Debug)]
pub struct Readiness {
    /// Time for the first answer, after which the relay is ready without one.
    wait: Duration,
    /// `node.id` of the relay, for the reason.
    node: String,
    /// Start of the wait for the first answer, over all connections.
    asking: Option<Instant>,
    is_ready: bool,
    /// Whether restored resources make it ready.
    takes_restored: bool,
}

impl Readiness {
    /// Creates it for a relay that has not connected yet.
    pub const fn new(wait: Duration, node: String) -> Self {
        Self { wait, node, asking: None, is_ready: false, takes_restored: false }
    }

    /// Sets whether restored resources make the relay ready before the first answer.
    #[must_use]
    pub const fn with_restored(mut self, takes_restored: bool) -> Self {
        self.takes_restored = takes_restored;
        self
    }

    /// Evaluates the state, at each change and once a second. `others_answered`: the control plane
    /// has answered another node group.
    ///
    /// # Errors
    /// The reason why the relay is not ready.
    pub fn look(&mut self, state: &UpstreamState, others_answered: bool, now: Instant) -> Result<(), String> {
        let ready = if others_answered { Ok(()) } else { self.judge(state, now) };
        self.is_ready = ready.is_ok();
        ready
    }

    fn judge(&mut self, state: &UpstreamState, now: Instant) -> Result<(), String> {
        let error = || state.last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        if state.last_answer.is_some() || (self.takes_restored && state.restored.is_some()) {
            return Ok(());
        }
        if !state.connected {
            return Err(format!("the control plane has never answered{}", error()));
        }
        if !state.looked {
            // Many servers reject the stream only with the first response.
            return Err(format!("the control plane was just reached, and may refuse the stream{}", error()));
        }
        let Some(asked) = state.unanswered.since else {
            self.asking = None;
            return Ok(());
        };
        let waits_until = *self.asking.get_or_insert(asked) + self.wait;
        if now >= waits_until || (self.is_ready && now < asked + SILENT) {
            return Ok(());
        }
        let waited = now.saturating_duration_since(asked).as_secs();
        let (count, node) = (state.unanswered.count, &self.node);
        Err(format!(
            "the control plane has not answered any of {count} subscriptions for {waited} s: does it know node `{node}`?"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Unanswered;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// A relay, its origin and the seconds since its start.
    struct Fixture {
        start: Instant,
        state: UpstreamState,
        readiness: Readiness,
    }

    impl Fixture {
        fn new(wait: Duration) -> Self {
            let start = Instant::now();
            let readiness = Readiness::new(wait, "relay-1".to_owned());
            Self { start, state: UpstreamState::new(start), readiness }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        /// The connection stands, with nothing asked.
        fn stands(&mut self, second: u64) {
            self.state.connected(self.at(second));
            self.state.look(Unanswered::default());
        }

        fn asks(&mut self, second: u64) {
            let since = Some(self.at(second));
            self.state.look(Unanswered { count: 3, since, ..Unanswered::default() });
        }

        fn look(&mut self, second: u64) -> Result<(), String> {
            let now = self.at(second);
            self.readiness.look(&self.state, false, now)
        }

        fn is_ready(&mut self, second: u64) -> bool {
            self.look(second).is_ok()
        }
    }

    /// With `groups.default: refuse` nothing is ever asked in the relay's own group.
    #[test]
    fn a_relay_that_was_answered_in_another_group_is_ready_for_good() {
        let mut fixture = Fixture::new(DAY);
        fixture.stands(1);
        assert!(fixture.is_ready(1));
        fixture.state.lost("connection refused".to_owned(), fixture.at(2));
        assert!(!fixture.is_ready(2), "it is empty");
        let now = fixture.at(3);
        assert_eq!(fixture.readiness.look(&fixture.state, true, now), Ok(()));
    }

    #[test]
    fn a_relay_that_asks_for_nothing_is_ready_once_its_stream_has_stood() {
        let mut fixture = Fixture::new(DAY);
        assert!(!fixture.is_ready(0));
        fixture.state.connected(fixture.at(5));
        assert!(!fixture.is_ready(6), "it may be refused");
        fixture.state.look(Unanswered::default());
        assert!(fixture.is_ready(6));
        fixture.state.lost("connection refused".to_owned(), fixture.at(7));
        assert!(fixture.look(7).unwrap_err().ends_with("never answered: connection refused"), "it is empty");
    }

    #[test]
    fn an_origin_that_refuses_each_stream_is_never_taken_for_fit() {
        let mut fixture = Fixture::new(Duration::ZERO);
        for second in 0..20 {
            fixture.state.connected(fixture.at(second));
            assert!(!fixture.is_ready(second));
            fixture.state.lost("UNIMPLEMENTED".to_owned(), fixture.at(second));
            assert!(fixture.look(second).unwrap_err().contains("UNIMPLEMENTED"));
        }
    }

    #[test]
    fn a_relay_that_was_ready_is_given_time_for_its_first_answer() {
        let mut fixture = Fixture::new(DAY);
        fixture.stands(0);
        assert!(fixture.is_ready(1));
        fixture.asks(100);
        assert!(fixture.is_ready(109));
        assert!(!fixture.is_ready(110));
        assert!(!fixture.is_ready(111), "and it is not ready by turns");
        fixture.state.unanswered = Unanswered::default();
        assert!(fixture.is_ready(112), "nobody asks any more");
    }

    #[test]
    fn the_wait_for_a_first_answer_has_an_end_over_all_connections() {
        let mut fixture = Fixture::new(Duration::from_secs(30));
        fixture.state.connected(fixture.at(0));
        fixture.asks(10);
        assert!(!fixture.is_ready(11));
        fixture.state.lost("gone".to_owned(), fixture.at(20));
        assert!(!fixture.is_ready(20));
        fixture.state.connected(fixture.at(25));
        fixture.asks(25);
        assert!(!fixture.is_ready(39));
        assert!(fixture.is_ready(40));
        let mut fixture = Fixture::new(Duration::ZERO);
        fixture.state.connected(fixture.at(0));
        fixture.asks(0);
        assert!(fixture.is_ready(1), "an operator may want no wait at all");
    }
}
