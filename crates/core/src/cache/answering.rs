//! Since when the origin answers for a type.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// When the origin first answered for a type on the connection that stands, or was asked for its names anew since. All
/// stores of the type share it: an origin that answers for one set of parameters answers for the type.
#[derive(Debug, Default)]
pub(super) struct Answering(Mutex<Option<Instant>>);

impl Answering {
    pub(super) fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    /// An answer came.
    pub(super) fn answer(&self, now: Instant) {
        self.0.lock().get_or_insert(now);
    }

    /// The relay did not run for this long.
    pub(super) fn shift(&self, pause: Duration, now: Instant) {
        if let Some(first) = &mut *self.0.lock() {
            *first = (*first + pause).min(now);
        }
    }

    /// It is asked anew.
    pub(super) fn begin_anew(&self, now: Instant) {
        if let Some(since) = &mut *self.0.lock() {
            *since = now;
        }
    }

    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }
}
