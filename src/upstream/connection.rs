//! Connection to the control plane and its streams, as bytes.
//!
//! Owns the transport settings. Knows nothing of the messages.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryFutureExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::call::{call, reasons};
use super::liveness::Pulse;
use super::transfer::Transfers;
use crate::RelayIdentity;
use crate::cache::Protocol;
use crate::grpc::RELAY_HEADER;

const DELTA_ADS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW_ADS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// Bytes; large enough that the first state of a big fleet does not wait for round trips.
const CONNECTION_WINDOW: u32 = 16 << 20;
const STREAM_WINDOW: u32 = 4 << 20;

/// URI that does not name a control plane.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{uri}` is not the URI of a control plane: {reason}; expected http://HOST:PORT or https://HOST:PORT"
)]
pub struct UriError {
    uri: String,
    reason: String,
}

/// Settings of the transport.
#[derive(Clone, Debug)]
pub struct Transport {
    pub connect_timeout: Duration,
    /// Silence before a PING (R-Up-09).
    pub keepalive_interval: Duration,
    /// Longest time for the answer to a PING.
    pub keepalive_timeout: Duration,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            // Idle gRPC servers allow one PING in five minutes, and end the connection after the third early
            // one. TCP probes more often.
            keepalive_interval: Duration::from_secs(6 * 60),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

impl Transport {
    /// Creates the endpoint of a server.
    ///
    /// # Errors
    ///
    /// [`UriError`] if the text is no URI with a scheme and a host.
    pub fn endpoint(&self, uri: &str) -> Result<Endpoint, UriError> {
        let bad = |reason: &dyn ToString| UriError { uri: uri.to_owned(), reason: reason.to_string() };
        let endpoint = Endpoint::from_shared(uri.to_owned()).map_err(|error| bad(&reasons(&error)))?;
        if endpoint.uri().scheme().is_none() || endpoint.uri().host().is_none() {
            return Err(bad(&"scheme or host is missing"));
        }
        Ok(endpoint
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .http2_keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout)
            .keep_alive_while_idle(true))
    }
}

/// Requests that may wait for the transport: the ACKs of a burst. Subscriptions are composed when there is
/// room.
const WAITING: usize = 8;

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

/// Open stream. The transport takes encoded requests from the sender when it has room.
pub(crate) struct OpenStream {
    pub(crate) outgoing: mpsc::Sender<Bytes>,
    pub(crate) incoming: Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>,
    is_relay: Arc<AtomicBool>,
}

impl OpenStream {
    /// Opens a relay's stream without waiting for the server: many send headers only with the first response.
    pub(super) fn on(server: &Server, protocol: Protocol) -> Self {
        Self::of_relay(server, protocol, false)
    }

    /// Creates a relay's stream that opens with its first request.
    pub(super) fn when_asked(server: &Server, protocol: Protocol) -> Self {
        Self::of_relay(server, protocol, true)
    }

    fn of_relay(server: &Server, protocol: Protocol, waits: bool) -> Self {
        let Server { channel, max_message, transfers, identity, .. } = server.clone();
        // A `node.id` with control characters is no header: such a relay is not recognized.
        let name = HeaderValue::from_bytes(identity.as_str().as_bytes()).ok();
        let headers = name.into_iter().map(|name| (HeaderName::from_static(RELAY_HEADER), name)).collect();
        Self::begin(channel, protocol, headers, (Vec::new(), waits), max_message, &transfers)
    }

    /// Opens a client's stream and sends these requests first. `transfers` notes arrived parts of a response.
    pub(crate) fn of_client(
        channel: Channel,
        protocol: Protocol,
        first: Vec<Bytes>,
        max_message: usize,
        transfers: &Transfers,
    ) -> Self {
        Self::begin(channel, protocol, HeaderMap::new(), (first, false), max_message, transfers)
    }

    /// Sends `first` before all others; if it `waits`, the stream opens with the request after them.
    fn begin(
        channel: Channel,
        protocol: Protocol,
        headers: HeaderMap,
        (mut first, waits): (Vec<Bytes>, bool),
        max_message: usize,
        transfers: &Transfers,
    ) -> Self {
        let (outgoing, mut requests) = mpsc::channel(WAITING);
        let mut requests = stream::poll_fn(move |context| requests.poll_recv(context));
        let is_relay = Arc::<AtomicBool>::default();
        let noted = Arc::clone(&is_relay);
        let transfer = transfers.of_stream();
        let call = async move {
            let path = match protocol {
                Protocol::Delta => DELTA_ADS,
                Protocol::Sotw => SOTW_ADS,
            };
            if waits {
                first.extend(requests.next().await);
            }
            let requests = stream::iter(first).chain(requests);
            let (headers, messages) = call(channel, path, headers, requests, max_message, transfer).await?;
            noted.store(headers.contains_key(RELAY_HEADER), Ordering::Relaxed);
            Ok(messages)
        };
        Self { outgoing, incoming: Box::pin(call.try_flatten_stream()), is_relay }
    }

    /// Whether the server is a relay, which its headers show before its first message.
    pub(super) fn is_relay(&self) -> bool {
        self.is_relay.load(Ordering::Relaxed)
    }
}
