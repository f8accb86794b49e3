//! Figures of the groups of one rule.

use std::time::{Duration, Instant};

use crate::cache::Protocol;
use crate::upstream::UpstreamState;

/// Time without a first answer after which a group counts as unanswered. A large first answer may take that
/// long.
const UNANSWERED: Duration = Duration::from_secs(60);

/// Figures of the groups of one rule, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleFigures {
    /// Groups.
    pub groups: usize,
    /// Streams, Fetches and polls.
    pub clients: usize,
    /// Groups on delta.
    pub delta: usize,
    /// Groups on state of the world.
    pub sotw: usize,
    /// Groups without a connection.
    pub not_connected: usize,
    /// Groups that asked and never had an answer. They hold nothing.
    pub never_answered: usize,
    /// Those of them past the time limit.
    pub unanswered: usize,
    /// Unanswered subscriptions on open connections.
    pub unanswered_subscriptions: usize,
    /// Groups whose connections or streams keep ending.
    pub unsteady: usize,
    /// Groups whose last update of a type was rejected, without a usable one since.
    pub refused: usize,
    /// Types of these updates, over all groups.
    pub refused_types: usize,
    /// Time since the newest last answer of a group.
    pub newest_answer: Option<Duration>,
    /// Time since the oldest last answer of a group.
    pub oldest_answer: Option<Duration>,
    /// Longest time for which a group's resources may be outdated.
    pub stale: Duration,
}

impl RuleFigures {
    /// Adds a group with this state.
    pub(super) fn add(&mut self, state: &UpstreamState, now: Instant) {
        match state.protocol {
            Some(Protocol::Delta) => self.delta += 1,
            Some(Protocol::Sotw) => self.sotw += 1,
            None => self.not_connected += 1,
        }
        let awaited = state.first_answer_awaited_for(now);
        self.never_answered += usize::from(awaited > Duration::ZERO);
        self.unanswered += usize::from(awaited >= UNANSWERED);
        self.unanswered_subscriptions += state.unanswered.count;
        self.unsteady += usize::from(state.is_unsteady(now));
        self.refused += usize::from(!state.refusals.is_empty());
        self.refused_types += state.refusals.len();
        if let Some(ago) = state.answered_ago(now) {
            self.newest_answer = Some(self.newest_answer.map_or(ago, |newest| newest.min(ago)));
            self.oldest_answer = self.oldest_answer.max(Some(ago));
        }
        self.stale = self.stale.max(state.held_stale_for(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Unanswered;

    #[test]
    fn figures_are_those_of_all_groups() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let connected = |protocol| {
            let mut state = UpstreamState::new(start);
            state.connected(start);
            state.protocol = Some(protocol);
            state
        };
        let asked = Unanswered { count: 2, since: Some(start), ..Unanswered::default() };
        let mut answered = [connected(Protocol::Delta), connected(Protocol::Sotw)];
        answered[0].accepted(after(10));
        answered[1].accepted(after(40));
        let mut silent = connected(Protocol::Delta);
        silent.look(asked);
        let mut idle = connected(Protocol::Delta);
        idle.look(Unanswered::default());
        let mut lost = connected(Protocol::Delta);
        lost.accepted(after(20));
        lost.lost("gone".to_owned(), after(30));
        let all = || answered.iter().chain([&silent, &idle, &lost]);
        let at = |seconds| {
            let mut figures = RuleFigures::default();
            all().for_each(|state| figures.add(state, after(seconds)));
            figures
        };
        let expected = RuleFigures {
            delta: 3,
            sotw: 1,
            not_connected: 1,
            never_answered: 1,
            unanswered_subscriptions: 2,
            newest_answer: Some(Duration::from_secs(10)),
            oldest_answer: Some(Duration::from_secs(40)),
            stale: Duration::from_secs(20),
            ..RuleFigures::default()
        };
        assert_eq!(at(50), expected);
        assert_eq!(at(60).unanswered, 1, "what waits for long is told");
    }
}
