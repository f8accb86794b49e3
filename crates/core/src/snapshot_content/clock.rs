//! One moment on two clocks.

use std::time::{Duration, Instant};

/// One moment on the clock of this process and on that of the wall, by which times outlive the process (R-TTL-10).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// On the clock of this process.
    pub now: Instant,
    /// Since 1970.
    pub unix: Duration,
}

impl Clock {
    /// The time of the wall at a moment of this process.
    pub fn to_unix(self, at: Instant) -> Duration {
        match at.checked_duration_since(self.now) {
            Some(ahead) => self.unix.saturating_add(ahead),
            None => self.unix.saturating_sub(self.now.saturating_duration_since(at)),
        }
    }

    /// Time that is left until a time of the wall; `None` if it has passed.
    pub fn left_until(self, unix: Duration) -> Option<Duration> {
        unix.checked_sub(self.unix).filter(|left| !left.is_zero())
    }

    /// Time that has passed since a time of the wall; none if that lies ahead.
    pub fn age_of(self, unix: Duration) -> Duration {
        self.unix.saturating_sub(unix)
    }
}
