//! ADS streams as bytes, and settings of the transport. Knows nothing of the messages.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use deltafan_core::cache::Protocol;
use futures_util::{Stream, StreamExt as _, TryFutureExt as _, stream};
use http::HeaderMap;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::call::{call, reasons};
use crate::grpc::RELAY_HEADER;
use crate::transfer::Transfers;

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

/// Open stream. The transport takes encoded requests from the sender when it has room.
#[expect(missing_debug_implementations, reason = "its messages have none")]
pub struct OpenStream {
    pub outgoing: mpsc::Sender<Bytes>,
    pub incoming: Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>,
    is_relay: Arc<AtomicBool>,
}

impl OpenStream {
    /// Opens a stream with these headers, without waiting for the server: many send headers only with the first
    /// response. Sends the `first` requests before all others; with `None` it opens with its first request.
    /// `transfers` notes arrived parts of a response.
    pub fn open(
        channel: Channel,
        protocol: Protocol,
        headers: HeaderMap,
        first: Option<Vec<Bytes>>,
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
            let first = match first {
                Some(first) => first,
                None => requests.next().await.into_iter().collect(),
            };
            let requests = stream::iter(first).chain(requests);
            let (headers, messages) = call(channel, path, headers, requests, max_message, transfer).await?;
            noted.store(headers.contains_key(RELAY_HEADER), Ordering::Relaxed);
            Ok(messages)
        };
        Self { outgoing, incoming: Box::pin(call.try_flatten_stream()), is_relay }
    }

    /// Whether the server is a relay, which its headers show before its first message.
    pub fn is_relay(&self) -> bool {
        self.is_relay.load(Ordering::Relaxed)
    }
}
