//! Changes of the control plane that are in the cache, for those that follow them to the clients.
//!
//! Owns the bound on how many are followed at a time. Knows nothing of clients.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::cache::{Cache, Generation, Snapshot, TypeCache};
use crate::resource::TypeUrl;
use crate::telemetry;

/// Response of the control plane that changed resources. It keeps no store alive, but the states that the response led to.
#[derive(Debug)]
pub struct StoredChange {
    /// Number of the cache.
    pub cache: u64,
    /// Type of the resources.
    pub type_url: TypeUrl,
    /// Newest generation of the cache before it.
    pub since: Generation,
    /// Stores of the type that it changed: one for each set of dynamic parameters.
    pub stores: Vec<StoredState>,
    /// When the response had arrived.
    pub arrived: Instant,
    /// When it was in the cache, and the clients that it concerns were woken.
    pub stored: Instant,
    _permit: OwnedSemaphorePermit,
}

/// State to which a change led a store.
#[derive(Debug)]
pub struct StoredState {
    /// The store.
    pub of: Weak<TypeCache>,
    /// Its number in the cache.
    pub index: u32,
    /// Its state after the change.
    pub snapshot: Arc<Snapshot>,
}

/// Receiver of changes.
#[derive(Clone)]
pub struct ChangeSink {
    permits: Arc<Semaphore>,
    take: Arc<dyn Fn(StoredChange) + Send + Sync>,
}

impl ChangeSink {
    /// Creates a sink that hands changes to `take`, which must not block. While `max` of them are held, others are dropped.
    pub fn new(max: usize, take: impl Fn(StoredChange) + Send + Sync + 'static) -> Self {
        Self { permits: Arc::new(Semaphore::new(max)), take: Arc::new(take) }
    }

    /// Hands over the changes of a cache after a generation, all of which came with one response.
    pub(super) fn offer(&self, cache: &Cache, since: Generation, arrived: Instant, stored: Instant) {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return telemetry::change_not_followed();
        };
        let changed = |of: Arc<TypeCache>| {
            let snapshot = of.snapshot();
            (snapshot.generation() > since).then_some((of, snapshot))
        };
        let changed: Vec<_> = cache.types().into_iter().filter_map(changed).collect();
        // Behind clusters, which come first in this order, endpoints may be repeated.
        let Some(type_url) = changed.iter().map(|(of, _)| of.type_url()).min().cloned() else { return };
        let is_of_type = |(of, _): &(Arc<TypeCache>, _)| *of.type_url() == type_url;
        let state = |(of, snapshot): (Arc<TypeCache>, _)| StoredState {
            index: of.index(),
            of: Arc::downgrade(&of),
            snapshot,
        };
        let stores = changed.into_iter().filter(is_of_type).map(state).collect();
        let cache = cache.number();
        (self.take)(StoredChange { cache, type_url, since, stores, arrived, stored, _permit: permit });
    }
}

impl fmt::Debug for ChangeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeSink").field("permits", &self.permits).finish_non_exhaustive()
    }
}
