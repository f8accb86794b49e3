//! The events of a world, in the order in which they happen.
//!
//! Owns the order: by time, and of one time by the order in which they were put in. Knows nothing of what they mean.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

struct Entry<T> {
    at: Instant,
    sequence: u64,
    event: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Events by time.
pub(crate) struct Queue<T> {
    entries: BinaryHeap<Reverse<Entry<T>>>,
    sequence: u64,
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: BinaryHeap::new(), sequence: 0 }
    }

    pub(crate) fn put(&mut self, at: Instant, event: T) {
        self.sequence += 1;
        self.entries.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }

    /// When the first event happens.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the first event, if it has happened by now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<T> {
        let is_due = self.next().is_some_and(|at| at <= now);
        is_due.then(|| self.entries.pop()).flatten().map(|Reverse(entry)| entry.event)
    }
}
