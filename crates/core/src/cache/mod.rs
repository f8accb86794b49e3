//! The shared store that one upstream fills and every session reads.
//!
//! Owns, for a node group: per type the resources as last heard, the order in which they changed, the cohorts of
//! clients and what each cohort has to be told, encoded once. Knows nothing of streams, requests, nonces or ACKs,
//! does no I/O, and has no clock: times come in as arguments and only go out again.
//!
//! Invariants:
//! - One [`Writer`] per cache, by ownership. A reader waits for it no longer than a pointer swap.
//! - A change is one snapshot: readers see all of it or nothing.
//! - Unknown is never absent (R-Relay-04), and nothing but the origin's word makes a name absent, or the operator's that
//!   its clients may not see it.
//! - What clients may see is part of the store that they share: nothing that is built for some reaches others.
//! - A change is noted with the cohorts that it concerns before its snapshot is published: a reader finds all that the
//!   snapshot holds, and may find more. They are marked after it is published, and woken after they are marked: a session
//!   that registers, then looks, misses nothing.

mod alias;
mod answering;
mod audience;
mod budget;
mod change;
mod change_log;
mod cohort;
mod cohort_index;
mod diff;
mod encoder;
mod encodings;
mod entry;
#[cfg(test)]
mod fixture;
mod frame;
mod generation;
mod interner;
mod lease;
mod name_diff;
mod nonce;
mod origin_error;
mod parameter_view;
mod position;
mod profile;
mod queue;
mod rollout;
mod segments;
mod set_state;
mod snapshot;
mod stores;
mod subscription;
mod tally;
mod type_store;
mod update;
mod update_cache;
mod view;
mod wanted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};

pub use alias::Alias;
pub use budget::{Budget, Limits};
pub use change::{Change, Completeness, Op, Resend};
pub use cohort::{Cohort, WakeHandle};
pub use cohort_index::Interest;
pub use encoder::Encoder;
pub use entry::{Entry, Named, Seen};
pub use frame::{EncodeCount, Frame};
pub use generation::Generation;
pub use lease::Lease;
pub use nonce::{Nonce, NonceText, Suffix};
pub use origin_error::OriginError;
pub use parameter_view::{ClientScope, ParameterView, Track};
pub use position::{Class, FellBehindError, Position};
pub use profile::{Protocol, Role, StreamProfile, TtlSupport};
pub use rollout::{
    CanarySeat, HeldChange, Order, Phase, Rollout, RolloutCounts, RolloutSettings, RolloutStatus,
};
pub use set_state::{SetContents, SetState, SetVersion};
pub use snapshot::Snapshot;
pub use stores::{Claim, StoreLimitError};
pub use subscription::Subscription;
pub use type_store::{Membership, TypeCache};
pub use update::{OwedItems, Update};
pub use view::View;
pub use wanted::Wanted;

use cohort_index::CohortIndex;
use interner::Interner;
use rollout::{Decision, Steps, StoreKey};
use snapshot::Draft;
use stores::{Bounds, Stores};

use crate::RelayIdentity;
use crate::resource::{Collection, Kind, Name, Parameters, TypeUrl};

/// The store of one node group, as its readers see it.
#[derive(Debug)]
pub struct Cache {
    stores: RwLock<Stores>,
    interest: Arc<WakeHandle>,
    encoder: Arc<Encoder>,
    types: usize,
    tombstones: AtomicUsize,
    parameter_sets: AtomicUsize,
    /// Guard of changes; `None` where all clients are sent a change at once.
    rollout: Option<Arc<Rollout>>,
}

impl Cache {
    /// An empty store, and the one hand that may write to it.
    pub fn new(limits: Limits) -> (Arc<Self>, Writer) {
        Self::within(limits, &Budget::new(limits.encoded_bytes))
    }

    /// An empty store that shares a budget with those of other node groups, and the one hand that may write to it.
    pub fn within(limits: Limits, budget: &Budget) -> (Arc<Self>, Writer) {
        Self::guarded(limits, budget, None)
    }

    /// Like [`within`](Self::within), with a guard of changes, if there is one.
    pub fn guarded(limits: Limits, budget: &Budget, rollout: Option<RolloutSettings>) -> (Arc<Self>, Writer) {
        let interner = budget.interner();
        let cache = Arc::new(Self {
            stores: RwLock::new(Stores::new(Arc::clone(&budget.pools))),
            interest: Arc::default(),
            encoder: Arc::new(Encoder::new(budget, limits.response_bytes)),
            types: limits.types,
            tombstones: AtomicUsize::new(limits.tombstones),
            parameter_sets: AtomicUsize::new(limits.parameter_sets),
            rollout: rollout.map(|settings| Arc::new(Rollout::new(settings))),
        });
        let writer = Writer {
            cache: Arc::clone(&cache),
            clock: Generation::ZERO,
            repush: true,
            identifier: Arc::from(""),
            interner,
            remembers: false,
        };
        (cache, writer)
    }

    /// Takes over other limits, but for those of types and of shared encodings, which stay. What is above one already goes
    /// as it would have gone: a tombstone with the next change, a set of parameters with its last client.
    pub fn set_limits(&self, limits: &Limits) {
        self.tombstones.store(limits.tombstones, Ordering::Relaxed);
        self.parameter_sets.store(limits.parameter_sets, Ordering::Relaxed);
        self.encoder.set_response_bytes(limits.response_bytes);
    }

    /// The store of a type for clients without parameters, made when first asked for.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the type is new and there may be no more types.
    pub fn of(&self, type_url: &TypeUrl) -> Result<Arc<TypeCache>, StoreLimitError> {
        self.seen(type_url, &ParameterView::default())
    }

    /// The store of a type for clients that see it so, made when first asked for. Nobody is charged for it.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the store is new and there may be no more of its kind.
    pub fn seen(
        &self,
        type_url: &TypeUrl,
        parameter_view: &ParameterView,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        self.seen_by(Claim::ANYBODY, type_url, parameter_view)
    }

    /// Finds or makes a store for a client, which is charged for a new one.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the store is new and the client, or all clients together, may have no more of its kind.
    pub fn seen_by(
        &self,
        claim: Claim<'_>,
        type_url: &TypeUrl,
        parameter_view: &ParameterView,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        if let Some(found) = self.stores.read().find(type_url, parameter_view) {
            return Ok(Arc::clone(found));
        }
        // A store that is filled from others is of no use without them: its clients would wait for ever.
        let sources: &[Parameters] =
            if parameter_view.as_uniform().is_some() { &[] } else { parameter_view.parameters() };
        // That of a track is filled from the origin's, and those that show a part of it from it.
        let track = if parameter_view.as_whole().is_some() { Track::Origin } else { parameter_view.track() };
        let source = |parameters: &Parameters| {
            self.seen_by(claim, type_url, &ParameterView::uniform(parameters.clone()).on(track))
        };
        let _held = sources.iter().map(source).collect::<Result<Vec<_>, _>>()?;
        let parameter_sets = self.parameter_sets.load(Ordering::Relaxed);
        let bounds = Bounds { types: self.types, parameter_sets };
        self.stores.write().enter(type_url, parameter_view, claim, bounds, |index, answering| TypeCache {
            type_url: type_url.clone(),
            parameter_view: parameter_view.clone(),
            index,
            snapshot: ArcSwap::default(),
            cohort_index: Mutex::new(CohortIndex::new(parameter_view.as_uniform().is_none())),
            answering,
            interest: Arc::clone(&self.interest),
            proof_asked: AtomicBool::new(false),
            encoder: Arc::clone(&self.encoder),
        })
    }

    /// Guard of changes, if there is one.
    pub const fn rollout(&self) -> Option<&Arc<Rollout>> {
        self.rollout.as_ref()
    }

    /// Guard of changes to a type, if they are guarded.
    pub fn rollout_of(&self, type_url: &TypeUrl) -> Option<&Arc<Rollout>> {
        self.rollout().filter(|rollout| rollout.guards(type_url))
    }

    /// All stores: of each type that was ever asked for, and of each set of parameters that is in use.
    pub fn types(&self) -> Vec<Arc<TypeCache>> {
        self.stores.read().all().cloned().collect()
    }

    /// The stores of a type whose clients ask for something with these parameters, and for other things with others, or may
    /// not see all.
    fn mixed(&self, type_url: &TypeUrl, parameters: &Parameters) -> Vec<Arc<TypeCache>> {
        let stores = self.stores.read();
        let is_mixed = |of: &&Arc<TypeCache>| of.parameter_view.as_uniform().is_none();
        let has = |of: &&Arc<TypeCache>| of.parameter_view.parameters().contains(parameters);
        stores.seen(type_url).filter(is_mixed).filter(has).cloned().collect()
    }

    /// Woken when what the clients want may have changed; then ask [`take_interest`](Self::take_interest).
    pub const fn interest(&self) -> &Arc<WakeHandle> {
        &self.interest
    }

    /// Demand of the clients, for each store where it changed since last asked. Of many names only some: ask again until it
    /// is empty.
    pub fn take_interest(&self) -> Vec<Wanted> {
        let take = |of: Arc<TypeCache>| {
            let proof = of.proof_asked.swap(false, Ordering::AcqRel);
            let interest = of.cohort_index.lock().take_interest(proof)?;
            Some(Wanted::split(&of, interest))
        };
        let mut wanted: Vec<Wanted> = self.types().into_iter().filter_map(take).flatten().collect();
        if self.stores.read().has_mixed() {
            for wanted in &mut wanted {
                self.ask_others(wanted);
            }
            self.drop_unused();
        }
        wanted
    }

    /// Whether there is any of it that was not taken yet.
    pub fn has_interest(&self) -> bool {
        let has =
            |of: &Arc<TypeCache>| of.proof_asked.load(Ordering::Acquire) || of.cohort_index.lock().is_dirty();
        self.types().iter().any(has)
    }

    /// Adds the demand of the type's other stores: a name that nobody wants in one may be wanted in another.
    fn ask_others(&self, wanted: &mut Wanted) {
        let (type_url, parameters) = (&wanted.type_url, &wanted.parameters);
        let mut others = self.mixed(type_url, parameters);
        others.extend(self.find(type_url, &ParameterView::uniform(parameters.clone())));
        let any = |is: &dyn Fn(&TypeCache) -> bool| others.iter().any(|of| is(of));
        wanted.interest.wildcard =
            any(&|of| of.parameter_view.wildcard() == parameters && of.wants_wildcard());
        for (name, is_wanted) in &mut wanted.interest.names {
            let name = name.as_str();
            *is_wanted = *is_wanted || any(&|of| of.parameter_view.of(name) == parameters && of.wants(name));
        }
    }

    /// The store of a type for clients that see it so, if there is one.
    pub fn find(&self, type_url: &TypeUrl, parameter_view: &ParameterView) -> Option<Arc<TypeCache>> {
        self.stores.read().find(type_url, parameter_view).cloned()
    }

    /// Whether any client asks for this name with these parameters.
    pub fn wants(&self, type_url: &TypeUrl, parameters: &Parameters, name: &str) -> bool {
        self.any_with(type_url, parameters, |of| of.parameter_view.of(name) == parameters && of.wants(name))
    }

    /// Whether any client asks for the wildcard with these parameters.
    pub fn wants_wildcard(&self, type_url: &TypeUrl, parameters: &Parameters) -> bool {
        self.any_with(type_url, parameters, |of| {
            of.parameter_view.wildcard() == parameters && of.wants_wildcard()
        })
    }

    fn any_with(&self, type_url: &TypeUrl, parameters: &Parameters, is: impl Fn(&TypeCache) -> bool) -> bool {
        let uniform = self.find(type_url, &ParameterView::uniform(parameters.clone()));
        uniform.is_some_and(|of| is(&of)) || self.mixed(type_url, parameters).iter().any(|of| is(of))
    }

    /// Drops what is left of parameters that nobody has any more.
    pub fn drop_unused(&self) {
        self.stores.write().drop_unused();
    }

    /// Drops what is left of a type that a client made up and of which the origin is asked nothing any more.
    pub(crate) fn drop_type(&self, type_url: &TypeUrl) {
        self.stores.write().drop_type(type_url);
    }

    /// Its number among those that share a budget.
    pub fn number(&self) -> u64 {
        self.encoder.cache()
    }

    /// Counts of encoding at work.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }
}

/// The one writer of a group's cache.
#[derive(Debug)]
pub struct Writer {
    cache: Arc<Cache>,
    clock: Generation,
    repush: bool,
    /// `control_plane.identifier` of a type while no change gives it another one.
    identifier: Arc<str>,
    /// Resources of other caches, if there are any.
    interner: Option<Arc<Interner>>,
    /// Whether names that have no entry any more are remembered.
    remembers: bool,
}

impl Writer {
    /// Remembers names that have no entry any more for readers of changes, up to `tombstones` of each store: see
    /// [`Snapshot::changed_since`]. Off by default.
    pub const fn remember_forgotten(&mut self) {
        self.remembers = true;
    }

    /// Whether endpoints are sent again when their cluster changed (R-ADS-05). On by default.
    pub const fn set_eds_repush(&mut self, on: bool) {
        self.repush = on;
    }

    /// Names this relay to clients (R-Relay-19).
    pub fn set_identity(&mut self, identity: &RelayIdentity) {
        self.identifier = identity.own();
    }

    /// The store it writes to.
    pub const fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The origin answered for a type. Nobody is woken: a client that waits for the origin to answer looks
    /// again every `cold_deadline`.
    pub fn heard(&self, type_url: &TypeUrl, now: Instant) {
        if let Some(of) = self.cache.stores.read().any(type_url) {
            of.answering.answer(now);
        }
    }

    /// The relay did not run for this long, which is no silence of the origin.
    pub fn overslept(&self, pause: Duration, now: Instant) {
        self.cache.stores.read().answering().for_each(|(_, of)| of.shift(pause, now));
    }

    /// The origin has not answered for any type on the connection that stands now.
    pub fn unheard(&self) {
        self.cache.stores.read().answering().for_each(|(_, of)| of.end());
    }

    /// The origin's silence about names of these types counts from then on at the earliest.
    pub fn silent_not_before(&self, is_one: impl Fn(&TypeUrl) -> bool, at: Instant) {
        let stores = self.cache.stores.read();
        stores.answering().filter(|(of, _)| is_one(of)).for_each(|(_, of)| of.not_before(at));
    }

    /// Names of these types are asked for anew: its silence on an earlier stream says nothing of them.
    pub fn asked_anew(&self, is_one: impl Fn(&TypeUrl) -> bool, now: Instant) {
        let stores = self.cache.stores.read();
        stores.answering().filter(|(of, _)| is_one(of)).for_each(|(_, of)| of.begin_anew(now));
    }

    /// Applies a change to what clients without parameters see, as a whole, and wakes those it concerns.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the type is new and there may be no more types; nothing is changed then.
    pub fn apply(&mut self, type_url: &TypeUrl, change: Change, now: Instant) -> Result<(), StoreLimitError> {
        self.apply_seen(type_url, &Parameters::NONE, change, now)
    }

    /// Like [`apply`](Self::apply), for what clients with these parameters see.
    ///
    /// # Errors
    ///
    /// As of [`apply`](Self::apply), also if there may be no more sets of parameters.
    pub fn apply_seen(
        &mut self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        mut change: Change,
        now: Instant,
    ) -> Result<(), StoreLimitError> {
        if let Some(interner) = &self.interner {
            for op in &mut change.ops {
                if let Op::Set { resource, .. } = op {
                    interner.share(resource);
                }
            }
        }
        let of = self.cache.seen_by(Claim::Origin, type_url, &ParameterView::uniform(parameters.clone()))?;
        let Some(rollout) = self.cache.rollout_of(type_url).cloned() else {
            self.apply_on(&of, parameters, change, now);
            return Ok(());
        };
        let stable = self.track(type_url, parameters, Track::Stable)?;
        let canary = self.track(type_url, parameters, Track::Canary)?;
        let key = (type_url.clone(), parameters.clone());
        let held = (&*of.snapshot(), &*stable.snapshot());
        let canaries = self.cache.mixed(type_url, parameters);
        let is_asked = |name: &Name, is_member| asked_by_canaries(&canaries, parameters, name, is_member);
        let split = rollout.split(&key, &change, held, is_asked, self.clock, now);
        // No client sees it: endpoints follow the clusters of the tracks.
        self.publish(&of, change, now);
        self.apply_on(&canary, parameters, split.canary, now);
        self.apply_on(&stable, parameters, split.stable, now);
        Ok(())
    }

    /// Store of a track, which its clients see whole.
    fn track(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        track: Track,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        let view = ParameterView::uniform(parameters.clone()).on(track);
        self.cache.seen_by(Claim::Origin, type_url, &view)
    }

    /// Applies a change to a store, and to those of its track that show a part of it.
    fn apply_on(&mut self, of: &TypeCache, parameters: &Parameters, change: Change, now: Instant) {
        let track = of.parameter_view.track();
        let mut mixed = self.cache.mixed(&of.type_url, parameters);
        mixed.retain(|of| of.parameter_view.track() == track && of.parameter_view.as_whole().is_none());
        if mixed.is_empty() {
            self.publish_with_endpoints(of, change, now);
            return;
        }
        self.publish_with_endpoints(of, change.clone(), now);
        let from = of.snapshot();
        for mixed in mixed {
            let part = Self::part(&mixed, parameters, &change, &from);
            self.publish_with_endpoints(&mixed, part, now);
        }
    }

    /// When to [`roll_out`](Self::roll_out) though nothing happened.
    pub fn next_rollout(&self) -> Option<Instant> {
        self.cache.rollout()?.next_decision()
    }

    /// Has guarded changes spread, or be taken back, as far as that is due.
    pub fn roll_out(&mut self, now: Instant) {
        let Some(rollout) = self.cache.rollout().cloned() else { return };
        let cache = Arc::clone(&self.cache);
        let find = |key: &StoreKey, track| {
            cache.find(&key.0, &ParameterView::uniform(key.1.clone()).on(track)).map(|of| of.snapshot())
        };
        let differs = |key: &StoreKey, name: &Name, content: &Snapshot| {
            let mut steps = Steps::default();
            find(key, Track::Stable).is_some_and(|stable| {
                steps.bring(name, &stable, content);
                !steps.is_empty()
            })
        };
        let asks = |key: &StoreKey, name: &Name, content: &Snapshot| {
            let stable = find(key, Track::Stable);
            let is_member = [Some(content), stable.as_deref()].into_iter().flatten();
            let is_member = is_member.filter_map(|of| of.get(name.as_str())).any(Entry::is_member);
            asked_by_canaries(&cache.mixed(&key.0, &key.1), &key.1, name, is_member)
        };
        let (mut stable, mut canary) = <(BTreeMap<StoreKey, Steps>, BTreeMap<StoreKey, Steps>)>::default();
        match rollout.decide(now, |key| find(key, Track::Origin), differs, asks) {
            Decision::Nothing => return,
            Decision::Spread(trial, given) => {
                for (key, content) in &trial.content {
                    let (Some(held), Some(origin)) = (find(key, Track::Stable), find(key, Track::Origin))
                    else {
                        continue;
                    };
                    let steps = stable.entry(key.clone()).or_default();
                    for name in trial.names(key) {
                        // It may have come into the wildcard set since, with what is released.
                        let is_given = given.iter().any(|(of, other)| (of, other) == (key, name));
                        steps.bring(name, &held, if is_given { &origin } else { content });
                    }
                    steps.keep_later_members(content, &origin);
                }
                for (key, name) in given {
                    if let (Some(held), Some(origin)) = (find(&key, Track::Canary), find(&key, Track::Origin))
                    {
                        canary.entry(key).or_default().bring(&name, &held, &origin);
                    }
                }
            }
            Decision::TakeBack(names) => {
                for (key, name) in names {
                    let tracks = find(&key, Track::Canary).zip(find(&key, Track::Stable));
                    if let Some((held, good)) = tracks {
                        canary.entry(key).or_default().bring(&name, &held, &good);
                    }
                }
            }
        }
        for (key, steps) in canary.iter_mut().chain(&mut stable) {
            if let Some(origin) = find(key, Track::Origin) {
                steps.lend_as(&origin);
            }
        }
        self.apply_steps(canary, Track::Canary, now);
        self.apply_steps(stable, Track::Stable, now);
    }

    /// Brings the stores of a track on: additions in the order in which types are sent, then removals in the reverse one, so that a
    /// reader in between sees no route without its cluster (R-ADS-03).
    fn apply_steps(&mut self, steps: BTreeMap<StoreKey, Steps>, track: Track, now: Instant) {
        let mut steps: Vec<(StoreKey, Steps)> = steps.into_iter().collect();
        steps.sort_by_key(|((type_url, _), _)| type_url.kind());
        let (mut additions, mut removals) = (Vec::new(), Vec::new());
        for (key, steps) in steps {
            additions.push((key.clone(), steps.additions));
            removals.push((key, steps.removals));
        }
        for ((type_url, parameters), ops) in additions.into_iter().chain(removals.into_iter().rev()) {
            if let Ok(of) = self.track(&type_url, &parameters, track) {
                self.apply_on(&of, &parameters, Change { ops, ..Change::default() }, now);
            }
        }
    }

    /// Brings a store of mixed parameters up to what the store of one set knows of what is newly wanted there.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the store of one of the sets is new and there may be no more of them.
    pub fn fill(&mut self, wanted: &Wanted, now: Instant) -> Result<(), StoreLimitError> {
        let Some(of) = &wanted.mixed else { return Ok(()) };
        if of.parameter_view.as_whole().is_some() {
            // The store of a track has all that the origin's has.
            return Ok(());
        }
        // A name that a client may not see does not exist for it, whether it does or not.
        let refused = wanted.refused.iter().map(|(name, _)| {
            let (view, name) = (View::Named, name.clone());
            if of.asks(name.as_str()) { Op::Remove { view, name } } else { Op::Forget { view, name } }
        });
        let mut change = Change { ops: refused.collect(), ..Change::default() };
        let whole = ParameterView::uniform(wanted.parameters.clone()).on(of.parameter_view.track());
        let from = match self.cache.seen(&wanted.type_url, &whole) {
            Ok(from) => from.snapshot(),
            Err(full) => {
                self.publish_with_endpoints(of, change, now);
                return Err(full);
            }
        };
        change.system_version = Some(Arc::clone(&from.system_version));
        change.control_plane = Some(Arc::clone(&from.control_plane));
        // Demand of other stores with these parameters does not concern this one.
        let has_wildcard = of.parameter_view.wildcard() == &wanted.parameters && of.serves_wildcard();
        let known = of.snapshot().completeness();
        if has_wildcard && known == Completeness::Unknown {
            change.ops.extend(of.members_of(&from));
        }
        // The contents have been kept up to date since they were first filled.
        change.wildcard_known = Some(from.completeness()).filter(|more| has_wildcard && *more > known);
        let names = wanted.interest.names.iter().map(|(name, _)| name).chain(&wanted.looked);
        for name in names.filter(|name| of.serves(name.as_str())) {
            let said = from.told_by_name(name).into_iter();
            change.ops.extend(said.filter_map(|op| op.through(of.parameter_view.scope())));
        }
        self.publish_with_endpoints(of, change, now);
        Ok(())
    }

    /// Part of a change, which has led to this snapshot, that concerns a store of mixed parameters.
    fn part(of: &TypeCache, parameters: &Parameters, change: &Change, from: &Snapshot) -> Change {
        let snapshot = of.snapshot();
        let asks_for = |name: &str| {
            of.serves(name) || Collection::covering(name).is_some_and(|covering| of.serves(&covering))
        };
        let has_wildcard =
            of.parameter_view.wildcard() == parameters && (of.serves_wildcard() || snapshot.holds_wildcard());
        let mut ops = Vec::new();
        for op in &change.ops {
            let name = op.name();
            let own = of.parameter_view.of(name.as_str()) == parameters;
            let entry = snapshot.get(name.as_str());
            // A client that let it go may ask again before it is forgotten here.
            let is_known = || entry.is_some_and(|entry| !matches!(entry.named(), Named::Unknown));
            match op.view() {
                View::Wildcard => {
                    if has_wildcard && !of.parameter_view.is_beside_wildcard(name.as_str()) {
                        ops.push(op.clone());
                    }
                    // A client that asks for it by name sees the member.
                    if own && (of.serves(name.as_str()) || is_known()) {
                        ops.extend(from.said_by_name(op));
                    }
                }
                View::Named => {
                    if own && (asks_for(name.as_str()) || is_known()) {
                        ops.extend(from.said_by_name(op));
                    }
                }
            }
        }
        // A client that comes while the set is known gets all of it, not only what is said next.
        if has_wildcard && from.wildcard_known() && !snapshot.wildcard_known() {
            ops.extend(of.members_of(from));
        }
        let scope = of.parameter_view.scope();
        Change {
            ops: ops.into_iter().filter_map(|op| op.through(scope)).collect(),
            wildcard_known: change.wildcard_known.filter(|_| has_wildcard),
            system_version: change.system_version.clone(),
            control_plane: change.control_plane.clone(),
        }
    }

    fn publish_with_endpoints(&mut self, of: &TypeCache, change: Change, now: Instant) {
        let endpoints = self.publish(of, change, now);
        if self.repush && of.type_url.kind() == Kind::Cluster && !endpoints.is_empty() {
            // A client that sees its endpoints through other parameters than its clusters is owed them by its own session.
            let endpoint = Kind::Endpoint.into();
            let is_guarded = self.cache.rollout_of(&endpoint).is_some();
            let track = if is_guarded { of.parameter_view.track() } else { Track::Origin };
            let view = of.parameter_view.clone().on(track);
            let found = self.cache.stores.read().find(&endpoint, &view).cloned();
            if let Some(of) = found {
                let ops = endpoints.into_iter().map(|name| Op::Repush { name }).collect();
                self.publish(&of, Change { ops, ..Change::default() }, now);
            }
        }
    }

    fn publish(&mut self, of: &TypeCache, change: Change, now: Instant) -> Vec<Name> {
        if change.is_nothing() {
            return Vec::new();
        }
        let tombstones = self.cache.tombstones.load(Ordering::Relaxed);
        let remembers = if self.remembers { tombstones } else { 0 };
        let draft = Draft::new(&of.snapshot.load(), &of.type_url, &mut self.clock);
        let mut draft = draft.remembering(remembers);
        draft.apply(change);
        draft.identify(&self.identifier);
        let touched = std::mem::take(&mut draft.touched);
        let endpoints = std::mem::take(&mut draft.endpoints);
        let turned = draft.wildcard_turned;
        let mut snapshot = draft.finish(tombstones, now);
        if let Some(interner) = &self.interner {
            snapshot.table.share(interner);
        }
        let generation = snapshot.generation();
        let (cohorts, _old) = {
            let cohort_index = of.cohort_index.lock();
            cohort_index.note(&touched, generation);
            // The old one may be the last of its kind: it is dropped without the lock.
            let old = of.snapshot.swap(Arc::new(snapshot));
            (cohort_index.mark(&touched, turned, generation), old)
        };
        cohort_index::wake(&cohorts);
        endpoints
    }
}

/// Whether a canary asks for a name, in those of these stores that are of its track.
fn asked_by_canaries(
    stores: &[Arc<TypeCache>],
    parameters: &Parameters,
    name: &Name,
    is_member: bool,
) -> bool {
    let is_meant = |of: &&Arc<TypeCache>| {
        let view = &of.parameter_view;
        view.track() == Track::Canary && view.of(name.as_str()) == parameters
    };
    stores.iter().filter(is_meant).any(|of| of.cohort_index.lock().clients_of(name, is_member) > 0)
}
