//! State that all connections of all listeners share.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderMap;
use tokio::sync::Semaphore;

use super::admission::Admission;
use super::policy::Policy;
use super::request_memory::RequestMemory;
use super::response_cache::ResponseCache;
use super::scheduler::FairScheduler;
use super::unsent_memory::Unsent;
use crate::RelayIdentity;
use crate::fleet::Fleet;
use crate::groups::Groups;
use crate::grpc::RELAY_HEADER;
use crate::identity::Source;
use crate::pool::{Account, Pool, Share};
use crate::subscription::{HiddenCounts, PollHistory, SessionError};
use crate::telemetry;

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
    /// CPU time, shared between connections.
    pub scheduler: FairScheduler,
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
        if let Some(suppressed) = self.refusals.say(denied.label(), Instant::now()) {
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
        if let Some(suppressed) = self.refusals.say("http1", Instant::now()) {
            tracing::warn!(%peer, suppressed, "a client sends gRPC over HTTP/1, and is refused: {HTTP2_REMEDY}");
        }
    }

    /// Counts and logs a client that begins a TLS handshake at a cleartext listener.
    pub(super) fn note_tls_to_cleartext(&self, peer: &dyn Display) {
        telemetry::tls_handshake("to_cleartext");
        if let Some(suppressed) = self.refusals.say("to_cleartext", Instant::now()) {
            tracing::warn!(%peer, suppressed, "a client speaks TLS to a listener without `tls`, and is refused: give the listener `tls`, or take `transport_socket` out of the client's cluster of this relay");
        }
    }

    /// Counts requested names and wildcards that are hidden from the peer.
    pub(super) fn note_hidden(hidden: HiddenCounts) {
        telemetry::hidden("name", hidden.names);
        telemetry::hidden("wildcard", hidden.wildcards);
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

    /// Drops unused responses. Call it periodically.
    pub async fn tidy(&self) {
        self.responses.tidy().await;
    }
}
