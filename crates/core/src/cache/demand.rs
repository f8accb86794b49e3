//! Names that clients ask for: the index from them to cohorts, and the queue to the upstream.
//!
//! Owns whose turn it is in the queue. Taking a name costs the same however many wait.
//!
//! Example: one address asks for 90,000 names, then another for `a`. The next batch has `a` as its second name.

use std::collections::VecDeque;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::subscription::Subscription;
use crate::fairness::NAMES_PER_SLICE;
use crate::pool::{Account, Tenant};
use crate::resource::{Collection, Name, NameMap, NameSet, take_out};

/// Index from names to cohorts, of observers too. A slot is a cohort's place in the
/// [`CohortIndex`](super::cohort_index::CohortIndex).
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    index: NameMap<Slots>,
    wildcards: Slots,
    collectors: usize,
}

impl NameIndex {
    /// Adds a cohort to a name. Returns the others.
    pub(super) fn list(&mut self, name: &Name, slot: u32) -> impl Iterator<Item = u32> {
        let slots = self.index.entry(name.clone()).or_default();
        slots.insert(slot);
        slots.iter().filter(move |other| *other != slot)
    }

    /// Removes a cohort from a name. Returns the others.
    pub(super) fn unlist(&mut self, name: &Name, slot: u32) -> impl Iterator<Item = u32> {
        if let Some(slots) = self.index.get_mut(name) {
            slots.remove(slot);
            if slots.is_empty() {
                take_out(&mut self.index, name);
            }
        }
        self.of_very_name(name.as_str())
    }

    /// Adds a cohort's wildcard and collections.
    pub(super) fn add(&mut self, subscription: &Subscription, slot: u32) {
        self.collectors += usize::from(subscription.has_collections());
        if subscription.wildcard {
            self.wildcards.insert(slot);
        }
    }

    pub(super) fn remove(&mut self, subscription: &Subscription, slot: u32) {
        self.collectors -= usize::from(subscription.has_collections());
        if subscription.wildcard {
            self.wildcards.remove(slot);
        }
    }

    /// The index's allocation of a name.
    pub(super) fn shared(&self, name: &Name) -> Option<&Name> {
        self.index.get_key_value(name).map(|(shared, _)| shared)
    }

    pub(super) fn of_wildcard(&self) -> impl Iterator<Item = u32> {
        self.wildcards.iter()
    }

    /// Cohorts of this name.
    pub(super) fn of_very_name(&self, name: &str) -> impl Iterator<Item = u32> {
        self.index.get(name).into_iter().flat_map(Slots::iter)
    }

    /// Cohorts of this name or of its collection, each once.
    pub(super) fn of_name(&self, name: &Name) -> impl Iterator<Item = u32> {
        let (named, collecting) = (self.index.get(name), self.collecting(name));
        let is_named = move |slot: &u32| named.is_some_and(|named| named.contains(*slot));
        let collecting = collecting.into_iter().flat_map(Slots::iter).filter(move |slot| !is_named(slot));
        named.into_iter().flat_map(Slots::iter).chain(collecting)
    }

    fn collecting(&self, name: &Name) -> Option<&Slots> {
        if self.collectors == 0 {
            return None;
        }
        self.index.get(Collection::covering(name.as_str())?.as_str())
    }
}

/// Sorted slots, each once. Most names have one, some all: when the fleet leaves, no leave may search them.
#[derive(Debug, Default)]
struct Slots(SmallVec<[u32; 2]>);

impl Slots {
    fn insert(&mut self, slot: u32) {
        if let Err(place) = self.0.binary_search(&slot) {
            self.0.insert(place, slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        if let Ok(place) = self.0.binary_search(&slot) {
            self.0.remove(place);
        }
        // The fleet may have left.
        if self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
    }

    fn contains(&self, slot: u32) -> bool {
        self.0.binary_search(&slot).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
}

/// Bytes of a name in a request besides its text.
const FRAMING: usize = 4;

/// A queue per peer for large subscriptions, and one for small ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    account: Option<Account>,
    is_bulk: bool,
}

impl Lane {
    /// Lane of a peer, if known, for a subscription or a change of this many names. Small ones of a peer need not
    /// wait behind a large one.
    pub(super) fn new(peer: Option<&Tenant>, names: usize) -> Self {
        Self { account: peer.map(|peer| peer.account().clone()), is_bulk: names > NAMES_PER_SLICE }
    }
}

/// Names of one lane, each once, in order of arrival.
#[derive(Debug, Default)]
struct LaneNames {
    order: VecDeque<Name>,
    names: NameSet,
}

impl LaneNames {
    fn push(&mut self, name: &Name) {
        if self.names.insert(name.clone()) {
            self.order.push_back(name.clone());
        }
    }

    fn pop(&mut self) -> Option<Name> {
        let name = self.order.pop_front()?;
        self.names.swap_remove(&name);
        Some(name)
    }
}

#[derive(Debug, Default)]
pub(super) struct NameQueue {
    /// Each name once. Lanes may still list names that were taken from another lane.
    waiting: NameSet,
    lanes: HashMap<Lane, LaneNames>,
    /// Lanes that list names, next turn first.
    turns: VecDeque<Lane>,
}

impl NameQueue {
    /// Queues a name in a lane, even if it is in others: its first turn counts.
    pub(super) fn push(&mut self, lane: &Lane, name: &Name) {
        self.waiting.insert(name.clone());
        if let Some(names_of_lane) = self.lanes.get_mut(lane) {
            names_of_lane.push(name);
            return;
        }
        let mut names_of_lane = LaneNames::default();
        names_of_lane.push(name);
        self.lanes.insert(lane.clone(), names_of_lane);
        self.turns.push_back(lane.clone());
    }

    /// Adds a queued name to this lane too.
    pub(super) fn join(&mut self, lane: &Lane, name: &Name) {
        if self.waiting.contains(name) {
            self.push(lane, name);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes one name per lane in turn, up to `count`, or until they fill `bytes` of a request.
    pub(super) fn take(&mut self, count: usize, bytes: usize) -> Vec<Name> {
        let (mut taken, mut length) = (Vec::new(), 0);
        while taken.len() < count
            && length < bytes
            && let Some(lane) = self.turns.pop_front()
        {
            let Some(names_of_lane) = self.lanes.get_mut(&lane) else { continue };
            while let Some(name) = names_of_lane.pop() {
                if self.waiting.swap_remove(&name) {
                    length += name.as_str().len() + FRAMING;
                    taken.push(name);
                    break;
                }
            }
            if names_of_lane.order.is_empty() {
                self.lanes.remove(&lane);
            } else {
                self.turns.push_back(lane);
            }
        }
        if self.is_empty() {
            // Frees memory: it may have been large, and seldom is.
            *self = Self::default();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Peer, Source};

    fn lane(address: u8, is_bulk: bool) -> Lane {
        let peer = Peer::unproven(Source::of([10, 0, 0, address].into()));
        Lane { is_bulk, ..Lane::new(Some(&Tenant::new(&peer, 1)), 1) }
    }

    fn take(queue: &mut NameQueue, count: usize, bytes: usize) -> (String, usize) {
        let taken = queue.take(count, bytes);
        (taken.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>().join(" "), queue.len())
    }

    #[test]
    fn names_of_one_lane_are_taken_once_in_the_order_in_which_they_came_within_both_bounds() {
        let mut queue = NameQueue::default();
        let lane = Lane::default();
        ["c", "a", "b", "a", "long", "d"].iter().for_each(|name| queue.push(&lane, &Name::from(*name)));
        queue.join(&lane, &Name::from("unheard of"));
        assert_eq!(take(&mut queue, 1, 100), ("c".to_owned(), 4));
        assert_eq!(
            take(&mut queue, 9, 11),
            ("a b long".to_owned(), 1),
            "the one that goes beyond it is the last"
        );
        assert_eq!(take(&mut queue, 0, 9), (String::new(), 1));
        assert_eq!(take(&mut queue, 9, 9), ("d".to_owned(), 0));
        assert!(queue.lanes.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn each_lane_has_its_turn_in_every_batch() {
        let mut queue = NameQueue::default();
        let (bulk, small, other) = (lane(1, true), lane(1, false), lane(2, false));
        (0..1000).for_each(|n| queue.push(&bulk, &Name::from(n.to_string())));
        queue.push(&small, &"s".into());
        ["x", "y"].iter().for_each(|name| queue.push(&other, &Name::from(*name)));
        assert_eq!(take(&mut queue, 4, 100).0, "0 s x 1");
        assert_eq!(take(&mut queue, 2, 100).0, "y 2", "turns go on from one batch to the next");
    }

    /// A guess of another peer delays nobody.
    #[test]
    fn a_name_is_taken_once_by_the_first_turn_of_any_lane_that_it_waits_in() {
        let mut queue = NameQueue::default();
        let (bulk, other) = (lane(1, true), lane(2, false));
        ["a", "b", "guessed"].iter().for_each(|name| queue.push(&bulk, &Name::from(*name)));
        queue.join(&other, &"guessed".into());
        assert_eq!(take(&mut queue, 2, 100), ("a guessed".to_owned(), 1));
        assert_eq!(take(&mut queue, 9, 100), ("b".to_owned(), 0));
        assert!(queue.lanes.is_empty() && queue.turns.is_empty());
    }
}
