//! Progress of an answer, and the conclusions from a whole one.
//!
//! A control plane may split an answer, send each part only after the ACK of the last (O4), and not
//! mark the end (R-Up-22). Owns how long a silence must last before it counts. Knows neither names
//! nor requests, and no clock.
//!
//! An answer is [`Settled`](Completeness::Settled) after a short silence. It is
//! [`Presumed`](Completeness::Presumed) after a longer one if an end mark may still come, and
//! [`Complete`](Completeness::Complete) in the end. Silence shows a set, and removes nothing.

use std::time::Duration;

use super::quiet_clock::QuietInstant;
use super::target::Target;
use super::{Settings, response};
use crate::cache::Completeness;
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::Name;

/// End mark of the answer to the first request (R-Up-22).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EndMark {
    #[default]
    Unasked,
    Asked,
    /// The response that answers it is being read.
    Answered,
    /// The answer is whole.
    Over,
}

impl EndMark {
    /// Asks for the end mark in a first request, unless the control plane speaks SotW. `by_name`:
    /// the request is for names.
    pub(super) fn ask(&mut self, target: &Target<'_>, by_name: bool, request: &mut DeltaDiscoveryRequest) {
        if target.speaks_sotw || !target.is_first {
            return;
        }
        *self = Self::Asked;
        response::ask_for_end(request, by_name);
    }
}

/// Conclusions from a whole answer: anything that was asked for and is missing does not exist
/// (R-Up-22).
#[derive(Debug)]
pub(super) struct Whole {
    /// Members, names and members of collections that do not exist.
    pub(super) absent: Vec<Name>,
    /// Collections that have no further members.
    pub(super) collections: Vec<Name>,
}

/// Unanswered subscriptions of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    /// Number of names, with the wildcard counted as one.
    pub(super) count: usize,
    /// Time of the oldest question.
    pub(super) since: Option<QuietInstant>,
    /// Whether anything else of the type was answered.
    pub(super) answered: bool,
}

impl Silence {
    /// Adds a subscription that has been unanswered since this moment.
    pub(super) fn add(&mut self, since: QuietInstant) {
        self.count += 1;
        self.since = self.since.into_iter().chain([since]).min();
    }

    /// Returns the sum of both.
    #[must_use]
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            since: self.since.into_iter().chain(other.since).min(),
            answered: self.answered || other.answered,
        }
    }
}

/// Settle times of silence that end an answer without an end mark.
const COMPLETE_SETTLES: u32 = 25;
/// An answer that does not settle is shown to new clients after this time.
const GROWING: Duration = Duration::from_secs(30);
/// Longest time that clients with cached resources wait for the end of an answer.
const LONGEST: Duration = Duration::from_secs(90);

/// Whether the control plane marks the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The end mark was requested, and a census is possible; or a held member has not come again.
    Awaited,
    /// The end mark was requested, and no census is possible.
    Uncounted,
    /// The end mark was not requested, or may not have been understood.
    None,
}

impl Evidence {
    /// Evidence where the end mark was requested. A control plane that does not read locators
    /// answers the mark all the same, so with parameters (`is_plain` is false) there is none.
    /// `can_count`: a census is possible.
    pub(super) const fn of(is_plain: bool, can_count: bool) -> Self {
        match (is_plain, can_count) {
            (false, _) => Self::None,
            (true, true) => Self::Awaited,
            (true, false) => Self::Uncounted,
        }
    }
}

/// Stage of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum AnswerProgress {
    #[default]
    Idle,
    /// Requested. It does not settle before `hold` after the first part, which may be for others.
    Asked { since: QuietInstant, hold: Duration },
    /// Parts have come.
    Arriving(Parts),
    /// It is known to be whole.
    Whole,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    first: QuietInstant,
    /// Time of the last part with anything new.
    last: QuietInstant,
    hold: Duration,
    /// The control plane said that more follows: only the upper bounds end the answer.
    more_follows: bool,
    degree: Completeness,
}

impl Parts {
    /// Time at which the silence after the last part is long enough.
    fn quiet_at(&self, settings: &Settings) -> QuietInstant {
        (self.last + settings.tuning.settle).max(self.first + self.hold)
    }

    fn settled_at(&self, settings: &Settings) -> QuietInstant {
        let bound = self.first + GROWING.max(settings.tuning.settle_max);
        if self.more_follows { bound } else { self.quiet_at(settings).min(bound) }
    }

    fn presumed_at(&self, settings: &Settings, evidence: Evidence) -> QuietInstant {
        match evidence {
            _ if self.more_follows => self.first + LONGEST,
            Evidence::Awaited => self.first + GROWING.max(settings.tuning.settle_max),
            Evidence::Uncounted => self.settled_at(settings),
            Evidence::None => self.complete_at(settings, evidence),
        }
    }

    fn complete_at(&self, settings: &Settings, evidence: Evidence) -> QuietInstant {
        let bound = self.first + LONGEST;
        let waits = self.more_follows || evidence != Evidence::None;
        if waits { bound } else { (self.last + COMPLETE_SETTLES * settings.tuning.settle).min(bound) }
    }
}

impl AnswerProgress {
    pub(super) const fn asked(now: QuietInstant, hold: Duration) -> Self {
        Self::Asked { since: now, hold }
    }

    /// Notes a response that may be a part. Only news extends the wait: not a repetition, and not a
    /// second change of a member.
    #[must_use]
    pub(super) fn arrived(self, now: QuietInstant, brings_news: bool, more_follows: bool) -> Self {
        match self {
            Self::Asked { hold, .. } => Self::Arriving(Parts {
                first: now,
                last: now,
                hold,
                more_follows,
                degree: Completeness::Unknown,
            }),
            Self::Arriving(parts) => {
                let last = if brings_news { now } else { parts.last };
                Self::Arriving(Parts { last, more_follows, ..parts })
            }
            Self::Idle | Self::Whole => self,
        }
    }

    /// Start of the wait for the first part.
    pub(super) const fn waits_since(self) -> Option<QuietInstant> {
        match self {
            Self::Asked { since, .. } => Some(since),
            Self::Idle | Self::Arriving(_) | Self::Whole => None,
        }
    }

    /// Time at which the silence after the last part is long enough.
    pub(super) fn quiet_at(self, settings: &Settings) -> Option<QuietInstant> {
        match self {
            Self::Arriving(parts) => Some(parts.quiet_at(settings)),
            Self::Idle | Self::Asked { .. } | Self::Whole => None,
        }
    }

    /// Whether any part has come.
    pub(super) const fn has_begun(self) -> bool {
        matches!(self, Self::Arriving(_) | Self::Whole)
    }

    /// Whether parts have come, and more are expected soon.
    pub(super) const fn is_under_way(self) -> bool {
        matches!(self, Self::Arriving(Parts { degree: Completeness::Unknown, .. }))
    }

    /// Whether no more parts are expected.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Arriving(Parts { degree: Completeness::Complete, .. }) | Self::Whole)
    }

    /// Whether a copy of a held resource is an answer, and not an unsolicited resend.
    pub(super) const fn is_expected(self) -> bool {
        matches!(self, Self::Asked { .. }) || self.is_under_way()
    }

    /// Time at which the next degree is reached if nothing more comes.
    pub(super) fn deadline(self, settings: &Settings, evidence: Evidence) -> Option<QuietInstant> {
        match self {
            Self::Arriving(parts) => match parts.degree {
                Completeness::Unknown => Some(parts.settled_at(settings)),
                Completeness::Settled => Some(parts.presumed_at(settings, evidence)),
                Completeness::Presumed => Some(parts.complete_at(settings, evidence)),
                Completeness::Complete => None,
            },
            Self::Idle | Self::Asked { .. } | Self::Whole => None,
        }
    }

    /// Moves on to the degree reached by now. Returns it if it is new.
    pub(super) fn step(
        &mut self,
        settings: &Settings,
        evidence: Evidence,
        now: QuietInstant,
    ) -> Option<Completeness> {
        let Self::Arriving(parts) = self else { return None };
        let reached = match now {
            _ if parts.complete_at(settings, evidence) <= now => Completeness::Complete,
            _ if parts.presumed_at(settings, evidence) <= now => Completeness::Presumed,
            _ if parts.settled_at(settings) <= now => Completeness::Settled,
            _ => Completeness::Unknown,
        };
        (parts.degree < reached).then(|| {
            parts.degree = reached;
            reached
        })
    }
}
