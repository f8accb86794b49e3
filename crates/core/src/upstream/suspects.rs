//! Types at which the control plane ends the stream.
//!
//! go-control-plane ends the whole stream when asked for a type without a cache (O8). One client
//! that asks for such a type must not cut off all others. Owns the suspects, and when each is tried
//! again.
//!
//! A type is suspect if two streams in a row ended soon after it was requested, and it was never
//! answered. For a type that no client wants any more, one stream is enough. Suspects are tried one
//! at a time, while clients want them, once the stream has answered another type. An answer, or a
//! long wait on a live stream, clears a suspect. If the stream ends, it waits: a minute, then two,
//! up to an hour. A stream without any answer proves nothing, as the control plane may be down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::backoff::pace;
use crate::resource::TypeUrl;

#[derive(Clone, Copy, Debug)]
pub(super) enum Suspect {
    /// Not requested before this time, after this many failures.
    Waits(Instant, u32),
    /// Requested since this time, after this many failures.
    Tried(Instant, u32),
}

/// Types under suspicion.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    pub(super) types: BTreeMap<TypeUrl, Suspect>,
    /// Types that may have ended the last stream.
    blamed: BTreeSet<TypeUrl>,
}

impl Suspects {
    /// Whether a type is not to be requested.
    pub(super) fn withholds(&self, type_url: &TypeUrl) -> bool {
        matches!(self.types.get(type_url), Some(Suspect::Waits(..)))
    }

    /// Clears a type that was answered.
    pub(super) fn answered(&mut self, type_url: &TypeUrl) {
        self.types.remove(type_url);
        self.blamed.remove(type_url);
    }

    /// Notes a new stream: types that may have ended the last one, and that no client wants any
    /// more, wait.
    pub(super) fn opened(&mut self, is_wanted: impl Fn(&TypeUrl) -> bool, now: Instant) {
        for type_url in self.blamed.iter().filter(|type_url| !is_wanted(type_url)) {
            self.types.entry(type_url.clone()).or_insert(Suspect::Waits(now, 0));
        }
    }

    /// Notes the end of a stream, for which these types may be the reason. Returns proven ones with
    /// their wait; none if the stream had no answer.
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

    /// Type to try next, and when.
    pub(super) fn next(&self, is_wanted: impl Fn(&TypeUrl) -> bool) -> Option<(&TypeUrl, Instant)> {
        let waits = self.types.iter().filter_map(|(type_url, suspect)| match suspect {
            Suspect::Waits(until, _) => Some((type_url, *until)),
            Suspect::Tried(..) => None,
        });
        waits.filter(|(type_url, _)| is_wanted(type_url)).min_by_key(|(_, until)| *until)
    }
}
