//! Changes of the control plane in the cache, for tracing to the clients.
//!
//! Owns the bound on concurrent ones. Knows nothing of clients.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::cache::{Cache, Generation, Snapshot, TypeCache};
use crate::resource::TypeUrl;
use crate::telemetry;

/// Response of the control plane that changed resources. It keeps only the resulting states alive, no store.
#[derive(Debug)]
pub struct StoredChange {
    pub cache: u64,
    pub type_url: TypeUrl,
    /// Newest generation of the cache before it.
    pub since: Generation,
    /// Stores of the type that it changed: one for each set of dynamic parameters.
    pub stores: Vec<StoredState>,
    /// Arrival of the response.
    pub arrived: Instant,
    /// Time at which it was in the cache, and its clients were woken.
    pub stored: Instant,
    _permit: OwnedSemaphorePermit,
}

/// State of a store after a change.
#[derive(Debug)]
pub struct StoredState {
    pub of: Weak<TypeCache>,
    /// Its number in the cache.
    pub index: u32,
    pub snapshot: Arc<Snapshot>,
}

#[derive(Clone)]
pub struct ChangeSink {
    permits: Arc<Semaphore>,
    take: Arc<dyn Fn(StoredChange) + Send + Sync>,
}

impl ChangeSink {
    /// Creates a sink that hands changes to `take`, which must not block. While `max` of them are held,
    /// others are dropped.
    pub fn new(max: usize, take: impl Fn(StoredChange) + Send + Sync + 'static) -> Self {
        Self { permits: Arc::new(Semaphore::new(max)), take: Arc::new(take) }
    }

    /// Hands over the changes of one response, those after a generation of a cache.
    pub(super) fn offer(&self, cache: &Cache, since: Generation, arrived: Instant, stored: Instant) {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return telemetry::change_not_followed();
        };
        let changed = |of: Arc<TypeCache>| {
            let snapshot = of.snapshot();
            (snapshot.generation() > since).then_some((of, snapshot))
        };
        let changed: Vec<_> = cache.types().into_iter().filter_map(changed).collect();
        // After clusters, which sort first, endpoints may be repeated.
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
