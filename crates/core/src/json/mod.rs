//! REST-JSON without its HTTP: DiscoveryRequests read from proto3 JSON, and DiscoveryResponses written as it.
//!
//! Owns what a request may look like and what a response does look like, and that the JSON of a resource is made once per
//! version. Knows nothing of polls, of sockets or of clients; has no clock. A relay that speaks gRPC only never makes any of
//! it. The program shares whole responses, because those who ask for one wait for it.
//!
//! Invariants:
//! - What a peer sends is bounded in size, depth and number of parts before it is parsed, and parsed without building
//!   what is not read: `extensions` and `error_detail` are passed over, no `Any` in them is looked into; `locality` and
//!   `metadata` are too, unless the operator's rules may want them (R-DP-17).
//! - A response is whole or an error; none has a part missing.

mod bounds;
mod request;
mod response;

pub use bounds::BoundsError;
pub use request::{JsonRequestError, read};
pub use response::{JsonError, JsonResponse, JsonWriter};
