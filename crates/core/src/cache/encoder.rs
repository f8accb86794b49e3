//! Updates, each made once and shared by all clients at one position.
//!
//! A cohort keeps small updates; the others are in a byte-weighed cache. Both are bounded: a missing update is
//! made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::budget::Budget;
use super::cohort::Cohort;
use super::diff::{Diff, Source};
use super::generation::Mark;
use super::grpc_frame::EncodeCount;
use super::position::{FellBehindError, Position};
use super::update::{OwedItems, Update};
use super::update_cache::{ByteCache, ByteQuota, CohortId, UpdateKey};

#[derive(Debug)]
pub struct Encoder {
    /// Number of its cache among those that share the byte cache.
    cache: u64,
    updates: ByteCache,
    /// Bytes that cohorts may keep outside the byte cache.
    small: Arc<ByteQuota>,
    encodes: Arc<EncodeCount>,
    /// Size at which an answer is cut. An answer in parts goes on when this changes.
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

    pub(super) const fn cache(&self) -> u64 {
        self.cache
    }

    pub(super) fn set_response_bytes(&self, response_bytes: usize) {
        self.response_bytes.store(response_bytes, Ordering::Relaxed);
    }

    /// Number of encoded frames over all caches of a budget.
    pub fn encodes(&self) -> u64 {
        self.encodes.get()
    }

    pub fn count(&self) -> &EncodeCount {
        &self.encodes
    }

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
        // Made without the lock: of two, the first one kept is used.
        let made = Arc::new(self.make(&source, cohort, position, mark, &OwedItems::default(), now)?);
        let key = UpdateKey { cohort: id, touched, position: position.clone() };
        Ok(cohort.update_cache().put(key, made, &self.small, &self.updates, now))
    }

    pub(super) fn forget(&self, cohort: &Cohort) {
        cohort.update_cache().clear(&self.updates);
    }

    /// Next update of a client that is owed items of its own.
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
        // Loaded after the mark was read: it has everything marked.
        let diff = Diff::new(source(), cohort, position, mark.generation, response_bytes, now)?;
        let mut update = diff.run(owed);
        update.changes = (update.to >= mark.generation).then_some(mark.changes);
        Ok(update)
    }
}

impl Drop for Encoder {
    /// Otherwise the byte cache would free the updates of a released group only at its next use.
    fn drop(&mut self) {
        self.updates.run_pending_tasks();
    }
}
