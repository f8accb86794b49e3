//! Entries that may be news, and their order.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::super::Generation;
use super::super::entry::Entry;
use super::super::position::Part;
use super::super::subscription::VisibleEntry;
use super::{Diff, Order};
use crate::resource::Name;

impl Diff<'_> {
    /// Order of [`for_each_candidate`](Self::for_each_candidate): by change, or by name if shorter. An answer
    /// in parts keeps its order.
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
        let from = self.position.added.min(self.position.removed);
        // The size of a collection is not known in advance.
        let has_collections = self.subscription.has_collections();
        let is_shorter = || {
            !self.position.is_start()
                && (has_collections || self.snapshot.log.after(from).nth(names).is_none())
        };
        let few_renewed = || !self.is_timed || has_collections || self.renewals(from).nth(names).is_none();
        match () {
            () if self.subscription.wildcard || (is_shorter() && few_renewed()) => Order::Place,
            () if has_collections => Order::None,
            () => Order::Name,
        }
    }

    /// Visits changed entries, each once, until `with` breaks: possible news in order, then entries with only a
    /// removal left to send.
    pub(super) fn for_each_candidate<'s>(
        &'s self,
        order: Order,
        mut with: impl FnMut(&'s Arc<Entry>, VisibleEntry<'s>) -> ControlFlow<()>,
    ) {
        let names = self.subscription.names();
        let entry = |name: &'s Name| self.snapshot.table.get(name.as_str());
        let done = match order {
            Order::Place => {
                let mut visible = |entry: &'s Arc<Entry>| match self.visible_entry(entry) {
                    Some(visible) => with(entry, visible),
                    None => ControlFlow::Continue(()),
                };
                let last = self.position.added.max(self.position.removed);
                let sent = self.snapshot.log.between(self.position.removed, last);
                let sent = sent.filter(|entry| self.place(entry) <= self.position.added);
                self.news_by_place().chain(sent).try_for_each(&mut visible)
            }
            Order::Name => {
                let passed = names.partition_point(|name| self.position.has_passed(name.as_str()));
                let in_order = names[passed..].iter().chain(&names[..passed]);
                in_order.filter_map(entry).try_for_each(|entry| self.with_named(entry, &mut with))
            }
            Order::None => {
                let names = self.changed.as_deref().unwrap_or(names);
                let listed = self.snapshot.listed(self.subscription).filter(|_| self.changed.is_none());
                let entries =
                    names.iter().filter_map(|name| self.snapshot.table.get(name.as_str())).chain(listed);
                entries.into_iter().try_for_each(|entry| self.with_named(entry, &mut with))
            }
        };
        // `with` itself records whether it broke.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = done;
    }

    fn renewals(&self, since: Generation) -> impl Iterator<Item = (&Generation, &Arc<Entry>)> {
        self.snapshot.renewals.range((Bound::Excluded(since), Bound::Unbounded))
    }

    fn with_named<'s>(
        &'s self,
        entry: &'s Arc<Entry>,
        with: &mut impl FnMut(&'s Arc<Entry>, VisibleEntry<'s>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let visible = if self.subscription.has_collections() {
            self.visible_entry(entry)
        } else {
            Some(VisibleEntry::by_name(entry, self.profile.aggregated))
        };
        visible.map_or(ControlFlow::Continue(()), |visible| with(entry, visible))
    }

    /// Entries after the newest added place, in order.
    fn news_by_place(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let since = self.position.added;
        let mut changes = self.snapshot.log.after(since).map(|entry| (entry.position(), entry)).peekable();
        let renewals = self.is_timed.then(|| self.renewals(since));
        let mut renewals = renewals.into_iter().flatten().map(|(at, entry)| (*at, entry)).peekable();
        let both = std::iter::from_fn(move || match (changes.peek(), renewals.peek()) {
            (Some((change, _)), Some((renewal, _))) if renewal < change => renewals.next(),
            (Some(_), _) => changes.next(),
            (None, _) => renewals.next(),
        });
        // An entry that was renewed after its change is in both.
        both.filter(|(at, entry)| *at == self.place(entry)).map(|(_, entry)| entry)
    }
}
