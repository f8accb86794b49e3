//! The stores of a cache, by type and by the parameters through which their clients see it.
//!
//! Owns finding, making and dropping them. Knows nothing of what they hold.
//!
//! A type has one store for clients without parameters, one for each set of parameters, one for each client that asks for
//! some names with other parameters than for the rest (R-DP-10), and one for clients that may not see everything, for each
//! scope and set: these are filled from the others.
//!
//! Two pools bound how many clients can have made: one of types of which the origin has sent no resource, one of sets of
//! parameters that clients choose. The peer for which a store was made is charged for it until it is dropped, or, of a type,
//! until the origin has sent a resource. The types of the protocol are charged to nobody, and neither are the views of a type
//! that follow from the operator's rules alone.
//!
//! Invariant: the number of stores is bounded over all caches that share the pools, whichever clients ask, and a store that one may still join is not dropped.

use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::Mutex;

use super::answering::Answering;
use super::budget::Pools;
use super::parameter_view::{ParameterView, Track};
use super::type_store::TypeCache;
use crate::pool::Tenant;
use crate::resource::{Kind, Parameters, TypeUrl};

/// A peer asked for one more type, or set of parameters, than it may have of those that clients can have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreLimitError {
    /// Too many types of which the control plane has sent no resource. Holds the limit of all peers.
    #[error(
        "this client, or all of them, asked for too many resource types that the control plane does not have; all peers may have {0}"
    )]
    Types(usize),
    /// Too many sets of parameters, counted per type. Holds the limit of all peers.
    #[error(
        "this client, or all of them, asked for too many sets of dynamic parameters; all peers may have {0} (cache.max_parameter_sets)"
    )]
    ParameterSets(usize),
}

/// Party that a store is made for.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// For a resource of the origin: no peer is charged, and no limit holds.
    Origin,
    /// For a client.
    Client {
        /// Tenant that is charged for it. `None`: no share of its own, only the limits of all hold.
        tenant: Option<&'a Tenant>,
        /// Whether the operator's rules alone decide through what this client sees the type.
        is_reserved: bool,
    },
}

impl Claim<'static> {
    /// A client without a share of its own.
    pub const ANYBODY: Self = Self::Client { tenant: None, is_reserved: false };
}

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) types: usize,
    pub(super) parameter_sets: usize,
}

/// A store, and the tenant, if any, that is charged for it.
#[derive(Debug)]
struct Held {
    store: Arc<TypeCache>,
    charge: Charge,
}

#[derive(Debug)]
enum Charge {
    Nobody,
    /// As a type, to the share of a tenant, if there is one.
    Type(Option<Tenant>),
    /// As a set of parameters, the same.
    Parameters(Option<Tenant>),
}

/// Gives back what a store was charged.
fn refund(pools: &Mutex<Pools>, charge: &mut Charge) {
    match std::mem::replace(charge, Charge::Nobody) {
        Charge::Nobody => {}
        Charge::Type(tenant) => pools.lock().types.give_back(tenant.as_ref(), 1),
        Charge::Parameters(tenant) => pools.lock().parameter_sets.give_back(tenant.as_ref(), 1),
    }
}

/// After so many new stores those that nobody uses are dropped: what nobody is charged for fills no pool.
const TIDY: u32 = 256;

/// The stores of a cache and the pools that bound them.
#[derive(Debug)]
pub(super) struct Stores {
    plain: HashMap<Box<str>, Held>,
    /// All others, by their types.
    seen: HashMap<Box<str>, HashMap<ParameterView, Held>>,
    pools: Arc<Mutex<Pools>>,
    newest: u32,
}

impl Stores {
    /// No stores, charged to these pools.
    pub(super) fn new(pools: Arc<Mutex<Pools>>) -> Self {
        Self { pools, plain: HashMap::default(), seen: HashMap::default(), newest: 0 }
    }

    pub(super) fn find(&self, type_url: &TypeUrl, parameter_view: &ParameterView) -> Option<&Arc<TypeCache>> {
        let held = if *parameter_view == ParameterView::default() {
            self.plain.get(type_url.as_str())
        } else {
            self.seen.get(type_url.as_str())?.get(parameter_view)
        };
        held.map(|held| &held.store)
    }

    /// The store, made with its number if it is not there.
    pub(super) fn enter(
        &mut self,
        type_url: &TypeUrl,
        parameter_view: &ParameterView,
        claim: Claim<'_>,
        bounds: Bounds,
        make: impl FnOnce(u32, Arc<Answering>) -> TypeCache,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        if let Some(found) = self.find(type_url, parameter_view) {
            return Ok(Arc::clone(found));
        }
        if self.newest % TIDY == TIDY - 1 {
            self.settle();
        }
        let charge = match claim {
            Claim::Origin => Charge::Nobody,
            // The few types of the protocol have room whatever else is asked for.
            Claim::Client { tenant, .. }
                if type_url.kind() == Kind::Other && self.any(type_url).is_none() =>
            {
                self.charge_type(tenant, bounds.types)?
            }
            // The store of a track goes with that of the origin, which is charged.
            Claim::Client { is_reserved, .. }
                if is_reserved || (parameter_view.as_whole().is_some() && is_of_charged(parameter_view)) =>
            {
                Charge::Nobody
            }
            Claim::Client { tenant, .. } => self.charge_parameters(tenant, bounds.parameter_sets)?,
        };
        self.newest += 1;
        let answering = self.any(type_url).map(|of| Arc::clone(&of.answering)).unwrap_or_default();
        let store = Arc::new(make(self.newest, answering));
        let held = Held { store: Arc::clone(&store), charge };
        let url: Box<str> = type_url.as_str().into();
        if *parameter_view == ParameterView::default() {
            self.plain.insert(url, held);
        } else {
            self.seen.entry(url).or_default().insert(parameter_view.clone(), held);
        }
        Ok(store)
    }

    fn charge_type(&mut self, tenant: Option<&Tenant>, limit: usize) -> Result<Charge, StoreLimitError> {
        let take = |pools: &Mutex<Pools>| pools.lock().types.take(tenant, 1, limit);
        if !take(&self.pools) {
            self.settle();
            if !take(&self.pools) {
                return Err(StoreLimitError::Types(limit));
            }
        }
        Ok(Charge::Type(tenant.cloned()))
    }

    fn charge_parameters(
        &mut self,
        tenant: Option<&Tenant>,
        limit: usize,
    ) -> Result<Charge, StoreLimitError> {
        let take = |pools: &Mutex<Pools>| pools.lock().parameter_sets.take(tenant, 1, limit);
        if !take(&self.pools) {
            self.drop_unused();
            if !take(&self.pools) {
                return Err(StoreLimitError::ParameterSets(limit));
            }
        }
        Ok(Charge::Parameters(tenant.cloned()))
    }

    /// Drops what nobody asks for and of which nothing is held. For types of which the origin has sent a resource, nobody is
    /// charged any longer.
    fn settle(&mut self) {
        self.drop_unused();
        let Self { plain, seen, pools, .. } = self;
        let is_known = |held: &Held| held.store.snapshot().has_resources();
        for held in seen.values_mut().flat_map(HashMap::values_mut) {
            if matches!(held.charge, Charge::Type(_)) && is_known(held) {
                refund(pools, &mut held.charge);
            }
        }
        plain.retain(|type_url, held| {
            // Views that are filled from it may wait for it.
            let stays =
                is_used(&held.store) || held.store.snapshot().holds_anything() || seen.contains_key(type_url);
            if !stays || is_known(held) {
                refund(pools, &mut held.charge);
            }
            stays
        });
    }

    /// Drops the store of a type that somebody is charged for, that nobody asks for and of which nothing is held, when the origin is
    /// asked nothing of it either. The pool is that of all caches: another one must not wait until this one has no room itself.
    pub(super) fn drop_type(&mut self, type_url: &TypeUrl) {
        let type_url = type_url.as_str();
        let Some(held) = self.plain.get_mut(type_url) else { return };
        let is_source = self.seen.contains_key(type_url);
        if matches!(held.charge, Charge::Type(_))
            && !is_source
            && !is_used(&held.store)
            && !held.store.snapshot().holds_anything()
        {
            refund(&self.pools, &mut held.charge);
            self.plain.remove(type_url);
        }
    }

    /// Drops the stores of parameters that nobody has any more and of which the origin is asked nothing.
    pub(super) fn drop_unused(&mut self) {
        let Self { seen, pools, .. } = self;
        for stores in seen.values_mut() {
            let holds = |of: &Arc<TypeCache>| is_used(of) || of.snapshot().holds_anything();
            let sources = stores.iter().filter(|(_, held)| holds(&held.store));
            let sources: Vec<Parameters> =
                sources.filter_map(|(view, _)| view.as_uniform()).cloned().collect();
            stores.retain(|parameter_view, held| {
                let of = &held.store;
                let stays = match (parameter_view.track(), parameter_view.as_whole()) {
                    // Its difference from the content of the origin would be lost with it.
                    (Track::Canary | Track::Stable, Some(parameters)) => {
                        parameters.is_empty() || sources.contains(parameters) || holds(of)
                    }
                    (Track::Origin, Some(_)) => holds(of),
                    // Nobody needs the leftovers of a client that mixed parameters.
                    (_, None) => is_used(of),
                };
                if !stays {
                    refund(pools, &mut held.charge);
                }
                stays
            });
        }
        seen.retain(|_, stores| !stores.is_empty());
    }

    /// The stores of a type that see it through parameters.
    pub(super) fn seen(&self, type_url: &TypeUrl) -> impl Iterator<Item = &Arc<TypeCache>> {
        self.seen.get(type_url.as_str()).into_iter().flat_map(HashMap::values).map(|held| &held.store)
    }

    /// Some store of a type, if there is any.
    pub(super) fn any(&self, type_url: &TypeUrl) -> Option<&Arc<TypeCache>> {
        let plain = self.plain.get(type_url.as_str()).map(|held| &held.store);
        plain.or_else(|| self.seen(type_url).next())
    }

    /// The state of the origin's answers, once for each type.
    pub(super) fn answering(&self) -> impl Iterator<Item = (&TypeUrl, &Answering)> {
        let others = self.seen.iter().filter(|(type_url, _)| !self.plain.contains_key(&**type_url));
        let others = others.filter_map(|(_, stores)| stores.values().next());
        self.plain.values().chain(others).map(|held| (&held.store.type_url, &*held.store.answering))
    }

    /// Whether any client asks for some names with other parameters than for the rest, or may not see all names.
    pub(super) fn has_mixed(&self) -> bool {
        self.seen.values().flat_map(HashMap::keys).any(|parameter_view| parameter_view.as_uniform().is_none())
    }

    /// All stores.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<TypeCache>> {
        let seen = self.seen.values().flat_map(HashMap::values);
        self.plain.values().chain(seen).map(|held| &held.store)
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        let seen = self.seen.values_mut().flat_map(HashMap::values_mut);
        self.plain.values_mut().chain(seen).for_each(|held| refund(&self.pools, &mut held.charge));
    }
}

/// Whether somebody else is charged for what a store shows: for one without parameters nobody, for one of a track the client for which
/// that of the origin was made.
fn is_of_charged(parameter_view: &ParameterView) -> bool {
    *parameter_view == ParameterView::default() || parameter_view.track() != Track::Origin
}

/// Whether somebody has it in hand, or subscribes to anything in it, or did and the upstream does not know yet.
fn is_used(of: &Arc<TypeCache>) -> bool {
    Arc::strong_count(of) > 1 || !of.cohort_index.lock().is_idle()
}
