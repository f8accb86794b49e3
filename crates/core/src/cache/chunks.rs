//! Sorted entries in chunks that snapshots share.
//!
//! A clone costs a pointer per chunk, and a change a copy of one. Most inserts go to the end and fill each chunk; a
//! tree would be half empty, one per node group.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Generation;
use super::entry::Entry;

/// Most entries of a chunk; a larger one is split.
pub(super) const FULL: usize = 128;
/// Neighbours with fewer entries together are joined.
const JOIN: usize = 48;

/// Neighbouring entries, and whatever was made from them: a change of the entries starts it anew.
#[derive(Clone, Debug)]
pub(super) struct Chunk<M> {
    pub(super) entries: Vec<Arc<Entry>>,
    pub(super) made: M,
}

impl<M: Default> Chunk<M> {
    fn new(entries: Vec<Arc<Entry>>) -> Arc<Self> {
        Arc::new(Self { entries, made: M::default() })
    }
}

/// Sorted entries. No chunk is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunks<M> {
    pub(super) list: Vec<Arc<Chunk<M>>>,
}

/// Entries in the order of their last change. The key is an entry's [position](Entry::position).
pub(super) type Timeline = Chunks<()>;

impl<M: Clone + Default> Chunks<M> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.list.iter().flat_map(|chunk| &chunk.entries)
    }

    /// Chunk of an entry and its place there, present or not. `order` compares another entry with it.
    pub(super) fn find(&self, order: impl Fn(&Arc<Entry>) -> Ordering) -> (usize, Result<usize, usize>) {
        let at =
            self.list.partition_point(|chunk| chunk.entries.last().is_some_and(|last| order(last).is_lt()));
        let at = at.min(self.list.len().saturating_sub(1));
        (at, self.list.get(at).map_or(Err(0), |chunk| chunk.entries.binary_search_by(order)))
    }

    /// Puts an entry into the place that [`find`](Self::find) returned.
    pub(super) fn put(&mut self, (at, place): (usize, Result<usize, usize>), entry: Arc<Entry>) {
        let is_last = at + 1 >= self.list.len();
        let Some(slot) = self.list.get_mut(at) else { return self.list.push(Chunk::new(vec![entry])) };
        if is_last && place == Err(FULL) {
            return self.list.push(Chunk::new(vec![entry]));
        }
        let chunk = Arc::make_mut(slot);
        chunk.made = M::default();
        let entries = &mut chunk.entries;
        let place = match place {
            Ok(found) => return entries[found] = entry,
            Err(place) => place,
        };
        if entries.len() == entries.capacity() {
            // Grow to the chunk size at most: the usual growth would leave half of a copy empty.
            entries.reserve_exact((FULL - entries.len()).clamp(1, entries.len()));
        }
        entries.insert(place, entry);
        if entries.len() > FULL {
            let later = entries.split_off(FULL / 2);
            entries.shrink_to_fit();
            self.list.insert(at + 1, Chunk::new(later));
        }
    }

    /// Removes an entry from the place that [`find`](Self::find) returned, if it is there.
    pub(super) fn take(&mut self, (at, place): (usize, Result<usize, usize>)) {
        let Ok(found) = place else { return };
        let chunk = Arc::make_mut(&mut self.list[at]);
        chunk.made = M::default();
        chunk.entries.remove(found);
        if chunk.entries.is_empty() {
            self.list.remove(at);
        } else if let Some(next) = self.list.get(at + 1)
            && self.list[at].entries.len() + next.entries.len() < JOIN
        {
            let next = self.list.remove(at + 1);
            Arc::make_mut(&mut self.list[at]).entries.extend(next.entries.iter().cloned());
        }
    }
}

impl Timeline {
    /// Inserts an entry, or replaces the one at its position.
    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        let position = entry.position();
        self.put(self.find(|other| other.position().cmp(&position)), entry);
    }

    pub(super) fn remove(&mut self, position: Generation) {
        self.take(self.find(|other| other.position().cmp(&position)));
    }

    /// Entries after this position, earliest first.
    pub(super) fn after(&self, since: Generation) -> impl Iterator<Item = &Arc<Entry>> {
        let is_before = move |entry: &Arc<Entry>| entry.position() <= since;
        let first = self.list.partition_point(|chunk| chunk.entries.last().is_some_and(is_before));
        let start = self.list.get(first).map_or(0, |chunk| chunk.entries.partition_point(is_before));
        self.list[first..].iter().flat_map(|chunk| &chunk.entries).skip(start)
    }

    /// Entries after `since`, up to `to`.
    pub(super) fn between(&self, since: Generation, to: Generation) -> impl Iterator<Item = &Arc<Entry>> {
        self.after(since).take_while(move |entry| entry.position() <= to)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

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
                prop_assert_eq!(timeline.after(Generation::ZERO).count(), model.len());
                prop_assert!(timeline.list.iter().all(|chunk| (1..=FULL).contains(&chunk.entries.len())));
                for (from, to) in bounds.iter().map(|(one, other)| (*one.min(other), *one.max(other))) {
                    let within = (Bound::Excluded(from), Bound::Included(to.max(from + 1)));
                    let found = timeline.between(from.into(), to.max(from + 1).into());
                    let found = found.map(|entry| entry.name().as_str());
                    prop_assert!(found.eq(model.range(within).map(|(_, name)| name.as_str())));
                }
            }
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_chunks() {
        let mut timeline = Timeline::default();
        (1..=1_000).for_each(|position| timeline.insert(entry(position, 0)));
        assert_eq!(timeline.list.len(), 1_000_usize.div_ceil(FULL));
        let mut timeline = Timeline::default();
        for position in 1..=1_000 {
            let _published = timeline.clone();
            timeline.insert(entry(position, 0));
        }
        assert!(timeline.list.iter().all(|chunk| chunk.entries.capacity() <= FULL));
    }
}
