//! Whether endpoints that the origin has not answered hold back routes.
//!
//! Owns that question and its last answer. Routes wait for endpoints so that none of them leads to a cluster that has
//! nobody behind it. An origin that never says that a name is gone leaves the names of clusters that are gone unanswered
//! for ever, and a client that comes back asks for them still: these protect nobody.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::order::Deadline;
use super::session::{Session, clip};
use super::stream_type::{Pending, StreamType};
use crate::cache::{Generation, Seen, Snapshot};
use crate::resource::{Kind, Name};

/// A delay that an operator is to find the reason of.
const LONG: Duration = Duration::from_secs(1);

/// A store, a cohort in it, and how far that had been marked when it was looked at.
type Mark = (u32, u64, Generation);

/// The last answer. It stands for as long as both marks do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    endpoints: Mark,
    clusters: Mark,
    protects: bool,
}

impl Session {
    /// Works out anew, where it may have changed, whether endpoints that are not known hold back routes.
    pub(super) fn guard(&mut self, pending: &[Pending], now: Instant) {
        let of = |kind: Kind| self.types.iter().position(|state| state.kind == kind);
        let is_unknown = |at: &usize| self.unknown_until(*at, &pending[*at], now).is_some();
        let Some(at) = of(Kind::Endpoint).filter(is_unknown) else { return };
        // A client that does not ask for clusters here has them from elsewhere, as of its own configuration.
        let Some(clusters) = of(Kind::Cluster).map(|at| &self.types[at]) else { return };
        let (endpoints, seen) = (&self.types[at], (mark(&self.types[at]), mark(clusters)));
        if endpoints.guard.as_deref().is_some_and(|guard| (guard.endpoints, guard.clusters) == seen) {
            return;
        }
        let guard = Guard { endpoints: seen.0, clusters: seen.1, protects: protects(endpoints, clusters) };
        self.types[at].guard = Some(Box::new(guard));
    }
}

impl Session {
    /// One type waits for another of which the origin leaves something unanswered. Where that takes long, it is counted and
    /// logged once.
    pub(super) fn note_delay(&mut self, leader: usize, waits: usize, now: Instant, deadline: &mut Deadline) {
        let leading = &self.types[leader];
        let Some(since) = leading.holds.filter(|since| leading.delay_noted != Some(*since)) else { return };
        if now < since + LONG {
            return deadline.not_after(since + LONG);
        }
        let (of, waits) = (leading.membership.of(), self.types[waits].membership.of().type_url());
        let snapshot = of.snapshot();
        let mut unknown = leading.subscription().names().iter().filter(|name| is_unknown(&snapshot, name));
        let name = clip(unknown.next().map_or(Name::WILDCARD, Name::as_str));
        let node = self.client.as_ref().map_or("", |client| client.node_id.as_str());
        tracing::debug!(
            node, %waits, type_url = %of.type_url(), name,
            "held back until the control plane answers for a resource that comes first, or for `downstream.ack_timeout`"
        );
        self.delays.push(of.type_url().kind());
        self.types[leader].delay_noted = Some(since);
    }

    /// The types for whose answers others have waited long since this was last asked.
    pub fn take_delays(&mut self) -> SmallVec<[Kind; 1]> {
        std::mem::take(&mut self.delays)
    }
}

impl StreamType {
    /// Whether what is not known of it protects somebody.
    pub(super) fn is_guarding(&self) -> bool {
        self.guard.as_deref().is_none_or(|guard| guard.protects)
    }
}

/// Read before what is looked at.
fn mark(state: &StreamType) -> Mark {
    let cohort = state.membership.cohort();
    (state.membership.of().index(), cohort.id(), cohort.touched())
}

fn is_unknown(snapshot: &Snapshot, name: &Name) -> bool {
    matches!(snapshot.by_name(name.as_str()), Seen::Unknown | Seen::Failed | Seen::Dropped(_))
}

/// Whether a cluster that this client has been told of, or is about to be, asks for endpoints that are not known.
fn protects(endpoints: &StreamType, clusters: &StreamType) -> bool {
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
    let services = told.held_by(asks, &clusters.span).filter_map(|(_, cluster)| cluster?.eds_service());
    !unknown.is_empty() && services.into_iter().any(|service| unknown.contains(service))
}
