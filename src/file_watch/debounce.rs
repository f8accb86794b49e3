//! The end of a burst of changes.

use std::time::{Duration, Instant};

/// Wait for the end of a burst: several files are replaced one by one, or one in several steps.
#[derive(Clone, Copy, Debug)]
pub struct Debounce {
    /// Silence that ends a burst.
    pub quiet: Duration,
    /// Then a burst is reported though it goes on.
    pub longest: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    first: Instant,
    last: Instant,
}

#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only the kernel's watch has events"))]
impl Burst {
    pub(super) fn add(burst: Option<Self>, now: Instant) -> Self {
        Self { first: burst.map_or(now, |burst| burst.first), last: now }
    }

    /// Time of the report.
    ///
    /// Example: with 100 ms of quiet and 1 s at most, a burst from 0 to 300 ms is reported at 400 ms, and an
    /// endless one at 1000 ms.
    pub(super) fn due(self, debounce: Debounce) -> Instant {
        (self.last + debounce.quiet).min(self.first + debounce.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_due_when_it_is_quiet_and_in_the_end_though_it_is_not() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let debounce = Debounce { quiet: ms(100), longest: ms(1000) };
        let due = |events: &[u64]| {
            let burst = events.iter().fold(None, |burst, at| Some(Burst::add(burst, start + ms(*at))));
            burst.expect("there are events").due(debounce) - start
        };
        assert_eq!(due(&[0]), ms(100));
        assert_eq!(due(&[0, 90, 300]), ms(400));
        assert_eq!(due(&[0, 500, 950]), ms(1000));
    }
}
