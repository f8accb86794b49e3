//! Next message of a stream, across its types (R-ADS-01 to R-ADS-03).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::super::client::is_grpc;
use super::super::session_error::SessionError;
use super::super::stream_type::{EvaluationInput, Pending, StreamType};
use super::super::upstream_state::Upstream;
use super::withdrawn::Withdrawn;
use super::{Outgoing, Overdue, Session};
use crate::cache::{Class, FellBehindError, Generation, Role, Update};
use crate::resource::{Kind, Name};

/// Time for which clusters and endpoints that are gone are kept after the newest change of them, for routes that change with them.
/// A round trip to a control plane over a slow link, and time to answer.
const KEEP: Duration = Duration::from_secs(2);

/// Time for which routes wait after the newest change of clusters for those that they name and that are not there. A control plane tells of
/// each type by itself, and of a type only once its last word on it was acknowledged: so routes to the second of two new clusters
/// may come before that cluster does, by a round trip to the control plane.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// Next step of a stream.
#[derive(Debug)]
pub enum NextStep {
    /// Say this.
    Say(Outgoing),
    /// Wait to be woken by the cache or the client, and at the latest look again then, which may be at once.
    Wait(Option<Instant>),
    /// Close with this status.
    Close(SessionError),
}

/// A step that was decided on.
enum Decision {
    /// Say this part of an update of the type at this place, and with it that these names were withdrawn.
    Say(usize, Arc<Update>, Class, BTreeSet<Name>),
    /// Say nothing.
    Rest(NextStep),
}

impl From<NextStep> for Decision {
    fn from(next: NextStep) -> Self {
        Self::Rest(next)
    }
}

/// The earliest of the moments at which something may change by itself.
#[derive(Debug, Default)]
pub(in crate::subscription) struct Deadline(Option<Instant>);

impl Deadline {
    pub(in crate::subscription) fn not_after(&mut self, moment: Instant) {
        self.0 = Some(self.0.map_or(moment, |earliest| earliest.min(moment)));
    }
}

impl Session {
    /// Works out what to say at this moment, and not before.
    ///
    /// A client that answers nothing is found out here, but not waited for: so long a wait is worth no timer on each stream. A
    /// stream that waits looks again every now and then, be it woken or not.
    pub fn next(&mut self, now: Instant, upstream: Upstream) -> NextStep {
        match self.decide(now, upstream) {
            Decision::Say(at, update, class, withdrawn) => {
                NextStep::Say(self.say(at, &update, class, &withdrawn))
            }
            Decision::Rest(next) => next,
        }
    }

    /// As [`next`](Self::next), for a stream whose transport takes nothing now: `None` if there is something to say. It stays
    /// unsaid, and is worked out anew once there is room, as of that moment.
    pub fn next_without_room(&mut self, now: Instant, upstream: Upstream) -> Option<NextStep> {
        match self.decide(now, upstream) {
            Decision::Say(..) => None,
            Decision::Rest(next) => Some(next),
        }
    }

    fn decide(&mut self, now: Instant, upstream: Upstream) -> Decision {
        let mut deadline = Deadline::default();
        let withdrawn = self.withdraw(now);
        withdrawn.look_at.into_iter().for_each(|at| deadline.not_after(at));
        let decision = self.decide_with(&withdrawn, now, upstream, deadline);
        if let Some((at, in_flight)) = withdrawn.overtaken
            && !matches!(&decision, Decision::Say(said, ..) if *said == at)
        {
            self.types[at].close_gate(in_flight);
        }
        decision
    }

    fn decide_with(
        &mut self,
        withdrawn: &Withdrawn,
        now: Instant,
        upstream: Upstream,
        mut deadline: Deadline,
    ) -> Decision {
        if let Some(silent) = self.types.iter().find(|state| state.owes_answer(now, &self.rules)) {
            return NextStep::Close(self.rules.unanswered(silent.membership.of().type_url())).into();
        }
        let moment =
            EvaluationInput { now, upstream, one_shot: self.is_one_shot(), is_relay: self.is_relay() };
        let pending = match self.evaluate(moment) {
            Ok(Some(pending)) => pending,
            Ok(None) => return NextStep::Wait(Some(now)).into(),
            Err(behind) => return NextStep::Close(behind.into()).into(),
        };

        self.guard(&pending, now);
        self.note_waits(&pending, now);

        let chosen = self
            .choose_addition(&pending, withdrawn, now, &mut deadline)
            .or_else(|| self.choose_removal(&pending, now, &mut deadline));
        if let Some((at, class)) = chosen
            && let Some(update) = pending[at].update()
        {
            let is_cluster = self.types[at].kind == Kind::Cluster;
            let names = if is_cluster { withdrawn.names.clone() } else { BTreeSet::new() };
            return Decision::Say(at, Arc::clone(update), class, names);
        }

        if let Some(next) = self.look_on(&pending, now) {
            return next.into();
        }
        if pending.iter().any(|pending| matches!(pending, Pending::Unknown)) {
            if !self.responded {
                let cold = self.first_heard + self.rules.cold_deadline;
                if now >= cold
                    && let Some(excuse) = upstream.excuse()
                {
                    return NextStep::Close(SessionError::cold(excuse)).into();
                }
                deadline.not_after(if now < cold { cold } else { now + self.rules.cold_deadline });
            }
            for state in &self.types {
                // A type whose answers begin after this look has its whole time before the next.
                let patience = state.patience(&self.rules, moment).unwrap_or(now + self.rules.cold_deadline);
                let [bound, obscured] = [state.waits_until(&self.rules), state.obscured_until(&self.rules)]
                    .map(|end| end.unwrap_or(patience));
                let moments = [state.asked + self.rules.settle, patience, bound, obscured];
                moments.into_iter().filter(|at| *at > now).for_each(|at| deadline.not_after(at));
            }
        }
        NextStep::Wait(deadline.0).into()
    }

    /// Number of names that [`next`](Self::next) may have to look at. Tens of thousands take milliseconds.
    pub fn looks_at(&self, now: Instant) -> usize {
        self.types.iter().map(|state| state.looks_at(now, &self.rules)).sum()
    }

    /// Works out what each type has to say, all of it as of one moment: a route that was read after a change which the clusters
    /// were read before would lead to a cluster that is not there (R-ADS-03). Changes are marked in the order in which they
    /// happen, each before the next can be read. So all is as of the moment in which the last type was read if the marks of the
    /// others have not moved since they were, however long that took and whatever came of the last one meanwhile. `None` where
    /// changes come too fast.
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

    /// Additions and changes, in order. A type that follows the clusters waits while one that leads has something
    /// to say and may not, be it gated or unknown; both end in bounded time.
    fn choose_addition(
        &mut self,
        pending: &[Pending],
        withdrawn: &Withdrawn,
        now: Instant,
        deadline: &mut Deadline,
    ) -> Option<(usize, Class)> {
        let mut leader_waits = false;
        let mut unanswered = None;
        let warms = self.warms(now);
        // Once more for clusters that were sent behind others which it leaves unanswered.
        let waits = if self.clusters().is_some_and(StreamType::has_overtaken) { 2 } else { 1 };
        for at in 0..pending.len() {
            let kind = self.types[at].kind;
            let withdraws = kind == Kind::Cluster && !withdrawn.names.is_empty();
            let update = pending[at].update();
            let update = update.filter(|update| withdraws || self.types[at].has_addition(update));
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
            if withdrawn.overtaken.is_some() && withdraws && update.is_none_or(|update| update.is_partial()) {
                // A part would not have them.
                leader_waits |= kind.leads_routes();
                continue;
            }
            if let Err(opens) = self.types[at].gate(now, &self.rules) {
                leader_waits |= kind.leads_routes();
                opens.into_iter().for_each(|opens| deadline.not_after(opens));
                continue;
            }
            // The gate was closed a moment ago, of the same moment.
            let Some(update) = update else { continue };
            let others =
                (0..pending.len()).any(|other| other != at && self.is_ahead(other, &pending[other], now));
            let waits = update.has_removals() && (others || self.keeps_until(at, update, now).is_some());
            let split = update.is_partial() || waits;
            return Some((at, if split { Class::Additions } else { Class::Both }));
        }
        None
    }

    /// Removals, in reverse order, once no addition waits.
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
            match self.types[at].gate(now, &self.rules) {
                Ok(()) => return Some((at, Class::Both)),
                Err(opens) => {
                    // The type that was to go first goes first.
                    opens.into_iter().for_each(|opens| deadline.not_after(opens));
                    return None;
                }
            }
        }
        None
    }

    /// Whether its client is sent all clusters, and routes for them, as Envoy is. Until its clusters are answered it may not have
    /// come to asking for routes, and may have some from before. gRPC asks for clusters because of its routes, which
    /// must not wait for them. Another relay has no traffic: it sees to the order at its own clients.
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

    /// Notes since when removals are due that wait for routes, and forgets waits for what is not due any more.
    fn note_waits(&mut self, pending: &[Pending], now: Instant) {
        let applies = self.has_routes_to_all_clusters();
        for (state, pending) in self.types.iter_mut().zip(pending) {
            match pending {
                Pending::Nothing => (state.addition_waits, state.removal_waits) = (None, None),
                Pending::Update(update)
                    if applies && state.kind.outlasts_routes() && update.has_removals() =>
                {
                    state.removal_waits.get_or_insert(now);
                }
                Pending::Update(_) => state.removal_waits = None,
                Pending::Unknown | Pending::Gated => {}
            }
        }
    }

    /// Whether the client may still be warming clusters, for which its routes wait; if so, until when at most (unless the transport
    /// has not taken them). Envoy ACKs clusters when they are warm (V1), and answers a request for one that is not with a 503.
    fn warms(&self, now: Instant) -> Option<Option<Instant>> {
        let clusters = self.clusters()?;
        let warms = clusters.unanswered_within(self.rules.warm_wait, now)?;
        self.has_routes_to_all_clusters().then_some(warms)
    }

    /// Until when at most a state of clusters waits that may lack some to which the client's routes lead. The relay does not know what the
    /// client holds from an earlier stream, so it cannot keep those for a while. It sends the state once it may send routes behind it.
    ///
    /// Example: a relay restarts without a snapshot, cluster `x` is gone, and new routes name `y`, which has not come. An Envoy that comes
    /// back keeps `x` and its old routes for up to a second, then gets the clusters without `x` and, a round trip later, the routes.
    ///
    /// gRPC lists the clusters of its routes. If none of those exists any more, new routes may be on their way, with which it lists
    /// others: until then go-control-plane is silent, and so is the relay for this wait.
    fn strands_routes(&mut self, at: usize, pending: &[Pending], now: Instant) -> Option<Instant> {
        let state = &self.types[at];
        let is_blind = state.has_clusters_from_before() && state.position.is_start() && state.is_full_state();
        let lists_gone = !state.subscription().wildcard
            && self.role == Role::Client
            && pending[at].update().is_some_and(|update| !update.shows_something());
        if !is_blind || !(lists_gone || self.has_routes_to_all_clusters()) {
            return None;
        }
        let ends = *self.types[at].addition_waits.get_or_insert(now) + self.rules.warm_wait;
        if lists_gone {
            return (now < ends).then_some(ends);
        }
        let waits = |other: usize| match &pending[other] {
            _ if !self.types[other].kind.follows_clusters() => None,
            Pending::Update(update) if update.has_unknown_name() => Some(ends),
            Pending::Update(update) => self.awaits_clusters(other, update, now),
            Pending::Unknown => self.unknown_until(other, &pending[other], now),
            Pending::Nothing | Pending::Gated => None,
        };
        let until = (0..pending.len()).filter_map(waits).max()?.min(ends);
        (now < until).then_some(until)
    }

    /// Until when at most routes wait for clusters that they name and that are on their way to the relay.
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

    /// Until when at most clusters and endpoints that are gone are kept at a client whose routes may still name them. Routes that do
    /// not may be on their way: after a restart the control plane tells of each type by itself, and clusters come first. Then the
    /// client has to ACK them; where it is sent new ones without end, removals wait for clusters and for two answers at most.
    fn keeps_until(&self, at: usize, update: &Update, now: Instant) -> Option<Instant> {
        let (wait, since) = (self.rules.warm_wait, self.types[at].removal_waits?);
        let newest = update.changed_at().map_or(since, |changed| changed.max(since));
        let arrive = (newest + KEEP.min(wait)).min(since + wait);
        if now < arrive {
            return Some(arrive);
        }
        let longest = since + self.rules.ack_timeout + 2 * wait;
        let leaves = self.leaves(now)?;
        Some(leaves.map_or(longest, |until| until.min(longest))).filter(|until| now < *until)
    }

    /// Whether the client may still use routes that it was sent other ones for, and with them clusters that are to be removed; if so,
    /// until when at most (unless the transport has not taken them).
    fn leaves(&self, now: Instant) -> Option<Option<Instant>> {
        let routes = self.types.iter().filter(|state| state.kind.follows_clusters());
        routes.filter_map(|state| state.unanswered_within(self.rules.warm_wait, now)).max()
    }

    /// Whether removals of other types must wait for this one.
    fn is_ahead(&self, at: usize, pending: &Pending, now: Instant) -> bool {
        match pending {
            Pending::Update(update) => self.types[at].has_addition(update),
            Pending::Gated => true,
            Pending::Unknown => self.held_until(at, pending, now).is_some(),
            Pending::Nothing => false,
        }
    }

    /// Until when a type that was asked for and is not known holds back those after it.
    fn held_until(&self, at: usize, pending: &Pending, now: Instant) -> Option<Instant> {
        self.unknown_until(at, pending, now).filter(|_| self.types[at].is_guarding())
    }

    /// The end of the time for which an unknown set holds other types back, whether or not that protects anybody.
    pub(in crate::subscription) fn unknown_until(
        &self,
        at: usize,
        pending: &Pending,
        now: Instant,
    ) -> Option<Instant> {
        let state = &self.types[at];
        // The routes of a client that comes back work with the clusters that it has.
        let works_on = state.has_clusters_from_before() && self.has_routes_to_all_clusters();
        let wait = if works_on { self.rules.longest_silence() } else { self.rules.ack_timeout };
        let until = state.holds? + wait;
        let until = state.collections_settle_at().map_or(until, |settled| settled.min(until));
        (self.profile.aggregated && matches!(pending, Pending::Unknown) && now < until).then_some(until)
    }

    /// ACK that this depends on and that has not come: the client has not answered in time, or has rejected what it was sent.
    fn overdue(&self, at: usize, update: &Update, class: Class) -> Option<Overdue> {
        let kind = self.types[at].kind;
        let lacks = |is_one: fn(Kind) -> bool| {
            let mut others = self.types.iter().filter(|state| is_one(state.kind));
            others.any(StreamType::is_unaccepted) && self.has_routes_to_all_clusters()
        };
        if kind.follows_clusters() && self.types[at].has_addition(update) {
            lacks(|kind| kind == Kind::Cluster).then_some(Overdue::Clusters)
        } else if kind.outlasts_routes() && class != Class::Additions && update.has_removals() {
            lacks(Kind::follows_clusters).then_some(Overdue::Routes)
        } else {
            None
        }
    }

    fn say(&mut self, at: usize, update: &Update, class: Class, withdrawn: &BTreeSet<Name>) -> Outgoing {
        let overdue = self.overdue(at, update, class);
        self.note_accepted(self.types[at].kind, update);
        let state = &mut self.types[at];
        state.addition_waits = None;
        if class != Class::Additions {
            state.removal_waits = None;
        }
        let type_url = state.membership.of().type_url().clone();
        // Only a client that was there when it happened has waited for it.
        let is_whole = !state.position.is_in_parts() && update.owed().is_empty();
        let live = !state.position.is_start() && !state.may_hold && is_whole;
        let answered = state.take_answering();
        let frame = state.say(update, class, withdrawn, &mut self.own_nonces);
        let coalesced = state.membership.pass(update).saturating_sub(1);
        state.owe_errors(&answered, update);
        self.unsaid = Some(at);
        self.responded = true;
        if self.profile.aggregated && self.rules.eds_repush && type_url.kind() == Kind::Cluster {
            self.repush_endpoints(at, update, &answered);
        }
        let system_version = Some(Arc::clone(update.system_version()));
        let changed_at = update.changed_at().filter(|_| live);
        Outgoing { frame, type_url, system_version, changed_at, coalesced, overdue }
    }

    /// Owes the client the endpoints of the clusters that it was just told of (R-ADS-05, V1).
    fn repush_endpoints(&mut self, clusters: usize, update: &Update, answered: &BTreeSet<Name>) {
        let snapshot = self.types[clusters].membership.of().snapshot();
        let Some(eds) = self.types.iter_mut().find(|state| state.kind == Kind::Endpoint) else { return };
        eds.owe_endpoints(update.endpoints());
        // Names that are newly asked for may be held in another version, through the wildcard.
        let present = |name: &Name| snapshot.by_name(name.as_str()).present();
        eds.owe_endpoints(answered.iter().filter_map(present).filter_map(|cluster| cluster.eds_service()));
    }
}
