//! Changes since a generation, for readers that keep a copy of a store.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::Snapshot;
use crate::cache::Generation;
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
}
