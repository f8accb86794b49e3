//! Progress of one type at one client, for operators.
//!
//! Owns a copy of a session's progress: versions sent, accepted and rejected, with times, and the
//! resulting states. The session's owner refreshes it, so that reading neither waits for a stream
//! nor wakes one. Knows nothing of transports, and decides nothing that a client is sent.
//!
//! Invariant: it keeps no store and no subscription alive.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::stream_type::StreamType;
use crate::cache::{Cohort, Generation, Membership, Position, Snapshot, Subscription, TypeCache, Withheld};
use crate::proto;
use crate::resource::{Name, TypeUrl};

/// Most rejections kept of one type at one client.
const REJECTIONS: usize = 8;
/// Most bytes kept of a rejection's text.
pub const REJECTION_TEXT: usize = 500;
/// Most owed names kept one by one.
const OWED: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Version of the control plane; empty if it gives none.
    pub version: Arc<str>,
    /// Position of the client after it.
    pub generation: Generation,
    /// Time of sending, or of the ACK.
    pub at: Instant,
}

#[derive(Clone, Debug)]
pub struct Rejection {
    /// The rejected response, with the time of the NACK.
    pub delivery: Delivery,
    pub code: i32,
    /// At most [`REJECTION_TEXT`] bytes.
    pub text: Arc<str>,
    /// Position before the unaccepted responses.
    from: Position,
    /// Position after them.
    to: Position,
}

crate::labelled! {
    /// State of a client for one type. If several apply, the first counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ClientState {
        /// It rejected a response and accepted nothing in its place since.
        Rejected = "rejected",
        /// It was sent nothing yet, and brought nothing along.
        Waiting = "waiting",
        /// It has not answered the newest response.
        Unacked = "unacked",
        /// It was not sent something newer.
        Behind = "behind",
        /// It was sent nothing yet, and runs earlier resources of unknown age.
        Resuming = "resuming",
        /// It has accepted everything, and the rollout guard keeps it on an earlier state than the control plane's.
        HeldBack = "held_back",
        /// It has accepted everything.
        Synced = "synced",
    }
}

/// State of a resource, or of changes, at a client.
#[derive(Clone, Copy, Debug)]
pub enum ResourceState<'p> {
    /// Too many names are owed, or held resources are not compared yet.
    Unknown,
    /// It was sent and accepted, or the client brought it along.
    Synced,
    NotSent,
    /// It was sent and not answered.
    Stale,
    Rejected(&'p Rejection),
}

#[derive(Clone, Debug)]
enum Owed {
    Few(Box<[Name]>),
    Many,
}

#[derive(Clone, Debug)]
pub struct TypeProgress {
    type_url: TypeUrl,
    of: Weak<TypeCache>,
    cohort: Weak<Cohort>,
    position: Position,
    owed: Option<Box<Owed>>,
    resumes: bool,
    sent: Option<Delivery>,
    /// Time of the ACK of the newest response.
    acked_at: Option<Instant>,
    /// Present while the newest response is not accepted.
    unconfirmed: Option<Box<Unconfirmed>>,
    /// Oldest first. Few clients have any.
    #[expect(clippy::box_collection, reason = "a Vec takes three words, and each client has a few of these")]
    rejections: Option<Box<Vec<Rejection>>>,
}

/// State of a client before responses that it has not accepted.
#[derive(Clone, Debug)]
struct Unconfirmed {
    /// Position before the oldest unanswered response; `None` if the newest was rejected.
    from: Option<Position>,
    since: Instant,
    /// Newest accepted response, with the time of the ACK.
    acked: Option<Delivery>,
    /// Unanswered response before the newest. Few clients are that slow.
    overtaken: Option<Box<Overtaken>>,
}

/// Response that was unanswered when the next was sent.
#[derive(Clone, Debug)]
struct Overtaken {
    delivery: Delivery,
    /// Position after it.
    to: Position,
}

impl TypeProgress {
    pub fn new(of: &StreamType) -> Self {
        let mut progress = Self {
            type_url: of.type_url().clone(),
            of: Weak::new(),
            cohort: Weak::new(),
            position: of.position.clone(),
            owed: None,
            resumes: false,
            sent: None,
            acked_at: None,
            unconfirmed: None,
            rejections: None,
        };
        progress.refresh(of);
        progress
    }

    /// Copies the session's state; cheap if nothing changed.
    pub fn refresh(&mut self, state: &StreamType) {
        let (of, cohort) = (state.membership.of(), state.membership.cohort());
        if !std::ptr::eq(self.cohort.as_ptr(), Arc::as_ptr(cohort)) {
            (self.of, self.cohort) = (Arc::downgrade(of), Arc::downgrade(cohort));
        }
        if self.position != state.position {
            self.position.clone_from(&state.position);
        }
        self.resumes = state.resumes();
        // Names whose answers are due, even if sent before.
        let names = [&state.own().owed.names, &state.own().answering];
        let owed: usize = names.iter().map(|names| names.len()).sum();
        if owed > 0 || self.owed.is_some() {
            let names = || names.into_iter().flatten().cloned().collect();
            let owed = match owed {
                0 => None,
                1..=OWED => Some(Owed::Few(names())),
                _ => Some(Owed::Many),
            };
            self.owed = owed.map(Box::new);
        }
    }

    /// Records a response; `state` is the state after it.
    pub fn sent(&mut self, state: &StreamType, version: Option<Arc<str>>, now: Instant) {
        // Moved: all clients share the count of a version.
        let (sent, acked_at) = (self.sent.take(), self.acked_at.take());
        let none = || Box::new(Unconfirmed { from: None, since: now, acked: None, overtaken: None });
        let unconfirmed = self.unconfirmed.get_or_insert_with(none);
        match (sent, acked_at) {
            (Some(sent), Some(at)) => unconfirmed.acked = Some(Delivery { at, ..sent }),
            (Some(delivery), None) if unconfirmed.from.is_some() => {
                unconfirmed.overtaken = Some(Box::new(Overtaken { delivery, to: self.position.clone() }));
            }
            _ => {}
        }
        unconfirmed.from.get_or_insert_with(|| {
            unconfirmed.since = now;
            self.position.clone()
        });
        self.refresh(state);
        let version = version.unwrap_or_else(|| Arc::from(""));
        self.sent = Some(Delivery { version, generation: self.position.latest_sent(), at: now });
    }

    /// Records the ACK of the newest response. Returns how long it took.
    pub fn acked(&mut self, now: Instant) -> Option<Duration> {
        let sent = self.sent.as_ref().filter(|_| self.acked_at.is_none());
        let took = sent.map(|sent| now.saturating_duration_since(sent.at));
        self.unconfirmed = None;
        self.acked_at = Some(now);
        if self.rejections.is_some() && self.is_full_state() {
            // It has accepted everything that it may hold.
            self.rejections = None;
        }
        took
    }

    /// Records the NACK of the newest response, or with `is_late` of the one before. `None` if
    /// there is no such response.
    pub fn rejected(
        &mut self,
        error: &proto::Status,
        text: Arc<str>,
        is_late: bool,
        now: Instant,
    ) -> Option<&Rejection> {
        let (from, Overtaken { delivery, to }) = if is_late {
            self.take_overtaken(now)?
        } else {
            let from = self.unconfirmed.as_mut().and_then(|unconfirmed| {
                unconfirmed.overtaken = None;
                unconfirmed.from.take()
            });
            let (version, generation) = match &self.sent {
                Some(sent) => (Arc::clone(&sent.version), sent.generation),
                None => (Arc::from(""), self.position.latest_sent()),
            };
            let to = self.position.clone();
            let delivery = Delivery { version, generation, at: now };
            (from.unwrap_or_else(|| to.clone()), Overtaken { delivery, to })
        };
        let audience = self.upgrade();
        let rejections = self.rejections.get_or_insert_default();
        if rejections.len() == REJECTIONS {
            make_room(rejections, audience.as_ref());
        }
        Some(rejections.push_mut(Rejection { delivery, code: error.code, text, from, to }))
    }

    /// Takes the response before the newest, which is answered now.
    fn take_overtaken(&mut self, now: Instant) -> Option<(Position, Overtaken)> {
        let unconfirmed = self.unconfirmed.as_mut()?;
        let mut overtaken = *unconfirmed.overtaken.take()?;
        overtaken.delivery.at = now;
        let from = unconfirmed.from.replace(overtaken.to.clone())?;
        unconfirmed.since = self.sent.as_ref().map_or(now, |sent| sent.at);
        Some((from, overtaken))
    }

    pub fn acked_late(&mut self, now: Instant) {
        let Some((_, overtaken)) = self.take_overtaken(now) else { return };
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.acked = Some(overtaken.delivery);
        }
        if self.is_full_state() {
            self.rejections = None;
        }
    }

    pub const fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    pub const fn newest_sent(&self) -> Option<&Delivery> {
        self.sent.as_ref()
    }

    pub fn newest_acked(&self) -> Option<Delivery> {
        match self.acked_at {
            Some(at) => self.sent.clone().map(|sent| Delivery { at, ..sent }),
            None => self.unconfirmed.as_ref()?.acked.clone(),
        }
    }

    fn rejections(&self) -> &[Rejection] {
        self.rejections.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Position before the oldest unanswered response.
    fn unanswered(&self) -> Option<&Position> {
        self.unconfirmed.as_ref()?.from.as_ref()
    }

    /// When the oldest unanswered response was sent.
    pub fn unanswered_since(&self) -> Option<Instant> {
        self.unanswered()?;
        self.unconfirmed.as_ref().map(|unconfirmed| unconfirmed.since)
    }

    /// Newest NACK, even if outdated.
    pub fn newest_rejection(&self) -> Option<&Rejection> {
        self.rejections().last()
    }

    /// Newest NACK that still applies (see [`ClientState::Rejected`]), otherwise the newest of all.
    pub fn standing_rejection(&self) -> Option<&Rejection> {
        let audience = self.upgrade();
        let stands =
            |rejection: &&Rejection| audience.as_ref().is_some_and(|audience| rejection.stands(audience));
        self.rejections().iter().rev().find(stands).or_else(|| self.newest_rejection())
    }

    /// `None` once the client is gone.
    pub fn upgrade(&self) -> Option<Audience> {
        Some(Audience { of: self.of.upgrade()?, cohort: self.cohort.upgrade()? })
    }

    /// At most `max` names of a NACK that have not changed since. `None` for a NACK of the first
    /// responses, in which everything is new.
    pub fn rejected_names(&self, rejection: &Rejection, max: usize) -> Option<Vec<Name>> {
        let audience = self.upgrade()?;
        if rejection.from.is_start() {
            return None;
        }
        let snapshot = audience.of.snapshot();
        let changed = rejection.changed(&snapshot, audience.subscription());
        Some(changed.take(max).cloned().collect())
    }

    pub fn state(&self, withheld: &Withheld) -> ClientState {
        let Some(audience) = self.upgrade() else { return ClientState::Synced };
        if self.is_rejected(&audience) {
            ClientState::Rejected
        } else if self.position.is_start() && !audience.subscription().is_empty() {
            if self.resumes { ClientState::Resuming } else { ClientState::Waiting }
        } else if self.unanswered().is_some() {
            ClientState::Unacked
        } else if self.lag() > 0 {
            ClientState::Behind
        } else if audience.is_held_back(withheld) {
            ClientState::HeldBack
        } else {
            ClientState::Synced
        }
    }

    fn is_rejected(&self, audience: &Audience) -> bool {
        let Some(newest) = self.newest_rejection() else { return false };
        let subscription = audience.subscription();
        if subscription.is_empty() {
            return false;
        }
        if self.newest_acked().is_none_or(|acked| acked.at <= newest.delivery.at) {
            // A NACK is outdated if nothing subscribed was new in it. If the response was accepted
            // before, its news is unknown.
            let snapshot = audience.of.snapshot();
            let mut news =
                snapshot.changed_between(subscription, newest.from.latest_sent(), snapshot.generation());
            let is_of_anything = newest.from.is_start() || newest.from == newest.to;
            if is_of_anything || news.next().is_some() {
                return true;
            }
        }
        // The client accepted something else since, or unsubscribed it, but still holds another
        // state of something that it rejected.
        self.rejections().iter().any(|rejection| rejection.stands(audience))
    }

    /// Generations by which the client is behind.
    ///
    /// Example: a client was sent everything up to 17, and a subscribed resource changed at 20. It
    /// is 3 behind.
    pub fn lag(&self) -> u64 {
        let Some(cohort) = self.cohort.upgrade() else { return 0 };
        let sent = self.position.added.min(self.position.removed);
        cohort.touched().get().saturating_sub(sent.get())
    }

    pub fn resource_state(&self, audience: &Audience, snapshot: &Snapshot, name: &Name) -> ResourceState<'_> {
        let (subscription, profile) = (audience.subscription(), audience.cohort.profile());
        self.state_of(name, |position| snapshot.was_sent(name.as_str(), subscription, profile, position))
    }

    /// State of a change at a generation. If another followed before the client was sent the first,
    /// the response with the later one counts.
    pub fn change_state(&self, name: &Name, at: Generation, is_removal: bool) -> ResourceState<'_> {
        self.state_of(name, |position| match is_removal {
            true => position.was_sent_all(at),
            false => position.was_sent_additions(at),
        })
    }

    /// State of a name, given the positions that include it.
    fn state_of(&self, name: &Name, was_sent: impl Fn(&Position) -> bool) -> ResourceState<'_> {
        let state = self.answer_to(was_sent);
        match (state, self.owed.as_deref()) {
            (ResourceState::NotSent, _) if self.resumes && self.position.is_start() => ResourceState::Unknown,
            (ResourceState::NotSent, _) => state,
            (_, Some(Owed::Many)) => ResourceState::Unknown,
            (_, Some(Owed::Few(names))) if names.contains(name) => ResourceState::NotSent,
            _ => state,
        }
    }

    /// Answer of the client to changes, given the positions that include them.
    fn answer_to(&self, was_sent: impl Fn(&Position) -> bool) -> ResourceState<'_> {
        if !was_sent(&self.position) {
            return ResourceState::NotSent;
        }
        if self.unanswered().is_some_and(|before| !was_sent(before)) {
            return ResourceState::Stale;
        }
        let is_rejected = |rejection: &&Rejection| was_sent(&rejection.to) && !was_sent(&rejection.from);
        let rejection = self.rejections().iter().rev().find(is_rejected);
        rejection.map_or(ResourceState::Synced, ResourceState::Rejected)
    }

    fn is_full_state(&self) -> bool {
        let profile = self.cohort.upgrade().map(|cohort| cohort.profile());
        profile.is_some_and(|profile| profile.is_full_state(self.type_url.kind()))
    }
}

/// Drops the oldest outdated rejection. If all apply, merges the two neighbours with the fewest
/// accepted changes between, which then count as rejected: a rejected change must not count as
/// accepted.
fn make_room(rejections: &mut Vec<Rejection>, audience: Option<&Audience>) {
    let is_over = |rejection: &Rejection| audience.is_none_or(|audience| !rejection.stands(audience));
    if let Some(at) = rejections.iter().position(is_over) {
        rejections.remove(at);
        return;
    }
    let gap = |at: &usize| {
        rejections[at + 1].from.latest_sent().get().saturating_sub(rejections[*at].to.latest_sent().get())
    };
    if let Some(at) = (0..rejections.len().saturating_sub(1)).min_by_key(gap) {
        let first = rejections.remove(at);
        rejections[at].from = first.from;
    }
}

impl Rejection {
    /// Whether the client still subscribes to something rejected here and unchanged since.
    fn stands(&self, audience: &Audience) -> bool {
        self.changed(&audience.of.snapshot(), audience.subscription()).next().is_some()
    }

    /// Rejected names that have not changed since.
    fn changed<'a>(
        &self,
        snapshot: &'a Snapshot,
        subscription: &'a Subscription,
    ) -> impl Iterator<Item = &'a Name> {
        snapshot.changed_between(subscription, self.from.latest_sent(), self.to.latest_sent())
    }
}

#[derive(Clone, Debug)]
pub struct Audience {
    of: Arc<TypeCache>,
    cohort: Arc<Cohort>,
}

impl Audience {
    pub(super) fn new(membership: &Membership) -> Self {
        Self { of: Arc::clone(membership.of()), cohort: Arc::clone(membership.cohort()) }
    }

    pub const fn of(&self) -> &Arc<TypeCache> {
        &self.of
    }

    pub fn subscription(&self) -> &Subscription {
        self.cohort.subscription()
    }

    pub fn cohort(&self) -> u64 {
        self.cohort.id()
    }

    /// Whether it is kept on an earlier state of anything that it asks for.
    pub fn is_held_back(&self, withheld: &Withheld) -> bool {
        withheld.holds_back(&self.of, &self.cohort)
    }
}

#[cfg(test)]
mod tests;
