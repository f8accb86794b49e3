//! Refusals and disconnects at limits: metric, and limit on log lines.

use std::sync::{LazyLock, OnceLock};
use std::time::Instant;

use metrics::{Counter, counter};

use super::LogThrottle;
use super::catalog::REFUSED;
use crate::limit::Limit;

pub fn refused(limit: Limit, count: u64) {
    // Looked up once: ten thousand refusals a second must cost little.
    static COUNTERS: OnceLock<[Counter; Limit::ALL.len()]> = OnceLock::new();
    let counter = |limit: Limit| counter!(REFUSED, "reason" => limit.label());
    COUNTERS.get_or_init(|| Limit::ALL.map(counter))[limit as usize].increment(count);
}

/// Counts a refusal or disconnect. Returns the number of log lines suppressed since the last one, if this one
/// may be logged.
pub fn refused_at(limit: Limit, now: Instant) -> Option<u64> {
    static THROTTLE: LazyLock<LogThrottle<Limit>> = LazyLock::new(LogThrottle::default);
    refused(limit, 1);
    THROTTLE.say(limit, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_refusal_is_said_seldom() {
        let now = Instant::now();
        assert_eq!(refused_at(Limit::Types, now), Some(0));
        assert!((0..100).all(|_| refused_at(Limit::Types, now).is_none()));
    }
}
