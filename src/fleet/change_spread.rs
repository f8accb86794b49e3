//! How far changes have come on their way to the clients, counted over the records of these.

use std::collections::HashSet;
use std::time::Instant;

use foldhash::HashMap;

use super::client_record::Record;
use super::registry::Fleet;
use crate::resource::Name;
use crate::subscription::Reached;
use crate::upstream::{StoredChange, StoredState};

/// A change that is followed to the clients.
#[derive(Debug)]
pub struct FollowedChange {
    change: StoredChange,
    /// By store and cohort, as of the last look: whether the change has anything to tell its members.
    concerned: HashMap<(u32, u64), bool>,
}

/// Clients that a change concerns, by how far each is with it. Observers and polls are left out: they acknowledge nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Streams that were open when it arrived and ask for any of it.
    pub clients: usize,
    /// Those that were sent it, or a later state in its place.
    pub sent: usize,
    /// Those that accepted that.
    pub accepted: usize,
    /// Those that rejected it.
    pub rejected: usize,
    /// When the last of them was sent its newest response.
    pub last_sent: Option<Instant>,
    /// When the last of them answered.
    pub last_answer: Option<Instant>,
}

impl Spread {
    /// Whether each of them was sent it.
    pub const fn is_sent(&self) -> bool {
        self.sent == self.clients
    }

    /// Whether each of them answered.
    pub const fn is_answered(&self) -> bool {
        self.accepted + self.rejected == self.clients
    }
}

impl FollowedChange {
    /// Follows a change.
    pub fn new(change: StoredChange) -> Self {
        Self { change, concerned: HashMap::default() }
    }

    /// The change.
    pub const fn change(&self) -> &StoredChange {
        &self.change
    }

    /// Number of names that changed and have a resource, and of names that have none any more.
    pub fn names(&self) -> (usize, usize) {
        let since = self.change.since;
        let all = self.change.stores.iter().flat_map(|store| store.snapshot.changed_after(since));
        // Stores of several sets of parameters may have a name in common.
        let all: HashSet<(&Name, bool)> = all.collect();
        let changed = all.iter().filter(|(_, is_there)| *is_there).count();
        (changed, all.len() - changed)
    }

    /// Version of the control plane after it; empty if it gives none.
    pub fn version(&self) -> &str {
        self.change.stores.first().map_or("", |store| store.snapshot.system_version())
    }

    /// Whether all that it changed has changed again since.
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
        // The connection of the client does not wait for what is made of the copy.
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

/// Counts the clients of each of these changes.
pub fn spread<'c>(fleet: &Fleet, changes: impl Iterator<Item = &'c mut FollowedChange>) -> Vec<Spread> {
    // Cohorts that are over are forgotten: only those that are met again are kept.
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
