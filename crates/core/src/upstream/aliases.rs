//! Under which of the names that were asked for a resource is held (R-Relay-20).
//!
//! An origin that is asked for an alias answers with the resource under its own name, and lists its aliases. Owns how the
//! one leads to the others. What nobody asked for leaves no trace, however long the list.

use std::borrow::Cow;

use foldhash::HashSet;
use smallvec::SmallVec;

use super::names::Names;
use crate::cache::Snapshot;
use crate::resource::{Envelope, Name, normal_form};

/// Names that were asked for.
pub(super) type Asked = SmallVec<[Name; 2]>;

/// The names under which an envelope is to be held beside its own, which is `own` in its normal form: those of its aliases
/// that were asked for. Where it lists none and has no body, it speaks of what is held.
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

/// The names under which a resource is held beside its own.
pub(super) fn held_by(names: &Names, snapshot: &Snapshot, own: &str) -> Asked {
    snapshot.aliases_of(own).filter(|alias| names.covered(alias.as_str()).is_some()).cloned().collect()
}

/// The names under which a resource was held and that are not among its aliases any more.
pub(super) fn lost_by(names: &Names, snapshot: &Snapshot, envelope: &Envelope<'_>, own: &str) -> Asked {
    let mut held = held_by(names, snapshot, own);
    if !held.is_empty() {
        let listed: HashSet<Cow<'_, str>> = envelope.aliases().map(normal_form).collect();
        held.retain(|alias| !listed.contains(alias.as_str()));
    }
    held
}

/// Whether an envelope without a body says that its own name is an alias of nothing (R-Delta-22).
pub(super) fn is_unresolved(envelope: &Envelope<'_>, own: &str) -> bool {
    envelope.has_aliases && envelope.aliases().any(|alias| normal_form(alias) == own)
}
