//! Memory of polls between two requests.
//!
//! REST-JSON has neither nonces nor rejections, so two facts must outlive a poll: the version sent,
//! so that a rejected one is not sent again at once (R-REST-08), and the start of the wait for
//! names, so that short polls wait no longer than a long one.
//!
//! Invariants: bounded by [`LIMIT`] and by time · a forgotten poll costs time, never correctness.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::Mutex;
use xxhash_rust::xxh3::{self, Xxh3};

use crate::cache::{SetVersion, Subscription, TypeCache};

const LIMIT: usize = 1 << 16;
/// Longest pause between two polls of a client. With a longer `refresh_delay`, rejected versions
/// are rare anyway.
const TTL: Duration = Duration::from_secs(30);

/// Hash of the peer's address, node id, node group's cache, type and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PollKey(u128);

impl PollKey {
    /// Key of a peer with this `node.id` and store.
    pub(super) fn new(peer: &[u8], node_id: &str, of: &TypeCache, subscription: &Subscription) -> Self {
        let mut hasher = Xxh3::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(peer);
        part(node_id.as_bytes());
        part(&of.cache().to_le_bytes());
        part(of.type_url().as_str().as_bytes());
        part(&[subscription.wildcard.into()]);
        subscription.names().iter().for_each(|name| part(name.as_str().as_bytes()));
        for (name, parameters) in subscription.locators().into_iter().flatten() {
            part(name.as_str().as_bytes());
            parameters.iter().flat_map(|(key, value)| [key, value]).for_each(|text| part(text.as_bytes()));
        }
        Self(hasher.digest128())
    }
}

/// Version that a client says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferedVersion {
    Nothing,
    Version(SetVersion),
    /// Hash of another server's version.
    Foreign(u64),
}

impl OfferedVersion {
    pub(super) fn read(version_info: &str) -> Self {
        match version_info {
            "" => Self::Nothing,
            text => {
                text.parse().map_or_else(|_| Self::Foreign(xxh3::xxh3_64(text.as_bytes())), Self::Version)
            }
        }
    }
}

/// Version sent, and the version that the request offered. A client that offers it again for the
/// same names rejected the sent version or never got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveredVersion {
    pub(super) version: SetVersion,
    pub(super) over: OfferedVersion,
}

/// Facts about a poll from the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PollRecord {
    pub(super) delivered: Option<DeliveredVersion>,
    /// Start of the wait for unknown names, if it goes on.
    pub(super) waits_since: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct PollHistory(Mutex<PollRecords>);

impl PollHistory {
    pub(super) fn recall(&self, key: PollKey, now: Instant) -> PollRecord {
        self.0.lock().recall(key, now)
    }

    pub(super) fn remember(&self, key: PollKey, past: PollRecord, now: Instant) {
        self.0.lock().remember(key, past, now);
    }
}

#[derive(Debug, Default)]
struct PollRecords {
    past: HashMap<PollKey, (Instant, PollRecord)>,
    /// Times of records, oldest first; entries may be outdated.
    order: VecDeque<(Instant, PollKey)>,
}

impl PollRecords {
    fn recall(&self, key: PollKey, now: Instant) -> PollRecord {
        let fresh = self.past.get(&key).filter(|(at, _)| now < *at + TTL);
        fresh.map(|(_, past)| *past).unwrap_or_default()
    }

    fn remember(&mut self, key: PollKey, past: PollRecord, now: Instant) {
        while let Some((at, oldest)) = self.order.front().copied()
            && (self.order.len() >= LIMIT || now >= at + TTL)
        {
            self.order.pop_front();
            if self.past.get(&oldest).is_some_and(|(newest, _)| *newest == at) {
                self.past.remove(&oldest);
            }
        }
        self.past.insert(key, (now, past));
        self.order.push_back((now, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_polls_is_bounded_in_number_and_in_time() {
        let (mut poll_history, start) = (PollRecords::default(), Instant::now());
        let past = PollRecord { waits_since: Some(start), ..PollRecord::default() };
        let at = |number: usize| start + Duration::from_micros(number as u64);
        for number in 0..2 * LIMIT {
            poll_history.remember(PollKey(number as u128 % 100_000), past, at(number));
        }
        assert!(poll_history.past.len() <= LIMIT && poll_history.order.len() <= LIMIT);
        let newest = PollKey((2 * LIMIT as u128 - 1) % 100_000);
        assert_eq!(poll_history.recall(newest, at(2 * LIMIT)), past);
        let late = at(2 * LIMIT) + TTL;
        assert_eq!(poll_history.recall(newest, late), PollRecord::default());
        poll_history.remember(PollKey(0), past, late);
        assert_eq!((poll_history.past.len(), poll_history.order.len()), (1, 1));
    }

    #[test]
    fn a_memory_that_is_renewed_stays() {
        let (mut poll_history, start) = (PollRecords::default(), Instant::now());
        let past = PollRecord { waits_since: Some(start), ..PollRecord::default() };
        poll_history.remember(PollKey(1), past, start);
        poll_history.remember(PollKey(1), past, start + TTL / 2);
        poll_history.remember(PollKey(2), past, start + TTL);
        assert_eq!(poll_history.recall(PollKey(1), start + TTL), past);
    }
}
