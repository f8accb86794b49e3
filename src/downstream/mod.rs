//! The side that clients connect to.
//!
//! Owns listeners, connections, the gRPC framing of requests and responses, and the end of streams. It moves bytes
//! between a transport and a [`Session`](crate::subscription::Session) and decides nothing about xDS. A stream has
//! no channel, no queue and no task: its connection polls the response body when it can take more, and the body reads the
//! stream's requests and asks the session what to say at that moment.

mod alarm;
mod assembler;
mod connection;
mod fetch;
mod listener;
mod peers;
mod poll;
mod routes;
mod service;
mod stall;
mod status;
mod stream;

#[doc(hidden)]
pub use assembler::assemble;
pub use connection::Connections;
pub use listener::{Limits, Listener};
pub use poll::Polls;
pub use service::{Context, UpstreamView};
