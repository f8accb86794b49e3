//! Clock that stops while silence is no fault of the control plane.
//!
//! A pause of this process, a transfer under way, and an upstream relay that is cut off are
//! excluded from silence. Owns the sum of that time. All silence is measured in moments of this
//! clock, which never move.

use std::ops::Add;
use std::time::{Duration, Instant};

/// Moment on the quiet clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QuietInstant(Instant);

impl QuietInstant {
    pub(super) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

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

#[derive(Debug, Default)]
pub(super) struct QuietClock {
    excused: Duration,
}

impl QuietClock {
    pub(super) fn moment(&self, now: Instant) -> Moment {
        Moment { now, quiet: self.at(now) }
    }

    pub(super) fn at(&self, now: Instant) -> QuietInstant {
        QuietInstant(now.checked_sub(self.excused).unwrap_or(now))
    }

    /// Real time of a quiet moment, unless more time is excluded until then.
    pub(super) fn when(&self, moment: QuietInstant) -> Instant {
        moment.0 + self.excused
    }

    /// Excludes time before now. A wait that began within that time, or time excluded twice, is
    /// judged that much later.
    pub(super) fn excuse(&mut self, time: Duration) {
        self.excused += time;
    }
}
