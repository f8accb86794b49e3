//! Cohorts of one type, the index from names to them, and the demand upstream.
//!
//! A change costs the number of cohorts that it concerns, not of clients. The union of the index is the
//! subscription upstream. Names that became wanted or unwanted are queued until the upstream takes them.

use std::collections::{BTreeSet, hash_map};
use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::MutexGuard;
use slab::Slab;
use smallvec::SmallVec;

use super::Generation;
use super::cohort::Cohort;
use super::demand::{Lane, NameIndex, NameQueue};
use super::snapshot::{Snapshot, Touch};
use super::subscription::{NameDiff, Role, StreamProfile, Subscription};
use crate::fairness::{NAMES_ALTERED_IN_PLACE, NAMES_PER_SLICE, UPSTREAM_NAME_BYTES};
use crate::pool::Tenant;
use crate::resource::Name;

#[derive(Debug, Default)]
pub(super) struct CohortIndex {
    cohorts: Slab<Arc<Cohort>>,
    /// By [`Subscription::key`].
    by_key: HashMap<u64, SmallVec<[u32; 2]>>,
    names: NameIndex,
    timed: usize,
    /// Names that may have become wanted or unwanted, or are to be filled in for observers.
    dirty: NameQueue,
    wildcard_dirty: bool,
    /// The store is filled from others.
    is_filled: bool,
    refreshed: BTreeSet<Name>,
    next_id: u64,
}

/// Handles names in slices, yielding the lock in between.
fn in_parts(
    cohort_index: &mut MutexGuard<'_, CohortIndex>,
    names: &[Name],
    mut with: impl FnMut(&mut CohortIndex, &Name),
) {
    let mut parts = names.chunks(NAMES_PER_SLICE).peekable();
    while let Some(part) = parts.next() {
        part.iter().for_each(|name| with(cohort_index, name));
        if parts.peek().is_some() {
            MutexGuard::bump(cohort_index);
        }
    }
}

impl CohortIndex {
    /// Creates the index of a store, filled from other stores or not.
    pub(super) fn new(is_filled: bool) -> Self {
        Self { is_filled, ..Self::default() }
    }

    pub(super) fn cohort(&self, at: usize) -> Arc<Cohort> {
        Arc::clone(&self.cohorts[at])
    }

    /// Whether a cohort creates demand upstream.
    fn is_client(&self, slot: u32) -> bool {
        self.cohorts[slot as usize].role == Role::Client
    }

    fn find(
        &self,
        key: u64,
        subscription: &Subscription,
        profile: StreamProfile,
        role: Role,
    ) -> Option<usize> {
        let is_it = |at: &usize| {
            let cohort = &self.cohorts[*at];
            cohort.profile == profile && cohort.role == role && cohort.subscription == *subscription
        };
        self.by_key.get(&key)?.iter().map(|slot| *slot as usize).find(is_it)
    }

    /// Finds or makes a cohort, yielding the lock between names. A new cohort is found only once all names are
    /// listed, and its members start at the newest state then.
    pub(super) fn enter(
        this: &mut MutexGuard<'_, Self>,
        now: impl Fn() -> Generation,
        subscription: &Subscription,
        profile: StreamProfile,
        role: Role,
        peer: Option<&Tenant>,
    ) -> usize {
        let key = subscription.key(profile);
        let lane = Lane::new(peer, subscription.names().len());
        if role == Role::Client
            && !this.dirty.is_empty()
            && this.find(key, subscription, profile, role).is_some()
        {
            // The other peer's queue may be longer: the name gets a place in this lane too.
            in_parts(this, subscription.names(), |this, name| this.dirty.join(&lane, name));
        }
        loop {
            if let Some(at) = this.find(key, subscription, profile, role) {
                return at;
            }
            let shared = Self::share_names(this, subscription);
            this.next_id += 1;
            let cohort = Arc::new(Cohort::new(this.next_id, shared, profile, role, now()));
            let at = this.cohorts.insert(Arc::clone(&cohort));
            let (slot, names) = (at as u32, cohort.subscription.names());
            in_parts(this, names, |this, name| this.list(name, slot, role, &lane));
            if this.find(key, subscription, profile, role).is_some() {
                // Another client made the same cohort meanwhile.
                in_parts(this, names, |this, name| this.unlist(name, slot, role, &lane));
                this.cohorts.remove(at);
                continue;
            }
            cohort.begin(now());
            this.timed += usize::from(profile.receives_ttls());
            this.replace_wildcard(None, Some(&cohort.subscription), slot);
            this.by_key.entry(key).or_default().push(slot);
            return at;
        }
    }

    /// Changes the subscription of a cohort with one member, at the cost of the difference. Returns the
    /// subscription if there are other members, a cohort to join, or too many differences.
    pub(super) fn alter(
        &mut self,
        at: usize,
        mut subscription: Subscription,
        snapshot: &Snapshot,
        peer: Option<&Tenant>,
    ) -> Result<Arc<Cohort>, Subscription> {
        let now = snapshot.generation();
        let old = Arc::clone(&self.cohorts[at]);
        let (key, slot, role) = (subscription.key(old.profile), at as u32, old.role);
        if old.is_shared() || self.find(key, &subscription, old.profile, role).is_some() {
            return Err(subscription);
        }
        let NameDiff { added, removed, kept } =
            NameDiff::between(old.subscription.names(), subscription.names());
        if added.len() + removed.len() > NAMES_ALTERED_IN_PLACE {
            return Err(subscription);
        }
        let known =
            added.iter().filter_map(|at| Some((*at, self.names.shared(&subscription.names()[*at])?.clone())));
        let shared: Vec<(usize, Name)> = known.chain(kept).collect();
        subscription.share(shared);
        let lane = Lane::new(peer, added.len() + removed.len());
        added.iter().for_each(|at| self.list(&subscription.names()[*at], slot, role, &lane));
        removed.iter().for_each(|at| self.unlist(&old.subscription.names()[*at], slot, role, &lane));
        self.replace_wildcard(Some(&old.subscription), Some(&subscription), slot);
        self.forget(old.subscription.key(old.profile), slot);
        self.by_key.entry(key).or_default().push(slot);
        self.next_id += 1;
        let cohort = Cohort::new(self.next_id, subscription, old.profile, role, now);
        let added = added.iter().map(|at| &cohort.subscription.names()[*at]);
        let removed = removed.iter().map(|at| &old.subscription.names()[*at]);
        cohort.inherit_tally(&old, snapshot, removed, added);
        let cohort = Arc::new(cohort);
        self.cohorts[at] = Arc::clone(&cohort);
        Ok(cohort)
    }

    fn list(&mut self, name: &Name, slot: u32, role: Role, lane: &Lane) {
        let cohorts = &self.cohorts;
        let mut others = self.names.list(name, slot);
        let is_new = match role {
            Role::Client => !others.any(|other| cohorts[other as usize].role == Role::Client),
            Role::Observer => self.is_filled && others.next().is_none(),
        };
        if is_new {
            self.dirty.push(lane, name);
        } else if role == Role::Client {
            // The name may wait behind the other names of the peer that asked first.
            self.dirty.join(lane, name);
        }
    }

    fn unlist(&mut self, name: &Name, slot: u32, role: Role, lane: &Lane) {
        let cohorts = &self.cohorts;
        let mut others = self.names.unlist(name, slot);
        if role == Role::Client && !others.any(|other| cohorts[other as usize].role == Role::Client) {
            self.dirty.push(lane, name);
        }
    }

    /// Replaces a cohort's wildcard and collections. The end of observation has no effect upstream.
    fn replace_wildcard(&mut self, old: Option<&Subscription>, new: Option<&Subscription>, slot: u32) {
        let before = (self.wants_wildcard(), self.asks_wildcard());
        old.inspect(|old| self.names.remove(old, slot));
        new.inspect(|new| self.names.add(new, slot));
        let is_filled_first = self.is_filled && !before.1 && self.asks_wildcard();
        self.wildcard_dirty |= before.0 != self.wants_wildcard() || is_filled_first;
    }

    fn forget(&mut self, key: u64, slot: u32) {
        if let hash_map::Entry::Occupied(mut slots) = self.by_key.entry(key) {
            slots.get_mut().retain(|other| *other != slot);
            if slots.get().is_empty() {
                slots.remove();
            }
        }
    }

    /// Equal subscription that uses the name allocations of the index.
    fn share_names(this: &mut MutexGuard<'_, Self>, subscription: &Subscription) -> Subscription {
        let mut names = Vec::with_capacity(subscription.names().len());
        in_parts(this, subscription.names(), |this, name| {
            names.push(this.names.shared(name).unwrap_or(name).clone());
        });
        subscription.with_allocations(names)
    }

    /// Removes a cohort without members, yielding the lock between names; nobody finds it any more.
    pub(super) fn leave(this: &mut MutexGuard<'_, Self>, at: usize, peer: Option<&Tenant>) {
        let (cohort, slot) = (Arc::clone(&this.cohorts[at]), at as u32);
        this.forget(cohort.subscription.key(cohort.profile), slot);
        this.timed -= usize::from(cohort.profile.receives_ttls());
        this.replace_wildcard(Some(&cohort.subscription), None, slot);
        let names = cohort.subscription.names();
        let lane = Lane::new(peer, names.len());
        in_parts(this, names, |this, name| this.unlist(name, slot, cohort.role, &lane));
        this.cohorts.remove(at);
    }

    /// Whether there is [`Interest`] to take, or anything to fill in.
    pub(super) fn is_dirty(&self) -> bool {
        self.wildcard_dirty || !self.dirty.is_empty() || !self.refreshed.is_empty()
    }

    pub(super) fn wants(&self, name: &str) -> bool {
        self.names.of_very_name(name).any(|slot| self.is_client(slot))
    }

    /// Whether any client or observer asks for this name.
    pub(super) fn asks(&self, name: &str) -> bool {
        self.names.of_very_name(name).next().is_some()
    }

    /// Queues the names that are still wanted; returns whether there are any.
    pub(super) fn ask_again(&mut self, names: &[Name], peer: Option<&Tenant>) -> bool {
        let lane = Lane::new(peer, names.len());
        let before = self.dirty.len();
        for name in names {
            if self.wants(name.as_str()) {
                self.dirty.push(&lane, name);
            }
        }
        self.dirty.len() > before
    }

    /// Queues a name that an operator refreshed.
    pub(super) fn refresh(&mut self, name: &Name) {
        self.refreshed.insert(name.clone());
    }

    pub(super) fn wants_wildcard(&self) -> bool {
        self.names.of_wildcard().any(|slot| self.is_client(slot))
    }

    /// Whether any client or observer asks for the wildcard.
    pub(super) fn asks_wildcard(&self) -> bool {
        self.names.of_wildcard().next().is_some()
    }

    /// Number of clients that ask for a name, or for the wildcard if it is a member.
    pub(super) fn clients_of(&self, name: &Name, is_member: bool) -> usize {
        self.slots_of(name, true, is_member).map(|slot| self.cohorts[slot as usize].len()).sum()
    }

    /// Cohorts of clients that ask for a name by itself or by its collection, and those that only ask for the wildcard.
    pub(super) fn slots_of<'a>(
        &'a self,
        name: &'a Name,
        by_name: bool,
        as_member: bool,
    ) -> impl Iterator<Item = u32> + 'a {
        let named = by_name.then(|| self.names.of_name(name)).into_iter().flatten();
        let wildcards = as_member.then(|| self.names.of_wildcard()).into_iter().flatten();
        // A cohort may ask for both.
        let only_wildcard = wildcards.filter(|slot| {
            let subscription = self.cohorts[*slot as usize].subscription();
            !subscription.contains(name.as_str()) && !subscription.covers(name.as_str())
        });
        named.chain(only_wildcard).filter(|slot| self.is_client(*slot))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.cohorts.is_empty() && !self.is_dirty()
    }

    pub(super) fn cohorts(&self) -> usize {
        self.cohorts.len()
    }

    /// Takes the interest of clients. `proof` if they wait for evidence.
    pub(super) fn take_interest(&mut self, proof: bool) -> Option<Interest> {
        if !proof && !self.is_dirty() {
            return None;
        }
        self.wildcard_dirty = false;
        let names = self.dirty.take(NAMES_PER_SLICE, UPSTREAM_NAME_BYTES);
        let with_wanted = |name: Name| {
            let is_wanted = self.wants(name.as_str());
            (name, is_wanted)
        };
        let names = names.into_iter().map(with_wanted).collect();
        let refreshed = std::mem::take(&mut self.refreshed).into_iter().collect();
        Some(Interest { wildcard: self.wants_wildcard(), names, proof, refreshed })
    }

    /// Records a change with every cohort of its names, before publication.
    pub(super) fn record(&self, touched: &[Touch], generation: Generation) {
        let record = |(slot, touch): (u32, &Touch)| self.cohorts[slot as usize].record(generation, touch);
        self.named(touched).chain(self.renewed(touched)).for_each(record);
    }

    /// Marks and returns every cohort that a change concerns.
    pub(super) fn mark(
        &self,
        touched: &[Touch],
        completeness_changed: bool,
        generation: Generation,
    ) -> Vec<Arc<Cohort>> {
        let mut wake = Vec::new();
        let mut mark = |slot: u32, is_change: bool| {
            let cohort = &self.cohorts[slot as usize];
            if cohort.mark(generation, is_change) {
                wake.push(Arc::clone(cohort));
            }
        };
        // Changes go before news of completeness, or they would not be counted.
        self.named(touched).chain(self.renewed(touched)).for_each(|(slot, _)| mark(slot, true));
        let is_change = touched.iter().any(|touch| touch.members);
        if self.timed > 0 && touched.iter().any(|touch| touch.renewed.members) {
            self.names.of_wildcard().filter(|slot| self.is_timed(*slot)).for_each(|slot| mark(slot, true));
        }
        if completeness_changed || is_change {
            self.names.of_wildcard().for_each(|slot| mark(slot, is_change));
        }
        wake
    }

    fn named<'t>(&self, touched: &'t [Touch]) -> impl Iterator<Item = (u32, &'t Touch)> {
        touched.iter().filter(|touch| touch.named).flat_map(|touch| self.by_name(touch))
    }

    /// Cohorts that receive TTLs, by names of which only the TTL was renewed.
    fn renewed<'t>(&self, touched: &'t [Touch]) -> impl Iterator<Item = (u32, &'t Touch)> {
        let renewed = touched.iter().filter(|touch| self.timed > 0 && touch.renewed.named && !touch.named);
        renewed.flat_map(|touch| self.by_name(touch)).filter(|(slot, _)| self.is_timed(*slot))
    }

    fn by_name<'t>(&self, touch: &'t Touch) -> impl Iterator<Item = (u32, &'t Touch)> {
        self.names.of_name(&touch.name).map(move |slot| (slot, touch))
    }

    fn is_timed(&self, slot: u32) -> bool {
        self.cohorts[slot as usize].profile.receives_ttls()
    }
}

/// Demand of a type's clients upstream, as far as it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    pub wildcard: bool,
    /// Names and whether they are wanted now. Of many names only some: ask again.
    pub names: Vec<(Name, bool)>,
    /// Whether a client waits for evidence that missing resources do not exist.
    pub proof: bool,
    pub refreshed: Vec<Name>,
}

/// Wakes the members of these cohorts. Separate from marking, so that no lock is held.
pub(super) fn wake(cohorts: &[Arc<Cohort>]) {
    cohorts.iter().for_each(|cohort| cohort.wake());
}
