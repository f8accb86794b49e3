//! Last changes of each resource, and losses of most resources of a store, for operators.
//!
//! Owns the records and their bounds, over the caches of all node groups. Knows no clock and no reader.
//!
//! A record holds the body that its change replaced; the body after it is in the next record or the cache. Of a
//! guarded type the fleet's states are recorded too. A resource has no record before its first change: filling a
//! new node group must not displace changes.
//!
//! Invariants:
//! - All records stay within the limit. The oldest superseded records go first, then the newest of each
//!   resource.
//! - A resource has at most [`CHANGES`] records.
//! - No record holds the body of a Secret, or one that must not be kept (R-XT-09).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use super::Generation;
use super::entry::{Entry, VisibleState};
use super::parameter_view::Track;
use super::snapshot::Touch;
use crate::resource::{Name, Parameters, Resource, TypeUrl};

const CHANGES: usize = 16;
/// Bytes of a record in the tables, without its resource.
const RECORD: u64 = 320;
/// Bytes of a resource beside its encoding.
const RESOURCE: u64 = 160;
/// A body larger than this part of the limit is not held.
const BODY_SHARE: u64 = 16;

#[derive(Clone, Debug)]
pub struct ResourceChange {
    pub generation: Generation,
    /// When the cache applied it; `None` for the state before the first recorded change.
    pub at: Option<Instant>,
    /// State after it; `None` if the resource was removed.
    pub after: Option<ResourceFacts>,
    /// Whether the resource did not exist before, as far as is known.
    pub is_first: bool,
    /// Whether clients see it through the wildcard, or did before its removal.
    pub is_member: bool,
    /// Resource that it replaced or removed, if that may be held.
    pub before: Option<Arc<Resource>>,
}

/// A change and the store in which it happened.
#[derive(Clone, Debug)]
pub struct PlacedChange {
    pub cache: u64,
    pub type_url: TypeUrl,
    /// Parameters of the clients that see it.
    pub parameters: Parameters,
    pub name: Name,
    pub change: ResourceChange,
}

/// Facts about one state of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceFacts {
    pub version: Arc<str>,
    pub bytes: usize,
    pub digest: u128,
}

impl ResourceChange {
    /// State of an entry, if any, as a record without a change.
    pub(super) fn present(entry: &Entry) -> Option<Self> {
        let after = ResourceFacts::of(entry.by_name().existing()?);
        Some(Self {
            generation: entry.position(),
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
        Self { version: resource.version().into(), bytes, digest }
    }
}

/// Changes of one publication to one store.
#[derive(Debug)]
pub(super) struct StoreChanges<'a> {
    pub(super) store: StoreKey,
    pub(super) touched: &'a [Touch],
    pub(super) was_known: bool,
    /// Names that the relay unsubscribed: it does not know whether they still exist.
    pub(super) forgotten: &'a HashSet<Name>,
    pub(super) generation: Generation,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoreKey {
    pub(super) cache: u64,
    pub(super) type_url: TypeUrl,
    pub(super) track: Track,
    pub(super) parameters: Parameters,
}

#[derive(Debug)]
struct Record {
    /// Place in the order of all records.
    number: u64,
    change: ResourceChange,
    cost: u64,
}

#[derive(Debug)]
struct StoreRecords {
    lines: HashMap<Name, Line>,
    /// Since then no name lost its last record.
    known_since: Instant,
}

/// Records of a name, oldest first.
#[derive(Debug, Default)]
struct Line {
    records: Vec<Record>,
    /// Time of the newest record that had to make room.
    lost: Option<Instant>,
}

impl Line {
    fn drop_oldest(&mut self) -> Record {
        let oldest = self.records.remove(0);
        self.lost = oldest.change.at.or(self.lost);
        oldest
    }
}

/// Place of a record.
type Place = (Arc<StoreKey>, Name);

#[derive(Debug, Default)]
struct Table {
    stores: BTreeMap<Arc<StoreKey>, StoreRecords>,
    places: BTreeMap<u64, Place>,
    /// Records with a later one of their name.
    superseded: BTreeSet<u64>,
    numbers: u64,
    bytes: u64,
}

#[derive(Debug)]
pub struct History {
    limit: u64,
    table: Mutex<Table>,
}

impl History {
    pub fn new(limit: u64) -> Self {
        Self { limit, table: Mutex::default() }
    }

    /// Bytes in use, as the history counts them.
    pub fn bytes(&self) -> u64 {
        self.table.lock().bytes
    }

    /// Changes of a resource, oldest first, for each set of parameters with which it changed.
    pub fn of(
        &self,
        cache: u64,
        type_url: &TypeUrl,
        track: Track,
        name: &str,
    ) -> Vec<(Parameters, Vec<ResourceChange>)> {
        let first = StoreKey { cache, type_url: type_url.clone(), track, parameters: Parameters::NONE };
        let table = self.table.lock();
        let stores = table.stores.range::<StoreKey, _>(&first..);
        let stores =
            stores.take_while(|(key, _)| (key.cache, &key.type_url, key.track) == (cache, type_url, track));
        let lines = stores.filter_map(|(key, lines)| {
            let changes = lines.lines.get(name)?.records.iter().map(|record| record.change.clone());
            Some((key.parameters.clone(), changes.collect()))
        });
        lines.collect()
    }

    /// Time since when all states of a name are known that the fleet was sent; `None` if its store has never been filled.
    pub fn known_since(
        &self,
        cache: u64,
        type_url: &TypeUrl,
        parameters: &Parameters,
        name: &Name,
    ) -> Option<Instant> {
        let (type_url, parameters) = (type_url.clone(), parameters.clone());
        let key = StoreKey { cache, type_url, track: Track::Stable, parameters };
        let table = self.table.lock();
        let of = table.stores.get(&key)?;
        let lost = of.lines.get(name).and_then(|line| line.lost);
        lost.max(Some(of.known_since))
    }

    /// Newest changes first, of the caches and types that `is_one` accepts, at times that `is_then` accepts.
    pub fn newest(
        &self,
        max: usize,
        is_one: impl Fn(u64, &TypeUrl, Track) -> bool,
        is_then: impl Fn(Instant) -> bool,
    ) -> Vec<PlacedChange> {
        let table = self.table.lock();
        let places = table.places.iter().rev();
        let found = places.filter(|(_, (key, _))| is_one(key.cache, &key.type_url, key.track));
        let found = found.filter_map(|(number, (key, name))| {
            let line = &table.stores.get(key)?.lines.get(name)?.records;
            let record = line.iter().rev().find(|record| record.number == *number)?;
            // A state without a time is no change.
            record.change.at.filter(|at| is_then(*at))?;
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

    pub(super) fn record(&self, changed: &StoreChanges<'_>, now: Instant) {
        let mut table = self.table.lock();
        let known = table.stores.get_key_value(&changed.store).map(|(known, _)| Arc::clone(known));
        let key = known.unwrap_or_else(|| {
            let (key, lines) = (Arc::new(changed.store.clone()), HashMap::default());
            table.stores.insert(Arc::clone(&key), StoreRecords { lines, known_since: now });
            key
        });
        for touch in changed.touched {
            let last =
                table.stores.get_mut(&key).and_then(|of| of.lines.get_mut(&touch.name)?.records.last_mut());
            let last = last.map(|record| &mut record.change);
            let is_new = last.is_none();
            if let Some(change) = self.change(changed, touch, last, now) {
                let present = touch.was.as_deref().filter(|_| is_new).and_then(ResourceChange::present);
                present.into_iter().for_each(|present| table.push(&key, &touch.name, present));
                table.push(&key, &touch.name, change);
                while table.bytes > self.limit && table.drop_oldest() {}
            }
        }
    }

    /// Change of a name after `last`, its newest record; `None` if its resource stayed the same.
    fn change(
        &self,
        changed: &StoreChanges<'_>,
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
            entry.as_ref().is_some_and(|entry| matches!(entry.by_name(), VisibleState::Absent))
        };
        let came_later = is_absent(&touch.was) || (changed.was_known && is_member);
        if was.is_none() && last.is_none() && is.is_some() && !came_later {
            return None;
        }
        if is.is_none() {
            // The control plane may report it gone after the relay unsubscribed and asked again.
            let is_removed = was.is_some() || (is_absent(&touch.is) && last_facts.is_some());
            if !is_removed || changed.forgotten.contains(&touch.name) {
                return None;
            }
        }
        let type_url = &changed.store.type_url;
        let may_hold = |was: &Arc<Resource>| {
            let is_small = was.delta_entry().len() as u64 <= self.limit / BODY_SHARE;
            is_small && !type_url.is_secret() && was.may_be_kept(type_url)
        };
        Some(ResourceChange {
            generation: touch.is.as_deref().map_or(changed.generation, Entry::position),
            at: Some(now),
            after: is.as_deref().map(ResourceFacts::of),
            is_first: was.is_none() && last_facts.is_none(),
            is_member,
            before: was.filter(may_hold),
        })
    }

    pub(super) fn forget(&self, cache: u64) {
        let mut table = self.table.lock();
        let keys: Vec<_> = table.stores.keys().filter(|key| key.cache == cache).cloned().collect();
        let gone: Vec<StoreRecords> = keys.iter().filter_map(|key| table.stores.remove(key)).collect();
        for record in gone.iter().flat_map(|of| of.lines.values()).flat_map(|line| &line.records) {
            table.bytes -= record.cost;
            table.superseded.remove(&record.number);
            table.places.remove(&record.number);
        }
        // Bodies are dropped without the lock.
        drop(table);
    }
}

impl Table {
    fn push(&mut self, key: &Arc<StoreKey>, name: &Name, change: ResourceChange) {
        self.numbers += 1;
        let number = self.numbers;
        let cost = cost(name, &change);
        let Some(of) = self.stores.get_mut(key) else { return };
        let line = of.lines.entry(name.clone()).or_default();
        self.superseded.extend(line.records.last().map(|last| last.number));
        if line.records.len() == CHANGES {
            let oldest = line.drop_oldest();
            self.superseded.remove(&oldest.number);
            self.places.remove(&oldest.number);
            self.bytes -= oldest.cost;
        }
        line.records.reserve_exact(1);
        line.records.push(Record { number, change, cost });
        self.places.insert(number, (Arc::clone(key), name.clone()));
        self.bytes += cost;
    }

    /// Drops the least valuable record; `false` if there is none.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.superseded.pop_first().or_else(|| self.places.keys().next().copied());
        let Some((key, name)) = oldest.and_then(|oldest| self.places.remove(&oldest)) else { return false };
        let Some(of) = self.stores.get_mut(&key) else { return false };
        let Some(line) = of.lines.get_mut(&name) else { return false };
        // The oldest superseded record is the oldest of its name.
        self.bytes -= line.drop_oldest().cost;
        if line.records.is_empty() {
            of.known_since = line.lost.map_or(of.known_since, |lost| lost.max(of.known_since));
            of.lines.remove(&name);
        }
        true
    }
}

/// Bytes of a record. It may be the last holder of the name and the version.
fn cost(name: &Name, change: &ResourceChange) -> u64 {
    let version = change.after.as_ref().map_or(0, |after| after.version.len());
    let texts = (name.as_str().len() + version) as u64;
    RECORD + texts + change.before.as_ref().map_or(0, |before| RESOURCE + before.delta_entry().len() as u64)
}

/// Time within which removals count together.
const WITHIN: Duration = Duration::from_mins(1);
/// Longest report of resources that do not come back.
const REPORTED: Duration = Duration::from_hours(1);
/// Fewest resources of which more than half is a loss.
const FEWEST: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    at: Instant,
    before: usize,
    lost: usize,
}

#[derive(Debug, Default)]
pub(super) struct RemovalWatch {
    /// First removal of a minute, and the largest size since.
    begin: Option<(Instant, usize)>,
    loss: Option<Loss>,
}

impl RemovalWatch {
    /// Notes a change of the size. `forgotten` resources went because no client asks for them, which is no loss.
    /// Returns the size of a new loss.
    pub(super) fn note(
        &mut self,
        (before, after): (usize, usize),
        forgotten: usize,
        now: Instant,
    ) -> Option<usize> {
        let before = before.saturating_sub(forgotten);
        let sizes = self
            .begin
            .iter_mut()
            .map(|(_, size)| size)
            .chain(self.loss.iter_mut().map(|loss| &mut loss.before));
        sizes.for_each(|size| *size = size.saturating_sub(forgotten));
        // They are back.
        self.loss.take_if(|loss| 2 * after >= loss.before);
        if after >= before {
            return None;
        }
        let is_over = |(at, _): &mut (Instant, usize)| now.saturating_duration_since(*at) > WITHIN;
        self.begin.take_if(is_over);
        let (_, size) = self.begin.get_or_insert((now, before));
        *size = before.max(*size);
        let before = *size;
        if before < FEWEST || 2 * after >= before {
            return None;
        }
        self.begin = None;
        let lost = before - after;
        self.loss = Some(Loss { at: now, before, lost });
        Some(lost)
    }

    /// The newest loss, while it is to be reported.
    pub(super) fn lost(&self, now: Instant) -> usize {
        let reported = self.loss.filter(|loss| now.saturating_duration_since(loss.at) < REPORTED);
        reported.map_or(0, |loss| loss.lost)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    /// Losses of a store that begins with 20 resources. Each step is a time in seconds, the change of its size, and the
    /// number of resources that nobody asks for any more.
    fn losses(steps: &[(u64, i64, usize)]) -> Vec<usize> {
        let (begin, mut size, mut watch) = (Instant::now(), 20, RemovalWatch::default());
        let mut found = Vec::new();
        for (second, change, forgotten) in steps {
            let after = usize::try_from(i64::try_from(size).unwrap() + change).unwrap() - forgotten;
            let now = begin + Duration::from_secs(*second);
            found.extend(watch.note((size, after), *forgotten, now));
            size = after;
        }
        found
    }

    #[test]
    fn a_loss_is_more_than_half_within_a_minute() {
        assert_eq!(losses(&[(0, -10, 0)]), [0; 0], "half");
        assert_eq!(losses(&[(0, -11, 0)]), [11]);
        assert_eq!(losses(&[(0, -6, 0), (30, -5, 0)]), [11]);
        assert_eq!(losses(&[(0, -6, 0), (61, -5, 0)]), [0; 0], "5 of 14");
        let one_by_one: Vec<_> = (0..11).map(|second| (5 * second, -1, 0)).collect();
        assert_eq!(losses(&one_by_one), [11]);
        let slowly: Vec<_> = (0..11).map(|second| (10 * second, -1, 0)).collect();
        assert_eq!(losses(&slowly), [0; 0]);
        assert_eq!(losses(&[(0, -20, 0), (1, 20, 0), (2, -20, 0)]), [20, 20], "each is told once");
        assert_eq!(losses(&[(0, -11, 0), (1, -4, 0)]), [11], "9 are too few");
    }

    #[test]
    fn what_nobody_asks_for_or_what_is_replaced_is_no_loss() {
        assert_eq!(losses(&[(0, 0, 15)]), [0; 0]);
        assert_eq!(losses(&[(0, -6, 0), (1, 0, 5)]), [0; 0]);
        assert_eq!(losses(&[(0, -6, 0), (1, 0, 5), (2, -2, 0)]), [8], "8 of 15");
        assert_eq!(losses(&[(0, -8, 0), (1, 8, 0), (2, -8, 0), (3, 8, 0)]), [0; 0], "a few come and go");
    }

    #[test]
    fn a_loss_is_reported_until_the_resources_are_back() {
        let (begin, mut watch) = (Instant::now(), RemovalWatch::default());
        watch.note((20, 0), 0, begin);
        let lost = |watch: &RemovalWatch, minutes| watch.lost(begin + Duration::from_mins(minutes)) > 0;
        assert_eq!([59, 60].map(|minutes| lost(&watch, minutes)), [true, false]);
        watch.note((0, 9), 0, begin);
        assert!(lost(&watch, 59));
        watch.note((9, 10), 0, begin);
        assert!(!lost(&watch, 1));
    }
}

#[cfg(test)]
mod tests;
