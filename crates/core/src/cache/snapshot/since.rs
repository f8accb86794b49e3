//! Changes since a generation, for readers that keep a copy of a store.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::Snapshot;
use crate::cache::Generation;
use crate::cache::subscription::Subscription;
use crate::resource::Name;

impl Snapshot {
    /// Names of which anything may have changed after this generation, be it that nothing is known of them any more. `None` if
    /// that is not remembered: the whole store has to be compared.
    ///
    /// Example: at generation 7 a reader has copied everything. `a` changes at 8, and `b`, whose entry was last changed at 5, is
    /// let go at 9 and has no entry any more. At generation 9 the names since 7 are `a` and `b`.
    pub fn changed_since(&self, since: Generation) -> Option<BTreeSet<Name>> {
        let forgotten = self.forgotten.after(since)?;
        let later = || (Bound::Excluded(since), Bound::Unbounded);
        let renewed = self.renewals.range(later()).map(|(_, entry)| entry);
        let names = self.log.range(later()).chain(renewed).map(|entry| entry.name().clone());
        Some(names.chain(forgotten.cloned()).collect())
    }

    /// Names that last changed after this generation, each with whether there is a resource of it now.
    pub fn changed_after(&self, since: Generation) -> impl Iterator<Item = (&Name, bool)> {
        let later = self.log.range((Bound::Excluded(since), Bound::Unbounded));
        later.map(|entry| (entry.name(), entry.is_member() || entry.by_name().existing().is_some()))
    }

    /// Whether a name is left that changed between these generations, `to` included, and has not changed since.
    pub fn has_last_changes(&self, since: Generation, to: Generation) -> bool {
        since < to && self.log.range((Bound::Excluded(since), Bound::Included(to))).next().is_some()
    }

    /// Whether clients with this subscription have something to learn of the changes after this generation.
    pub fn has_news_for(&self, subscription: &Subscription, since: Generation) -> bool {
        let names = subscription.names();
        let is_named = !subscription.wildcard && !subscription.has_collections();
        // Each change has a generation: the shorter way is taken.
        if is_named && (names.len() as u64) < self.generation.get().saturating_sub(since.get()) {
            let changed =
                |name: &Name| Some(subscription.look(self.table.get(name.as_str())?, false)?.changed);
            return names.iter().filter_map(changed).any(|changed| changed > since);
        }
        let mut later = self.log.range((Bound::Excluded(since), Bound::Unbounded));
        later.any(|entry| subscription.look(entry, false).is_some_and(|look| look.changed > since))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::cache::change::{Change, Op};
    use crate::cache::fixture::resource;
    use crate::cache::view::View;
    use crate::cache::{Cache, Limits};
    use crate::resource::{Kind, TypeUrl};

    #[test]
    fn a_change_is_news_for_those_that_see_what_changed() {
        let (cache, mut writer) = Cache::new(Limits::default());
        let cds = TypeUrl::from(Kind::Cluster);
        let of = cache.of(&cds).expect("a type of the protocol");
        let mut apply = |op| {
            let change = Change { ops: vec![op], ..Change::default() };
            writer.apply(&cds, change, Instant::now()).expect("a type of the protocol");
            of.snapshot()
        };
        let since = apply(Op::held(View::Wildcard, resource(&cds, "a", "1", b""), None)).generation();
        let changed = apply(Op::held(View::Named, resource(&cds, "b", "1", b""), None));
        let named = |name: &str| Subscription::new(false, [Name::from(name)]);
        let asks = [Subscription::new(true, []), named("a"), named("b"), named("c")];
        assert_eq!(asks.map(|asks| changed.has_news_for(&asks, since)), [false, false, true, false]);

        let to = changed.generation();
        assert!(changed.has_last_changes(since, to) && !changed.has_last_changes(to, to));
        let removed = apply(Op::Remove { view: View::Named, name: "b".into() });
        assert!(!removed.has_last_changes(since, to), "it has changed again");
        let after = |snapshot: &Snapshot| {
            let all = snapshot.changed_after(since).map(|(name, is_there)| (name.to_string(), is_there));
            all.collect::<Vec<_>>()
        };
        assert_eq!(after(&changed), [("b".to_owned(), true)]);
        assert_eq!(after(&removed), [("b".to_owned(), false)]);
    }
}
