//! The store of one type as it is seen through one set of parameters, and the places of its clients in it.
//!
//! Owns how its parts work together: the snapshot, the cohorts, what makes updates, and what the upstream is to be asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::answering::Answering;
use super::change::Op;
use super::cohort::{Cohort, WakeHandle};
use super::cohort_index::{CohortIndex, RefreshError};
use super::diff::Source;
use super::doubted_states::DoubtedStates;
use super::earlier_states::EarlierStates;
use super::encoder::Encoder;
use super::entry::{Entry, Seen};
use super::mark::ChangeCount;
use super::parameter_view::ParameterView;
use super::position::{FellBehindError, Position};
use super::profile::{Role, StreamProfile, TtlSupport};
use super::set_state::{SetContents, SetState};
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use super::update::{OwedItems, Update};
use super::view::View;
use crate::resource::{Collection, Name, Resource, TypeUrl};

/// The store of one type, as it is seen through one set of parameters.
#[derive(Debug)]
pub struct TypeCache {
    pub(super) type_url: TypeUrl,
    pub(super) parameter_view: ParameterView,
    pub(super) index: u32,
    pub(super) snapshot: ArcSwap<Snapshot>,
    /// Of clusters; other types have none.
    pub(super) earlier_states: EarlierStates,
    pub(super) doubted_states: DoubtedStates,
    pub(super) cohort_index: Mutex<CohortIndex>,
    pub(super) answering: Arc<Answering>,
    pub(super) interest: Arc<WakeHandle>,
    /// Whether a client waits for evidence, noted since interest was last taken.
    pub(super) proof_asked: AtomicBool,
    pub(super) encoder: Arc<Encoder>,
}

/// Digest of a wildcard set that a client names; `None` for a version that the relay did not give.
fn digest_of(version_info: &str) -> Option<u128> {
    u128::from_str_radix(version_info, 16).ok()
}

impl TypeCache {
    /// The type.
    pub const fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// The parameters through which its clients see the type.
    pub const fn parameter_view(&self) -> &ParameterView {
        &self.parameter_view
    }

    /// Number of its cache among those that share a budget: the one of a node group.
    pub fn cache(&self) -> u64 {
        self.encoder.cache()
    }

    /// Its number among the cache's stores, for nonces.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The newest state.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Since when the origin answers for this type on the connection that stands, and for its names on the stream that stands;
    /// there from when it was asked for them, until it does. `None` before its first answer on the connection.
    pub fn heard_since(&self) -> Option<Instant> {
        self.answering.since()
    }

    /// When a name that was asked for then, and of which the origin says nothing, is taken for absent; `None` while the
    /// origin does not answer for the type.
    pub fn unanswered_from(&self, asked: Instant, longest_silence: Duration) -> Option<Instant> {
        self.heard_since().map(|first| asked.max(first) + longest_silence)
    }

    /// Takes a place among the clients with this subscription.
    pub fn join(
        self: &Arc<Self>,
        subscription: Subscription,
        profile: StreamProfile,
        wake_handle: &Arc<WakeHandle>,
    ) -> Membership {
        self.join_as(Role::Client, subscription, profile, wake_handle)
    }

    /// Takes a place among the clients, or the observers, with this subscription.
    pub fn join_as(
        self: &Arc<Self>,
        role: Role,
        subscription: Subscription,
        profile: StreamProfile,
        wake_handle: &Arc<WakeHandle>,
    ) -> Membership {
        Membership::join(Arc::clone(self), subscription, profile, role, Arc::clone(wake_handle))
    }

    /// View of a poll of this cohort now, worked out once per change for all of them.
    pub fn set_state(&self, cohort: &Cohort) -> SetState {
        let touched = cohort.touched();
        if let Some(kept) = cohort.set_state().filter(|kept| kept.touched == touched) {
            return kept;
        }
        // Loaded after `touched` was read: it holds everything that was marked.
        let snapshot = self.snapshot();
        let subscription = cohort.subscription();
        let sees_all = self.parameter_view.scope().is_all();
        let is_known = || (!sees_all).then(|| self.knows_any_of(subscription.names()));
        let set_state = SetState::of(&self.type_url, subscription, &snapshot, touched, is_known);
        cohort.set_sight(set_state);
        set_state
    }

    /// Like [`set_state`](Self::set_state), with the resources, which are to be written out.
    pub fn found(&self, cohort: &Cohort) -> SetContents {
        SetContents::of(&self.type_url, cohort.subscription(), &self.snapshot())
    }

    /// Whether any client asks for this name and may see it.
    pub fn wants(&self, name: &str) -> bool {
        self.parameter_view.scope().allows(name) && self.cohort_index.lock().wants(name)
    }

    /// Whether the origin has said anything of these names, be it that one does not exist. That a client may not see one says
    /// nothing of the others.
    pub fn knows_any_of(&self, names: &[Name]) -> bool {
        let snapshot = self.snapshot();
        let is_known = |name: &Name| {
            self.parameter_view.scope().allows(name.as_str())
                && !matches!(snapshot.by_name(name.as_str()), Seen::Unknown | Seen::Failed | Seen::Denied(_))
        };
        names.iter().any(is_known)
    }

    /// Members of another store's wildcard set that are seen in this one.
    pub(super) fn members_of(&self, from: &Snapshot) -> Vec<Op> {
        let is_seen = |held: &&Arc<Resource>| {
            let name = held.name().as_str();
            !self.parameter_view.is_beside_wildcard(name) && self.parameter_view.scope().shows(name)
        };
        from.members().filter(is_seen).map(|held| from.op_for(View::Wildcard, held)).collect()
    }

    /// Whether any client or observer asks for this name, be it for nothing.
    pub(super) fn asks(&self, name: &str) -> bool {
        self.cohort_index.lock().asks(name)
    }

    /// Whether any client or observer asks for this name and may see it.
    pub(super) fn serves(&self, name: &str) -> bool {
        self.parameter_view.scope().allows(name) && self.asks(name)
    }

    /// Whether any client or observer asks for the wildcard.
    pub(super) fn serves_wildcard(&self) -> bool {
        self.cohort_index.lock().asks_wildcard()
    }

    /// Has the upstream ask for a name anew, as [`Cache::refresh`](super::Cache::refresh) says.
    pub(super) fn refresh(&self, name: &Name) -> Result<(), RefreshError> {
        let covering = Collection::covering(name.as_str());
        let is_named = || self.wants(name.as_str()) || covering.is_some_and(|of| self.wants(of.as_str()));
        let is_member =
            || self.wants_wildcard() && self.snapshot().held(View::Wildcard, name.as_str()).is_some();
        if !is_named() && !is_member() {
            return Err(RefreshError::Unwanted);
        }
        if !self.cohort_index.lock().refresh(name) {
            return Err(RefreshError::Busy);
        }
        self.interest.wake();
        Ok(())
    }

    /// A client waits for evidence that what the origin has not sent does not exist.
    pub fn ask_for_proof(&self) {
        // Thousands of sessions may ask at each change.
        if !self.proof_asked.swap(true, Ordering::AcqRel) {
            self.interest.wake();
        }
    }

    /// Notes that a client rejected something that came after the wildcard set with this `version_info`, and may hold parts of it.
    pub fn doubt_holders_of(&self, version_info: &str) {
        if let Some(digest) = digest_of(version_info) {
            self.doubted_states.note(digest);
        }
    }

    /// Whether a client that names the wildcard set with this `version_info` may hold something else.
    pub fn doubts_holders_of(&self, version_info: &str) -> bool {
        digest_of(version_info).is_some_and(|digest| self.doubted_states.has(digest))
    }

    /// Position of a client that accepted the wildcard set with this `version_info` last: all that it holds. `None` if that was never
    /// the set here, or so long ago that it is forgotten what has gone since.
    pub fn position_of(&self, version_info: &str) -> Option<Position> {
        let until = self.earlier_states.find(digest_of(version_info)?)?;
        self.snapshot().remembers(until).then(|| Position::up_to(until))
    }

    /// Whether any client asks for the wildcard.
    pub fn wants_wildcard(&self) -> bool {
        self.cohort_index.lock().wants_wildcard()
    }

    /// Next update of a client of this cohort that stands here, made once for all of them.
    ///
    /// # Errors
    ///
    /// [`FellBehindError`] if removals after `position` are forgotten: the client has to reconnect.
    pub fn update(
        &self,
        cohort: &Cohort,
        position: &Position,
        now: Instant,
    ) -> Result<Arc<Update>, FellBehindError> {
        self.encoder.update(|| self.source(), cohort, position, now)
    }

    /// Next update of a client that is owed something of its own; shared with nobody.
    ///
    /// # Errors
    ///
    /// As of [`update`](Self::update).
    pub fn own_update(
        &self,
        cohort: &Cohort,
        position: &Position,
        owed: &OwedItems,
        now: Instant,
    ) -> Result<Update, FellBehindError> {
        self.encoder.own_update(|| self.source(), cohort, position, owed, now)
    }

    fn source(&self) -> Source<'_> {
        Source { type_url: &self.type_url, index: self.index, snapshot: self.snapshot() }
    }

    /// Maker of this type's updates, which shares them.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Number of clients that ask for an entry and may see it, through the wildcard too. Observers are not counted.
    pub fn clients_of(&self, entry: &Entry) -> usize {
        self.cohort_index.lock().clients_of(entry.name(), entry.is_member())
    }

    /// How many cohorts its clients form.
    pub fn cohorts(&self) -> usize {
        self.cohort_index.lock().cohorts()
    }
}

/// A client's place in a cohort; it leaves when this is dropped.
#[derive(Debug)]
pub struct Membership {
    cohort: Arc<Cohort>,
    cohort_at: usize,
    member_at: usize,
    of: Arc<TypeCache>,
    wake_handle: Arc<WakeHandle>,
    /// Changes of the cohort up to the update that its client was last moved on by; `None` where that is not known.
    told: Option<ChangeCount>,
}

impl Membership {
    pub(super) fn join(
        of: Arc<TypeCache>,
        subscription: Subscription,
        profile: StreamProfile,
        role: Role,
        wake_handle: Arc<WakeHandle>,
    ) -> Self {
        let (cohort, cohort_at, member_at, dirty) = {
            let mut cohort_index = of.cohort_index.lock();
            let cohort_at = CohortIndex::enter(
                &mut cohort_index,
                || of.snapshot().generation(),
                &subscription,
                profile,
                role,
                wake_handle.peer(),
            );
            let cohort = cohort_index.cohort(cohort_at);
            let member_at = cohort.add(&wake_handle);
            (cohort, cohort_at, member_at, cohort_index.is_dirty())
        };
        if dirty {
            of.interest.wake();
        }
        Self { cohort, cohort_at, member_at, of, wake_handle, told: None }
    }

    /// Moves to the cohort of another subscription in another store of the type.
    pub fn change_store(&mut self, of: Arc<TypeCache>, subscription: Subscription) {
        let Cohort { profile, role, .. } = *self.cohort;
        *self = Self::join(of, subscription, profile, role, Arc::clone(&self.wake_handle));
    }

    /// Moves to the cohort of another profile.
    pub fn turn(&mut self, profile: StreamProfile) {
        if profile != self.cohort.profile {
            let (of, subscription) = (Arc::clone(&self.of), self.cohort.subscription.clone());
            *self = Self::join(of, subscription, profile, self.cohort.role, Arc::clone(&self.wake_handle));
        }
    }

    /// How its clients are told.
    pub fn profile(&self) -> StreamProfile {
        self.cohort.profile
    }

    /// Moves to the cohort of another subscription.
    pub fn change(&mut self, subscription: Subscription) {
        if let Err(subscription) = self.alter(subscription) {
            // The new place is taken before the old one is left, so that no name is unwanted in between.
            let of = Arc::clone(&self.of);
            let Cohort { profile, role, .. } = *self.cohort;
            *self = Self::join(of, subscription, profile, role, Arc::clone(&self.wake_handle));
        }
    }

    /// See [`CohortIndex::alter`].
    fn alter(&mut self, subscription: Subscription) -> Result<(), Subscription> {
        let (old, dirty) = {
            let mut cohort_index = self.of.cohort_index.lock();
            let snapshot = self.of.snapshot();
            let cohort =
                cohort_index.alter(self.cohort_at, subscription, &snapshot, self.wake_handle.peer())?;
            self.member_at = cohort.add(&self.wake_handle);
            self.told = None;
            // Given back when the lock is.
            (std::mem::replace(&mut self.cohort, cohort), cohort_index.is_dirty())
        };
        self.of.encoder.forget(&old);
        if dirty {
            self.of.interest.wake();
        }
        Ok(())
    }

    /// These names are to be asked for upstream once more: their bodies were not kept (R-XT-09).
    pub fn ask_again(&self, names: &[Name]) {
        if self.of.cohort_index.lock().ask_again(names, self.wake_handle.peer()) {
            self.of.interest.wake();
        }
    }

    /// Notes that its client is moved on by an update. Returns how many changes of the cohort that passes; 0 where it is not known
    /// what the client was told before. An answer in parts passes them with its last one.
    ///
    /// Example: while a client owes an ACK, its cohort is marked with three changes. The next update passes three: two of them the
    /// client is told only together with a later one.
    pub fn pass(&mut self, update: &Update) -> u32 {
        if update.is_partial() {
            return 0;
        }
        let before = std::mem::replace(&mut self.told, update.changes);
        before.zip(update.changes).map_or(0, |(before, now)| now.since(before))
    }

    /// The cohort.
    pub const fn cohort(&self) -> &Arc<Cohort> {
        &self.cohort
    }

    /// The subscription.
    pub fn subscription(&self) -> &Subscription {
        &self.cohort.subscription
    }

    /// Whether its client is told for how long to keep what it is sent.
    pub fn is_told_times(&self) -> bool {
        self.cohort.profile.ttl != TtlSupport::Untold
    }

    /// Whether it only looks on, see [`Role`].
    pub fn role(&self) -> Role {
        self.cohort.role
    }

    /// The type's cache.
    pub const fn of(&self) -> &Arc<TypeCache> {
        &self.of
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let (is_over, dirty) = {
            let mut cohort_index = self.of.cohort_index.lock();
            let is_over = self.cohort.remove(self.member_at);
            if is_over {
                CohortIndex::leave(&mut cohort_index, self.cohort_at, self.wake_handle.peer());
            }
            (is_over, cohort_index.is_dirty())
        };
        if is_over {
            self.of.encoder.forget(&self.cohort);
        }
        if dirty {
            self.of.interest.wake();
        }
    }
}
