//! Updates, made once for all who stand at the same place and shared through a byte-weighed cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::registry::Cohort;
use super::scan::Scan;
use super::span::Span;
use super::update::{Owed, Update};
use super::{Generation, TypeCache};

/// Under what an update is shared. `touched` stands for the state: nothing in it that concerns the cohort changed
/// since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UpdateKey {
    type_index: u32,
    cohort: u64,
    touched: Generation,
    span: Span,
}

/// Makes updates and shares them.
#[derive(Debug)]
pub struct Encoder {
    updates: moka::sync::Cache<UpdateKey, Arc<Update>>,
    pub(super) encodes: AtomicU64,
    response_bytes: usize,
}

impl Encoder {
    pub(super) fn new(budget: u64, response_bytes: usize) -> Self {
        let updates = moka::sync::Cache::builder()
            .max_capacity(budget)
            .weigher(|_, update: &Arc<Update>| update.weight())
            .build();
        Self { updates, encodes: AtomicU64::new(0), response_bytes }
    }

    /// How many frames were encoded.
    pub fn encodes(&self) -> u64 {
        self.encodes.load(Ordering::Relaxed)
    }

    /// What a client of this cohort has to be told next.
    pub fn update(&self, of: &TypeCache, cohort: &Cohort, span: &Span) -> Result<Arc<Update>, FellBehind> {
        let touched = cohort.touched();
        if !cohort.is_shared() {
            return Ok(Arc::new(self.make(of, cohort, span, touched, &Owed::default())?));
        }
        let key = UpdateKey { type_index: of.index, cohort: cohort.id, touched, span: span.clone() };
        if let Some(found) = self.updates.get(&key) {
            return Ok(found);
        }
        let made = self.make(of, cohort, span, touched, &Owed::default())?;
        let made = self.updates.entry(key.clone()).or_insert_with(|| Arc::new(made)).into_value();
        let mut live = cohort.live.lock();
        if live.0 < touched {
            live.1.drain(..).for_each(|old| self.updates.invalidate(&old));
            live.0 = touched;
        }
        if live.0 == touched {
            live.1.push(key);
        }
        Ok(made)
    }

    /// The same for a client that is owed something of its own.
    pub fn own_update(
        &self,
        of: &TypeCache,
        cohort: &Cohort,
        span: &Span,
        owed: &Owed,
    ) -> Result<Update, FellBehind> {
        self.make(of, cohort, span, cohort.touched(), owed)
    }

    fn make(
        &self,
        of: &TypeCache,
        cohort: &Cohort,
        span: &Span,
        touched: Generation,
        owed: &Owed,
    ) -> Result<Update, FellBehind> {
        Ok(Scan::new(of, cohort, span, touched, self.response_bytes)?.run(owed))
    }
}

/// The client stands before what the cache remembers of removals: it has to come again with its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too far behind: reconnect to resume from the versions held")]
pub struct FellBehind;
