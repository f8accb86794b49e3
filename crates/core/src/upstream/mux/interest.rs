//! Interest of clients, as subscriptions upstream.

use std::cell::LazyCell;
use std::time::Instant;

use super::super::Locators;
use super::super::StreamId;
use super::super::linger::Want;
use super::super::topic_set::{TopicSet, snapshot};
use super::Mux;
use super::let_go::KEPT;
use super::prefetch::has_endpoints;
use crate::cache::{Change, Wanted};
use crate::resource::{Kind, Name};

impl Mux {
    /// Applies a change of interest, from
    /// [`Cache::take_interest`](crate::cache::Cache::take_interest).
    pub fn interest(&mut self, wanted: Vec<Wanted>, now: Instant) {
        self.update_clock(now);
        for wanted in wanted {
            self.want(&wanted, now);
            // The store exists, as the clients have joined it.
            self.writer.fill(&wanted, now).ok();
            self.tidy(&wanted.type_url);
        }
        self.tick(now);
    }

    fn want(&mut self, wanted: &Wanted, now: Instant) {
        let Wanted { type_url, parameters, interest, .. } = wanted;
        let open = StreamId::ALL.map(|stream| self.streams[stream as usize].is_some());
        let plain = self.locators == Locators::Plain;
        let traits = self.traits;
        let new = || TopicSet::new(type_url.clone(), open, plain, traits);
        let until = now + self.settings.linger;
        let is_silent = !self.knows_locators;
        let topic_set = self.topic_sets.entry(type_url.clone()).or_insert_with(new);
        let mut change = Change::default();
        match (topic_set.topic(parameters).wildcard, interest.wildcard) {
            (Want::No, true) => change = topic_set.add_wildcard(parameters, is_silent, self.writer.cache()),
            (Want::Until(end), true) => {
                self.lingering.remove(end, type_url.clone(), parameters.clone(), None);
                topic_set.topic(parameters).wildcard = Want::Yes;
            }
            (Want::Yes, false) => {
                self.lingering.insert(until, type_url.clone(), parameters.clone(), None);
                topic_set.topic(parameters).wildcard = Want::Until(until);
            }
            (Want::Kept(_), true) => topic_set.topic(parameters).wildcard = Want::Yes,
            (Want::Yes, true) | (Want::No | Want::Until(_) | Want::Kept(_), false) => {}
        }
        let ops = &mut change.ops;
        let held = LazyCell::new(|| snapshot(self.writer.cache(), type_url, parameters));
        // In SotW, where the clusters are known.
        let clusters = LazyCell::new(|| {
            let is_concerned = traits.speaks_sotw && type_url.kind() == Kind::Endpoint;
            let clusters =
                is_concerned.then(|| snapshot(self.writer.cache(), &Kind::Cluster.into(), parameters));
            clusters.filter(|clusters| clusters.wildcard_known())
        });
        for (name, is_wanted) in &interest.names {
            // Upstream this name would be the wildcard.
            if matches!(name.as_str(), "" | Name::WILDCARD) {
                continue;
            }
            if *is_wanted && topic_set.topic(parameters).names.is_wanted(name.as_str()) {
                topic_set.topic(parameters).want_again(name, &held);
            }
            match (topic_set.topic(parameters).names.want_mut(name.as_str()), is_wanted) {
                (None, true) => ops.extend(topic_set.add_name(parameters, name, self.writer.cache())),
                (Some(want @ Want::Until(_)), true) => {
                    if let Want::Until(end) = std::mem::replace(want, Want::Yes) {
                        let item = Some(name.clone());
                        self.lingering.remove(end, type_url.clone(), parameters.clone(), item);
                    }
                }
                (Some(want @ Want::Yes), false) => {
                    let is_gone = clusters.as_ref().is_some_and(|clusters| !has_endpoints(clusters, name));
                    let until = if is_gone { until.min(now + KEPT) } else { until };
                    *want = Want::Until(until);
                    let item = Some(name.clone());
                    self.lingering.insert(until, type_url.clone(), parameters.clone(), item);
                }
                (Some(_), _) | (None, false) => {}
            }
        }
        if interest.proof {
            topic_set.topic(parameters).needs_proof = [true; 2];
        }
        topic_set.arrange();
        interest.refreshed.iter().for_each(|name| topic_set.refresh(name, self.writer.cache()));
        self.apply(type_url, vec![(parameters.clone(), change)], now);
    }
}
