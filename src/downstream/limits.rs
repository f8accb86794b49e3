//! TransportLimits on what a client may do, and their defaults.

use std::time::Duration;

use crate::http2;

/// The head of a request, over either version of HTTP: many times those of Envoy and of gRPC.
pub(super) const MAX_HEAD_BYTES: usize = 16 << 10;

/// What a client may do to the transport.
#[derive(Clone, Debug)]
pub struct TransportLimits {
    /// The largest request, in bytes.
    pub max_request_bytes: usize,
    /// A connection or stream that has sent nothing by then is closed.
    pub first_request_timeout: Duration,
    /// Streams of one connection.
    pub max_streams_per_connection: u32,
    /// A connection whose transport takes nothing, or next to nothing, for so long is closed.
    pub stall_timeout: Duration,
    /// A connection over HTTP/2 without a stream for so long is asked to go.
    pub idle_timeout: Duration,
    /// A connection closes after this, less up to a fifth.
    pub max_connection_age: Duration,
    /// A connection that is silent for so long is pinged.
    pub keepalive_interval: Duration,
    /// A ping must be answered by then.
    pub keepalive_timeout: Duration,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            max_request_bytes: 4 << 20,
            first_request_timeout: Duration::from_secs(10),
            max_streams_per_connection: 1000,
            stall_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(5 * 60),
            max_connection_age: Duration::from_secs(30 * 60),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

impl TransportLimits {
    pub(super) fn http2(&self) -> http2::Limits {
        http2::Limits {
            max_streams: self.max_streams_per_connection,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            max_head_bytes: MAX_HEAD_BYTES,
            head_timeout: self.first_request_timeout,
            idle_timeout: self.idle_timeout,
            keepalive_interval: self.keepalive_interval,
            keepalive_timeout: self.keepalive_timeout,
            stall_timeout: self.stall_timeout,
        }
    }
}

/// What polls may do.
#[derive(Clone, Debug)]
pub struct PollLimits {
    /// How long one is held while there is nothing new (R-REST-06).
    pub hold: Duration,
    /// How long a connection over HTTP/1 may be without a request.
    pub idle_timeout: Duration,
    /// How many are held for one address.
    pub per_peer: usize,
}
