//! One type on one stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};

pub(super) mod errors;
pub(super) mod guard;

use super::guard::Guard;
use super::own_state::{OwnState, ResumedVersions};
use super::session_config::SessionConfig;
use super::sotw_names::SotwNames;
use super::upstream_state::Upstream;
use super::versions::Versions;
use crate::cache::{
    Class, Completeness, FellBehindError, Frame, Generation, Membership, Nonce, Position, Protocol, Role,
    Seen, Snapshot, StreamProfile, Subscription, TypeCache, Update,
};
use crate::resource::{Kind, Name, Resource};

/// Names of which a look at all of them takes noticeable time.
const DEAR: usize = 1000;

/// The rough cost in bytes of a name in a set, beside its text.
const NAME: usize = 64;

/// A response that was sent and not answered.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// When the transport had taken all of it; the clock of the gate starts there (R-SotW-06, R-Delta-17).
    taken: Option<Instant>,
    /// Whether there was something to say when it was last looked at. Until the gate opens it need not be looked at again:
    /// with each request, and each change, a client that answers nothing would cost all that it asks for.
    holds_back: bool,
}

/// Update that is due for a type at this moment, or the reason for none.
#[derive(Debug)]
pub(super) enum Pending {
    /// Nothing.
    Nothing,
    /// Nothing yet: the answer is not known.
    Unknown,
    /// This.
    Update(Arc<Update>),
    /// Something that counts as an addition, once the newest response is answered. What that is then, is worked out then.
    /// Of what is dear to look at it may be removals: those of others, and routes, wait for the answer too.
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

/// The state of one type on one stream (R-EP-04).
#[derive(Debug)]
pub(super) struct StreamType {
    pub(super) kind: Kind,
    pub(super) membership: Membership,
    pub(super) position: Position,
    /// State that few streams have at any moment.
    own: Option<Box<OwnState>>,
    /// A response is due even if it is empty (R-SotW-11, R-Delta-11).
    pub(super) must_answer: bool,
    /// Whether it may hold, from an earlier stream, what it has not been told on this one: a full state that lacks it
    /// would delete it.
    pub(super) may_hold: bool,
    /// When something was last asked for.
    pub(super) asked: Instant,
    /// Since when what is unknown holds back other types. What is asked for meanwhile does not prolong it, and after it
    /// they are free for as long: else a client that asks for ever new names would never be told what waits.
    pub(super) holds: Option<Instant>,
    /// Since when what is known waits for names that are not. As with `holds`, names that are asked for meanwhile do not
    /// prolong it, and after it they are not waited for as long again.
    waits: Option<Instant>,
    /// Since when it held back what was noted for it.
    pub(super) delay_noted: Option<Instant>,
    /// Whether that protects somebody, where it was worked out.
    pub(super) guard: Option<Box<Guard>>,
    /// The names rules of state-of-the-world streams.
    pub(super) wants: SotwNames,
    /// Whether anything was unknown when there was last nothing to say; `None` where that has to be looked at.
    unknown: Option<bool>,
    in_flight: Option<InFlight>,
    /// Since when the transport has taken responses that are not answered. The gate of the newest one may have opened
    /// by itself meanwhile.
    unanswered: Option<Instant>,
    newest_nonce: Option<Nonce>,
    /// Whether it was rejected: a client that says so again has nothing new to say.
    rejected: bool,
    newest_shared: Option<(Generation, Class)>,
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
            delay_noted: None,
            guard: None,
            wants: SotwNames::default(),
            unknown: None,
            in_flight: None,
            unanswered: None,
            newest_nonce: None,
            rejected: false,
            newest_shared: None,
        }
    }

    pub(super) fn subscription(&self) -> &Subscription {
        self.membership.subscription()
    }

    /// Read access to its [own state](OwnState); empty if it has none.
    pub(super) fn own(&self) -> &OwnState {
        static NONE: OwnState = OwnState::NONE;
        self.own.as_deref().unwrap_or(&NONE)
    }

    /// Write access to its [own state](OwnState). Where something may have been taken away, [`trim`](Self::trim) follows.
    pub(super) fn own_mut(&mut self) -> &mut OwnState {
        self.own.get_or_insert_with(|| Box::new(OwnState::NONE))
    }

    /// Gives back the memory of what it no longer has.
    pub(super) fn trim(&mut self) {
        if let Some(own) = self.own.as_mut().filter(|own| own.owed.gone.is_empty()) {
            own.gone = None;
        }
        self.own = self.own.take().filter(|own| !own.is_empty());
    }

    /// Takes what the newest full state answered for.
    pub(super) fn take_answering(&mut self) -> BTreeSet<Name> {
        let answering = self.own.as_mut().map(|own| std::mem::take(&mut own.answering)).unwrap_or_default();
        self.trim();
        answering
    }

    /// Whether a request with this nonce speaks of the newest response (R-SotW-04).
    pub(super) fn is_newest(&self, nonce: &[u8]) -> bool {
        self.newest_nonce.is_some_and(|newest| newest.text().as_bytes() == nonce)
    }

    /// Takes in the nonce of a request, which may answer the newest response or an earlier one; returns whether it is the newest.
    pub(super) fn hear_nonce(&mut self, nonce: &[u8], now: Instant) -> bool {
        let newest = self.is_newest(nonce);
        if newest {
            self.open_gate();
        } else if !nonce.is_empty() {
            self.answered_late(now);
        }
        newest
    }

    /// The newest response was answered.
    pub(super) fn open_gate(&mut self) {
        self.in_flight = None;
        self.unanswered = None;
        if let Some(own) = &mut self.own {
            own.let_go = None;
            self.trim();
        }
    }

    /// Whether the client may not have read all that it was told.
    const fn is_unanswered(&self) -> bool {
        self.in_flight.is_some() || self.unanswered.is_some()
    }

    /// An earlier response was answered: the client is slow, or ahead of what was said, but it does answer.
    pub(super) fn answered_late(&mut self, now: Instant) {
        self.unanswered = self.unanswered.map(|_| now);
    }

    /// Whether its client has answered nothing for too long. A client that lets go of all it asked for owes no answer.
    pub(super) fn owes_answer(&self, now: Instant, rules: &SessionConfig) -> bool {
        self.unanswered.is_some_and(|since| now >= since + rules.unacked_timeout)
            && !self.subscription().is_empty()
    }

    /// Whether the newest response was not answered yet, as far as the gate knows.
    #[cfg(test)]
    pub(super) const fn awaits_answer(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The newest response was rejected. Returns whether that is news.
    pub(super) const fn reject(&mut self) -> bool {
        !std::mem::replace(&mut self.rejected, true)
    }

    /// Something that it was told was rejected: where times are told, what of it the client holds is not sure.
    pub(super) fn doubt(&mut self) {
        if self.membership.is_told_times() {
            self.own_mut().owed.doubt = self.position.told();
        }
    }

    /// The transport took the newest response.
    pub(super) fn taken(&mut self, now: Instant) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.taken.get_or_insert(now);
            self.unanswered.get_or_insert(now);
        }
    }

    /// Whether the ACK of the newest response is still awaited; if so, until when (unless the transport has not
    /// taken it).
    pub(super) fn gate(&mut self, now: Instant, rules: &SessionConfig) -> Result<(), Option<Instant>> {
        let Some(in_flight) = self.in_flight else { return Ok(()) };
        let Some(taken) = in_flight.taken else { return Err(None) };
        let opens = taken + rules.ack_timeout;
        if now < opens {
            return Err(Some(opens));
        }
        self.in_flight = None;
        Ok(())
    }

    /// Of how many names it has to be worked out what there is to say.
    pub(super) fn looks_at(&self, now: Instant, rules: &SessionConfig) -> usize {
        let taken = self.in_flight.and_then(|in_flight| in_flight.taken);
        let stays_gated = self.is_gated() && taken.is_none_or(|taken| now < taken + rules.ack_timeout);
        let brought = match &self.own().brought {
            Some(ResumedVersions::Versions(versions)) => versions.len(),
            Some(ResumedVersions::Digest(_)) | None => 0,
        };
        if stays_gated {
            0
        } else {
            self.subscription().names().len() + self.own().owed.names.len() + brought
        }
    }

    /// Its subscription is smaller, or seen otherwise: there may be nothing to add any more.
    pub(super) const fn look_again(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.holds_back = false;
        }
    }

    /// Whether its closed gate is known to hold something back.
    fn is_gated(&self) -> bool {
        self.in_flight.is_some_and(|in_flight| in_flight.holds_back)
    }

    /// Whether to look at it costs so much that it is not done for the order of removals alone.
    fn is_dear(&self) -> bool {
        self.subscription().names().len() + self.own().owed.names.len() > DEAR
    }

    /// Whether it has something to say that counts as an addition: a forced answer does, somebody waits for it.
    pub(super) fn has_addition(&self, update: &Update) -> bool {
        update.has_additions() || update.is_partial() || self.must_answer || !update.has_removals()
    }

    /// Changes what is subscribed to, and if it is seen through other parameters now, in which store.
    pub(super) fn resubscribe(
        &mut self,
        of: Arc<TypeCache>,
        subscription: Subscription,
        profile: StreamProfile,
        now: Instant,
    ) -> Result<(), FellBehindError> {
        self.asked = now;
        if !Arc::ptr_eq(&of, self.membership.of()) {
            return self.look_through(of, subscription, profile);
        }
        if subscription == *self.subscription() {
            return Ok(());
        }
        if self.subscription().wildcard && !subscription.wildcard {
            let told = self.is_unanswered().then_some(self.position.removed);
            let own = self.own_mut();
            own.let_go = own.let_go.or(told);
            // It drops what it has from the wildcard by itself (R-Delta-10).
            own.owed.gone.clear();
            self.trim();
        }
        if subscription.wildcard && !self.subscription().wildcard {
            if profile.protocol == Protocol::Delta && self.is_unanswered() {
                self.bring_unanswered(&subscription)?;
            }
            self.position = Position::default();
            self.must_answer = true;
            // A resource that the client was told by name may be a member that has not come yet.
            self.may_hold |= self.newest_nonce.is_some();
            self.waits = None;
        } else if !self.position.is_start() && !self.position.is_in_parts() && !self.is_gated() {
            // Move up to now if the old subscription has been told in full: else names that are new to this client, and owed,
            // would be told twice.
            let (of, cohort) = (self.membership.of(), self.membership.cohort());
            let update = of.update(cohort, &self.position, now)?;
            if !update.has_additions() && !update.has_removals() {
                update.settle(&mut self.position);
            }
        }
        self.membership.change(subscription);
        self.unknown = None;
        Ok(())
    }

    /// Counts what was told and not answered as brought by a client that asks for the wildcard again: it may read that when
    /// it has asked, and then holds it.
    fn bring_unanswered(&mut self, subscription: &Subscription) -> Result<(), FellBehindError> {
        let snapshot = self.membership.of().snapshot();
        let removed =
            self.own().let_go.map_or(self.position.removed, |let_go| let_go.min(self.position.removed));
        if !snapshot.remembers(removed) {
            return Err(FellBehindError);
        }
        let mut told = self.position.clone();
        told.removed = removed;
        let unanswered = snapshot.held_by(subscription, &told).map(|(name, _)| name.as_str());
        let mut versions = match self.take_brought() {
            Some(ResumedVersions::Versions(versions)) => versions,
            Some(ResumedVersions::Digest(_)) | None => Versions::default(),
        };
        // In which version is not known.
        versions.extend(unanswered.map(|name| (name, "")));
        if versions.is_over() {
            return Err(FellBehindError);
        }
        let own = self.own_mut();
        (own.brought, own.let_go) = (Some(ResumedVersions::Versions(versions)), None);
        Ok(())
    }

    /// Moves to the store of other parameters (R-DP-12). What the client was told there it has to be told here only where
    /// it is another variant, or none.
    fn look_through(
        &mut self,
        of: Arc<TypeCache>,
        subscription: Subscription,
        profile: StreamProfile,
    ) -> Result<(), FellBehindError> {
        self.look_again();
        let (old, old_names) = (self.membership.of().snapshot(), self.subscription().clone());
        let (new, told) = (of.snapshot(), self.position.clone());
        let old_dialect = self.membership.profile();
        let was_told = |name: &str| old.has_told(name, &old_names, old_dialect, &told);
        let is_held = |name: &str| {
            was_told(name)
                && old_names.locates(name) == subscription.locates(name)
                && match (old.seen_by(&old_names, name), new.seen_by(&subscription, name)) {
                    (Some(told), Some(seen)) => told.same_content(seen),
                    _ => false,
                }
        };
        let is_set = subscription.wildcard || old_names.wildcard || old_names.has_collections();
        let is_delta = profile.protocol == Protocol::Delta;
        // With the wildcard the position starts anew, whatever was told before.
        let past = if is_delta && self.newest_nonce.is_some() && old_names.locators().is_some() {
            let names = old_names.names().iter();
            let seen = old.entries().map(|entry| entry.name()).filter(|_| is_set);
            let told = names.chain(seen).filter(|name| old_names.locates(name.as_str()));
            let changed = told.filter(|name| !is_held(name.as_str()));
            let past = |name: &Name| {
                let past: Vec<_> = old.variants(name.as_str()).collect();
                // Where none is remembered, what was there before it went had no constraints.
                if past.is_empty() { vec![None] } else { past }
            };
            changed.map(|name| (name.clone(), past(name))).collect()
        } else {
            Vec::new()
        };
        if !past.is_empty() {
            let own = self.own.get_or_insert_with(|| Box::new(OwnState::NONE));
            past.into_iter().for_each(|(name, past)| own.owed.remember(name, past));
        }
        if self.position.is_start() {
            // Nothing was told that would have to be taken back.
        } else if is_set && is_delta {
            // As if it came back with what it holds. What is another variant now has no version to go by (R-DP-14).
            let mut held = match self.take_brought() {
                Some(ResumedVersions::Versions(brought)) => brought,
                Some(ResumedVersions::Digest(_)) | None => Versions::default(),
            };
            held.forget_versions();
            held.extend(old.held_by(&old_names, &told).map(|(name, held)| {
                let held = held.filter(|held| is_held(held.name().as_str()));
                (name.as_str(), held.map(Resource::version).unwrap_or_default())
            }));
            if held.is_over() {
                return Err(FellBehindError);
            }
            self.own_mut().brought = Some(ResumedVersions::Versions(held));
            self.position = Position::default();
        } else if is_set || profile.is_full_state(self.kind) {
            self.position = Position::default();
            self.must_answer = true;
        } else {
            let owed = &mut self.own.get_or_insert_with(|| Box::new(OwnState::NONE)).owed;
            let mut held = std::mem::take(&mut owed.held);
            for name in subscription.names().iter().filter(|name| !is_held(name.as_str())) {
                let seen = old.by_name(name.as_str()).present();
                let seen = seen.filter(|_| was_told(name.as_str())).cloned();
                let held = held.remove(name).or(seen).filter(|_| {
                    old_names.locates(name.as_str()) == subscription.locates(name.as_str())
                        && matches!(new.by_name(name.as_str()), Seen::Unknown)
                });
                match held.filter(|_| !owed.names.contains(name)) {
                    Some(held) => drop(owed.held.insert(name.clone(), held)),
                    None => drop(owed.names.insert(name.clone())),
                }
            }
            self.trim();
            self.position = Position::up_to(new.generation());
        }
        self.must_answer |= subscription.wildcard;
        self.may_hold = true;
        if profile.is_full_state(self.kind) {
            self.note_obscured(&old, &new, &subscription);
        } else {
            // The wait for names that it may hold begins anew.
            self.waits = None;
        }
        self.membership.change_store(of, subscription);
        self.unknown = None;
        Ok(())
    }

    /// Notes which names the next full state waits for: those that were shown, and that the store of the new parameters does
    /// not know yet. Each is waited for from when that happened, so that a client which asks for ever new names is not kept
    /// from the others.
    fn note_obscured(&mut self, old: &Snapshot, new: &Snapshot, subscription: &Subscription) {
        let before = self.own.as_mut().map(|own| std::mem::take(&mut own.obscured)).unwrap_or_default();
        let was_shown = |name: &Name| old.seen_by(self.subscription(), name.as_str()).is_some();
        let is_unknown = |name: &&Name| matches!(new.by_name(name.as_str()), Seen::Unknown);
        let since = |name: &Name| was_shown(name).then_some(self.asked).or_else(|| before.get(name).copied());
        let unknown = subscription.names().iter().filter(is_unknown);
        let obscured: BTreeMap<_, _> =
            unknown.filter_map(|name| Some((name.clone(), since(name)?))).collect();
        if !obscured.is_empty() {
            self.own_mut().obscured = obscured;
        }
        self.trim();
    }

    /// When the last of the names that the client may hold, and that are not known with its new parameters, is taken for
    /// absent; `None` while the origin does not answer for the type.
    pub(super) fn obscured_until(&self, rules: &SessionConfig) -> Option<Instant> {
        let of = self.membership.of();
        let snapshot = of.snapshot();
        let is_unknown = |name: &Name| matches!(snapshot.by_name(name.as_str()), Seen::Unknown);
        let obscured = self.own().obscured.iter().filter(|(name, _)| is_unknown(name));
        let since = obscured.map(|(_, since)| *since).max();
        match since {
            Some(since) => Some(of.heard_since()?.max(since) + rules.longest_silence()),
            None => Some(self.asked),
        }
    }

    /// Works out what there is to say now.
    pub(super) fn evaluate(
        &mut self,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Result<Pending, FellBehindError> {
        // A gate whose time is over is open from here on.
        if self.gate(moment.now, rules).is_err() && self.is_gated() {
            return Ok(Pending::Gated);
        }
        let pending = self.look(rules, moment)?;
        if let Pending::Update(update) = &pending {
            let counts = self.has_addition(update) || self.is_dear();
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
            Pending::Update(update) if update.has_unknown_name() => since,
            Pending::Update(_) | Pending::Nothing | Pending::Gated => None,
        };
        (self.holds, self.waits) =
            (begun(self.holds, rules.ack_timeout), begun(self.waits, rules.longest_silence()));
        Ok(pending)
    }

    fn look(&mut self, rules: &SessionConfig, moment: EvaluationInput) -> Result<Pending, FellBehindError> {
        let full_state = self.is_full_state();
        if full_state && !self.own().owed.names.is_empty() {
            // The next full state answers for every name.
            let own = self.own_mut();
            own.answering.append(&mut own.owed.names);
            self.must_answer = true;
        }
        if full_state {
            self.refuse();
        }
        let empty_says_nothing = self.membership.profile().protocol == Protocol::Sotw && !full_state;
        if (empty_says_nothing || self.subscription().is_empty()) && !moment.one_shot {
            self.must_answer = false;
        }
        if matches!(self.own().brought, Some(ResumedVersions::Versions(_))) {
            let snapshot = self.membership.of().snapshot();
            if self.subscription().wildcard && snapshot.completeness() < Completeness::Complete {
                return Ok(Pending::Unknown);
            }
            let waits = self.is_patient(rules, moment);
            if waits && (self.brought_of_unknown(&snapshot) || self.brought_by_alias(&snapshot)) {
                return Ok(Pending::Unknown);
            }
            self.compare_versions(&snapshot, rules, moment)?;
        }
        // Another relay waits for the last part (R-Up-23). Where nothing is left, or nothing is known of what is, that is empty.
        let owes_end = moment.is_relay && self.newest_nonce.is_some_and(|newest| newest.announces_more());
        if let Some(unknown) = self.unknown.filter(|_| !owes_end && self.is_quiet()) {
            return Ok(if unknown { Pending::Unknown } else { Pending::Nothing });
        }
        let (of, cohort) = (self.membership.of(), self.membership.cohort());
        let owed = &self.own().owed;
        let is_plain = owed.is_empty() && owed.refused.is_empty();
        let shared = if is_plain { Some(of.update(cohort, &self.position, moment.now)?) } else { None };
        // Its refusals make a difference to heartbeats alone, and those tell times.
        let update = match shared.filter(|shared| owed.doubt == Generation::ZERO || !shared.tells_times()) {
            Some(shared) => shared,
            None => Arc::new(of.own_update(cohort, &self.position, owed, moment.now)?),
        };
        self.miss(update.missed());

        let unknown_name = update.has_unknown_name() && self.waits_for_names(&update, rules, moment);
        let unknown = update.wildcard() < self.needed() || unknown_name;
        let whole = full_state || moment.one_shot;
        let held_back =
            moment.is_relay && self.position.is_start() && update.wildcard() < Completeness::Complete;
        if (whole && unknown) || held_back {
            return Ok(Pending::Unknown);
        }
        if let Some(ResumedVersions::Digest(digest)) = self.take_brought()
            && digest == update.version_info()
            && !update.tells_times()
        {
            // It holds exactly this (R-SotW-10).
            update.advance(&mut self.position, Class::Both);
            self.must_answer = false;
            return Ok(Pending::Nothing);
        }
        let forced = (self.must_answer && !unknown) || owes_end;
        if update.has_additions() || update.has_removals() || update.is_partial() || forced {
            return Ok(Pending::Update(update));
        }
        self.unknown = Some(unknown);
        self.consume(&update, Class::Both);
        let was_in_parts = self.position.is_in_parts();
        if !(self.position.is_start() && unknown) {
            update.advance(&mut self.position, Class::Both);
        }
        if was_in_parts && !self.is_quiet() {
            // The last part of an answer holds nothing, but what changed since the first is still to be told.
            return self.look(rules, moment);
        }
        Ok(if unknown { Pending::Unknown } else { Pending::Nothing })
    }

    /// Names to be told whose resources were not to be kept are owed until these have come again (R-XT-09).
    fn miss(&mut self, names: &[Name]) {
        if !names.is_empty() {
            if self.membership.role() == Role::Client {
                self.membership.of().ask_again(names);
            }
            self.own_mut().owed.names.extend(names.iter().cloned());
        }
    }

    /// Whether a full state waits for names that are not known yet.
    ///
    /// Origins exist that never say that a name does not exist (R-Delta-13), and a client that asks for one such name
    /// wants the others. A client that holds nothing cannot lose anything: it waits a moment for names that are about to
    /// be answered. One that may hold them waits much longer, and without end for an origin that does not answer, or while
    /// nothing is known to exist of all that it asked for.
    fn waits_for_names(&self, update: &Update, rules: &SessionConfig, moment: EvaluationInput) -> bool {
        let may_hold = self.may_hold || self.subscription().wildcard || moment.one_shot;
        let of = self.membership.of();
        let knows = |names| of.parameter_view().scope().is_all() || of.knows_any_of(names);
        let knows = update.has_known_name() && knows(self.subscription().names());
        if !may_hold && self.kind.full_state() && knows && update.shows_something() {
            // The first answer of the type may be a part of what is on its way.
            let heard = of.heard_since().map_or(self.asked, |heard| heard.max(self.asked));
            let settled = heard + rules.settle;
            return moment.now < self.waits_until(rules).map_or(settled, |until| settled.min(until));
        }
        let shows = self.subscription().wildcard || (knows && update.shows_something());
        // Where nothing is held back from the client, each name has its whole time.
        let holds_back = update.shows_something() || update.takes_away();
        let patience = self.patience(rules, moment).filter(|_| !holds_back);
        let waits = self.is_patient(rules, moment) || patience.is_some_and(|end| moment.now < end);
        // The client holds what it was told on this stream, and none of these names. What came to its end meanwhile goes,
        // whether or not the origin answers (R-TTL-09).
        let longest = rules.longest_silence();
        let goes = update.takes_away()
            && moment.now >= self.ongoing(self.waits, longest).unwrap_or(self.asked) + longest;
        (self.may_hold && self.kind.full_state() && !shows)
            || (waits && !goes)
            || self.obscured_until(rules).is_none_or(|end| moment.now < end)
    }

    /// Whether what is shown too early would take something from this client, or show it less than there is.
    fn may_lose(&self, moment: EvaluationInput) -> bool {
        let subscription = self.subscription();
        let mixes = subscription.wildcard && !subscription.names().is_empty();
        let brought = matches!(self.own().brought, Some(ResumedVersions::Versions(_)));
        let excludes = subscription.wildcard && self.is_full_state();
        let may_hold = self.may_hold || moment.is_relay || moment.one_shot || brought || mixes || excludes;
        // Names of other types are told one by one, and are never proven to be absent.
        let is_shown_whole = self.kind.full_state() || subscription.wildcard;
        self.membership.role() == Role::Client && is_shown_whole && may_hold
    }

    /// Whether each of its responses says of whatever it leaves out that it does not exist.
    fn is_full_state(&self) -> bool {
        self.membership.profile().is_full_state(self.kind)
    }

    /// Whether it is owed a word about names that may be members of a set that is not complete.
    fn waits_for_members(&self) -> bool {
        let owed = &self.own().owed;
        self.subscription().wildcard
            && !(owed.names.is_empty() && owed.gone.is_empty())
            && self.membership.role() == Role::Client
            && self.membership.of().snapshot().completeness() < Completeness::Complete
    }

    /// How much of the wildcard set has to be known before it is answered for as a whole.
    fn needed(&self) -> Completeness {
        match self.may_hold {
            true => Completeness::Complete,
            // A client that was shown the set sees what goes from it.
            false if self.is_full_state() && self.position.is_start() => Completeness::Presumed,
            false => Completeness::Settled,
        }
    }

    /// When the names that were asked for last, and that the origin leaves unanswered, are taken for absent; `None` while it
    /// does not answer for the type. Before its first answer on this connection its silence says nothing, so that time counts
    /// from there.
    pub(super) fn patience(&self, rules: &SessionConfig, moment: EvaluationInput) -> Option<Instant> {
        let unanswered_from = self.membership.of().unanswered_from(self.asked, rules.longest_silence());
        unanswered_from.filter(|_| moment.upstream == Upstream::Answering)
    }

    /// The end of the wait that has begun, whatever was asked for since; `None` while the origin does not answer for the
    /// type.
    pub(super) fn waits_until(&self, rules: &SessionConfig) -> Option<Instant> {
        let longest = rules.longest_silence();
        let since = self.membership.of().heard_since()?.max(self.ongoing(self.waits, longest)?);
        Some(since + longest)
    }

    /// When a wait of at most `longest` began, unless the client asked for something new long after its end.
    fn ongoing(&self, since: Option<Instant>, longest: Duration) -> Option<Instant> {
        since.filter(|since| self.asked < *since + 2 * longest)
    }

    fn is_patient(&self, rules: &SessionConfig, moment: EvaluationInput) -> bool {
        let end = self.patience(rules, moment);
        end.is_none_or(|end| moment.now < self.waits_until(rules).map_or(end, |until| end.min(until)))
    }

    /// Whether anything that it asks for is not known.
    pub(super) fn lacks(&self) -> bool {
        let (subscription, snapshot) = (self.subscription(), self.membership.of().snapshot());
        let is_unknown = |name: &str| matches!(snapshot.by_name(name), Seen::Unknown);
        (subscription.wildcard && !snapshot.wildcard_known())
            || subscription.names().iter().any(|name| is_unknown(name.as_str()))
            || !self.own().owed.is_empty()
    }

    fn is_quiet(&self) -> bool {
        !self.must_answer
            && self.own().owed.is_empty()
            && !self.position.is_start()
            && !self.position.is_in_parts()
            && self.position.is_done(self.membership.cohort().touched())
    }

    /// Says an update: moves on over it and gives it a nonce that this stream has not seen.
    pub(super) fn say(&mut self, update: &Update, class: Class, number: &mut u32) -> Frame {
        let count = self.membership.of().encoder().count();
        let fresh = match self.newest_shared {
            None => true,
            Some((to, newest)) => {
                update.to() > to || (update.to() == to && newest == Class::Additions && class == Class::Both)
            }
        };
        let frame = if fresh && !update.is_partial() && update.owed().is_empty() {
            self.newest_shared = Some((update.to(), class));
            update.shared_frame(class, count)
        } else {
            *number = number.wrapping_add(1);
            update.own_frame(class, *number, count)
        };
        self.consume(update, class);
        update.advance(&mut self.position, class);
        self.must_answer = false;
        self.may_hold = false;
        self.unknown = Some(update.has_unknown_name() || update.wildcard() < self.needed());
        self.newest_nonce = Some(frame.nonce);
        self.rejected = false;
        self.in_flight = Some(InFlight { taken: None, holds_back: false });
        frame
    }

    fn consume(&mut self, update: &Update, class: Class) {
        if !update.errors_later().is_empty() || !update.absent_later().is_empty() {
            self.own_mut();
        }
        let Some(own) = &mut self.own else { return };
        Self::consume_errors(&mut own.owed, update);
        if update.is_full_state() {
            own.owed.names.clear();
            own.owed.gone.clear();
            own.obscured.clear();
        } else {
            update.owed().names.iter().for_each(|name| _ = own.owed.names.remove(name));
            if class == Class::Both {
                update.owed().gone.iter().for_each(|name| _ = own.owed.gone.remove(name));
            }
            // Names that only go are not in what is said of additions.
            let told: HashSet<&Name> = match class {
                Class::Both => HashSet::default(),
                Class::Additions => update.tells().collect(),
            };
            let is_said = |name: &Name| class == Class::Both || told.contains(name);
            own.owed.past.retain(|name, _| !(update.owed().past.contains_key(name) && is_said(name)));
            own.owed.names.extend(update.absent_later().iter().cloned());
            for name in update.owed().held.keys().filter(|name| is_said(name)) {
                own.owed.held.remove(name);
                own.owed.past.remove(name);
            }
        }
        self.trim();
    }

    fn take_brought(&mut self) -> Option<ResumedVersions> {
        let brought = self.own.as_mut()?.brought.take();
        self.trim();
        brought
    }

    /// Endpoints whose cluster was just told are owed again, unless they are still to be told anyway (R-ADS-05).
    pub(super) fn owe_endpoints<'a>(&mut self, endpoints: impl Iterator<Item = &'a Name>) {
        let (snapshot, profile) = (self.membership.of().snapshot(), self.membership.profile());
        for name in endpoints {
            if let Some(own) = &mut self.own {
                own.owed.held.remove(name);
            }
            if snapshot.has_told(name.as_str(), self.subscription(), profile, &self.position) {
                self.own_mut().owed.names.insert(name.clone());
            }
        }
        self.trim();
    }

    /// Changes how it is told. Endpoints that were to be repeated, and will not be any more, are owed (R-ADS-05).
    pub(super) fn turn(&mut self, profile: StreamProfile) {
        let old = self.membership.profile();
        if old.aggregated && !profile.aggregated && !self.position.is_start() {
            let snapshot = self.membership.of().snapshot();
            let is_told = |name: &Name, profile| {
                snapshot.has_told(name.as_str(), self.subscription(), profile, &self.position)
            };
            let names = snapshot.repushed_after(self.position.added);
            let due = names.filter(|name| !is_told(name, old) && is_told(name, profile));
            let due: Vec<Name> = due.cloned().collect();
            self.own_mut().owed.names.extend(due);
            self.trim();
        }
        self.membership.turn(profile);
    }

    /// Whether it brought versions of members of a collection that is not complete: what it does not have (yet) would be
    /// taken for gone.
    fn brought_of_unknown(&self, snapshot: &Snapshot) -> bool {
        let Some(ResumedVersions::Versions(versions)) = &self.own().brought else { return false };
        self.subscription().collections().any(|(name, collection)| {
            is_unheard(snapshot, name) && versions.names().any(|version| collection.covers(version))
        })
    }

    /// Whether it brought versions of what it may have asked for by an alias that is not known yet (R-Delta-21): taken for
    /// gone it would be deleted.
    fn brought_by_alias(&self, snapshot: &Snapshot) -> bool {
        let Some(ResumedVersions::Versions(versions)) = &self.own().brought else { return false };
        let subscription = self.subscription();
        let is_member = |name: &str| {
            let member = snapshot.get(name).filter(|_| subscription.wildcard);
            member.is_some_and(|entry| entry.as_member().present().is_some())
        };
        (self.kind == Kind::VirtualHost || snapshot.has_aliases())
            && subscription
                .names()
                .iter()
                .any(|name| matches!(snapshot.by_name(name.as_str()), Seen::Unknown))
            && versions.names().any(|name| {
                !subscription.contains(name)
                    && !is_member(name)
                    && !snapshot.is_seen_by_alias(subscription, name)
            })
    }

    /// Takes up the versions that the client says it holds (R-Delta-05 to R-Delta-07). From here on their quota is charged
    /// for the names of those that are gone, which take more. Where that is too much it is as if there were no versions; a
    /// client that was told something on this stream has to come again.
    fn compare_versions(
        &mut self,
        snapshot: &Snapshot,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Result<(), FellBehindError> {
        let Some(ResumedVersions::Versions(mut versions)) = self.take_brought() else { return Ok(()) };
        let quota = versions.take_quota();
        let subscription = self.membership.subscription().clone();
        let mut own = self.own.take().unwrap_or_else(|| Box::new(OwnState::NONE));
        let (owed, mut names) = (&mut own.owed, BTreeSet::new());
        // Of each name whether it is in the set, and the version that the client holds.
        let mut brought: HashMap<&str, (bool, &str)> =
            versions.iter().map(|(name, version)| (name, (false, version))).collect();
        // When it was told the time of what it holds, it is not known: it is told once more (R-TTL-09).
        let is_timed = |name: &Name| self.membership.is_told_times() && snapshot.is_leased(name.as_str());
        let current = |name: &Name| snapshot.by_name(name.as_str()).existing();
        let is_brought = |name: &Name| {
            brought.contains_key(current(name).map_or(name, |resource| resource.name()).as_str())
        };
        // A relay has not forgotten what it claims, as some Envoys have.
        let is_trusted = rules.trust_initial_versions || moment.is_relay;
        let trusted = is_trusted && subscription.names().iter().any(is_brought);
        // Names that were asked for are sent whatever the client holds; its versions change nothing.
        let is_set = subscription.wildcard || trusted || subscription.has_collections();
        if is_set {
            let members = snapshot.members().filter(|_| subscription.wildcard);
            let listed = subscription.collections().flat_map(|(name, _)| snapshot.members_of(name));
            for member in members.chain(listed) {
                owed.gone.remove(member.name());
                let is_held = brought.get_mut(member.name().as_str()).is_some_and(|(is_there, held)| {
                    *is_there = true;
                    *held == member.version() && !is_timed(member.name())
                });
                if !is_held && !subscription.contains(member.name().as_str()) {
                    names.insert(member.name().clone());
                }
            }
            for name in subscription.names() {
                let is_held = |resource: &Arc<Resource>| {
                    let held = brought.get(resource.name().as_str());
                    held.is_some_and(|(_, held)| *held == resource.version()) && !is_timed(resource.name())
                };
                if !(trusted && current(name).is_some_and(is_held)) {
                    names.insert(name.clone());
                }
            }
        }
        brought.retain(|name, (is_there, _)| !*is_there && !subscription.contains(name));
        own.gone = quota.or_else(|| own.gone.take());
        let gone = brought.keys().copied().chain(owed.gone.iter().map(Name::as_str));
        let bytes = gone.map(|name| NAME + name.len()).sum();
        let fits = own.gone.as_mut().is_none_or(|quota| quota.charge(bytes));
        if fits {
            owed.gone.extend(brought.into_keys().map(Name::from));
            owed.names.append(&mut names);
        } else {
            owed.gone.clear();
        }
        self.own = Some(own);
        self.trim();
        if !fits {
            return if self.newest_nonce.is_some() { Err(FellBehindError) } else { Ok(()) };
        }
        if is_set {
            self.position = Position::up_to(snapshot.generation());
            self.must_answer |= subscription.wildcard;
        }
        Ok(())
    }
}

/// Whether nothing is known of a name but, at most, an error.
fn is_unheard(snapshot: &Snapshot, name: &Name) -> bool {
    matches!(snapshot.by_name(name.as_str()), Seen::Unknown | Seen::Failed)
}

/// Input of `evaluate` beside the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvaluationInput {
    pub(super) now: Instant,
    pub(super) upstream: Upstream,
    /// The stream ends with its first answer (unary Fetch), which must therefore be complete.
    pub(super) one_shot: bool,
    /// The client is a relay as well, which cannot tell parts that this relay waits for from the end of the answer.
    pub(super) is_relay: bool,
}
