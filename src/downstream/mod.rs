//! The side that clients connect to.
//!
//! Owns listeners, connections, the gRPC framing of requests and responses, and the end of streams. It moves bytes
//! between a transport and a [`Session`](crate::subscription::Session) and decides nothing about xDS. A stream has
//! no channel, no queue and no task: its connection polls the response body when it can take more, and the body reads the
//! stream's requests and asks the session what to say at that moment.

mod access;
mod admission;
mod alarm;
mod assembler;
mod buffered;
mod connection;
mod fetch;
mod handshake;
mod http1_body;
mod listener;
mod memory;
mod names;
mod paced;
mod peers;
mod policy;
mod poll;
mod routes;
mod service;
mod sieve;
mod stall;
mod status;
mod stream;
mod transport;
mod turns;
mod unix;
mod unsent;

pub use access::Access;
pub use admission::Admission;
#[doc(hidden)]
pub use assembler::assemble;
pub use buffered::Buffered;
pub use connection::Connections;
pub use handshake::Handshakes;
pub use listener::{Limits, Listener};
pub use memory::Memory;
pub use policy::Policy;
pub use poll::Polls;
pub use service::{Context, UpstreamView};
pub use turns::Turns;
pub use unsent::Unsent;
