//! REST-JSON without its HTTP: DiscoveryRequests read from proto3 JSON, and DiscoveryResponses
//! written as JSON.
//!
//! Owns the form of requests and responses, and that the JSON of a resource is made once per
//! version. Knows nothing of polls, sockets or clients; has no clock. A relay that speaks only gRPC
//! makes no JSON. The program shares whole responses: their clients wait for the same.
//!
//! Invariants:
//! - A peer's request is bounded in size, depth and number of parts before it is parsed. Parts that
//!   are not read are not built: `extensions` and `error_detail` are skipped, and no `Any` in them
//!   is read. So are `locality` and `metadata`, unless the operator's rules may need them
//!   (R-DP-17).
//! - A response is whole or an error; none lacks a part.

mod rest_request;
mod rest_response;

pub use rest_request::{BoundsError, JsonRequestError, read};
pub use rest_response::{JsonError, JsonResponse, JsonWriter};
