//! REST-JSON without its HTTP: DiscoveryRequests read from proto3 JSON, and DiscoveryResponses written as it.
//!
//! Owns what a request may look like and what an answer does look like, and that the JSON of a resource is made once per version
//! and that of an answer once per version of the whole. Knows nothing of polls, of sockets or of clients; has no clock. A relay
//! that speaks gRPC only never makes any of it.
//!
//! Invariants:
//! - What a peer sends is bounded in size, depth and number of parts before it is parsed, and parsed without building
//!   what is not read: `extensions` and `error_detail` are passed over, no `Any` in them is looked into; `locality` and
//!   `metadata` are too, unless the operator's rules may want them (R-DP-17).
//! - An answer is whole or an error; there is no answer with a part missing.

mod book;
mod outline;
mod request;

pub use book::{Answer, Book, Unwritable};
pub use outline::OutOfBounds;
pub use request::{BadRequest, read};
