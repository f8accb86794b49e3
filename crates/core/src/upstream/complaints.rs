//! Limits on log lines about responses of the origin, which all node groups share: an origin that sends each group the same fault
//! must not fill the log with a line for each of them.

use std::time::Instant;

use crate::LogThrottle;

/// Kind of log line about a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Complaint {
    /// Response that was refused.
    Refused,
    /// Error of a resource that the origin reported.
    Reported,
    /// Unusable resource in a response that was accepted.
    Unusable,
}

/// One limit for each kind of line.
#[derive(Debug, Default)]
pub struct Complaints(LogThrottle<Complaint>);

impl Complaints {
    /// Returns the number of lines suppressed since the last one if a line may be logged now.
    pub(super) fn say(&self, complaint: Complaint, now: Instant) -> Option<u64> {
        self.0.say(complaint, now)
    }
}
