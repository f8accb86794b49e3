//! Interest of clients as subscriptions upstream, and its end: names and wildcards are let go after the linger.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::super::StreamId;
use super::super::linger::{Departure, Want};
use super::super::topic_set::{TopicSet, snapshot};
use super::Mux;
use super::prefetch::{KEPT, has_endpoints};
use crate::cache::{Change, Snapshot, VisibleState, Wanted};
use crate::fairness::NAMES_PER_SLICE;
use crate::resource::{Kind, Name, Parameters, TypeUrl};

impl Mux {
    /// Applies a change of interest, from
    /// [`Cache::take_interest`](crate::cache::Cache::take_interest).
    pub fn interest(&mut self, wanted: Vec<Wanted>, now: Instant) {
        self.update_clock(now);
        for wanted in wanted {
            self.want(&wanted, now);
            self.writer.fill(&wanted, now);
            self.tidy(&wanted.type_url);
        }
        self.tick(now);
    }

    fn want(&mut self, wanted: &Wanted, now: Instant) {
        let Wanted { type_url, parameters, interest, .. } = wanted;
        let open = StreamId::ALL.map(|stream| self.streams[stream as usize].is_some());
        let traits = self.traits;
        let new = || TopicSet::new(type_url.clone(), open, traits);
        let until = now + self.settings.linger;
        let topic_set = self.topic_sets.entry(type_url.clone()).or_insert_with(new);
        let mut change = Change::default();
        match (topic_set.topic(parameters).wildcard, interest.wildcard) {
            (Want::No, true) => change = topic_set.add_wildcard(parameters, self.writer.cache()),
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

    /// Lets go of unwanted wildcards that no stream carries. While no stream is open, they are
    /// kept.
    pub(super) fn drop_kept(&mut self, is_concerned: impl Fn(&TopicSet) -> bool, now: Instant) {
        let concerned = self.topic_sets.iter().filter(|(_, topic_set)| is_concerned(topic_set));
        for type_url in concerned.map(|(type_url, _)| type_url.clone()).collect::<Vec<_>>() {
            let Some(topic_set) = self.topic_sets.get_mut(&type_url) else { continue };
            let changes = topic_set.drop_kept(self.writer.cache());
            topic_set.arrange();
            self.apply(&type_url, changes, now);
        }
    }

    /// Lets go of names and wildcards after the linger, or earlier to make room, unless a client
    /// wants them by now (R-Relay-16).
    ///
    /// While the control plane is away, known resources cannot be had again: they are kept, and
    /// their linger starts over (R-Relay-06). Unknown ones are let go all the same: short-lived
    /// clients would fill the relay.
    pub(super) fn let_go(&mut self, now: Instant) {
        let away = self.streams[StreamId::Primary as usize].is_none();
        let later = now + self.settings.linger.max(KEPT);
        let cache = Arc::clone(self.writer.cache());
        let mut forgotten: BTreeMap<TypeUrl, BTreeMap<Parameters, Change>> = BTreeMap::new();
        // Names of one type and time are neighbours.
        let mut seen: Option<(TypeUrl, Parameters, Arc<Snapshot>)> = None;
        let mut count = 0;
        while count < NAMES_PER_SLICE
            && let Some(Departure { type_url, parameters, name: item, is_early }) = self.lingering.next(now)
        {
            // An early departure makes room for a name that came, and is not counted.
            count += usize::from(!is_early);
            let away = away && !is_early;
            let Some(topic_set) = self.topic_sets.get_mut(&type_url) else { continue };
            let is_last = topic_set.is_last_of_wildcard(&parameters);
            let Some(topic) = topic_set.topics.get_mut(&parameters) else { continue };
            if seen.as_ref().is_none_or(|(of, with, _)| *of != type_url || *with != parameters) {
                let snapshot = snapshot(&cache, &type_url, &parameters);
                seen = Some((type_url.clone(), parameters.clone(), snapshot));
            }
            let Some((.., snapshot)) = &seen else { continue };
            let mut change = Change::default();
            match item {
                Some(name) if cache.wants(&type_url, &parameters, name.as_str()) => {
                    topic.names.want(&name, Want::Yes);
                }
                Some(name) if away && is_known(snapshot, &name) => {
                    topic.names.want(&name, Want::Until(later));
                    self.lingering.insert(later, type_url.clone(), parameters.clone(), Some(name));
                }
                Some(name) => {
                    self.counters.crowded_out.add(u64::from(is_early));
                    topic.names.remove(&name);
                    change.ops.extend(topic.forget(name.clone(), snapshot));
                    if parameters.is_empty() && !self.traits.knows_locators {
                        topic_set.ask_again_by_locator(&name);
                    }
                }
                None if cache.wants_wildcard(&type_url, &parameters) => topic.wildcard = Want::Yes,
                None if away && (snapshot.wildcard_known() || snapshot.member_count() > 0) => {
                    topic.wildcard = Want::Until(later);
                    self.lingering.insert(later, type_url.clone(), parameters.clone(), None);
                }
                // There is one plain wildcard per type. It stays up to date for as long as its
                // stream lives.
                None if !away && (parameters.is_empty() || (is_last && self.has_answered)) => {
                    topic.wildcard = Want::Kept(now);
                }
                None => {
                    let by_locator = !parameters.is_empty() && !self.traits.is_plain;
                    change = topic.forget_wildcard(by_locator, snapshot);
                }
            }
            let changes = forgotten.entry(type_url).or_default().entry(parameters).or_default();
            changes.ops.extend(change.ops);
            changes.wildcard_known = change.wildcard_known.or(changes.wildcard_known);
        }
        for (type_url, changes) in forgotten {
            self.apply(&type_url, changes.into_iter().collect(), now);
            if let Some(topic_set) = self.topic_sets.get_mut(&type_url) {
                topic_set.arrange();
                topic_set.forget_refused();
            }
            self.tidy(&type_url);
        }
    }
}

/// Whether anything is known of a name, or of members of a collection, that is worth keeping.
fn is_known(snapshot: &Snapshot, name: &Name) -> bool {
    !matches!(snapshot.by_name(name.as_str()), VisibleState::Unknown | VisibleState::Failed)
        || snapshot.members_of(name).next().is_some()
}
