//! Clients that must be told the same things, and what they share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;
use smallvec::SmallVec;

use super::Generation;
use super::change_log::{ChangeLog, Changed};
use super::mark::Mark;
use super::profile::{Role, StreamProfile};
use super::set_state::SetState;
use super::snapshot::{Snapshot, Touch};
use super::subscription::Subscription;
use super::tally::{Tallies, Tally};
use super::update_cache::UpdateCache;
use crate::pool::Tenant;
use crate::resource::Name;

/// Waker of a session, with the peer that its demand is charged to. Wakes coalesce: a session that is woken looks at everything it
/// serves.
///
/// Example: 40 changes are published while a session waits for its turn. It wakes once, and one response holds them all.
#[derive(Debug, Default)]
pub struct WakeHandle {
    waker: AtomicWaker,
    peer: Option<Tenant>,
}

impl WakeHandle {
    /// Waker of a session of this peer.
    pub fn of(peer: Option<Tenant>) -> Self {
        Self { waker: AtomicWaker::new(), peer }
    }

    /// The peer, if it is known.
    pub const fn peer(&self) -> Option<&Tenant> {
        self.peer.as_ref()
    }

    /// Sets the waker; the last one registered counts. Register first, look for work after.
    pub fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    /// Wakes the task that registered last.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

/// Clients of one type with the same subscription, profile and role.
pub struct Cohort {
    pub(super) id: u64,
    pub(super) subscription: Subscription,
    pub(super) profile: StreamProfile,
    pub(super) role: Role,
    /// Newest [`Mark`], as a word.
    mark: AtomicU64,
    /// The newest of these in which resources changed, and not only how much of the set is known.
    changed: AtomicU64,
    /// Number of `members`, readable without the lock.
    size: AtomicUsize,
    members: Mutex<Slab<Arc<WakeHandle>>>,
    update_cache: Mutex<UpdateCache>,
    /// View of its polls, where it has any.
    set_state: Mutex<Option<Box<SetState>>>,
    /// Complete up to `touched`, once that is set.
    notes: Mutex<Notes>,
}

/// See [`ChangeLog`] and [`Tallies`].
#[derive(Debug)]
struct Notes {
    change_log: ChangeLog,
    tallies: Tallies,
}

impl Cohort {
    pub(super) fn new(
        id: u64,
        subscription: Subscription,
        profile: StreamProfile,
        role: Role,
        now: Generation,
    ) -> Self {
        Self {
            id,
            subscription,
            profile,
            role,
            mark: AtomicU64::new(Mark::starting(now).to_word()),
            changed: AtomicU64::new(now.get()),
            size: AtomicUsize::new(0),
            // Most cohorts of names have one member, and stay so.
            members: Mutex::new(Slab::with_capacity(1)),
            update_cache: Mutex::default(),
            set_state: Mutex::default(),
            notes: Mutex::new(Notes { change_log: ChangeLog::starting(now), tallies: Tallies::default() }),
        }
    }

    /// Its first member joins at this generation, and takes no earlier one for said.
    pub(super) fn begin(&self, now: Generation) {
        self.mark.store(Mark::starting(now).to_word(), Ordering::Release);
        self.changed.store(now.get(), Ordering::Release);
        let mut notes = self.notes.lock();
        notes.change_log = ChangeLog::starting(now);
        notes.tallies.restart(now);
    }

    /// Marks it, with `is_change` for a change of its resources; returns whether it was not yet.
    pub(super) fn mark(&self, generation: Generation, is_change: bool) -> bool {
        // A change may reach it in several ways, and counts once. The writer alone marks, so nothing comes between.
        let is_first = is_change && self.changed.swap(generation.get(), Ordering::AcqRel) != generation.get();
        let before = self.newest_mark();
        let changes = if is_first { before.changes.next() } else { before.changes };
        self.mark.store(Mark { generation, changes }.to_word(), Ordering::Release);
        before.generation != generation
    }

    /// Lists a name that changes. Before that is published, so that a reader of a state finds all that led to it; and before
    /// the cohort is marked, so that a reader of the mark finds all that it stands for.
    pub(super) fn note(&self, generation: Generation, touch: &Touch) {
        let mut notes = self.notes.lock();
        if !self.subscription.wildcard {
            notes.change_log.note(generation, &touch.name);
        }
        notes.tallies.note(generation, &self.subscription, self.profile, touch);
    }

    /// Subscription of its members.
    pub const fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    /// Properties that its members have in common.
    pub const fn profile(&self) -> StreamProfile {
        self.profile
    }

    /// Role of its members.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Its number among the cohorts that its store ever had.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The newest generation that its members have something to learn from.
    pub fn touched(&self) -> Generation {
        self.newest_mark().generation
    }

    /// Newest mark.
    pub(super) fn newest_mark(&self) -> Mark {
        Mark::from_word(self.mark.load(Ordering::Acquire))
    }

    /// The newest generation in which its resources changed. One that only tells how much of a set is known may be later: it is news
    /// to those members that wait for it.
    pub fn changed(&self) -> Generation {
        self.changed.load(Ordering::Acquire).into()
    }

    /// Whether an encoding for one member can serve another.
    pub(super) fn is_shared(&self) -> bool {
        self.size.load(Ordering::Relaxed) > 1
    }

    /// Number of its members.
    pub(super) fn len(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// Where its updates are kept.
    pub(super) fn update_cache(&self) -> MutexGuard<'_, UpdateCache> {
        self.update_cache.lock()
    }

    /// View of its polls, as one of them last found it.
    pub(super) fn set_state(&self) -> Option<SetState> {
        self.set_state.lock().as_deref().copied()
    }

    /// Keeps what a poll found, unless another found something newer meanwhile.
    pub(super) fn set_sight(&self, found: SetState) {
        let mut set_state = self.set_state.lock();
        match &mut *set_state {
            Some(kept) if kept.touched >= found.touched => {}
            Some(kept) => **kept = found,
            None => *set_state = Some(Box::new(found)),
        }
    }

    /// Its names that changed after `from`, if it remembers that far back. Read after [`touched`](Self::touched), it
    /// lists all that was marked by then. A cohort of the wildcard keeps no such list.
    pub(super) fn changed_after(&self, from: Generation) -> Option<Changed> {
        if self.subscription.wildcard { None } else { self.notes.lock().change_log.after(from) }
    }

    /// Tally of its names in one state: looked up once, and kept as they change.
    pub(super) fn tally(&self, snapshot: &Snapshot) -> Tally {
        let generation = snapshot.generation();
        if let Some(tally) = self.notes.lock().tallies.at(generation) {
            return tally;
        }
        let tally = Tally::of(snapshot, &self.subscription, self.profile);
        self.notes.lock().tallies.set(generation, tally);
        tally
    }

    /// Takes over what the names of another come to, of which this one is the same without some and with others. Nothing is
    /// noted meanwhile that is not in the state.
    pub(super) fn inherit_tally<'a>(
        &self,
        other: &Self,
        snapshot: &Snapshot,
        removed: impl Iterator<Item = &'a Name>,
        added: impl Iterator<Item = &'a Name>,
    ) {
        let Some(tally) = other.notes.lock().tallies.at(snapshot.generation()) else { return };
        let has_digest = |cohort: &Self| Tally::has_digest(&cohort.subscription, cohort.profile);
        if has_digest(self) != has_digest(other) {
            return;
        }
        let added = Tally::of_some(snapshot, &self.subscription, self.profile, added);
        let removed = Tally::of_some(snapshot, &other.subscription, other.profile, removed);
        let tally = tally.plus(added).minus(removed);
        self.notes.lock().tallies = Tallies::starting(snapshot.generation(), Some(tally));
    }

    /// Takes over what changed lately of another, of which this one is the same with other names. Those that it adds count
    /// as changed now.
    pub(super) fn inherit_journal<'a>(
        &self,
        other: &Self,
        now: Generation,
        added: impl Iterator<Item = &'a Name>,
    ) {
        if self.subscription.wildcard || other.subscription.wildcard {
            return;
        }
        let change_log = &mut self.notes.lock().change_log;
        *change_log = other.notes.lock().change_log.of(|name| self.subscription.contains(name.as_str()));
        added.for_each(|name| change_log.note(now, name));
    }

    /// Takes a member in and says at which place.
    pub(super) fn add(&self, wake_handle: &Arc<WakeHandle>) -> usize {
        let mut members = self.members.lock();
        let at = members.insert(Arc::clone(wake_handle));
        self.size.store(members.len(), Ordering::Relaxed);
        at
    }

    /// Lets a member go; returns whether it was the last.
    pub(super) fn remove(&self, at: usize) -> bool {
        let mut members = self.members.lock();
        members.remove(at);
        self.size.store(members.len(), Ordering::Relaxed);
        members.is_empty()
    }

    /// Wakes all members.
    pub(super) fn wake(&self) {
        // Collected first: no lock is held while tasks are scheduled.
        let mailboxes: SmallVec<[Arc<WakeHandle>; 8]> =
            self.members.lock().iter().map(|(_, wake_handle)| Arc::clone(wake_handle)).collect();
        mailboxes.iter().for_each(|wake_handle| wake_handle.wake());
    }
}

impl fmt::Debug for Cohort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cohort")
            .field("subscription", &self.subscription)
            .field("dialect", &self.profile)
            .field("touched", &self.touched())
            .finish_non_exhaustive()
    }
}
