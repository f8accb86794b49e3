//! State that all connections of all listeners share, and the entry of clients into their node groups.
//!
//! Owns the order of the checks at a client's first request: a peer that may not claim its node makes no group. Knows nothing
//! of a group's contents.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use tokio::sync::Semaphore;
use tower::util::BoxCloneSyncService;

use super::admission::Admission;
use super::connection::Connection;
use super::policy::Policy;
use super::request_memory::RequestMemory;
use super::response_cache::ResponseCache;
use super::scheduler::FairScheduler;
use super::unsent_memory::Unsent;
use crate::cache::Protocol;
use crate::fleet::Fleet;
use crate::groups::{GroupSeat, Groups, Newcomer};
use crate::grpc::RELAY_HEADER;
use crate::http2::RequestBody;
use crate::identity::{Peer, Source};
use crate::pool::{Account, Pool, Share};
use crate::proto::Node;
use crate::resource::wire::{self, Value};
use crate::subscription::{PollHistory, Session, SessionConfig, SessionError, observes};
use crate::upstream::Stay;
use crate::{RelayIdentity, telemetry};

/// Service of gRPC health.
pub type HealthService = BoxCloneSyncService<Request<RequestBody>, Response<tonic::body::Body>, Infallible>;

#[derive(Debug)]
pub struct ServerState {
    /// Name by which this relay recognizes its own requests (R-Relay-24).
    pub identity: RelayIdentity,
    pub groups: Arc<Groups>,
    /// Rules and limits for new connections. A connection keeps its own.
    pub policy: ArcSwap<Policy>,
    /// Limit on log lines about refused clients, by what is wrong with them.
    pub refusals: telemetry::LogThrottle<&'static str>,
    pub admission: Arc<Admission>,
    /// Memory of incomplete requests.
    pub buffered: Arc<RequestMemory>,
    /// Memory of the versions that clients claim to hold.
    pub versions: Arc<RequestMemory>,
    pub unsent: Arc<Unsent>,
    /// Connected clients, for operators.
    pub fleet: Arc<Fleet>,
    pub polls: PollState,
    pub health: HealthService,
    /// CPU time, shared between connections.
    pub scheduler: FairScheduler,
}

/// Basis of the answers to the requests of one connection.
#[derive(Clone, Debug)]
pub(super) struct Services {
    pub(super) server: Arc<ServerState>,
    pub(super) policy: Arc<Policy>,
    pub(super) rules: Arc<SessionConfig>,
    pub(super) connection: Arc<Connection>,
    pub(super) peer: Arc<Peer>,
}

impl ServerState {
    /// Whether a request with these headers comes from this relay.
    pub(super) fn is_itself(&self, headers: &HeaderMap) -> bool {
        headers.get(RELAY_HEADER).is_some_and(|name| name.as_bytes() == self.identity.as_str().as_bytes())
    }

    /// Counts and logs a request that the operator's rules deny. `node` reads the client's node ID.
    pub(super) fn note_denial<N: AsRef<str>>(
        &self,
        refusal: &SessionError,
        peer: &dyn Display,
        node: impl FnOnce() -> N,
    ) {
        let Some(denied) = refusal.denied else { return };
        telemetry::denied(denied.label());
        if let Some(suppressed) = self.refusals.allow(denied.label(), Instant::now()) {
            let node = node();
            let node = clip(node.as_ref());
            // A field, not the message: fields are escaped, and the client chose the type's name.
            let why = refusal.message.as_str();
            tracing::warn!(%peer, node, what = denied.label(), why, suppressed, "denied to a client");
        }
    }

    /// Counts and logs a client that sends gRPC over HTTP/1.
    pub(super) fn note_grpc_over_http1(&self, peer: &dyn Display) {
        telemetry::grpc_over_http1();
        if let Some(suppressed) = self.refusals.allow("http1", Instant::now()) {
            tracing::warn!(%peer, suppressed, "a client sends gRPC over HTTP/1, and is refused: {HTTP2_REMEDY}");
        }
    }

    /// Counts and logs a client that begins a TLS handshake at a cleartext listener.
    pub(super) fn note_tls_to_cleartext(&self, peer: &dyn Display) {
        telemetry::tls_handshake("to_cleartext");
        if let Some(suppressed) = self.refusals.allow("to_cleartext", Instant::now()) {
            tracing::warn!(%peer, suppressed, "a client speaks TLS to a listener without `tls`, and is refused: give the listener `tls`, or take `transport_socket` out of the client's cluster of this relay");
        }
    }
}

/// Remedy for the most common mistake in a bootstrap.
pub(super) const HTTP2_REMEDY: &str =
    "an Envoy needs `explicit_http_config: {http2_protocol_options: {}}` in its cluster of this relay";

/// Start of a text that a client chose, for the log.
fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}

#[derive(Debug)]
pub struct PollState {
    pub(super) responses: Arc<ResponseCache>,
    pub(super) memory: PollHistory,
    /// Waiting and arriving polls, by address.
    pub(super) parked: Arc<Pool>,
    pub(super) throttle: telemetry::LogThrottle,
    /// Permit to decode a large request: one at a time.
    pub(super) readers: Arc<Semaphore>,
}

impl PollState {
    pub fn new(responses: Arc<ResponseCache>) -> Self {
        Self {
            responses,
            memory: PollHistory::default(),
            parked: Arc::default(),
            throttle: telemetry::LogThrottle::default(),
            readers: Arc::new(Semaphore::new(1)),
        }
    }

    /// Takes a slot for a poll that waits or arrives slowly; `None` if its address has too many.
    pub(super) fn park(&self, source: Source, policy: &Policy) -> Option<Share> {
        self.parked.take_one(Account::Source(source), usize::MAX, policy.polls.max_polls_per_peer).ok()
    }
}

/// Takes a place in the group of a client. `stay` distinguishes a stream from one answer; `raw` is the node
/// as sent.
pub(super) fn enter(
    server: &ServerState,
    rules: &SessionConfig,
    peer: &Peer,
    connection: &Connection,
    (node, stay): (&Node, Stay),
    raw: impl FnOnce() -> Bytes,
) -> Result<GroupSeat, SessionError> {
    if server.groups.is_trivial() {
        return Ok(server.groups.own());
    }
    rules.check_node(node)?;
    let stay = if observes(node) { Stay::Visit } else { stay };
    let (certificate, tenant) = (peer.certificate.as_deref(), connection.tenant());
    let newcomer = Newcomer { node, certificate, tenant, stay };
    server.groups.enter(newcomer, raw)
}

/// Node of an encoded request, as sent. Parts of a repeated field are joined, as a decoder does.
fn raw_node(protocol: Protocol, message: &[u8]) -> Bytes {
    let mut node = BytesMut::new();
    for field in wire::fields(message).map_while(Result::ok) {
        if let Value::Bytes(bytes) = field.value
            && field.number == u32::from(protocol.node_field())
        {
            // Copied: a few bytes could keep a whole request alive.
            node.extend_from_slice(bytes);
        }
    }
    node.freeze()
}

/// Node ID that an encoded request claims; empty without one.
pub(super) fn claimed_node_id(protocol: Protocol, message: &[u8]) -> String {
    Node::decode(raw_node(protocol, message)).unwrap_or_default().id
}

/// Moves a stream to the group of its first node. Later nodes are ignored (R-EP-05).
pub(super) fn meet(
    seat: &mut GroupSeat,
    session: &mut Session,
    (server, peer, connection): (&ServerState, &Peer, &Connection),
    node: Option<&Node>,
    message: &[u8],
) -> Result<(), SessionError> {
    if let Some(node) = node.filter(|_| session.client().is_none() && !server.groups.is_trivial()) {
        let raw = || raw_node(session.protocol(), message);
        *seat = enter(server, session.rules(), peer, connection, (node, Stay::Stream), raw)?;
        session.enter(Arc::clone(seat.group().cache()));
    }
    Ok(())
}
