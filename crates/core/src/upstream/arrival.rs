//! Progress of the origin's answer to a wildcard, to a collection, or to names that are claimed to be held.
//!
//! Delta has no mark for the end of an answer (R-Up-22), and an origin may split one and send each part only after the ACK
//! of the last (O4). Owns the judgement how long a silence must last before it counts, from how far apart the parts were.
//! Knows neither names nor requests, and no clock.
//!
//! An answer is [`Settled`](Completeness::Settled) after a short silence, and [`Complete`](Completeness::Complete) after a long
//! one, unless there are better ways to know (see `proof`). It is over after one that has no bound: only then something is
//! missing.

use std::time::{Duration, Instant};

use super::Settings;
use crate::cache::Completeness;

/// A slow first part may be the origin's own slowness, not the link's: newcomers wait no longer than twice this for more.
const PACE_SETTLED: Duration = Duration::from_secs(1);
/// Clients that may hold something wait no longer than four times this.
const PACE_COMPLETE: Duration = Duration::from_secs(10);
/// A silence of so many settle times, at least, completes an answer.
const COMPLETE_SETTLES: u32 = 25;
/// A set that never stops growing is shown to newcomers after this, as it is.
const GROWING: Duration = Duration::from_secs(30);

/// Stage of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Arrival {
    #[default]
    Idle,
    /// Asked for. Where versions were sent, silence is an answer too, at `quiet_at`.
    /// It is not settled before `hold` after the first part: what comes may be for others.
    Asked { since: Instant, quiet_at: Option<Instant>, hold: Duration },
    /// Parts have come.
    Arriving(Parts),
    /// Nothing more is expected.
    Complete,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    first: Instant,
    /// When the last part came that brought anything new.
    last: Instant,
    /// The longest wait for a part so far, the first one included: at least a round trip.
    pace: Duration,
    hold: Duration,
    /// The origin has said that more follows: no silence short of the bounds is the end.
    more_follows: bool,
    degree: Completeness,
    growth: Growth,
}

/// Resources that are new in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Number of those that belong to the answer and had not come before.
    pub(super) came: usize,
    /// Number of those that had come, or were held, and are gone now. Resources that replace each other are no growth.
    pub(super) went: usize,
}

impl News {
    /// Nothing, or one resource.
    pub(super) fn of(is_one: bool) -> Self {
        Self { came: usize::from(is_one), went: 0 }
    }
}

/// Growth of a set. One that comes over a thin link grows by an eighth of itself time and again; one in which something is new now
/// and then does not. A set that comes at an even rate does so for 12 minutes.
///
/// Example: 1,000 clusters come with 5 new ones a second behind them. The set grew much at 25 s, when it had 1,125, at 53 s, when
/// it had 1,266, and so on until an eighth takes longer than anybody waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    size: usize,
    /// When it last grew much, and its size then.
    since: Instant,
    then: usize,
}

impl Growth {
    const LONGEST: Duration = Duration::from_secs(90);

    pub(super) const fn starting(now: Instant, size: usize) -> Self {
        Self { size, since: now, then: size }
    }

    /// The set has this size now.
    pub(super) fn reach(&mut self, now: Instant, size: usize) {
        self.size = size;
        if size > self.then + self.then / 8 {
            *self = Self::starting(now, size);
        }
    }

    /// When the set counts as complete though it still grows: clients that may hold something wait no longer.
    pub(super) fn bound(&self) -> Instant {
        self.since + Self::LONGEST
    }

    /// This growth at other times.
    #[must_use]
    pub(super) fn shifted(self, to: impl Fn(Instant) -> Instant) -> Self {
        Self { since: to(self.since), ..self }
    }
}

impl Parts {
    /// With parts 500 ms apart, as over a link of 250 ms each way, 1 s after the last.
    fn settled_at(&self, settings: &Settings) -> Instant {
        let bound = self.first + GROWING.max(settings.settle_max);
        let silence = settings.settle.max(2 * self.pace.min(PACE_SETTLED));
        let quiet = (self.last + silence).max(self.first + self.hold);
        if self.more_follows { bound } else { quiet.min(bound) }
    }

    /// With parts 500 ms apart and the default settle time of 200 ms, 5 s after the last.
    fn complete_at(&self, settings: &Settings) -> Instant {
        let bound = self.growth.bound();
        let silence = (COMPLETE_SETTLES * settings.settle).max(4 * self.pace.min(PACE_COMPLETE));
        if self.more_follows { bound } else { (self.last + silence).min(bound) }
    }

    /// With parts 25 s apart, 100 s after the last: however slow the answer, nothing is missing before.
    fn over_at(&self, settings: &Settings) -> Instant {
        let over = self.last + (COMPLETE_SETTLES * settings.settle).max(4 * self.pace);
        if self.more_follows { over.max(self.growth.bound()) } else { over }
    }
}

impl Arrival {
    /// The question has been asked now.
    pub(super) const fn asked(now: Instant, quiet_at: Option<Instant>, hold: Duration) -> Self {
        Self::Asked { since: now, quiet_at, hold }
    }

    /// A response came that may be a part, with these resources that are new. One that brings none, be it that the origin
    /// repeats itself or that something changes, does not put the end off. An origin may say that more follows.
    #[must_use]
    pub(super) fn arrived(self, now: Instant, news: News, more_follows: bool) -> Self {
        match self {
            Self::Asked { since, hold, .. } => Self::Arriving(Parts {
                first: now,
                last: now,
                pace: now.saturating_duration_since(since),
                hold,
                more_follows,
                degree: Completeness::Unknown,
                growth: Growth::starting(now, news.came),
            }),
            Self::Arriving(mut parts) => {
                parts.growth.reach(now, (parts.growth.size + news.came).saturating_sub(news.went));
                if news.came > 0 {
                    parts.pace = parts.pace.max(now.saturating_duration_since(parts.last));
                    parts.last = now;
                }
                Self::Arriving(Parts { more_follows, ..parts })
            }
            Self::Idle | Self::Complete => self,
        }
    }

    /// More of the same question was sent: the answer to it is not late before now.
    #[must_use]
    pub(super) fn asked_more(self, now: Instant) -> Self {
        match self {
            Self::Asked { since, quiet_at, hold } => {
                let later = now.saturating_duration_since(since);
                Self::Asked { since: now, quiet_at: quiet_at.map(|at| at + later), hold }
            }
            Self::Arriving(parts) => Self::Arriving(Parts { last: now, ..parts }),
            Self::Idle | Self::Complete => self,
        }
    }

    /// Time in which this process did not run is no silence of the origin. What was read since is not moved into the future.
    #[must_use]
    pub(super) fn shifted(self, pause: Duration, now: Instant) -> Self {
        let later = |at: Instant| (at + pause).min(now);
        match self {
            Self::Asked { since, quiet_at, hold } => {
                let moved = later(since) - since;
                Self::Asked { since: since + moved, quiet_at: quiet_at.map(|at| at + moved), hold }
            }
            Self::Arriving(parts) => {
                let growth = parts.growth.shifted(later);
                Self::Arriving(Parts { first: later(parts.first), last: later(parts.last), growth, ..parts })
            }
            Self::Idle | Self::Complete => self,
        }
    }

    /// This question, with silence as an answer from this time on.
    #[must_use]
    pub(super) fn or_quiet_at(self, at: Instant) -> Self {
        match self {
            Self::Asked { since, quiet_at, hold } => {
                Self::Asked { since, quiet_at: quiet_at.or(Some(at)), hold }
            }
            Self::Idle | Self::Arriving(_) | Self::Complete => self,
        }
    }

    /// Since when it waits for the first part.
    pub(super) const fn waits_since(self) -> Option<Instant> {
        match self {
            Self::Asked { since, .. } => Some(since),
            Self::Idle | Self::Arriving(_) | Self::Complete => None,
        }
    }

    /// Since when it waits for the first part, where silence is no answer.
    pub(super) const fn unanswered_since(self) -> Option<Instant> {
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

    /// Whether nothing more can be a part of it: only now something that did not come is missing.
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

    /// When the next degree is reached if nothing more comes.
    pub(super) fn deadline(self, settings: &Settings) -> Option<Instant> {
        match self {
            Self::Asked { quiet_at, .. } => quiet_at,
            Self::Arriving(parts) => Some(match parts.degree {
                Completeness::Unknown => parts.settled_at(settings).min(parts.complete_at(settings)),
                Completeness::Settled | Completeness::Presumed => parts.complete_at(settings),
                Completeness::Complete => parts.over_at(settings),
            }),
            Self::Idle | Self::Complete => None,
        }
    }

    /// Moves on to the degree that is reached by now, if it is a new one.
    pub(super) fn step(&mut self, settings: &Settings, now: Instant) -> Option<Completeness> {
        match self {
            Self::Asked { quiet_at, .. } if quiet_at.is_some_and(|at| at <= now) => {
                *self = Self::Complete;
                Some(Completeness::Complete)
            }
            Self::Arriving(parts) if parts.over_at(settings) <= now => {
                *self = Self::Complete;
                Some(Completeness::Complete)
            }
            Self::Arriving(parts)
                if parts.degree < Completeness::Complete && parts.complete_at(settings) <= now =>
            {
                parts.degree = Completeness::Complete;
                Some(Completeness::Complete)
            }
            Self::Arriving(parts)
                if parts.degree == Completeness::Unknown && parts.settled_at(settings) <= now =>
            {
                parts.degree = Completeness::Settled;
                Some(Completeness::Settled)
            }
            Self::Idle | Self::Asked { .. } | Self::Arriving(_) | Self::Complete => None,
        }
    }
}
