//! Waits before the next attempt.

use std::time::Duration;

use rand::Rng;

/// Exponential back-off with full jitter (R-Up-07).
///
/// Example: from 500 ms to 30 s the limits are 0.5, 1, 2, 4, 8, 16, 30, 30 s. Each wait is random,
/// up to its limit.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a back-off that begins at `initial`, doubles, and stops at `max`.
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, failures: 0 }
    }

    /// Lowers the longest wait to this.
    #[must_use]
    pub fn at_most(self, max: Duration) -> Self {
        Self { initial: self.initial.min(max), max: self.max.min(max), ..self }
    }

    /// Starts over. Call it after a response: a server that only accepts connections may still be
    /// unwell.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the next wait. The jitter keeps relays that lost one control plane from coming back
    /// together.
    pub fn next(&mut self, rng: &mut impl Rng) -> Duration {
        let limit = self.limit();
        self.failures = self.failures.saturating_add(1);
        rng.random_range(Duration::ZERO..=limit)
    }

    fn limit(&self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.initial.saturating_mul(factor).min(self.max)
    }
}

/// Wait after this many fruitless questions in a row: 1 s, 2 s, 4 s, …, 64 s. The first is number
/// 0.
pub(super) fn pace(attempts: u32) -> Duration {
    Duration::from_secs(1 << attempts.min(6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_doubles_up_to_a_minute() {
        let waits: Vec<u64> = (0..9).map(|attempts| pace(attempts).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn r_up_07_the_wait_is_anything_up_to_a_limit_that_doubles() {
        let (initial, max) = (Duration::from_millis(500), Duration::from_secs(30));
        let mut backoff = Backoff::new(initial, max);
        let mut rng = rand::rng();
        for failures in 0..80_u32 {
            let limit = backoff.limit();
            assert_eq!(limit, (initial * 2_u32.pow(failures.min(10))).min(max));
            let mut probe = backoff;
            let waits: Vec<Duration> = (0..200)
                .map(|_| {
                    probe.failures = failures;
                    probe.next(&mut rng)
                })
                .collect();
            assert!(waits.iter().all(|wait| *wait <= limit));
            assert!(waits.iter().any(|wait| *wait < limit / 4), "full jitter reaches down to zero");
            assert!(waits.iter().any(|wait| *wait > limit / 4 * 3));
            backoff.next(&mut rng);
        }
        backoff.reset();
        assert_eq!(backoff.limit(), initial);
    }
}
