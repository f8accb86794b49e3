//! The shared store that one upstream fills and every session reads.
//!
//! Owns, for a node group: the resources by type, their order of change, the cohorts of clients, and their
//! encoded updates. Knows nothing of streams, requests, nonces or ACKs. Does no I/O and has no clock: times are
//! arguments.
//!
//! Invariants:
//! - One [`Writer`] per cache, by ownership. Readers wait no longer than a pointer swap.
//! - A change is one snapshot: readers see all of it or nothing.
//! - Unknown is never absent (R-Relay-04). Only the origin makes a name absent, or the operator's rule that
//!   clients may not see it.
//! - Visibility is part of a store: nothing built for some clients reaches others.
//! - A change is recorded with its cohorts, published, marked, then wakes. So readers find every change of a
//!   snapshot, and sessions that register before they check miss nothing.

mod budget;
mod change;
mod change_history;
mod chunks;
mod cohort;
mod cohort_index;
mod demand;
mod diff;
mod entry;
#[cfg(test)]
mod fixture;
mod grpc_frame;
mod origin_error;
mod parameter_view;
mod position;
mod rollout;
mod segments;
mod set_versions;
mod snapshot;
mod stores;
mod subscription;
mod type_cache;
mod update;
mod update_cache;
mod view_leases;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, RwLock};

pub use budget::{Budget, Limits};
pub use change::{Change, Completeness, Op, Resend};
pub use change_history::{History, PlacedChange, ResourceChange, ResourceFacts};
pub use cohort::{Cohort, WakeHandle};
pub use cohort_index::Interest;
pub use diff::Encoder;
pub use entry::{Alias, Entry, Named, VisibleState};
pub use grpc_frame::{Frame, Nonce, NonceText, Suffix};
pub use origin_error::OriginError;
pub use parameter_view::{ClientScope, ParameterView, Track};
pub use position::{Class, FellBehindError, Generation, Position};
pub use rollout::{
    CanaryResponse, CanarySeat, EarlierState, HeldChange, HoldReason, Note, Order, OrderKind, Phase, Rollout,
    RolloutCounts, RolloutSettings, RolloutStatus, StandingOrder, Withheld,
};
pub use set_versions::{SetContents, SetState, SetVersion};
pub use snapshot::{HeldTotals, Snapshot};
pub use stores::{Claim, StoreLimitError};
pub use subscription::{Protocol, Role, StreamProfile, Subscription, TtlSupport};
pub use type_cache::{Membership, TypeCache};
pub use update::{OwedItems, Update};
pub use view_leases::{Lease, View};
pub use writer::Writer;

use cohort_index::CohortIndex;
use set_versions::EarlierStates;
use stores::Stores;

use crate::resource::{Name, Parameters, TypeUrl};

/// The store of one node group, as its readers see it.
#[derive(Debug)]
pub struct Cache {
    stores: RwLock<Stores>,
    interest: Arc<AtomicWaker>,
    encoder: Arc<Encoder>,
    limits: Mutex<Limits>,
    /// Rollout guard; `None` if all clients are sent a change at once.
    rollout: Option<Arc<Rollout>>,
    /// `None` if no history is kept.
    history: Option<Arc<History>>,
}

impl Cache {
    pub fn new(limits: Limits) -> (Arc<Self>, Writer) {
        Self::guarded(limits, &Budget::new(limits.encoded_bytes), None)
    }

    /// Creates an empty store that shares a budget, and its only writer; with a rollout guard if there are
    /// settings.
    pub fn guarded(limits: Limits, budget: &Budget, rollout: Option<RolloutSettings>) -> (Arc<Self>, Writer) {
        let interner = budget.interner();
        let cache = Arc::new(Self {
            stores: RwLock::new(Stores::new(budget.pools.clone())),
            interest: Arc::default(),
            encoder: Arc::new(Encoder::new(budget, limits.response_bytes)),
            limits: Mutex::new(limits),
            rollout: rollout.map(|settings| Arc::new(Rollout::new(settings))),
            history: budget.history.clone(),
        });
        let writer = Writer::new(Arc::clone(&cache), interner);
        (cache, writer)
    }

    /// Changes limits, except that of shared encodings. Surplus goes in its usual way: tombstones with the next
    /// change, parameters with their last client.
    pub fn set_limits(&self, limits: &Limits) {
        *self.limits.lock() = *limits;
        self.encoder.set_response_bytes(limits.response_bytes);
    }

    /// Finds or makes the store of a type for clients without parameters.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the type is new and the limit of types is reached.
    pub fn of(&self, type_url: &TypeUrl) -> Result<Arc<TypeCache>, StoreLimitError> {
        self.claim_store(Claim::ANYBODY, type_url, &ParameterView::default())
    }

    /// Finds or makes a store for a client, which is charged for a new one.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the store is new and the client, or all together, reached the limit of its kind.
    pub fn claim_store(
        &self,
        claim: Claim<'_>,
        type_url: &TypeUrl,
        parameter_view: &ParameterView,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        if let Some(found) = self.stores.read().find(type_url, parameter_view) {
            return Ok(Arc::clone(found));
        }
        // Its clients would wait for ever without these.
        let sources: &[Parameters] =
            if parameter_view.as_uniform().is_some() { &[] } else { parameter_view.parameters() };
        // A track's store is filled from the origin's, and stores that show a part of it from the track's.
        let track = if parameter_view.as_whole().is_some() { Track::Origin } else { parameter_view.track() };
        let source = |parameters: &Parameters| {
            self.claim_store(claim, type_url, &ParameterView::uniform(parameters.clone()).on(track))
        };
        let _held = sources.iter().map(source).collect::<Result<Vec<_>, _>>()?;
        let limits = *self.limits.lock();
        self.stores.write().enter(type_url, parameter_view, claim, limits, |index, answering| TypeCache {
            type_url: type_url.clone(),
            parameter_view: parameter_view.clone(),
            index,
            snapshot: ArcSwap::default(),
            earlier_states: EarlierStates::default(),
            cohort_index: Mutex::new(CohortIndex::new(parameter_view.as_uniform().is_none())),
            answering,
            interest: Arc::clone(&self.interest),
            proof_asked: AtomicBool::new(false),
            encoder: Arc::clone(&self.encoder),
            removal_watch: Mutex::default(),
        })
    }

    pub const fn rollout(&self) -> Option<&Arc<Rollout>> {
        self.rollout.as_ref()
    }

    /// Rollout guard of a type, if its changes are guarded.
    pub fn rollout_of(&self, type_url: &TypeUrl) -> Option<&Arc<Rollout>> {
        self.rollout().filter(|rollout| rollout.guards(type_url))
    }

    /// Track of clients that are no canaries.
    pub fn fleet_track(&self, type_url: &TypeUrl) -> Track {
        if self.rollout_of(type_url).is_some() { Track::Stable } else { Track::Origin }
    }

    /// Last changes, shared by all caches of the budget; `None` if none are kept.
    pub const fn history(&self) -> Option<&Arc<History>> {
        self.history.as_ref()
    }

    /// Current states of a resource per set of parameters, as [history](Self::history) records without a
    /// change.
    pub fn present(&self, type_url: &TypeUrl, track: Track, name: &str) -> Vec<(Parameters, ResourceChange)> {
        let present = |of: &Arc<TypeCache>| {
            let parameters = of.parameter_view.as_whole().filter(|_| of.parameter_view.track() == track)?;
            Some((parameters.clone(), ResourceChange::present(of.snapshot().get(name)?)?))
        };
        self.stores.read().all().filter(|of| of.type_url == *type_url).filter_map(present).collect()
    }

    /// All stores: of each requested type, and of each set of parameters in use.
    pub fn types(&self) -> Vec<Arc<TypeCache>> {
        self.stores.read().all().cloned().collect()
    }

    /// Stores of a type filled from this set of parameters, among others.
    fn mixed(&self, type_url: &TypeUrl, parameters: &Parameters) -> Vec<Arc<TypeCache>> {
        let stores = self.stores.read();
        let is_mixed = |of: &&Arc<TypeCache>| of.parameter_view.as_uniform().is_none();
        let has = |of: &&Arc<TypeCache>| of.parameter_view.parameters().contains(parameters);
        stores.of(type_url).filter(is_mixed).filter(has).cloned().collect()
    }

    /// Woken when demand may have changed; then call [`take_interest`](Self::take_interest).
    pub const fn interest(&self) -> &Arc<AtomicWaker> {
        &self.interest
    }

    /// Changed demand of each store. Of many names only some: call again until it is empty.
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

    pub fn has_interest(&self) -> bool {
        let has =
            |of: &Arc<TypeCache>| of.proof_asked.load(Ordering::Acquire) || of.cohort_index.lock().is_dirty();
        self.types().iter().any(has)
    }

    /// Makes the upstream request a name again, on a new stream and without its version. The held resource is
    /// served meanwhile. Returns whether a client asks for it.
    pub fn refresh(&self, type_url: &TypeUrl, name: &Name) -> bool {
        let stores = self.types().into_iter().filter(|of| of.type_url == *type_url);
        stores.filter(|of| of.refresh(name)).count() > 0
    }

    /// Gives an order to the rollout guard. Returns whether there is something to order.
    pub fn order(&self, order: Order, now: Instant) -> bool {
        let is_due = self.rollout().is_some_and(|rollout| rollout.order(order, now));
        if is_due {
            self.interest.wake();
        }
        is_due
    }

    /// Whether an order waits for the next deadline.
    pub fn has_order(&self) -> bool {
        self.rollout().is_some_and(|rollout| rollout.has_order())
    }

    /// Adds the demand of the type's other stores: one may want a name that another dropped.
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

    /// The store of a type for this view, if there is one.
    pub fn find(&self, type_url: &TypeUrl, parameter_view: &ParameterView) -> Option<Arc<TypeCache>> {
        self.stores.read().find(type_url, parameter_view).cloned()
    }

    pub fn wants(&self, type_url: &TypeUrl, parameters: &Parameters, name: &str) -> bool {
        self.any_with(type_url, parameters, |of| of.parameter_view.of(name) == parameters && of.wants(name))
    }

    pub fn wants_wildcard(&self, type_url: &TypeUrl, parameters: &Parameters) -> bool {
        self.any_with(type_url, parameters, |of| {
            of.parameter_view.wildcard() == parameters && of.wants_wildcard()
        })
    }

    fn any_with(&self, type_url: &TypeUrl, parameters: &Parameters, is: impl Fn(&TypeCache) -> bool) -> bool {
        let uniform = self.find(type_url, &ParameterView::uniform(parameters.clone()));
        uniform.is_some_and(|of| is(&of)) || self.mixed(type_url, parameters).iter().any(|of| is(of))
    }

    /// Drops stores of parameters that nobody uses.
    pub fn drop_unused(&self) {
        self.stores.write().drop_unused();
    }

    /// Drops an unused type that a client made up, without a subscription upstream.
    pub(crate) fn drop_type(&self, type_url: &TypeUrl) {
        self.stores.write().drop_type(type_url);
    }

    /// Unique number among the caches of a budget.
    pub fn number(&self) -> u64 {
        self.encoder.cache()
    }

    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }
}

/// Changed demand for a type with one set of parameters.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub type_url: TypeUrl,
    pub parameters: Parameters,
    pub interest: Interest,
    /// The store to [fill](Writer::fill), if its clients have further parameters or a limited scope. Stores of
    /// tracks have everything of the origin's.
    mixed: Option<Arc<TypeCache>>,
    /// Names that its clients may not see, without demand upstream.
    refused: Vec<Name>,
}

impl Wanted {
    fn split(of: &Arc<TypeCache>, interest: Interest) -> Vec<Self> {
        let Interest { wildcard, names, proof, refreshed } = interest;
        let view = &of.parameter_view;
        let part = |parameters: &Parameters| {
            let wildcard = wildcard && view.wildcard() == parameters;
            Self {
                type_url: of.type_url.clone(),
                parameters: parameters.clone(),
                interest: Interest { wildcard, names: Vec::new(), proof, refreshed: refreshed.clone() },
                mixed: view.as_whole().is_none().then(|| Arc::clone(of)),
                refused: Vec::new(),
            }
        };
        let mut parts: Vec<Self> = view.parameters().iter().map(part).collect();
        for (name, is_wanted) in names {
            let parameters = view.of(name.as_str());
            match parts.iter_mut().find(|part| part.parameters == *parameters) {
                Some(part) if view.scope().allows(name.as_str()) => {
                    part.interest.names.push((name, is_wanted));
                }
                Some(part) => part.refused.push(name),
                None => {}
            }
        }
        parts
    }
}
