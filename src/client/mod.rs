//! An xDS client for people: `deltafan get` and `watch`.
//!
//! Owns requests to any xDS server over each transport of the protocol, and the output of its answers. Shares with the relay the
//! parsers of resources, connecting, the opening of streams, and texts by which a relay recognizes a client or the other way round;
//! nothing else.

mod asked;
mod conversation;
mod ended;
mod get;
mod held;
mod request;
mod response;
mod rest;
mod server;
mod show;
mod stream;
mod watch;

pub use asked::Subscription;
pub use conversation::Query;
pub(crate) use ended::Ended;
pub use get::{Answer, get};
pub use held::{Change, Event};
pub use request::Asker;
pub use response::Found;
pub(crate) use response::Update;
pub use server::Server;
pub use show::{show, show_change, watch_header};
pub(crate) use stream::AdsStream;
pub use watch::{News, watch};

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
