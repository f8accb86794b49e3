//! Endpoints that the origin has not answered, and whether they hold back routes.
//!
//! Owns that question and its last answer. Routes wait so that none leads to a cluster without
//! hosts. But some origins never say that a name is gone, and a reconnecting client still asks for
//! endpoints of removed clusters. Such names protect nobody.

use std::collections::HashSet;

use super::super::route_guard::Mark;
use super::StreamType;
use crate::cache::{Seen, Snapshot};
use crate::resource::Name;

impl StreamType {
    pub(in crate::subscription) fn is_guarding(&self) -> bool {
        self.guard.as_deref().is_none_or(|guard| guard.protects)
    }
}

/// Read it before the data.
pub(in crate::subscription) fn mark(state: &StreamType) -> Mark {
    let cohort = state.membership.cohort();
    (state.membership.of().index(), cohort.id(), cohort.touched())
}

pub(in crate::subscription) fn is_unknown(snapshot: &Snapshot, name: &Name) -> bool {
    matches!(snapshot.by_name(name.as_str()), Seen::Unknown | Seen::Failed | Seen::Dropped(_))
}

/// Whether a cluster of this client, sent or due, uses unknown endpoints.
pub(in crate::subscription) fn protects(endpoints: &StreamType, clusters: &StreamType) -> bool {
    if endpoints.subscription().wildcard {
        return true;
    }
    let (snapshot, told) = (endpoints.membership.of().snapshot(), clusters.membership.of().snapshot());
    let unknown = || endpoints.subscription().names().iter().filter(|name| is_unknown(&snapshot, name));
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
