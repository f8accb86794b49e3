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
mod doubted_states;
mod earlier_states;
mod encoder;
mod encodings;
mod entry;
#[cfg(test)]
mod fixture;
mod frame;
mod generation;
mod history;
mod interner;
mod lease;
mod mark;
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
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};

pub use alias::Alias;
pub use budget::{Budget, Limits};
pub use change::{Change, Completeness, Op, Resend};
pub use cohort::{Cohort, WakeHandle};
pub use cohort_index::{Interest, RefreshError};
pub use encoder::Encoder;
pub use entry::{Entry, Named, Seen};
pub use frame::{EncodeCount, Frame};
pub use generation::Generation;
pub use history::{History, PlacedChange, ResourceChange, ResourceFacts};
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
pub use snapshot::{Held, Snapshot};
pub use stores::{Claim, StoreLimitError};
pub use subscription::Subscription;
pub use type_store::{Membership, TypeCache};
pub use update::{OwedItems, Update};
pub use view::View;
pub use wanted::Wanted;
pub use writer::Writer;

use cohort_index::CohortIndex;
use doubted_states::DoubtedStates;
use earlier_states::EarlierStates;
use stores::{Bounds, Stores};

use crate::resource::{Name, Parameters, TypeUrl};

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
    /// `None` where none is kept.
    history: Option<Arc<History>>,
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
            history: budget.history.clone(),
        });
        let writer = Writer::new(Arc::clone(&cache), interner);
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
            earlier_states: EarlierStates::default(),
            doubted_states: DoubtedStates::default(),
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

    /// Last changes of its resources, with those of the caches that share its budget; `None` where none are remembered.
    pub const fn history(&self) -> Option<&Arc<History>> {
        self.history.as_ref()
    }

    /// States of a resource that is held, for each set of parameters with which clients asked for it, as its [history](Self::history)
    /// has a state that it has not seen come.
    pub fn present(&self, type_url: &TypeUrl, name: &str) -> Vec<(Parameters, ResourceChange)> {
        let present = |of: &Arc<TypeCache>| {
            let parameters = of.parameter_view.as_uniform()?;
            Some((parameters.clone(), ResourceChange::present(of.snapshot().get(name)?)?))
        };
        self.stores.read().all().filter(|of| of.type_url == *type_url).filter_map(present).collect()
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

    /// Has the upstream ask for a name anew, as an operator ordered: on a new stream, without the version that is held. What is held
    /// is served until the answer comes.
    ///
    /// # Errors
    ///
    /// [`RefreshError`] if that would do nothing for any client.
    pub fn refresh(&self, type_url: &TypeUrl, name: &Name) -> Result<(), RefreshError> {
        let stores = self.types().into_iter().filter(|of| of.type_url == *type_url);
        stores.map(|of| of.refresh(name)).min().unwrap_or(Err(RefreshError::Unwanted))
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
