//! Large messages that are being sent, and what they keep in memory.
//!
//! A peer that takes a few bytes now and then keeps the whole of a message alive, and after the next change the next stream
//! keeps another one: a set of 1 MB that changes five times a second would grow by 5 MB a second. Owns the count of what
//! is kept, in which shared bytes count once, however many clients they are being sent to, and the choice of the connection
//! that is given up when it is too much. Messages below [`LARGE`] are not counted.
//!
//! Above the limit one connection is given up at a time: of the peer that keeps most, the one that keeps most. None is
//! while its message is younger than [`PATIENCE`]. The limit is at least four times the largest message, so that a set that
//! is larger than the limit can be sent.
//!
//! Invariant: what is counted is taken back when the [`Sending`] is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::HashMap;
use parking_lot::Mutex;
use slab::Slab;

use super::connection::Connection;
use crate::pool::Account;
use crate::telemetry::Limit;

/// What smaller messages keep is bounded by the number of streams.
pub(super) const LARGE: usize = 64 << 10;
/// No connection is given up for a message that is younger.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two connections that are given up: what the first one kept is free only when its task has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// Address and length of bytes that are alive.
type Piece = (usize, usize);

/// See the module.
#[derive(Debug)]
pub struct Unsent {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In how many messages each piece is.
    pieces: HashMap<Piece, u32>,
    /// What the pieces take, each once.
    bytes: usize,
    largest: usize,
    messages: Slab<Message>,
    last_given_up: Option<Instant>,
}

#[derive(Debug)]
struct Message {
    connection: Arc<Connection>,
    bytes: usize,
    since: Instant,
}

/// A large message is being sent, for as long as this is there.
#[derive(Debug)]
pub(super) struct Sending {
    of: Arc<Unsent>,
    at: usize,
    pieces: Box<[Piece]>,
}

impl Unsent {
    /// Nothing is being sent. The limit is in bytes, of all connections.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    /// A message of these pieces, which the caller keeps, is being sent from now on. `None` where it is small.
    pub(super) fn begin(
        self: &Arc<Self>,
        message: &[Bytes],
        connection: &Arc<Connection>,
        now: Instant,
    ) -> Option<Sending> {
        let bytes: usize = message.iter().map(Bytes::len).sum();
        if bytes < LARGE {
            return None;
        }
        let pieces: Box<[Piece]> = message.iter().map(|piece| (piece.as_ptr().addr(), piece.len())).collect();
        let mut state = self.state.lock();
        for piece in &pieces {
            let count = state.pieces.entry(*piece).or_default();
            *count += 1;
            if *count == 1 {
                state.bytes += piece.1;
            }
        }
        state.largest = state.largest.max(bytes);
        let at = state.messages.insert(Message { connection: Arc::clone(connection), bytes, since: now });
        connection.unsent().fetch_add(bytes, Ordering::Relaxed);
        let given_up =
            if state.bytes > self.limit.max(4 * state.largest) { state.give_up(now) } else { None };
        drop(state);
        if let Some(connection) = given_up {
            connection.give_up();
            let peer = connection.peer().map(ToString::to_string).unwrap_or_default();
            super::status::report(
                Limit::Unsent,
                &peer,
                "the messages that it does not take keep too much memory",
            );
        }
        Some(Sending { of: Arc::clone(self), at, pieces })
    }
}

impl State {
    /// The connection that is to be given up now.
    fn give_up(&mut self, now: Instant) -> Option<Arc<Connection>> {
        if self.last_given_up.is_some_and(|last| now < last + PAUSE) {
            return None;
        }
        let mut by_peer: HashMap<&Account, usize> = HashMap::default();
        for (_, message) in &self.messages {
            let tenant = message.connection.tenant()?;
            *by_peer.entry(tenant.account()).or_default() += message.bytes;
        }
        let is_old =
            |message: &&Message| now >= message.since + PATIENCE && !message.connection.is_given_up();
        let dear = self.messages.iter().map(|(_, message)| message).filter(is_old).max_by_key(|message| {
            let of_peer =
                message.connection.tenant().and_then(|tenant| by_peer.get(tenant.account()).copied());
            (of_peer, message.connection.unsent().load(Ordering::Relaxed))
        })?;
        self.last_given_up = Some(now);
        Some(Arc::clone(&dear.connection))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        for piece in &self.pieces {
            if let Some(count) = state.pieces.get_mut(piece) {
                *count -= 1;
                if *count == 0 {
                    state.pieces.remove(piece);
                    state.bytes -= piece.1;
                }
            }
        }
        let message = state.messages.remove(self.at);
        message.connection.unsent().fetch_sub(message.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::Connections;
    use crate::downstream::connection::ConnectionGuard;
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
    fn what_is_sent_to_many_counts_once() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(8 * MIB), Instant::now());
        let shared = message();
        let open: Vec<_> = (0..100).map(|last| open(&connections, last)).collect();
        let sending: Vec<_> = open
            .iter()
            .map(|guard| unsent.begin(std::slice::from_ref(&shared), &guard.connection, now))
            .collect();
        assert_eq!(unsent.state.lock().bytes, MIB);
        assert!(unsent.begin(&[Bytes::from(vec![0; LARGE - 1])], &open[0].connection, now).is_none());
        drop(sending);
        let state = unsent.state.lock();
        assert_eq!((state.bytes, state.pieces.len(), state.messages.len()), (0, 0, 0));
        assert_eq!(open[0].connection.unsent().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn above_the_limit_the_peer_that_keeps_most_is_given_up() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(8 * MIB), Instant::now());
        let [slow, two, four] = [1, 2, 2].map(|last| open(&connections, last));
        let mut kept = Vec::new();
        let mut begin = |guard: &ConnectionGuard, count, after: Duration| {
            for _ in 0..count {
                let message = message();
                let sending =
                    unsent.begin(std::slice::from_ref(&message), &guard.connection, now + after).unwrap();
                kept.push((sending, message));
            }
        };
        begin(&slow, 2, Duration::ZERO);
        begin(&two, 2, Duration::ZERO);
        begin(&four, 5, Duration::ZERO);
        let gone = || [&slow, &two, &four].map(|guard| guard.connection.is_given_up());
        assert_eq!(gone(), [false; 3], "all of it is new");
        begin(&slow, 1, PATIENCE);
        assert_eq!(gone(), [false, false, true]);
        begin(&slow, 1, PATIENCE + PAUSE / 2);
        assert_eq!(gone(), [false, false, true], "what it kept is not free yet");
        kept.retain(|(sending, _)| {
            let connection = Arc::clone(&unsent.state.lock().messages[sending.at].connection);
            !connection.is_given_up()
        });
        let message = message();
        let later = now + PATIENCE + PAUSE;
        let _sending = unsent.begin(std::slice::from_ref(&message), &slow.connection, later);
        assert_eq!(gone(), [false, false, true], "there is room again");
    }

    #[test]
    fn a_message_larger_than_the_limit_can_be_sent() {
        let (connections, unsent, now) = (Arc::default(), Unsent::new(MIB), Instant::now());
        let guard = open(&connections, 1);
        let messages = [(); 4].map(|()| message());
        let later = now + PATIENCE;
        let _sending = messages
            .each_ref()
            .map(|message| unsent.begin(std::slice::from_ref(message), &guard.connection, now));
        assert!(!guard.connection.is_given_up());
        let fifth = message();
        let _fifth = unsent.begin(std::slice::from_ref(&fifth), &guard.connection, later);
        assert!(guard.connection.is_given_up());
    }
}
