//! Progress of changes to the clients, counted over the clients' records.

use std::collections::HashSet;
use std::time::Instant;

use foldhash::HashMap;

use super::registry::{Fleet, Record};
use crate::resource::Name;
use crate::subscription::Reached;
use crate::upstream::{StoredChange, StoredState};

#[derive(Debug)]
pub struct FollowedChange {
    change: StoredChange,
    /// By store and cohort, as of the last look: whether the change concerns its members.
    concerned: HashMap<(u32, u64), bool>,
}

/// Progress of the clients that a change concerns. Excludes observers and polls, which do not acknowledge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Open at its arrival, and asking for any of it.
    pub clients: usize,
    /// Clients that were sent it, or a later state.
    pub sent: usize,
    pub accepted: usize,
    pub rejected: usize,
    /// When the last of them was sent its newest response.
    pub last_sent: Option<Instant>,
    pub last_answer: Option<Instant>,
}

impl Spread {
    pub const fn is_sent(&self) -> bool {
        self.sent == self.clients
    }

    pub const fn is_answered(&self) -> bool {
        self.accepted + self.rejected == self.clients
    }
}

impl FollowedChange {
    pub fn new(change: StoredChange) -> Self {
        Self { change, concerned: HashMap::default() }
    }

    pub const fn change(&self) -> &StoredChange {
        &self.change
    }

    /// Changed names with a resource, and names without one now.
    pub fn names(&self) -> (usize, usize) {
        let since = self.change.since;
        let all = self.change.stores.iter().flat_map(|store| store.snapshot.changed_after(since));
        // Stores of several parameter sets may share a name.
        let all: HashSet<(&Name, bool)> = all.collect();
        let changed = all.iter().filter(|(_, is_there)| *is_there).count();
        (changed, all.len() - changed)
    }

    /// Control plane's version after it; empty if it gives none.
    pub fn version(&self) -> &str {
        self.change.stores.first().map_or("", |store| store.snapshot.system_version())
    }

    pub fn is_overtaken(&self) -> bool {
        let is_left = |store: &StoredState| {
            let newest = store.of.upgrade().map(|of| of.snapshot());
            newest
                .is_some_and(|newest| newest.has_last_changes(self.change.since, store.snapshot.generation()))
        };
        !self.change.stores.iter().any(is_left)
    }

    fn count(&mut self, record: &Record, before: &HashMap<(u32, u64), bool>, spread: &mut Spread) {
        if record.opened > self.change.arrived {
            return;
        }
        // Copy, so that the client's connection does not wait for the rest.
        let progress = record.state().find(&self.change.type_url).map(|progress| progress.clone());
        let Some(progress) = progress else { return };
        let Some(audience) = progress.upgrade() else { return };
        let of = audience.of();
        if of.cache() != self.change.cache || audience.is_observer() {
            return;
        }
        let Some(store) = self.change.stores.iter().find(|store| store.index == of.index()) else { return };
        let key = (store.index, audience.cohort());
        let look = || store.snapshot.has_news_for(audience.subscription(), self.change.since);
        let is_concerned =
            *self.concerned.entry(key).or_insert_with(|| before.get(&key).copied().unwrap_or_else(look));
        if !is_concerned {
            return;
        }
        spread.clients += 1;
        let answered = match progress.reached(store.snapshot.generation()) {
            Reached::NotSent => return,
            Reached::Sent => None,
            Reached::Accepted(at) => {
                spread.accepted += 1;
                at
            }
            Reached::Rejected(at) => {
                spread.rejected += 1;
                Some(at)
            }
        };
        spread.sent += 1;
        spread.last_sent = spread.last_sent.max(progress.newest_sent().map(|sent| sent.at));
        spread.last_answer = spread.last_answer.max(answered);
    }
}

pub fn spread<'c>(fleet: &Fleet, changes: impl Iterator<Item = &'c mut FollowedChange>) -> Vec<Spread> {
    // Keeps only cohorts that still exist.
    let take = |change: &'c mut FollowedChange| {
        let before = std::mem::take(&mut change.concerned);
        (change, before, Spread::default())
    };
    let mut looks: Vec<_> = changes.map(take).collect();
    for record in fleet.after(0) {
        looks.iter_mut().for_each(|(change, before, spread)| change.count(&record, before, spread));
    }
    looks.into_iter().map(|(_, _, spread)| spread).collect()
}
