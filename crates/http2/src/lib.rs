//! HTTP/2 for servers (RFC 9113), made for streams that live long and say little at a time.
//!
//! Owns the protocol of a connection: frames, header compression, flow control, the life of streams, keep-alive,
//! graceful shutdown, and what a peer may cost. It knows nothing of gRPC or xDS: requests go to a service and
//! come back as a response with an [`http_body::Body`].
//!
//! What it is made for, beside general libraries: thousands of connections on which a small message goes out now and
//! then. All streams of a connection live in the one task of their connection: what wakes a stream wakes that task, a message
//! is one write, an idle connection owns no buffers. Bodies are asked for more only when the socket has taken what came
//! before, and for no chunk behind one that a window holds back. A body can see that windows are closed ([`Backpressure`]), and
//! leave its next message unmade until one opens. What bodies hand out is never copied if it is large
//! (docs/benchmarks.md has the figures). The price: a panic in one stream ends all streams of its connection.
//!
//! [`connection`] is the protocol, without I/O, clock or tasks; [`serve`] moves its bytes. Invariants:
//!
//! - What a peer sends costs memory only within limits that are stated where they are kept, and never a panic.
//! - While bytes wait for the socket, no body is asked for more. The peer is heard on, for as long as what it is owed beside
//!   bodies is little: it may read only after it has written.
//! - Requests are data the moment they are whole; a stream whose body is not read is held back by its window.

mod body;
mod budget;
mod connection;
mod frame;
mod head;
mod hpack;
mod outbox;
mod pace;
mod ready;
mod receive;
mod serve;
mod settings;
mod stream;

use std::fmt;
use std::time::Duration;

pub use body::{Backpressure, RequestBody};
pub use pace::{LEAST, Pace};
pub use serve::{Ended, Serve};

/// What a client says first (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a peer may do, and how long it may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests that are open at a time.
    pub max_streams: u32,
    /// Bytes that a client may send on a stream ahead of what was read of it.
    pub stream_window: u32,
    /// The same for all streams of a connection.
    pub connection_window: u32,
    /// The largest head of a request, as HPACK counts: 32 bytes more for each field.
    pub max_head_bytes: usize,
    /// The preface, and any head of a request that comes in more than one frame, must be whole by then.
    pub head_timeout: Duration,
    /// A connection without an open stream for so long is asked to go.
    pub idle_timeout: Duration,
    /// A connection that is silent for so long is pinged.
    pub keepalive_interval: Duration,
    /// A ping must be answered by then.
    pub keepalive_timeout: Duration,
    /// A connection that takes less than [`LEAST`] bytes in this time, while more waits for it, is given up. A stream that
    /// opens windows as slowly is broken off.
    pub stall_timeout: Duration,
}

/// Why a stream or connection is broken off (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing is wrong.
    No = 0,
    /// The peer breaks the protocol.
    Protocol = 1,
    /// A fault of ours.
    Internal = 2,
    /// The peer sends more than its window.
    FlowControl = 3,
    /// The peer sends on a stream that is over.
    StreamClosed = 5,
    /// A frame has a size that it cannot have.
    FrameSize = 6,
    /// There are too many streams; this one was not looked at.
    RefusedStream = 7,
    /// The stream is not needed any more.
    Cancel = 8,
    /// A header block cannot be decoded.
    Compression = 9,
    /// The peer costs too much.
    EnhanceYourCalm = 11,
}

/// Why a connection cannot go on.
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

impl std::error::Error for Reason {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
