//! Moments in UTC, as of RFC 3339.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use prost_types::Timestamp;

/// From this difference on, the clock was set. On a busy machine two readings can be so far apart.
const SET: Duration = Duration::from_millis(500);

/// Wall clock, by one simultaneous reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub struct WallClock(Instant, SystemTime);

impl WallClock {
    /// Clock of this process. A moment keeps its time, unless the machine's clock was set.
    pub fn get() -> Self {
        static KEPT: Mutex<Option<WallClock>> = Mutex::new(None);
        let now = Self::now();
        let mut kept = KEPT.lock();
        let clock = now.unless_equal(*kept);
        *kept = Some(clock);
        clock
    }

    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    fn unless_equal(self, kept: Option<Self>) -> Self {
        let Self(now, time) = self;
        let difference = |kept: &Self| {
            let told = kept.at(now);
            time.duration_since(told).unwrap_or_else(|error| error.duration())
        };
        kept.filter(|kept| difference(kept) < SET).unwrap_or(self)
    }

    /// 1970 for a moment before that.
    pub fn at(self, moment: Instant) -> SystemTime {
        let time = match moment.checked_duration_since(self.0) {
            Some(later) => self.1.checked_add(later),
            None => self.1.checked_sub(self.0.saturating_duration_since(moment)),
        };
        time.unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// `2026-05-04T10:00:00Z`.
pub fn seconds(at: SystemTime) -> String {
    Timestamp { nanos: 0, ..at.into() }.to_string()
}

/// `2026-05-04T10:00:00.250Z`.
pub fn milliseconds(at: SystemTime) -> String {
    let Timestamp { seconds, nanos } = at.into();
    Timestamp { seconds, nanos: nanos - nanos % 1_000_000 }.to_string()
}

/// Reads a time such as `2026-05-04T10:00:00Z`.
pub fn parse(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_keeps_its_time_until_the_clock_is_set() {
        let (start, time) = (Instant::now(), SystemTime::now());
        let at = |millis| start + Duration::from_millis(millis);
        let read = |millis, off: u64| WallClock(at(millis), time + Duration::from_millis(millis + off));
        let first = read(0, 0).unless_equal(None);
        let slewed = read(60_000, 30).unless_equal(Some(first));
        assert_eq!(slewed.at(at(10)), time + Duration::from_millis(10));
        let set = read(90_000, 3_600_000).unless_equal(Some(slewed));
        assert_eq!(set.at(at(10)), time + Duration::from_millis(3_600_010));
        let back = read(91_000, 0).unless_equal(Some(set));
        assert_eq!(back.at(start), time);
    }
}
