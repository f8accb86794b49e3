//! Last changes of each resource, for operators, over the caches of all node groups.
//!
//! Owns the records and their bounds. The writer of a cache notes a change after its clients are woken. Knows no clock, and
//! nothing of who reads it.
//!
//! A record holds the body that its change replaced, which the cache has let go; the body after it is in the next record, or in the
//! cache. So no body is copied. A resource that has not changed since it was first heard of has no record: node groups fill their
//! caches while changes of others are remembered.
//!
//! Invariants:
//! - The bytes of all records stay within the limit. Changes that were followed by another one of their resource go first, the oldest
//!   first; then the last changes of resources.
//! - A resource has [`CHANGES`] records at most.
//! - No body of a Secret is held, and none that may not be kept (R-XT-09).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use super::Generation;
use super::entry::{Entry, Seen};
use super::snapshot::Touch;
use crate::resource::{Name, Parameters, Resource, TypeUrl};

/// Changes of one resource that are remembered.
const CHANGES: usize = 16;
/// Bytes that a record takes in its tables, beside the resource that it holds.
const RECORD: u64 = 320;
/// Bytes that a resource takes beside its encoding.
const RESOURCE: u64 = 160;
/// A body of more than this share of the limit is not held.
const BODY_SHARE: u64 = 16;

/// One change of a resource.
#[derive(Clone, Debug)]
pub struct ResourceChange {
    /// Generation of the change in the cache of its node group.
    pub generation: Generation,
    /// When the cache took it over; `None` of a state that was there before the first change that is remembered.
    pub at: Option<Instant>,
    /// State after it; `None` if the resource was removed.
    pub after: Option<ResourceFacts>,
    /// Whether the resource was not there before, as far as is known.
    pub is_first: bool,
    /// Whether clients see it through the wildcard; of a removed resource, whether they did.
    pub is_member: bool,
    /// Resource that it replaced or removed, if that may be held and was.
    pub before: Option<Arc<Resource>>,
}

/// Change of a resource, with its place.
#[derive(Clone, Debug)]
pub struct PlacedChange {
    /// Number of the cache.
    pub cache: u64,
    /// Type of the resource.
    pub type_url: TypeUrl,
    /// Parameters of the clients that see it.
    pub parameters: Parameters,
    /// Name of the resource.
    pub name: Name,
    /// The change.
    pub change: ResourceChange,
}

/// Facts about one state of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceFacts {
    /// Its version.
    pub version: Arc<str>,
    /// Bytes of its body.
    pub bytes: usize,
    /// Its [digest](Resource::digest).
    pub digest: u128,
}

impl ResourceChange {
    /// State that an entry has, if it has one, with no change that led to it.
    pub(super) fn present(entry: &Entry) -> Option<Self> {
        let after = ResourceFacts::of(entry.by_name().existing()?);
        Some(Self {
            generation: entry.changed(),
            at: None,
            after: Some(after),
            is_first: false,
            is_member: entry.is_member(),
            before: None,
        })
    }
}

impl ResourceFacts {
    fn of(resource: &Resource) -> Self {
        let (bytes, digest) = (resource.body().len(), resource.digest());
        Self { version: Arc::clone(resource.shared_version()), bytes, digest }
    }
}

/// Changes of a cache to one store of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed<'a> {
    /// Number of the cache.
    pub(super) cache: u64,
    pub(super) type_url: &'a TypeUrl,
    pub(super) parameters: &'a Parameters,
    pub(super) touched: &'a [Touch],
    /// Whether the wildcard set was known before.
    pub(super) was_known: bool,
    /// Names that the relay let go: it does not know whether they are there any more.
    pub(super) forgotten: &'a HashSet<Name>,
    /// Generation of the store after all of them.
    pub(super) generation: Generation,
}

/// Store of a cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StoreKey {
    cache: u64,
    type_url: TypeUrl,
    parameters: Parameters,
}

#[derive(Debug)]
struct Record {
    /// Its number in the order of all records.
    number: u64,
    change: ResourceChange,
    cost: u64,
}

/// Records of one store by name, the oldest first.
type Lines = HashMap<Name, Vec<Record>>;
/// Places of records in the order of their numbers.
type Order = BTreeMap<u64, (Arc<StoreKey>, Name)>;

#[derive(Debug, Default)]
struct Table {
    stores: BTreeMap<Arc<StoreKey>, Lines>,
    /// Records that were followed by another one of their name.
    superseded: Order,
    /// Newest record of each name.
    newest: Order,
    numbers: u64,
    bytes: u64,
}

/// Last changes of each resource.
#[derive(Debug)]
pub struct History {
    limit: u64,
    table: Mutex<Table>,
}

impl History {
    /// A history of so many bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, table: Mutex::default() }
    }

    /// Bytes that it takes, as it counts them.
    pub fn bytes(&self) -> u64 {
        self.table.lock().bytes
    }

    /// Changes of a resource of a cache, the oldest first, for each set of parameters with which clients asked for it and it
    /// changed.
    pub fn of(&self, cache: u64, type_url: &TypeUrl, name: &str) -> Vec<(Parameters, Vec<ResourceChange>)> {
        let first = StoreKey { cache, type_url: type_url.clone(), parameters: Parameters::NONE };
        let table = self.table.lock();
        let stores = table.stores.range::<StoreKey, _>(&first..);
        let stores = stores.take_while(|(key, _)| key.cache == cache && key.type_url == *type_url);
        let lines = stores.filter_map(|(key, lines)| {
            let changes = lines.get(name)?.iter().map(|record| record.change.clone());
            Some((key.parameters.clone(), changes.collect()))
        });
        lines.collect()
    }

    /// Newest changes, the newest first, of what `is_one` holds for: number of the cache, and type.
    pub fn newest(&self, max: usize, is_one: impl Fn(u64, &TypeUrl) -> bool) -> Vec<PlacedChange> {
        let table = self.table.lock();
        let (mut newest, mut superseded) =
            (table.newest.iter().rev().peekable(), table.superseded.iter().rev().peekable());
        let places = std::iter::from_fn(|| match (newest.peek(), superseded.peek()) {
            (Some(one), Some(other)) if one.0 < other.0 => superseded.next(),
            (Some(_), _) => newest.next(),
            (None, _) => superseded.next(),
        });
        let found = places.filter(|(_, (key, _))| is_one(key.cache, &key.type_url));
        let found = found.filter_map(|(number, (key, name))| {
            let line = table.stores.get(key)?.get(name)?;
            let record = line.iter().rev().find(|record| record.number == *number)?;
            // A state that has not been seen to come is no change.
            record.change.at?;
            Some(PlacedChange {
                cache: key.cache,
                type_url: key.type_url.clone(),
                parameters: key.parameters.clone(),
                name: name.clone(),
                change: record.change.clone(),
            })
        });
        found.take(max).collect()
    }

    /// Notes changes of a store.
    pub(super) fn note(&self, changed: Changed<'_>, now: Instant) {
        let Changed { cache, type_url, parameters, .. } = changed;
        let key = StoreKey { cache, type_url: type_url.clone(), parameters: parameters.clone() };
        let mut table = self.table.lock();
        let known = table.stores.get_key_value(&key).map(|(known, _)| Arc::clone(known));
        let key = known.unwrap_or_else(|| Arc::new(key));
        for touch in changed.touched {
            let last = table.stores.get_mut(&key).and_then(|lines| lines.get_mut(&touch.name)?.last_mut());
            let last = last.map(|record| &mut record.change);
            let is_new = last.is_none();
            if let Some(change) = self.change(&changed, touch, last, now) {
                let present = touch.was.as_deref().filter(|_| is_new).and_then(ResourceChange::present);
                present.into_iter().for_each(|present| table.push(&key, &touch.name, present));
                table.push(&key, &touch.name, change);
                while table.bytes > self.limit && table.drop_oldest() {}
            }
        }
    }

    /// Change of a name after the last one that is remembered; `None` if its resource stayed as it was.
    fn change(
        &self,
        changed: &Changed<'_>,
        touch: &Touch,
        last: Option<&mut ResourceChange>,
        now: Instant,
    ) -> Option<ResourceChange> {
        let held = |entry: &'_ Arc<Entry>| entry.by_name().existing().cloned();
        let (was, is) = (touch.was.as_ref().and_then(held), touch.is.as_ref().and_then(held));
        let is_member = if is.is_some() { touch.is.as_deref() } else { touch.was.as_deref() };
        let is_member = is_member.is_some_and(Entry::is_member);
        let is_unchanged = was.as_ref().zip(is.as_ref()).is_some_and(|(was, is)| was.same_content(is));
        let last_facts = last.as_ref().and_then(|last| last.after.as_ref());
        let is_last = is.as_ref().zip(last_facts).is_some_and(|(is, last)| is.digest() == last.digest);
        if is_unchanged || is_last {
            last.into_iter().for_each(|last| last.is_member = is_member);
            return None;
        }
        let is_absent = |entry: &Option<Arc<Entry>>| {
            entry.as_ref().is_some_and(|entry| matches!(entry.by_name(), Seen::Absent))
        };
        let came_later = is_absent(&touch.was) || (changed.was_known && is_member);
        if was.is_none() && last.is_none() && is.is_some() && !came_later {
            return None;
        }
        if is.is_none() {
            // The control plane may say that it is gone after the relay let it go and asked again.
            let is_removed = was.is_some() || (is_absent(&touch.is) && last_facts.is_some());
            if !is_removed || changed.forgotten.contains(&touch.name) {
                return None;
            }
        }
        let may_hold = |was: &Arc<Resource>| {
            let is_small = was.delta_entry().len() as u64 <= self.limit / BODY_SHARE;
            is_small && !changed.type_url.is_secret() && was.may_be_kept(changed.type_url)
        };
        Some(ResourceChange {
            generation: touch.is.as_deref().map_or(changed.generation, Entry::changed),
            at: Some(now),
            after: is.as_deref().map(ResourceFacts::of),
            is_first: was.is_none() && last_facts.is_none(),
            is_member,
            before: was.filter(may_hold),
        })
    }

    /// Forgets a cache.
    pub(super) fn forget(&self, cache: u64) {
        let mut table = self.table.lock();
        let keys: Vec<_> = table.stores.keys().filter(|key| key.cache == cache).cloned().collect();
        let gone: Vec<Lines> = keys.iter().filter_map(|key| table.stores.remove(key)).collect();
        for record in gone.iter().flat_map(HashMap::values).flatten() {
            table.bytes -= record.cost;
            table.superseded.remove(&record.number);
            table.newest.remove(&record.number);
        }
        // Bodies are let go without the lock.
        drop(table);
    }
}

impl Table {
    fn push(&mut self, key: &Arc<StoreKey>, name: &Name, change: ResourceChange) {
        self.numbers += 1;
        let number = self.numbers;
        let cost = cost(name, &change);
        let line = self.stores.entry(Arc::clone(key)).or_default().entry(name.clone()).or_default();
        if let Some((number, place)) = line.last().and_then(|last| self.newest.remove_entry(&last.number)) {
            self.superseded.insert(number, place);
        }
        if line.len() == CHANGES {
            let oldest = line.remove(0);
            self.superseded.remove(&oldest.number);
            self.bytes -= oldest.cost;
        }
        line.reserve_exact(1);
        line.push(Record { number, change, cost });
        self.newest.insert(number, (Arc::clone(key), name.clone()));
        self.bytes += cost;
    }

    /// Drops the record that is worth least; `false` if there is none.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.superseded.pop_first().or_else(|| self.newest.pop_first());
        let Some((_, (key, name))) = oldest else { return false };
        let Some(lines) = self.stores.get_mut(&key) else { return false };
        let Some(line) = lines.get_mut(&name) else { return false };
        // The oldest of all superseded ones is the oldest of its name.
        self.bytes -= line.remove(0).cost;
        if line.is_empty() {
            lines.remove(&name);
        }
        if lines.is_empty() {
            self.stores.remove(&key);
        }
        true
    }
}

/// Bytes that a record of a change takes. It may be the last that holds the name and the version.
fn cost(name: &Name, change: &ResourceChange) -> u64 {
    let version = change.after.as_ref().map_or(0, |after| after.version.len());
    let texts = (name.as_str().len() + version) as u64;
    RECORD + texts + change.before.as_ref().map_or(0, |before| RESOURCE + before.delta_entry().len() as u64)
}

#[cfg(test)]
mod tests;
