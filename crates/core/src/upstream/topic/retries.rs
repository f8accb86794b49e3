//! Names for which a stream was opened anew, because the last one left them unanswered.
//!
//! Owns since when, and what the answer on the new stream shows: an origin that sends there at once what it did not send before
//! keeps the versions that it sent (O1). Silence on both shows nothing, as most origins say nothing of what does not exist (O2):
//! such a name costs no further stream. Knows no streams.

use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};

use crate::resource::Name;

/// Names that were let go and are remembered; past that, all of them are forgotten, and may cost another stream.
const REMEMBERED: usize = 100_000;

#[derive(Clone, Copy, Debug)]
struct Retry {
    /// When the last stream was given up on.
    since: Instant,
    /// Whether the origin could answer on that stream: it was told that the name was let go, was asked for it again, and had the
    /// time. A stream is also given up for other names.
    was_answerable: bool,
}

/// Names that a stream left unanswered, until anything is said of them.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// Names that are asked for.
    asked: HashMap<Name, Retry>,
    /// Names that were let go since.
    let_go: HashSet<Name>,
}

impl Retries {
    /// These are unanswered, and are to be asked for on a new stream. With each comes whether the origin could answer on the last.
    pub(super) fn insert(&mut self, names: impl IntoIterator<Item = (Name, bool)>, now: Instant) {
        let retry = |was_answerable| Retry { since: now, was_answerable };
        self.asked.extend(names.into_iter().map(|(name, was_answerable)| (name, retry(was_answerable))));
    }

    /// A name is let go. What comes after that shows nothing: it may have come into being.
    pub(super) fn let_go(&mut self, name: &Name) {
        if !self.asked.is_empty() && self.asked.remove(name).is_some() {
            if self.let_go.len() >= REMEMBERED {
                self.let_go = HashSet::default();
            }
            self.let_go.insert(name.clone());
        }
    }

    /// Whether a name was asked for on a new stream in vain.
    pub(super) fn was_in_vain(&self, name: &str) -> bool {
        !self.let_go.is_empty() && self.let_go.contains(name)
    }

    /// The origin said something of a name.
    pub(super) fn remove(&mut self, name: &str) {
        if !self.asked.is_empty() {
            self.asked.remove(name);
        }
        if !self.let_go.is_empty() {
            self.let_go.remove(name);
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
        let retry = if self.asked.is_empty() { None } else { self.asked.get(name).copied() };
        self.remove(name);
        retry
            .filter(|retry| retry.was_answerable)
            .zip(asked)
            .is_some_and(|(retry, asked)| asked >= retry.since && now < asked + answer_timeout)
    }

    /// Time in which this process did not run is no silence of the origin.
    pub(super) fn shift(&mut self, pause: Duration, now: Instant) {
        self.asked.values_mut().for_each(|retry| retry.since = (retry.since + pause).min(now));
    }
}
