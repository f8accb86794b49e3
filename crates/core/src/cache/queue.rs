//! Names that wait to be told upstream, taken from the peers that asked for them in turn.
//!
//! Owns whose turn it is. To take the next one costs the same however many wait: tens of thousands may, and all clients of the type
//! want their lock.
//!
//! Example: one address asks for 90,000 names and then another one for `a`. The next batch has `a` as its second name.

use std::collections::VecDeque;

use foldhash::HashMap;

use crate::pool::{Account, Tenant};
use crate::resource::{Name, NameSet};

/// Bytes of a name in a request beside its text.
const FRAMING: usize = 4;

/// Names that take turns with those of others: of one peer, and apart from its large subscriptions those of its small ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    account: Option<Account>,
    is_many: bool,
}

impl Lane {
    /// Lane of a peer, if it is known, for names that it asks for among many or not.
    pub(super) fn new(peer: Option<&Tenant>, is_many: bool) -> Self {
        Self { account: peer.map(|peer| peer.account().clone()), is_many }
    }
}

/// Names of one lane, each once, in the order in which they came.
#[derive(Debug, Default)]
struct Line {
    order: VecDeque<Name>,
    names: NameSet,
}

impl Line {
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

/// Names that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Each of them once. A lane may list others too, which were taken from another lane.
    waiting: NameSet,
    lanes: HashMap<Lane, Line>,
    /// Lanes that list any, the next one first.
    turns: VecDeque<Lane>,
}

impl Queue {
    /// Has a name wait in a lane, be it in others already: the first turn counts.
    pub(super) fn push(&mut self, lane: &Lane, name: &Name) {
        self.waiting.insert(name.clone());
        if let Some(line) = self.lanes.get_mut(lane) {
            line.push(name);
            return;
        }
        let mut line = Line::default();
        line.push(name);
        self.lanes.insert(lane.clone(), line);
        self.turns.push_back(lane.clone());
    }

    /// Has a name wait in this lane too, if it waits.
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

    /// Takes one name of each lane in turn, so many at most, and until they take so many bytes of a request.
    pub(super) fn take(&mut self, count: usize, bytes: usize) -> Vec<Name> {
        let (mut taken, mut length) = (Vec::new(), 0);
        while taken.len() < count
            && length < bytes
            && let Some(lane) = self.turns.pop_front()
        {
            let Some(line) = self.lanes.get_mut(&lane) else { continue };
            while let Some(name) = line.pop() {
                if self.waiting.swap_remove(&name) {
                    length += name.as_str().len() + FRAMING;
                    taken.push(name);
                    break;
                }
            }
            if line.order.is_empty() {
                self.lanes.remove(&lane);
            } else {
                self.turns.push_back(lane);
            }
        }
        if self.is_empty() {
            // It may have been large, and seldom is.
            *self = Self::default();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Peer, Source};

    fn lane(address: u8, is_many: bool) -> Lane {
        let peer = Peer::unproven(Source::of([10, 0, 0, address].into()));
        Lane::new(Some(&Tenant::new(&peer, 1)), is_many)
    }

    fn take(queue: &mut Queue, count: usize, bytes: usize) -> (String, usize) {
        let taken = queue.take(count, bytes);
        (taken.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>().join(" "), queue.len())
    }

    #[test]
    fn names_of_one_lane_are_taken_once_in_the_order_in_which_they_came_within_both_bounds() {
        let mut queue = Queue::default();
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
        let mut queue = Queue::default();
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
        let mut queue = Queue::default();
        let (bulk, other) = (lane(1, true), lane(2, false));
        ["a", "b", "guessed"].iter().for_each(|name| queue.push(&bulk, &Name::from(*name)));
        queue.join(&other, &"guessed".into());
        assert_eq!(take(&mut queue, 2, 100), ("a guessed".to_owned(), 1));
        assert_eq!(take(&mut queue, 9, 100), ("b".to_owned(), 0));
        assert!(queue.lanes.is_empty() && queue.turns.is_empty());
    }
}
