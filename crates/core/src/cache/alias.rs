//! Names by which the origin knows a resource beside its own (R-Relay-20).
//!
//! Owns what such a name stands for and has stood for, and the ways from a resource's own name back to it. A client that
//! asked by an alias is sent the resource under its own name and holds it under that: so what an alias stood for before is
//! remembered, to be told as removed. Only names that were asked for have an entry, whatever aliases the origin lists.
//!
//! Invariants: an alias is listed under the own name of what it stands for, and under no other; what is remembered of an
//! alias is bounded.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Generation;
use crate::resource::{Name, Resource};

/// More names that an alias stood for are not remembered.
const REMEMBERED: usize = 8;

/// Resource that an alias stands for, and those that it stood for before.
#[derive(Clone, Debug, Default)]
pub struct Alias {
    /// `None` where that does not exist. It may be a resource of this very name.
    pub(super) now: Option<Arc<Resource>>,
    /// Since when its clients see the name that they see now.
    pub(super) since: Generation,
    pub(super) past: SmallVec<[PastTarget; 1]>,
    /// Up to here it is not remembered what it stood for.
    pub(super) buried: Generation,
}

/// A resource by its own name.
#[derive(Clone, Debug)]
pub(super) struct PastTarget {
    pub(super) name: Name,
    /// A client that was told nothing since cannot hold it through this alias.
    pub(super) since: Generation,
    /// When it went.
    pub(super) until: Generation,
}

impl Alias {
    /// Resource that it stands for now, in whatever form it is there.
    pub const fn now(&self) -> Option<&Arc<Resource>> {
        self.now.as_ref()
    }

    pub(super) fn lose(&mut self, name: Name, until: Generation) {
        let mut since = self.since;
        if let Some(at) = self.past.iter().position(|past| past.name == name) {
            since = since.min(self.past.remove(at).since);
        } else if self.past.len() == REMEMBERED {
            self.buried = self.past.remove(0).until;
        }
        self.past.push(PastTarget { name, since, until });
    }
}
