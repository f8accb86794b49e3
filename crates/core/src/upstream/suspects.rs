//! Types at which the origin ends the stream.
//!
//! go-control-plane ends the whole stream when a type is asked for that it has no cache for (O8). One client that asks for such a
//! type must not keep all others from their answers. Owns which types are under suspicion, and when each is tried again.
//!
//! A type is suspect if two streams in a row ended soon after it was asked for, and the origin has never answered for it; one that no
//! client wants any more when the next stream is opened, after one. Suspects are tried one at a time, while clients want them, once the
//! stream has answered for
//! another type. One that is answered, or left unanswered for long while the stream lives, is cleared. One at which the stream ends
//! waits: a minute, then two, up to an hour. A stream on which nothing was answered says nothing of any type: the origin may be
//! down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::backoff::pace;
use crate::resource::TypeUrl;

/// State of one suspect.
#[derive(Clone, Copy, Debug)]
pub(super) enum Suspect {
    /// It is not asked for before this moment, after so many failures.
    Waits(Instant, u32),
    /// It is asked for since this moment, after so many failures.
    Tried(Instant, u32),
}

/// Types under suspicion.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    pub(super) types: BTreeMap<TypeUrl, Suspect>,
    /// Types that may have been the reason for which the last stream ended.
    blamed: BTreeSet<TypeUrl>,
}

impl Suspects {
    /// Whether a type is not to be asked for.
    pub(super) fn withholds(&self, type_url: &TypeUrl) -> bool {
        matches!(self.types.get(type_url), Some(Suspect::Waits(..)))
    }

    /// The origin answered for a type.
    pub(super) fn answered(&mut self, type_url: &TypeUrl) {
        self.types.remove(type_url);
        self.blamed.remove(type_url);
    }

    /// A stream is opened: types that may be the reason for which the last one ended, and that no client wants any more, wait for one.
    pub(super) fn opened(&mut self, is_wanted: impl Fn(&TypeUrl) -> bool, now: Instant) {
        for type_url in self.blamed.iter().filter(|type_url| !is_wanted(type_url)) {
            self.types.entry(type_url.clone()).or_insert(Suspect::Waits(now, 0));
        }
    }

    /// A stream ended, for which these types may be the reason. Returns those that are known to be, with their wait; none if nothing was
    /// answered on the stream.
    pub(super) fn ended(
        &mut self,
        blamed: BTreeSet<TypeUrl>,
        was_answered: bool,
        now: Instant,
    ) -> Vec<(TypeUrl, Duration)> {
        let is_only = blamed.len() == 1;
        let mut found = Vec::new();
        for type_url in &blamed {
            let failures = match self.types.get(type_url) {
                Some(Suspect::Tried(_, failures)) => failures + u32::from(was_answered),
                Some(Suspect::Waits(..)) => continue,
                None if !self.blamed.contains(type_url) => continue,
                None => u32::from(is_only && was_answered),
            };
            // 1 min, 2 min, …, 64 min.
            let wait = match failures.checked_sub(1) {
                Some(before) if was_answered => 60 * pace(before),
                _ => Duration::ZERO,
            };
            self.types.insert(type_url.clone(), Suspect::Waits(now + wait, failures));
            if !wait.is_zero() {
                found.push((type_url.clone(), wait));
            }
        }
        self.blamed = blamed;
        found
    }

    /// Type on trial, and when it is cleared.
    pub(super) fn on_trial(&self, patience: Duration) -> Option<(&TypeUrl, Instant)> {
        self.types.iter().find_map(|(type_url, suspect)| match suspect {
            Suspect::Tried(since, _) => Some((type_url, *since + patience)),
            Suspect::Waits(..) => None,
        })
    }

    /// Type that is tried next, and when.
    pub(super) fn next(&self, is_wanted: impl Fn(&TypeUrl) -> bool) -> Option<(&TypeUrl, Instant)> {
        let waits = self.types.iter().filter_map(|(type_url, suspect)| match suspect {
            Suspect::Waits(until, _) => Some((type_url, *until)),
            Suspect::Tried(..) => None,
        });
        waits.filter(|(type_url, _)| is_wanted(type_url)).min_by_key(|(_, until)| *until)
    }
}
