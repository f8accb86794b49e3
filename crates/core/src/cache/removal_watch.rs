//! Notices when a store loses most of its resources within a minute.
//!
//! Owns the size at the first removal of the minute, and the newest loss. Knows no clock.
//!
//! Example: of 20 resources 6 are removed at 0 s, and 5 at 30 s. That leaves 9, less than half of 20: a loss. At 61 s the
//! second removal would be compared with 14, and would be none.

use std::time::{Duration, Instant};

/// Time within which removals count together.
const WITHIN: Duration = Duration::from_mins(1);
/// Longest report of resources that do not come back.
const REPORTED: Duration = Duration::from_hours(1);
/// Fewest resources of which more than half is a loss.
const FEWEST: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    at: Instant,
    before: usize,
    pub(super) lost: usize,
}

#[derive(Debug, Default)]
pub(super) struct RemovalWatch {
    /// First removal of a minute, and the largest size since.
    begin: Option<(Instant, usize)>,
    loss: Option<Loss>,
}

impl RemovalWatch {
    /// Notes a change of the size. `forgotten` resources went because no client asks for them, which is no loss.
    pub(super) fn note(
        &mut self,
        (before, after): (usize, usize),
        forgotten: usize,
        now: Instant,
    ) -> Option<Loss> {
        let before = before.saturating_sub(forgotten);
        let sizes = self
            .begin
            .iter_mut()
            .map(|(_, size)| size)
            .chain(self.loss.iter_mut().map(|loss| &mut loss.before));
        sizes.for_each(|size| *size = size.saturating_sub(forgotten));
        // They are back.
        self.loss.take_if(|loss| 2 * after >= loss.before);
        if after >= before {
            return None;
        }
        let is_over = |(at, _): &mut (Instant, usize)| now.saturating_duration_since(*at) > WITHIN;
        self.begin.take_if(is_over);
        let (_, size) = self.begin.get_or_insert((now, before));
        *size = before.max(*size);
        let before = *size;
        if before < FEWEST || 2 * after >= before {
            return None;
        }
        self.begin = None;
        self.loss = Some(Loss { at: now, before, lost: before - after });
        self.loss
    }

    /// The newest loss, while it is to be reported.
    pub(super) fn loss(&self, now: Instant) -> Option<Loss> {
        self.loss.filter(|loss| now.saturating_duration_since(loss.at) < REPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Losses of a store that begins with 20 resources. Each step is a time in seconds, the change of its size, and the
    /// number of resources that nobody asks for any more.
    fn losses(steps: &[(u64, i64, usize)]) -> Vec<usize> {
        let (begin, mut size, mut watch) = (Instant::now(), 20, RemovalWatch::default());
        let mut found = Vec::new();
        for (second, change, forgotten) in steps {
            let after = usize::try_from(i64::try_from(size).unwrap() + change).unwrap() - forgotten;
            let now = begin + Duration::from_secs(*second);
            found.extend(watch.note((size, after), *forgotten, now).map(|loss| loss.lost));
            size = after;
        }
        found
    }

    #[test]
    fn a_loss_is_more_than_half_within_a_minute() {
        assert_eq!(losses(&[(0, -10, 0)]), [0; 0], "half");
        assert_eq!(losses(&[(0, -11, 0)]), [11]);
        assert_eq!(losses(&[(0, -6, 0), (30, -5, 0)]), [11]);
        assert_eq!(losses(&[(0, -6, 0), (61, -5, 0)]), [0; 0], "5 of 14");
        let one_by_one: Vec<_> = (0..11).map(|second| (5 * second, -1, 0)).collect();
        assert_eq!(losses(&one_by_one), [11]);
        let slowly: Vec<_> = (0..11).map(|second| (10 * second, -1, 0)).collect();
        assert_eq!(losses(&slowly), [0; 0]);
        assert_eq!(losses(&[(0, -20, 0), (1, 20, 0), (2, -20, 0)]), [20, 20], "each is told once");
        assert_eq!(losses(&[(0, -11, 0), (1, -4, 0)]), [11], "9 are too few");
    }

    #[test]
    fn what_nobody_asks_for_or_what_is_replaced_is_no_loss() {
        assert_eq!(losses(&[(0, 0, 15)]), [0; 0]);
        assert_eq!(losses(&[(0, -6, 0), (1, 0, 5)]), [0; 0]);
        assert_eq!(losses(&[(0, -6, 0), (1, 0, 5), (2, -2, 0)]), [8], "8 of 15");
        assert_eq!(losses(&[(0, -8, 0), (1, 8, 0), (2, -8, 0), (3, 8, 0)]), [0; 0], "a few come and go");
    }

    #[test]
    fn a_loss_is_reported_until_the_resources_are_back() {
        let (begin, mut watch) = (Instant::now(), RemovalWatch::default());
        watch.note((20, 0), 0, begin);
        let lost = |watch: &RemovalWatch, minutes| watch.loss(begin + Duration::from_mins(minutes)).is_some();
        assert_eq!([59, 60].map(|minutes| lost(&watch, minutes)), [true, false]);
        watch.note((0, 9), 0, begin);
        assert!(lost(&watch, 59));
        watch.note((9, 10), 0, begin);
        assert!(!lost(&watch, 1));
    }
}
