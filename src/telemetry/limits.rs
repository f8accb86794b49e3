//! Refusals and disconnects for a limit: their metric, and what keeps their log lines rare.

use std::sync::OnceLock;
use std::time::Instant;

use metrics::{Counter, counter};
use parking_lot::Mutex;

use super::LogThrottle;
use super::catalog::REFUSED;
use crate::limit::Limit;

/// Metric and log throttle of one limit.
#[derive(Debug)]
struct Refusals {
    count: Counter,
    throttle: Mutex<LogThrottle>,
}

fn refusals(limit: Limit) -> &'static Refusals {
    // Looked up once: ten thousand refusals a second must cost little.
    static ALL: OnceLock<[Refusals; Limit::ALL.len()]> = OnceLock::new();
    let make = |limit: Limit| Refusals {
        count: counter!(REFUSED, "reason" => limit.label()),
        throttle: Mutex::default(),
    };
    &ALL.get_or_init(|| Limit::ALL.map(make))[limit as usize]
}

/// Counts refusals or disconnects for a limit.
pub fn refused(limit: Limit, count: u64) {
    refusals(limit).count.increment(count);
}

/// Counts a refusal or disconnect for a limit. Returns the number of log lines suppressed since the last one if
/// this one may be logged, else `None`.
pub fn refused_at(limit: Limit, now: Instant) -> Option<u64> {
    refused(limit, 1);
    refusals(limit).throttle.lock().say(now)
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
