//! Questions for a probe of another server, and subscriptions that this one leaves unanswered.

use std::time::Instant;

use super::super::StreamId;
use super::super::answer::Silence;
use super::super::probe::Question;
use super::super::silence::Unanswered;
use super::super::topic_set::{TopicSet, snapshot};
use super::Mux;
use crate::cache::View;
use crate::proto::Node;
use crate::resource::Name;

/// Most questions of one kind. A server that does not answer one is asked the next.
const QUESTIONS: usize = 3;
/// Names of a topic that are examined.
const LOOKED_AT: usize = 64;

impl Mux {
    /// Returns questions, the best first: names that exist, then wildcards, then unknown names.
    /// Many servers ignore names that do not exist (O2).
    pub fn questions(&self) -> Vec<Question> {
        let mut kinds = [const { Vec::new() }; 3];
        for (type_url, topic_set) in &self.topic_sets {
            for (parameters, topic) in &topic_set.topics {
                let mut ask = |kind: usize, name: Option<&Name>, is_held| {
                    let (type_url, parameters) = (type_url.clone(), parameters.clone());
                    kinds[kind].push(Question { type_url, parameters, name: name.cloned(), is_held });
                };
                let snapshot = snapshot(self.writer.cache(), type_url, parameters);
                let is_held = |name: &&Name| snapshot.held(View::Named, name.as_str()).is_some();
                let names = || topic.names.wanted().map(|(name, _)| name).take(LOOKED_AT);
                names().find(is_held).into_iter().for_each(|name| ask(0, Some(name), true));
                names().find(|name| !is_held(name)).into_iter().for_each(|name| ask(2, Some(name), false));
                if topic.wants(View::Wildcard) {
                    ask(1, None, snapshot.member_count() > 0);
                }
            }
        }
        // Every server understands those without parameters.
        kinds.iter_mut().for_each(|kind| kind.sort_by_key(|question| !question.parameters.is_empty()));
        kinds.into_iter().flat_map(|kind| kind.into_iter().take(QUESTIONS)).collect()
    }

    /// Node of the streams, unless one of a client is lent to them.
    pub const fn node(&self) -> &Node {
        &self.settings.node
    }

    /// Subscriptions without an answer on this connection. Gives up locators that stay without one.
    /// Call it once a second: the cost grows with the number of names.
    pub fn unanswered(&mut self, now: Instant) -> Unanswered {
        self.look_for_ignored_locators(now);
        let mut all = Unanswered::default();
        for (type_url, topic_set) in &self.topic_sets {
            let silences =
                topic_set.topics.values().flat_map(|topic| View::ALL.map(|view| topic.silence(view)));
            all.add(type_url, silences.fold(Silence::default(), Silence::with), &self.clock);
        }
        all
    }

    /// Gives up locators if the control plane leaves them unanswered (R-Up-18).
    fn look_for_ignored_locators(&mut self, now: Instant) {
        if self.traits.knows_locators || self.asks_plainly {
            return;
        }
        let since = self.topic_sets.values().filter_map(TopicSet::unanswered_since).min();
        if since.is_none_or(|since| since + self.settings.locator_timeout > self.clock.at(now)) {
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
