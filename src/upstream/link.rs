//! Connections to a server, shared by the clients of all node groups.
//!
//! Owns the open connections, their clients, the attempts with their back-off, and the limits on log lines
//! that groups would repeat. Knows neither streams nor messages.
//!
//! All clients share one connection. Another is opened only when the server allows too few streams: HTTP/2
//! queues streams above `SETTINGS_MAX_CONCURRENT_STREAMS` until others end, and streams of node groups do not
//! end.
//!
//! Example: a server allows 100 streams. Each client may need three, so a connection carries 33 clients. The
//! 34th client opens a second connection.
//!
//! Invariants:
//! - There is one attempt to connect at a time, and one back-off, for all clients.
//! - Each client has room for all of its streams, so that no group waits for another. Servers that allow too
//!   few for one client are the exception.
//! - A waiting client takes room on an open connection as soon as there is any.
//! - A connection whose streams fail in a row takes no further clients, and ends with its last one. The
//!   server is dialled anew, because another replica may answer.
//!
//! [`Servers`] are the links in their order of preference, shared by the clients of all node groups.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan_transport::dial::{Dialed, Facts, Target, Unreached, dial_from};
use deltafan_transport::grpc::RELAY_HEADER;
use deltafan_transport::stream::OpenStream;
use deltafan_transport::transfer::Transfers;
use http::{HeaderName, HeaderValue, Uri};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};

use super::liveness::{Checks, LivenessTimes, Pulse};
use super::wait::{now, sleep_until};
use super::{Backoff, FailoverTimes, ServerId};
use crate::RelayIdentity;
use crate::cache::Protocol;
use crate::telemetry::LogThrottle;
use crate::tls::client::ClientTls;
use crate::tls::reload::Reloaded;

/// Streams of one client: primary, secondary, and a call of the health service.
const STREAMS: u32 = 3;

/// Failed streams in a row, without an answer to any client, after which a connection takes no client.
const FAILURES: u32 = 3;

/// Server, and how to connect to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Server, from [`Transport::endpoint`](super::Transport::endpoint).
    pub endpoint: Endpoint,
    /// TLS settings of an `https://` endpoint. Each connection uses those in force at its start.
    pub tls: Option<Reloaded<ClientTls>>,
    pub backoff: Backoff,
    /// Largest accepted response in bytes (R-Up-23).
    pub max_message: usize,
    /// Protocol of the server; `None` detects it per connection: delta first, else state of the world.
    pub protocol: Option<Protocol>,
    /// Name of this relay, sent to the server.
    pub identity: RelayIdentity,
    /// Times of health checks while something is unanswered.
    pub liveness: LivenessTimes,
}

#[derive(Debug)]
pub struct Link {
    options: Options,
    server: ServerId,
    state: Mutex<State>,
    /// Held by the client that connects.
    dialing: tokio::sync::Mutex<()>,
    /// Notified when a connection may have room, and when the back-off restarts.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    open: Vec<Weak<Connection>>,
    backoff: Backoff,
    /// Time of the next attempt, while the last one failed or its connection has no answer yet.
    retry_at: Option<Instant>,
    /// Numbers of the newest connection's address, and of the first address of the next attempt.
    address: usize,
    next_address: usize,
    failed: bool,
    /// Number of failed attempts, and the last error.
    failures: u64,
    error: String,
    /// Protocol in which it last answered a client.
    answered_in: Option<Protocol>,
    lines: LogThrottle<Line>,
    checks: Checks,
}

#[derive(Debug)]
struct Connection {
    server: Server,
    facts: Arc<Facts>,
    /// Failed streams since the last answer.
    failures: AtomicU32,
    has_others: bool,
}

impl Connection {
    /// Whether it takes further clients. An idle client can keep a connection on which all others fail.
    fn takes_clients(&self) -> bool {
        !self.facts.is_closed() && self.failures.load(Ordering::Relaxed) < FAILURES
    }

    fn capacity(&self) -> usize {
        self.facts.max_streams().map_or(usize::MAX, |streams| (streams / STREAMS).max(1) as usize)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) channel: Channel,
    /// Largest accepted response in bytes.
    pub(super) max_message: usize,
    pub(super) transfers: Transfers,
    pub(super) pulse: Arc<Pulse>,
    /// Name by which this relay recognizes itself as its server.
    pub(super) identity: RelayIdentity,
}

impl Server {
    pub(super) fn open(&self, protocol: Protocol) -> OpenStream {
        self.stream(protocol, Some(Vec::new()))
    }

    /// Creates a stream that opens with its first request.
    pub(super) fn open_when_asked(&self, protocol: Protocol) -> OpenStream {
        self.stream(protocol, None)
    }

    fn stream(&self, protocol: Protocol, first: Option<Vec<Bytes>>) -> OpenStream {
        let Self { channel, max_message, transfers, identity, .. } = self;
        // A `node.id` with control characters is no header: such a relay is not recognized.
        let name = HeaderValue::from_bytes(identity.as_str().as_bytes()).ok();
        let headers = name.into_iter().map(|name| (HeaderName::from_static(RELAY_HEADER), name)).collect();
        OpenStream::open(channel.clone(), protocol, headers, first, *max_message, transfers)
    }
}

fn is_open(connection: &Weak<Connection>) -> bool {
    connection.upgrade().is_some_and(|connection| !connection.facts.is_closed())
}

/// Share of a client in a connection.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Arc<Connection>,
    /// Dropped after the share, in field order, so that the waiting client finds the room.
    notice: Notice,
}

/// Notifies the waiting client on drop.
#[derive(Debug)]
struct Notice(Arc<Notify>);

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Lease {
    pub(super) fn server(&self) -> Server {
        self.connection.server.clone()
    }

    /// Whether the connection is lost, or takes no more streams.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.facts.is_closed()
    }

    /// Notes an answer. A connection whose streams all failed has room again.
    pub(super) fn answered(&self) {
        if self.connection.failures.swap(0, Ordering::Relaxed) >= FAILURES {
            self.notice.0.notify_one();
        }
    }

    /// Whether the server allows calls beside a client's streams, including a relay watch.
    pub(super) fn has_room_for_calls(&self, is_watched: bool) -> bool {
        let needed = STREAMS + u32::from(is_watched);
        self.connection.facts.max_streams().is_none_or(|streams| streams >= needed)
    }

    pub(super) fn has_other_addresses(&self) -> bool {
        self.connection.has_others
    }

    /// Notes that the server stays silent: the connection takes no further client.
    pub(super) fn silent(&self) {
        self.connection.failures.store(FAILURES, Ordering::Relaxed);
    }

    /// Notes that the server failed the client's streams without an answer.
    pub(super) fn failed(&self) {
        self.connection.failures.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Connected {
    pub(super) lease: Lease,
    /// Whether it was opened for this client.
    pub(super) is_new: bool,
}

#[derive(Debug)]
pub(super) struct UnreachableError {
    pub(super) reason: String,
    /// Wait before the next attempt. Only the client that made this attempt has one.
    pub(super) retry_in: Option<Duration>,
}

/// Kind of log line that all clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Line {
    /// Loss of a connection, or a failed attempt to connect.
    Complaint,
    /// Error of a stream on an open connection.
    Stream,
    Ending,
    Secondary,
    /// Subscriptions without an answer.
    Silence,
    /// Answer after such a silence.
    Answer,
    /// Report of a relay upstream on its own control plane.
    Watched,
    /// Relay upstream that is asked by state of the world.
    RelayBySotw,
    /// Change to the next server, because this one does not answer.
    Failover,
    /// Return from this server to a more preferred one.
    Failback,
}

impl Link {
    pub fn new(options: Options) -> Self {
        let state = State {
            open: Vec::new(),
            backoff: options.backoff,
            retry_at: None,
            address: 0,
            next_address: 0,
            failed: false,
            failures: 0,
            error: String::new(),
            answered_in: None,
            lines: LogThrottle::default(),
            checks: Checks::default(),
        };
        let server = ServerId::from(options.endpoint.uri().to_string().trim_end_matches('/'));
        let (dialing, changed) = Default::default();
        Self { options, server, state: Mutex::new(state), dialing, changed }
    }

    pub(super) const fn options(&self) -> &Options {
        &self.options
    }

    pub(super) const fn server(&self) -> &ServerId {
        &self.server
    }

    pub(super) fn uri(&self) -> &Uri {
        self.options.endpoint.uri()
    }

    pub fn connections(&self) -> usize {
        self.state.lock().open.iter().filter(|connection| connection.strong_count() > 0).count()
    }

    /// Waits for a share in a connection, and connects if there is no room. Cancel-safe: another waiting
    /// client goes on.
    pub(super) async fn connect(&self) -> Result<Connected, UnreachableError> {
        let failures = self.state.lock().failures;
        if let Some(shared) = self.share() {
            return Ok(shared);
        }
        let _turn = self.dialing.lock().await;
        if let Some(shared) = self.share() {
            return Ok(shared);
        }
        loop {
            let retry_at = {
                let state = self.state.lock();
                if state.failures != failures {
                    return Err(UnreachableError { reason: state.error.clone(), retry_in: None });
                }
                // A further connection beside a full one is no repeated attempt.
                state.retry_at.filter(|_| state.failed || state.open.is_empty())
            };
            if retry_at.is_none() {
                break;
            }
            tokio::select! {
                () = sleep_until(retry_at) => break,
                () = self.changed.notified() => {}
            }
            if let Some(shared) = self.share() {
                return Ok(shared);
            }
        }
        self.dial().await
    }

    fn lease(&self, connection: Arc<Connection>) -> Lease {
        Lease { connection, notice: Notice(Arc::clone(&self.changed)) }
    }

    async fn dial(&self) -> Result<Connected, UnreachableError> {
        let target = self.options.tls.as_ref().map_or(Target::Cleartext, |tls| Target::Tls(tls.load()));
        let first = self.state.lock().next_address;
        let dialed = dial_from(self.options.endpoint.clone(), target, first).await;
        let mut state = self.state.lock();
        match dialed {
            Ok(Dialed { channel, facts, address, has_others }) => {
                // Unless it answers, another one is tried next.
                (state.address, state.next_address) = (address, address + 1);
                let server = Server {
                    channel,
                    max_message: self.options.max_message,
                    transfers: Transfers::default(),
                    pulse: Arc::default(),
                    identity: self.options.identity.clone(),
                };
                let connection =
                    Arc::new(Connection { server, facts, failures: AtomicU32::new(0), has_others });
                // Taken back by the first answer, so that groups do not dial a failing server in turn.
                let wait = state.backoff.next(&mut rand::rng());
                state.retry_at = Some(now() + wait);
                state.failed = false;
                state.open.retain(is_open);
                state.open.push(Arc::downgrade(&connection));
                drop(state);
                Ok(Connected { lease: self.lease(connection), is_new: true })
            }
            Err(Unreached { why: reason, tried, is_refused }) => {
                state.next_address = first.wrapping_add(tried);
                let (backoff, rng) = (&mut state.backoff, &mut rand::rng());
                let wait = if is_refused { backoff.next_refused(rng) } else { backoff.next(rng) };
                state.retry_at = Some(now() + wait);
                state.failures += 1;
                state.failed = true;
                state.error.clone_from(&reason);
                Err(UnreachableError { reason, retry_in: Some(wait) })
            }
        }
    }

    /// Takes a share in an open connection with room.
    fn share(&self) -> Option<Connected> {
        let mut state = self.state.lock();
        state.open.retain(is_open);
        let open = state.open.iter().filter_map(Weak::upgrade);
        // The share under inspection counts as one.
        let has_room =
            |connection: &Arc<Connection>| Arc::strong_count(connection) - 1 < connection.capacity();
        open.filter(|connection| connection.takes_clients())
            .find(has_room)
            .map(|connection| Connected { lease: self.lease(connection), is_new: false })
    }

    /// Notes an answer, which alone restarts the back-off.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        state.next_address = state.address;
        state.backoff.reset();
        // An answer elsewhere does not retry a further connection that the server refused.
        if !state.failed {
            state.retry_at = None;
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Judgement of the server's health checks, locked.
    pub(super) fn checks(&self) -> MappedMutexGuard<'_, Checks> {
        MutexGuard::map(self.state.lock(), |state| &mut state.checks)
    }

    /// Notes the protocol of an answer. Returns whether it is another one than before.
    pub(super) fn answered_in(&self, protocol: Protocol) -> bool {
        self.state.lock().answered_in.replace(protocol) != Some(protocol)
    }

    pub(super) fn has_answered_in(&self, protocol: Protocol) -> bool {
        self.state.lock().answered_in == Some(protocol)
    }

    fn has_answered(&self) -> bool {
        self.state.lock().answered_in.is_some()
    }

    /// Returns the number of suppressed lines if a line may be logged now.
    pub(super) fn allow(&self, line: Line) -> Option<u64> {
        self.state.lock().lines.allow(line, now())
    }

    /// Ends an episode of lines. Returns the number of suppressed lines; `None` if none was logged.
    pub(super) fn over(&self, line: Line) -> Option<u64> {
        self.state.lock().lines.over(line)
    }
}

/// Servers in their order of preference, and the times of a change.
#[derive(Debug)]
pub struct Servers {
    links: Vec<Arc<Link>>,
    times: FailoverTimes,
}

impl Servers {
    /// Creates the links to a server and its substitutes.
    ///
    /// With several, no wait between attempts exceeds `times.after`, so that a returned server is noticed in
    /// that time.
    pub fn new(first: Options, others: impl IntoIterator<Item = Options>, times: FailoverTimes) -> Self {
        let mut options = vec![first];
        options.extend(others);
        let is_choice = options.len() > 1;
        let link = |mut options: Options| {
            if is_choice {
                options.backoff = options.backoff.at_most(times.after);
            }
            Arc::new(Link::new(options))
        };
        Self { links: options.into_iter().map(link).collect(), times }
    }

    pub(super) fn count(&self) -> usize {
        self.links.len()
    }

    pub(super) const fn times(&self) -> FailoverTimes {
        self.times
    }

    /// Link to a server; the first one if there are fewer.
    pub(super) fn link(&self, server: usize) -> &Arc<Link> {
        self.links.get(server).unwrap_or(&self.links[0])
    }

    /// Identity of the first one if there are several.
    pub fn first(&self) -> Option<ServerId> {
        (self.count() > 1).then(|| self.links[0].server().clone())
    }

    /// Whether any server has answered any client since the start.
    pub fn have_answered(&self) -> bool {
        self.links.iter().any(|link| link.has_answered())
    }

    pub fn connections(&self) -> usize {
        self.links.iter().map(|link| link.connections()).sum()
    }
}
