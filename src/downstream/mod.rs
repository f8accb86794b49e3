//! Server side: the connections of clients, and the streams and requests on them.
//!
//! Owns listeners, connections, gRPC framing, and the end of streams. It moves bytes between a transport and
//! a [`Session`](crate::subscription::Session) and decides nothing about xDS. A stream has no channel, queue
//! or task. Its connection polls the response body when it can take more. The body reads requests and asks
//! the session for the next message.

mod admission;
mod body;
mod connection;
mod connections;
mod drain;
mod grpc_status;
mod handshake;
mod listener;
mod message_assembler;
mod policy;
mod poll;
mod poll_request;
mod request_memory;
mod response_cache;
mod scheduler;
mod serve;
mod server_state;
mod service;
mod stream;
mod transport;
mod unsent_memory;

pub use admission::{Admission, OverloadManager};
pub use connections::Connections;
pub use drain::Drain;
pub use listener::Listener;
pub use policy::Policy;
pub use request_memory::RequestMemory;
pub use response_cache::ResponseCache;
pub use scheduler::FairScheduler;
pub use server_state::{HealthService, PollState, ServerState};
pub(crate) use transport::{WireProtocol, WriteTimeout};
pub use unsent_memory::Unsent;

#[cfg(test)]
pub(crate) use scheduler::Permit;

#[cfg(test)]
pub(crate) use scheduler::PermitRequest;
