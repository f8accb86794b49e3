//! The relay as an xDS client: moves bytes between one origin, or a directory in its place, and the cache.
//!
//! Owns the connection to the origin, its streams, and the waits between attempts. Decides nothing about xDS: it tells the
//! [`Mux`] of the core what happened and when, and sends the requests that come of it. [`DirectorySource`] takes the place
//! of both.

mod client;
mod connection;
mod dial;
mod directory;
mod wait;

pub use client::{Client, Options};
pub use connection::{BadUri, Transport};
pub use deltafan_core::upstream::*;
pub use dial::{Target, dial};
pub use directory::{DirectorySource, DirectoryState};

/// Hands a [`Tuning`] to the source that runs; of several the newest counts.
pub type Tuner = tokio::sync::watch::Sender<Option<Tuning>>;
