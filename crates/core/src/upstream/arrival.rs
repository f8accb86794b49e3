//! Progress of the origin's answer to a wildcard, or to a collection.
//!
//! An origin may split an answer and send each part only after the ACK of the last (O4), and not each says where it ends (R-Up-22).
//! Owns the judgement how long a silence must last before it counts. Knows neither names nor requests, and no clock.
//!
//! An answer is [`Settled`](Completeness::Settled) after a short silence, [`Presumed`](Completeness::Presumed) after a longer time if the
//! origin may still say that it is whole, and [`Complete`](Completeness::Complete) in the end. Silence shows a set, and removes nothing.

use std::time::Duration;

use super::Settings;
use super::quiet_clock::QuietInstant;
use crate::cache::Completeness;

/// A silence of so many settle times ends an answer of which the origin cannot be asked whether it is whole.
const COMPLETE_SETTLES: u32 = 25;
/// A set that does not settle is shown to newcomers after this, as it is.
const GROWING: Duration = Duration::from_secs(30);
/// Clients that may hold something wait no longer for the end of an answer.
const LONGEST: Duration = Duration::from_secs(90);

/// Whether the origin says that an answer is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It was asked for the end mark, and can be asked for a census; or something that is held has not come again.
    Awaited,
    /// It was asked for the end mark, and there is no census.
    Uncounted,
    /// It was not asked, or need not have understood.
    None,
}

impl Evidence {
    /// Evidence where the end mark was asked for, with or without parameters: an origin that does not read locators answers it beside
    /// them. `can_count` tells whether there is a census.
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
pub(super) enum Arrival {
    #[default]
    Idle,
    /// Asked for. It is not settled before `hold` after the first part: what comes may be for others.
    Asked { since: QuietInstant, hold: Duration },
    /// Parts have come.
    Arriving(Parts),
    /// It is known to be whole.
    Whole,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    first: QuietInstant,
    /// When the last part came that brought anything new.
    last: QuietInstant,
    hold: Duration,
    /// The origin has said that more follows: no silence short of the bounds is the end.
    more_follows: bool,
    degree: Completeness,
}

impl Parts {
    /// When they are followed by a short silence.
    fn quiet_at(&self, settings: &Settings) -> QuietInstant {
        (self.last + settings.settle).max(self.first + self.hold)
    }

    fn settled_at(&self, settings: &Settings) -> QuietInstant {
        let bound = self.first + GROWING.max(settings.settle_max);
        if self.more_follows { bound } else { self.quiet_at(settings).min(bound) }
    }

    fn presumed_at(&self, settings: &Settings, evidence: Evidence) -> QuietInstant {
        match evidence {
            _ if self.more_follows => self.first + LONGEST,
            Evidence::Awaited => self.first + GROWING.max(settings.settle_max),
            Evidence::Uncounted => self.settled_at(settings),
            Evidence::None => self.complete_at(settings, evidence),
        }
    }

    fn complete_at(&self, settings: &Settings, evidence: Evidence) -> QuietInstant {
        let bound = self.first + LONGEST;
        let waits = self.more_follows || evidence != Evidence::None;
        if waits { bound } else { (self.last + COMPLETE_SETTLES * settings.settle).min(bound) }
    }
}

impl Arrival {
    /// The question has been asked now.
    pub(super) const fn asked(now: QuietInstant, hold: Duration) -> Self {
        Self::Asked { since: now, hold }
    }

    /// A response came that may be a part. One that brings nothing new, be it that the origin repeats itself or that something changes,
    /// does not put the end off. An origin may say that more follows.
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

    /// Since when it waits for the first part.
    pub(super) const fn waits_since(self) -> Option<QuietInstant> {
        match self {
            Self::Asked { since, .. } => Some(since),
            Self::Idle | Self::Arriving(_) | Self::Whole => None,
        }
    }

    /// When what came is followed by a short silence.
    pub(super) fn quiet_at(self, settings: &Settings) -> Option<QuietInstant> {
        match self {
            Self::Arriving(parts) => Some(parts.quiet_at(settings)),
            Self::Idle | Self::Asked { .. } | Self::Whole => None,
        }
    }

    /// Whether any of it has come.
    pub(super) const fn has_begun(self) -> bool {
        matches!(self, Self::Arriving(_) | Self::Whole)
    }

    /// Whether parts of it come, one after the other.
    pub(super) const fn is_under_way(self) -> bool {
        matches!(self, Self::Arriving(Parts { degree: Completeness::Unknown, .. }))
    }

    /// Whether nothing more is expected of it.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Arriving(Parts { degree: Completeness::Complete, .. }) | Self::Whole)
    }

    /// Whether a copy of what is held is an answer, and not a resend of the origin's own accord.
    pub(super) const fn is_expected(self) -> bool {
        matches!(self, Self::Asked { .. }) || self.is_under_way()
    }

    /// When the next degree is reached if nothing more comes.
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

    /// Moves on to the degree that is reached by now, if it is a new one.
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
