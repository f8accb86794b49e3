//! Parts of a response that a subscription covers.

use foldhash::HashSet;

use super::super::aliases;
use super::super::response::{ReceivedResource, Removed};
use super::super::stream_subscription::StreamSubscription;
use super::Asking;
use crate::cache::{Snapshot, View};
use crate::resource::{Collection, Name, Parameters, Resource};

/// The names under which a resource was asked for beside its own.
pub(super) fn aliases_of(
    subscription: &StreamSubscription,
    asking: Asking,
    snapshot: &Snapshot,
    heard: &ReceivedResource<'_>,
) -> aliases::Asked {
    if asking.view != View::Named {
        return aliases::Asked::new();
    }
    aliases::asked_by(subscription, snapshot, &heard.envelope, &heard.name)
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
pub(super) fn is_of_another(subscription: &StreamSubscription, removed: &Removed<'_>) -> bool {
    removed.asked.is_some_and(|asked| subscription.awaits_since(&removed.name).is_some_and(|at| at != asked))
}

/// Whether anything subscribed to in a view covers a name (R-Up-15).
pub(super) fn covers(
    subscription: &StreamSubscription,
    borrowed: &HashSet<Name>,
    view: View,
    name: &str,
) -> bool {
    match view {
        View::Wildcard => subscription.covers_wildcard(),
        View::Named => {
            subscription.covered(name).is_some()
                || borrowed.contains(name)
                || subscription.covers_member(name)
        }
    }
}

/// Whether a resource may have this name in a view: a collection is none, whatever the origin calls its own.
pub(super) fn is_resource(view: View, name: &str) -> bool {
    view == View::Wildcard || Collection::named(name).is_none()
}

/// The name, if it is [covered](covers), in an allocation that is already held, if there is one.
pub(super) fn covering(
    subscription: &StreamSubscription,
    borrowed: &HashSet<Name>,
    view: View,
    snapshot: &Snapshot,
    name: &str,
) -> Option<Name> {
    if !covers(subscription, borrowed, view, name) {
        return None;
    }
    let asked = || subscription.covered(name).or_else(|| borrowed.get(name));
    let known = snapshot.get(name).map(|entry| entry.name()).or_else(asked);
    Some(known.cloned().unwrap_or_else(|| name.into()))
}
