//! Parts of a response that a subscription covers.

use super::super::aliases;
use super::super::names::Names;
use super::super::response::{ReceivedResource, Removed};
use super::{Asking, Topic};
use crate::cache::{Snapshot, View};
use crate::resource::{Collection, Name, Parameters, Resource};

/// The names under which a resource was asked for beside its own.
pub(super) fn aliases_of(
    names: &Names,
    asking: Asking,
    snapshot: &Snapshot,
    heard: &ReceivedResource<'_>,
) -> aliases::Asked {
    if asking.view != View::Named {
        return aliases::Asked::new();
    }
    aliases::asked_by(names, snapshot, &heard.envelope, &heard.name)
}

/// Whether it answers clients with these parameters that an identity does not exist (any more): they may see it, or, with
/// no constraints named, it is said that there is nothing for them (R-DP-05).
pub(super) fn concerns(
    removed: &Removed<'_>,
    view: View,
    snapshot: &Snapshot,
    parameters: &Parameters,
) -> bool {
    let constraints = removed.constraints.as_ref();
    let is_held = |held: &Resource| held.constraints() == constraints;
    constraints.is_none_or(|constraints| constraints.matches(parameters))
        || snapshot.held(view, &removed.name).is_some_and(|held| is_held(held))
}

/// Whether it answers a topic that asked for the name at another time than this one, whose own answer is on its way.
pub(super) fn is_of_another(names: &Names, removed: &Removed<'_>) -> bool {
    removed.asked.is_some_and(|asked| names.awaits_since(&removed.name).is_some_and(|at| at != asked))
}

/// Whether a resource may have this name in a view: a collection is none, whatever the origin calls its own.
pub(super) fn is_resource(view: View, name: &str) -> bool {
    view == View::Wildcard || Collection::named(name).is_none()
}

impl Topic {
    /// Whether anything subscribed to in a view covers a name (R-Up-15).
    pub(super) fn covers(&self, view: View, name: &str) -> bool {
        match view {
            View::Wildcard => self.covers_wildcard(),
            View::Named => self.names.covers(name),
        }
    }

    /// The name, if it is [covered](Self::covers), in an allocation that is already held, if there is one.
    pub(super) fn covering(&self, view: View, snapshot: &Snapshot, name: &str) -> Option<Name> {
        if !self.covers(view, name) {
            return None;
        }
        let known =
            snapshot.get(name).map(|entry| entry.name()).or_else(|| self.names.covered_or_borrowed(name));
        Some(known.cloned().unwrap_or_else(|| name.into()))
    }
}
