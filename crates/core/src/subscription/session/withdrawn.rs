//! Clusters that were withdrawn: sent to a client, and gone before it accepted them.
//!
//! Envoy holds its ACK of clusters until all of them are warm (V1). One that is gone may never be: nobody has its endpoints any more.
//! So a client that does not answer for clusters is told of those that are gone, without waiting for the ACK, and of whatever
//! else is new of them. No route at it can lead there: routes wait for the ACK too. That is how such a removal differs from others,
//! which wait for routes.
//!
//! A cluster that was there before, and whose end the cache remembers, is not known from one that the client holds: it is removed as any
//! other. So are clusters in the first response on a stream, and until its client was told of all that is gone: it may have them from an
//! earlier stream. And so is one to which a route was sent before it was there.
//!
//! Example: clusters `a` and `b` replace each other within milliseconds, and routes follow. An Envoy is sent `a`, whose endpoints
//! are gone when it asks for them. 200 ms later it is sent `b` and the removal of `a`, ACKs both, and gets its routes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::stream_type::{InFlight, StreamType};
use super::Session;
use crate::cache::Update;
use crate::resource::{Kind, Name};

/// Time for an answer before clusters are looked through, and between two looks. An ACK that no cluster holds up is quicker on most
/// links; where it is not, a client is told more before it answers, which does no harm.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Clusters that were not there when routes to them were sent, of which a stream keeps the names. With more, none is withdrawn.
const MOST_DANGLING: usize = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Withdrawn {
    pub(super) names: BTreeSet<Name>,
    /// Place of the clusters and the response that is overtaken, where the gate was closed.
    pub(super) overtaken: Option<(usize, InFlight)>,
    /// When to look for them, where it is too early.
    pub(super) look_at: Option<Instant>,
}

impl Session {
    /// Clusters that the client has not accepted and that are gone; the gate of clusters is open where there are any, until something else
    /// than these is decided on.
    pub(super) fn withdraw(&mut self, now: Instant) -> Withdrawn {
        let Some(accepted) = self.accepted_clusters else { return Withdrawn::default() };
        let is_cluster = |state: &StreamType| state.kind == Kind::Cluster;
        let Some(at) = self.types.iter().position(is_cluster) else { return Withdrawn::default() };
        let Some(taken) = self.types[at].unanswered_with_news() else { return Withdrawn::default() };
        if !self.has_routes_to_all_clusters() || !self.types[at].subscription().names().is_empty() {
            return Withdrawn::default();
        }
        let due = self.looked_for_withdrawn.map_or(taken, |looked| looked.max(taken)) + LOOK_EVERY;
        if now < due {
            return Withdrawn { look_at: Some(due), ..Withdrawn::default() };
        }
        let state = &mut self.types[at];
        let snapshot = state.membership.of().snapshot();
        let withdrawn = snapshot.withdrawn(accepted, &state.position);
        let names: BTreeSet<Name> =
            withdrawn.filter(|name| !self.dangling.contains(*name)).cloned().collect();
        if names.is_empty() {
            self.looked_for_withdrawn = Some(now);
            return Withdrawn::default();
        }
        let overtaken = state.overtake().map(|in_flight| (at, in_flight));
        Withdrawn { names, overtaken, look_at: None }
    }

    /// A response of a type is about to be said: notes what its client has accepted of clusters by now.
    pub(super) fn note_accepted(&mut self, kind: Kind, update: &Update) {
        let Some(state) = self.clusters() else { return };
        if kind.follows_clusters() && self.has_routes_to_all_clusters() {
            let (store, snapshot) = (state.membership.of().index(), state.membership.of().snapshot());
            if update.has_additions() && !update.has_its_clusters(store, &snapshot) {
                let room = (MOST_DANGLING + 1).saturating_sub(self.dangling.len());
                self.dangling.extend(update.lacking_clusters(&snapshot).take(room).cloned());
            }
            // Its routes may lead to whatever it was sent.
            self.accepted_clusters = None;
        } else if kind == Kind::Cluster && !state.is_unanswered() {
            // Clusters that a client holds from an earlier stream are not known.
            let owes_removals = !state.own().owed.gone.is_empty() || state.own().brought.is_some();
            let is_known = !state.position.is_start() && !state.may_hold && !owes_removals;
            let is_known = is_known && self.dangling.len() <= MOST_DANGLING;
            self.accepted_clusters = is_known.then(|| state.position.told());
            self.looked_for_withdrawn = None;
        }
    }
}
