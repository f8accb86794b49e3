//! Changes since a generation, for readers that keep a copy of a store.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Generation;
use super::super::entry::Entry;
use super::super::position::Position;
use super::super::subscription::Subscription;
use super::Snapshot;
use crate::resource::Name;

impl Snapshot {
    /// Names of which anything changed since an earlier snapshot of the store.
    ///
    /// Example: a reader has copied everything of `earlier`. `a` changes, and `b` loses its entry. The names are
    /// `a` and `b`.
    pub fn changed_since(&self, earlier: &Self) -> BTreeSet<Name> {
        let changed =
            self.table.differing_from(&earlier.table).chain(earlier.table.differing_from(&self.table));
        changed.map(|entry| entry.name().clone()).collect()
    }

    /// Entries that changed last after `from`, up to `to`; or all of the subscription, if these are fewer.
    fn changes_or_names<'a>(
        &'a self,
        subscription: &'a Subscription,
        from: Generation,
        to: Generation,
    ) -> impl Iterator<Item = &'a Arc<Entry>> {
        // Each change has a generation.
        let by_name = has_only_names(subscription)
            && (subscription.names().len() as u64) < to.get().saturating_sub(from.get());
        let names = if by_name { subscription.names() } else { &[] };
        let named = names.iter().filter_map(|name| self.table.get(name.as_str()));
        named.chain((!by_name).then(|| self.log.between(from, to)).into_iter().flatten())
    }

    /// Members that a client may have been sent after `since`, and that went after its position.
    pub fn withdrawn(&self, since: Generation, position: &Position) -> impl Iterator<Item = &Name> {
        let later = self.log.after(position.added);
        let came = move |entry: &&Arc<Entry>| {
            since < entry.wild_since
                && entry.wild_since <= position.newest_state
                && position.added < entry.wild_changed
        };
        later.filter(|entry| !entry.is_member()).filter(came).map(|entry| entry.name())
    }

    /// Names that came after anything was sent to this client, and went again. Requested names may have been
    /// sent before they became members.
    pub fn came_and_went<'a>(
        &'a self,
        subscription: &'a Subscription,
        position: &'a Position,
    ) -> impl Iterator<Item = &'a Name> {
        let later = self.log.after(position.removed);
        let is_new = |entry: &&Arc<Entry>| {
            let visible = subscription.visible_entry(entry, false);
            visible.is_some_and(|visible| {
                visible.state.existing().is_none() && position.newest_state < visible.since
            })
        };
        later.filter(is_new).map(|entry| entry.name())
    }

    /// Whether a former member has been none since this generation or earlier.
    pub fn lacks_member_since(&self, name: &str, since: Generation) -> bool {
        self.get(name).is_some_and(|entry| !entry.is_member() && entry.wild_changed <= since)
    }

    /// Visible names that last changed after `from`, up to `to`; for wildcards and collections only the first
    /// are visited.
    pub fn changed_between<'a>(
        &'a self,
        subscription: &'a Subscription,
        from: Generation,
        to: Generation,
    ) -> impl Iterator<Item = &'a Name> {
        const LOOKED_AT: usize = 10_000;
        let most = if has_only_names(subscription) { usize::MAX } else { LOOKED_AT };
        let is_within = move |entry: &&Arc<Entry>| from < entry.position() && entry.position() <= to;
        let changed = self.changes_or_names(subscription, from, to).take(most).filter(is_within);
        changed.filter(|entry| subscription.visible_state(entry).is_some()).map(|entry| entry.name())
    }

    /// Whether removals of members after this generation are still known.
    pub fn remembers(&self, since: Generation) -> bool {
        since >= self.horizon
    }
}

fn has_only_names(subscription: &Subscription) -> bool {
    !subscription.wildcard && !subscription.has_collections()
}
