//! Waits before the next attempt.

use std::time::Duration;

use rand::Rng;

/// Longest wait after an attempt that was refused before a connection was established. It cost the
/// control plane nothing, so the relay may soon look whether it is back.
const REFUSED_MAX: Duration = Duration::from_secs(4);

/// Exponential back-off with full jitter (R-Up-07).
///
/// Example: from 500 ms to 30 s the limits are 0.5, 1, 2, 4, 8, 16, 30, 30 s. Each wait is random,
/// up to its limit. After a refused connection no limit is above 4 s.
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
        self.next_within(Duration::MAX, rng)
    }

    pub fn next_refused(&mut self, rng: &mut impl Rng) -> Duration {
        self.next_within(REFUSED_MAX, rng)
    }

    fn next_within(&mut self, max: Duration, rng: &mut impl Rng) -> Duration {
        let limit = self.limit().min(max);
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

    /// Back-off of a relay that is refused until `back_at`, and its delay after that.
    fn refused_until(back_at: Duration, rng: &mut impl Rng) -> (Backoff, Duration) {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        let mut at = Duration::ZERO;
        while at < back_at {
            at += backoff.next_refused(rng);
        }
        (backoff, at - back_at)
    }

    #[test]
    fn r_up_07_a_fleet_that_was_refused_is_back_within_4_s_and_not_all_at_once() {
        let mut rng = rand::rng();
        let mut by_tenth = [0; 41];
        for _ in 0..1_000 {
            let (mut backoff, late) = refused_until(Duration::from_secs(300), &mut rng);
            by_tenth[usize::try_from(late.as_millis() / 100).expect("a small number")] += 1;
            // One that is accepted and not answered is left alone for long.
            let waits = (0..20).map(|_| backoff.next(&mut rng));
            assert!(waits.max().is_some_and(|longest| longest > REFUSED_MAX * 2));
        }
        // Even shares are 25; those of the first tenths are twice as large.
        assert!(by_tenth.iter().all(|attempts| *attempts < 120), "{by_tenth:?}");
    }
}
