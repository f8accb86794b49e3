//! Limit on repeated log lines.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Limits repeated log lines to a few per [`INTERVAL`](LogThrottle::INTERVAL), for each kind of line.
#[derive(Debug)]
pub struct LogThrottle<K = ()> {
    lines_per_interval: u32,
    kinds: Mutex<HashMap<K, Kind>>,
}

/// State of one kind of line.
#[derive(Debug, Default)]
struct Kind {
    /// Start of the interval, and the lines logged in it.
    since: Option<Instant>,
    logged: u32,
    suppressed: u64,
    /// Whether a line of the episode that goes on was logged.
    was_logged: bool,
}

impl LogThrottle {
    /// Length of an interval.
    pub const INTERVAL: Duration = Duration::from_secs(30);
    const BURST: u32 = 50;
}

impl<K> Default for LogThrottle<K> {
    /// One line per interval.
    fn default() -> Self {
        Self { lines_per_interval: 1, kinds: Mutex::default() }
    }
}

impl<K: Eq + Hash> LogThrottle<K> {
    /// 50 lines per interval: for lines about many peers, whichever they are.
    pub fn burst() -> Self {
        Self { lines_per_interval: LogThrottle::BURST, ..Self::default() }
    }

    /// Returns the number of lines suppressed since the last one if the line may be logged now, else `None`.
    pub fn allow(&self, kind: K, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let kind = kinds.entry(kind).or_default();
        if kind.since.is_none_or(|since| now >= since + LogThrottle::INTERVAL) {
            (kind.since, kind.logged) = (Some(now), 0);
        }
        if kind.logged == self.lines_per_interval {
            kind.suppressed += 1;
            return None;
        }
        kind.logged += 1;
        kind.was_logged = true;
        Some(std::mem::take(&mut kind.suppressed))
    }

    /// Ends the episode. Returns the number of lines suppressed since the last one; `None` if none of the episode was logged.
    ///
    /// The interval goes on: trouble that ends and comes back at once logs one line per interval, and one about its end.
    pub fn over(&self, kind: K) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let kind = kinds.get_mut(&kind)?;
        std::mem::take(&mut kind.was_logged).then(|| std::mem::take(&mut kind.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_spent_and_comes_back() {
        let (throttle, start) = (LogThrottle::burst(), Instant::now());
        let logged = (0..1000).filter(|_| throttle.allow((), start).is_some()).count();
        assert_eq!(logged, LogThrottle::BURST as usize);
        assert_eq!(throttle.allow((), start + LogThrottle::INTERVAL), Some(950));
        assert_eq!(throttle.allow((), start + LogThrottle::INTERVAL), Some(0));
    }

    #[test]
    fn kinds_of_lines_are_limited_each_by_itself() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        assert_eq!((throttle.allow(1, start), throttle.allow(2, start)), (Some(0), Some(0)));
        assert_eq!((throttle.allow(1, start), throttle.over(2)), (None, Some(0)));
        assert_eq!(throttle.over(1), Some(1));
    }

    #[test]
    fn trouble_is_told_at_once_then_seldom_and_its_end_is_told() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(throttle.over(()), None, "no trouble, no recovery");
        assert_eq!(throttle.allow((), start), Some(0));
        let told: Vec<u64> = (1..=90).filter_map(|second| throttle.allow((), after(second))).collect();
        assert_eq!(told, [29, 29, 29]);
        assert_eq!(throttle.allow((), after(91)), None);
        assert_eq!(throttle.over(()), Some(1));
        assert_eq!(throttle.allow((), after(91) + LogThrottle::INTERVAL), Some(0), "new trouble");
    }

    #[test]
    fn trouble_that_comes_and_goes_is_told_once_per_interval() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        let mut lines = [Vec::new(), Vec::new()];
        for tenth in 0..900_u32 {
            lines[0].extend(throttle.allow((), start + Duration::from_millis(100) * tenth));
            lines[1].extend(throttle.over(()));
        }
        assert_eq!(lines, [vec![0, 299, 299], vec![0, 0, 0]], "lines, and ends of episodes");
    }
}
