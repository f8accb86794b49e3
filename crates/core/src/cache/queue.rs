//! Names that wait for something, each once, in the order in which they came.
//!
//! Owns that order. To take the first costs the same however many wait: tens of thousands may, and all clients of the type
//! want their lock.

use std::collections::VecDeque;

use crate::resource::{Name, NameSet};

/// Names in first-in, first-out order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<Name>,
    /// Names in `order` that still wait.
    waiting: NameSet,
}

impl Queue {
    pub(super) fn push(&mut self, name: &Name) {
        if self.waiting.insert(name.clone()) {
            self.order.push_back(name.clone());
        }
    }

    /// Takes a name out of its turn; returns whether it waited.
    pub(super) fn remove(&mut self, name: &Name) -> bool {
        self.waiting.swap_remove(name)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the first, so many at most, and until they have so many bytes.
    pub(super) fn take(&mut self, count: usize, bytes: usize) -> Vec<Name> {
        let (mut taken, mut length) = (Vec::new(), 0);
        while taken.len() < count
            && length < bytes
            && let Some(name) = self.order.pop_front()
        {
            if self.remove(&name) {
                length += name.as_str().len();
                taken.push(name);
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

    #[test]
    fn names_are_taken_once_in_the_order_in_which_they_came_within_both_bounds() {
        let mut queue = Queue::default();
        ["c", "a", "b", "a", "long", "d"].iter().for_each(|name| queue.push(&Name::from(*name)));
        assert!(queue.remove(&Name::from("a")));
        assert!(!queue.remove(&Name::from("a")));
        queue.push(&Name::from("a"));
        let mut take = |count, bytes| {
            let taken = queue.take(count, bytes);
            (taken.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>().join(" "), queue.len())
        };
        assert_eq!(take(1, 100), ("c".to_owned(), 4));
        assert_eq!(take(9, 3), ("a b long".to_owned(), 1), "the one that goes beyond it is the last");
        assert_eq!(take(0, 9), (String::new(), 1));
        assert_eq!(take(9, 9), ("d".to_owned(), 0));
        assert!(queue.order.is_empty());
    }
}
