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
mod body;
mod buffered;
mod connection;
mod connections;
mod fetch;
mod handshake;
mod http1_body;
mod limits;
mod listener;
mod memory;
mod names;
mod paced;
mod parked_poll;
mod peers;
mod policy;
mod poll;
mod poll_error;
mod poll_request;
mod poll_state;
mod routes;
mod send_cursor;
mod serve;
mod service;
mod sieve;
mod sniff;
mod stall;
mod state;
mod status;
mod stream;
mod tls_accept;
mod transport;
mod turns;
mod unix;
mod unsent;

pub use access::Access;
pub use admission::{Admission, AdmissionLimits};
#[doc(hidden)]
pub use assembler::assemble;
pub use buffered::Buffered;
pub use connections::Connections;
pub use handshake::Handshakes;
pub use limits::{Limits, PollLimits};
pub use listener::Listener;
pub use memory::Memory;
pub use policy::Policy;
pub use poll_state::Polls;
pub use state::{Context, UpstreamView};
pub use turns::Turns;
pub use unsent::Unsent;
