//! Memory shared by the caches of all node groups.
//!
//! Owns shared encodings, pools of stores, the history. Each cache keeps the other [`Limits`]. Knows neither types
//! nor groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::change_history::History;
use super::segments::Interner;
use super::update_cache::KeptUpdates;
use crate::pool::Pool;

/// Limits of the cache.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub encoded_bytes: u64,
    /// Tombstones per type.
    pub tombstones: usize,
    /// Size in bytes at which an answer that may come in parts is cut (R-Up-23).
    pub response_bytes: usize,
    /// Types outside the protocol of which the origin has sent no resource.
    pub types: usize,
    /// Views by dynamic parameters that clients choose, over all types and node groups.
    pub parameter_sets: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            encoded_bytes: 256 << 20,
            tombstones: 10_000,
            response_bytes: 1 << 20,
            types: 1024,
            parameter_sets: 4096,
        }
    }
}

/// Stores that clients made.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    pub(super) types: Arc<Pool>,
    pub(super) parameter_sets: Arc<Pool>,
}

/// Memory that caches share.
#[derive(Debug)]
pub struct Budget {
    pub(super) updates: Arc<KeptUpdates>,
    /// Number of encoded frames.
    pub(super) encodes: Arc<AtomicU64>,
    pub(super) pools: Pools,
    /// `None` if no history is kept.
    pub(super) history: Option<Arc<History>>,
    interner: Arc<Interner>,
    caches: AtomicU64,
}

impl Budget {
    /// Creates a budget with this many bytes of shared encodings.
    pub fn new(encoded_bytes: u64) -> Self {
        Self {
            updates: KeptUpdates::new(encoded_bytes),
            encodes: Arc::default(),
            pools: Pools::default(),
            history: None,
            interner: Arc::default(),
            caches: AtomicU64::new(0),
        }
    }

    /// Adds a history of this many bytes; 0 for none.
    #[must_use]
    pub fn with_history(mut self, bytes: u64) -> Self {
        self.history = (bytes > 0).then(|| Arc::new(History::new(bytes)));
        self
    }

    /// Table of shared resources; `None` for the first cache, which may stay alone.
    pub(super) fn interner(&self) -> Option<Arc<Interner>> {
        (self.caches.load(Ordering::Relaxed) > 0).then(|| Arc::clone(&self.interner))
    }

    pub(super) fn number(&self) -> u64 {
        self.caches.fetch_add(1, Ordering::Relaxed)
    }
}
