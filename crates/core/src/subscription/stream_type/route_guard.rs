//! Endpoints that the origin has not answered, and whether they hold back routes.
//!
//! Owns that question and its last answer. Routes wait for endpoints so that none of them leads to a cluster that has
//! nobody behind it. An origin that never says that a name is gone leaves the names of clusters that are gone unanswered
//! for ever, and a client that comes back asks for them still: these protect nobody.

use std::collections::HashSet;

use super::super::route_guard::Mark;
use super::StreamType;
use crate::cache::{Seen, Snapshot};
use crate::resource::Name;

impl StreamType {
    /// Whether names of this type that are not known hold back a route that needs them.
    pub(in crate::subscription) fn is_guarding(&self) -> bool {
        self.guard.as_deref().is_none_or(|guard| guard.protects)
    }
}

/// Read before what is looked at.
pub(in crate::subscription) fn mark(state: &StreamType) -> Mark {
    let cohort = state.membership.cohort();
    (state.membership.of().index(), cohort.id(), cohort.touched())
}

pub(in crate::subscription) fn is_unknown(snapshot: &Snapshot, name: &Name) -> bool {
    matches!(snapshot.by_name(name.as_str()), Seen::Unknown | Seen::Failed | Seen::Dropped(_))
}

/// Whether a cluster that this client has been told of, or is about to be, asks for endpoints that are not known.
pub(in crate::subscription) fn protects(endpoints: &StreamType, clusters: &StreamType) -> bool {
    if endpoints.subscription().wildcard {
        return true;
    }
    let (snapshot, told) = (endpoints.membership.of().snapshot(), clusters.membership.of().snapshot());
    let unknown = || endpoints.subscription().names().iter().filter(|name| is_unknown(&snapshot, name));
    // Mostly endpoints go by the name of their cluster.
    let asks = clusters.subscription();
    let own = |name: &Name| {
        told.seen_by(asks, name.as_str()).and_then(|cluster| cluster.eds_service()) == Some(name)
    };
    if unknown().any(own) {
        return true;
    }
    let unknown: HashSet<&Name> = unknown().collect();
    let services = told.held_by(asks, &clusters.position).filter_map(|(_, cluster)| cluster?.eds_service());
    !unknown.is_empty() && services.into_iter().any(|service| unknown.contains(service))
}
