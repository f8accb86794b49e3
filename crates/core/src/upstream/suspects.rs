//! Types at which the control plane ends the stream.
//!
//! go-control-plane ends the whole stream when asked for a type without a cache (O8). One client
//! that asks for such a type must not cut off all others. Owns the suspects, and when each is tried
//! again.
//!
//! A type is suspect if two streams in a row ended soon after it was requested, and it was never
//! answered. Suspects are tried one at a time, while clients want them, once the stream has answered
//! another type. An answer, or a long wait on a live stream, clears a suspect. If the stream ends, it
//! waits: a minute, then two, up to an hour. A stream without any answer proves nothing, as the
//! control plane may be down.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::backoff::pace;
use crate::resource::TypeUrl;

#[derive(Clone, Copy, Debug)]
pub(super) enum Suspect {
    /// It may have ended the last stream.
    Blamed,
    /// Not requested before this time, after this many failures.
    Waits(Instant, u32),
    /// Requested since this time, after this many failures.
    Tried(Instant, u32),
}

/// Types under suspicion.
#[derive(Debug, Default)]
pub(super) struct Suspects(pub(super) BTreeMap<TypeUrl, Suspect>);

impl Suspects {
    /// Whether a type is not to be requested.
    pub(super) fn withholds(&self, type_url: &TypeUrl) -> bool {
        matches!(self.0.get(type_url), Some(Suspect::Waits(..)))
    }

    /// Clears a type that was answered.
    pub(super) fn answered(&mut self, type_url: &TypeUrl) {
        self.0.remove(type_url);
    }

    /// Notes the end of a stream, for which these types may be the reason. Returns proven ones with
    /// their wait; none if the stream had no answer.
    pub(super) fn ended(
        &mut self,
        blamed: Vec<TypeUrl>,
        was_answered: bool,
        now: Instant,
    ) -> Vec<(TypeUrl, Duration)> {
        self.0.retain(|type_url, suspect| !matches!(suspect, Suspect::Blamed) || blamed.contains(type_url));
        let mut found = Vec::new();
        for type_url in blamed {
            let failures = match self.0.get(&type_url) {
                None => {
                    self.0.insert(type_url, Suspect::Blamed);
                    continue;
                }
                Some(Suspect::Blamed) => 0,
                Some(Suspect::Waits(_, failures)) => *failures,
                Some(Suspect::Tried(_, failures)) => failures + u32::from(was_answered),
            };
            let wait = failures.checked_sub(1).filter(|_| was_answered).map(|before| 60 * pace(before));
            let until = now + wait.unwrap_or_default();
            self.0.insert(type_url.clone(), Suspect::Waits(until, failures));
            found.extend(wait.map(|wait| (type_url, wait)));
        }
        found
    }
}
