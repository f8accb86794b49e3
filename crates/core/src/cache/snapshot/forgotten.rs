//! Names that have no entry any more.
//!
//! Owns how many are remembered. The log of a snapshot lists entries, and not every name that goes leaves one. Clients need no such
//! list; a reader that copies the store does. It is empty unless the [writer](crate::cache::Writer::remember_forgotten) was asked
//! for it.

use std::ops::Bound;

use imbl::OrdMap;

use crate::cache::Generation;
use crate::resource::Name;

/// Names that have no entry any more, at the place where each last changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Forgotten {
    names: OrdMap<Generation, Name>,
    /// Up to here it is not remembered.
    horizon: Generation,
}

impl Forgotten {
    /// Notes that a name has no entry any more, of which nothing changed after `at`. Remembers so many names.
    pub(super) fn note(&mut self, at: Generation, name: &Name, remembers: usize) {
        if remembers > 0 && at > Generation::ZERO {
            self.names.insert(at, name.clone());
            while self.names.len() > remembers
                && let Some((first, _)) = self.names.get_min()
            {
                self.horizon = *first;
                self.names.remove(&self.horizon);
            }
        }
    }

    /// Names after a generation; `None` if some of these are not remembered.
    pub(super) fn after(&self, since: Generation) -> Option<impl Iterator<Item = &Name>> {
        let later = (Bound::Excluded(since), Bound::Unbounded);
        (since >= self.horizon).then(|| self.names.range(later).map(|(_, name)| name))
    }
}
