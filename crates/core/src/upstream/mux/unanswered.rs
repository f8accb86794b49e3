//! Unanswered subscriptions: their count, and whether the control plane reads locators.

use std::time::Instant;

use super::super::answer::Silence;
use super::super::silence::Unanswered;
use super::super::topic_set::TopicSet;
use super::super::{Locators, StreamId};
use super::Mux;
use crate::cache::View;

impl Mux {
    /// Subscriptions without an answer on this connection. The cost grows with the number of names:
    /// call it rarely.
    pub fn unanswered(&self) -> Unanswered {
        let mut all = Unanswered::default();
        for (type_url, topic_set) in &self.topic_sets {
            let silences =
                topic_set.topics.values().flat_map(|topic| View::ALL.map(|view| topic.silence(view)));
            all.add(type_url, silences.fold(Silence::default(), Silence::with), &self.clock);
        }
        all
    }
}

impl Mux {
    /// Gives up locators if the control plane leaves them unanswered (R-Up-18).
    pub(super) fn look_for_ignored_locators(&mut self, now: Instant) {
        if self.locators_due.is_none_or(|due| due > self.clock.at(now)) {
            return;
        }
        self.locators_due = None;
        if self.knows_locators || self.locators == Locators::Plain || self.asks_plainly {
            return;
        }
        let since = self.topic_sets.values().filter_map(TopicSet::unanswered_since).min();
        let Some(due) = since.map(|since| since + self.settings.locator_timeout) else { return };
        if due > self.clock.at(now) {
            self.locators_due = Some(due);
            return;
        }
        self.counters.locators_ignored.add(1);
        tracing::warn!(
            "the control plane does not answer resource locators: it is asked by plain names on this connection; set upstream.locators to plain if that is how it is meant"
        );
        // Takes effect with a new primary stream, at once: a legacy wildcard from an empty request
        // cannot be taken back.
        self.asks_plainly = true;
        if let Some(primary) = &mut self.streams[StreamId::Primary as usize] {
            primary.renews_at = Some(now);
        }
    }
}
