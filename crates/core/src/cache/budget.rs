//! Memory that the caches of all node groups share.
//!
//! Owns the bytes of shared encodings, the pools of stores and the history: these are bounds of the process, however many caches there are.
//! Knows nothing of what a cache holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moka::policy::EvictionPolicy;
use parking_lot::Mutex;

use super::frame::EncodeCount;
use super::history::History;
use super::interner::Interner;
use super::update::Update;
use super::update_cache::ByteCache;
use crate::pool::Pool;
use crate::quota::ByteQuota;

/// How much the cache may keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of shared encodings.
    pub encoded_bytes: u64,
    /// Removed names remembered per type.
    pub tombstones: usize,
    /// Answers that may be sent in parts are cut when they reach this many bytes (R-Up-23).
    pub response_bytes: usize,
    /// Types of which the origin has sent no resource, other than those of the protocol: so many may be asked for.
    pub types: usize,
    /// Sets of dynamic parameters that clients choose, counted per type.
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

/// Pools that stores are charged to, those of all caches.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pub(super) types: Pool,
    pub(super) parameter_sets: Pool,
}

/// Memory that caches share.
#[derive(Debug)]
pub struct Budget {
    pub(super) updates: ByteCache,
    /// Bytes that cohorts may keep outside of the byte cache.
    pub(super) small: Arc<ByteQuota>,
    pub(super) encodes: Arc<EncodeCount>,
    pub(super) pools: Arc<Mutex<Pools>>,
    /// `None` where none is kept.
    pub(super) history: Option<Arc<History>>,
    interner: Arc<Interner>,
    caches: AtomicU64,
}

impl Budget {
    /// Creates a budget of this many bytes of shared encodings.
    pub fn new(encoded_bytes: u64) -> Self {
        let small = encoded_bytes / 4;
        let updates = moka::sync::Cache::builder()
            .max_capacity(encoded_bytes - small)
            .weigher(|_, update: &Arc<Update>| update.weight())
            .eviction_policy(EvictionPolicy::lru())
            .build_with_hasher(foldhash::fast::RandomState::default());
        Self {
            updates,
            small: Arc::new(ByteQuota::new(small)),
            encodes: Arc::default(),
            pools: Arc::default(),
            history: None,
            interner: Arc::default(),
            caches: AtomicU64::new(0),
        }
    }

    /// The budget, with so many bytes for the last changes of resources; 0 for none.
    #[must_use]
    pub fn with_history(mut self, bytes: u64) -> Self {
        self.history = (bytes > 0).then(|| Arc::new(History::new(bytes)));
        self
    }

    /// Table of the resources that a new cache shares with others; `None` for the first cache, which may stay alone.
    pub(super) fn interner(&self) -> Option<Arc<Interner>> {
        (self.caches.load(Ordering::Relaxed) > 0).then(|| Arc::clone(&self.interner))
    }

    /// Number of a new cache, which no other has.
    pub(super) fn number(&self) -> u64 {
        self.caches.fetch_add(1, Ordering::Relaxed)
    }
}
