//! Connections of a client: what the relay and the commands share.
//!
//! Owns the way to a server (name look-up, TLS, HTTP/2) with its diagnosis, gRPC calls as bytes, names by which both sides
//! recognize each other, and notation of texts, numbers and times for people. Decides nothing about xDS.

pub mod call;
pub mod dial;
pub mod grpc;
pub mod stream;
pub mod terminal;
pub mod transfer;
pub mod units;
pub mod utc;

/// Client's side of TLS: files, options, connections, and the words for faults.
pub mod tls {
    pub mod client;
    pub mod diagnosis;
    pub mod files;
    pub mod options;
}
