//! Connections to a server, shared by the clients of all node groups.
//!
//! Owns which connections stand, how many clients each carries, the attempts to connect with their back-off, and the limits on
//! log lines that would be repeated for each group. Knows neither streams nor messages.
//!
//! All clients share one connection. A further one is opened only when the server allows too few streams on it: HTTP/2 would
//! queue the streams above `SETTINGS_MAX_CONCURRENT_STREAMS` until others end, and those of node groups do not end.
//!
//! Example: a server that allows 100 streams. Each client may need three, so a connection carries 33 clients, and the 34th
//! client opens a second connection.
//!
//! Invariants:
//! - One attempt to connect at a time, and one back-off, however many clients wait.
//! - Each client has room for all of its streams, so that no group waits for another one to end; but for a server that allows fewer
//!   than one client may need, of which the log tells.
//! - A client that waits for the next attempt takes room on a connection that stands as soon as there is any.
//! - A connection on which streams fail in a row takes no further clients, and ends with its last one: a server that fails them is
//!   dialled anew, as another one may answer there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http::Uri;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};

use super::checks::{Checks, Purpose, Streams};
use super::connection::Server;
use super::dial::{DialError, Dialed, Facts, Target, dial_from};
use super::pulse::Pulse;
use super::transfer::Transfers;
use super::wait::{now, sleep_until};
use super::{Backoff, LivenessTimes, ServerId};
use crate::RelayIdentity;
use crate::cache::Protocol;
use crate::telemetry::LogThrottle;
use crate::tls::client::ClientTls;
use crate::tls::reload::Reloaded;

/// Streams that one client may have open: the primary and the secondary one, and a call of the health service.
const STREAMS: u32 = 3;

/// Streams that fail in a row on a connection, without an answer to any client, before no further client is put on it.
const FAILURES: u32 = 3;

/// Server, and how to connect to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Server, from [`Transport::endpoint`](super::Transport::endpoint).
    pub endpoint: Endpoint,
    /// TLS settings of an `https://` endpoint. Each connection uses those in force when it begins.
    pub tls: Option<Reloaded<ClientTls>>,
    /// Wait between attempts.
    pub backoff: Backoff,
    /// Largest accepted response in bytes (R-Up-23).
    pub max_message: usize,
    /// Protocol of the server; `None`: delta, and state of the world on connections on which delta is not implemented.
    pub protocol: Option<Protocol>,
    /// Name of this relay, which is told to the server.
    pub identity: RelayIdentity,
    /// When a server that leaves something unanswered is asked whether it is there.
    pub liveness: LivenessTimes,
}

impl Options {
    /// Returns the defaults for a server, in cleartext.
    pub fn new(endpoint: Endpoint) -> Self {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        let identity = RelayIdentity::default();
        let liveness = LivenessTimes::default();
        Self { endpoint, tls: None, backoff, max_message: 256 << 20, protocol: None, identity, liveness }
    }
}

/// Connections to one server.
#[derive(Debug)]
pub struct Link {
    options: Options,
    server: ServerId,
    state: Mutex<State>,
    /// Held by the client that connects.
    dialing: tokio::sync::Mutex<()>,
    /// Notified when there may be room on a connection that stands, and when the back-off begins anew.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    open: Vec<Weak<Connection>>,
    backoff: Backoff,
    /// Time of the next attempt, while the last one failed or nothing has been answered on a connection since.
    retry_at: Option<Instant>,
    /// Number of the address to which the newest connection leads, and of that with which the next attempt begins.
    address: usize,
    next_address: usize,
    /// Whether the last attempt failed.
    failed: bool,
    /// Number of attempts that failed, and the error of the last one.
    failures: u64,
    error: String,
    /// Whether the server has answered any client since the start.
    has_answered: bool,
    /// Whether resources that an earlier process left are served.
    has_restored: bool,
    /// Protocol in which the server answered last.
    answered_in: Option<Protocol>,
    lines: LogThrottle<Line>,
    /// Number of clients that lost the connection, or could not have one, and have none yet.
    away: usize,
    /// Whether the server has answered any client since the last complaint about the connection that was logged.
    answers_since: bool,
    checks: Checks,
}

#[derive(Debug)]
struct Connection {
    channel: Channel,
    facts: Arc<Facts>,
    transfers: Transfers,
    pulse: Arc<Pulse>,
    /// Streams of clients that failed since the last answer.
    failures: AtomicU32,
    /// Whether the server has other addresses.
    has_others: bool,
}

impl Connection {
    /// Whether further clients may be put on it. A client that asks for nothing keeps a connection on which all others fail.
    fn takes_clients(&self) -> bool {
        !self.facts.is_closed() && self.failures.load(Ordering::Relaxed) < FAILURES
    }

    /// Number of clients that it carries.
    fn capacity(&self) -> usize {
        self.facts.max_streams().map_or(usize::MAX, |streams| (streams / STREAMS).max(1) as usize)
    }
}

/// Whether anybody uses a connection, and it is not lost.
fn is_open(connection: &Weak<Connection>) -> bool {
    connection.upgrade().is_some_and(|connection| !connection.facts.is_closed())
}

/// Share of a client in a connection.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Arc<Connection>,
    /// Dropped after the share, as fields are in their order: the client that waits finds the room.
    notice: Notice,
}

/// Tells the client that waits for a connection when it is dropped.
#[derive(Debug)]
struct Notice(Arc<Notify>);

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Lease {
    /// The server, with the bounds of its responses.
    pub(super) fn server(&self, options: &Options) -> Server {
        let Connection { channel, transfers, pulse, .. } = &*self.connection;
        Server {
            channel: channel.clone(),
            max_message: options.max_message,
            transfers: transfers.clone(),
            pulse: Arc::clone(pulse),
            identity: options.identity.clone(),
        }
    }

    /// Whether the connection is lost, or takes no more streams.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.facts.is_closed()
    }

    /// Notes an answer of the server. A connection that took no more clients because all failed has room again.
    pub(super) fn answered(&self) {
        if self.connection.failures.swap(0, Ordering::Relaxed) >= FAILURES {
            self.notice.0.notify_one();
        }
    }

    /// Whether the server allows calls beside the streams of a client, of which the watch of a relay may be one more.
    pub(super) fn has_room_for_calls(&self, is_watched: bool) -> bool {
        let needed = STREAMS + u32::from(is_watched);
        self.connection.facts.max_streams().is_none_or(|streams| streams >= needed)
    }

    /// Whether the server has other addresses than that of the connection.
    pub(super) fn has_other_addresses(&self) -> bool {
        self.connection.has_others
    }

    /// Notes that the server stays silent on the connection: no further client is put on it.
    pub(super) fn silent(&self) {
        self.connection.failures.store(FAILURES, Ordering::Relaxed);
    }

    /// Notes that the server failed the streams of the client without an answer.
    pub(super) fn failed(&self) {
        self.connection.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// Connection that a client got.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) lease: Lease,
    /// Whether it was opened for this client.
    pub(super) is_new: bool,
}

/// Failed attempt to connect.
#[derive(Debug)]
pub(super) struct UnreachableError {
    pub(super) reason: String,
    /// Wait before the next attempt, for the client that made this one; other clients share its outcome.
    pub(super) retry_in: Option<Duration>,
}

/// Kind of log line that all clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Line {
    /// Loss of a connection, or a failed attempt to connect.
    Complaint,
    /// End of a stream by an error, on a connection that stands.
    Stream,
    /// Orderly end of a stream.
    Ending,
    /// Choice of the client whose node is shown.
    Node,
    /// End of a secondary stream.
    Secondary,
    /// Subscriptions without an answer.
    Silence,
    /// Answer after such a silence.
    Answer,
    /// Connection beside others, because the server limits the streams of each.
    Crowded,
    /// Connection with too few streams for a client.
    Narrow,
    /// Word of a relay upstream on its own control plane.
    Watched,
    /// Relay upstream that is asked by state of the world.
    RelayBySotw,
    /// Change to the next server, because this one does not answer.
    Failover,
    /// Change from this server to a more preferred one.
    Failback,
}

impl Link {
    /// Creates a link that connects when a client asks for it.
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
            has_answered: false,
            has_restored: false,
            answered_in: None,
            lines: LogThrottle::default(),
            away: 0,
            answers_since: false,
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

    /// Number of connections that stand.
    pub fn connections(&self) -> usize {
        self.state.lock().open.iter().filter(|connection| connection.strong_count() > 0).count()
    }

    /// Waits for a share in a connection, and connects if there is no room. Cancel-safe: another client that waits goes on.
    pub(super) async fn connect(&self) -> Result<Connected, UnreachableError> {
        let failures = self.state.lock().failures;
        if let Some(lease) = self.share() {
            return Ok(Connected { lease, is_new: false });
        }
        let _turn = self.dialing.lock().await;
        if let Some(lease) = self.share() {
            return Ok(Connected { lease, is_new: false });
        }
        loop {
            let retry_at = {
                let state = self.state.lock();
                if state.failures != failures {
                    return Err(UnreachableError { reason: state.error.clone(), retry_in: None });
                }
                // Beside a connection that stands and is full, a further one is no repeated attempt.
                state.retry_at.filter(|_| state.failed || state.open.is_empty())
            };
            if retry_at.is_none() {
                break;
            }
            tokio::select! {
                () = sleep_until(retry_at) => break,
                () = self.changed.notified() => {}
            }
            if let Some(lease) = self.share() {
                return Ok(Connected { lease, is_new: false });
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
                let (transfers, failures) = (Transfers::default(), AtomicU32::new(0));
                let pulse = Arc::default();
                let connection =
                    Arc::new(Connection { channel, facts, transfers, pulse, failures, has_others });
                // Taken back by the first answer: a server that fails all streams is not dialled by each group in turn.
                let wait = state.backoff.next(&mut rand::rng());
                state.retry_at = Some(now() + wait);
                state.failed = false;
                state.open.retain(is_open);
                state.open.push(Arc::downgrade(&connection));
                let connections = state.open.len();
                drop(state);
                if let Some(max_streams) = connection.facts.max_streams() {
                    self.report_limit(max_streams, connections);
                }
                Ok(Connected { lease: self.lease(connection), is_new: true })
            }
            Err(DialError { why: reason, tried }) => {
                state.next_address = first.wrapping_add(tried);
                let wait = state.backoff.next(&mut rand::rng());
                state.retry_at = Some(now() + wait);
                state.failures += 1;
                state.failed = true;
                state.error.clone_from(&reason);
                Err(UnreachableError { reason, retry_in: Some(wait) })
            }
        }
    }

    /// Logs a limit of the server on the streams of a connection, where clients notice it.
    fn report_limit(&self, max_streams: u32, connections: usize) {
        let uri = self.uri();
        if max_streams < STREAMS
            && let Some(suppressed) = self.say(Line::Narrow)
        {
            tracing::warn!(
                %uri,
                max_streams,
                expected = STREAMS,
                suppressed,
                "the control plane allows fewer streams on a connection than a node group may need: types that are wanted both as wildcard and by name may wait for ever; raise its limit of concurrent streams (SETTINGS_MAX_CONCURRENT_STREAMS)"
            );
        }
        if connections > 1
            && let Some(suppressed) = self.say(Line::Crowded)
        {
            tracing::info!(
                %uri,
                max_streams,
                connections,
                suppressed,
                "the control plane limits the streams of a connection; node groups take further connections"
            );
        }
    }

    /// Takes a share in a connection that stands and has room.
    fn share(&self) -> Option<Lease> {
        let mut state = self.state.lock();
        state.open.retain(is_open);
        let open = state.open.iter().filter_map(Weak::upgrade);
        // The share that is looked at counts as one.
        let has_room =
            |connection: &Arc<Connection>| Arc::strong_count(connection) - 1 < connection.capacity();
        open.filter(|connection| connection.takes_clients())
            .find(has_room)
            .map(|connection| self.lease(connection))
    }

    /// Notes that the server answers: only that begins the back-off anew.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        (state.has_answered, state.answers_since) = (true, true);
        state.next_address = state.address;
        state.backoff.reset();
        // A further connection that the server refused is not tried again because one that stands answers.
        if !state.failed {
            state.retry_at = None;
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Purpose of a health check, if one is of use; see [`Checks`].
    pub(super) fn purpose_of_check(&self, streams: Streams, now: Instant) -> Option<Purpose> {
        self.state.lock().checks.purpose(streams, now)
    }

    /// Notes that the trial of health checks ended with its connection.
    pub(super) fn trial_of_checks_lost(&self) {
        self.state.lock().checks.trial_lost();
    }

    /// Notes that a health check was answered.
    pub(super) fn check_answered(&self) {
        self.state.lock().checks.answered();
    }

    /// Notes that a connection was given up because a health check stayed unanswered.
    pub(super) fn check_stayed_unanswered(&self) {
        self.state.lock().checks.gave_up();
    }

    /// Notes that a server that answered its streams left a health check unanswered.
    pub(super) fn trial_of_checks_failed(&self, now: Instant) {
        self.state.lock().checks.failed(now);
    }

    /// Notes that the server still answers its streams. Returns whether that is news.
    pub(super) fn checks_are_mute(&self, now: Instant) -> bool {
        self.state.lock().checks.are_mute(now)
    }

    /// Notes the protocol in which the server answers. Returns the one before, if it is another one.
    pub(super) fn answered_in(&self, protocol: Protocol) -> Option<Option<Protocol>> {
        let before = self.state.lock().answered_in.replace(protocol);
        (before != Some(protocol)).then_some(before)
    }

    /// Whether the server last answered in this protocol.
    pub(super) fn has_answered_in(&self, protocol: Protocol) -> bool {
        self.state.lock().answered_in == Some(protocol)
    }

    /// Notes that resources of an earlier process are served.
    pub(super) fn restored(&self) {
        self.state.lock().has_restored = true;
    }

    /// Whether the server has answered any client since the start.
    pub(super) fn has_answered(&self) -> bool {
        self.state.lock().has_answered
    }

    /// Whether there may be something to serve: an answer to this process, or what an earlier one left.
    pub(super) fn has_content(&self) -> bool {
        let state = self.state.lock();
        state.has_answered || state.has_restored
    }

    /// Returns the number of lines suppressed since the last one if a line may be logged now.
    pub(super) fn say(&self, line: Line) -> Option<u64> {
        let mut state = self.state.lock();
        let said = state.lines.say(line, now());
        if said.is_some() && matches!(line, Line::Complaint) {
            state.answers_since = false;
        }
        said
    }

    /// Ends an episode of lines. Returns the number of lines suppressed since the last one; `None` if no line of it was logged.
    pub(super) fn over(&self, line: Line) -> Option<u64> {
        self.state.lock().lines.over(line)
    }

    /// Notes that a client has no connection, by a fault.
    pub(super) fn lose(&self) {
        self.state.lock().away += 1;
    }

    /// Notes that a client that had none has a connection, or waits for none here any more.
    pub(super) fn regain(&self) {
        let mut state = self.state.lock();
        state.away = state.away.saturating_sub(1);
    }

    /// Whether a complaint about the connection was logged, and all clients are connected and the server answers since. Then returns
    /// the number of lines suppressed, once.
    ///
    /// A client that is connected and never answered holds nothing up: the control plane may not know its node.
    pub(super) fn recovered(&self) -> Option<u64> {
        let state = self.state.lock();
        let is_back = state.away == 0 && state.answers_since;
        if is_back { state.lines.over(Line::Complaint) } else { None }
    }
}
