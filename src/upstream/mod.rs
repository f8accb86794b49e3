//! The relay as an xDS client: moves bytes between a control plane, or a directory, and the cache.
//!
//! Owns the connection, its streams, and the waits between attempts. Decides nothing about xDS: it reports
//! events to the [`Mux`] of the core, and sends the requests that follow. [`DirectorySource`] takes the place
//! of both.

mod call;
mod client;
mod connection;
mod dial;
mod directory;
mod link;
mod liveness;
mod probe;
mod relay_watch;
mod servers;
mod stored_change;
mod transfer;
mod wait;

pub(crate) use call::{NotGrpcError, status_text};
pub use client::{Client, LateRestore};
pub(crate) use connection::OpenStream;
pub use connection::{Transport, UriError};
pub use deltafan_core::upstream::*;
pub(crate) use dial::{ANSWERS_IN_TLS, CLOSED, NOT_HTTP2, is_tls, resolve};
pub use dial::{Target, dial};
pub use directory::{DirectorySource, DirectoryState};
pub use link::{Link, Options};
pub use liveness::LivenessTimes;
pub use servers::Servers;
pub use stored_change::{ChangeSink, StoredChange, StoredState};
pub(crate) use transfer::Transfers;
pub(crate) use wait::sleep_until;

/// Sender of a [`Tuning`] to the running source; the newest counts.
pub type Tuner = tokio::sync::watch::Sender<Option<Tuning>>;
