//! The configuration: one YAML file, read into values that are right by construction.
//!
//! Owns the schema (names, shapes, ranges, defaults), the reading of a file into [`Config`], the messages for a file
//! that is wrong, and the printing of what is in effect. It is a leaf: it knows nothing of the cache, of streams or of
//! sockets, and does not act on what it reads. A value past this module needs no second check.
//!
//! The way of a file: `tree` makes nodes with line numbers of the text, `check` holds them against the tables in
//! `keys`, `parse` reads them over the defaults. Problems are collected on the way, so that one run names them all.
//! `changes` tells what differs between two of them, and what comes of that while the relay runs.

mod apart;
mod authorization;
mod changes;
mod check;
mod defaults;
mod dynamic_parameters;
mod errors;
mod keys;
mod listener_tls;
mod machine;
mod parse;
mod section;
mod tree;
mod units;
mod upstream_tls;
mod values;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use authorization::{Authorization, AuthorizationRule, DefaultAccess, Glob, PeerMatch};
pub use changes::{Changes, diff};
pub use dynamic_parameters::{DynamicParameter, NodeField, Pattern};
pub(crate) use errors::printable;
pub use errors::{ConfigErrors, Problem};
pub use listener_tls::{ClientAuthorities, ListenerTls};
pub use machine::{ConnectionLimits, Memory};
pub use upstream_tls::{CertificateFiles, ClientTls, ServerIdentity};
pub use values::{ListenAddress, Locators, NonEmpty, Reconcile, Server, ServerUri, Source};

/// Everything the relay can be told. Only [`Upstream::source`] has no default.
///
/// Its [`Display`](fmt::Display) is the effective configuration as YAML: every key with its value. Reading that again
/// gives an equal value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Who the relay says it is, upstream.
    pub node: Node,
    /// Where resources come from.
    pub upstream: Upstream,
    /// Who may connect, and how they are served.
    pub downstream: Downstream,
    /// REST-JSON long polls.
    pub rest: Rest,
    /// The endpoint for operators.
    pub admin: Admin,
    /// Bounds of what is remembered.
    pub cache: Cache,
    /// What clients are given that send no dynamic parameters (R-DP-17). No two are for the same key. Default: nothing.
    pub dynamic_parameters: Vec<DynamicParameter>,
    /// Who may ask for what. Default: everybody for everything, but Secrets (see
    /// [`Downstream::secrets_without_authentication`]).
    pub authorization: Authorization,
}

/// The xDS node of the relay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Node {
    /// Default: the host name, or `deltafan` where it cannot be read.
    pub id: String,
    /// Default: `deltafan`.
    pub cluster: String,
    /// Default: all empty.
    pub locality: Locality,
    /// Anything JSON can say. Default: empty.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// Where the relay runs, as xDS puts it. An empty string is a part that is not told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Locality {
    /// Default: empty.
    pub region: String,
    /// Default: empty.
    pub zone: String,
    /// Default: empty.
    pub sub_zone: String,
}

/// The origin of the resources, and how the relay talks to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstream {
    /// Control planes or a directory; the one thing without a default.
    #[serde(flatten)]
    pub source: Source,
    /// How long a connection attempt may take. Default: 5 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub connect_timeout: Duration,
    /// The largest response accepted, in bytes. Default: 256 MiB.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_response_bytes: usize,
    /// Subscription changes are batched per tick of this length; zero sends each at once. Default: 10 ms.
    #[serde(serialize_with = "units::serialize_duration")]
    pub request_interval: Duration,
    /// How long a name that nobody wants stays subscribed. Default: 60 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub unsubscribe_linger: Duration,
    /// Names that nobody wants and that are still subscribed to; past that the oldest are let go early. Default: 100000.
    pub max_lingering_names: usize,
    /// How long a relay that asks, and was never answered, is not ready. Default: 24 h.
    #[serde(serialize_with = "units::serialize_duration")]
    pub ready_wait: Duration,
    /// How deletions missed while disconnected are found (R-Up-21). Default: trust.
    pub reconcile: Reconcile,
    /// How names with dynamic parameters are asked for (R-Up-18). Default: native.
    pub locators: Locators,
    /// Waits between attempts to connect.
    pub backoff: Backoff,
    /// HTTP/2 pings to the control plane (R-Up-09).
    pub keepalive: Keepalive,
}

/// An exponential wait between attempts; `initial` is never above `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Backoff {
    /// Default: 500 ms.
    #[serde(serialize_with = "units::serialize_duration")]
    pub initial: Duration,
    /// Default: 30 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub max: Duration,
}

/// HTTP/2 pings that tell a dead connection from a quiet one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Keepalive {
    /// Default: 30 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub interval: Duration,
    /// How long the answer to a ping may take. Default: 10 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub timeout: Duration,
}

/// The side that clients see.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Downstream {
    /// Default: one on `0.0.0.0:15010`. No address is listed twice.
    pub listeners: NonEmpty<Listener>,
    /// Least quiet time after which a wildcard set counts as settled (R-Relay-05); never above `settle_max`. Default: 200 ms.
    #[serde(serialize_with = "units::serialize_duration")]
    pub settle: Duration,
    /// Time that the control plane has to speak of versions that it was told; then its silence confirms them. Default: 1 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub settle_max: Duration,
    /// Past this, with nothing known and no origin, streams end with UNAVAILABLE (R-Relay-07). Default: 10 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub cold_deadline: Duration,
    /// How long an un-ACKed response holds back the next of its type. Default: 5 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub ack_timeout: Duration,
    /// Age at which a connection is asked to go, jittered. Default: 30 min.
    #[serde(serialize_with = "units::serialize_duration")]
    pub max_connection_age: Duration,
    /// How long clients are given to leave before the process ends. Default: 20 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub drain: Duration,
    /// How long a TLS handshake may take. Default: 5 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub handshake_timeout: Duration,
    /// How long a new connection or stream may stay silent. Default: 10 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub first_request_timeout: Duration,
    /// A connection whose transport takes nothing this long is closed. Default: 60 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub stall_timeout: Duration,
    /// A connection over HTTP/2 without an open stream is closed after this. Default: 5 min.
    #[serde(serialize_with = "units::serialize_duration")]
    pub idle_timeout: Duration,
    /// A stream whose client answers nothing of what it took is closed after this. Default: 10 min.
    #[serde(serialize_with = "units::serialize_duration")]
    pub unacked_timeout: Duration,
    /// HTTP/2 pings to clients.
    pub keepalive: Keepalive,
    /// The largest request accepted, in bytes. Default: 4 MiB.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_request_bytes: usize,
    /// Delta answers are split below this, in bytes (R-Up-23). Default: 1 MiB.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_response_bytes: usize,
    /// The longest resource name accepted, in bytes. Default: 16 KiB.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_name_bytes: usize,
    /// Names a stream may subscribe to, per type. Default: 100000.
    pub max_names: usize,
    /// Names over all streams, Fetches and polls of one connection.
    pub max_names_per_connection: usize,
    /// What these names and their locators may take together, in bytes. Default: 16 MiB.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_subscription_bytes: usize,
    /// Concurrent HTTP/2 streams of one connection. Default: 1000.
    pub max_streams_per_connection: u32,
    /// How many connections may be open.
    #[serde(flatten)]
    pub limits: ConnectionLimits,
    /// Bytes that requests may take together while they are not whole. Default: 256 MiB, or a 16th of the memory if
    /// less.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_buffered_request_bytes: usize,
    /// The same of one connection. Default: 16 MiB.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_buffered_request_bytes_per_connection: usize,
    /// Bytes that the versions brought by clients may take together. Default: 512 MiB, or an eighth of the
    /// memory if less.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_initial_version_bytes: usize,
    /// The same of one connection. Default: 64 MiB.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_initial_version_bytes_per_connection: usize,
    /// Bytes that large messages may keep in memory while they are sent; a message that many are sent counts once.
    /// Default: 256 MiB, or a 16th of the memory if less.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_unsent_bytes: usize,
    /// What the process may take before clients are refused, and closed.
    pub memory: Memory,
    /// Whether a name a client both asks for and holds at the current version is left out (R-Delta-06).
    /// Default: false.
    pub trust_initial_versions_for_explicit: bool,
    /// Whether endpoints are sent again after a change of their cluster (R-ADS-05). Default: true.
    pub eds_repush_on_cds_change: bool,
    /// Whether the control plane's errors of single resources are passed on (R-Err-07). Default: true.
    pub resource_errors: bool,
    /// Whether Secrets are served to peers that have not authenticated themselves and are not on this machine.
    pub secrets_without_authentication: bool,
    /// Whether peers that come over loopback count as being on this machine.
    pub secrets_over_loopback: bool,
    /// Full type URLs for which an empty first request is no wildcard (R-SotW-14). Default: EDS, RDS, SDS, ECDS, RTDS
    /// and LEDS.
    #[serde(serialize_with = "values::serialize_type_urls")]
    pub no_legacy_wildcard: BTreeSet<String>,
}

/// One place where clients connect; gRPC and REST-JSON share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listener {
    /// Default: `0.0.0.0:15010`.
    pub address: ListenAddress,
    /// Default: cleartext.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,
}

/// REST-JSON long polls, on the same listeners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rest {
    /// How long a request is held while there is nothing new (R-REST-06). Default: 800 ms.
    #[serde(serialize_with = "units::serialize_duration")]
    pub hold: Duration,
    /// How long a connection over HTTP/1 may be without a request, or take to say its head. Default: 60 s.
    #[serde(serialize_with = "units::serialize_duration")]
    pub idle_timeout: Duration,
    /// Requests that are held at a time for one address. Default: 10000.
    pub max_polls_per_peer: usize,
    /// Budget of the JSON that clients share, in bytes. Default: 256 MiB, or a 16th of the memory if less.
    #[serde(serialize_with = "units::serialize_size")]
    pub json_bytes: u64,
    /// Files with descriptors of further types. Absolute. Default: none.
    #[serde(serialize_with = "values::serialize_paths")]
    pub descriptor_sets: Vec<PathBuf>,
}

/// The endpoint for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Admin {
    /// Default: `127.0.0.1:15000`.
    pub address: SocketAddr,
}

/// Bounds of what is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Budget of the encoded frames that clients share, in bytes. Default: 256 MiB, or a 16th of the memory if less.
    #[serde(serialize_with = "units::serialize_size")]
    pub encoded_bytes: u64,
    /// Removed names remembered per type. Default: 10000.
    pub tombstones: usize,
    /// Sets of dynamic parameters that clients may choose at a time, counted per type. Default: 4096.
    pub max_parameter_sets: usize,
}

impl Config {
    /// Reads a file of at most 1 MiB.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::parse_file(&Self::read(path)?, path)
    }

    /// The text of a file of at most 1 MiB.
    pub fn read(path: &Path) -> Result<String, ConfigErrors> {
        tree::read_file(path).map_err(|problem| ConfigErrors::single(&path.display().to_string(), problem))
    }

    /// Reads what a file holds.
    pub fn parse_file(text: &str, path: &Path) -> Result<Self, ConfigErrors> {
        parse::config(text, &path.display().to_string(), path.parent())
    }

    /// Reads a text. `origin` names it in messages; if it is a path, relative paths in the text start from its folder.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        parse::config(text, origin, Path::new(origin).parent())
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        serde_saphyr::to_fmt_writer(f, self).map_err(|_| fmt::Error)
    }
}
