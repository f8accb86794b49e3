//! One connection: its state, peer and cost, and its turn for the first answer.
//!
//! Owns the order of first answers while more clients come than can be answered at once, and the longest wait for one. Does not
//! know the answers.
//!
//! After a restart a whole fleet asks at once. Without an order, all answers come late, many after their
//! deadline. So while others wait for a permit of the [`FairScheduler`](super::scheduler::FairScheduler), a
//! connection without an answer waits too. Clients that resume come before those that hold nothing, because
//! they need little, and so do relays, because they have clients of their own.
//!
//! After [`LONGEST_FIRST_ANSWER_WAIT`](crate::fairness::LONGEST_FIRST_ANSWER_WAIT) the client has given up.
//! Its stream is refused, which costs next to nothing. Clients that hold nothing are the first to be refused.
//! A connection that is refused or put off keeps its place for its next request. A turn that the peer leaves
//! unused ends its place, which could otherwise be used again and again.
//!
//! Example: 10,000 clients without resources come at 0 s, and 2,000 that resume at 1 s. The relay answers
//! 1,000 in a second. It answers clients without resources until 1 s, all that resume until 3 s, then the
//! other 9,000. It refuses those left after 12 s.
//!
//! Invariant: a connection whose turn is due is polled, or in the queue for a permit.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cache::WakeHandle;
use crate::fairness::COLD_HANDICAP;
use crate::identity::Peer;
use crate::pool::Tenant;
use crate::subscription::{Session, SessionConfig, SessionError};
use crate::tls::reload::Reloaded;
use crate::tls::server::{ServerTls, Shown};

/// State of a connection. It only moves forward.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Open,
    /// Open streams end, and new ones are refused.
    Closing,
    /// The transport is dropped at once.
    Aborted,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Time at which it closes for its age.
    due: Instant,
    closing_since: OnceLock<Instant>,
    aborted: AtomicBool,
    task: WakeHandle,
    peer: OnceLock<Arc<Peer>>,
    /// Tenant in the pools of all peers, created at its first use.
    tenant: OnceLock<Tenant>,
    number: u64,
    /// Certificates that let it in. Boxed, because most connections have none.
    credentials: OnceLock<Box<Credentials>>,
    /// Memory that it takes, by [`Usage`].
    used: [AtomicUsize; 6],
    /// Request to poll its streams though nothing woke them.
    recheck: AtomicBool,
    /// Whether it had an admitted request.
    served: AtomicBool,
    first_answer: FirstAnswer,
}

/// Certificates that let a connection in, and the TLS settings that judged them.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) shown: Shown,
    pub(super) judge: Reloaded<ServerTls>,
}

impl Connection {
    pub(super) fn new(number: u64, due: Instant) -> Self {
        Self {
            due,
            closing_since: OnceLock::new(),
            aborted: AtomicBool::new(false),
            task: WakeHandle::default(),
            peer: OnceLock::new(),
            tenant: OnceLock::new(),
            number,
            credentials: OnceLock::new(),
            used: Default::default(),
            recheck: AtomicBool::new(false),
            served: AtomicBool::new(false),
            first_answer: FirstAnswer::default(),
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due && !self.is_closing()
    }

    pub(super) fn set_peer(&self, peer: Arc<Peer>) {
        let is_first = self.peer.set(peer).is_ok();
        debug_assert!(is_first, "a connection has one peer");
    }

    /// Sets the certificates, once: a connection has one handshake.
    pub(super) fn set_credentials(&self, credentials: Credentials) -> &Credentials {
        self.credentials.get_or_init(|| Box::new(credentials))
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.get().map(|credentials| &**credentials)
    }

    /// Has its streams polled once without a wake-up.
    pub(super) fn request_recheck(&self) {
        self.recheck.store(true, Ordering::Release);
        self.task.wake();
    }

    pub(super) const fn first_answer(&self) -> &FirstAnswer {
        &self.first_answer
    }

    pub(super) fn request_first_answer(&self, session: &Session, now: Instant) {
        let is_first = session.resumes() || session.is_relay();
        self.first_answer.request_turn(if is_first { now } else { now + COLD_HANDICAP });
        self.task.wake();
    }

    /// Begins its turn for the first answer; all streams are then polled.
    pub(super) fn begin_first_answer(&self) {
        self.first_answer.begin_turn();
        self.recheck.store(true, Ordering::Release);
    }

    /// Whether it had an admitted request, or takes memory all the same.
    pub(super) fn is_served(&self) -> bool {
        /// Bytes. Idle connections and health checks take less.
        const LITTLE: usize = 64 << 10;
        self.served.load(Ordering::Relaxed) || self.cost() > LITTLE
    }

    pub(super) fn state(&self) -> ConnectionState {
        if self.aborted.load(Ordering::Acquire) {
            ConnectionState::Aborted
        } else if self.closing_since.get().is_some() {
            ConnectionState::Closing
        } else {
            ConnectionState::Open
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state() != ConnectionState::Open
    }

    /// Sets the task to wake when the state changes. Register first, then read the state.
    pub(super) fn register(&self, task: &Waker) {
        self.task.register(task);
    }

    /// Waits until it must close.
    pub(super) async fn until_closing(&self) {
        std::future::poll_fn(|cx| {
            self.register(cx.waker());
            if self.is_closing() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns the peer, if it is known.
    pub(crate) fn peer(&self) -> Option<&Arc<Peer>> {
        self.peer.get()
    }

    /// Returns the peer for log lines.
    pub(super) fn whom(&self) -> &dyn Display {
        self.peer.get().map_or::<&dyn Display, _>(&"", |peer| peer)
    }

    /// Returns its tenant in the pools of all peers; `None` before the peer is known.
    pub(super) fn tenant(&self) -> Option<&Tenant> {
        let peer = self.peer.get()?;
        Some(self.tenant.get_or_init(|| Tenant::new(peer, self.number)))
    }

    pub(super) fn note_served(&self) {
        self.served.store(true, Ordering::Relaxed);
    }

    pub(super) fn used(&self, usage: Usage) -> usize {
        self.used[usage as usize].load(Ordering::Relaxed)
    }

    /// Sets an amount of which no part is charged.
    pub(super) fn set_used(&self, usage: Usage, amount: usize) {
        self.used[usage as usize].store(amount, Ordering::Relaxed);
    }

    /// Returns its number: connections are numbered in the order in which they were opened.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Estimates its memory in bytes, without large outgoing messages.
    ///
    /// Example: 1000 names of 20 bytes each cost 1000 × (64 + 20) bytes.
    pub(super) fn cost(&self) -> usize {
        let bytes = [Usage::Requests, Usage::Versions, Usage::NameBytes, Usage::Http2, Usage::Sending];
        bytes.into_iter().map(|usage| self.used(usage)).fold(0, usize::saturating_add)
    }

    /// Takes the request to poll its streams, if any.
    pub(super) fn take_recheck(&self) -> bool {
        self.recheck.load(Ordering::Relaxed) && self.recheck.swap(false, Ordering::AcqRel)
    }

    pub(super) fn abort(&self) {
        if !self.aborted.swap(true, Ordering::AcqRel) {
            self.task.wake();
        }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.state() == ConnectionState::Aborted
    }

    pub(super) fn close(&self, now: Instant) {
        if self.closing_since.set(now).is_ok() {
            self.task.wake();
        }
    }

    /// Aborts it if it has been closing for `stall`. Foreign streams, such as a health watch, do not end by
    /// themselves.
    pub(super) fn abort_if_stuck(&self, now: Instant, stall: Duration) {
        if self.closing_since.get().is_some_and(|since| now >= *since + stall) {
            self.abort();
        }
    }
}

/// Use of memory, of which each connection has a count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Usage {
    /// Bytes of its requests that are not whole.
    Requests,
    /// Bytes of the versions that its clients say they hold.
    Versions,
    /// Names that its streams subscribe to.
    Names,
    /// Bytes of these names.
    NameBytes,
    /// Bytes that HTTP/2 keeps for it.
    Http2,
    /// Bytes of messages that are being sent and are too small for [`Unsent`](super::unsent_memory::Unsent).
    Sending,
}

/// Part of what a connection uses; given back on drop.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) connection: Arc<Connection>,
    usage: Usage,
    amount: usize,
}

impl Charge {
    pub(super) fn new(connection: &Arc<Connection>, usage: Usage) -> Self {
        Self { connection: Arc::clone(connection), usage, amount: 0 }
    }

    /// Returns the amount of the whole connection if this part had `amount`.
    pub(super) fn total_with(&self, amount: usize) -> usize {
        self.connection.used(self.usage).wrapping_sub(self.amount).saturating_add(amount)
    }

    /// Sets this part. Returns the amount of the whole connection.
    pub(super) fn set(&mut self, amount: usize) -> usize {
        // A decrease is added as a number that wraps.
        let more = amount.wrapping_sub(std::mem::replace(&mut self.amount, amount));
        let used = &self.connection.used[self.usage as usize];
        used.fetch_add(more, Ordering::Relaxed).wrapping_add(more)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Names of one stream or poll, as a part of those of its connection.
#[derive(Debug)]
pub(super) struct NameShare {
    names: Charge,
    bytes: Charge,
}

impl NameShare {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        let [names, bytes] = [Usage::Names, Usage::NameBytes].map(|usage| Charge::new(connection, usage));
        Self { names, bytes }
    }

    /// Sets the number of names and the bytes of their text. `Err` if this part grew, and the connection has
    /// too many.
    pub(super) fn set(
        &mut self,
        names: usize,
        bytes: usize,
        rules: &SessionConfig,
    ) -> Result<(), SessionError> {
        /// Bytes that a name takes beside its text.
        const NAME: usize = 64;
        let grew = names > self.names.amount;
        let all = self.names.set(names);
        self.bytes.set(names * NAME + bytes);
        if grew { rules.check_connection(all) } else { Ok(()) }
    }
}

#[derive(Debug, Default)]
pub(super) struct FirstAnswer {
    state: AtomicU8,
    /// Place in the queue, from the first wait until an unused turn.
    place: Mutex<Option<Instant>>,
    /// Whether the turn was unused through no fault of the peer.
    keeps_place: AtomicBool,
}

/// No stream waits for its turn.
const IDLE: u8 = 0;
/// A stream has something to send and waits for a permit.
const DUE: u8 = 1;
/// The connection is being polled with that permit.
const TURN: u8 = 2;
/// A response was sent.
const GIVEN: u8 = 3;

impl FirstAnswer {
    fn state(&self) -> u8 {
        // All users run in the task of the connection.
        self.state.load(Ordering::Relaxed)
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }

    /// Whether the answer must wait for its turn if others wait for a permit.
    pub(super) fn needs_turn(&self) -> bool {
        self.state() == IDLE
    }

    pub(super) fn is_due(&self) -> bool {
        self.state() == DUE
    }

    pub(super) fn is_turn(&self) -> bool {
        self.state() == TURN
    }

    /// Waits for a turn, in this place unless it has kept one.
    pub(super) fn request_turn(&self, place: Instant) {
        self.place.lock().get_or_insert(place);
        self.set(DUE);
    }

    /// Place in the queue, if a stream waits for its turn.
    pub(super) fn place(&self) -> Option<Instant> {
        if self.is_due() { *self.place.lock() } else { None }
    }

    /// Gives the turn to all streams of the connection, until [`end_turn`](Self::end_turn).
    fn begin_turn(&self) {
        self.set(TURN);
    }

    /// Keeps the place after this turn without a response: the relay refused a stream or put it off.
    pub(super) fn keep_place(&self) {
        self.keeps_place.store(self.is_turn(), Ordering::Relaxed);
    }

    /// Ends the turn. If it was unused, the next stream asks anew.
    pub(super) fn end_turn(&self) {
        if self.is_turn() {
            if !self.keeps_place.swap(false, Ordering::Relaxed) {
                *self.place.lock() = None;
            }
            self.set(IDLE);
        }
    }

    pub(super) fn give(&self) {
        self.set(GIVEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_refused_keeps_its_place_and_one_that_was_answered_has_none() {
        let (answer, now) = (FirstAnswer::default(), Instant::now());
        answer.request_turn(now);
        let place = answer.place();
        assert!(place.is_some());
        answer.begin_turn();
        answer.keep_place();
        answer.end_turn();
        assert!(answer.needs_turn() && answer.place().is_none());
        answer.request_turn(now + Duration::from_secs(9));
        assert_eq!(answer.place(), place);
        answer.begin_turn();
        answer.give();
        answer.end_turn();
        assert!(!answer.needs_turn() && answer.place().is_none());
    }

    #[test]
    fn a_turn_that_is_not_used_ends_the_place() {
        let (answer, now) = (FirstAnswer::default(), Instant::now());
        answer.request_turn(now);
        let place = answer.place();
        answer.begin_turn();
        answer.end_turn();
        answer.request_turn(now + Duration::from_secs(9));
        assert!(answer.place() > place);
    }
}
