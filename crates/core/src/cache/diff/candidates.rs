//! Entries that may have news, and their order.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::super::entry::Entry;
use super::super::position::Part;
use super::super::subscription::Look;
use super::{Diff, Order};
use crate::resource::Name;

impl Diff<'_> {
    /// In which order [`for_each_candidate`](Self::for_each_candidate) has them: from the order of changes, or by name where
    /// that is less. An answer in parts goes on as it began.
    pub(super) fn order(&self) -> Order {
        if self.changed.is_some() {
            return Order::None;
        }
        match self.position.part {
            Part::Names { .. } => return Order::Name,
            Part::Changes { .. } => return Order::Place,
            Part::Start | Part::Whole | Part::Members { .. } => {}
        }
        let names = self.subscription.names().len();
        let from = (Bound::Excluded(self.position.added.min(self.position.removed)), Bound::Unbounded);
        // How many names a collection stands for is not known before they are looked at.
        let has_collections = self.subscription.has_collections();
        let is_shorter = || {
            !self.position.is_start()
                && (has_collections || self.snapshot.log.range(from).nth(names).is_none())
        };
        let few_renewed =
            || !self.is_timed || has_collections || self.snapshot.renewals.range(from).nth(names).is_none();
        match () {
            () if self.subscription.wildcard || (is_shorter() && few_renewed()) => Order::Place,
            () if has_collections => Order::None,
            () => Order::Name,
        }
    }

    /// Entries that may have changed since, each once, with what the client sees of them, until it has enough: those that
    /// may be news in their order, then those of which a removal may be left to tell.
    pub(super) fn for_each_candidate<'s>(
        &'s self,
        order: Order,
        mut with: impl FnMut(&'s Arc<Entry>, Look<'s>) -> ControlFlow<()>,
    ) {
        let names = self.subscription.names();
        let entry = |name: &'s Name| self.snapshot.table.get(name.as_str());
        let done = match order {
            Order::Place => {
                let mut look = |entry: &'s Arc<Entry>| match self.look_at(entry) {
                    Some(look) => with(entry, look),
                    None => ControlFlow::Continue(()),
                };
                let told = self.snapshot.log.range((
                    Bound::Excluded(self.position.removed),
                    Bound::Included(self.position.added.max(self.position.removed)),
                ));
                let told = told.filter(|entry| self.place(entry) <= self.position.added);
                self.news_by_place().chain(told).try_for_each(&mut look)
            }
            Order::Name => {
                let passed = names.partition_point(|name| self.position.has_passed(name.as_str()));
                let in_order = names[passed..].iter().chain(&names[..passed]);
                in_order.filter_map(entry).try_for_each(|entry| self.with_named(entry, &mut with))
            }
            Order::None => {
                let names = self.changed.as_deref().unwrap_or(names);
                let listed = self.snapshot.listed(self.subscription).filter(|_| self.changed.is_none());
                // The change log is this computation's own.
                let entries =
                    names.iter().filter_map(|name| self.snapshot.table.get(name.as_str())).chain(listed);
                entries.into_iter().try_for_each(|entry| self.with_named(entry, &mut with))
            }
        };
        // Whether all were looked at is for `with` to know.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = done;
    }

    fn with_named<'s>(
        &'s self,
        entry: &'s Arc<Entry>,
        with: &mut impl FnMut(&'s Arc<Entry>, Look<'s>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let look = if self.subscription.has_collections() {
            self.look_at(entry)
        } else {
            Some(Look::by_name(entry, self.profile.aggregated))
        };
        look.map_or(ControlFlow::Continue(()), |look| with(entry, look))
    }

    /// Entries whose places are after what was added, in that order.
    fn news_by_place(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let since = || (Bound::Excluded(self.position.added), Bound::Unbounded);
        let mut changes = self.snapshot.log.range(since()).map(|entry| (entry.position(), entry)).peekable();
        let renewals = self.is_timed.then(|| self.snapshot.renewals.range(since()));
        let mut renewals = renewals.into_iter().flatten().map(|(at, entry)| (*at, entry)).peekable();
        let both = std::iter::from_fn(move || match (changes.peek(), renewals.peek()) {
            (Some((change, _)), Some((renewal, _))) if renewal < change => renewals.next(),
            (Some(_), _) => changes.next(),
            (None, _) => renewals.next(),
        });
        // An entry that was renewed since it changed is in both.
        both.filter(|(at, entry)| *at == self.place(entry)).map(|(_, entry)| entry)
    }
}
