//! Cohorts by what they ask for.
//!
//! Owns the index from names to cohorts. Those of clients decide what is wanted upstream; those of observers see the
//! same and decide nothing, so that each kind has an index of its own.

use std::collections::BTreeSet;

use indexmap::map::Entry;
use smallvec::SmallVec;

use super::subscription::Subscription;
use crate::resource::{Collection, Name, NameMap, take_out};

/// Index from names to the cohorts that ask for them. A slot is the place of a cohort in the registry.
#[derive(Debug, Default)]
pub(super) struct Audience {
    index: NameMap<Slots>,
    wildcards: Slots,
    /// How many cohorts ask for collections.
    collectors: usize,
}

impl Audience {
    /// Notes that a cohort asks for a name. Returns whether it is the first.
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

    /// Notes that it does not any more. Returns whether it was the last.
    pub(super) fn unlist(&mut self, name: &Name, slot: u32) -> bool {
        let Some(slots) = self.index.get_mut(name) else { return false };
        slots.remove(slot);
        let was_last = slots.is_empty();
        if was_last {
            take_out(&mut self.index, name);
        }
        was_last
    }

    /// Notes what a cohort asks for beside names. Returns whether it is the first to ask for the wildcard.
    pub(super) fn add(&mut self, subscription: &Subscription, slot: u32) -> bool {
        let asked = self.asks_wildcard();
        self.collectors += usize::from(subscription.has_collections());
        if subscription.wildcard {
            self.wildcards.insert(slot);
        }
        asked != self.asks_wildcard()
    }

    /// Notes that it does not any more. Returns whether it was the last to ask for the wildcard.
    pub(super) fn remove(&mut self, subscription: &Subscription, slot: u32) -> bool {
        let asked = self.asks_wildcard();
        self.collectors -= usize::from(subscription.has_collections());
        if subscription.wildcard {
            self.wildcards.remove(slot);
        }
        asked != self.asks_wildcard()
    }

    /// Notes that it asks for something else. Returns whether it is the first to ask for the wildcard, or was the last.
    pub(super) fn alter(&mut self, old: &Subscription, new: &Subscription, slot: u32) -> bool {
        let asked = self.asks_wildcard();
        self.remove(old, slot);
        self.add(new, slot);
        asked != self.asks_wildcard()
    }

    /// Whether any asks for this name.
    pub(super) fn asks(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Whether any asks for the wildcard.
    pub(super) fn asks_wildcard(&self) -> bool {
        !self.wildcards.is_empty()
    }

    /// The allocation of a name that is asked for.
    pub(super) fn shared(&self, name: &Name) -> Option<&Name> {
        self.index.get_key_value(name).map(|(shared, _)| shared)
    }

    /// Those that ask for the wildcard.
    pub(super) fn of_wildcard(&self) -> impl Iterator<Item = u32> {
        self.wildcards.iter()
    }

    /// Those that ask for this name, or for the collection that it is a member of, each once.
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

/// A list of more slots than this is looked up, not searched.
const FEW: usize = 32;

/// Slots, each once. Most names have one; some have all: when the fleet leaves, each leave must not search the others.
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
                // Not at the bound itself: a client that comes and goes must not turn one into the other each time.
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
