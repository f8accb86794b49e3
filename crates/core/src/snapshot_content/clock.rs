//! One moment on two clocks.

use std::time::{Duration, Instant};

/// One moment on the clock of this process and on the wall clock, by which times outlive the
/// process (R-TTL-10).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub now: Instant,
    /// Since 1970.
    pub unix: Duration,
}

impl Clock {
    /// Wall time of a moment.
    pub fn to_unix(self, at: Instant) -> Duration {
        match at.checked_duration_since(self.now) {
            Some(ahead) => self.unix.saturating_add(ahead),
            None => self.unix.saturating_sub(self.now.saturating_duration_since(at)),
        }
    }

    /// Time left until a wall time; `None` if it has passed.
    pub fn left_until(self, unix: Duration) -> Option<Duration> {
        unix.checked_sub(self.unix).filter(|left| !left.is_zero())
    }

    /// Time since a wall time; zero if that lies ahead.
    pub fn age_of(self, unix: Duration) -> Duration {
        self.unix.saturating_sub(unix)
    }
}
