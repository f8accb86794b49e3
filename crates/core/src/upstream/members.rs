//! Members of a topic's wildcard set on the stream that lives: how the origin was asked for them, and how far it has answered.
//!
//! Owns which of the members that are held have not come again. Knows neither why the wildcard is wanted nor what was asked for by name.

use std::time::Duration;

use foldhash::{HashMap, HashSet};

use super::Settings;
use super::answer::{EndMark, Silence, Whole};
use super::arrival::{Arrival, Evidence};
use super::quiet_clock::QuietInstant;
use super::target::Target;
use crate::cache::{Completeness, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::Name;

/// The versions of a wildcard's members go into one request, and no more than this of them: servers that kept gRPC's
/// default take 4 MiB. The other members are sent again in full.
pub(super) const VERSIONS_BYTES: usize = 3 << 20;

/// Subscription of one stream to the wildcard of one type, as it was sent.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Whether the wildcard was asked for, and if so whether it was let go since, without the origin having been told.
    asked: Option<bool>,
    dirty: bool,
    arrival: Arrival,
    /// Members that are held and of which nothing has come on this stream, and whether they were claimed. Claimed ones are no
    /// longer among them once the answer is over.
    unheard: HashMap<Name, bool>,
    end_mark: EndMark,
}

impl Members {
    /// Whether nothing was asked for that was not let go.
    pub(super) const fn is_idle(&self) -> bool {
        self.asked.is_none()
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Notes that something else is wanted.
    pub(super) const fn touch(&mut self) {
        self.dirty = true;
    }

    /// The wildcard is let go. The origin is told if it is that of a set of parameters: what it makes of a plain one that is
    /// let go on a stream that lives is not to be relied on (O1).
    pub(super) fn let_go(&mut self, tells: bool) {
        if self.asked.is_none() {
            return;
        }
        self.unheard = HashMap::default();
        self.dirty = true;
        self.asked = self.asked.filter(|_| tells).map(|_| true);
        // No more is known of it, also before the origin is told. What may still come of its answer is the end of nothing.
        self.lapse();
    }

    /// Whether it was asked for, and not let go since.
    pub(super) fn covers(&self) -> bool {
        self.asked == Some(false)
    }

    /// The origin was asked for the wildcard on this stream in the words of these clients, for others: its answer is for both.
    pub(super) fn share(&mut self, of: &Self, held: impl Iterator<Item = Name>) {
        if of.covers() {
            self.asked = Some(false);
            self.arrival = of.arrival;
            let is_unclaimed = |name: &Name| of.unheard.get(name) == Some(&false);
            self.unheard = held.filter(is_unclaimed).map(|name| (name, false)).collect();
        }
    }

    /// The next request that brings the origin closer to the target, and whether another has to follow.
    pub(super) fn changes(&mut self, target: &Target<'_>) -> (Option<DeltaDiscoveryRequest>, bool) {
        self.dirty = false;
        let mut request = DeltaDiscoveryRequest::default();
        let leaves = self.asked == Some(true);
        if leaves {
            // A wildcard that was forgotten is left and joined again in requests of their own: no document says how a
            // server is to treat a second subscribe to it.
            target.unsubscribe(Name::WILDCARD, &mut request);
            self.asked = None;
        }
        let is_new = target.is_wanted && self.asked.is_none();
        let joins = is_new && !leaves && !target.wildcard_waits;
        if joins {
            self.join(target, &mut request);
        }
        ((leaves || joins).then_some(request), leaves && is_new)
    }

    fn join(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        self.asked = Some(false);
        if !target.fresh || !target.has_legacy_wildcard {
            target.subscribe(Name::WILDCARD, request);
        }
        // Otherwise the request stays empty: the form that every server understands (R-Up-05).
        self.claim_members(target, request);
        self.end_mark.ask(target, false, request);
        // A response may be for others alone.
        let hold = if target.beside { target.settings.settle_max } else { Duration::ZERO };
        self.arrival = Arrival::asked(target.moment.quiet, hold);
    }

    /// Tells the versions of the members that are held, as far as they fit. The others have to come
    /// again if they are still there.
    fn claim_members(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        let mut room = VERSIONS_BYTES;
        for held in target.snapshot.members() {
            let name = held.name().as_str();
            let claim = target.claim(View::Wildcard, held).filter(|_| target.tells_versions());
            let bytes = claim.map_or(usize::MAX, |version| name.len() + version.len() + 10);
            match claim {
                Some(version) if bytes <= room => {
                    room -= bytes;
                    request.initial_resource_versions.insert(name.to_owned(), version.to_owned());
                    self.unheard.insert(held.name().clone(), true);
                }
                _ if target.is_claimed(held) => {}
                _ => drop(self.unheard.insert(held.name().clone(), false)),
            }
        }
    }

    /// Whether it is asked for, and resources are its answer.
    pub(super) fn expects_members(&self) -> bool {
        self.arrival.is_expected()
    }

    /// Notes that a response speaks of a member. If that is held, and it is the first word of it, that is a part of the answer: returns
    /// whether it was claimed. What changes once more is none.
    pub(super) fn saw(&mut self, name: &str) -> Option<bool> {
        self.unheard.remove(name)
    }

    /// A response for the type was accepted that may be a part of what is awaited.
    pub(super) fn arrived(&mut self, now: QuietInstant, brings_news: bool, more_follows: bool) {
        self.arrival = self.arrival.arrived(now, brings_news, more_follows);
    }

    /// Whether any of the answer has come.
    pub(super) const fn has_begun(&self) -> bool {
        self.arrival.has_begun()
    }

    /// When it was asked for, while nothing came of it.
    pub(super) fn asked_at(&self) -> Option<QuietInstant> {
        self.arrival.waits_since()
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, settings: &Settings, asked: Evidence) -> Option<QuietInstant> {
        self.arrival.deadline(settings, self.evidence(asked))
    }

    /// The degree that the answer has reached by now, if it is a new one.
    pub(super) fn step(
        &mut self,
        settings: &Settings,
        asked: Evidence,
        now: QuietInstant,
    ) -> Option<Completeness> {
        let evidence = self.evidence(asked);
        let degree = self.arrival.step(settings, evidence, now);
        if self.arrival.is_over() {
            self.unheard.retain(|_, is_claimed| !*is_claimed);
            self.unheard.shrink_to_fit();
        }
        degree
    }

    /// Whether the origin says that the answer is whole, given what it says where it was asked for the end mark.
    fn evidence(&self, asked: Evidence) -> Evidence {
        match asked {
            _ if self.end_mark != EndMark::Asked => Evidence::None,
            Evidence::Uncounted if !self.unheard.is_empty() => Evidence::Awaited,
            _ => asked,
        }
    }

    /// A member that came has come to its end, and the origin may take it for delivered: its answer says nothing any more.
    pub(super) fn lapse(&mut self) {
        (self.arrival, self.end_mark) = (Arrival::Idle, EndMark::Unasked);
    }

    /// Whether parts of an answer come, one after the other.
    pub(super) const fn is_receiving(&self) -> bool {
        self.arrival.is_under_way()
    }

    /// Whether parts of an answer are awaited.
    pub(super) const fn awaits_more(&self) -> bool {
        !matches!(self.arrival, Arrival::Idle) && !self.arrival.is_over()
    }

    /// A response for the type was accepted, which may answer the end mark, or be a whole state of the world.
    pub(super) fn hear_end(&mut self, answers_end_mark: bool, is_state: bool) {
        let is_state = is_state && self.awaits_more();
        if (answers_end_mark && self.end_mark == EndMark::Asked) || is_state {
            self.end_mark = EndMark::Answered;
        }
    }

    /// Since when a census of the set is due: its answer is quiet, or stays away, and the origin does not say whether that was all. A
    /// client waits for that, or something that was held has not come again.
    pub(super) fn census_since(&self, is_awaited: bool, settings: &Settings) -> Option<QuietInstant> {
        if self.end_mark != EndMark::Asked
            || (self.unheard.is_empty() && (!is_awaited || self.arrival.is_over()))
        {
            return None;
        }
        let unanswered = self.arrival.waits_since().map(|since| since + settings.answer_timeout);
        unanswered.or_else(|| self.arrival.quiet_at(settings))
    }

    /// A census has come: the set has these names, and if `is_all_held`, all of them are held. Returns the members that are gone: they
    /// are missing from that, and from the first answer on this stream. Before that has come, what is missing leaves the question open.
    pub(super) fn take_census(&mut self, names: &HashSet<String>, is_all_held: bool) -> Vec<Name> {
        if self.end_mark != EndMark::Asked {
            return Vec::new();
        }
        self.unheard.retain(|name, _| !names.contains(name.as_str()));
        let mut gone = Vec::new();
        if self.has_begun() {
            gone.extend(self.unheard.drain().map(|(name, _)| name));
            gone.sort_unstable();
        }
        if is_all_held && self.unheard.is_empty() {
            self.end_mark = EndMark::Over;
            self.arrival = Arrival::Whole;
        }
        gone
    }

    /// Whether the answer to the first request is known to be whole.
    pub(super) fn is_whole(&self) -> bool {
        self.end_mark == EndMark::Over
    }

    /// Whether this member was claimed, and the answer is not over.
    pub(super) fn is_claimed(&self, name: &Name) -> bool {
        self.unheard.get(name) == Some(&true)
    }

    /// Takes what follows from the response that ended the answer to the first request.
    pub(super) fn take_whole(&mut self) -> Option<Whole> {
        if self.end_mark != EndMark::Answered {
            return None;
        }
        self.end_mark = EndMark::Over;
        self.arrival = Arrival::Whole;
        let unheard = std::mem::take(&mut self.unheard).into_iter();
        let absent = unheard.filter(|(_, is_claimed)| !is_claimed).map(|(name, _)| name).collect();
        Some(Whole { absent, collections: Vec::new() })
    }

    /// Whether it has not been answered.
    pub(super) fn silence(&self) -> Silence {
        let mut silence = Silence { answered: self.has_begun(), ..Silence::default() };
        self.asked_at().into_iter().for_each(|at| silence.add(at));
        silence
    }
}
