//! Names and wildcards that nobody wants any more, and the order in which they are let go
//! (R-Relay-16).
//!
//! Owns the deadlines, and bounds on the number: short-lived clients with ever new names or
//! parameters would make the subscription grow. Knows neither topics nor the control plane.
//!
//! Invariant: after [`next`](Lingering::next) returned `None`, the bounds hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::resource::{Name, Parameters, TypeUrl};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Want {
    /// Nobody wants it, and it is not subscribed to.
    #[default]
    No,
    Yes,
    /// Nobody wants it; it is let go at this time.
    Until(Instant),
    /// Nobody wants it since this time: a wildcard that stays subscribed on its stream. Control
    /// planes do not let go of a wildcard, or do not answer it a second time (O1).
    Kept(Instant),
}

impl Want {
    /// Whether somebody wants it, or did until recently.
    pub(super) const fn is_live(self) -> bool {
        matches!(self, Self::Yes | Self::Until(_))
    }
}

/// Name, or wildcard (`None`), of a type with a set of parameters.
pub(super) type Item = (TypeUrl, Parameters, Option<Name>);

#[derive(Debug)]
pub(super) struct Lingering {
    most: usize,
    most_sets: usize,
    /// Number of names that wait in all node groups.
    all: Arc<AtomicUsize>,
    /// Those without parameters, then those with, by time.
    plain: BTreeSet<(Instant, Item)>,
    located: BTreeSet<(Instant, Item)>,
    sets: BTreeMap<(TypeUrl, Parameters), usize>,
}

impl Lingering {
    /// Creates it empty. `most` bounds the names of all node groups, `most_sets` the parameter sets
    /// of this one, counted per type.
    pub(super) fn new(most: usize, most_sets: usize, all: Arc<AtomicUsize>) -> Self {
        Self { most, most_sets, all, plain: BTreeSet::new(), located: BTreeSet::new(), sets: BTreeMap::new() }
    }

    fn queue(&mut self, (_, parameters, _): &Item) -> &mut BTreeSet<(Instant, Item)> {
        if parameters.is_empty() { &mut self.plain } else { &mut self.located }
    }

    pub(super) fn insert(&mut self, at: Instant, item: Item) {
        let set = (!item.1.is_empty()).then(|| (item.0.clone(), item.1.clone()));
        if self.queue(&item).insert((at, item)) {
            self.all.fetch_add(1, Ordering::Relaxed);
            set.into_iter().for_each(|set| *self.sets.entry(set).or_default() += 1);
        }
    }

    pub(super) fn remove(&mut self, at: Instant, item: Item) {
        let queue = self.queue(&item);
        if let Some((_, item)) = queue.take(&(at, item)) {
            self.uncount(&item);
        }
    }

    /// Whether there is room for a name that no client asked for: half of the room is kept for
    /// names that clients left.
    pub(super) fn has_room_ahead(&self, type_url: &TypeUrl, parameters: &Parameters) -> bool {
        let is_counted =
            || parameters.is_empty() || self.sets.contains_key(&(type_url.clone(), parameters.clone()));
        let has_room_for_set = self.sets.len() < self.most_sets / 2 || is_counted();
        self.all.load(Ordering::Relaxed) < self.most / 2 && has_room_for_set
    }

    pub(super) fn first(&self) -> Option<Instant> {
        [&self.plain, &self.located].into_iter().filter_map(|items| items.first()).map(|(at, _)| *at).min()
    }

    /// Takes an item that is due, or the oldest while a bound is exceeded, and whether it is let go
    /// before its time. Call it until `None`.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Item, bool)> {
        let first = self.first();
        let is_first = |items: &BTreeSet<(Instant, Item)>| items.first().map(|(at, _)| *at) == first;
        let is_due = first.is_some_and(|at| at <= now);
        let is_too_much = self.all.load(Ordering::Relaxed) > self.most;
        let (at, item) = if is_due || is_too_much {
            if is_first(&self.plain) { self.plain.pop_first() } else { self.located.pop_first() }?
        } else if self.sets.len() > self.most_sets {
            self.located.pop_first()?
        } else {
            return None;
        };
        self.uncount(&item);
        Some((item, at > now))
    }

    fn uncount(&mut self, (type_url, parameters, _): &Item) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        let set = (type_url.clone(), parameters.clone());
        if let Some(count) = self.sets.get_mut(&set) {
            *count -= 1;
            if *count == 0 {
                self.sets.remove(&set);
            }
        }
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        self.all.fetch_sub(self.plain.len() + self.located.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::resource::Kind;

    #[test]
    fn groups_share_the_bound_and_one_that_ends_gives_back_its_part() {
        let now = Instant::now();
        let all = Arc::default();
        let mut groups = [(); 2].map(|()| Lingering::new(3, 10, Arc::clone(&all)));
        let later = now + Duration::from_secs(1);
        let mut wait = |at: usize, name: &str| {
            groups[at].insert(later, (Kind::Endpoint.into(), Parameters::NONE, Some(name.into())));
            groups[at].next(now).and_then(|((.., name), _)| name)
        };
        assert_eq!(["a", "b", "c"].map(|name| wait(0, name)), [None, None, None]);
        assert_eq!(wait(1, "d"), Some("d".into()), "the other group has all there is");
        let [first, mut second] = groups;
        drop(first);
        second.insert(later, (Kind::Endpoint.into(), Parameters::NONE, Some("e".into())));
        assert_eq!((second.next(now), all.load(Ordering::Relaxed)), (None, 1));
    }
}
