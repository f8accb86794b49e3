//! Aliases: further names under which a resource is held (R-Relay-20).
//!
//! A control plane that is asked for an alias answers with the resource under its own name, and
//! lists its aliases. Owns how one leads to the other. Aliases that nobody asked for leave no
//! trace.

use std::borrow::Cow;

use foldhash::HashSet;
use smallvec::SmallVec;

use super::names::Names;
use crate::cache::Snapshot;
use crate::resource::{Envelope, Name, normal_form};

/// Requested aliases of one resource.
pub(super) type Asked = SmallVec<[Name; 2]>;

/// Returns the requested aliases of an envelope, whose own name is `own` in normal form. An
/// envelope without aliases and body is about the resource held: the result is then its aliases.
pub(super) fn asked_by(names: &Names, snapshot: &Snapshot, envelope: &Envelope<'_>, own: &str) -> Asked {
    if !envelope.has_aliases {
        return if envelope.body.is_none() { held_by(names, snapshot, own) } else { Asked::new() };
    }
    let asked = |alias| {
        let alias = normal_form(alias);
        names.covered(&alias).filter(|alias| alias.as_str() != own).cloned()
    };
    let mut asked: Asked = envelope.aliases().filter_map(asked).collect();
    asked.sort_unstable();
    asked.dedup();
    asked
}

/// Returns the aliases under which a resource is held.
pub(super) fn held_by(names: &Names, snapshot: &Snapshot, own: &str) -> Asked {
    snapshot.aliases_of(own).filter(|alias| names.covered(alias.as_str()).is_some()).cloned().collect()
}

/// Returns the aliases under which a resource was held and which it does not list any more.
pub(super) fn lost_by(names: &Names, snapshot: &Snapshot, envelope: &Envelope<'_>, own: &str) -> Asked {
    let mut held = held_by(names, snapshot, own);
    if !held.is_empty() {
        let listed: HashSet<Cow<'_, str>> = envelope.aliases().map(normal_form).collect();
        held.retain(|alias| !listed.contains(alias.as_str()));
    }
    held
}

/// Whether an envelope without a body says that its name is an alias of nothing (R-Delta-22).
pub(super) fn is_unresolved(envelope: &Envelope<'_>, own: &str) -> bool {
    envelope.has_aliases && envelope.aliases().any(|alias| normal_form(alias) == own)
}
