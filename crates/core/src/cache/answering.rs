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
            *since = (*since + pause).min(now);
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
