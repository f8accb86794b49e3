//! Newest updates of a cohort.
//!
//! Nearly all members are at one of a few positions, so a short list suffices. It owns small updates; large ones
//! are in the byte cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Generation;
use super::position::Position;
use super::update::Update;

/// Updates up to this weight in bytes skip the byte cache: for small cohorts it costs more than it saves.
const SMALL: u32 = 16 << 10;
/// Positions searched one by one.
const NEAR: usize = 4;

/// The byte cache. Superseded updates leave it at once, so eviction takes the oldest of the others.
pub(super) type ByteCache = moka::sync::Cache<UpdateKey, Arc<Update>, foldhash::fast::RandomState>;

/// A cohort among those of all caches with this byte cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CohortId {
    pub(super) cache: u64,
    pub(super) cohort: u64,
}

/// Key of an update. `touched` stands for the state: nothing that concerns the cohort changed since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UpdateKey {
    pub(super) cohort: CohortId,
    pub(super) touched: Generation,
    pub(super) position: Position,
}

/// Updates of one cohort at one `touched`; superseded ones are dropped at once.
#[derive(Debug, Default)]
pub(super) struct UpdateCache {
    touched: Generation,
    small: Vec<(Position, Arc<Update>, ByteQuotaGuard)>,
    /// In the byte cache.
    large: Vec<UpdateKey>,
}

/// Bytes for small updates of all cohorts. Each encoding takes of them, so there is no lock.
#[derive(Debug)]
pub(super) struct ByteQuota {
    left: AtomicU64,
}

impl ByteQuota {
    pub(super) const fn new(bytes: u64) -> Self {
        Self { left: AtomicU64::new(bytes) }
    }

    /// Takes bytes until the guard is dropped; `None` if fewer are left.
    fn take(self: &Arc<Self>, bytes: u32) -> Option<ByteQuotaGuard> {
        let less = |left: u64| left.checked_sub(bytes.into());
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(ByteQuotaGuard { of: Arc::clone(self), bytes })
    }
}

/// Bytes of a [`ByteQuota`]; given back on drop.
#[derive(Debug)]
struct ByteQuotaGuard {
    of: Arc<ByteQuota>,
    bytes: u32,
}

impl Drop for ByteQuotaGuard {
    fn drop(&mut self) {
        self.of.left.fetch_add(self.bytes.into(), Ordering::Relaxed);
    }
}

impl UpdateCache {
    pub(super) fn find(
        &self,
        touched: Generation,
        position: &Position,
        cohort: CohortId,
        cache: &ByteCache,
        now: Instant,
    ) -> Option<Arc<Update>> {
        if self.touched != touched {
            return None;
        }
        let found = match self.small.iter().find(|(other, ..)| other == position) {
            Some((_, update, _)) => Some(Arc::clone(update)),
            None if self.large.is_empty() => None,
            None => cache.get(&UpdateKey { cohort, touched, position: position.clone() }),
        };
        found.filter(|update| update.has_current_ttls(now))
    }

    /// Removes the updates of an ended cohort from the byte cache.
    pub(super) fn clear(&mut self, cache: &ByteCache) {
        self.large.drain(..).for_each(|key| cache.invalidate(&key));
    }

    /// Keeps and returns an update, or returns the one put there meanwhile.
    pub(super) fn put(
        &mut self,
        key: UpdateKey,
        made: Arc<Update>,
        quota: &Arc<ByteQuota>,
        cache: &ByteCache,
        now: Instant,
    ) -> Arc<Update> {
        let UpdateKey { cohort, touched, ref position } = key;
        if self.touched > touched {
            return made;
        }
        if self.touched < touched {
            self.small.clear();
            self.clear(cache);
            self.touched = touched;
        }
        if let Some(found) = self.find(touched, position, cohort, cache, now) {
            return found;
        }
        self.small.retain(|(other, ..)| other != position);
        let is_small = self.small.len() < NEAR && made.weight() <= SMALL;
        if let Some(guard) = if is_small { quota.take(made.weight()) } else { None } {
            self.small.reserve_exact(1);
            self.small.push((position.clone(), Arc::clone(&made), guard));
            return made;
        }
        cache.insert(key.clone(), Arc::clone(&made));
        // A replacement of one with outdated TTLs is listed already.
        if !made.has_ttls() || !self.large.contains(&key) {
            self.large.push(key);
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let quota = Arc::new(ByteQuota::new(10));
        let six = quota.take(6);
        assert!(six.is_some() && quota.take(5).is_none());
        let four = quota.take(4);
        assert!(four.is_some() && quota.take(1).is_none());
        drop(six);
        assert!(quota.take(6).is_some());
    }
}
