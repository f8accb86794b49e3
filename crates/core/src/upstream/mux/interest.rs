//! Interest of clients as subscriptions upstream, and its end: names and wildcards are let go after the linger.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::super::StreamId;
use super::super::linger::Want;
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
        let held = LazyCell::new(|| snapshot(self.writer.cache(), type_url, parameters));
        // In SotW, where the clusters are known.
        let clusters = LazyCell::new(|| {
            let is_concerned = traits.speaks_sotw && type_url.kind() == Kind::Endpoint;
            let clusters =
                is_concerned.then(|| snapshot(self.writer.cache(), &Kind::Cluster.into(), parameters));
            clusters.filter(|clusters| clusters.wildcard_known())
        });
        let names = interest.names.iter().map(|(name, is_wanted)| (Some(name), *is_wanted));
        for (name, is_wanted) in std::iter::once((None, interest.wildcard)).chain(names) {
            // Upstream this name would be the wildcard.
            if name.is_some_and(|name| matches!(name.as_str(), "" | Name::WILDCARD)) {
                continue;
            }
            let item = || (type_url.clone(), parameters.clone(), name.cloned());
            let topic = topic_set.topic(parameters);
            match (topic.want_of(name), is_wanted) {
                (Want::No, true) => match name {
                    Some(name) => {
                        change.ops.extend(topic_set.add_name(parameters, name, self.writer.cache()));
                    }
                    None => change = topic_set.add_wildcard(parameters, self.writer.cache()),
                },
                (before, true) => {
                    if let Want::Until(end) = before {
                        self.lingering.remove(end, item());
                    }
                    topic.set_want(name, Want::Yes);
                    name.into_iter().for_each(|name| topic.want_again(name, &held));
                }
                (Want::Yes, false) => {
                    let is_gone = |name| clusters.as_ref().is_some_and(|known| !has_endpoints(known, name));
                    let until = if name.is_some_and(is_gone) { until.min(now + KEPT) } else { until };
                    topic.set_want(name, Want::Until(until));
                    self.lingering.insert(until, item());
                }
                (Want::No | Want::Until(_) | Want::Kept(_), false) => {}
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
        let mut count = 0;
        while count < NAMES_PER_SLICE
            && let Some(((type_url, parameters, name), is_early)) = self.lingering.next(now)
        {
            // An early departure makes room for a name that came, and is not counted.
            count += usize::from(!is_early);
            let away = away && !is_early;
            let Some(topic_set) = self.topic_sets.get_mut(&type_url) else { continue };
            let is_last = topic_set.is_last_of_wildcard(&parameters);
            let Some(topic) = topic_set.topics.get_mut(&parameters) else { continue };
            let snapshot = &snapshot(&cache, &type_url, &parameters);
            let mut change = Change::default();
            let is_wanted = match &name {
                Some(name) => cache.wants(&type_url, &parameters, name.as_str()),
                None => cache.wants_wildcard(&type_url, &parameters),
            };
            let is_known = || match &name {
                Some(name) => is_known(snapshot, name),
                None => snapshot.wildcard_known() || snapshot.member_count() > 0,
            };
            match name {
                name if is_wanted => topic.set_want(name.as_ref(), Want::Yes),
                name if away && is_known() => {
                    topic.set_want(name.as_ref(), Want::Until(later));
                    self.lingering.insert(later, (type_url.clone(), parameters.clone(), name));
                }
                Some(name) => {
                    self.counters.crowded_out.add(u64::from(is_early));
                    topic.names.remove(&name);
                    change.ops.extend(topic.forget(name.clone(), snapshot));
                    if parameters.is_empty() && !self.traits.knows_locators {
                        topic_set.ask_again_by_locator(&name);
                    }
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
