//! The table of names: sorted, persistent, and cut into segments with encodings.
//!
//! A snapshot shares untouched segments with the one before. A segment encodes its members once, on first need.
//! Caches share equal resources and the encodings of equal segments, by a table of live values.
//!
//! Invariant: caches share a resource only if all of it is equal, and encodings only of identical resources. So
//! no group sees anything of another.
//!
//! Example: 200 groups hold the same 1,000 clusters of 1 KiB. Memory holds 1 MiB of clusters, not 200 MiB, and
//! as much again that is encoded.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, OnceLock, Weak};

use bytes::{Bytes, BytesMut};
use foldhash::fast::RandomState;
use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use super::chunks::{Chunk, Chunks};
use super::entry::Entry;
use super::subscription::Protocol;
use crate::resource::{Collection, Resource};

/// Neighbours in the table, with their encodings.
pub(super) type Segment = Chunk<Arc<Encodings>>;

/// All entries of a type by name.
pub(super) type Segments = Chunks<Arc<Encodings>>;

impl Segment {
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

    /// Members as elements of a response's `resources`.
    pub(super) fn encoded(&self, protocol: Protocol) -> &Bytes {
        self.made.encoded[protocol as usize].get_or_init(|| {
            let parts = self.members().map(|resource| match protocol {
                Protocol::Delta => &resource.delta_entry()[..],
                Protocol::Sotw => resource.sotw_entry(),
            });
            let mut out = BytesMut::with_capacity(parts.clone().map(<[u8]>::len).sum());
            parts.for_each(|part| out.extend_from_slice(part));
            out.freeze()
        })
    }

    /// Length of the encoding for delta, without making it.
    pub(super) fn delta_len(&self) -> usize {
        let sum = || self.members().map(|resource| resource.delta_entry().len()).sum();
        self.made.encoded[Protocol::Delta as usize].get().map_or_else(sum, Bytes::len)
    }
}

impl Segments {
    pub(super) fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        let (at, found) = self.find(|entry| entry.name().as_str().cmp(name));
        Some(&self.list.get(at)?.entries[found.ok()?])
    }

    /// Segments whose last name is after `name`; all for `None`.
    pub(super) fn after(&self, name: Option<&str>) -> &[Arc<Segment>] {
        let start = name.map_or(0, |name| {
            self.list.partition_point(|segment| segment.last_name().is_some_and(|last| last <= name))
        });
        &self.list[start..]
    }

    /// Entries that the other table does not have. Segments that both share cost only a look.
    pub(super) fn differing_from<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = &'s Arc<Entry>> {
        let shared: HashSet<_> = other.list.iter().map(Arc::as_ptr).collect();
        let own = self.list.iter().filter(move |segment| !shared.contains(&Arc::as_ptr(segment)));
        own.flat_map(|segment| &segment.entries)
            .filter(|entry| !other.get(entry.name().as_str()).is_some_and(|same| Arc::ptr_eq(entry, same)))
    }

    /// Entries of a collection's members, by name.
    pub(super) fn covered<'s>(&'s self, collection: Collection<'s>) -> impl Iterator<Item = &'s Arc<Entry>> {
        let begins = move |entry: &&Arc<Entry>| entry.name().as_str().starts_with(collection.prefix());
        let entries = self.after(Some(collection.prefix())).iter().flat_map(|segment| &segment.entries);
        let from = entries.skip_while(move |entry| entry.name().as_str() < collection.prefix());
        from.take_while(begins).filter(move |entry| collection.covers(entry.name().as_str()))
    }

    /// Inserts an entry, or replaces the one of its name.
    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        let (at, place) = self.find(|other| other.name().cmp(entry.name()));
        let is_same_member = |old: &Entry| match (&old.wild, &entry.wild) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        // Only members are encoded. If they did not change, nor did the encodings.
        let same = place.is_ok_and(|found| is_same_member(&self.list[at].entries[found]));
        let encodings = same.then(|| Arc::clone(&self.list[at].made));
        self.put((at, place), entry);
        if let Some(encodings) = encodings {
            Arc::make_mut(&mut self.list[at]).made = encodings;
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.take(self.find(|entry| entry.name().as_str().cmp(name)));
    }

    /// Shares the encodings of new segments with equal ones of other caches.
    pub(super) fn share(&mut self, interner: &Interner) {
        // Without members there is nothing to encode.
        let is_new =
            |segment: &Segment| segment.made.members.is_empty() && segment.members().next().is_some();
        for slot in self.list.iter_mut().filter(|segment| is_new(segment)) {
            let encodings = Encodings { members: slot.members().cloned().collect(), ..Encodings::default() };
            Arc::make_mut(slot).made = interner.share_encodings(encodings);
        }
    }
}

/// Fewest entries of a [`Table`] at which dead ones are swept.
const SWEEP: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Interner {
    resources: Table<Resource>,
    encodings: Table<Encodings>,
    hashes: RandomState,
}

impl Interner {
    /// Replaces the resource by an equal one of another cache, if any.
    pub(super) fn share(&self, resource: &mut Arc<Resource>) {
        let digest = resource.digest();
        *resource = find_or_insert(&self.resources, digest, Arc::clone(resource), |held, new| held == new);
    }

    /// Encodings of the same resources from another cache, or these.
    fn share_encodings(&self, encodings: Encodings) -> Arc<Encodings> {
        let mut hasher = self.hashes.build_hasher();
        encodings.members.iter().for_each(|member| Arc::as_ptr(member).hash(&mut hasher));
        // Both sides hold their members, so equal addresses mean the same resource.
        let is_equal = |held: &Encodings, new: &Encodings| {
            let pairs = || held.members.iter().zip(&new.members);
            held.members.len() == new.members.len() && pairs().all(|(held, new)| Arc::ptr_eq(held, new))
        };
        find_or_insert(&self.encodings, hasher.finish().into(), Arc::new(encodings), is_equal)
    }
}

/// Live values by key, and the number of entries that the last sweep left.
type Table<T> = Mutex<(HashMap<u128, Weak<T>>, usize)>;

/// Finds the equal live value, or inserts this one.
fn find_or_insert<T>(
    table: &Table<T>,
    key: u128,
    value: Arc<T>,
    is_equal: impl Fn(&T, &T) -> bool,
) -> Arc<T> {
    // Compared without the lock: it may take all of two bodies.
    let held = table.lock().0.get(&key).and_then(Weak::upgrade);
    if let Some(held) = held.filter(|held| is_equal(held, &value)) {
        return held;
    }
    let (values, kept) = &mut *table.lock();
    values.insert(key, Arc::downgrade(&value));
    // Sweeps cost as much as the entries since the last one.
    if values.len() >= SWEEP.max(2 * *kept) {
        values.retain(|_, held| held.strong_count() > 0);
        *kept = values.len();
    }
    value
}

#[derive(Default)]
pub(super) struct Encodings {
    /// Resources of these encodings if caches share them; else empty.
    members: Box<[Arc<Resource>]>,
    /// By [`Protocol`].
    encoded: [OnceLock<Bytes>; 2],
}

impl fmt::Debug for Encodings {
    /// Without what is encoded: there may be a Secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encodings").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::chunks::FULL;
    use super::super::fixture::resource;
    use super::*;
    use crate::resource::Kind;

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
            prop_assert!(table.list.iter().all(|segment| (1..=FULL).contains(&segment.entries.len())));
        }
    }

    #[test]
    fn encodings_of_the_same_members_are_one_until_a_member_changes() {
        let interner = Interner::default();
        let entry = |name: &str, body: &[u8]| {
            let (mut entry, mut member) =
                (Entry::new(name.into()), resource(&Kind::Cluster.into(), name, "1", body));
            interner.share(&mut member);
            entry.wild = Some(member);
            Arc::new(entry)
        };
        let table = |body: &[u8]| {
            let mut table = Segments::default();
            table.insert(entry("a", body));
            table.insert(entry("b", b"x"));
            table.share(&interner);
            table
        };
        let delta = |table: &Segments| table.after(None)[0].encoded(Protocol::Delta).clone();
        let (one, mut same, other) = (table(b"x"), table(b"x"), table(b"y"));
        assert_eq!(delta(&one).as_ptr(), delta(&same).as_ptr());
        assert_ne!(delta(&one), delta(&other));
        same.insert(entry("a", b"y"));
        same.share(&interner);
        assert_eq!(delta(&same).as_ptr(), delta(&other).as_ptr());
        assert_ne!(delta(&one), delta(&same), "the other cache keeps what it has");
        // Encodings outlive a change that is none for members.
        same.insert(Arc::new(Entry::clone(same.get("b").expect("it is there"))));
        same.share(&interner);
        assert_eq!(delta(&same).as_ptr(), delta(&other).as_ptr());
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

    fn shared(name: &str, body: &[u8]) -> Arc<Resource> {
        resource(&Kind::Cluster.into(), name, "1", body)
    }

    #[test]
    fn equal_resources_are_one_and_others_are_not() {
        let interner = Interner::default();
        let (mut one, mut same, mut other) = (shared("a", b"x"), shared("a", b"x"), shared("a", b"y"));
        for resource in [&mut one, &mut same, &mut other] {
            interner.share(resource);
        }
        assert!(Arc::ptr_eq(&one, &same));
        assert_eq!((Arc::strong_count(&one), other.body().last()), (2, Some(&b'y')));
    }

    #[test]
    fn resources_that_no_cache_holds_leave_no_entry_for_long() {
        let interner = Interner::default();
        for number in 0..10_000 {
            interner.share(&mut shared(&number.to_string(), b"x"));
        }
        let entries = interner.resources.lock().0.len();
        assert!(entries <= SWEEP, "{entries}");
    }
}
