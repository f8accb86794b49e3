//! Limits on transports, and their defaults.

use std::time::Duration;

use crate::http2;

/// Largest head of an HTTP request in bytes: many times those of Envoy and gRPC.
pub(super) const MAX_HEAD_BYTES: usize = 16 << 10;

/// Limits on one connection.
#[derive(Clone, Debug)]
pub struct TransportLimits {
    /// Bytes of a request, without its `initial_resource_versions`.
    pub max_request_bytes: usize,
    /// Time until the first request of a connection or stream must begin to arrive.
    pub first_request_timeout: Duration,
    /// Streams on one connection.
    pub max_streams_per_connection: u32,
    /// Time until a connection is closed whose transport takes less than [`http2::MIN_BYTES`].
    pub stall_timeout: Duration,
    /// Time without a stream until an HTTP/2 connection is asked to close.
    pub idle_timeout: Duration,
    /// Age at which a connection closes; a random 80 to 100 % of it applies.
    pub max_connection_age: Duration,
    /// Silence before a ping.
    pub keepalive_interval: Duration,
    /// Time to answer the ping.
    pub keepalive_timeout: Duration,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            max_request_bytes: 4 << 20,
            first_request_timeout: Duration::from_secs(30),
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
