//! An xDS client for people: `deltafan get` and `watch`.
//!
//! Owns requests to any xDS server over each transport, and output of answers. Shares with the relay only
//! resource parsers, connecting, opening of streams, and texts by which both recognize each other.

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

pub use client_request::NodeFile;
pub(crate) use client_request::{Asker, Query};
pub(crate) use client_response::Update;
use std::time::Duration;

use deltafan_core::upstream::Backoff;

pub(crate) use conversation::AdsStream;
pub(crate) use conversation_end::Ended;
pub(crate) use resource_tables::show;
pub(crate) use server_address::Server;
pub(crate) use subscribed_names::Subscription;
pub(crate) use watch_changes::watch;
pub(crate) use whole_answer::get;

/// Waits between attempts to reach a server again.
pub(crate) const fn backoff() -> Backoff {
    Backoff::new(Duration::from_secs(1), Duration::from_secs(15))
}

/// Transport of xDS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// Delta ADS, over gRPC.
    #[default]
    Delta,
    /// State-of-the-world ADS, over gRPC.
    Sotw,
    /// REST-JSON long polls, over HTTP/1.1.
    Rest,
}
