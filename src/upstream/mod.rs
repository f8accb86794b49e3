//! The relay as an xDS client: from one origin, or from a directory in its place, into the cache.
//!
//! Owns the aggregated delta streams to the origin, what is subscribed to on them, and the times that decide when
//! a wildcard set counts as complete and when a name nobody wants is let go. Knows nothing of clients: what they
//! want comes from the cache as names, and nothing of theirs reaches the origin but those names (R-Relay-14).
//!
//! [`Mux`] is a plain value that is told what happened and when; [`Client`] moves bytes and tells it. [`DirectorySource`] takes
//! the place of both.
//!
//! Invariants:
//! - On one stream a type is subscribed to either as wildcard or by names, never both, so that what a stream
//!   brings is a member of the wildcard set or is not (R-Relay-03).
//! - Nothing is removed because a connection was lost.
//! - A response is applied as a whole or, with a NACK, not at all (R-Up-12, R-Up-13).
//! - What is kept is bounded by what was subscribed to on the connection that stands, whatever the origin sends.

mod aliases;
mod backoff;
mod client;
mod connection;
mod dial;
mod directory;
mod expiry;
mod mux;
mod response;
mod sending;
mod topic;
mod waiting;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use backoff::Backoff;
pub use client::{Client, Options, UpstreamState};
pub use connection::{BadUri, Transport};
pub use directory::{DirectorySource, DirectoryState};

pub use mux::Mux;
pub use response::ProtocolError;

use crate::proto::Node;

/// One of the two streams to the origin. Both are on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamId {
    /// Where every type lives that is subscribed to in one way only.
    Primary,
    /// Where the other half of types lives that are subscribed to as wildcard and by name (R-Relay-03). It exists
    /// only while there are such types.
    Secondary,
}

impl StreamId {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Primary, Self::Secondary];
}

/// How to find out, after a reconnect, what the origin removed meanwhile (R-Up-21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reconcile {
    /// Tell the origin the versions held; it says what is gone.
    #[default]
    Trust,
    /// Tell it nothing, and remove what it does not send again.
    Sweep,
}

/// How the relay behaves as a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who the relay says it is, in the first message of each stream (R-Up-01).
    pub node: Node,
    /// How long what nobody wants stays subscribed (R-Relay-16).
    pub linger: Duration,
    /// A wildcard set is complete when nothing more came for so long (R-Relay-05).
    pub settle: Duration,
    /// But no later than this after its first response.
    pub settle_max: Duration,
    /// Subscription changes after the first are sent this far apart (R-Up-20).
    pub request_interval: Duration,
    /// See [`Reconcile`].
    pub reconcile: Reconcile,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node: Node::default(),
            linger: Duration::from_secs(60),
            settle: Duration::from_millis(200),
            settle_max: Duration::from_secs(1),
            request_interval: Duration::from_millis(10),
            reconcile: Reconcile::default(),
        }
    }
}

/// What happened on the upstream side, counted since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Responses received and decoded.
    pub responses: Counter,
    /// Responses refused with a NACK.
    pub nacks_sent: Counter,
    /// Requests of any kind, ACKs included.
    pub requests: Counter,
    /// Responses dropped because their type was never subscribed to on their stream (R-Up-11).
    pub unrequested_responses: Counter,
    /// Resources ignored because nothing subscribed to covers them (R-Up-15).
    pub unrequested_resources: Counter,
    /// Resources refused because they carry dynamic parameter constraints.
    pub refused_resources: Counter,
    /// Resources sent again by the origin of its own accord at the version held (R-Relay-21).
    pub unsolicited: Counter,
    /// Resources whose TTL ended without a word of the origin (R-TTL-09).
    pub expired: Counter,
    /// Resources and removals handed to the cache.
    pub operations: Counter,
    /// Connections that stood.
    pub connects: Counter,
    /// Connections that stood, after the first.
    pub reconnects: Counter,
    /// Attempts to connect that failed.
    pub connect_failures: Counter,
    /// Streams that ended before any response, or with a fault in the protocol.
    pub stream_failures: Counter,
}

impl Counters {
    /// All of them with their names.
    pub fn all(&self) -> [(&'static str, u64); 13] {
        [
            ("response", self.responses.get()),
            ("nack_sent", self.nacks_sent.get()),
            ("request", self.requests.get()),
            ("unrequested_response", self.unrequested_responses.get()),
            ("unrequested_resource", self.unrequested_resources.get()),
            ("refused_resource", self.refused_resources.get()),
            ("unsolicited_resend", self.unsolicited.get()),
            ("expired_resource", self.expired.get()),
            ("operation", self.operations.get()),
            ("connect", self.connects.get()),
            ("reconnect", self.reconnects.get()),
            ("connect_failure", self.connect_failures.get()),
            ("stream_failure", self.stream_failures.get()),
        ]
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
