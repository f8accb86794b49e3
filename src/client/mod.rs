//! An xDS client for people: `deltafan get` and `watch`.
//!
//! Owns requests to any xDS server over each transport, and output of answers. Shares with the relay only
//! resource parsers, connecting, opening of streams, and texts by which both recognize each other.

mod ads_stream;
mod client_request;
mod client_response;
mod conversation;
mod conversation_end;
mod resource_tables;
mod rest_polls;
mod server_address;
mod subscribed_names;
mod watch_changes;
mod watched_resources;
mod whole_answer;

pub(crate) use ads_stream::AdsStream;
pub use client_request::Asker;
pub use client_response::Found;
pub(crate) use client_response::Update;
pub use conversation::Query;
pub(crate) use conversation_end::Ended;
pub use resource_tables::{show, show_change, watch_header};
pub use server_address::Server;
pub use subscribed_names::Subscription;
pub use watch_changes::{News, watch};
pub use watched_resources::{Change, Event};
pub use whole_answer::{Answer, get};

/// Transport of xDS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// Delta ADS, over gRPC.
    #[default]
    Delta,
    /// State-of-the-world ADS, over gRPC.
    Sotw,
    /// REST-JSON long polls, over HTTP/1.1.
    Rest,
}
