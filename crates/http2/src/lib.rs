//! HTTP/2 for servers (RFC 9113) with long-lived streams and few messages.
//!
//! Owns the protocol of a connection: frames, header compression, flow control, streams,
//! keep-alive, graceful shutdown, and limits on the cost of a peer. Knows nothing of gRPC or xDS: a
//! request goes to a service and comes back as a response with an [`http_body::Body`].
//!
//! Made for thousands of connections with a small message now and then. All streams of a connection
//! live in its one task: waking a stream wakes that task, a message is one write, and an idle
//! connection owns no buffers. A body is polled only when the socket has taken its last output and
//! no window holds back its last chunk. A body can see closed windows ([`RequestBody`]) and make
//! its next message when one opens. Large chunks are never copied. The README has the figures. The
//! price: a panic in one stream ends all streams of its connection.
//!
//! `connection` is the protocol, without I/O, clock or tasks; `serve` moves its bytes. Invariants:
//!
//! - Input costs memory only within stated limits, and never causes a panic.
//! - While bytes wait for the socket, no body is polled. The peer is still read as long as few
//!   control frames wait: it may read only after it has written.
//! - Request data is available as soon as a frame is whole. A stream whose body is not read is held
//!   back by its window.

mod connection;
mod frame;
mod headers;
mod hpack;
mod rates;
mod request_body;
mod serve;
mod stream;
mod wakers;
mod write_buffer;

use std::time::Duration;

pub use crate::rates::{MIN_BYTES, MinRate};
pub use crate::request_body::RequestBody;
pub use crate::serve::{Serve, ServeError};

pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Limits on what a peer may do, and how long it may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests open at a time (SETTINGS_MAX_CONCURRENT_STREAMS).
    pub max_streams: u32,
    /// Bytes that a client may send on a stream before they are read.
    pub stream_window: u32,
    /// Bytes that a client may send on all streams of a connection before they are read.
    pub connection_window: u32,
    /// Largest header block of a request, as HPACK counts it: 32 bytes more for each field.
    pub max_head_bytes: usize,
    /// Time for the preface, and for a header block in several frames.
    pub head_timeout: Duration,
    /// Time without an open stream after which the peer gets a GOAWAY.
    pub idle_timeout: Duration,
    /// Silence after which a PING is sent.
    pub keepalive_interval: Duration,
    /// Time for the answer to a PING.
    pub keepalive_timeout: Duration,
    /// Time in which a connection must take [`MIN_BYTES`] bytes while more is waiting. A stream
    /// whose window opens as slowly is reset.
    pub stall_timeout: Duration,
}

/// Error codes of RST_STREAM and GOAWAY (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    No = 0,
    /// The peer violates the protocol.
    Protocol = 1,
    /// An error of ours.
    Internal = 2,
    /// The peer sends more than its window.
    FlowControl = 3,
    /// The peer sends on a closed stream.
    StreamClosed = 5,
    /// A frame has an invalid size.
    FrameSize = 6,
    /// Too many streams are open; this one was not processed.
    RefusedStream = 7,
    /// The stream is not needed any more.
    Cancel = 8,
    /// A header block cannot be decoded.
    Compression = 9,
    /// The peer costs too much.
    EnhanceYourCalm = 11,
}

/// Protocol error that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason:?}: {what}")]
pub struct ConnectionError {
    reason: Reason,
    what: &'static str,
}

impl ConnectionError {
    const fn new(reason: Reason, what: &'static str) -> Self {
        Self { reason, what }
    }
}

#[cfg(test)]
mod tests;
