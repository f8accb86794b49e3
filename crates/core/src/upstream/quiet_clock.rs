//! Clock that stands still while silence is no fault of the origin.
//!
//! A pause of this process, a response on its way, and a relay upstream that is cut off say nothing of what the origin leaves unanswered.
//! Owns how much of such time there was. Whatever measures silence keeps moments of this clock, and never moves them.

use std::ops::Add;
use std::time::{Duration, Instant};

/// Moment on the quiet clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QuietInstant(Instant);

impl Add<Duration> for QuietInstant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) quiet: QuietInstant,
}

/// Time that was excused.
#[derive(Debug, Default)]
pub(super) struct QuietClock {
    excused: Duration,
}

impl QuietClock {
    /// This moment on both clocks.
    pub(super) fn moment(&self, now: Instant) -> Moment {
        Moment { now, quiet: self.at(now) }
    }

    pub(super) fn at(&self, now: Instant) -> QuietInstant {
        QuietInstant(now.checked_sub(self.excused).unwrap_or(now))
    }

    /// When it is this moment on the quiet clock, unless more time is excused until then.
    pub(super) fn when(&self, moment: QuietInstant) -> Instant {
        moment.0 + self.excused
    }

    /// Excuses so much of the time before now. What is measured from a moment in that time, or is excused twice, is judged later by as
    /// much.
    pub(super) fn excuse(&mut self, time: Duration) {
        self.excused += time;
    }
}
