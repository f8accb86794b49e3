//! State of one type on one stream, and the evaluation of its next update.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use foldhash::HashSet;

pub(super) mod ack_gate;
mod resource_waits;
mod resubscribe;

use super::per_stream_state::{Guard, PerStreamState, ResumedVersions, Unjudged};
use super::session_config::{SessionConfig, Upstream};
use super::subscription_edit::SotwNames;
use crate::cache::{
    CanaryResponse, CanarySeat, Class, Completeness, FellBehindError, Frame, Generation, Membership, Nonce,
    Position, Protocol, Role, Rollout, Subscription, Update, VisibleState,
};
use crate::fairness::NAMES_EVALUATED_FREELY;
use crate::resource::{Kind, Name, TypeUrl};

/// Most unanswered responses whose late answer still counts as a vote.
const UNJUDGED: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// The clock of the gate starts when the transport took all of it (R-SotW-06, R-Delta-17).
    taken: Option<Instant>,
    /// Whether the last evaluation found something to send. Until the gate opens there is no other:
    /// else a client that never answers would cost all its names with each request and change.
    holds_back: bool,
}

/// Result of an evaluation.
#[derive(Debug)]
pub(super) enum Pending {
    Nothing,
    /// The answer is unknown.
    Unknown,
    Update(Arc<Update>),
    /// Additions of many names behind a closed gate, not evaluated before the ACK. Removals may be
    /// among them, so removals of other types, and routes, wait too.
    Gated,
}

impl Pending {
    pub(super) const fn update(&self) -> Option<&Arc<Update>> {
        match self {
            Self::Update(update) => Some(update),
            Self::Nothing | Self::Unknown | Self::Gated => None,
        }
    }
}

/// State of one type on one stream (R-EP-04).
#[derive(Debug)]
pub struct StreamType {
    pub(super) kind: Kind,
    pub(super) membership: Membership,
    pub(super) position: Position,
    own: Option<Box<PerStreamState>>,
    /// A response is due even if empty (R-SotW-11, R-Delta-11).
    pub(super) must_answer: bool,
    /// Whether the client may hold resources that only an earlier stream sent. A full state without
    /// them would delete them.
    pub(super) may_hold: bool,
    /// Time of the newest subscription.
    pub(super) asked: Instant,
    /// Since when unknown names hold back other types. New names do not prolong it, and then the
    /// others are free for as long: else a client that keeps asking for new names would never get
    /// what waits.
    pub(super) holds: Option<Instant>,
    /// Since when known resources wait for unknown names, with the same bound.
    waits: Option<Instant>,
    /// Since when a due addition waits for warm clusters.
    pub(super) addition_waits: Option<Instant>,
    /// Since when due removals wait for routes.
    pub(super) removal_waits: Option<Instant>,
    /// Value of `holds` whose delay was reported.
    pub(super) delay_noted: Option<Instant>,
    pub(super) guard: Option<Box<Guard>>,
    pub(super) wants: SotwNames,
    /// Whether anything was unknown when there was last nothing to send; `None`: evaluate.
    unknown: Option<bool>,
    in_flight: Option<InFlight>,
    /// Since when a taken response is unanswered, though the gate may have opened by timeout.
    unanswered: Option<Instant>,
    newest_nonce: Option<Nonce>,
    /// Whether the newest response was rejected.
    rejected: bool,
    newest_shared: Option<(Generation, Class)>,
    /// Whether the next response announces more: a relay's set may lack members.
    leaves_open: bool,
}

impl StreamType {
    pub(super) fn new(membership: Membership, now: Instant) -> Self {
        Self {
            kind: membership.of().type_url().kind(),
            membership,
            position: Position::default(),
            own: None,
            must_answer: false,
            may_hold: false,
            asked: now,
            holds: None,
            waits: None,
            addition_waits: None,
            removal_waits: None,
            delay_noted: None,
            guard: None,
            wants: SotwNames::default(),
            unknown: None,
            in_flight: None,
            unanswered: None,
            newest_nonce: None,
            rejected: false,
            newest_shared: None,
            leaves_open: false,
        }
    }

    pub fn type_url(&self) -> &TypeUrl {
        self.membership.of().type_url()
    }

    pub(super) fn subscription(&self) -> &Subscription {
        self.membership.subscription()
    }

    /// Whether the client holds resources of an earlier stream that were not compared yet.
    pub(super) fn resumes(&self) -> bool {
        self.own().resumed.is_some() || self.may_hold
    }

    pub(super) fn own(&self) -> &PerStreamState {
        static NONE: LazyLock<PerStreamState> = LazyLock::new(PerStreamState::default);
        self.own.as_deref().unwrap_or(&NONE)
    }

    /// Call [`trim`](Self::trim) after removing something.
    pub(super) fn own_mut(&mut self) -> &mut PerStreamState {
        self.own.get_or_insert_default()
    }

    /// Frees empty per-stream state.
    pub(super) fn trim(&mut self) {
        if let Some(own) = self.own.as_mut().filter(|own| own.owed.gone.is_empty()) {
            own.gone = None;
        }
        self.own = self.own.take().filter(|own| !own.is_empty());
    }

    pub(super) fn take_answering(&mut self) -> BTreeSet<Name> {
        let answering = self.own.as_mut().map(|own| std::mem::take(&mut own.answering)).unwrap_or_default();
        self.trim();
        answering
    }

    /// Notes a NACK: it is no longer sure which TTLs the client holds.
    pub(super) fn doubt(&mut self) {
        if self.membership.profile().receives_ttls() {
            self.own_mut().owed.doubt = self.position.latest_sent();
        }
    }

    pub(super) fn evaluation_cost(&self, now: Instant, rules: &SessionConfig) -> usize {
        let taken = self.in_flight.and_then(|in_flight| in_flight.taken);
        let stays_gated = self.is_gated() && taken.is_none_or(|taken| now < taken + rules.ack_timeout);
        let resumed = match &self.own().resumed {
            Some(ResumedVersions::Versions(versions)) => versions.len(),
            Some(ResumedVersions::Digest(_)) | None => 0,
        };
        if stays_gated {
            0
        } else {
            self.subscription().names().len() + self.own().owed.names.len() + resumed
        }
    }

    /// Whether an update counts as an addition. So does a mandatory answer.
    pub(super) fn has_addition(&self, update: &Update) -> bool {
        update.additions || update.is_partial() || self.must_answer || !update.removals
    }

    pub(super) fn evaluate(
        &mut self,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Result<Pending, FellBehindError> {
        // An expired gate is open from here on.
        if self.gate(moment.now, rules).is_err() && self.is_gated() {
            return Ok(Pending::Gated);
        }
        let pending = self.pending_update(rules, moment)?;
        if let Pending::Update(update) = &pending {
            let names = self.subscription().names().len() + self.own().owed.names.len();
            let counts = self.has_addition(update) || names > NAMES_EVALUATED_FREELY;
            if let Some(in_flight) = &mut self.in_flight {
                in_flight.holds_back = counts;
            }
        }
        if matches!(pending, Pending::Unknown) && self.may_lose(moment)
            || matches!(pending, Pending::Nothing) && self.waits_for_members()
        {
            self.membership.of().ask_for_proof();
        }
        let begun = |since: Option<Instant>, longest: Duration| match &pending {
            Pending::Unknown => self.ongoing(since, longest).or(Some(self.asked)),
            Pending::Update(update) if update.unknown_name => since,
            Pending::Update(_) | Pending::Nothing | Pending::Gated => None,
        };
        let longest = rules.longest_silence();
        let holds = if self.has_clusters_from_before() { longest } else { rules.ack_timeout };
        (self.holds, self.waits) = (begun(self.holds, holds), begun(self.waits, longest));
        Ok(pending)
    }

    fn pending_update(
        &mut self,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Result<Pending, FellBehindError> {
        let full_state = self.is_full_state();
        if full_state && !self.own().owed.names.is_empty() {
            // The next full state answers every name.
            let own = self.own_mut();
            own.answering.append(&mut own.owed.names);
            self.must_answer = true;
        }
        if full_state {
            self.note_denied();
        }
        let empty_says_nothing = self.membership.profile().protocol == Protocol::Sotw && !full_state;
        if empty_says_nothing || self.subscription().is_empty() {
            self.must_answer = false;
        }
        if !self.resume_versions(rules, moment)? {
            return Ok(Pending::Unknown);
        }
        // A relay waits for the last part (R-Up-23), perhaps empty.
        let owes_end = moment.is_relay && self.newest_nonce.is_some_and(|newest| newest.announces_more());
        let asks_end = self.own().asks_end;
        if let Some(unknown) = self.unknown.filter(|_| !owes_end && !asks_end && self.is_quiet()) {
            return Ok(if unknown { Pending::Unknown } else { Pending::Nothing });
        }
        let (of, cohort) = (self.membership.of(), self.membership.cohort());
        let owed = &self.own().owed;
        let is_plain = owed.is_empty() && owed.refused.is_empty();
        let shared = if is_plain { Some(of.update(cohort, &self.position, moment.now)?) } else { None };
        // Refusals matter to heartbeats only, and those carry TTLs.
        let update = match shared.filter(|shared| owed.doubt == Generation::ZERO || !shared.has_ttls()) {
            Some(shared) => shared,
            None => Arc::new(of.own_update(cohort, &self.position, owed, moment.now)?),
        };
        self.owe_missed(&update.missed);
        let is_whole = !update.is_partial() && !update.unknown_name;
        if asks_end && is_whole && update.wildcard == Completeness::Complete {
            let own = self.own_mut();
            own.asks_end = false;
            own.owed.gone.insert(Name::END_MARK.into());
            return self.pending_update(rules, moment);
        }

        let unknown_name = update.unknown_name && self.waits_for_names(&update, rules, moment);
        let unknown = update.wildcard < self.needed() || unknown_name;
        // A relay waits for the end of a set, and gets an incomplete one if need be.
        let is_begun = self.position.is_start() || owes_end;
        self.leaves_open = moment.is_relay && is_begun && update.wildcard < Completeness::Complete;
        let held_back =
            self.leaves_open && self.position.is_start() && moment.upstream == Upstream::Answering;
        if (full_state && unknown) || held_back {
            return Ok(Pending::Unknown);
        }
        let unknown = unknown || self.leaves_open;
        if let Some(ResumedVersions::Digest(digest)) = self.take_resumed() {
            let is_doubted = || self.membership.of().doubts_holders_of(&digest);
            if digest == update.version_info() && !update.has_ttls() && !is_doubted() {
                // The client holds exactly this (R-SotW-10).
                update.advance(&mut self.position, Class::Both);
                self.membership.record_update(&update);
                self.must_answer = false;
                return Ok(Pending::Nothing);
            }
            // An Envoy rejects listeners, old and new, that share an address.
            let subscription = self.subscription();
            let all_clusters = self.kind == Kind::Cluster && subscription.is_lone_wildcard();
            if all_clusters && let Some(position) = self.membership.of().position_of(&digest) {
                // A removed cluster is not deleted before routes have left it (R-ADS-03).
                self.position = position;
                return self.pending_update(rules, moment);
            }
        }
        let forced = (self.must_answer && !unknown) || (owes_end && !self.leaves_open);
        if update.additions || update.removals || update.is_partial() || forced {
            return Ok(Pending::Update(update));
        }
        self.unknown = Some(unknown);
        self.consume(&update, Class::Both);
        let was_in_parts = self.position.is_in_parts();
        if !(self.position.is_start() && unknown) {
            update.advance(&mut self.position, Class::Both);
            self.membership.record_update(&update);
        }
        if was_in_parts && !self.is_quiet() {
            // The last part is empty, but changes since the first are due.
            return self.pending_update(rules, moment);
        }
        Ok(if unknown { Pending::Unknown } else { Pending::Nothing })
    }

    /// Compares the versions with which the client resumed, if any. Returns false if that has to wait.
    fn resume_versions(
        &mut self,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Result<bool, FellBehindError> {
        let Some(ResumedVersions::Versions(versions)) = &self.own().resumed else { return Ok(true) };
        let snapshot = self.membership.of().snapshot();
        if self.subscription().wildcard && snapshot.completeness() < Completeness::Complete {
            return Ok(false);
        }
        let is_unknown = || {
            self.resumes_unknown_collection(versions, &snapshot)
                || self.resumes_unknown_alias(versions, &snapshot)
        };
        if self.is_patient(rules, moment) && is_unknown() {
            return Ok(false);
        }
        self.compare_versions(&snapshot, rules, moment)?;
        Ok(true)
    }

    /// Owes names whose bodies were not kept (R-XT-09), until they come again.
    fn owe_missed(&mut self, names: &[Name]) {
        if !names.is_empty() {
            if self.membership.role() == Role::Client {
                self.membership.ask_again(names);
            }
            self.own_mut().owed.names.extend(names.iter().cloned());
        }
    }

    pub(super) fn is_full_state(&self) -> bool {
        self.membership.profile().is_full_state(self.kind)
    }

    pub(super) fn lacks(&self) -> bool {
        let (subscription, snapshot) = (self.subscription(), self.membership.of().snapshot());
        let is_unknown = |name: &str| matches!(snapshot.by_name(name), VisibleState::Unknown);
        (subscription.wildcard && !snapshot.wildcard_known())
            || subscription.names().iter().any(|name| is_unknown(name.as_str()))
            || !self.own().owed.is_empty()
    }

    fn is_quiet(&self) -> bool {
        !self.must_answer
            && self.own().owed.is_empty()
            && !self.position.is_in_parts()
            && self.position.was_sent_all(self.membership.cohort().touched())
    }

    /// Whether an evaluation would find that there is nothing to send, nothing unknown and no clock to keep.
    pub(super) fn is_up_to_date(&self, is_relay: bool) -> bool {
        let clocks = [self.holds, self.waits, self.addition_waits, self.removal_waits];
        let owes_end = is_relay && self.newest_nonce.is_some_and(|newest| newest.announces_more());
        self.own.is_none()
            && self.unknown == Some(false)
            && self.is_quiet()
            && !self.is_gated()
            && clocks.iter().all(Option::is_none)
            && !owes_end
    }

    /// Builds the response for an update and advances past it. Either class includes the removals
    /// in `unaccepted`.
    pub(super) fn send(
        &mut self,
        update: &Update,
        class: Class,
        unaccepted: &BTreeSet<Name>,
        number: &mut u32,
    ) -> Frame {
        self.leave_out(update, class, unaccepted);
        let left_out = &self.own().left_out;
        let count = self.membership.of().encoder().count();
        let fresh = match self.newest_shared {
            None => true,
            Some((to, newest)) => {
                update.to > to || (update.to == to && newest == Class::Additions && class == Class::Both)
            }
        };
        let is_common = !update.is_partial() && !self.leaves_open && update.owed.is_empty();
        let frame = if fresh && is_common && left_out.is_empty() {
            self.newest_shared = Some((update.to, class));
            update.shared_frame(class, count)
        } else {
            *number = number.wrapping_add(1);
            update.own_frame(class, left_out, *number, self.leaves_open, count)
        };
        self.consume(update, class);
        update.advance(&mut self.position, class);
        self.must_answer = false;
        self.may_hold = false;
        self.unknown = Some(update.unknown_name || update.wildcard < self.needed());
        if let Some(overtaken) = self.newest_nonce.filter(|_| self.is_unanswered()) {
            self.own_mut().overtaken = Some(overtaken);
        }
        self.newest_nonce = Some(frame.nonce);
        self.rejected = false;
        self.in_flight = Some(InFlight { taken: None, holds_back: false });
        frame
    }

    /// Notes removed names that this response leaves out although it mentions others: those in
    /// `unaccepted`, and in a full state those that came and went since the last. A client would
    /// take the next response with them for news.
    fn leave_out(&mut self, update: &Update, class: Class, unaccepted: &BTreeSet<Name>) {
        if class == Class::Both || !update.removals {
            if let Some(own) = &mut self.own {
                own.left_out.clear();
                self.trim();
            }
            return;
        }
        let snapshot = self.membership.of().snapshot();
        let came_and_went = snapshot.came_and_went(self.subscription(), &self.position);
        let came_and_went = came_and_went.filter(|_| update.is_full_state());
        let left_out: Vec<Name> = came_and_went.chain(unaccepted).cloned().collect();
        let names = &mut self.own_mut().left_out;
        names.extend(left_out);
        names.retain(|name| snapshot.lacks_member_since(name.as_str(), update.to));
        self.trim();
    }

    /// Keeps a response until the canary answers it.
    pub(super) fn await_vote(&mut self, nonce: Nonce, update: Arc<Update>, class: Class) {
        let unjudged = &mut self.own_mut().to_judge;
        if unjudged.len() == UNJUDGED {
            unjudged.remove(0);
        }
        unjudged.push(Unjudged { nonce, update, class });
    }

    /// Counts the client's answer once, even if late. Earlier responses can no longer get one.
    pub(super) fn vote(
        &mut self,
        nonce: &[u8],
        rollout: &Rollout,
        seat: &CanarySeat,
        rejection: Option<&str>,
    ) {
        let Some(own) = &mut self.own else { return };
        let is_meant = |unjudged: &Unjudged| unjudged.nonce.text()[..] == *nonce;
        let Some(at) = own.to_judge.iter().position(is_meant) else { return };
        let judged = own.to_judge.drain(..=at).next_back();
        if let Some(Unjudged { update, class, .. }) = judged {
            let (of, subscription) = (self.membership.of(), self.membership.subscription());
            rollout.vote(&CanaryResponse { of, subscription, update: &update, class, rejection }, seat);
        }
        self.trim();
    }

    fn consume(&mut self, update: &Update, class: Class) {
        if !update.errors_later().is_empty() || !update.absent_later.is_empty() {
            self.own_mut();
        }
        let Some(own) = &mut self.own else { return };
        own.owed.errors.retain(|name| !update.owed.errors.contains(name));
        own.owed.errors.extend(update.errors_later().iter().cloned());
        if update.is_full_state() {
            own.owed.names.clear();
            own.owed.gone.clear();
            own.obscured.clear();
        } else {
            update.owed.names.iter().for_each(|name| _ = own.owed.names.remove(name));
            if class == Class::Both {
                update.owed.gone.iter().for_each(|name| _ = own.owed.gone.remove(name));
            }
            // Names that are only removed are no additions.
            let sent: HashSet<&Name> = match class {
                Class::Both => HashSet::default(),
                Class::Additions => update.resource_names().collect(),
            };
            let is_sent = |name: &Name| class == Class::Both || sent.contains(name);
            own.owed.past.retain(|name, _| !(update.owed.past.contains_key(name) && is_sent(name)));
            own.owed.names.extend(update.absent_later.iter().cloned());
        }
        self.trim();
    }

    pub(super) fn take_resumed(&mut self) -> Option<ResumedVersions> {
        let resumed = self.own.as_mut()?.resumed.take();
        self.trim();
        resumed
    }

    /// Owes endpoints again whose cluster was just sent, unless they are due (R-ADS-05).
    pub(super) fn owe_endpoints<'a>(&mut self, endpoints: impl Iterator<Item = &'a Name>) {
        let (snapshot, profile) = (self.membership.of().snapshot(), self.membership.profile());
        for name in endpoints {
            if snapshot.was_sent(name.as_str(), self.subscription(), profile, &self.position) {
                self.own_mut().owed.names.insert(name.clone());
            }
        }
        self.trim();
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EvaluationInput {
    pub(super) now: Instant,
    pub(super) upstream: Upstream,
    /// The client is a relay, which cannot tell a part from the end of an answer.
    pub(super) is_relay: bool,
}
