//! Since when the origin answers for a type.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// When the origin first answered for a type on the connection that stands, or for its names on a stream that was opened since.
/// All stores of the type share it: an origin that answers for one set of parameters answers for the type.
#[derive(Debug, Default)]
pub(super) struct Answering(Mutex<Option<Answered>>);

#[derive(Clone, Copy, Debug)]
struct Answered {
    since: Instant,
    /// Nothing came since names were asked for anew. Until then the time counts from there: where nothing exists of what was
    /// asked for, nothing comes.
    is_asked_anew: bool,
}

impl Answering {
    pub(super) fn since(&self) -> Option<Instant> {
        self.0.lock().map(|answered| answered.since)
    }

    /// An answer came.
    pub(super) fn answer(&self, now: Instant) {
        let mut answered = self.0.lock();
        if answered.is_none_or(|answered| answered.is_asked_anew) {
            let asked = answered.map_or(now, |answered| answered.since);
            *answered = Some(Answered { since: now.max(asked), is_asked_anew: false });
        }
    }

    /// The relay did not run for this long.
    pub(super) fn shift(&self, pause: Duration, now: Instant) {
        if let Some(Answered { since, .. }) = &mut *self.0.lock() {
            *since = (*since + pause).min(now).max(*since);
        }
    }

    /// Silence before `at` counts for nothing: the origin was not asked, or could not answer.
    pub(super) fn not_before(&self, at: Instant) {
        if let Some(answered) = &mut *self.0.lock() {
            *answered = Answered { since: answered.since.max(at), is_asked_anew: true };
        }
    }

    /// It is asked anew.
    pub(super) fn begin_anew(&self, now: Instant) {
        if let Some(answered) = &mut *self.0.lock() {
            *answered = Answered { since: now, is_asked_anew: true };
        }
    }

    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example: at 10 s a stream is planned for 40 s, on which the names are asked for anew. An answer for other names at 20 s
    /// says nothing of these.
    #[test]
    fn r_relay_04_time_for_names_begins_no_earlier_than_they_are_asked_for() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let answering = Answering::default();
        answering.begin_anew(after(1));
        assert_eq!(answering.since(), None, "it has never answered");
        answering.answer(after(2));
        answering.not_before(after(40));
        answering.answer(after(20));
        answering.shift(Duration::from_secs(5), after(25));
        answering.not_before(after(30));
        assert_eq!(answering.since(), Some(after(40)));
        answering.begin_anew(after(40));
        answering.answer(after(45));
        assert_eq!(answering.since(), Some(after(45)), "its first answer on that stream");
        answering.shift(Duration::from_secs(5), after(60));
        assert_eq!(answering.since(), Some(after(50)));
    }
}
