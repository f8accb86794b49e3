//! Store of one type seen through one set of parameters, and its clients' places in it.
//!
//! Owns how its parts work together: snapshot, cohorts, encoder, demand upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::Generation;
use super::change::Op;
use super::change_history::RemovalWatch;
use super::cohort::{Cohort, WakeHandle};
use super::cohort_index::CohortIndex;
use super::diff::{Encoder, Source};
use super::entry::{Entry, VisibleState};
use super::parameter_view::ParameterView;
use super::position::{FellBehindError, Position};
use super::set_versions::{EarlierStates, SetContents, SetState};
use super::snapshot::Snapshot;
use super::subscription::{Role, StreamProfile, Subscription};
use super::update::{OwedItems, Update};
use super::view_leases::View;
use crate::resource::{Collection, Name, Resource, TypeUrl};

#[derive(Debug)]
pub struct TypeCache {
    pub(super) type_url: TypeUrl,
    pub(super) parameter_view: ParameterView,
    pub(super) index: u32,
    pub(super) snapshot: ArcSwap<Snapshot>,
    /// Of types with full states.
    pub(super) earlier_states: EarlierStates,
    pub(super) cohort_index: Mutex<CohortIndex>,
    pub(super) answering: Arc<AnsweringSince>,
    pub(super) interest: Arc<AtomicWaker>,
    /// Whether a client has waited for evidence since interest was last taken.
    pub(super) proof_asked: AtomicBool,
    pub(super) encoder: Arc<Encoder>,
    pub(super) removal_watch: Mutex<RemovalWatch>,
}

/// Digest that a client names; `None` if no relay gave this version.
fn digest_of(version_info: &str) -> Option<u128> {
    u128::from_str_radix(version_info, 16).ok()
}

impl TypeCache {
    pub const fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    pub const fn parameter_view(&self) -> &ParameterView {
        &self.parameter_view
    }

    /// Number of its cache among those of a budget.
    pub fn cache(&self) -> u64 {
        self.encoder.cache()
    }

    /// Number among the cache's stores, for nonces.
    pub const fn index(&self) -> u32 {
        self.index
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Since when the origin answers for this type on the current connection, and for its names on the current
    /// stream. Until then, the time of the request there. `None` before its first answer on the connection.
    pub fn answering_since(&self) -> Option<Instant> {
        self.answering.since()
    }

    /// When a name requested at `asked` counts as absent without an answer. `None` while the origin does not
    /// answer for the type.
    pub fn unanswered_from(&self, asked: Instant, longest_silence: Duration) -> Option<Instant> {
        self.answering_since().map(|first| asked.max(first) + longest_silence)
    }

    pub fn join(
        self: &Arc<Self>,
        subscription: Subscription,
        profile: StreamProfile,
        wake_handle: &Arc<WakeHandle>,
    ) -> Membership {
        self.join_as(Role::Client, subscription, profile, wake_handle)
    }

    /// Enters a cohort.
    pub fn join_as(
        self: &Arc<Self>,
        role: Role,
        subscription: Subscription,
        profile: StreamProfile,
        wake_handle: &Arc<WakeHandle>,
    ) -> Membership {
        let mut cohort_index = self.cohort_index.lock();
        let cohort_at = CohortIndex::enter(
            &mut cohort_index,
            || self.snapshot().generation(),
            &subscription,
            profile,
            role,
            wake_handle.peer(),
        );
        let cohort = cohort_index.cohort(cohort_at);
        let (member_at, dirty) = (cohort.add(wake_handle), cohort_index.is_dirty());
        drop(cohort_index);
        if dirty {
            self.interest.wake();
        }
        let (of, wake_handle) = (Arc::clone(self), Arc::clone(wake_handle));
        Membership { cohort, cohort_at, member_at, of, wake_handle, sent: None }
    }

    /// State of the set for polls of this cohort, computed once per change.
    pub fn set_state(&self, cohort: &Cohort) -> SetState {
        // The lock is held meanwhile, so that one of many polls computes it.
        let mut kept = cohort.set_state.lock();
        let touched = cohort.touched();
        if let Some(kept) = kept.as_deref().filter(|kept| kept.touched == touched) {
            return *kept;
        }
        // Loaded after `touched` was read: it has everything marked.
        let snapshot = self.snapshot();
        let subscription = cohort.subscription();
        let sees_all = self.parameter_view.scope().is_all();
        let is_known = || (!sees_all).then(|| self.knows_any_of(subscription.names()));
        let set_state = SetState::of(&self.type_url, subscription, &snapshot, touched, is_known);
        *kept = Some(Box::new(set_state));
        set_state
    }

    /// Like [`set_state`](Self::set_state), with the resources to write.
    pub fn set_contents(&self, cohort: &Cohort) -> SetContents {
        SetContents::of(&self.type_url, cohort.subscription(), &self.snapshot())
    }

    /// Whether any client asks for this name and may see it.
    pub fn wants(&self, name: &str) -> bool {
        self.parameter_view.scope().allows(name) && self.cohort_index.lock().wants(name)
    }

    /// Whether the origin answered for any of these names, even with absence. Invisible names do not count.
    pub fn knows_any_of(&self, names: &[Name]) -> bool {
        let snapshot = self.snapshot();
        let is_known = |name: &Name| {
            self.parameter_view.scope().allows(name.as_str())
                && !matches!(
                    snapshot.by_name(name.as_str()),
                    VisibleState::Unknown | VisibleState::Failed | VisibleState::Denied(_)
                )
        };
        names.iter().any(is_known)
    }

    /// Members of another store's wildcard set that are visible here.
    pub(super) fn members_of(&self, from: &Snapshot) -> Vec<Op> {
        let is_seen = |held: &&Arc<Resource>| {
            let name = held.name().as_str();
            !self.parameter_view.is_beside_wildcard(name) && self.parameter_view.scope().shows(name)
        };
        from.members().filter(is_seen).map(|held| from.op_for(View::Wildcard, held)).collect()
    }

    pub(super) fn asks(&self, name: &str) -> bool {
        self.cohort_index.lock().asks(name)
    }

    /// Whether any client or observer asks for this name and may see it.
    pub(super) fn serves(&self, name: &str) -> bool {
        self.parameter_view.scope().allows(name) && self.asks(name)
    }

    pub(super) fn serves_wildcard(&self) -> bool {
        self.cohort_index.lock().asks_wildcard()
    }

    /// Queues a name for [`Cache::refresh`](super::Cache::refresh).
    pub(super) fn refresh(&self, name: &Name) -> bool {
        let covering = Collection::covering(name.as_str());
        let is_named = || self.wants(name.as_str()) || covering.is_some_and(|of| self.wants(of.as_str()));
        let is_member =
            || self.wants_wildcard() && self.snapshot().held(View::Wildcard, name.as_str()).is_some();
        let is_wanted = is_named() || is_member();
        if is_wanted {
            self.cohort_index.lock().refresh(name);
            self.interest.wake();
        }
        is_wanted
    }

    /// Requests evidence that missing resources do not exist, for a waiting client.
    pub fn ask_for_proof(&self) {
        // At each change thousands of sessions may ask.
        if !self.proof_asked.swap(true, Ordering::AcqRel) {
            self.interest.wake();
        }
    }

    /// Records that a client of the set with this `version_info` rejected a later one, and may hold parts of
    /// it.
    pub fn doubt_holders_of(&self, version_info: &str) {
        if let Some(digest) = digest_of(version_info) {
            self.earlier_states.doubt(digest);
        }
    }

    /// Whether a client that names this `version_info` may hold something else.
    pub fn doubts_holders_of(&self, version_info: &str) -> bool {
        digest_of(version_info).is_some_and(|digest| self.earlier_states.is_doubted(digest))
    }

    /// Position of a client that accepted the set with this `version_info` last. `None` if it never was the set
    /// here, or removals since are forgotten.
    pub fn position_of(&self, version_info: &str) -> Option<Position> {
        let until = self.earlier_states.find(digest_of(version_info)?)?;
        self.snapshot().remembers(until).then(|| Position::up_to(until))
    }

    pub fn wants_wildcard(&self) -> bool {
        self.cohort_index.lock().wants_wildcard()
    }

    /// Next update from this position, made once for the whole cohort.
    ///
    /// # Errors
    ///
    /// [`FellBehindError`] if removals after `position` are forgotten: the client must reconnect.
    pub fn update(
        &self,
        cohort: &Cohort,
        position: &Position,
        now: Instant,
    ) -> Result<Arc<Update>, FellBehindError> {
        let mark @ (_, touched) = (cohort.changes(), cohort.touched());
        let make = || self.make(mark, cohort, position, &OwedItems::default(), now).map(Arc::new);
        if !cohort.is_shared() {
            return make();
        }
        if let Some(found) = cohort.update_cache.lock().find(touched, position, now) {
            return Ok(found);
        }
        // Made without the lock: of two, the first one kept is used.
        let made = make()?;
        Ok(cohort.update_cache.lock().put(touched, position, made, &self.encoder.updates, now))
    }

    /// Next update of a client with owed items, not shared.
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
        self.make((cohort.changes(), cohort.touched()), cohort, position, owed, now)
    }

    fn make(
        &self,
        mark: (u64, Generation),
        cohort: &Cohort,
        position: &Position,
        owed: &OwedItems,
        now: Instant,
    ) -> Result<Update, FellBehindError> {
        let source = Source { type_url: &self.type_url, index: self.index, snapshot: self.snapshot() };
        self.encoder.make(mark, source, cohort, position, owed, now)
    }

    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Number of clients that ask for an entry and may see it, by name or wildcard, without observers.
    pub fn clients_of(&self, entry: &Entry) -> usize {
        self.cohort_index.lock().clients_of(entry.name(), entry.is_member())
    }

    pub fn cohorts(&self) -> usize {
        self.cohort_index.lock().cohorts()
    }

    /// Resources that were removed within a minute, if that was most of them and is to be reported.
    pub fn lost(&self, now: Instant) -> usize {
        self.removal_watch.lock().lost(now)
    }

    /// Notes the sizes before and after a change.
    pub(super) fn watch_removals(&self, sizes: (usize, usize), forgotten: usize, now: Instant) {
        let lost = self.removal_watch.lock().note(sizes, forgotten, now);
        if let Some(lost) = lost {
            tracing::warn!(
                type_url = %self.type_url,
                lost,
                left = sizes.1,
                "most resources of a type are gone within a minute, and clients are told so; if that is a mistake, put them back at the \
                 control plane; `rollout.max_removed` holds such changes"
            );
        }
    }
}

/// A client's place in a cohort; dropping it leaves the cohort.
#[derive(Debug)]
pub struct Membership {
    cohort: Arc<Cohort>,
    cohort_at: usize,
    member_at: usize,
    of: Arc<TypeCache>,
    wake_handle: Arc<WakeHandle>,
    /// Changes of the cohort up to the client's last update, if known.
    sent: Option<u64>,
}

impl Membership {
    /// Moves to another store of the type, with another subscription. Joins before it leaves, so that no name is
    /// unwanted in between.
    pub fn change_store(&mut self, of: &Arc<TypeCache>, subscription: Subscription) {
        *self = of.join_as(self.cohort.role, subscription, self.cohort.profile, &self.wake_handle);
    }

    pub fn profile(&self) -> StreamProfile {
        self.cohort.profile
    }

    pub fn change(&mut self, subscription: Subscription) {
        if let Err(subscription) = self.alter(subscription) {
            self.change_store(&Arc::clone(&self.of), subscription);
        }
    }

    /// Changes the subscription in place with [`CohortIndex::alter`].
    fn alter(&mut self, subscription: Subscription) -> Result<(), Subscription> {
        let (_old, dirty) = {
            let mut cohort_index = self.of.cohort_index.lock();
            let snapshot = self.of.snapshot();
            let cohort =
                cohort_index.alter(self.cohort_at, subscription, &snapshot, self.wake_handle.peer())?;
            self.member_at = cohort.add(&self.wake_handle);
            self.sent = None;
            // Dropped after the lock.
            (std::mem::replace(&mut self.cohort, cohort), cohort_index.is_dirty())
        };
        if dirty {
            self.of.interest.wake();
        }
        Ok(())
    }

    /// Queues names upstream again, because their bodies were not kept (R-XT-09).
    pub fn ask_again(&self, names: &[Name]) {
        if self.of.cohort_index.lock().ask_again(names, self.wake_handle.peer()) {
            self.of.interest.wake();
        }
    }

    /// Records that an update moves its client on. Returns the cohort changes that it covers; 0 if the state
    /// before is unknown. An answer in parts counts with its last part. Two members may count those of one update
    /// differently: it is never less than none.
    ///
    /// Example: while a client owes an ACK, its cohort is marked with three changes. The next update covers
    /// three: the client is sent two of them only together with a later one.
    pub fn record_update(&mut self, update: &Update) -> u32 {
        if update.is_partial() {
            return 0;
        }
        let before = std::mem::replace(&mut self.sent, update.changes);
        let changes = before.zip(update.changes).map_or(0, |(before, now)| now.saturating_sub(before));
        u32::try_from(changes).unwrap_or(u32::MAX)
    }

    pub const fn cohort(&self) -> &Arc<Cohort> {
        &self.cohort
    }

    pub fn subscription(&self) -> &Subscription {
        &self.cohort.subscription
    }

    pub fn role(&self) -> Role {
        self.cohort.role
    }

    pub const fn of(&self) -> &Arc<TypeCache> {
        &self.of
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut cohort_index = self.of.cohort_index.lock();
        if self.cohort.remove(self.member_at) {
            CohortIndex::leave(&mut cohort_index, self.cohort_at, self.wake_handle.peer());
        }
        let dirty = cohort_index.is_dirty();
        drop(cohort_index);
        if dirty {
            self.of.interest.wake();
        }
    }
}

/// When the origin first answered for a type on the current connection, or for its names on a later stream. All
/// stores of the type share it: an answer for one set of parameters counts for all.
#[derive(Debug, Default)]
pub(super) struct AnsweringSince(Mutex<Option<Answered>>);

#[derive(Clone, Copy, Debug)]
struct Answered {
    since: Instant,
    /// No answer since names were requested again. Time then counts from the request: if none exists, nothing
    /// comes.
    is_asked_anew: bool,
}

impl AnsweringSince {
    pub(super) fn since(&self) -> Option<Instant> {
        self.0.lock().map(|answered| answered.since)
    }

    pub(super) fn record(&self, now: Instant) {
        let mut answered = self.0.lock();
        if answered.is_none_or(|answered| answered.is_asked_anew) {
            *answered = Some(Answered { since: now, is_asked_anew: false });
        }
    }

    /// Excludes a time in which the relay did not run.
    pub(super) fn exclude_pause(&self, pause: Duration, now: Instant) {
        if let Some(Answered { since, .. }) = &mut *self.0.lock() {
            *since = (*since + pause).min(now);
        }
    }

    /// Restarts the wait for a new request, or for an origin that could not answer.
    pub(super) fn restart(&self, now: Instant) {
        if let Some(answered) = &mut *self.0.lock() {
            *answered = Answered { since: now, is_asked_anew: true };
        }
    }

    pub(super) fn reset(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_relay_04_time_for_names_begins_no_earlier_than_they_are_asked_for() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let answering = AnsweringSince::default();
        answering.restart(after(1));
        assert_eq!(answering.since(), None, "it has never answered");
        answering.record(after(2));
        answering.record(after(20));
        assert_eq!(answering.since(), Some(after(2)));
        answering.restart(after(40));
        answering.record(after(45));
        assert_eq!(answering.since(), Some(after(45)), "its first answer on that stream");
        answering.exclude_pause(Duration::from_secs(5), after(60));
        assert_eq!(answering.since(), Some(after(50)));
    }
}
