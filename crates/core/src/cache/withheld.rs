//! Changes of guarded types that some clients were not sent yet, at one moment.
//!
//! Owns the answer to "does this client have what the control plane sent?". Compares the names that the rollout guard
//! has open, so it costs nothing without any.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashMap;

use super::Cache;
use super::cohort::Cohort;
use super::parameter_view::ParameterView;
use super::rollout::{Reach, StoreKey};
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use super::type_cache::TypeCache;
use crate::resource::Name;

#[derive(Debug, Default)]
pub struct Withheld {
    stores: Vec<OpenStore>,
    /// Whether a cohort is held back, by cache, store and cohort.
    cohorts: RefCell<HashMap<(u64, u32, u64), bool>>,
}

/// Store of the origin with changes that a track may not have.
#[derive(Debug)]
struct OpenStore {
    cache: u64,
    key: StoreKey,
    names: BTreeSet<Name>,
    origin: Arc<Snapshot>,
}

impl Withheld {
    /// Changes that are open in these caches.
    pub fn of<'c>(caches: impl IntoIterator<Item = &'c Cache>) -> Self {
        let mut stores = Vec::new();
        for cache in caches {
            for (key, names) in cache.rollout().into_iter().flat_map(|rollout| rollout.open_names()) {
                let origin = cache.find(&key.0, &ParameterView::uniform(key.1.clone()));
                let Some(origin) = origin.map(|of| of.snapshot()) else { continue };
                stores.push(OpenStore { cache: cache.number(), key, names, origin });
            }
        }
        Self { stores, cohorts: RefCell::default() }
    }

    /// Whether the clients of a cohort are kept on an earlier state of something that they ask for.
    pub fn holds_back(&self, of: &TypeCache, cohort: &Cohort) -> bool {
        let mut stores = self.of_store(of).peekable();
        if stores.peek().is_none() {
            return false;
        }
        let look = || {
            let (snapshot, subscription) = (of.snapshot(), cohort.subscription());
            let mut stores = stores;
            stores.any(|store| {
                store.asked(subscription).any(|name| store.is_ahead(of, &snapshot, subscription, name))
            })
        };
        let key = (of.cache(), of.index(), cohort.id());
        *self.cohorts.borrow_mut().entry(key).or_insert_with(look)
    }

    /// Whether clients with this subscription see an earlier state of a name in this `snapshot` of their store.
    pub fn holds(
        &self,
        of: &TypeCache,
        snapshot: &Snapshot,
        subscription: &Subscription,
        name: &Name,
    ) -> bool {
        let mut stores = self.of_store(of).filter(|store| store.names.contains(name));
        stores.any(|store| store.is_ahead(of, snapshot, subscription, name))
    }

    /// Names whose state in this store may not be the newest, each with the origin's snapshot.
    pub fn newest<'s>(&'s self, of: &TypeCache) -> impl Iterator<Item = (&'s Name, &'s Snapshot)> {
        let names = |store: &'s OpenStore| store.names.iter().map(move |name| (store, name));
        let seen = self.of_store(of).flat_map(names).filter(|(store, name)| store.is_seen(of, name));
        seen.map(|(store, name)| (name, &*store.origin))
    }

    fn of_store<'s>(&'s self, of: &TypeCache) -> impl Iterator<Item = &'s OpenStore> {
        self.stores.iter().filter(|store| store.cache == of.cache() && store.key.0 == *of.type_url())
    }
}

impl OpenStore {
    /// Open names that a subscription may ask for.
    fn asked<'s>(&'s self, subscription: &'s Subscription) -> impl Iterator<Item = &'s Name> {
        let is_wide = subscription.wildcard || subscription.has_collections();
        let all = is_wide.then_some(&self.names).into_iter().flatten();
        let few = (!is_wide).then(|| subscription.names()).into_iter().flatten();
        all.chain(few.filter(|name| self.names.contains(*name)))
    }

    /// Whether a store shows names of these parameters, and this one.
    fn is_seen(&self, of: &TypeCache, name: &Name) -> bool {
        let view = of.parameter_view();
        *view.of(name.as_str()) == self.key.1 && view.scope().allows(name.as_str())
    }

    /// Whether clients with this subscription see another state of a name in this `snapshot` of their store.
    fn is_ahead(
        &self,
        of: &TypeCache,
        snapshot: &Snapshot,
        subscription: &Subscription,
        name: &Name,
    ) -> bool {
        if !self.is_seen(of, name) {
            return false;
        }
        let (view, text) = (of.parameter_view(), name.as_str());
        let reach = Reach::of(name, snapshot, &self.origin);
        let by_name = subscription.contains(text) || subscription.covers(text);
        let as_member = subscription.wildcard && !view.is_beside_wildcard(text);
        (reach.by_name && by_name) || (reach.as_member && as_member)
    }
}
