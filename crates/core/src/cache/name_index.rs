//! Index from names to cohorts.
//!
//! Clients and observers have an index each: only clients create demand upstream.

use std::collections::BTreeSet;

use indexmap::map::Entry;
use smallvec::SmallVec;

use super::subscription::Subscription;
use crate::resource::{Collection, Name, NameMap, take_out};

/// Index from names to cohorts. A slot is a cohort's place in the
/// [`CohortIndex`](super::cohort_index::CohortIndex).
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    index: NameMap<Slots>,
    wildcards: Slots,
    collectors: usize,
}

impl NameIndex {
    /// Adds a cohort to a name. Returns whether it is the first.
    pub(super) fn list(&mut self, name: &Name, slot: u32) -> bool {
        match self.index.entry(name.clone()) {
            Entry::Occupied(mut slots) => {
                slots.get_mut().insert(slot);
                false
            }
            Entry::Vacant(place) => {
                place.insert(Slots::default()).insert(slot);
                true
            }
        }
    }

    /// Removes a cohort from a name. Returns whether it was the last.
    pub(super) fn unlist(&mut self, name: &Name, slot: u32) -> bool {
        let Some(slots) = self.index.get_mut(name) else { return false };
        slots.remove(slot);
        let was_last = slots.is_empty();
        if was_last {
            take_out(&mut self.index, name);
        }
        was_last
    }

    /// Adds a cohort's wildcard and collections. Returns whether it is the first with the wildcard.
    pub(super) fn add(&mut self, subscription: &Subscription, slot: u32) -> bool {
        let asked = self.asks_wildcard();
        self.collectors += usize::from(subscription.has_collections());
        if subscription.wildcard {
            self.wildcards.insert(slot);
        }
        asked != self.asks_wildcard()
    }

    /// Removes them. Returns whether it was the last with the wildcard.
    pub(super) fn remove(&mut self, subscription: &Subscription, slot: u32) -> bool {
        let asked = self.asks_wildcard();
        self.collectors -= usize::from(subscription.has_collections());
        if subscription.wildcard {
            self.wildcards.remove(slot);
        }
        asked != self.asks_wildcard()
    }

    /// Replaces them. Returns whether demand for the wildcard began or ended.
    pub(super) fn replace(&mut self, old: &Subscription, new: &Subscription, slot: u32) -> bool {
        let asked = self.asks_wildcard();
        self.remove(old, slot);
        self.add(new, slot);
        asked != self.asks_wildcard()
    }

    pub(super) fn asks(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    pub(super) fn asks_wildcard(&self) -> bool {
        !self.wildcards.is_empty()
    }

    /// The index's allocation of a name.
    pub(super) fn shared(&self, name: &Name) -> Option<&Name> {
        self.index.get_key_value(name).map(|(shared, _)| shared)
    }

    pub(super) fn of_wildcard(&self) -> impl Iterator<Item = u32> {
        self.wildcards.iter()
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

/// Longer lists become sets.
const FEW: usize = 32;

/// Slots, each once. Most names have one, some all: when the fleet leaves, no leave may search them.
#[derive(Debug)]
enum Slots {
    Few(SmallVec<[u32; 2]>),
    Many(BTreeSet<u32>),
}

impl Default for Slots {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl Slots {
    fn insert(&mut self, slot: u32) {
        match self {
            Self::Few(few) if few.contains(&slot) => {}
            Self::Few(few) if few.len() < FEW => few.push(slot),
            Self::Few(few) => *self = Self::Many(few.drain(..).chain([slot]).collect()),
            Self::Many(many) => drop(many.insert(slot)),
        }
    }

    fn remove(&mut self, slot: u32) {
        match self {
            Self::Few(few) => few.retain(|other| *other != slot),
            Self::Many(many) => {
                many.remove(&slot);
                // Below the bound: one client that comes and goes must not convert it each time.
                if many.len() <= FEW / 2 {
                    *self = Self::Few(many.iter().copied().collect());
                }
            }
        }
    }

    fn contains(&self, slot: u32) -> bool {
        match self {
            Self::Few(few) => few.contains(&slot),
            Self::Many(many) => many.contains(&slot),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few), None),
            Self::Many(many) => (None, Some(many)),
        };
        few.into_iter().flatten().chain(many.into_iter().flat_map(|many| many.iter())).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_agree_with_a_set(steps in proptest::collection::vec((any::<bool>(), 0_u32..80), 0..400)) {
            let (mut slots, mut model) = (Slots::default(), BTreeSet::new());
            for (inserts, slot) in steps {
                if inserts {
                    slots.insert(slot);
                    model.insert(slot);
                } else {
                    slots.remove(slot);
                    model.remove(&slot);
                }
                prop_assert_eq!(slots.is_empty(), model.is_empty());
                prop_assert_eq!(slots.contains(slot), model.contains(&slot));
                let listed: Vec<u32> = slots.iter().collect();
                prop_assert_eq!(listed.len(), model.len());
                prop_assert_eq!(&listed.into_iter().collect::<BTreeSet<u32>>(), &model);
            }
        }
    }
}
