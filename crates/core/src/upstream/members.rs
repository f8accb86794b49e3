//! Members of a topic's wildcard set on the live stream: how they were requested, and the progress
//! of the answer.
//!
//! Owns which held members have not come again. Knows neither why the wildcard is wanted nor the
//! names.

use std::time::Duration;

use foldhash::{HashMap, HashSet};

use super::Settings;
use super::answer::{AnswerProgress, EndMark, Evidence, Silence, Whole};
use super::quiet_clock::QuietInstant;
use super::target::Target;
use crate::cache::{Completeness, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::Name;

/// Most bytes of member versions in the one request of a wildcard: servers with gRPC's default take
/// 4 MiB. The other members are sent again in full.
pub(super) const VERSIONS_BYTES: usize = 3 << 20;

/// Subscription of one stream to the wildcard of one type, as it was sent. Empty without a stream.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// `Some` if the wildcard was requested; `true` if it was let go since, and the unsubscribe is
    /// still to be sent.
    asked: Option<bool>,
    dirty: bool,
    progress: AnswerProgress,
    /// Held members that this stream has not mentioned, and whether they were claimed. Claimed ones
    /// leave at the end of the answer.
    unheard: HashMap<Name, bool>,
    end_mark: EndMark,
}

impl Members {
    pub(super) const fn is_idle(&self) -> bool {
        self.asked.is_none()
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(super) const fn touch(&mut self) {
        self.dirty = true;
    }

    /// Lets the wildcard go. An unsubscribe is sent only for parameters: control planes do not
    /// reliably let go of a plain one (O1).
    pub(super) fn let_go(&mut self, tells: bool) {
        if self.asked.is_none() {
            return;
        }
        self.unheard = HashMap::default();
        self.dirty = true;
        self.asked = self.asked.filter(|_| tells).map(|_| true);
        // The rest of its answer is the end of nothing.
        self.lapse();
    }

    pub(super) fn covers(&self) -> bool {
        self.asked == Some(false)
    }

    /// Shares the wildcard that another topic requested on this stream with the same words.
    pub(super) const fn share(&mut self) {
        self.asked = Some(false);
    }

    /// Returns the next request towards the target.
    pub(super) fn changes(&mut self, target: &Target<'_>) -> Option<DeltaDiscoveryRequest> {
        let mut request = DeltaDiscoveryRequest::default();
        let leaves = self.asked == Some(true);
        if leaves {
            // Unsubscribe and subscribe go in separate requests: no document says what a second
            // subscribe does.
            target.unsubscribe(Name::WILDCARD, &mut request);
            self.asked = None;
        }
        let is_new = target.is_wanted && self.asked.is_none();
        let joins = is_new && !leaves && !target.wildcard_waits;
        if joins {
            self.join(target, &mut request);
        }
        self.dirty = leaves && is_new;
        (leaves || joins).then_some(request)
    }

    fn join(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        self.asked = Some(false);
        if !target.fresh || !target.has_legacy_wildcard {
            target.subscribe(Name::WILDCARD, request);
        }
        // Otherwise the request stays empty, the form that every server understands (R-Up-05).
        self.claim_members(target, request);
        self.end_mark.ask(target, false, request);
        // A response may be for others alone.
        let hold = if target.beside { target.settings.tuning.settle_max } else { Duration::ZERO };
        self.progress = AnswerProgress::asked(target.moment.quiet, hold);
    }

    /// Claims held members by version, as far as they fit. The others have to come again if they
    /// still exist.
    fn claim_members(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        let mut room = VERSIONS_BYTES;
        for held in target.snapshot.members() {
            let name = held.name().as_str();
            let claim = target.claim(View::Wildcard, held).filter(|_| target.tells_versions);
            let bytes = claim.map_or(usize::MAX, |version| name.len() + version.len() + 10);
            match claim {
                Some(version) if bytes <= room => {
                    room -= bytes;
                    request.initial_resource_versions.insert(name.to_owned(), version.to_owned());
                    self.unheard.insert(held.name().clone(), true);
                }
                _ => drop(self.unheard.insert(held.name().clone(), false)),
            }
        }
    }

    pub(super) fn expects_members(&self) -> bool {
        self.progress.is_expected()
    }

    /// Notes that a response mentions a member. For the first mention of a held member, returns
    /// whether it was claimed.
    pub(super) fn saw(&mut self, name: &str) -> Option<bool> {
        self.unheard.remove(name)
    }

    /// Notes an accepted response of the type, which may be a part of the answer.
    pub(super) fn arrived(&mut self, now: QuietInstant, brings_news: bool, more_follows: bool) {
        self.progress = self.progress.arrived(now, brings_news, more_follows);
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.progress.has_begun()
    }

    /// Time of the request, while nothing has come.
    pub(super) fn asked_at(&self) -> Option<QuietInstant> {
        self.progress.waits_since()
    }

    pub(super) fn deadline(&self, settings: &Settings, asked: Evidence) -> Option<QuietInstant> {
        self.progress.deadline(settings, self.evidence(asked))
    }

    /// Returns the degree of completeness reached by now, if it is new.
    pub(super) fn step(
        &mut self,
        settings: &Settings,
        asked: Evidence,
        now: QuietInstant,
    ) -> Option<Completeness> {
        let evidence = self.evidence(asked);
        let degree = self.progress.step(settings, evidence, now);
        if self.progress.is_over() {
            self.unheard.retain(|_, is_claimed| !*is_claimed);
            self.unheard.shrink_to_fit();
        }
        degree
    }

    /// Evidence for this answer, given that of a requested end mark.
    fn evidence(&self, asked: Evidence) -> Evidence {
        match asked {
            _ if self.end_mark != EndMark::Asked => Evidence::None,
            Evidence::Uncounted if !self.unheard.is_empty() => Evidence::Awaited,
            _ => asked,
        }
    }

    /// A TTL ended. The control plane may believe the member delivered, so its answer proves
    /// nothing any more.
    pub(super) fn lapse(&mut self) {
        (self.progress, self.end_mark) = (AnswerProgress::Idle, EndMark::Unasked);
    }

    pub(super) const fn is_receiving(&self) -> bool {
        self.progress.is_under_way()
    }

    pub(super) const fn awaits_more(&self) -> bool {
        !matches!(self.progress, AnswerProgress::Idle) && !self.progress.is_over()
    }

    /// Notes an accepted response that may answer the end mark, or is a whole SotW state.
    pub(super) fn receive_end_mark(&mut self, answers_end_mark: bool, is_state: bool) {
        let is_state = is_state && self.awaits_more();
        if (answers_end_mark && self.end_mark == EndMark::Asked) || is_state {
            self.end_mark = EndMark::Answered;
        }
    }

    /// Time since when a census is due. It needs a quiet or missing answer without an end mark, and
    /// a waiting client or a member that has not come again.
    pub(super) fn census_since(&self, is_awaited: bool, settings: &Settings) -> Option<QuietInstant> {
        if self.end_mark != EndMark::Asked
            || (self.unheard.is_empty() && (!is_awaited || self.progress.is_over()))
        {
            return None;
        }
        let unanswered = self.progress.waits_since().map(|since| since + settings.answer_timeout);
        unanswered.or_else(|| self.progress.quiet_at(settings))
    }

    /// Applies a census. `is_all_held`: all its names are held. Returns the members that are gone:
    /// absent from the census and from the first answer on this stream. Before that answer, absence
    /// proves nothing.
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
            self.progress = AnswerProgress::Whole;
        }
        gone
    }

    /// Whether the first answer is known to be whole.
    pub(super) fn is_whole(&self) -> bool {
        self.end_mark == EndMark::Over
    }

    pub(super) fn is_claimed(&self, name: &Name) -> bool {
        self.unheard.get(name) == Some(&true)
    }

    /// Takes the conclusions from the response that ended the first answer.
    pub(super) fn take_whole(&mut self) -> Option<Whole> {
        if self.end_mark != EndMark::Answered {
            return None;
        }
        self.end_mark = EndMark::Over;
        self.progress = AnswerProgress::Whole;
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
