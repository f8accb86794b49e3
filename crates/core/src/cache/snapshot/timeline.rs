//! Entries in the order of their last change.
//!
//! The order is persistent, and cut into chunks. Its key is an entry's [position](Entry::position). Most inserts go to the end
//! and fill each chunk; a tree would be half empty, one per node group.

use std::ops::Bound;
use std::sync::Arc;

use super::super::Generation;
use super::super::entry::Entry;

/// Most entries of a chunk.
const FULL: usize = 128;
/// Neighbours with fewer entries together are joined.
const JOIN: usize = 48;

/// Entries by position. A clone costs a pointer per chunk.
#[derive(Clone, Debug, Default)]
pub(in crate::cache) struct Timeline {
    /// No chunk is empty.
    chunks: Vec<Arc<Vec<Arc<Entry>>>>,
    entries: usize,
}

impl Timeline {
    /// Inserts an entry, or replaces the one at its position.
    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        let position = entry.position();
        let at = self.chunk_of(position);
        if at == self.chunks.len() {
            self.entries += 1;
            match self.chunks.last_mut().filter(|last| last.len() < FULL) {
                Some(last) => {
                    let chunk = Arc::make_mut(last);
                    if chunk.len() == chunk.capacity() {
                        // Grow to the chunk size at most: the usual growth would leave half of a copy empty.
                        chunk.reserve_exact(chunk.len().clamp(1, FULL - chunk.len()));
                    }
                    chunk.push(entry);
                }
                None => self.chunks.push(Arc::new(vec![entry])),
            }
            return;
        }
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        match chunk.binary_search_by_key(&position, |entry| entry.position()) {
            Ok(found) => chunk[found] = entry,
            Err(place) => {
                self.entries += 1;
                chunk.insert(place, entry);
            }
        }
        if chunk.len() > FULL {
            let later = chunk.split_off(FULL / 2);
            self.chunks.insert(at + 1, Arc::new(later));
        }
    }

    pub(super) fn remove(&mut self, position: Generation) {
        let at = self.chunk_of(position);
        let Some(slot) = self.chunks.get_mut(at) else { return };
        let Ok(found) = slot.binary_search_by_key(&position, |entry| entry.position()) else { return };
        self.entries -= 1;
        Arc::make_mut(slot).remove(found);
        if slot.is_empty() {
            self.chunks.remove(at);
        } else if let Some(next) = self.chunks.get(at + 1)
            && self.chunks[at].len() + next.len() < JOIN
        {
            let next = self.chunks.remove(at + 1);
            Arc::make_mut(&mut self.chunks[at]).extend(next.iter().cloned());
        }
    }

    /// Entries within these bounds, earliest first.
    pub(in crate::cache) fn range(
        &self,
        (from, to): (Bound<Generation>, Bound<Generation>),
    ) -> impl Iterator<Item = &Arc<Entry>> + Clone {
        let is_before = move |entry: &Arc<Entry>| match from {
            Bound::Included(from) => entry.position() < from,
            Bound::Excluded(from) => entry.position() <= from,
            Bound::Unbounded => false,
        };
        let is_within = move |entry: &Arc<Entry>| match to {
            Bound::Included(to) => entry.position() <= to,
            Bound::Excluded(to) => entry.position() < to,
            Bound::Unbounded => true,
        };
        let first = self.chunks.partition_point(|chunk| chunk.last().is_some_and(is_before));
        let start = self.chunks.get(first).map_or(0, |chunk| chunk.partition_point(is_before));
        let entries = self.chunks[first..].iter().flat_map(|chunk| chunk.iter());
        entries.skip(start).take_while(move |entry| is_within(entry))
    }

    pub(super) const fn len(&self) -> usize {
        self.entries
    }

    /// Chunk of a position, present or not; behind the last if it is later than all.
    fn chunk_of(&self, position: Generation) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| last.position() < position))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entry(position: u64, name: u8) -> Arc<Entry> {
        let mut entry = Entry::new(name.to_string().as_str().into());
        entry.wild_changed = position.into();
        Arc::new(entry)
    }

    proptest! {
        /// Steps insert behind all others, insert anywhere, or remove.
        #[test]
        fn it_agrees_with_a_sorted_map(
            steps in prop::collection::vec((0..4_u8, 1..900_u64, any::<u8>()), 0..1_500),
            bounds in prop::collection::vec((0..900_u64, 0..900_u64), 1..8),
        ) {
            let (mut timeline, mut model) = (Timeline::default(), BTreeMap::new());
            let mut last = 0;
            let mut earlier = Vec::new();
            for (number, (kind, position, name)) in steps.into_iter().enumerate() {
                if kind == 0 {
                    timeline.remove(position.into());
                    model.remove(&position);
                } else {
                    let position = if kind == 1 { position } else { last + 1 };
                    last = last.max(position);
                    timeline.insert(entry(position, name));
                    model.insert(position, name.to_string());
                }
                if number % 400 == 0 {
                    earlier.push((timeline.clone(), model.clone()));
                }
            }
            earlier.push((timeline, model));
            for (timeline, model) in &earlier {
                prop_assert_eq!(timeline.len(), model.len());
                prop_assert!(timeline.chunks.iter().all(|chunk| (1..=FULL).contains(&chunk.len())));
                for (from, to) in bounds.iter().map(|(one, other)| (*one.min(other), *one.max(other))) {
                    let cases = [
                        (Bound::Included(from), Bound::Included(to)),
                        (Bound::Excluded(from), Bound::Unbounded),
                        (Bound::Unbounded, Bound::Excluded(to)),
                    ];
                    for case in cases {
                        let of = |bound: Bound<u64>| bound.map(Generation::from);
                        let found = timeline.range((of(case.0), of(case.1))).map(|entry| entry.name().as_str());
                        prop_assert!(found.eq(model.range(case).map(|(_, name)| name.as_str())));
                    }
                }
            }
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_chunks() {
        let mut timeline = Timeline::default();
        (1..=1_000).for_each(|position| timeline.insert(entry(position, 0)));
        assert_eq!(timeline.chunks.len(), 1_000_usize.div_ceil(FULL));
        let mut timeline = Timeline::default();
        for position in 1..=1_000 {
            let _published = timeline.clone();
            timeline.insert(entry(position, 0));
        }
        assert!(timeline.chunks.iter().all(|chunk| chunk.capacity() <= FULL));
    }
}
