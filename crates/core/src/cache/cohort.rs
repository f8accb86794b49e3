//! Cohorts: clients that are sent the same updates, and their shared state.
//!
//! Owns the mark and the log of a cohort, and totals over its names. The first tally visits each name; each change adds its
//! difference.
//!
//! Invariant: a tally belongs exactly to its reader's snapshot. The writer records a change before publication;
//! until then readers of the older snapshot count for themselves.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use parking_lot::Mutex;
use slab::Slab;
use smallvec::SmallVec;

use super::entry::{Entry, VisibleState};
use super::position::Generation;
use super::set_versions::SetState;
use super::snapshot::{Snapshot, Touch};
use super::subscription::{Protocol, Role, StreamProfile, Subscription};
use super::update_cache::UpdateCache;
use crate::pool::Tenant;
use crate::resource::Name;

/// Waker of one task, as of a session, with the peer that pays for a session's demand. It is set once and stays after a wake-up,
/// so a task that looks again and again pays nothing. Wakes coalesce: a woken session serves all its types.
///
/// Example: 40 changes come before a session gets its turn. It wakes once, and one response holds them all.
#[derive(Debug, Default)]
pub struct WakeHandle {
    waker: OnceLock<Waker>,
    peer: Option<Tenant>,
}

impl WakeHandle {
    pub fn of(peer: Option<Tenant>) -> Self {
        Self { waker: OnceLock::new(), peer }
    }

    pub const fn peer(&self) -> Option<&Tenant> {
        self.peer.as_ref()
    }

    /// Sets the task; later calls must come from the same one. Register first, then check for work.
    pub fn register(&self, waker: &Waker) {
        if let Some(known) = self.waker.get() {
            debug_assert!(known.data() == waker.data(), "it belongs to one task");
        } else if self.waker.set(waker.clone()).is_ok() {
            // Either the check that follows finds the work, or `wake` finds the task.
            fence(Ordering::SeqCst);
        }
    }

    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        self.waker.get().into_iter().for_each(Waker::wake_by_ref);
    }
}

/// Clients of one type with equal subscription, profile and role.
#[derive(Debug)]
pub struct Cohort {
    pub(super) id: u64,
    pub(super) subscription: Subscription,
    pub(super) profile: StreamProfile,
    pub(super) role: Role,
    /// Newest generation that concerns its members.
    touched: AtomicU64,
    /// Number of changes up to it, for metrics.
    changes: AtomicU64,
    /// Number of members, readable without the lock.
    size: AtomicUsize,
    members: Mutex<Slab<Arc<WakeHandle>>>,
    pub(super) update_cache: Mutex<UpdateCache>,
    /// As the last poll computed it.
    pub(super) set_state: Mutex<Option<Box<SetState>>>,
    /// Complete up to `touched`.
    log: Mutex<CohortLog>,
}

/// Tally of a cohort's names, and the recently changed ones in order.
///
/// Example: `a` changes at 5, `b` at 6 and `a` again at 8. After 4 these are `a` and `b`, after 6 only `a`. A
/// ninth change empties the list and restarts it at its generation.
#[derive(Debug)]
struct CohortLog {
    /// The list is complete from here on.
    since: Generation,
    changed: SmallVec<[(Generation, Name); 1]>,
    /// Newest recorded change.
    recorded: Generation,
    /// Valid from `recorded` on.
    tally: Option<Tally>,
}

impl CohortLog {
    const fn starting(now: Generation) -> Self {
        Self { since: now, changed: SmallVec::new_const(), recorded: now, tally: None }
    }

    /// Lists a name of the change that ends with `generation`.
    fn list(&mut self, generation: Generation, name: &Name) {
        if self.changed.len() == LISTED {
            self.changed.clear();
            self.since = generation;
        }
        // Other names of its change were dropped, so the list would be incomplete.
        if generation > self.since {
            self.changed.push((generation, name.clone()));
        }
    }

    /// Names that changed after `from`, each once; `None` if they are forgotten.
    fn after(&self, from: Generation) -> Option<ChangedNames> {
        if from < self.since {
            return None;
        }
        let mut names = ChangedNames::new();
        for (_, name) in self.changed.iter().filter(|(generation, _)| *generation > from) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Some(names)
    }

    fn tally_at(&self, generation: Generation) -> Option<Tally> {
        self.tally.filter(|_| generation >= self.recorded)
    }
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
            touched: AtomicU64::new(now.get()),
            changes: AtomicU64::new(0),
            size: AtomicUsize::new(0),
            // Most cohorts of names have only one member.
            members: Mutex::new(Slab::with_capacity(1)),
            update_cache: Mutex::default(),
            set_state: Mutex::default(),
            log: Mutex::new(CohortLog::starting(now)),
        }
    }

    /// Starts the cohort with its first member at this generation.
    pub(super) fn begin(&self, now: Generation) {
        self.touched.store(now.get(), Ordering::Release);
        *self.log.lock() = CohortLog::starting(now);
    }

    /// Marks it; `is_change` if resources changed. Returns whether this generation is new.
    pub(super) fn mark(&self, generation: Generation, is_change: bool) -> bool {
        // A change may arrive in several ways and counts once. Only the writer marks, so there is no race.
        let is_first = self.touched.swap(generation.get(), Ordering::AcqRel) != generation.get();
        self.changes.fetch_add((is_first && is_change).into(), Ordering::Release);
        is_first
    }

    /// Records a changed name, before publication and mark, so that readers of either find it.
    pub(super) fn record(&self, generation: Generation, touch: &Touch) {
        let mut log = self.log.lock();
        if !self.subscription.wildcard {
            log.list(generation, &touch.name);
        }
        let part = |entry: &Option<Arc<Entry>>| self.part(&touch.name, entry.as_deref());
        if let Some(tally) = &mut log.tally {
            *tally = tally.plus(part(&touch.is)).minus(part(&touch.was));
        }
        log.recorded = generation;
    }

    pub const fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    pub const fn profile(&self) -> StreamProfile {
        self.profile
    }

    pub const fn role(&self) -> Role {
        self.role
    }

    /// Unique number in its store.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Newest generation that concerns its members.
    pub fn touched(&self) -> Generation {
        self.touched.load(Ordering::Acquire).into()
    }

    /// Number of changes of resources. Read before [`touched`](Self::touched), it counts none that came later.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether one encoding serves several members.
    pub(super) fn is_shared(&self) -> bool {
        self.len() > 1
    }

    pub(super) fn len(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// Names that changed after `from`, if known. Read after [`touched`](Self::touched), it has everything
    /// marked by then. None for wildcards.
    pub(super) fn changed_after(&self, from: Generation) -> Option<ChangedNames> {
        if self.subscription.wildcard { None } else { self.log.lock().after(from) }
    }

    /// Tally of its names in one state: computed once, then updated with each change.
    pub(super) fn tally(&self, snapshot: &Snapshot) -> Tally {
        let generation = snapshot.generation();
        if let Some(tally) = self.log.lock().tally_at(generation) {
            return tally;
        }
        let tally = self.parts(snapshot, self.subscription.names().iter());
        let mut log = self.log.lock();
        if generation >= log.recorded {
            log.tally = Some(tally);
        }
        tally
    }

    /// Derives its tally from a cohort whose names differ only by `removed` and `added`. `snapshot` must hold
    /// all recorded changes.
    pub(super) fn inherit_tally<'a>(
        &self,
        other: &Self,
        snapshot: &Snapshot,
        removed: impl Iterator<Item = &'a Name>,
        added: impl Iterator<Item = &'a Name>,
    ) {
        let Some(tally) = other.log.lock().tally_at(snapshot.generation()) else { return };
        if self.has_digest() == other.has_digest() {
            let tally = tally.plus(self.parts(snapshot, added)).minus(other.parts(snapshot, removed));
            self.log.lock().tally = Some(tally);
        }
    }

    /// Whether its tally has a digest. Delta sends none, and for wildcards and collections names do not
    /// determine it.
    pub(super) fn has_digest(&self) -> bool {
        let Self { subscription, profile, .. } = self;
        profile.protocol == Protocol::Sotw && !subscription.wildcard && !subscription.has_collections()
    }

    /// Part of these names in a tally.
    fn parts<'a>(&self, snapshot: &Snapshot, names: impl Iterator<Item = &'a Name>) -> Tally {
        let one = |name: &Name| self.part(name, snapshot.get(name.as_str()));
        names.map(one).fold(Tally::default(), Tally::plus)
    }

    /// Part of one name, which may be seen only through a collection.
    fn part(&self, name: &Name, entry: Option<&Entry>) -> Tally {
        if self.subscription.has_collections() && !self.subscription.contains(name.as_str()) {
            return Tally::default();
        }
        let seen = entry.map_or(VisibleState::Unknown, Entry::by_name);
        let present = seen.present().filter(|_| self.has_digest());
        Tally {
            unknown: usize::from(matches!(seen, VisibleState::Unknown)),
            digest: present.map_or(0, |resource| resource.digest()),
        }
    }

    pub(super) fn add(&self, wake_handle: &Arc<WakeHandle>) -> usize {
        let mut members = self.members.lock();
        let at = members.insert(Arc::clone(wake_handle));
        self.size.store(members.len(), Ordering::Relaxed);
        at
    }

    /// Removes a member; returns whether it was the last.
    pub(super) fn remove(&self, at: usize) -> bool {
        let mut members = self.members.lock();
        members.remove(at);
        self.size.store(members.len(), Ordering::Relaxed);
        members.is_empty()
    }

    pub(super) fn wake(&self) {
        // Collected first: no lock is held while tasks are scheduled.
        let handles: SmallVec<[Arc<WakeHandle>; 8]> =
            self.members.lock().iter().map(|(_, wake_handle)| Arc::clone(wake_handle)).collect();
        handles.iter().for_each(|wake_handle| wake_handle.wake());
    }
}

/// Longest list of changed names. With more changes, all names of the cohort are compared.
const LISTED: usize = 8;

pub(super) type ChangedNames = SmallVec<[Name; LISTED]>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Unknown names (R-Relay-04).
    pub(super) unknown: usize,
    /// Sum of the digests seen by name (R-Relay-11), if that [is kept](Cohort::has_digest).
    pub(super) digest: u128,
}

impl Tally {
    const fn plus(self, more: Self) -> Self {
        Self { unknown: self.unknown + more.unknown, digest: self.digest.wrapping_add(more.digest) }
    }

    const fn minus(self, part: Self) -> Self {
        Self { unknown: self.unknown - part.unknown, digest: self.digest.wrapping_sub(part.digest) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Instant;

    use proptest::prelude::*;

    use super::super::fixture::resource;
    use super::super::subscription::TtlSupport;
    use super::super::type_cache::Membership;
    use super::super::{Cache, Change, Limits, Op, Resend, View};
    use super::{Cohort, WakeHandle, *};
    use crate::resource::{Kind, TypeUrl};

    proptest! {
        #[test]
        fn a_log_lists_all_that_changed_since_or_says_that_it_cannot(
            changes in proptest::collection::vec(proptest::collection::vec(0_u8..12, 1..12), 0..12),
            from in 0_u64..14,
        ) {
            let mut log = CohortLog::starting(1.into());
            let mut expected = BTreeSet::new();
            for (at, names) in changes.iter().enumerate() {
                let generation = at as u64 + 2;
                for name in names {
                    log.list(generation.into(), &Name::from(format!("n{name}")));
                    if generation > from {
                        expected.insert(format!("n{name}"));
                    }
                }
            }
            let listed = log.after(from.into());
            let all_fit = changes.iter().flatten().count() <= LISTED;
            prop_assert!(listed.is_some() || from == 0 || !all_fit);
            if let Some(listed) = listed {
                prop_assert_eq!(listed.iter().map(Name::to_string).collect::<BTreeSet<_>>().len(), listed.len());
                prop_assert_eq!(listed.iter().map(Name::to_string).collect::<BTreeSet<_>>(), expected);
            }
        }
    }

    const NAMES: [&str; 5] = ["a", "b", "xdstp://h/t/f/x", "xdstp://h/t/f/y", "xdstp://h/t/f/*"];

    /// Which names of [`NAMES`] a subscription has.
    fn subscription(bits: u8) -> Subscription {
        let names = NAMES.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
        Subscription::new(bits & 32 != 0, names.map(|(_, name)| Name::from(*name)))
    }

    fn op(type_url: &TypeUrl, (kind, at, version): (u8, usize, u8)) -> Op {
        let name = Name::from(NAMES[at]);
        let view = if kind % 2 == 0 { View::Named } else { View::Wildcard };
        match kind {
            0..=5 if at < 4 => {
                let resource = resource(type_url, NAMES[at], &version.to_string(), b"");
                Op::Set { view, resource, resend: Resend::Answer, lease: None }
            }
            0..=5 => Op::Complete { name },
            6 | 7 => Op::Remove { view, name },
            8 | 9 => Op::Forget { view, name },
            10 => Op::Drop { name },
            11 => Op::LeaveCollection { name },
            _ => Op::ResendEndpoints { name },
        }
    }

    fn is_exact(cohort: &Cohort, snapshot: &Snapshot) -> bool {
        cohort.tally(snapshot) == cohort.parts(snapshot, cohort.subscription.names().iter())
    }

    proptest! {
        #[test]
        fn a_tally_is_that_of_the_state_in_hand_whatever_changed_and_was_noted(
            steps in proptest::collection::vec((0_u8..13, 0_usize..5, 0_u8..3, 0_u8..64, 0_usize..6), 1..60),
        ) {
            let (cache, mut writer) = Cache::new(Limits { tombstones: 2, ..Limits::default() });
            let (type_url, now, wake_handle) = (Kind::Endpoint.into(), Instant::now(), Arc::<WakeHandle>::default());
            let of = cache.of(&type_url).expect("a type of the protocol");
            let join = |at: u8| {
                let protocol = if at.is_multiple_of(2) { Protocol::Sotw } else { Protocol::Delta };
                of.join(subscription(7 * at + 1), StreamProfile { protocol, aggregated: true, ttl: TtlSupport::Unsupported }, &wake_handle)
            };
            let mut members: Vec<Membership> = (0..6).map(join).collect();
            for (kind, at, version, bits, who) in steps {
                let before = of.snapshot();
                if kind == 12 {
                    members[who].change(subscription(bits));
                } else {
                    let other = op(&type_url, (version, (at + 1) % 5, bits % 3));
                    let ops = [op(&type_url, (kind, at, version))].into_iter().chain((bits % 2 == 0).then_some(other));
                    let change = Change { ops: ops.collect(), ..Change::default() };
                    writer.apply(&type_url, change, now).expect("a type of the protocol");
                }
                for member in &members {
                    prop_assert!(is_exact(member.cohort(), &before), "{member:?}");
                    prop_assert!(is_exact(member.cohort(), &of.snapshot()), "{member:?}");
                }
            }
        }
    }
}
