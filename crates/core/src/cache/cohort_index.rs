//! Subscriptions to one type: cohorts, the index from names to them, and what is wanted upstream.
//!
//! Clients that must be told the same things are one [`Cohort`]. The index counts cohorts, never clients: what a
//! change costs here grows with the number of distinct subscriptions it touches. The union of the index is the
//! subscription upstream; names whose answer to "does anybody want this?" changed are kept until the upstream asks.

use std::collections::{BTreeSet, hash_map};
use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::MutexGuard;
use slab::Slab;
use smallvec::SmallVec;

use super::Generation;
use super::audience::Audience;
use super::cohort::Cohort;
use super::name_diff::NameDiff;
use super::profile::{Role, StreamProfile, TtlSupport};
use super::queue::{Lane, Queue};
use super::snapshot::{Snapshot, Touch};
use super::subscription::Subscription;
use crate::fairness::{NAMES_ALTERED_IN_PLACE, NAMES_PER_SLICE, UPSTREAM_NAME_BYTES};
use crate::pool::Tenant;
use crate::resource::Name;

/// Names of a store that operators have asked for anew, until the upstream takes them: it does so at once, unless it is stuck.
const MAX_REFRESHES: usize = 100;

#[derive(Debug, Default)]
pub(super) struct CohortIndex {
    cohorts: Slab<Arc<Cohort>>,
    /// By [`Subscription::key`].
    by_key: HashMap<u64, SmallVec<[u32; 2]>>,
    clients: Audience,
    observers: Audience,
    /// How many cohorts are told TTLs.
    timed: usize,
    /// Names of which the upstream is to be told whether anybody asks for them.
    dirty: Queue,
    wildcard_dirty: bool,
    /// Whether the store is filled from others, and so has to be for its observers, of which nobody upstream is told.
    is_filled: bool,
    /// Names that observers ask for, to be filled in.
    looked: Queue,
    wildcard_looked: bool,
    /// Names that an operator has asked for anew.
    refreshed: BTreeSet<Name>,
    next_id: u64,
}

/// Whether a subscription, or a change of one, is large: small ones of the same peer do not wait behind it.
const fn is_many(names: usize) -> bool {
    names > NAMES_PER_SLICE
}

/// Does something with each name, and lets others have the registry in between.
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
    /// Index of a store. `is_filled` says that its resources come from other stores.
    pub(super) fn new(is_filled: bool) -> Self {
        Self { is_filled, ..Self::default() }
    }

    /// The cohort in a place that [`enter`](Self::enter) gave.
    pub(super) fn cohort(&self, at: usize) -> Arc<Cohort> {
        Arc::clone(&self.cohorts[at])
    }

    const fn audience(&mut self, role: Role) -> &mut Audience {
        match role {
            Role::Client => &mut self.clients,
            Role::Observer => &mut self.observers,
        }
    }

    /// The cohort of this subscription, profile and role, if there is one.
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

    /// The cohort of this subscription, profile and role, made for a peer where there is none. Others have their turn between its
    /// names: nobody finds it before all are listed, and what is marked meanwhile is what its members begin with.
    pub(super) fn enter(
        this: &mut MutexGuard<'_, Self>,
        now: impl Fn() -> Generation,
        subscription: &Subscription,
        profile: StreamProfile,
        role: Role,
        peer: Option<&Tenant>,
    ) -> usize {
        let key = subscription.key(profile);
        let lane = Lane::new(peer, is_many(subscription.names().len()));
        if role == Role::Client
            && !this.dirty.is_empty()
            && this.find(key, subscription, profile, role).is_some()
        {
            // Another peer has asked for its names, and may wait for its turn.
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
                // Another one was as far first.
                in_parts(this, names, |this, name| this.unlist(name, slot, role, &lane));
                this.cohorts.remove(at);
                continue;
            }
            cohort.begin(now());
            this.timed += usize::from(profile.ttl != TtlSupport::Untold);
            let turns = this.audience(role).add(&cohort.subscription, slot);
            this.turn_wildcard(turns, role);
            this.by_key.entry(key).or_default().push(slot);
            return at;
        }
    }

    /// Gives a cohort of one member another subscription, at the cost of what differs. The subscription is returned where
    /// there are other members, or a cohort to join, or so much differs that it is to be done in parts.
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
        let known = added
            .iter()
            .filter_map(|at| Some((*at, self.clients.shared(&subscription.names()[*at])?.clone())));
        let shared: Vec<(usize, Name)> = known.chain(kept).collect();
        subscription.share(shared);
        let lane = Lane::new(peer, is_many(added.len() + removed.len()));
        added.iter().for_each(|at| self.list(&subscription.names()[*at], slot, role, &lane));
        removed.iter().for_each(|at| self.unlist(&old.subscription.names()[*at], slot, role, &lane));
        let turns = self.audience(role).alter(&old.subscription, &subscription, slot);
        self.turn_wildcard(turns, role);
        self.forget(old.subscription.key(old.profile), slot);
        self.by_key.entry(key).or_default().push(slot);
        self.next_id += 1;
        let cohort = Cohort::new(self.next_id, subscription, old.profile, role, now);
        let added = || added.iter().map(|at| &cohort.subscription.names()[*at]);
        let removed = removed.iter().map(|at| &old.subscription.names()[*at]);
        cohort.inherit_tally(&old, snapshot, removed, added());
        cohort.inherit_journal(&old, now, added());
        let cohort = Arc::new(cohort);
        self.cohorts[at] = Arc::clone(&cohort);
        Ok(cohort)
    }

    /// Notes that a cohort asks for a name.
    fn list(&mut self, name: &Name, slot: u32, role: Role, lane: &Lane) {
        let is_first = self.audience(role).list(name, slot);
        match role {
            Role::Client if is_first => self.dirty.push(lane, name),
            // It may wait behind the other names of the peer that asked for it first.
            Role::Client => self.dirty.join(lane, name),
            Role::Observer if is_first && self.is_filled => self.looked.push(lane, name),
            Role::Observer => {}
        }
    }

    /// Notes that it does not any more.
    fn unlist(&mut self, name: &Name, slot: u32, role: Role, lane: &Lane) {
        if self.audience(role).unlist(name, slot) && role == Role::Client {
            self.dirty.push(lane, name);
        }
    }

    /// Whether anybody asks for the wildcard may have changed.
    fn turn_wildcard(&mut self, turns: bool, role: Role) {
        match role {
            Role::Client => self.wildcard_dirty |= turns,
            // That nobody looks on any more is told to nobody.
            Role::Observer => {
                self.wildcard_looked |= turns && self.is_filled && self.observers.asks_wildcard();
            }
        }
    }

    fn forget(&mut self, key: u64, slot: u32) {
        if let hash_map::Entry::Occupied(mut slots) = self.by_key.entry(key) {
            slots.get_mut().retain(|other| *other != slot);
            if slots.get().is_empty() {
                slots.remove();
            }
        }
    }

    /// An equal subscription with the names' allocations that the index already has.
    fn share_names(this: &mut MutexGuard<'_, Self>, subscription: &Subscription) -> Subscription {
        let mut names = Vec::with_capacity(subscription.names().len());
        in_parts(this, subscription.names(), |this, name| {
            names.push(this.clients.shared(name).unwrap_or(name).clone());
        });
        subscription.with_allocations(names)
    }

    /// Ends a cohort that has no members. Nobody finds it any more while others have their turn between its names.
    pub(super) fn leave(this: &mut MutexGuard<'_, Self>, at: usize, peer: Option<&Tenant>) {
        let (cohort, slot) = (Arc::clone(&this.cohorts[at]), at as u32);
        this.forget(cohort.subscription.key(cohort.profile), slot);
        this.timed -= usize::from(cohort.profile.ttl != TtlSupport::Untold);
        let turns = this.audience(cohort.role).remove(&cohort.subscription, slot);
        this.turn_wildcard(turns, cohort.role);
        let names = cohort.subscription.names();
        let lane = Lane::new(peer, is_many(names.len()));
        in_parts(this, names, |this, name| this.unlist(name, slot, cohort.role, &lane));
        this.cohorts.remove(at);
    }

    /// Whether there is any [`Interest`] to take, or anything to fill in.
    pub(super) fn is_dirty(&self) -> bool {
        self.wildcard_dirty
            || self.wildcard_looked
            || !self.dirty.is_empty()
            || !self.looked.is_empty()
            || !self.refreshed.is_empty()
    }

    /// Whether any client asks for this name.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.clients.asks(name)
    }

    /// Whether any client or observer does.
    pub(super) fn asks(&self, name: &str) -> bool {
        self.clients.asks(name) || self.observers.asks(name)
    }

    /// Puts names on the list for the upstream that are wanted still; returns whether there are any.
    pub(super) fn ask_again(&mut self, names: &[Name], peer: Option<&Tenant>) -> bool {
        let lane = Lane::new(peer, is_many(names.len()));
        let wanted = names.iter().filter(|name| self.clients.asks(name.as_str()));
        let before = self.dirty.len();
        wanted.for_each(|name| self.dirty.push(&lane, name));
        self.dirty.len() > before
    }

    /// Notes that a name is to be had anew, as an operator ordered. Returns whether there was room for it.
    pub(super) fn refresh(&mut self, name: &Name) -> bool {
        let has_room = self.refreshed.len() < MAX_REFRESHES || self.refreshed.contains(name);
        if has_room {
            self.refreshed.insert(name.clone());
        }
        has_room
    }

    /// Whether any client asks for the wildcard.
    pub(super) fn wants_wildcard(&self) -> bool {
        self.clients.asks_wildcard()
    }

    /// Whether any client or observer does.
    pub(super) fn asks_wildcard(&self) -> bool {
        self.clients.asks_wildcard() || self.observers.asks_wildcard()
    }

    /// Number of clients that ask for a name, or for the wildcard if that has it as a member.
    pub(super) fn clients_of(&self, name: &Name, is_member: bool) -> usize {
        let named = self.clients.of_name(name);
        let wildcards = is_member.then(|| self.clients.of_wildcard()).into_iter().flatten();
        // A cohort may ask for both.
        let only_wildcard = wildcards.filter(|slot| {
            let subscription = self.cohorts[*slot as usize].subscription();
            !subscription.contains(name.as_str()) && !subscription.covers(name.as_str())
        });
        named.chain(only_wildcard).map(|slot| self.cohorts[slot as usize].len()).sum()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.cohorts.is_empty() && !self.is_dirty()
    }

    pub(super) fn cohorts(&self) -> usize {
        self.cohorts.len()
    }

    /// Interest of the clients that was not taken yet, with `proof` if they ask for that, and names that observers ask for and
    /// that are to be filled in.
    pub(super) fn take_interest(&mut self, proof: bool) -> Option<(Interest, Vec<Name>)> {
        if !proof && !self.is_dirty() {
            return None;
        }
        self.wildcard_dirty = false;
        self.wildcard_looked = false;
        let looked = self.looked.take(NAMES_PER_SLICE, UPSTREAM_NAME_BYTES);
        let names = self.dirty.take(NAMES_PER_SLICE, UPSTREAM_NAME_BYTES);
        let with_wanted = |name: Name| {
            let is_wanted = self.wants(name.as_str());
            (name, is_wanted)
        };
        let names = names.into_iter().map(with_wanted).collect();
        let refreshed = std::mem::take(&mut self.refreshed).into_iter().collect();
        Some((Interest { wildcard: self.wants_wildcard(), names, proof, refreshed }, looked))
    }

    /// Notes a change with every cohort of whose names it changes one, before it is published.
    pub(super) fn note(&self, touched: &[Touch], generation: Generation) {
        let note = |(slot, touch): (u32, &Touch)| self.cohorts[slot as usize].note(generation, touch);
        self.named(touched).chain(self.renewed(touched)).for_each(note);
    }

    /// Marks every cohort that a change concerns and returns them.
    pub(super) fn mark(&self, touched: &[Touch], turned: bool, generation: Generation) -> Vec<Arc<Cohort>> {
        let wildcards = || self.audiences().into_iter().flat_map(Audience::of_wildcard);
        let mut wake = Vec::new();
        let mut mark = |slot: u32, is_change: bool| {
            let cohort = &self.cohorts[slot as usize];
            if cohort.mark(generation, is_change) {
                wake.push(Arc::clone(cohort));
            }
        };
        let is_change = touched.iter().any(|touch| touch.members);
        if turned || is_change {
            wildcards().for_each(|slot| mark(slot, is_change));
        }
        if self.timed > 0 && touched.iter().any(|touch| touch.renewed.members) {
            wildcards().filter(|slot| self.is_timed(*slot)).for_each(|slot| mark(slot, true));
        }
        self.named(touched).chain(self.renewed(touched)).for_each(|(slot, _)| mark(slot, true));
        wake
    }

    const fn audiences(&self) -> [&Audience; 2] {
        [&self.clients, &self.observers]
    }

    /// Cohorts by the names of theirs that changed.
    fn named<'t>(&self, touched: &'t [Touch]) -> impl Iterator<Item = (u32, &'t Touch)> {
        touched.iter().filter(|touch| touch.named).flat_map(|touch| self.by_name(touch))
    }

    /// Those that are told TTLs, by the names of which nothing but that was renewed: news to few, and mostly to nobody.
    fn renewed<'t>(&self, touched: &'t [Touch]) -> impl Iterator<Item = (u32, &'t Touch)> {
        let renewed = touched.iter().filter(|touch| self.timed > 0 && touch.renewed.named && !touch.named);
        renewed.flat_map(|touch| self.by_name(touch)).filter(|(slot, _)| self.is_timed(*slot))
    }

    fn by_name<'t>(&self, touch: &'t Touch) -> impl Iterator<Item = (u32, &'t Touch)> {
        let slots = self.audiences().into_iter().flat_map(|of| of.of_name(&touch.name));
        slots.map(move |slot| (slot, touch))
    }

    fn is_timed(&self, slot: u32) -> bool {
        self.cohorts[slot as usize].profile.ttl != TtlSupport::Untold
    }
}

/// Demand of a type's clients for upstream subscriptions, where it changed since last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Whether anybody subscribes to the wildcard now.
    pub wildcard: bool,
    /// Names of which it changed, or may have, whether anybody asks for them. Where these are many, not all: more are to be
    /// had.
    pub names: Vec<(Name, bool)>,
    /// Whether a client waits for evidence that what the origin has not sent does not exist.
    pub proof: bool,
    /// Names that an operator wants from the origin anew.
    pub refreshed: Vec<Name>,
}

/// Reason for which [`Cache::refresh`](super::Cache::refresh) does nothing. Of several stores the least one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum RefreshError {
    /// Too many other names wait to be asked for anew.
    #[error("too many names wait for the control plane already")]
    Busy,
    /// The control plane is not asked for it, because no client asks for it.
    #[error("no client asks for it")]
    Unwanted,
}

/// Wakes everyone that a change concerns. Apart from marking, so that no lock is held.
pub(super) fn wake(cohorts: &[Arc<Cohort>]) {
    cohorts.iter().for_each(|cohort| cohort.wake());
}
