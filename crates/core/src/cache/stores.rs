//! The stores of a cache, by type and parameter view.
//!
//! Owns finding, making and dropping them. Knows nothing of their content.
//!
//! A type has one store without parameters, and one per set. Stores for mixed parameters (R-DP-10), and for
//! limited scopes, are filled from these.
//!
//! Two pools bound the stores that clients can create: types without a resource of the origin, and sets of
//! parameters that clients choose. The first peer pays until the store is dropped, or, for a type, until the
//! origin sends a resource. Nobody pays for types of the protocol, or for views that follow from the operator's
//! rules.
//!
//! Invariant: the pools bound the stores of all their caches, whichever clients ask. A store that a client may
//! join is not dropped.

use std::sync::Arc;

use foldhash::HashMap;

use super::budget::Pools;
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

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) types: usize,
    pub(super) parameter_sets: usize,
}

#[derive(Debug)]
struct ChargedStore {
    store: Arc<TypeCache>,
    charge: Charge,
}

#[derive(Debug)]
enum Charge {
    Nobody,
    Type(#[expect(dead_code, reason = "it is given back on drop")] Share),
    Parameters(#[expect(dead_code, reason = "it is given back on drop")] Share),
}

/// New stores between clean-ups: stores that nobody pays for fill no pool.
const TIDY: u32 = 256;

#[derive(Debug)]
pub(super) struct Stores {
    plain: HashMap<Box<str>, ChargedStore>,
    views: HashMap<Box<str>, HashMap<ParameterView, ChargedStore>>,
    pools: Pools,
    newest: u32,
}

impl Stores {
    pub(super) fn new(pools: Pools) -> Self {
        Self { pools, plain: HashMap::default(), views: HashMap::default(), newest: 0 }
    }

    pub(super) fn find(&self, type_url: &TypeUrl, parameter_view: &ParameterView) -> Option<&Arc<TypeCache>> {
        let held = if *parameter_view == ParameterView::default() {
            self.plain.get(type_url.as_str())
        } else {
            self.views.get(type_url.as_str())?.get(parameter_view)
        };
        held.map(|held| &held.store)
    }

    /// Finds a store, or makes it with the next number.
    pub(super) fn enter(
        &mut self,
        type_url: &TypeUrl,
        parameter_view: &ParameterView,
        claim: Claim<'_>,
        bounds: Bounds,
        make: impl FnOnce(u32, Arc<AnsweringSince>) -> TypeCache,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        if let Some(found) = self.find(type_url, parameter_view) {
            return Ok(Arc::clone(found));
        }
        if self.newest % TIDY == TIDY - 1 {
            self.settle();
        }
        let charge = match claim {
            Claim::Origin => Charge::Nobody,
            // Types of the protocol always have room.
            Claim::Client { tenant, .. }
                if type_url.kind() == Kind::Other && self.any(type_url).is_none() =>
            {
                let share = self.charge(|pools| &pools.types, Self::settle, tenant, bounds.types);
                share.map(Charge::Type).ok_or(StoreLimitError::Types(bounds.types))?
            }
            // The store of a track lives with the origin's, which is charged.
            Claim::Client { is_reserved, .. }
                if is_reserved || (parameter_view.as_whole().is_some() && is_of_charged(parameter_view)) =>
            {
                Charge::Nobody
            }
            Claim::Client { tenant, .. } => {
                let limit = bounds.parameter_sets;
                let share = self.charge(|pools| &pools.parameter_sets, Self::drop_unused, tenant, limit);
                share.map(Charge::Parameters).ok_or(StoreLimitError::ParameterSets(limit))?
            }
        };
        self.newest += 1;
        let answering = self.any(type_url).map(|of| Arc::clone(&of.answering)).unwrap_or_default();
        let store = Arc::new(make(self.newest, answering));
        let held = ChargedStore { store: Arc::clone(&store), charge };
        let url: Box<str> = type_url.as_str().into();
        if *parameter_view == ParameterView::default() {
            self.plain.insert(url, held);
        } else {
            self.views.entry(url).or_default().insert(parameter_view.clone(), held);
        }
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
        let Self { plain, views, .. } = self;
        let is_known = |held: &ChargedStore| held.store.snapshot().has_resources();
        for held in views.values_mut().flat_map(HashMap::values_mut) {
            if matches!(held.charge, Charge::Type(_)) && is_known(held) {
                held.charge = Charge::Nobody;
            }
        }
        plain.retain(|type_url, held| {
            // Views filled from it may wait for it.
            let stays = is_used(&held.store)
                || held.store.snapshot().holds_anything()
                || views.contains_key(type_url);
            if is_known(held) {
                held.charge = Charge::Nobody;
            }
            stays
        });
    }

    /// Drops the charged, unused and empty store of a type without a subscription upstream: all caches share
    /// the pool, so others need not wait until this one is full.
    pub(super) fn drop_type(&mut self, type_url: &TypeUrl) {
        let type_url = type_url.as_str();
        let Some(held) = self.plain.get(type_url) else { return };
        let is_source = self.views.contains_key(type_url);
        if matches!(held.charge, Charge::Type(_))
            && !is_source
            && !is_used(&held.store)
            && !held.store.snapshot().holds_anything()
        {
            self.plain.remove(type_url);
        }
    }

    /// Drops stores of parameters that nobody uses and that are not subscribed to upstream.
    pub(super) fn drop_unused(&mut self) {
        for stores in self.views.values_mut() {
            let holds = |of: &Arc<TypeCache>| is_used(of) || of.snapshot().holds_anything();
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
                    (Track::Origin, Some(_)) => holds(of),
                    // Leftovers of clients with mixed parameters serve nobody.
                    (_, None) => is_used(of),
                }
            });
        }
        self.views.retain(|_, stores| !stores.is_empty());
    }

    /// Stores of a type with a view of their own.
    pub(super) fn views_of(&self, type_url: &TypeUrl) -> impl Iterator<Item = &Arc<TypeCache>> {
        self.views.get(type_url.as_str()).into_iter().flat_map(HashMap::values).map(|held| &held.store)
    }

    pub(super) fn any(&self, type_url: &TypeUrl) -> Option<&Arc<TypeCache>> {
        let plain = self.plain.get(type_url.as_str()).map(|held| &held.store);
        plain.or_else(|| self.views_of(type_url).next())
    }

    pub(super) fn answering(&self) -> impl Iterator<Item = (&TypeUrl, &AnsweringSince)> {
        let others = self.views.iter().filter(|(type_url, _)| !self.plain.contains_key(&**type_url));
        let others = others.filter_map(|(_, stores)| stores.values().next());
        self.plain.values().chain(others).map(|held| (&held.store.type_url, &*held.store.answering))
    }

    /// Whether any store is filled from others: mixed parameters, or a limited scope.
    pub(super) fn has_mixed(&self) -> bool {
        self.views
            .values()
            .flat_map(HashMap::keys)
            .any(|parameter_view| parameter_view.as_uniform().is_none())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<TypeCache>> {
        let views = self.views.values().flat_map(HashMap::values);
        self.plain.values().chain(views).map(|held| &held.store)
    }
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
