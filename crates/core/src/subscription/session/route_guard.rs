//! Routes that wait for endpoints, and reports of long delays.
//!
//! Owns whether endpoints that the origin has not answered hold back routes. Routes wait so that
//! none leads to a cluster without hosts. But some origins never say that a name is gone, and a
//! reconnecting client still asks for endpoints of removed clusters. Such names protect nobody.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::super::per_stream_state::{Guard, Mark};
use super::super::session_error::clip;
use super::super::stream_type::{Pending, StreamType};
use super::Session;
use super::flush_order::Deadline;
use crate::cache::{Snapshot, VisibleState};
use crate::resource::{Kind, Name};

const LONG: Duration = Duration::from_secs(1);

impl Session {
    /// Updates whether unknown endpoints hold back routes.
    pub(in crate::subscription) fn guard(&mut self, pending: &[Pending], now: Instant) {
        let of = |kind: Kind| self.types.iter().position(|state| state.kind == kind);
        let is_unknown = |at: &usize| self.unknown_until(*at, &pending[*at], now).is_some();
        let Some(at) = of(Kind::Endpoint).filter(is_unknown) else { return };
        // The client has its clusters from elsewhere.
        let Some(clusters) = of(Kind::Cluster).map(|at| &self.types[at]) else { return };
        let (endpoints, seen) = (&self.types[at], (mark(&self.types[at]), mark(clusters)));
        if endpoints.guard.as_deref().is_some_and(|guard| (guard.endpoints, guard.clusters) == seen) {
            return;
        }
        let guard = Guard { endpoints: seen.0, clusters: seen.1, protects: protects(endpoints, clusters) };
        self.types[at].guard = Some(Box::new(guard));
    }

    /// Counts and logs once that one type waits long for another that the origin has not answered.
    pub(in crate::subscription) fn note_delay(
        &mut self,
        leader: usize,
        waits: usize,
        now: Instant,
        deadline: &mut Deadline,
    ) {
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

    pub fn take_delays(&mut self) -> SmallVec<[Kind; 1]> {
        std::mem::take(&mut self.delays)
    }
}

/// Read it before the data.
fn mark(state: &StreamType) -> Mark {
    let cohort = state.membership.cohort();
    (state.membership.of().index(), cohort.id(), cohort.touched())
}

fn is_unknown(snapshot: &Snapshot, name: &Name) -> bool {
    matches!(
        snapshot.by_name(name.as_str()),
        VisibleState::Unknown | VisibleState::Failed | VisibleState::Dropped(_)
    )
}

/// Whether a cluster of this client, sent or due, uses unknown endpoints.
fn protects(endpoints: &StreamType, clusters: &StreamType) -> bool {
    if endpoints.subscription().wildcard {
        return true;
    }
    let (snapshot, held) = (endpoints.membership.of().snapshot(), clusters.membership.of().snapshot());
    let unknown = || endpoints.subscription().names().iter().filter(|name| is_unknown(&snapshot, name));
    let asks = clusters.subscription();
    let own = |name: &Name| {
        held.seen_by(asks, name.as_str()).and_then(|cluster| cluster.eds_service()) == Some(name)
    };
    if unknown().any(own) {
        return true;
    }
    let unknown: HashSet<&Name> = unknown().collect();
    let services = held.held_by(asks, &clusters.position).filter_map(|(_, cluster)| cluster?.eds_service());
    !unknown.is_empty() && services.into_iter().any(|service| unknown.contains(service))
}
