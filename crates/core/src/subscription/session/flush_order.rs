//! Next message of a stream, across its types (R-ADS-01 to R-ADS-03).
//!
//! Owns also when a stream ends that only observes (`deltafan get` at a relay). It gets what the relay holds and requests
//! nothing upstream, so it would wait for ever for resources that no client wants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::super::client::is_grpc;
use super::super::permissions::{Code, SessionError};
use super::super::session_config::Upstream;
use super::super::stream_type::{EvaluationInput, Pending, StreamType};
use super::route_guard::{Deadline, UnacceptedRemovals};
use super::{Outgoing, Overdue, Session};
use crate::cache::{Class, FellBehindError, Generation, Role, Update};
use crate::resource::{Kind, Name};

/// Time to keep removed clusters and endpoints after their newest change, for routes that change
/// with them: a slow round trip to a control plane, and time to answer.
const KEEP: Duration = Duration::from_secs(2);

/// Wait of routes for missing clusters, from the newest change of clusters.
///
/// A control plane sends more of a type only after its ACK. So routes to the second of two new
/// clusters may come a round trip before that cluster.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// Next step of a stream.
#[derive(Debug)]
pub enum NextStep {
    Send(Outgoing),
    /// Wait for the cache or the client, until this time at most.
    Wait(Option<Instant>),
    Close(SessionError),
}

/// This class of an update for the type at this index, with the removal of these names; `Err` if there is nothing to
/// send.
type Decision = Result<(usize, Arc<Update>, Class, BTreeSet<Name>), NextStep>;

impl Session {
    /// Works out the response to send now.
    ///
    /// A client that never answers is found here, without a timer: such waits are long, and a
    /// waiting stream looks again now and then.
    pub fn next(&mut self, now: Instant, upstream: Upstream) -> NextStep {
        match self.decide(now, upstream) {
            Ok((at, update, class, unaccepted)) => NextStep::Send(self.send(at, &update, class, &unaccepted)),
            Err(next) => next,
        }
    }

    /// Variant of [`next`](Self::next) for a transport without room: `None` if there is something
    /// to send.
    pub fn next_without_room(&mut self, now: Instant, upstream: Upstream) -> Option<NextStep> {
        self.decide(now, upstream).err()
    }

    /// Whether [`next`](Self::next) would wait for the cache or the client, without a deadline. Nearly always so after a
    /// response was taken, and after its ACK.
    pub fn is_up_to_date(&self, now: Instant) -> bool {
        let is_up_to_date =
            |state: &StreamType| state.is_up_to_date(self.is_relay()) && !state.owes_answer(now, &self.rules);
        self.role == Role::Client && self.types.iter().all(is_up_to_date)
    }

    fn decide(&mut self, now: Instant, upstream: Upstream) -> Decision {
        let mut deadline = Deadline::default();
        let unaccepted = self.unaccepted_removals(now);
        deadline.not_after(unaccepted.check_at);
        let decision = self.decide_with(&unaccepted, now, upstream, deadline);
        if let Some((at, in_flight)) = unaccepted.overtaken
            && !matches!(&decision, Ok((chosen, ..)) if *chosen == at)
        {
            self.types[at].close_gate(in_flight);
        }
        decision
    }

    fn decide_with(
        &mut self,
        unaccepted: &UnacceptedRemovals,
        now: Instant,
        upstream: Upstream,
        mut deadline: Deadline,
    ) -> Decision {
        if let Some(silent) = self.types.iter().find(|state| state.owes_answer(now, &self.rules)) {
            return Err(NextStep::Close(self.rules.unanswered(silent.membership.of().type_url())));
        }
        let moment = EvaluationInput { now, upstream, is_relay: self.is_relay() };
        let mut pending = match self.evaluate(moment) {
            Ok(Some(pending)) => pending,
            Ok(None) => return Err(NextStep::Wait(Some(now))),
            Err(behind) => return Err(NextStep::Close(behind.into())),
        };

        self.guard(&pending, now);
        self.note_waits(&pending, now);

        let chosen = self
            .choose_addition(&pending, unaccepted, now, &mut deadline)
            .or_else(|| self.choose_removal(&pending, now, &mut deadline));
        if let Some((at, class)) = chosen
            && let Pending::Update(update) = std::mem::replace(&mut pending[at], Pending::Nothing)
        {
            let is_cluster = self.types[at].kind == Kind::Cluster;
            let names = if is_cluster { unaccepted.names.clone() } else { BTreeSet::new() };
            return Ok((at, update, class, names));
        }

        if let Some(next) = self.observer_step(&pending, now) {
            return Err(next);
        }
        if pending.iter().any(|pending| matches!(pending, Pending::Unknown)) {
            if !self.responded {
                let cold = self.first_request_at + self.rules.cold_deadline;
                if now >= cold
                    && let Some(unavailable_reason) = upstream.unavailable_reason()
                {
                    return Err(NextStep::Close(SessionError::cold(unavailable_reason)));
                }
                deadline.not_after(if now < cold { cold } else { now + self.rules.cold_deadline });
            }
            for state in &self.types {
                // A type whose answers begin later gets its whole time.
                let patience = state.patience(&self.rules, moment).unwrap_or(now + self.rules.cold_deadline);
                let [bound, obscured] = [state.waits_until(&self.rules), state.obscured_until(&self.rules)]
                    .map(|end| end.unwrap_or(patience));
                let moments = [state.asked + self.rules.settle, patience, bound, obscured];
                moments.into_iter().filter(|at| *at > now).for_each(|at| deadline.not_after(at));
            }
        }
        Err(NextStep::Wait(deadline.0))
    }

    /// Number of names that [`next`](Self::next) may evaluate. Tens of thousands take milliseconds.
    pub fn evaluation_cost(&self, now: Instant) -> usize {
        self.types.iter().map(|state| state.evaluation_cost(now, &self.rules)).sum()
    }

    /// Evaluates all types as of one moment. A route read after a change, with clusters read before
    /// it, would lead to a cluster that the client lacks (R-ADS-03).
    ///
    /// The writer marks changes in order, each before the next can be read. If no mark moved since
    /// its type was read, all results are as of the last read. `None` if changes come too fast.
    fn evaluate(
        &mut self,
        moment: EvaluationInput,
    ) -> Result<Option<SmallVec<[Pending; 4]>>, FellBehindError> {
        const ATTEMPTS: usize = 8;
        let mut read: SmallVec<[Option<Generation>; 4]> = SmallVec::from_elem(None, self.types.len());
        let mut pending: SmallVec<[Pending; 4]> = self.types.iter().map(|_| Pending::Nothing).collect();
        for _ in 0..ATTEMPTS {
            let mut last = None;
            for (at, state) in self.types.iter_mut().enumerate() {
                let mark = Some(state.membership.cohort().touched());
                if read[at] != mark {
                    (read[at], last) = (mark, Some(at));
                    pending[at] = state.evaluate(&self.rules, moment)?;
                }
            }
            let stands = |at: usize| read[at] == Some(self.types[at].membership.cohort().touched());
            if (0..self.types.len()).all(|at| Some(at) == last || stands(at)) {
                return Ok(Some(pending));
            }
        }
        Ok(None)
    }

    /// Chooses additions and changes in flush order. Followers of clusters wait while a leading
    /// type is gated or unknown; both end in bounded time.
    fn choose_addition(
        &mut self,
        pending: &[Pending],
        unaccepted: &UnacceptedRemovals,
        now: Instant,
        deadline: &mut Deadline,
    ) -> Option<(usize, Class)> {
        let mut leader_waits = false;
        let mut unanswered = None;
        let warms = self.warming_until(now);
        // Twice as long behind an unanswered response.
        let waits =
            if self.clusters().is_some_and(|clusters| clusters.own().overtaken.is_some()) { 2 } else { 1 };
        for at in 0..pending.len() {
            let kind = self.types[at].kind;
            let removes_unaccepted = kind == Kind::Cluster && !unaccepted.names.is_empty();
            let update = pending[at].update();
            let update = update.filter(|update| removes_unaccepted || self.types[at].has_addition(update));
            if update.is_none() && !matches!(pending[at], Pending::Gated) {
                if let Some(until) = self.held_until(at, &pending[at], now) {
                    deadline.not_after(until);
                    leader_waits |= kind.leads_routes();
                    unanswered = unanswered.or_else(|| kind.leads_routes().then_some(at));
                }
                continue;
            }
            if let Some(until) = self.strands_routes(at, pending, now) {
                deadline.not_after(until);
                leader_waits |= self.has_routes_to_all_clusters();
                continue;
            }
            if leader_waits && kind.follows_clusters() {
                if let Some(leader) = unanswered {
                    self.note_delay(leader, at, now, deadline);
                }
                continue;
            }
            if let Some(until) = warms.filter(|_| kind.follows_clusters()) {
                let ends = *self.types[at].addition_waits.get_or_insert(now) + waits * self.rules.warm_wait;
                if now < ends {
                    deadline.not_after(until.map_or(ends, |until| until.min(ends)));
                    continue;
                }
            }
            if let Some(update) = update
                && let Some(until) = self.awaits_clusters(at, update, now)
            {
                deadline.not_after(until);
                continue;
            }
            if unaccepted.overtaken.is_some()
                && removes_unaccepted
                && update.is_none_or(|update| update.is_partial())
            {
                // A part would lack the removals.
                leader_waits |= kind.leads_routes();
                continue;
            }
            if let Err(opens) = self.types[at].gate(now, &self.rules) {
                leader_waits |= kind.leads_routes();
                deadline.not_after(opens);
                continue;
            }
            // The gate was already closed in this evaluation.
            let Some(update) = update else { continue };
            let others =
                (0..pending.len()).any(|other| other != at && self.is_ahead(other, &pending[other], now));
            let waits = update.removals && (others || self.keeps_until(at, update, now).is_some());
            let split = update.is_partial() || waits;
            return Some((at, if split { Class::Additions } else { Class::Both }));
        }
        None
    }

    /// Chooses removals in reverse order, once no addition waits.
    fn choose_removal(
        &mut self,
        pending: &[Pending],
        now: Instant,
        deadline: &mut Deadline,
    ) -> Option<(usize, Class)> {
        if (0..pending.len()).any(|at| self.is_ahead(at, &pending[at], now)) {
            return None;
        }
        for at in (0..pending.len()).rev() {
            let Some(update) = pending[at].update() else { continue };
            if let Some(until) = self.keeps_until(at, update, now) {
                deadline.not_after(until);
                return None;
            }
            let gate = self.types[at].gate(now, &self.rules);
            return gate.map_err(|opens| deadline.not_after(opens)).ok().map(|()| (at, Class::Both));
        }
        None
    }

    /// Whether the client gets all clusters, and routes to them, as Envoy does.
    ///
    /// Until its clusters are answered, it may not have asked for routes yet. gRPC asks for
    /// clusters because of its routes, which must not wait. A relay has no traffic: it keeps the
    /// order at its own clients.
    pub(super) fn has_routes_to_all_clusters(&self) -> bool {
        self.profile.aggregated
            && !self.rules.warm_wait.is_zero()
            && self.role == Role::Client
            && self.clusters().is_some_and(|clusters| {
                clusters.subscription().wildcard
                    && (!clusters.was_answered()
                        || self.types.iter().any(|state| state.kind.follows_clusters()))
            })
            && !self.client().is_some_and(|client| is_grpc(&client.user_agent))
            && !self.is_relay()
    }

    /// Starts and stops the clocks of removals that wait for routes.
    fn note_waits(&mut self, pending: &[Pending], now: Instant) {
        let applies = self.has_routes_to_all_clusters();
        for (state, pending) in self.types.iter_mut().zip(pending) {
            match pending {
                Pending::Nothing => (state.addition_waits, state.removal_waits) = (None, None),
                Pending::Update(update) if applies && state.kind.outlasts_routes() && update.removals => {
                    state.removal_waits.get_or_insert(now);
                }
                Pending::Update(_) => state.removal_waits = None,
                Pending::Unknown | Pending::Gated => {}
            }
        }
    }

    /// Latest time until which the client may be warming clusters; `None` inside if the transport
    /// has not taken them.
    ///
    /// Envoy ACKs clusters when they are warm (V1), and answers requests to a cold one with 503.
    fn warming_until(&self, now: Instant) -> Option<Option<Instant>> {
        let clusters = self.clusters()?;
        let warms = clusters.unanswered_within(self.rules.warm_wait, now)?;
        self.has_routes_to_all_clusters().then_some(warms)
    }

    /// Latest end of the wait of a full state of clusters that may lack targets of the client's
    /// routes.
    ///
    /// The relay does not know which clusters the client holds from an earlier stream. So it sends
    /// the state only when routes may follow.
    ///
    /// Example: a relay restarts without a snapshot. Cluster `x` is gone, and new routes name `y`,
    /// which has not come. A reconnecting Envoy keeps `x` and its old routes for up to a second.
    /// Then it gets the clusters without `x` and, a round trip later, the routes.
    ///
    /// gRPC lists the clusters of its routes. If all are gone, new routes may be on their way.
    /// go-control-plane is silent until then, and so is the relay for this wait.
    fn strands_routes(&mut self, at: usize, pending: &[Pending], now: Instant) -> Option<Instant> {
        let state = &self.types[at];
        let is_blind = state.has_clusters_from_before() && state.position.is_start() && state.is_full_state();
        let lists_gone = !state.subscription().wildcard
            && self.role == Role::Client
            && pending[at].update().is_some_and(|update| !update.has_content());
        if !is_blind || !(lists_gone || self.has_routes_to_all_clusters()) {
            return None;
        }
        let ends = *self.types[at].addition_waits.get_or_insert(now) + self.rules.warm_wait;
        if lists_gone {
            return (now < ends).then_some(ends);
        }
        let waits = |other: usize| match &pending[other] {
            _ if !self.types[other].kind.follows_clusters() => None,
            Pending::Update(update) if update.unknown_name => Some(ends),
            Pending::Update(update) => self.awaits_clusters(other, update, now),
            Pending::Unknown => self.unknown_until(other, &pending[other], now),
            Pending::Nothing | Pending::Gated => None,
        };
        let until = (0..pending.len()).filter_map(waits).max()?.min(ends);
        (now < until).then_some(until)
    }

    /// Latest end of the wait of routes for clusters on their way to the relay.
    fn awaits_clusters(&mut self, at: usize, update: &Update, now: Instant) -> Option<Instant> {
        if !self.types[at].kind.follows_clusters() || !self.has_routes_to_all_clusters() {
            return None;
        }
        let of = self.clusters()?.membership.of();
        let (store, snapshot) = (of.index(), of.snapshot());
        let newest = snapshot.changed_at()? + ON_THE_WAY;
        let ends = *self.types[at].addition_waits.get_or_insert(now) + self.rules.warm_wait;
        let until = newest.min(ends);
        (now < until && !update.has_its_clusters(store, &snapshot)).then_some(until)
    }

    /// Latest time to keep removed clusters and endpoints that a client's routes may name.
    ///
    /// After a restart the control plane sends clusters first, so newer routes may be on their way.
    /// Then the client has to ACK them. If routes never stop, removals wait for clusters and for
    /// two answers at most.
    fn keeps_until(&self, at: usize, update: &Update, now: Instant) -> Option<Instant> {
        let (wait, since) = (self.rules.warm_wait, self.types[at].removal_waits?);
        let newest = update.changed_at.map_or(since, |changed| changed.max(since));
        let arrive = (newest + KEEP.min(wait)).min(since + wait);
        if now < arrive {
            return Some(arrive);
        }
        let longest = since + self.rules.ack_timeout + 2 * wait;
        let leaves = self.leaving_until(now)?;
        Some(leaves.map_or(longest, |until| until.min(longest))).filter(|until| now < *until)
    }

    /// Latest time until which the client may use replaced routes; `None` inside if the transport
    /// has not taken the new ones.
    fn leaving_until(&self, now: Instant) -> Option<Option<Instant>> {
        let routes = self.types.iter().filter(|state| state.kind.follows_clusters());
        routes.filter_map(|state| state.unanswered_within(self.rules.warm_wait, now)).max()
    }

    fn is_ahead(&self, at: usize, pending: &Pending, now: Instant) -> bool {
        match pending {
            Pending::Update(update) => self.types[at].has_addition(update),
            Pending::Gated => true,
            Pending::Unknown => self.held_until(at, pending, now).is_some(),
            Pending::Nothing => false,
        }
    }

    fn held_until(&self, at: usize, pending: &Pending, now: Instant) -> Option<Instant> {
        let protects = |_: &Instant| self.types[at].guard.as_deref().is_none_or(|guard| guard.protects);
        self.unknown_until(at, pending, now).filter(protects)
    }

    /// End of the time for which an unknown set holds other types back, guarded or not.
    pub(in crate::subscription) fn unknown_until(
        &self,
        at: usize,
        pending: &Pending,
        now: Instant,
    ) -> Option<Instant> {
        let state = &self.types[at];
        // A reconnecting client's routes work with its clusters.
        let works_on = state.has_clusters_from_before() && self.has_routes_to_all_clusters();
        let wait = if works_on { self.rules.longest_silence() } else { self.rules.ack_timeout };
        let until = state.holds? + wait;
        let until = state.collections_settle_at().map_or(until, |settled| settled.min(until));
        (self.profile.aggregated && matches!(pending, Pending::Unknown) && now < until).then_some(until)
    }

    /// Missing ACK that this response depends on.
    fn overdue(&self, at: usize, update: &Update, class: Class) -> Option<Overdue> {
        let kind = self.types[at].kind;
        let lacks = |is_one: fn(Kind) -> bool| {
            let mut others = self.types.iter().filter(|state| is_one(state.kind));
            others.any(StreamType::is_unaccepted) && self.has_routes_to_all_clusters()
        };
        if kind.follows_clusters() && self.types[at].has_addition(update) {
            lacks(|kind| kind == Kind::Cluster).then_some(Overdue::Clusters)
        } else if kind.outlasts_routes() && class != Class::Additions && update.removals {
            lacks(Kind::follows_clusters).then_some(Overdue::Routes)
        } else {
            None
        }
    }

    fn send(
        &mut self,
        at: usize,
        update: &Arc<Update>,
        class: Class,
        unaccepted: &BTreeSet<Name>,
    ) -> Outgoing {
        let overdue = self.overdue(at, update, class);
        self.note_accepted(self.types[at].kind, update);
        let state = &mut self.types[at];
        state.addition_waits = None;
        if class != Class::Additions {
            state.removal_waits = None;
        }
        let type_url = state.membership.of().type_url().clone();
        // Only a client that was connected has waited for the change.
        let is_whole = !state.position.is_in_parts() && update.owed.is_empty();
        let live = !state.position.is_start() && !state.may_hold && is_whole;
        let answered = state.take_answering();
        let frame = state.send(update, class, unaccepted, &mut self.own_nonces);
        let rollout = self.cache.rollout().filter(|_| matches!(self.canary, Some(Some(_))));
        if rollout.is_some_and(|rollout| rollout.is_trying(&type_url)) {
            state.await_vote(frame.nonce, Arc::clone(update), class);
        }
        let coalesced = state.membership.record_update(update).saturating_sub(1);
        state.owe_errors(&answered, update);
        self.unflushed = Some(at);
        self.responded = true;
        if self.profile.aggregated && self.rules.eds_repush && type_url.kind() == Kind::Cluster {
            self.resend_endpoints(at, update, &answered);
        }
        let system_version = Some(Arc::clone(&update.system_version));
        let changed_at = update.changed_at.filter(|_| live);
        Outgoing { frame, type_url, system_version, changed_at, coalesced, overdue }
    }

    /// Owes the endpoints of clusters that were just sent (R-ADS-05, V1).
    fn resend_endpoints(&mut self, clusters: usize, update: &Update, answered: &BTreeSet<Name>) {
        let snapshot = self.types[clusters].membership.of().snapshot();
        let Some(eds) = self.of_kind(Kind::Endpoint) else { return };
        let eds = &mut self.types[eds];
        eds.owe_endpoints(update.endpoints());
        // Through the wildcard the client may hold another version.
        let present = |name: &Name| snapshot.by_name(name.as_str()).present();
        eds.owe_endpoints(answered.iter().filter_map(present).filter_map(|cluster| cluster.eds_service()));
    }
}

/// Time by which resources of other views are filled in (see
/// [`Writer::fill`](crate::cache::Writer::fill)).
const FILLED: Duration = Duration::from_millis(500);

const NOT_HELD: &str = "the relay holds no answer to all of this: no client of it asks for it, or the control plane has not \
    answered yet; subscribe as a client to have the control plane asked (--subscribe)";

impl Session {
    /// Next step of an observer with nothing left to send.
    pub(in crate::subscription) fn observer_step(
        &self,
        pending: &[Pending],
        now: Instant,
    ) -> Option<NextStep> {
        let waits = |pending: &Pending| matches!(pending, Pending::Nothing | Pending::Unknown);
        if self.role != Role::Observer || !pending.iter().all(waits) {
            return None;
        }
        let ends = self.types.iter().map(|state| state.asked).max()? + FILLED;
        if now < ends {
            return Some(NextStep::Wait(Some(ends)));
        }
        let session_error = || SessionError::new(Code::Unavailable, NOT_HELD);
        self.types.iter().any(StreamType::lacks).then(|| NextStep::Close(session_error()))
    }
}
