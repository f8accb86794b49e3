//! The events of a world, in the order in which they happen.
//!
//! Owns the order: by time, and of one time by the order in which they were put in. Knows nothing of what they mean.

use std::collections::BTreeMap;
use std::time::Instant;

/// Events by time.
pub(crate) struct Queue<T> {
    entries: BTreeMap<(Instant, u64), T>,
    sequence: u64,
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: BTreeMap::new(), sequence: 0 }
    }

    pub(crate) fn put(&mut self, at: Instant, event: T) {
        self.sequence += 1;
        self.entries.insert((at, self.sequence), event);
    }

    /// When the first event happens.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first event, if it has happened by now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<T> {
        self.entries.first_entry().filter(|first| first.key().0 <= now).map(|first| first.remove())
    }
}
