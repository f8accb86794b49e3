//! Limits on repeated log lines.

use std::time::{Duration, Instant};

/// Limits a repeated log line to one per [`INTERVAL`](Self::INTERVAL).
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: Option<Instant>,
    unsaid: u64,
    /// Whether a line of the episode that goes on was logged.
    is_told: bool,
}

impl LogThrottle {
    /// Time between two lines.
    pub const INTERVAL: Duration = Duration::from_secs(30);

    /// Returns the number of lines suppressed since the last one if the line may be logged now, else `None`.
    pub fn say(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + Self::INTERVAL) {
            self.unsaid += 1;
            return None;
        }
        (self.last, self.is_told) = (Some(now), true);
        Some(std::mem::take(&mut self.unsaid))
    }

    /// Ends the episode. Returns the number of lines suppressed since the last one; `None` if none of the episode was logged.
    ///
    /// The time of the last line stays: trouble that ends and comes back at once logs one line per [`INTERVAL`](Self::INTERVAL),
    /// and one about its end.
    pub fn over(&mut self) -> Option<u64> {
        std::mem::take(&mut self.is_told).then(|| std::mem::take(&mut self.unsaid))
    }
}
