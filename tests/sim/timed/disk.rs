//! Disks of relays, and relays that are killed.
//!
//! Owns the records that each relay wrote last, as the thread of the snapshot does: once a second at most, and only of names that
//! changed. A relay that is killed starts from the last transaction, from an earlier one, or from none.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{Completeness, Snapshot};
use deltafan::resource::Name;
use deltafan::snapshot_content::{
    Clock, Content, Record, Selection, StoreContent, StoreId, record_of, wildcard_kept,
};
use deltafan::upstream::ServerId;
use rand::Rng;

use super::judge::Seen;
use super::world::World;

/// Least time between two transactions.
const PERIOD: Duration = Duration::from_secs(1);
/// Transactions that a disk may come back with.
const KEPT: usize = 4;

/// Records of one store.
#[derive(Clone)]
struct Saved {
    snapshot: Arc<Snapshot>,
    completeness: Completeness,
    members: usize,
    records: BTreeMap<Name, Record>,
}

/// One transaction, with what the relay knew by then.
#[derive(Clone)]
struct Commit {
    at: Instant,
    stores: BTreeMap<StoreId, Saved>,
    server: Option<ServerId>,
    seen: Seen,
    known_since: Instant,
}

/// The newest transactions, the oldest first.
#[derive(Default)]
pub(crate) struct Disk(VecDeque<Commit>);

impl Disk {
    /// Whether a relay finds nothing on it, be it that the one before was not answered.
    pub(crate) fn is_blank(&self) -> bool {
        let has_records = |commit: &Commit| commit.stores.values().any(|saved| !saved.records.is_empty());
        self.0.back().is_none_or(|commit| commit.server.is_none() && !has_records(commit))
    }
}

impl World {
    fn clock(&self) -> Clock {
        let unix = Duration::from_secs(1_800_000_000) + (self.now - self.base);
        Clock { now: self.now, unix }
    }

    /// Writes what has changed in a relay.
    pub(crate) fn write(&mut self, relay: usize) {
        if !self.plan.warm || self.relays[relay].paused.is_some() {
            return;
        }
        let last = self.disks[relay].0.back();
        if last.is_some_and(|last| self.now < last.at + PERIOD) {
            return;
        }
        let (clock, mut stores) = (self.clock(), BTreeMap::new());
        let mut is_news = false;
        for of in self.relays[relay].cache.types() {
            let Some(parameters) = of.parameter_view().as_uniform() else { continue };
            let id = StoreId { type_url: of.type_url().clone(), parameters: parameters.clone() };
            let snapshot = of.snapshot();
            let before = last.and_then(|last| last.stores.get(&id));
            let (completeness, members) = wildcard_kept(&snapshot, self.now);
            let is_as_before = |before: &&Saved| {
                (before.snapshot.generation(), before.completeness) == (snapshot.generation(), completeness)
            };
            if let Some(before) = before.filter(is_as_before) {
                stores.insert(id, before.clone());
                continue;
            }
            is_news = true;
            let record =
                |name: &Name| record_of(&id.type_url, &snapshot, name.as_str(), Selection::default(), clock);
            let whole: BTreeMap<Name, Record> = snapshot
                .entries()
                .filter_map(|entry| Some((entry.name().clone(), record(entry.name())?)))
                .collect();
            let records = match before {
                None => whole,
                Some(before) => {
                    let mut records = before.records.clone();
                    for name in snapshot.changed_since(&before.snapshot) {
                        match record(&name) {
                            Some(record) => drop(records.insert(name, record)),
                            None => drop(records.remove(&name)),
                        }
                    }
                    assert!(
                        records.keys().eq(whole.keys()),
                        "DISK: relay {relay} holds other names than it wrote"
                    );
                    records
                }
            };
            stores.insert(id, Saved { snapshot, completeness, members, records });
        }
        if !is_news && last.is_some_and(|last| last.stores.len() == stores.len()) {
            return;
        }
        let commit = Commit {
            at: self.now,
            stores,
            server: self.relays[relay].mux.source().cloned(),
            seen: self.seen[relay].clone(),
            known_since: self.known_since[relay],
        };
        let commits = &mut self.disks[relay].0;
        commits.push_back(commit);
        while commits.len() > KEPT {
            commits.pop_front();
        }
    }

    /// Kills a relay, often while its origin is away, and has it start again.
    pub(crate) fn kill_relay(&mut self, relay: usize) {
        if self.rng.random_bool(0.5) {
            let time = self.random_time();
            self.cut(relay, time);
        }
        if self.rng.random_bool(0.4) {
            let count = self.rng.random_range(1..4);
            self.change(count);
        }
        if self.rng.random_bool(0.5) {
            let time = Duration::from_millis(self.rng.random_range(0..3_000));
            self.advance(time);
        }
        self.restart_relay(relay);
    }

    /// Loses the newest transactions of a relay, often none.
    pub(crate) fn crash_disk(&mut self, relay: usize) {
        let lost = match self.rng.random_range(0..10) {
            0 => KEPT,
            1..4 => self.rng.random_range(1..KEPT),
            _ => 0,
        };
        let commits = &mut self.disks[relay].0;
        commits.truncate(commits.len().saturating_sub(lost));
    }

    /// Has a relay that begins take in what its disk came back with.
    pub(crate) fn start_warm(&mut self, relay: usize) {
        let commits = &mut self.disks[relay].0;
        let Some(commit) = commits.back().cloned() else {
            self.say(|_| format!("relay {relay} has an empty disk"));
            return;
        };
        commits.clear();
        if self.plan.failover && commit.server.is_none() {
            // It does not know what of it came from the present control plane.
            self.moved = Some(self.now);
        }
        let store = |(id, saved): (StoreId, Saved)| StoreContent {
            id,
            completeness: saved.completeness,
            members: saved.members,
            records: saved.records.into_iter().collect(),
        };
        let content = Content { stores: commit.stores.into_iter().map(store).collect() };
        let clock = self.clock();
        let restored = self.relays[relay].mux.restore(content, commit.server, clock);
        let age = self.now - commit.at;
        self.say(|_| format!("relay {relay} starts from its disk as of {age:?} ago: {restored:?}"));
        self.seen[relay] = commit.seen;
        self.known_since[relay] = commit.known_since;
    }
}
