//! The table of names: sorted, persistent, and cut into segments that carry their own encodings.
//!
//! A snapshot shares every segment that a change did not touch with the snapshot before it. Each segment encodes
//! its members once, when somebody first needs them, so that a thousand full states taken under churn cost the
//! segments that changed and pin no more than that.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};

use super::entry::Entry;
use crate::resource::{Collection, Resource};

/// A segment is split when it grows past this many entries.
const SPLIT: usize = 128;
/// Neighbours whose sum is below this are joined.
const JOIN: usize = 48;

/// Entries with adjacent names.
#[derive(Default)]
pub(super) struct Segment {
    entries: Vec<Arc<Entry>>,
    delta: OnceLock<Bytes>,
    sotw: OnceLock<Bytes>,
}

impl fmt::Debug for Segment {
    /// Without what is encoded: there may be a Secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.entries).finish()
    }
}

impl Clone for Segment {
    /// A copy is made to be changed: it starts without encodings.
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), ..Self::default() }
    }
}

impl Segment {
    /// Members of the wildcard set, in the order of their names.
    pub(super) fn members(&self) -> impl Iterator<Item = &Arc<Resource>> + Clone {
        self.entries.iter().filter_map(|entry| entry.wild.as_ref())
    }

    pub(super) fn has_leases(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_leased())
    }

    pub(super) fn first_name(&self) -> Option<&str> {
        self.entries.first().map(|entry| entry.name().as_str())
    }

    pub(super) fn last_name(&self) -> Option<&str> {
        self.entries.last().map(|entry| entry.name().as_str())
    }

    /// The members as elements of `DeltaDiscoveryResponse.resources`.
    pub(super) fn delta(&self) -> &Bytes {
        self.delta.get_or_init(|| concat(self.members().map(|resource| &resource.delta_entry()[..])))
    }

    /// Length of [`delta`](Self::delta), which need not be encoded for it.
    pub(super) fn delta_len(&self) -> usize {
        let sum = || self.members().map(|resource| resource.delta_entry().len()).sum();
        self.delta.get().map_or_else(sum, Bytes::len)
    }

    /// The members as elements of `DiscoveryResponse.resources`.
    pub(super) fn sotw(&self) -> &Bytes {
        self.sotw.get_or_init(|| concat(self.members().map(|resource| resource.sotw_entry())))
    }
}

fn concat<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
    let mut out = BytesMut::with_capacity(parts.clone().map(<[u8]>::len).sum());
    parts.for_each(|part| out.extend_from_slice(part));
    out.freeze()
}

/// All entries of a type by name. Cloning costs a pointer per segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments {
    list: Vec<Arc<Segment>>,
}

impl Segments {
    pub(super) fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        let entries = &self.list.get(self.segment_of(name))?.entries;
        let at = entries.binary_search_by(|entry| entry.name().as_str().cmp(name)).ok()?;
        Some(&entries[at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.list.iter().flat_map(|segment| &segment.entries)
    }

    /// The segments whose last name is after `name`, or all.
    pub(super) fn after(&self, name: Option<&str>) -> &[Arc<Segment>] {
        let start = name.map_or(0, |name| {
            self.list.partition_point(|segment| segment.last_name().is_some_and(|last| last <= name))
        });
        &self.list[start..]
    }

    /// The entries of a collection's members, by name.
    pub(super) fn covered<'s>(&'s self, collection: Collection<'s>) -> impl Iterator<Item = &'s Arc<Entry>> {
        let begins = move |entry: &&Arc<Entry>| entry.name().as_str().starts_with(collection.prefix());
        let entries = self.after(Some(collection.prefix())).iter().flat_map(|segment| &segment.entries);
        let from = entries.skip_while(move |entry| entry.name().as_str() < collection.prefix());
        from.take_while(begins).filter(move |entry| collection.covers(entry.name().as_str()))
    }

    /// Puts an entry in, in place of the one of the same name.
    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        if self.list.is_empty() {
            self.list.push(Arc::default());
        }
        let at = self.segment_of(entry.name().as_str());
        let found = self.list[at].entries.binary_search_by(|other| other.name().cmp(entry.name()));
        let is_same_member = |old: &Entry| match (&old.wild, &entry.wild) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if let Ok(found) = found
            && is_same_member(&self.list[at].entries[found])
        {
            // Only members are encoded, and none of them changed.
            let (delta, sotw) = (self.list[at].delta.clone(), self.list[at].sotw.clone());
            let segment = Arc::make_mut(&mut self.list[at]);
            segment.entries[found] = entry;
            (segment.delta, segment.sotw) = (delta, sotw);
            return;
        }
        let segment = Arc::make_mut(&mut self.list[at]);
        segment.delta.take();
        segment.sotw.take();
        match found {
            Ok(found) => segment.entries[found] = entry,
            Err(place) => segment.entries.insert(place, entry),
        }
        if segment.entries.len() > SPLIT {
            let upper = segment.entries.split_off(SPLIT / 2);
            self.list.insert(at + 1, Arc::new(Segment { entries: upper, ..Segment::default() }));
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        let at = self.segment_of(name);
        let Some(slot) = self.list.get_mut(at) else { return };
        let Ok(found) = slot.entries.binary_search_by(|entry| entry.name().as_str().cmp(name)) else {
            return;
        };
        let segment = Arc::make_mut(slot);
        segment.delta.take();
        segment.sotw.take();
        segment.entries.remove(found);
        if segment.entries.is_empty() {
            self.list.remove(at);
        } else if let Some(next) = self.list.get(at + 1)
            && self.list[at].entries.len() + next.entries.len() < JOIN
        {
            let next = self.list.remove(at + 1);
            Arc::make_mut(&mut self.list[at]).entries.extend(next.entries.iter().cloned());
        }
    }

    /// Which segment a name is in, or would be.
    fn segment_of(&self, name: &str) -> usize {
        self.list
            .partition_point(|segment| segment.last_name().is_some_and(|last| last < name))
            .min(self.list.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_agrees_with_a_sorted_set(steps: Vec<(bool, u16)>) {
            let mut table = Segments::default();
            let mut model = BTreeSet::new();
            for (insert, number) in steps {
                let name = format!("n{}", number % 600);
                if insert {
                    table.insert(Arc::new(Entry::new(name.as_str().into())));
                    model.insert(name);
                } else {
                    table.remove(&name);
                    model.remove(&name);
                }
            }
            prop_assert!(table.iter().map(|entry| entry.name().as_str()).eq(model.iter().map(String::as_str)));
            for name in &model {
                prop_assert!(table.get(name).is_some());
                let after = table.after(Some(name));
                let rest: Vec<_> = after.iter().flat_map(|segment| &segment.entries).map(|e| e.name().as_str()).collect();
                for later in model.range(name.clone()..).skip(1) {
                    prop_assert!(rest.contains(&later.as_str()));
                }
            }
            prop_assert!(table.list.iter().all(|segment| (1..=SPLIT).contains(&segment.entries.len())));
        }
    }

    #[test]
    fn an_untouched_segment_is_shared_with_its_encoding() {
        let mut table = Segments::default();
        for number in 0..1000 {
            table.insert(Arc::new(Entry::new(format!("n{number:04}").as_str().into())));
        }
        let before = table.clone();
        table.insert(Arc::new(Entry::new("n0500".into())));
        let shared = before.list.iter().zip(&table.list).filter(|(old, new)| Arc::ptr_eq(old, new)).count();
        assert_eq!(shared, before.list.len() - 1);
    }
}
