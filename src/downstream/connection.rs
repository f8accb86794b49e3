//! One connection: its state, its peer, and what it costs.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::identity::Peer;
use crate::pool::Tenant;
use crate::tls::reload::Reloaded;
use crate::tls::server::{ServerTls, Shown};

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// It lives.
    Open,
    /// It takes no new streams, and those it has end.
    Closing,
    /// It is dropped as it is: it does not close.
    Aborted,
}

const STATES: [ConnectionState; 3] =
    [ConnectionState::Open, ConnectionState::Closing, ConnectionState::Aborted];

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    state: AtomicU8,
    opened: Instant,
    /// When it began to close.
    closing_since: Mutex<Option<Instant>>,
    task: AtomicWaker,
    /// Who is at the other end, once that is known.
    peer: OnceLock<Arc<Peer>>,
    /// Tenant of the pools of all peers, made when the connection first takes anything from one.
    tenant: OnceLock<Tenant>,
    /// No other connection has or had this number.
    number: u64,
    /// The certificates that let it in, if any did. Boxed: most connections have none.
    credentials: OnceLock<Box<Credentials>>,
    /// What its requests take that are not whole, in bytes.
    buffered: AtomicUsize,
    /// What the versions take that its clients say they hold, in bytes.
    versions: AtomicUsize,
    /// Names that its streams ask for.
    names: AtomicUsize,
    /// The text of these names, in bytes.
    name_bytes: AtomicUsize,
    /// Bytes that HTTP/2 keeps for it.
    held: AtomicUsize,
    /// Bytes of messages that are being sent and are too small for [`Unsent`].
    sending: AtomicUsize,
    /// Its streams are to be looked at, though nothing woke them.
    recheck: AtomicBool,
    /// A request of it was let in.
    served: AtomicBool,
}

/// The certificates that let a connection in, and the listener's side that judged them.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) shown: Shown,
    pub(super) judge: Reloaded<ServerTls>,
}

impl Connection {
    pub(super) fn new(number: u64, state: ConnectionState, now: Instant) -> Self {
        Self {
            state: AtomicU8::new(state as u8),
            opened: now,
            closing_since: Mutex::new((state == ConnectionState::Closing).then_some(now)),
            task: AtomicWaker::new(),
            peer: OnceLock::new(),
            tenant: OnceLock::new(),
            number,
            credentials: OnceLock::new(),
            buffered: AtomicUsize::new(0),
            versions: AtomicUsize::new(0),
            names: AtomicUsize::new(0),
            name_bytes: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            sending: AtomicUsize::new(0),
            recheck: AtomicBool::new(false),
            served: AtomicBool::new(false),
        }
    }

    pub(super) const fn opened(&self) -> Instant {
        self.opened
    }

    /// Says who is at the other end; once.
    pub(super) fn set_peer(&self, peer: Arc<Peer>) {
        let is_first = self.peer.set(peer).is_ok();
        debug_assert!(is_first, "a connection has one peer");
    }

    /// Notes what let it in; once: a connection has one handshake.
    pub(super) fn set_credentials(&self, credentials: Credentials) -> &Credentials {
        self.credentials.get_or_init(|| Box::new(credentials))
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.get().map(|credentials| &**credentials)
    }

    /// Has its streams looked at once, though nothing woke them.
    pub(super) fn request_recheck(&self) {
        self.recheck.store(true, Ordering::Release);
        self.task.wake();
    }

    /// A request of it was let in, or it takes something all the same.
    pub(super) fn is_served(&self) -> bool {
        /// An idle connection takes less, and so does one on which somebody asks how the relay is.
        const LITTLE: usize = 64 << 10;
        self.served.load(Ordering::Relaxed) || self.cost() > LITTLE
    }

    pub(super) fn state(&self) -> ConnectionState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Whether its streams are to end.
    pub(super) fn is_closing(&self) -> bool {
        self.state() != ConnectionState::Open
    }

    /// Whom to wake when its state turns; register first, look after.
    pub(super) fn register(&self, task: &Waker) {
        self.task.register(task);
    }

    /// Returns when it is to close.
    pub(super) async fn until_closing(&self) {
        std::future::poll_fn(|cx| {
            self.register(cx.waker());
            if self.is_closing() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(super) const fn buffered(&self) -> &AtomicUsize {
        &self.buffered
    }

    pub(super) const fn versions(&self) -> &AtomicUsize {
        &self.versions
    }

    /// Who is at the other end, if that is known.
    pub(super) fn peer(&self) -> Option<&Arc<Peer>> {
        self.peer.get()
    }

    /// Tenant of the pools of all peers; `None` before the peer is known.
    pub(super) fn tenant(&self) -> Option<&Tenant> {
        let peer = self.peer.get()?;
        Some(self.tenant.get_or_init(|| Tenant::new(peer, self.number)))
    }

    /// A request is let in.
    pub(super) fn note_served(&self) {
        self.served.store(true, Ordering::Relaxed);
    }

    pub(super) const fn names(&self) -> &AtomicUsize {
        &self.names
    }

    pub(super) const fn name_bytes(&self) -> &AtomicUsize {
        &self.name_bytes
    }

    pub(super) const fn sending(&self) -> &AtomicUsize {
        &self.sending
    }

    pub(super) fn set_held(&self, bytes: usize) {
        self.held.store(bytes, Ordering::Relaxed);
    }

    /// No other connection has or had this number.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Rough number of bytes that are kept in memory for it, without large messages that it is sent.
    pub(super) fn cost(&self) -> usize {
        /// Bytes that a name takes beside its text.
        const NAME: usize = 64;
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let kept = [&self.buffered, &self.versions, &self.name_bytes, &self.held, &self.sending].map(of);
        kept.into_iter().fold(of(&self.names).saturating_mul(NAME), usize::saturating_add)
    }

    /// Whether its streams are to be looked at once, though nothing woke them.
    pub(super) fn take_recheck(&self) -> bool {
        self.recheck.load(Ordering::Relaxed) && self.recheck.swap(false, Ordering::AcqRel)
    }

    /// Turns its state, unless that is another by now.
    fn transition(&self, from: ConnectionState, to: ConnectionState) {
        let turned = self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
        if turned.is_ok() {
            self.task.wake();
        }
    }

    /// Drops it as it is.
    pub(super) fn abort(&self) {
        self.transition(ConnectionState::Open, ConnectionState::Aborted);
        self.transition(ConnectionState::Closing, ConnectionState::Aborted);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.state() == ConnectionState::Aborted
    }

    /// Lets it close, if it does not already.
    pub(super) fn close(&self, now: Instant) {
        if !self.is_closing() {
            *self.closing_since.lock() = Some(now);
            self.transition(ConnectionState::Open, ConnectionState::Closing);
        }
    }

    /// Gives it up if it has not closed for too long. What is not ours, as a watch of the health service, does not end by
    /// itself.
    pub(super) fn abort_if_stuck(&self, now: Instant, stall: Duration) {
        if self.closing_since.lock().is_some_and(|since| now >= since + stall) {
            self.transition(ConnectionState::Closing, ConnectionState::Aborted);
        }
    }
}
