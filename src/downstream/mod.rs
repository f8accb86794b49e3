//! Server side: the connections of clients, and the streams and requests on them.
//!
//! Owns listeners, connections, gRPC framing, and the end of streams. It moves bytes between a transport and
//! a [`Session`](crate::subscription::Session) and decides nothing about xDS. A stream has no channel, queue
//! or task. Its connection polls the response body when it can take more. The body reads requests and asks
//! the session for the next message.
//!
//! Files in their order; each imports only from files before it:
//!
//! | Files | Matter |
//! |---|---|
//! | `limits`, `grpc_status`, `routes`, `timer`, `scheduler` | limits on clients, gRPC statuses, paths, a lazy timer, CPU time shared between connections |
//! | `transport`, `unix`, `read_budget`, `http1_write_timeout` | sockets and their wrappers |
//! | `sniff`, `handshake` | protocol by the first bytes, TLS handshakes with permits |
//! | `authz`, `policy` | rules by peer, everything that a reload may change |
//! | `connection` | state, peer and cost of one connection |
//! | `request_memory`, `unsent_memory`, `send_cursor` | memory of requests, versions and outgoing messages |
//! | `connections`, `overload`, `admission` | age and drain of connections, memory watermarks, connection limits |
//! | `response_cache`, `server_state` | JSON responses, shared state |
//! | `group_entry` | the node group of a stream or request |
//! | `version_extractor`, `message_assembler` | versions taken out of arriving requests, a body cut into messages |
//! | `stream`, `unary`, `body` | gRPC streams, unary methods, bodies of responses |
//! | `poll_error`, `poll_request`, `parked_poll`, `poll` | REST-JSON long polls |
//! | `service` | routing of a request |
//! | `serve`, `tls_accept`, `listener` | serving a connection, TLS, accepting |

mod admission;
mod authz;
mod body;
mod connection;
mod connections;
mod first_answer;
mod group_entry;
mod grpc_status;
mod handshake;
mod http1_write_timeout;
mod limits;
mod listener;
mod message_assembler;
mod overload;
mod parked_poll;
mod policy;
mod poll;
mod poll_error;
mod poll_request;
mod read_budget;
mod request_memory;
mod response_cache;
mod scheduler;
mod send_cursor;
mod serve;
mod server_state;
mod service;
mod sniff;
mod stream;
mod timer;
mod tls_accept;
mod transport;
mod unary;
mod unix;
mod unsent_memory;
mod version_extractor;

pub use admission::Admission;
pub use authz::AuthzPolicy;
pub use connections::Connections;
pub use handshake::Handshakes;
pub(crate) use http1_write_timeout::WriteTimeout;
pub use limits::TransportLimits;
pub use listener::Listener;
#[doc(hidden)]
pub use message_assembler::assemble;
pub use overload::OverloadManager;
pub use policy::Policy;
pub use request_memory::RequestMemory;
pub use response_cache::ResponseCache;
pub use scheduler::FairScheduler;
#[cfg(test)]
pub(crate) use scheduler::{Permit, PermitRequest};
pub use server_state::{PollState, ServerState};
pub(crate) use sniff::WireProtocol;
pub use unsent_memory::Unsent;
