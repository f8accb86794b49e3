//! The stores of a cache, by type and parameter view.
//!
//! Owns finding, making and dropping them. Knows nothing of their content.
//!
//! A type has one store without parameters, and one per set. Stores for mixed parameters (R-DP-10), and for
//! limited scopes, are filled from these.
//!
//! Two pools bound the stores that clients can create: types without a resource of the origin, and sets of
//! parameters that clients choose. The first peer pays until the store is dropped, or, for a type, until the
//! origin sends a resource.
//!
//! Invariant: the pools bound the stores of all their caches, whichever clients ask. A store that a client may
//! join is not dropped.

use std::sync::Arc;

use foldhash::HashMap;

use super::budget::{Limits, Pools};
use super::parameter_view::{ParameterView, Track};
use super::type_cache::AnsweringSince;
use super::type_cache::TypeCache;
use crate::pool::{Pool, Share, Tenant};
use crate::resource::{Kind, Parameters, TypeUrl};

/// A peer reached its limit of types or sets of parameters that clients can create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreLimitError {
    /// Too many types without a resource. Holds the limit of all peers.
    #[error(
        "this client, or all of them, asked for too many resource types that the control plane does not have; all peers may have {0}"
    )]
    Types(usize),
    /// Too many sets of parameters of a type. Holds the limit of all peers.
    #[error(
        "this client, or all of them, asked for too many sets of dynamic parameters; all peers may have {0} (cache.max_parameter_sets)"
    )]
    ParameterSets(usize),
}

/// Reason to make a store.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// A resource of the origin: nobody is charged, and no limit applies.
    Origin,
    Client {
        /// Charged tenant. `None`: only the limits of all apply.
        tenant: Option<&'a Tenant>,
        /// Whether the client's view follows from the operator's rules alone.
        is_reserved: bool,
    },
}

impl Claim<'static> {
    /// A client without a tenant.
    pub const ANYBODY: Self = Self::Client { tenant: None, is_reserved: false };
}

#[derive(Debug)]
struct ChargedStore {
    store: Arc<TypeCache>,
    /// Of the pool of types.
    of_types: Option<Share>,
    /// Of the pool of parameter sets, until it is dropped.
    _of_sets: Option<Share>,
}

/// New stores between clean-ups: stores that nobody pays for fill no pool.
const TIDY: u32 = 256;

#[derive(Debug)]
pub(super) struct Stores {
    /// Stores of each type; no type has none.
    types: HashMap<Box<str>, HashMap<ParameterView, ChargedStore>>,
    pools: Pools,
    newest: u32,
}

impl Stores {
    pub(super) fn new(pools: Pools) -> Self {
        Self { pools, types: HashMap::default(), newest: 0 }
    }

    pub(super) fn find(&self, type_url: &TypeUrl, parameter_view: &ParameterView) -> Option<&Arc<TypeCache>> {
        self.types.get(type_url.as_str())?.get(parameter_view).map(|held| &held.store)
    }

    /// Finds a store, or makes it with the next number.
    pub(super) fn enter(
        &mut self,
        type_url: &TypeUrl,
        parameter_view: &ParameterView,
        claim: Claim<'_>,
        limits: Limits,
        make: impl FnOnce(u32, Arc<AnsweringSince>) -> TypeCache,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        if let Some(found) = self.find(type_url, parameter_view) {
            return Ok(Arc::clone(found));
        }
        if self.newest % TIDY == TIDY - 1 {
            self.settle();
        }
        let (of_types, of_sets) = match claim {
            Claim::Origin => (None, None),
            // Types of the protocol always have room.
            Claim::Client { tenant, .. }
                if type_url.kind() == Kind::Other && !self.types.contains_key(type_url.as_str()) =>
            {
                let share = self.charge(|pools| &pools.types, Self::settle, tenant, limits.types);
                (Some(share.ok_or(StoreLimitError::Types(limits.types))?), None)
            }
            // The store of a track lives with the origin's, which is charged.
            Claim::Client { is_reserved, .. }
                if is_reserved || (parameter_view.as_whole().is_some() && is_of_charged(parameter_view)) =>
            {
                (None, None)
            }
            Claim::Client { tenant, .. } => {
                let limit = limits.parameter_sets;
                let share = self.charge(|pools| &pools.parameter_sets, Self::drop_unused, tenant, limit);
                (None, Some(share.ok_or(StoreLimitError::ParameterSets(limit))?))
            }
        };
        self.newest += 1;
        let answering = self.of(type_url).next().map(|of| Arc::clone(&of.answering)).unwrap_or_default();
        let store = Arc::new(make(self.newest, answering));
        let held = ChargedStore { store: Arc::clone(&store), of_types, _of_sets: of_sets };
        self.types.entry(type_url.as_str().into()).or_default().insert(parameter_view.clone(), held);
        Ok(store)
    }

    /// Takes a share of a pool, after a clean-up if need be.
    fn charge(
        &mut self,
        pool: fn(&Pools) -> &Arc<Pool>,
        clean_up: fn(&mut Self),
        tenant: Option<&Tenant>,
        limit: usize,
    ) -> Option<Share> {
        pool(&self.pools).take(tenant, 1, limit).or_else(|| {
            clean_up(self);
            pool(&self.pools).take(tenant, 1, limit)
        })
    }

    /// Drops unused stores without content. Ends the charge for types that the origin has.
    fn settle(&mut self) {
        self.drop_unused();
        self.types.retain(|_, stores| {
            for held in stores.values_mut() {
                let is_known = || held.store.snapshot().held_in_all().resources > 0;
                held.of_types.take_if(|_| is_known());
            }
            !is_left_over(stores.values())
        });
    }

    /// Drops the charged, unused and empty store of a type without a subscription upstream: all caches share
    /// the pool, so others need not wait until this one is full.
    pub(super) fn drop_type(&mut self, type_url: &TypeUrl) {
        let is_charged = |held: &ChargedStore| held.of_types.is_some();
        let stores = self.types.get(type_url.as_str());
        if stores.is_some_and(|stores| stores.values().all(is_charged) && is_left_over(stores.values())) {
            self.types.remove(type_url.as_str());
        }
    }

    /// Drops stores of parameters that nobody uses and that are not subscribed to upstream.
    pub(super) fn drop_unused(&mut self) {
        for stores in self.types.values_mut() {
            let sources = stores.iter().filter(|(_, held)| holds(&held.store));
            let sources: Vec<Parameters> =
                sources.filter_map(|(view, _)| view.as_uniform()).cloned().collect();
            stores.retain(|parameter_view, held| {
                let of = &held.store;
                match (parameter_view.track(), parameter_view.as_whole()) {
                    // It differs from the origin's content, and that would be lost.
                    (Track::Canary(_) | Track::Stable, Some(parameters)) => {
                        parameters.is_empty() || sources.contains(parameters) || holds(of)
                    }
                    // Views filled from the store without parameters may wait for it.
                    (Track::Origin, Some(parameters)) => parameters.is_empty() || holds(of),
                    // Leftovers of clients with mixed parameters serve nobody.
                    (_, None) => is_used(of),
                }
            });
        }
        self.types.retain(|_, stores| !stores.is_empty());
    }

    /// Stores of a type.
    pub(super) fn of(&self, type_url: &TypeUrl) -> impl Iterator<Item = &Arc<TypeCache>> {
        self.types.get(type_url.as_str()).into_iter().flat_map(HashMap::values).map(|held| &held.store)
    }

    /// One store of each type, which all share the time since when the origin answers.
    pub(super) fn answering(&self) -> impl Iterator<Item = (&TypeUrl, &AnsweringSince)> {
        let any = self.types.values().filter_map(|stores| stores.values().next());
        any.map(|held| (&held.store.type_url, &*held.store.answering))
    }

    /// Whether any store is filled from others: mixed parameters, or a limited scope.
    pub(super) fn has_mixed(&self) -> bool {
        self.types.values().flat_map(HashMap::keys).any(|view| view.as_uniform().is_none())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<TypeCache>> {
        self.types.values().flat_map(HashMap::values).map(|held| &held.store)
    }
}

/// Whether a type has only its store without parameters, unused and empty.
fn is_left_over<'s>(mut stores: impl Iterator<Item = &'s ChargedStore>) -> bool {
    let is_plain = |held: &ChargedStore| held.store.parameter_view == ParameterView::default();
    let first = stores.next().filter(|_| stores.next().is_none());
    first.is_some_and(|held| is_plain(held) && !holds(&held.store))
}

/// Whether a store is used, or has content.
fn holds(of: &Arc<TypeCache>) -> bool {
    is_used(of) || of.snapshot().holds_anything()
}

/// Whether another charge covers this store. Without parameters none is needed; the origin's store covers its
/// tracks.
fn is_of_charged(parameter_view: &ParameterView) -> bool {
    *parameter_view == ParameterView::default() || parameter_view.track() != Track::Origin
}

/// Whether somebody holds it, subscribes to it, or did and the upstream does not know yet.
fn is_used(of: &Arc<TypeCache>) -> bool {
    Arc::strong_count(of) > 1 || !of.cohort_index.lock().is_idle()
}
