//! Updates, each made once and shared by all clients at one position.
//!
//! A cohort keeps its small updates itself, the others live in a byte-weighed cache; both are bounded, and what is
//! not found is made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::budget::Budget;
use super::cohort::Cohort;
use super::diff::{Diff, Source};
use super::frame::EncodeCount;
use super::mark::Mark;
use super::position::{FellBehindError, Position};
use super::update::{OwedItems, Update};
use super::update_cache::{ByteCache, CohortId, UpdateKey};
use crate::quota::ByteQuota;

/// Makes updates and shares them.
#[derive(Debug)]
pub struct Encoder {
    /// Number of the cache among those that share the byte cache.
    cache: u64,
    updates: ByteCache,
    /// Bytes that cohorts may keep outside of the byte cache.
    small: Arc<ByteQuota>,
    encodes: Arc<EncodeCount>,
    /// Where an answer is cut. One that is being sent in parts goes on from where it stands, whatever this is then.
    response_bytes: AtomicUsize,
}

impl Encoder {
    pub(super) fn new(budget: &Budget, response_bytes: usize) -> Self {
        Self {
            cache: budget.number(),
            updates: budget.updates.clone(),
            small: Arc::clone(&budget.small),
            encodes: Arc::clone(&budget.encodes),
            response_bytes: AtomicUsize::new(response_bytes),
        }
    }

    /// Number of the cache whose updates these are.
    pub(super) const fn cache(&self) -> u64 {
        self.cache
    }

    pub(super) fn set_response_bytes(&self, response_bytes: usize) {
        self.response_bytes.store(response_bytes, Ordering::Relaxed);
    }

    /// How many frames were encoded, for all caches of a budget.
    pub fn encodes(&self) -> u64 {
        self.encodes.get()
    }

    /// Where encoded frames are counted.
    pub fn count(&self) -> &EncodeCount {
        &self.encodes
    }

    /// Next update of a client of this cohort.
    pub(super) fn update<'s>(
        &self,
        source: impl Fn() -> Source<'s>,
        cohort: &Cohort,
        position: &Position,
        now: Instant,
    ) -> Result<Arc<Update>, FellBehindError> {
        let mark = cohort.newest_mark();
        let touched = mark.generation;
        if !cohort.is_shared() {
            return Ok(Arc::new(self.make(&source, cohort, position, mark, &OwedItems::default(), now)?));
        }
        let id = CohortId { cache: self.cache, cohort: cohort.id };
        if let Some(found) = cohort.update_cache().find(touched, position, id, &self.updates, now) {
            return Ok(found);
        }
        // Made without the lock. If it is made twice meanwhile, the one that was put first is used.
        let made = Arc::new(self.make(&source, cohort, position, mark, &OwedItems::default(), now)?);
        let key = UpdateKey { cohort: id, touched, position: position.clone() };
        Ok(cohort.update_cache().put(key, made, &self.small, &self.updates, now))
    }

    /// Drops the updates of a cohort that is over.
    pub(super) fn forget(&self, cohort: &Cohort) {
        cohort.update_cache().clear(&self.updates);
    }

    /// Next update of a client that is owed something of its own.
    pub(super) fn own_update<'s>(
        &self,
        source: impl Fn() -> Source<'s>,
        cohort: &Cohort,
        position: &Position,
        owed: &OwedItems,
        now: Instant,
    ) -> Result<Update, FellBehindError> {
        self.make(&source, cohort, position, cohort.newest_mark(), owed, now)
    }

    fn make<'s>(
        &self,
        source: &impl Fn() -> Source<'s>,
        cohort: &Cohort,
        position: &Position,
        mark: Mark,
        owed: &OwedItems,
        now: Instant,
    ) -> Result<Update, FellBehindError> {
        let response_bytes = self.response_bytes.load(Ordering::Relaxed);
        // Loaded after the mark was read: it holds everything that was marked.
        let diff = Diff::new(source(), cohort, position, mark.generation, response_bytes, now)?;
        let mut update = diff.run(owed);
        update.changes = (update.to >= mark.generation).then_some(mark.changes);
        Ok(update)
    }
}

impl Drop for Encoder {
    /// The byte cache lets go of what was dropped at its next use, which may be late: a released group gives its memory back now.
    fn drop(&mut self) {
        self.updates.run_pending_tasks();
    }
}
