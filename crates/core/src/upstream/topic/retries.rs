//! Names for which a stream was opened anew, because the last one left them unanswered.
//!
//! Owns since when, and what the answer on the new stream shows: an origin that sends there at once what it did not send before
//! keeps the versions that it sent (O1). Silence on both shows nothing, as most origins say nothing of what does not exist (O2).
//! Knows no streams.

use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::resource::Name;

/// Names that a stream left unanswered, until anything is said of them, or they are let go.
#[derive(Debug, Default)]
pub(super) struct Retries {
    since: HashMap<Name, Instant>,
}

impl Retries {
    /// These are unanswered: they are to be asked for on a new stream.
    pub(super) fn insert(&mut self, names: impl IntoIterator<Item = Name>, now: Instant) {
        self.since.extend(names.into_iter().map(|name| (name, now)));
    }

    pub(super) fn remove(&mut self, name: &str) {
        if !self.since.is_empty() {
            self.since.remove(name);
        }
    }

    /// A resource came by a name that has been awaited since `asked`. Returns whether it is the prompt answer on a new stream: one
    /// that comes later may have come into being since, and one to the first question was late.
    pub(super) fn came(
        &mut self,
        name: &str,
        asked: Option<Instant>,
        answer_timeout: Duration,
        now: Instant,
    ) -> bool {
        if self.since.is_empty() {
            return false;
        }
        let since = self.since.remove(name);
        since.zip(asked).is_some_and(|(since, asked)| asked >= since && now < asked + answer_timeout)
    }

    /// Time in which this process did not run is no silence of the origin.
    pub(super) fn shift(&mut self, pause: Duration, now: Instant) {
        self.since.values_mut().for_each(|since| *since = (*since + pause).min(now));
    }
}
