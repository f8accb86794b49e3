//! The relay as an xDS client: moves bytes between a control plane, or a directory, and the cache.
//!
//! Owns the connection, its streams, and the waits between attempts. Decides nothing about xDS: it reports
//! events to the [`Mux`] of the core, and sends the requests that follow. [`DirectorySource`] takes the place
//! of both.

mod client;
mod directory;
mod link;
mod liveness;
mod probe;
mod relay_watch;
mod wait;

pub use client::{Client, LateRestore};
pub use deltafan_core::upstream::*;
pub use deltafan_transport::dial::{Target, dial};
pub use deltafan_transport::stream::{Transport, UriError};
pub use directory::DirectorySource;
pub use link::{Link, Options, Servers};
pub use liveness::LivenessTimes;
pub(crate) use wait::sleep_until;

/// Settings of running sources and their caches that a reload may change.
pub type Tuned = (Tuning, crate::cache::Limits);
