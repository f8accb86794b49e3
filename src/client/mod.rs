//! An xDS client for people: `deltafan get` and `watch`.
//!
//! Owns requests to any xDS server, over each of the protocol's transports, and the showing of its answers. It shares the
//! parsers of resources with the relay, how servers are connected to, how a stream is opened, and the feature by which a relay
//! knows it, and nothing else.

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
mod transport;
mod watch;

pub(crate) use ended::Ended;
pub use get::{Answer, Query, get};
pub use held::{Change, Event};
pub use request::{Asker, Subscription};
pub use response::Found;
pub(crate) use response::Update;
pub use server::Server;
pub use show::{Format, show, show_change, watch_header};
pub(crate) use stream::AdsStream;
pub use transport::Transport;
pub use watch::{News, Watch, watch};
