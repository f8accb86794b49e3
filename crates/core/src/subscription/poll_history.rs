//! Memory of polls between one request and the next.
//!
//! A poll is a request of its own, and REST-JSON has neither nonces nor rejections. Two things still have to outlive it: what
//! the client was given last, so that what it rejects is not poured back at once (R-REST-08), and since when it waits for
//! names that the origin does not answer, so that short polls in a row wait no longer than one long one would.
//!
//! Invariants: bounded by [`LIMIT`] and by time, however many poll · what is forgotten costs time, never correctness.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::Mutex;
use xxhash_rust::xxh3::{self, Xxh3};

use crate::cache::{SetVersion, Subscription, TypeCache};

/// Polls that are remembered.
const LIMIT: usize = 1 << 16;
/// A client that comes back later than this after its last poll is a new one. Envoy comes back after its
/// `refresh_delay`, and one that is long needs no help against pouring.
const TTL: Duration = Duration::from_secs(30);

/// Key of a poll: a hash of the peer's address, the node's id, the node group's cache, the type and the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PollKey(u128);

impl PollKey {
    /// Somebody at `peer` with this `node.id`, who sees the type through this store.
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

/// The version that a client says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferedVersion {
    Nothing,
    /// One that a relay gave out.
    Version(SetVersion),
    /// Another server's: a hash of it.
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

/// Version that a client was given, and the one that it offered then. When it offers the latter again for the same names, it
/// rejected what it was given, or never got it; any other version was given for something else that it asked for meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveredVersion {
    pub(super) version: SetVersion,
    pub(super) over: OfferedVersion,
}

/// Facts about a poll from the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PollRecord {
    /// The last answer that it was given.
    pub(super) delivered: Option<DeliveredVersion>,
    /// Since when it waits for what is not known, if it still did when it ended.
    pub(super) waits_since: Option<Instant>,
}

/// The memory of all polls.
#[derive(Debug, Default)]
pub struct PollHistory(Mutex<PollRecords>);

impl PollHistory {
    pub(super) fn recall(&self, who: PollKey, now: Instant) -> PollRecord {
        self.0.lock().recall(who, now)
    }

    pub(super) fn remember(&self, who: PollKey, past: PollRecord, now: Instant) {
        self.0.lock().remember(who, past, now);
    }
}

#[derive(Debug, Default)]
struct PollRecords {
    past: HashMap<PollKey, (Instant, PollRecord)>,
    /// When which was remembered, oldest first; what was remembered again since is passed over.
    order: VecDeque<(Instant, PollKey)>,
}

impl PollRecords {
    fn recall(&self, who: PollKey, now: Instant) -> PollRecord {
        let fresh = self.past.get(&who).filter(|(at, _)| now < *at + TTL);
        fresh.map(|(_, past)| *past).unwrap_or_default()
    }

    fn remember(&mut self, who: PollKey, past: PollRecord, now: Instant) {
        while let Some((at, oldest)) = self.order.front().copied()
            && (self.order.len() >= LIMIT || now >= at + TTL)
        {
            self.order.pop_front();
            if self.past.get(&oldest).is_some_and(|(newest, _)| *newest == at) {
                self.past.remove(&oldest);
            }
        }
        self.past.insert(who, (now, past));
        self.order.push_back((now, who));
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
