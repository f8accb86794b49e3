//! Where a cohort finds its newest updates.
//!
//! Nearly all members of a cohort stand at one of a few places, so that a short list is all it takes. Small updates
//! are kept by the list; of large ones it remembers which there are, and the byte cache decides how long they live.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::Generation;
use super::position::Position;
use super::update::Update;
use crate::quota::{ByteQuota, ByteQuotaGuard};

/// Updates up to this weight need not go through the byte cache: of a cohort of few that would cost more than
/// what it shares.
const SMALL: u32 = 16 << 10;
/// So many places are looked at one by one.
const NEAR: usize = 4;

/// The byte cache. A cohort's superseded updates leave it at once, so that what is oldest in it is what goes first.
pub(super) type ByteCache = moka::sync::Cache<UpdateKey, Arc<Update>, foldhash::fast::RandomState>;

/// A cohort among those of all caches that share the byte cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CohortId {
    pub(super) cache: u64,
    pub(super) cohort: u64,
}

/// Under what an update is in the byte cache. `touched` stands for the state: nothing in it that concerns the cohort
/// changed since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UpdateKey {
    pub(super) cohort: CohortId,
    pub(super) touched: Generation,
    pub(super) position: Position,
}

/// The updates of one cohort, all of one `touched`: superseded ones go at once.
#[derive(Debug, Default)]
pub(super) struct UpdateCache {
    touched: Generation,
    near: Vec<(Position, CachedUpdate)>,
    /// Keys of updates in the byte cache.
    cached: Vec<UpdateKey>,
}

#[derive(Debug)]
enum CachedUpdate {
    Small { update: Arc<Update>, _kept: ByteQuotaGuard },
    Large(Weak<Update>),
}

impl UpdateCache {
    /// The update that leads on from `position`, if there is one.
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
        let found = match self.near.iter().find(|(other, _)| other == position) {
            Some((_, CachedUpdate::Small { update, .. })) => Some(Arc::clone(update)),
            Some((_, CachedUpdate::Large(update))) => update.upgrade(),
            None if self.near.len() < NEAR => None,
            None => cache.get(&UpdateKey { cohort, touched, position: position.clone() }),
        };
        found.filter(|update| update.is_true(now))
    }

    /// Takes all updates out of the byte cache, for a cohort that is over: nobody finds them any more.
    pub(super) fn clear(&mut self, cache: &ByteCache) {
        self.cached.drain(..).for_each(|key| cache.invalidate(&key));
    }

    /// Keeps an update and returns it, or the one that somebody else put there meanwhile.
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
            self.near.clear();
            self.clear(cache);
            self.touched = touched;
        }
        if let Some(found) = self.find(touched, position, cohort, cache, now) {
            return found;
        }
        self.near.retain(|(other, _)| other != position);
        let is_near = self.near.len() < NEAR;
        let kept = if is_near && made.weight() <= SMALL { quota.take(made.weight()) } else { None };
        if let Some(kept) = kept {
            self.near.reserve_exact(1);
            self.near
                .push((position.clone(), CachedUpdate::Small { update: Arc::clone(&made), _kept: kept }));
            return made;
        }
        if is_near {
            self.near.push((position.clone(), CachedUpdate::Large(Arc::downgrade(&made))));
        }
        cache.insert(key.clone(), Arc::clone(&made));
        // One in whose place this comes, because its times are no longer true, is listed already.
        if !made.tells_times() || !self.cached.contains(&key) {
            self.cached.push(key);
        }
        made
    }
}
