//! Outgoing messages: the chunks left to send, and a limit on the memory of large ones.
//!
//! A slow peer keeps a whole message alive, and each change adds another. A set of 1 MB that changes five
//! times a second would grow by 5 MB a second. Owns the count of the bytes kept, with shared bytes counted
//! once. Above the limit it chooses the connection to abort. Messages below [`LARGE`] are charged only to
//! their connection.
//!
//! The users of shared bytes are charged equal parts. Above the limit one connection is aborted at a time: of
//! the peer that keeps most, the one that keeps most. A peer whose messages are all younger than [`GRACE`] is
//! spared, unless it keeps more than half of the limit. It does not shield smaller peers. The limit is at
//! least four times the largest message, so that a set larger than the limit can be sent.
//!
//! Example: twenty clients receive the same 10 MB and keep 0.5 MB each. A client that reads none of forty
//! states of 1 MB keeps 40 MB, and is aborted.
//!
//! Invariants:
//! - Dropping a [`Sending`] takes its bytes off the count.
//! - The holder of a `Sending` keeps its message alive, so that no other message gets its address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::HashMap;
use parking_lot::Mutex;
use slab::Slab;

use super::connection::{Charge, Connection, Usage};
use super::grpc_status::report;
use crate::json::JsonResponse;
use crate::limit::Limit;
use crate::pool::Account;
use crate::subscription::Outgoing;

/// Bytes below which a message is charged in full to each connection. Sharing would save little, and its
/// count costs a lock.
const LARGE: usize = 16 << 10;
/// Age below which messages do not count against a peer, unless it keeps more than half of the limit.
const GRACE: Duration = Duration::from_secs(10);
/// Time between two aborts: memory is free only when the connection's task has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// Address and length of live bytes.
type Piece = (usize, usize);

/// Count of the large outgoing messages.
#[derive(Debug)]
pub struct Unsent {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Outgoing messages, each once.
    messages: HashMap<Key, Message>,
    /// Number of messages that contain each piece.
    pieces: HashMap<Piece, u32>,
    /// Bytes of all pieces, each counted once.
    bytes: usize,
    largest: usize,
    deliveries: Slab<Delivery>,
    looked: Option<Instant>,
}

/// Identity of a live message: the address of its list of pieces, or of its only piece.
type Key = (usize, usize);

#[derive(Debug)]
struct Message {
    pieces: Box<[Piece]>,
    deliveries: u32,
}

#[derive(Debug)]
struct Delivery {
    connection: Arc<Connection>,
    message: Key,
    since: Instant,
}

fn key(message: &[Bytes]) -> Key {
    match message {
        [one] => (one.as_ptr().addr(), usize::MAX),
        many => (many.as_ptr().addr(), many.len()),
    }
}

/// Bytes that a connection or its peer keeps.
#[derive(Clone, Copy, Debug)]
struct Kept<'s> {
    connection: &'s Arc<Connection>,
    bytes: usize,
    /// Start of the oldest message.
    since: Instant,
}

impl Kept<'_> {
    fn add(&mut self, bytes: usize, since: Instant) {
        self.bytes += bytes;
        self.since = self.since.min(since);
    }
}

/// Charge for an outgoing message. Drop it before the message: bytes are known by their address.
#[derive(Debug)]
pub(super) enum Sending {
    /// Message whose shared bytes are counted.
    Large {
        /// Count that it belongs to.
        of: Arc<Unsent>,
        /// Its index there.
        at: usize,
    },
    /// Message that is charged to its connection.
    Small(#[expect(dead_code, reason = "it is given back on drop")] Charge),
}

impl Unsent {
    /// Creates an empty count with a limit in bytes for all connections.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    /// Counts a message from now on. The caller keeps the message alive.
    pub(super) fn begin(
        self: &Arc<Self>,
        message: &[Bytes],
        connection: &Arc<Connection>,
        now: Instant,
    ) -> Sending {
        let bytes: usize = message.iter().map(Bytes::len).sum();
        if bytes < LARGE {
            let mut charge = Charge::new(connection, Usage::Sending);
            charge.set(bytes);
            return Sending::Small(charge);
        }
        let mut state = self.state.lock();
        let key = key(message);
        state.hold(key, message);
        state.largest = state.largest.max(bytes);
        let delivery = Delivery { connection: Arc::clone(connection), message: key, since: now };
        let at = state.deliveries.insert(delivery);
        let limit = self.limit.max(4 * state.largest);
        let aborted = if state.bytes > limit { state.choose_to_abort(limit, now) } else { None };
        drop(state);
        if let Some(connection) = aborted {
            connection.abort();
            report(
                Limit::Unsent,
                connection.whom(),
                "the messages that it does not read keep too much memory",
            );
        }
        Sending::Large { of: Arc::clone(self), at }
    }

    /// Returns the bytes of each connection, by its number.
    pub(super) fn by_connection(&self) -> HashMap<u64, usize> {
        let state = self.state.lock();
        state.by_connection().into_iter().map(|(number, kept)| (number, kept.bytes)).collect()
    }
}

impl State {
    /// Adds a client of this message.
    fn hold(&mut self, key: Key, message: &[Bytes]) {
        if let Some(known) = self.messages.get_mut(&key) {
            known.deliveries += 1;
            return;
        }
        let pieces: Box<[Piece]> = message.iter().map(|piece| (piece.as_ptr().addr(), piece.len())).collect();
        for piece in &pieces {
            let count = self.pieces.entry(*piece).or_default();
            *count += 1;
            if *count == 1 {
                self.bytes += piece.1;
            }
        }
        self.messages.insert(key, Message { pieces, deliveries: 1 });
    }

    /// Removes a client of this message.
    fn release(&mut self, key: Key) {
        let Some(message) = self.messages.get_mut(&key) else { return };
        message.deliveries -= 1;
        if message.deliveries > 0 {
            return;
        }
        let pieces = self.messages.remove(&key).map(|message| message.pieces).unwrap_or_default();
        for piece in &pieces {
            if let Some(count) = self.pieces.get_mut(piece) {
                *count -= 1;
                if *count == 0 {
                    self.pieces.remove(piece);
                    self.bytes -= piece.1;
                }
            }
        }
    }

    /// Returns the bytes charged to each delivery of a message.
    ///
    /// Example: a piece of 1 MB is in two messages, one of them on its way to 5 clients. Each of these is
    /// charged 0.1 MB.
    fn shares(&self) -> HashMap<Key, usize> {
        let share = |piece: &Piece| piece.1 / self.pieces.get(piece).map_or(1, |count| *count as usize);
        let of =
            |message: &Message| message.pieces.iter().map(share).sum::<usize>() / message.deliveries as usize;
        self.messages.iter().map(|(key, message)| (*key, of(message))).collect()
    }

    fn by_connection(&self) -> HashMap<u64, Kept<'_>> {
        let (shares, mut by_connection) = (self.shares(), HashMap::default());
        for (_, Delivery { connection, message, since }) in &self.deliveries {
            let none = Kept { connection, bytes: 0, since: *since };
            let kept = by_connection.entry(connection.number()).or_insert(none);
            kept.add(shares.get(message).copied().unwrap_or_default(), *since);
        }
        by_connection
    }

    /// Chooses the connection to abort now.
    fn choose_to_abort(&mut self, limit: usize, now: Instant) -> Option<Arc<Connection>> {
        if self.looked.is_some_and(|looked| now < looked + PAUSE) {
            return None;
        }
        self.looked = Some(now);
        let by_connection = self.by_connection();
        let account = |kept: &Kept<'_>| kept.connection.tenant().map(|tenant| tenant.account().clone());
        let mut by_peer: HashMap<Account, Kept<'_>> = HashMap::default();
        for kept in by_connection.values() {
            let Some(account) = account(kept) else { continue };
            by_peer.entry(account).or_insert(Kept { bytes: 0, ..*kept }).add(kept.bytes, kept.since);
        }
        let is_old = |kept: &Kept<'_>| now >= kept.since + GRACE;
        let has_most = |kept: &Kept<'_>| kept.bytes > limit / 2;
        let candidates = by_peer.into_iter().filter(|(_, kept)| has_most(kept) || is_old(kept));
        let (costliest, of_peer) = candidates.max_by_key(|(_, kept)| kept.bytes)?;
        let of_dearest = by_connection.values().filter(|kept| {
            let is_its = account(kept).as_ref() == Some(&costliest);
            is_its && !kept.connection.is_aborted() && (has_most(&of_peer) || is_old(kept))
        });
        of_dearest.max_by_key(|kept| kept.bytes).map(|kept| Arc::clone(kept.connection))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Self::Large { of, at } = self {
            let mut state = of.state.lock();
            let delivery = state.deliveries.remove(*at);
            state.release(delivery.message);
        }
    }
}

/// Message whose bytes are shared with others.
pub(super) trait Chunks {
    fn chunks(&self) -> &[Bytes];
}

impl Chunks for Outgoing {
    fn chunks(&self) -> &[Bytes] {
        self.frame.chunks()
    }
}

impl Chunks for JsonResponse {
    fn chunks(&self) -> &[Bytes] {
        self.chunks()
    }
}

/// Message and the number of chunks taken. Its connection is charged until this is dropped.
#[derive(Debug)]
pub(super) struct SendCursor<M> {
    /// Before the message: the charge ends while the bytes exist.
    _sending: Sending,
    message: M,
    taken: usize,
}

impl<M: Chunks> SendCursor<M> {
    pub(super) fn new(message: M, connection: &Arc<Connection>, unsent: &Arc<Unsent>, now: Instant) -> Self {
        Self { _sending: unsent.begin(message.chunks(), connection, now), message, taken: 0 }
    }

    /// Takes the next chunk; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let chunk = self.message.chunks().get(self.taken)?;
        self.taken += 1;
        Some(chunk.clone())
    }

    pub(super) fn rest(&self) -> &[Bytes] {
        self.message.chunks().get(self.taken..).unwrap_or_default()
    }

    pub(super) const fn message(&self) -> &M {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use super::super::Connections;
    use super::super::connections::ConnectionGuard;
    use super::*;
    use crate::identity::{Peer, Source};

    const MIB: usize = 1 << 20;

    fn open(connections: &Arc<Connections>, last: u8) -> ConnectionGuard {
        let guard = connections.open(Duration::from_secs(3600), Instant::now());
        let peer = Peer::unproven(Source::of([10, 0, 0, last].into()));
        connections.identify(&guard.connection, Arc::new(peer));
        guard
    }

    fn message() -> Bytes {
        vec![0; MIB].into()
    }

    #[test]
    fn a_message_that_is_sent_to_many_counts_once() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(8 * MIB), Instant::now());
        let shared = message();
        let open: Vec<_> = (0..100).map(|last| open(&connections, last)).collect();
        let sending: Vec<_> = open
            .iter()
            .map(|guard| unsent.begin(std::slice::from_ref(&shared), &guard.connection, now))
            .collect();
        assert_eq!(unsent.state.lock().bytes, MIB);
        drop(sending);
        let state = unsent.state.lock();
        assert_eq!(
            (state.bytes, state.pieces.len(), state.messages.len(), state.deliveries.len()),
            (0, 0, 0, 0)
        );
    }

    /// Begins to send `count` messages, each of its own, and keeps them.
    fn begin(
        unsent: &Arc<Unsent>,
        guard: &ConnectionGuard,
        count: usize,
        now: Instant,
    ) -> Vec<(Sending, Bytes)> {
        let one = |_| {
            let message = message();
            let sending = unsent.begin(std::slice::from_ref(&message), &guard.connection, now);
            (sending, message)
        };
        (0..count).map(one).collect()
    }

    fn aborted<const N: usize>(open: &[ConnectionGuard; N]) -> [bool; N] {
        open.each_ref().map(|guard| guard.connection.is_aborted())
    }

    #[test]
    fn above_the_limit_the_peer_that_keeps_most_is_given_up() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(8 * MIB), Instant::now());
        // An honest client on a slow link, and one peer over two connections.
        let open = [1, 2, 2].map(|last| open(&connections, last));
        let slow = begin(&unsent, &open[0], 3, now);
        let two = begin(&unsent, &open[1], 1, now);
        let three = begin(&unsent, &open[2], 3, now);
        let last = begin(&unsent, &open[0], 1, now + GRACE);
        assert_eq!(aborted(&open), [false; 3], "that is the limit");
        let more = begin(&unsent, &open[0], 1, now + GRACE + PAUSE);
        assert_eq!(aborted(&open), [true, false, false], "it keeps five of nine");
        drop((slow, last, more));
        let more = begin(&unsent, &open[1], 5, now + GRACE + 2 * PAUSE);
        assert_eq!(aborted(&open), [true, true, false], "of its peer the one that keeps most");
        drop((two, three, more));
    }

    #[test]
    fn a_peer_whose_messages_stay_young_is_spared_up_to_half_of_the_limit() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(8 * MIB), Instant::now());
        let open = [1, 2].map(|last| open(&connections, last));
        let _slow = begin(&unsent, &open[0], 2, now);
        let later = now + GRACE;
        let _young = begin(&unsent, &open[1], 6, later);
        assert_eq!(aborted(&open), [false, false], "that is the limit");
        let _more = begin(&unsent, &open[1], 1, later);
        assert_eq!(aborted(&open), [false, true], "not the one that is slow");
    }

    #[test]
    fn a_peer_that_is_spared_shields_nobody() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(8 * MIB), Instant::now());
        let open = [1, 2, 3].map(|last| open(&connections, last));
        let _slow = begin(&unsent, &open[0], 3, now);
        let later = now + GRACE;
        let _dearest = begin(&unsent, &open[1], 4, later);
        let _last = begin(&unsent, &open[2], 2, later);
        assert_eq!(aborted(&open), [true, false, false], "of those that are not spared the costliest");
    }

    #[test]
    fn a_small_message_is_charged_to_its_connection_while_it_is_being_sent() {
        let (connections, unsent) = (Arc::default(), Unsent::new(8 * MIB));
        let guard = open(&connections, 1);
        let charged = || guard.connection.used(Usage::Sending);
        let message = [Bytes::from(vec![0; LARGE - 1])];
        let sending = unsent.begin(&message, &guard.connection, Instant::now());
        assert_eq!((charged(), unsent.by_connection().len()), (LARGE - 1, 0));
        drop(sending);
        assert_eq!(charged(), 0);
    }

    #[test]
    fn clients_that_share_a_message_share_its_cost() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(8 * MIB), Instant::now());
        let fleet: Vec<_> = (0..20).map(|_| open(&connections, 1)).collect();
        let hostile = [open(&connections, 2)];
        let shared: Bytes = vec![0; 2 * MIB].into();
        let begin_shared =
            |guard: &ConnectionGuard| unsent.begin(std::slice::from_ref(&shared), &guard.connection, now);
        let _fleet: Vec<_> = fleet.iter().map(begin_shared).collect();
        let _hostile = begin(&unsent, &hostile[0], 7, now + GRACE);
        assert_eq!(aborted(&hostile), [true]);
        assert!(fleet.iter().all(|guard| !guard.connection.is_aborted()));
        let kept = unsent.by_connection();
        assert_eq!(kept[&fleet[0].connection.number()], 2 * MIB / 20);
    }

    #[test]
    fn a_message_larger_than_the_limit_can_be_sent() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(MIB), Instant::now());
        let guard = open(&connections, 1);
        let messages = [(); 4].map(|()| message());
        let later = now + GRACE;
        let _sending = messages
            .each_ref()
            .map(|message| unsent.begin(std::slice::from_ref(message), &guard.connection, now));
        assert!(!guard.connection.is_aborted());
        let fifth = message();
        let _fifth = unsent.begin(std::slice::from_ref(&fifth), &guard.connection, later);
        assert!(guard.connection.is_aborted());
    }
}
