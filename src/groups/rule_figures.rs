//! Figures of the groups of one rule.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cache::Protocol;
use crate::upstream::UpstreamState;

/// Time without a first answer after which a group counts as unanswered. A large first answer may take that
/// long.
const UNANSWERED: Duration = Duration::from_secs(60);

/// Figures of the groups of one rule at one moment, as in `/upstreams`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RuleFigures {
    /// Name of the rule.
    pub rule: String,
    /// Groups.
    pub groups: usize,
    /// Streams and polls.
    pub clients: usize,
    pub protocols: ProtocolFigures,
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
    #[serde(skip)]
    pub refused_types: usize,
    /// Since the newest last answer of a group.
    pub newest_answer_seconds_ago: Option<f64>,
    /// Since the oldest last answer of a group.
    pub oldest_answer_seconds_ago: Option<f64>,
    /// Longest time for which a group's resources may be outdated.
    pub stale_seconds: f64,
}

/// Groups by the protocol in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProtocolFigures {
    pub delta: usize,
    pub sotw: usize,
}

impl RuleFigures {
    /// Adds a group with this state.
    pub(super) fn add(&mut self, state: &UpstreamState, now: Instant) {
        match state.protocol {
            Some(Protocol::Delta) => self.protocols.delta += 1,
            Some(Protocol::Sotw) => self.protocols.sotw += 1,
            None => self.not_connected += 1,
        }
        let awaited = state.first_answer_awaited_for(now);
        self.never_answered += usize::from(awaited > Duration::ZERO);
        self.unanswered += usize::from(awaited >= UNANSWERED);
        self.unanswered_subscriptions += state.unanswered.count;
        self.unsteady += usize::from(state.is_unsteady(now));
        self.refused += usize::from(!state.refusals.is_empty());
        self.refused_types += state.refusals.len();
        if let Some(ago) = state.answered_ago(now).map(|ago| ago.as_secs_f64()) {
            let (newest, oldest) = (&mut self.newest_answer_seconds_ago, &mut self.oldest_answer_seconds_ago);
            *newest = Some(newest.map_or(ago, |newest| newest.min(ago)));
            *oldest = Some(oldest.map_or(ago, |oldest| oldest.max(ago)));
        }
        self.stale_seconds = self.stale_seconds.max(state.held_stale_for(now).as_secs_f64());
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
            protocols: ProtocolFigures { delta: 3, sotw: 1 },
            not_connected: 1,
            never_answered: 1,
            unanswered_subscriptions: 2,
            newest_answer_seconds_ago: Some(10.0),
            oldest_answer_seconds_ago: Some(40.0),
            stale_seconds: 20.0,
            ..RuleFigures::default()
        };
        assert_eq!(at(50), expected);
        assert_eq!(at(60).unanswered, 1, "what waits for long is told");
    }
}
