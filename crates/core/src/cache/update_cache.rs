//! Updates that cohorts keep for their members, and the bytes that all of them may take.
//!
//! Nearly all members of a cohort are at one of a few positions, so a list suffices. A cohort drops superseded updates at
//! once; if the bytes run out, the oldest updates of all cohorts go.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::Generation;
use super::position::Position;
use super::update::Update;

/// Most positions of which a cohort keeps the updates.
const POSITIONS: usize = 256;

/// Updates of one cohort at one `touched`: nothing that concerns the cohort changed since.
#[derive(Debug, Default)]
pub(super) struct UpdateCache {
    touched: Generation,
    kept: Vec<(Position, KeptUpdate)>,
}

impl UpdateCache {
    pub(super) fn find(&self, touched: Generation, position: &Position, now: Instant) -> Option<Arc<Update>> {
        let (_, found) = self.kept.iter().find(|(other, _)| self.touched == touched && other == position)?;
        found.update.upgrade().filter(|update| update.has_current_ttls(now))
    }

    /// Keeps and returns an update, or returns the one put there meanwhile.
    pub(super) fn put(
        &mut self,
        touched: Generation,
        position: &Position,
        made: Arc<Update>,
        all: &Arc<KeptUpdates>,
        now: Instant,
    ) -> Arc<Update> {
        if self.touched > touched {
            return made;
        }
        if let Some(found) = self.find(touched, position, now) {
            return found;
        }
        self.kept.retain(|(other, _)| self.touched == touched && other != position);
        if self.kept.len() == POSITIONS {
            self.kept.remove(0);
        }
        self.touched = touched;
        self.kept.reserve_exact(1);
        self.kept.push((position.clone(), KeptUpdates::keep(all, &made)));
        made
    }
}

/// The kept updates of all cohorts.
#[derive(Debug)]
pub(super) struct KeptUpdates {
    limit: u64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    bytes: u64,
    numbers: u64,
    /// Updates and their weights, oldest first.
    updates: BTreeMap<u64, (Arc<Update>, u64)>,
}

impl KeptUpdates {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, table: Mutex::default() })
    }

    fn keep(this: &Arc<Self>, made: &Arc<Update>) -> KeptUpdate {
        let weight = made.weight();
        // Declared first: updates are dropped without the lock.
        let mut gone = Vec::new();
        let table = &mut *this.table.lock();
        table.numbers += 1;
        // One that does not fit makes no room.
        if weight <= this.limit {
            table.bytes += weight;
            table.updates.insert(table.numbers, (Arc::clone(made), weight));
        }
        while table.bytes > this.limit
            && let Some((_, (oldest, weight))) = table.updates.pop_first()
        {
            table.bytes -= weight;
            gone.push(oldest);
        }
        KeptUpdate { update: Arc::downgrade(made), of: Arc::clone(this), number: table.numbers }
    }
}

/// An update as long as the bytes suffice; its bytes are given back on drop.
#[derive(Debug)]
struct KeptUpdate {
    update: Weak<Update>,
    of: Arc<KeptUpdates>,
    number: u64,
}

impl Drop for KeptUpdate {
    fn drop(&mut self) {
        let mut table = self.of.table.lock();
        let gone = table.updates.remove(&self.number);
        table.bytes -= gone.as_ref().map_or(0, |(_, weight)| *weight);
        // The update itself is dropped without the lock.
        drop(table);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::resource;
    use super::super::subscription::{Protocol, StreamProfile, Subscription, TtlSupport};
    use super::super::{Budget, Cache, Change, Limits, Op, View};
    use super::*;
    use crate::resource::{Kind, Name, TypeUrl};

    #[test]
    fn the_oldest_updates_go_if_the_bytes_run_out_and_those_of_a_cohort_with_it() {
        let (type_url, now): (TypeUrl, _) = (Kind::Endpoint.into(), Instant::now());
        // Two such updates fit, but not three.
        let budget = Budget::new(3_000);
        let (cache, mut writer) = Cache::guarded(Limits::default(), &budget, None);
        let set =
            |(name, bytes)| Op::held(View::Named, resource(&type_url, name, "1", &vec![0; bytes]), None);
        let ops = [("a", 600), ("b", 600), ("c", 600), ("large", 3_000)].map(set).into();
        let change = Change { ops, ..Change::default() };
        writer.apply(&type_url, change, now).unwrap();
        let of = cache.of(&type_url).unwrap();
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let cohorts = ["a", "b", "c", "large"].map(|name: &str| {
            [(); 2].map(|()| of.join(Subscription::new(false, [Name::from(name)]), profile, &Arc::default()))
        });
        let update = |at: usize| of.update(cohorts[at][0].cohort(), &Position::default(), now).unwrap();
        let made = [0, 1, 2].map(|at| Arc::downgrade(&update(at)));
        let users = || made.each_ref().map(Weak::strong_count);
        assert_eq!(users(), [0, 1, 1], "the oldest made room");
        assert!(made[1].ptr_eq(&Arc::downgrade(&update(1))) && made[2].ptr_eq(&Arc::downgrade(&update(2))));
        drop(update(3));
        assert_eq!(users(), [0, 1, 1], "what cannot be kept takes nobody's place");
        drop(cohorts);
        assert_eq!((users(), budget.updates.table.lock().bytes), ([0; 3], 0));
    }
}
