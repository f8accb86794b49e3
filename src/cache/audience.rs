//! Cohorts by what they ask for.
//!
//! Owns the index from names to cohorts. Those of clients decide what is wanted upstream; those of observers see the
//! same and decide nothing, so that each kind has an index of its own.

use indexmap::map::Entry;
use smallvec::SmallVec;

use super::registry::Subscription;
use crate::resource::{Collection, Name, NameMap};

/// See the module. A slot is the place of a cohort in the registry.
#[derive(Debug, Default)]
pub(super) struct Audience {
    index: NameMap<SmallVec<[u32; 2]>>,
    wildcards: Vec<u32>,
    /// How many cohorts ask for collections.
    collectors: usize,
}

impl Audience {
    /// Notes that a cohort asks for a name. Returns whether it is the first.
    pub(super) fn list(&mut self, name: &Name, slot: u32) -> bool {
        match self.index.entry(name.clone()) {
            Entry::Occupied(mut slots) => {
                slots.get_mut().push(slot);
                false
            }
            Entry::Vacant(place) => {
                place.insert(SmallVec::from_slice(&[slot]));
                true
            }
        }
    }

    /// Notes that it does not any more. Returns whether it was the last.
    pub(super) fn unlist(&mut self, name: &Name, slot: u32) -> bool {
        let Entry::Occupied(mut slots) = self.index.entry(name.clone()) else { return false };
        slots.get_mut().retain(|other| *other != slot);
        let was_last = slots.get().is_empty();
        if was_last {
            slots.swap_remove();
        }
        was_last
    }

    /// Notes what a cohort asks for beside names. Returns whether it is the first to ask for the wildcard.
    pub(super) fn add(&mut self, subscription: &Subscription, slot: u32) -> bool {
        self.collectors += usize::from(subscription.has_collections());
        if !subscription.wildcard {
            return false;
        }
        self.wildcards.push(slot);
        self.wildcards.len() == 1
    }

    /// Notes that it does not any more. Returns whether it was the last to ask for the wildcard.
    pub(super) fn remove(&mut self, subscription: &Subscription, slot: u32) -> bool {
        self.collectors -= usize::from(subscription.has_collections());
        if subscription.wildcard
            && let Some(at) = self.wildcards.iter().position(|other| *other == slot)
        {
            // Once: a cohort that is altered is listed twice for a moment where it goes on to ask for the wildcard.
            self.wildcards.remove(at);
            return self.wildcards.is_empty();
        }
        false
    }

    /// Whether any asks for this name.
    pub(super) fn asks(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Whether any asks for the wildcard.
    pub(super) const fn asks_wildcard(&self) -> bool {
        !self.wildcards.is_empty()
    }

    /// The allocation of a name that is asked for.
    pub(super) fn shared(&self, name: &Name) -> Option<&Name> {
        self.index.get_key_value(name).map(|(shared, _)| shared)
    }

    /// Those that ask for the wildcard.
    pub(super) fn of_wildcard(&self) -> impl Iterator<Item = u32> {
        self.wildcards.iter().copied()
    }

    /// Those that ask for this name, or for the collection that it is a member of.
    pub(super) fn of_name(&self, name: &Name) -> impl Iterator<Item = u32> {
        let slots = [self.index.get(name), self.collecting(name)];
        slots.into_iter().flatten().flatten().copied()
    }

    fn collecting(&self, name: &Name) -> Option<&SmallVec<[u32; 2]>> {
        if self.collectors == 0 {
            return None;
        }
        self.index.get(Collection::covering(name.as_str())?.as_str())
    }
}
