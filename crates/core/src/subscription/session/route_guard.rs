//! Routes and their clusters: routes that wait for endpoints, and clusters that are removed before the client accepts them.
//!
//! Routes wait so that none leads to a cluster without hosts. But some origins never say that a name is gone, and a
//! reconnecting client still asks for endpoints of removed clusters. Such names protect nobody.
//!
//! Envoy holds its ACK of clusters until all are warm (V1). A cluster that is gone may never be
//! warm, as nobody has its endpoints. So a client that does not answer for clusters gets these
//! removals, and other news of clusters, without waiting for the ACK. No route of the client can
//! lead there, because routes wait for the ACK too. Other removals wait for routes.
//!
//! Clusters removed as any other, because the client may hold or use them:
//! - a cluster that existed before and whose end the cache remembers;
//! - clusters of the first response on a stream, until all removals from an earlier stream are
//!   sent;
//! - a cluster to which a route was sent before it existed.
//!
//! Example: clusters `a` and `b` replace each other within milliseconds, and routes follow. An
//! Envoy is sent `a`, whose endpoints are gone when it asks for them. 200 ms later it is sent `b`
//! and the removal of `a`, ACKs both, and gets its routes.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::super::per_stream_state::{Guard, Mark};
use super::super::permissions::clip;
use super::super::stream_type::{InFlight, Pending, StreamType};
use super::Session;
use crate::cache::{Snapshot, Update, VisibleState};
use crate::resource::{Kind, Name};

/// Earliest time at which something may change by itself.
#[derive(Debug, Default)]
pub struct Deadline(pub Option<Instant>);

impl Deadline {
    /// Brings it forward to this moment, if there is one and it is earlier.
    pub fn not_after(&mut self, moment: impl Into<Option<Instant>>) {
        if let Some(moment) = moment.into() {
            self.0 = Some(self.0.map_or(moment, |earliest| earliest.min(moment)));
        }
    }
}

const LONG: Duration = Duration::from_secs(1);

impl Session {
    /// Updates whether unknown endpoints hold back routes.
    pub(super) fn guard(&mut self, pending: &[Pending], now: Instant) {
        let is_unknown = |at: &usize| self.unknown_until(*at, &pending[*at], now).is_some();
        let Some(at) = self.of_kind(Kind::Endpoint).filter(is_unknown) else { return };
        // The client has its clusters from elsewhere.
        let Some(clusters) = self.clusters() else { return };
        let (endpoints, seen) = (&self.types[at], (mark(&self.types[at]), mark(clusters)));
        if endpoints.guard.as_deref().is_some_and(|guard| (guard.endpoints, guard.clusters) == seen) {
            return;
        }
        let guard = Guard { endpoints: seen.0, clusters: seen.1, protects: protects(endpoints, clusters) };
        self.types[at].guard = Some(Box::new(guard));
    }

    /// Counts and logs once that one type waits long for another that the origin has not answered.
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

/// Time for an answer before the check, and between two checks. Most ACKs are quicker unless a
/// cluster holds them up. If a link is slower, the client gets more before it answers, which does
/// no harm.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// Most remembered names of clusters that were missing when routes to them were sent. With more, no
/// cluster is removed early.
const MOST_DANGLING: usize = 64;

#[derive(Debug, Default)]
pub(super) struct UnacceptedRemovals {
    pub(super) names: BTreeSet<Name>,
    /// Index of the clusters and the response that is overtaken, if the gate was closed.
    pub(super) overtaken: Option<(usize, InFlight)>,
    /// Next check, if it is too early.
    pub(super) check_at: Option<Instant>,
}

impl Session {
    /// Finds clusters that are gone and were not accepted. If there are any, the gate of clusters
    /// stays open until something else is decided.
    pub(super) fn unaccepted_removals(&mut self, now: Instant) -> UnacceptedRemovals {
        let Some(accepted) = self.accepted_clusters else { return UnacceptedRemovals::default() };
        let Some(at) = self.of_kind(Kind::Cluster) else { return UnacceptedRemovals::default() };
        let Some(taken) = self.types[at].unanswered_with_news() else { return UnacceptedRemovals::default() };
        if !self.has_routes_to_all_clusters() || !self.types[at].subscription().names().is_empty() {
            return UnacceptedRemovals::default();
        }
        let due = self.checked_removals_at.map_or(taken, |checked| checked.max(taken)) + CHECK_EVERY;
        if now < due {
            return UnacceptedRemovals { check_at: Some(due), ..UnacceptedRemovals::default() };
        }
        let state = &mut self.types[at];
        let snapshot = state.membership.of().snapshot();
        let unaccepted = snapshot.withdrawn(accepted, &state.position);
        let names: BTreeSet<Name> =
            unaccepted.filter(|name| !self.dangling.contains(*name)).cloned().collect();
        if names.is_empty() {
            self.checked_removals_at = Some(now);
            return UnacceptedRemovals::default();
        }
        let overtaken = state.overtake().map(|in_flight| (at, in_flight));
        UnacceptedRemovals { names, overtaken, check_at: None }
    }

    /// Records, before a response is sent, which clusters the client has accepted.
    pub(super) fn note_accepted(&mut self, kind: Kind, update: &Update) {
        let Some(state) = self.clusters() else { return };
        if kind.follows_clusters() && self.has_routes_to_all_clusters() {
            let (store, snapshot) = (state.membership.of().index(), state.membership.of().snapshot());
            if update.additions && !update.has_its_clusters(store, &snapshot) {
                let room = (MOST_DANGLING + 1).saturating_sub(self.dangling.len());
                self.dangling.extend(update.lacking_clusters(&snapshot).take(room).cloned());
            }
            // The client's routes may lead to any cluster that it was sent.
            self.accepted_clusters = None;
        } else if kind == Kind::Cluster && !state.is_unanswered() {
            // Clusters that a client holds from an earlier stream are not known.
            let owes_removals = !state.own().owed.gone.is_empty() || state.own().resumed.is_some();
            let is_known = !state.position.is_start() && !state.may_hold && !owes_removals;
            let is_known = is_known && self.dangling.len() <= MOST_DANGLING;
            self.accepted_clusters = is_known.then(|| state.position.latest_sent());
            self.checked_removals_at = None;
        }
    }
}
