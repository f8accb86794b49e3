//! The side that clients connect to.
//!
//! Owns listeners, connections, the gRPC framing of requests and responses, and the end of streams. It moves bytes
//! between a transport and a [`Session`](crate::subscription::Session) and decides nothing about xDS. A stream has
//! no channel, no queue and no task: its connection polls the response body when it can take more, and the body reads the
//! stream's requests and asks the session what to say at that moment.

mod admission;
mod assembler;
mod authz;
mod body;
mod connection;
mod connections;
mod fetch;
mod handshake;
mod http1_body;
mod limits;
mod listener;
mod names;
mod overload;
mod parked_poll;
mod policy;
mod poll;
mod poll_error;
mod poll_request;
mod poll_slots;
mod poll_state;
mod read_budget;
mod request_memory;
mod routes;
mod scheduler;
mod send_cursor;
mod serve;
mod service;
mod sniff;
mod state;
mod status;
mod stream;
mod timer;
mod tls_accept;
mod transport;
mod unix;
mod unsent;
mod version_extractor;
mod write_timeout;

pub use admission::{Admission, AdmissionLimits};
#[doc(hidden)]
pub use assembler::assemble;
pub use authz::AuthzPolicy;
pub use connections::Connections;
pub use handshake::Handshakes;
pub use limits::{PollLimits, TransportLimits};
pub use listener::Listener;
pub use overload::OverloadManager;
pub use policy::Policy;
pub use poll_state::PollState;
pub use request_memory::RequestMemory;
pub use scheduler::FairScheduler;
pub use state::{ServerState, UpstreamView};
pub use unsent::Unsent;
