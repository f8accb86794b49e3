//! Progress of the origin's answer to a wildcard, to a collection, or to names that are claimed to be held.
//!
//! An origin may split an answer and send each part only after the ACK of the last (O4), and not each says where it ends (R-Up-22).
//! Owns the judgement how long a silence must last before it counts. Knows neither names nor requests, and no clock.
//!
//! An answer is [`Settled`](Completeness::Settled) after a short silence, [`Presumed`](Completeness::Presumed) after a long one, and
//! [`Complete`](Completeness::Complete) in the end. Silence shows a set, and removes nothing.

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

/// Stage of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Arrival {
    #[default]
    Idle,
    /// Asked for. Where versions were sent, silence is an answer too, at `quiet_at`.
    /// It is not settled before `hold` after the first part: what comes may be for others.
    Asked { since: QuietInstant, quiet_at: Option<QuietInstant>, hold: Duration },
    /// Parts have come.
    Arriving(Parts),
    /// Nothing more is expected.
    Complete,
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
    fn settled_at(&self, settings: &Settings) -> QuietInstant {
        let bound = self.first + GROWING.max(settings.settle_max);
        let quiet = (self.last + settings.settle).max(self.first + self.hold);
        if self.more_follows { bound } else { quiet.min(bound) }
    }

    /// Where the origin may still say that this was all, or be asked, silence is no end for long.
    fn presumed_at(&self, settings: &Settings, awaits_end: bool) -> QuietInstant {
        match () {
            () if self.more_follows => self.first + LONGEST,
            () if awaits_end => self.first + GROWING,
            () => (self.last + COMPLETE_SETTLES * settings.settle).min(self.first + LONGEST),
        }
    }

    fn complete_at(&self, settings: &Settings, awaits_end: bool) -> QuietInstant {
        if awaits_end { self.first + LONGEST } else { self.presumed_at(settings, false) }
    }
}

impl Arrival {
    /// The question has been asked now.
    pub(super) const fn asked(now: QuietInstant, quiet_at: Option<QuietInstant>, hold: Duration) -> Self {
        Self::Asked { since: now, quiet_at, hold }
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
            Self::Idle | Self::Complete => self,
        }
    }

    /// More of the same question was sent: the answer to it is not late before now.
    #[must_use]
    pub(super) fn asked_more(self, now: QuietInstant) -> Self {
        match self {
            Self::Asked { since, quiet_at, hold } => {
                let later = now.since(since);
                Self::Asked { since: now, quiet_at: quiet_at.map(|at| at + later), hold }
            }
            Self::Arriving(parts) => Self::Arriving(Parts { last: now, ..parts }),
            Self::Idle | Self::Complete => self,
        }
    }

    /// This question, with silence as an answer from this time on.
    #[must_use]
    pub(super) fn or_quiet_at(self, at: QuietInstant) -> Self {
        match self {
            Self::Asked { since, quiet_at, hold } => {
                Self::Asked { since, quiet_at: quiet_at.or(Some(at)), hold }
            }
            Self::Idle | Self::Arriving(_) | Self::Complete => self,
        }
    }

    /// Since when it waits for the first part.
    pub(super) const fn waits_since(self) -> Option<QuietInstant> {
        match self {
            Self::Asked { since, .. } => Some(since),
            Self::Idle | Self::Arriving(_) | Self::Complete => None,
        }
    }

    /// Since when it waits for the first part, where silence is no answer.
    pub(super) const fn unanswered_since(self) -> Option<QuietInstant> {
        match self {
            Self::Asked { since, quiet_at: None, .. } => Some(since),
            Self::Asked { .. } | Self::Idle | Self::Arriving(_) | Self::Complete => None,
        }
    }

    /// Whether any of it has come.
    pub(super) const fn has_begun(self) -> bool {
        matches!(self, Self::Arriving(_) | Self::Complete)
    }

    /// Whether parts of it come, one after the other.
    pub(super) const fn is_under_way(self) -> bool {
        matches!(self, Self::Arriving(Parts { degree: Completeness::Unknown, .. }))
    }

    /// The degree that it has reached.
    pub(super) const fn degree(self) -> Completeness {
        match self {
            Self::Arriving(parts) => parts.degree,
            Self::Complete => Completeness::Complete,
            Self::Idle | Self::Asked { .. } => Completeness::Unknown,
        }
    }

    /// Whether nothing more is expected of it.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Complete)
    }

    /// Whether a copy of what is held is an answer, and not a resend of the origin's own accord.
    pub(super) fn is_expected(self) -> bool {
        match self {
            Self::Asked { .. } => true,
            Self::Arriving(parts) => parts.degree == Completeness::Unknown,
            Self::Idle | Self::Complete => false,
        }
    }

    /// When the next degree is reached if nothing more comes; `awaits_end` tells whether the origin may say that this was all.
    pub(super) fn deadline(self, settings: &Settings, awaits_end: bool) -> Option<QuietInstant> {
        match self {
            Self::Asked { quiet_at, .. } => quiet_at,
            Self::Arriving(parts) => Some(match parts.degree {
                Completeness::Unknown => {
                    parts.settled_at(settings).min(parts.presumed_at(settings, awaits_end))
                }
                Completeness::Settled => parts.presumed_at(settings, awaits_end),
                Completeness::Presumed | Completeness::Complete => parts.complete_at(settings, awaits_end),
            }),
            Self::Idle | Self::Complete => None,
        }
    }

    /// Moves on to the degree that is reached by now, if it is a new one.
    pub(super) fn step(
        &mut self,
        settings: &Settings,
        awaits_end: bool,
        now: QuietInstant,
    ) -> Option<Completeness> {
        match self {
            Self::Asked { quiet_at, .. } if quiet_at.is_some_and(|at| at <= now) => {
                *self = Self::Complete;
                Some(Completeness::Complete)
            }
            Self::Arriving(parts) if parts.complete_at(settings, awaits_end) <= now => {
                *self = Self::Complete;
                Some(Completeness::Complete)
            }
            Self::Arriving(parts) => {
                let reached = match now {
                    _ if parts.presumed_at(settings, awaits_end) <= now => Completeness::Presumed,
                    _ if parts.settled_at(settings) <= now => Completeness::Settled,
                    _ => return None,
                };
                (parts.degree < reached).then(|| {
                    parts.degree = reached;
                    reached
                })
            }
            Self::Idle | Self::Asked { .. } | Self::Complete => None,
        }
    }
}
