//! Types of which the rollout guard holds changes, as far as they were reported on a stream.
//!
//! Owns whether a report is due: a type is reported once per hold and stream, so that canaries cannot have the relay send more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::resource::TypeUrl;

/// A stream that ends so soon after a report may have ended because of it.
const SOON: Duration = Duration::from_secs(10);

/// Reports of one stream.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Nonce of the newest response of each type that may be reported, where that was accepted.
    nonces: BTreeMap<TypeUrl, String>,
    /// Types that were reported since the hold began.
    said: BTreeSet<TypeUrl>,
    /// Time of the last report.
    last: Option<Instant>,
}

impl Reports {
    /// Notes the nonce of the newest response of a type; `None` if it was refused, or has none to answer it by.
    pub(super) fn note(&mut self, type_url: &TypeUrl, nonce: Option<&str>) {
        match nonce {
            Some(nonce) => drop(self.nonces.insert(type_url.clone(), nonce.to_owned())),
            None => drop(self.nonces.remove(type_url)),
        }
    }

    /// Another hold has begun, or none is left.
    pub(super) fn begin_anew(&mut self) {
        self.said.clear();
    }

    /// Whether there is anything to say of these types, of which changes are held.
    pub(super) fn are_due(&self, held: &BTreeSet<TypeUrl>) -> bool {
        self.next(held).is_some()
    }

    /// Notes that a report is sent.
    pub(super) const fn sent(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Whether the origin may have ended the stream because of a report.
    pub(super) fn may_have_ended_it(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now < last + SOON)
    }

    /// Takes the next type to report, with the nonce of its newest response.
    pub(super) fn take(&mut self, held: &BTreeSet<TypeUrl>) -> Option<(TypeUrl, String)> {
        let (type_url, nonce) = self.next(held)?;
        let (type_url, nonce) = (type_url.clone(), nonce.clone());
        self.said.insert(type_url.clone());
        Some((type_url, nonce))
    }

    fn next<'a>(&'a self, held: &'a BTreeSet<TypeUrl>) -> Option<(&'a TypeUrl, &'a String)> {
        let mut unsaid = held.iter().filter(|type_url| !self.said.contains(*type_url));
        unsaid.find_map(|type_url| Some((type_url, self.nonces.get(type_url)?)))
    }
}
