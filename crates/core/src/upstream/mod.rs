//! The relay as an xDS client: from a control plane, or a directory in its place, into the cache.
//!
//! Owns the aggregated streams, the subscriptions on them, and the conclusions from responses.
//! Knows nothing of clients: their wishes come from the cache as names with parameters. Nothing
//! else of theirs reaches the control plane (R-Relay-14), except rejections that the rollout guard
//! reports. [`Mux`] is a plain value, driven by events and times; [`DirectoryMirror`] takes its
//! place for a directory. The program's `upstream` module moves the bytes.
//!
//! Four rules decide which resources exist. Each fact about a control plane (O1 and others,
//! docs/origins.md) is handled beside the rule that it concerns:
//!
//! | Rule | Place |
//! |---|---|
//! | 1. A response changes what it names. | `response` checks it, `topic/match_response` finds the questions that it answers, `topic/apply_response` the changes |
//! | 2. An answer is complete with its end mark (R-Up-22). | `members` and `names/request` ask; `members` and `names/answer` (`receive_end_mark`) judge the answer |
//! | 3. A resource missing from a complete answer is absent. | `members` and `names/answer` (`take_whole`), `topic/apply_response` (`apply_end`) |
//! | 4. Unanswered questions are asked by inquiry: names, or a census of a set. | `names/answer` (`take_unanswered`) and `members` (`census_since`) say when, `inquiry` asks, `mux/inquiries` learns |
//! | Fallback: silence shows a set to clients that hold nothing, and removes nothing. | `answer`, `topic/advance` |
//!
//! | The control plane … | Place |
//! |---|---|
//! | must not be sent a version (spelling, TTL, other server) | `target` (`claim`) |
//! | needs a new stream | `topic` says so (`renews`), `mux/stream` has the pace |
//! | ends the stream when asked for a type | `suspects`, `mux/trials` |
//! | speaks SotW | `sotw`, `sotw/read_response` |
//! | has variants, or does not read locators | `topic_set`, `variants`, `mux/questions` |
//! | is a relay, or refuses a census | `topic` (`OriginTraits`) |
//!
//! Invariants:
//! - On one stream a type is subscribed to either as wildcard or by names, never first one and then
//!   the other (R-Relay-03). A live stream keeps its wildcards (O1).
//! - A response is applied as a whole or, with a NACK, not at all (R-Up-12, R-Up-13).
//! - Memory is bounded by the subscriptions of the connection, whatever the control plane sends.

mod aliases;
mod answer;
mod backoff;
mod directory_mirror;
mod expiry;
mod failover;
mod inquiry;
mod linger;
mod members;
mod mux;
mod names;
mod probe;
mod quiet_clock;
mod readiness;
mod refusal;
mod representative;
mod response;
mod silence;
mod sotw;
mod suspects;
mod target;
mod topic;
mod topic_set;
mod upstream_state;
mod variants;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub use backoff::Backoff;
pub use directory_mirror::DirectoryMirror;
pub use failover::{Change as ServerChange, Failover, FailoverTimes, ServerCondition};
pub use mux::{Mux, Restored};
pub use probe::{Question, came_from};
pub use readiness::Readiness;
pub use refusal::Refusal;
pub use representative::{NodeBudget, NodeBudgetError, Representative, Stay};
pub use response::{Complaint, ProtocolError};
pub use silence::Unanswered;
pub use upstream_state::UpstreamState;

use xxhash_rust::xxh3;

use crate::proto::Node;
use crate::{LogThrottle, RelayIdentity};

/// One of the two streams to the control plane, on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamId {
    /// Stream of every type that is subscribed to in one way only.
    Primary,
    /// Stream of the other view of types that are subscribed to as wildcard and by name
    /// (R-Relay-03). Open only while there are any.
    Secondary,
}

impl StreamId {
    /// Both streams.
    pub const ALL: [Self; 2] = [Self::Primary, Self::Secondary];
}

/// Identity of a server: its URI as configured.
///
/// Versions belong to the server that gave them (R-Up-04): a returning client must not count as
/// current because another server gave its version to other content. So clients receive versions of
/// the first server in the list unchanged, and those of others with a mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(Arc<str>);

impl ServerId {
    /// The URI.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Suffix of versions of this server: `~` and 8 hexadecimal digits, a hash of the URI. It is
    /// equal in all relays, and after a restart.
    fn mark(&self) -> String {
        format!("~{:08x}", xxh3::xxh3_64(self.0.as_bytes()) as u32)
    }
}

impl From<&str> for ServerId {
    fn from(uri: &str) -> Self {
        Self(uri.into())
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Form of requests with dynamic parameters (R-Up-18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locators {
    /// By resource locators: name and parameters. If the control plane leaves them unanswered,
    /// plain names are used until the next connection.
    #[default]
    Native,
    /// By name alone, for control planes that send all variants of a name.
    Plain,
}

/// Behaviour of the relay as a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Node in the first message of each stream (R-Up-01).
    pub node: Node,
    /// Name of this process in responses (R-Relay-19, R-Relay-24).
    pub identity: RelayIdentity,
    /// Time for which unwanted names and wildcards stay subscribed (R-Relay-16).
    pub linger: Duration,
    /// Most unwanted names, with a wildcard counted as one. Beyond it the oldest are let go early.
    pub max_lingering: usize,
    /// Number of these over all node groups that share the settings and the bound.
    pub all_lingering: Arc<AtomicUsize>,
    /// Most sets of parameters with anything unwanted, counted per type: each costs a topic, and a
    /// look at each response.
    pub max_lingering_sets: usize,
    /// Limits on log lines about responses, shared by all node groups.
    pub complaints: Arc<LogThrottle<Complaint>>,
    /// Settings that may change at run time.
    pub tuning: Tuning,
    /// Time between subscription changes after the first (R-Up-20).
    pub request_interval: Duration,
    /// Whether all servers give equal content equal versions, so that versions of one are offered
    /// to another (R-Up-04).
    pub same_versions: bool,
    /// Server whose versions clients see unmarked, if there are several servers.
    pub first_server: Option<ServerId>,
    /// Form of requests with parameters.
    pub locators: Locators,
    /// Time after which a control plane that leaves a locator unanswered is taken not to read
    /// locators, unless it has shown that it knows constraints (R-Up-18).
    pub locator_timeout: Duration,
    /// Time after which an unanswered question is asked again, on a new stream (O1, O2).
    pub answer_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node: Node::default(),
            identity: RelayIdentity::default(),
            linger: Duration::from_secs(60),
            max_lingering: 100_000,
            all_lingering: Arc::default(),
            max_lingering_sets: 1024,
            complaints: Arc::default(),
            tuning: Tuning::default(),
            request_interval: Duration::from_millis(10),
            same_versions: false,
            first_server: None,
            locators: Locators::default(),
            // Clients give up on a first answer after 15 s (R-SotW-26).
            locator_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(3),
        }
    }
}

/// Settings that may change at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Least silence after which an answer is settled (R-Relay-05), see `answer`.
    pub settle: Duration,
    /// Least time until a wildcard settles beside wildcards with other parameters. Also the age at
    /// which an uncacheable resource is dropped (R-XT-09).
    pub settle_max: Duration,
    /// Whether clients receive resource errors of the control plane (R-Err-07). Otherwise only
    /// `NOT_FOUND` counts.
    pub resource_errors: bool,
    /// Whether endpoints are sent again when their cluster changed (R-ADS-05).
    pub eds_repush: bool,
    /// Whether endpoints of new clusters are requested before a client asks.
    pub prefetch_endpoints: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(200),
            settle_max: Duration::from_secs(1),
            resource_errors: true,
            eds_repush: true,
            prefetch_endpoints: true,
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $counter:ident: $label:literal,)*) => {
        /// Counts of upstream events since the start.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $counter: Counter,)*
        }

        impl Counters {
            pub const NAMES: [&str; [$($label),*].len()] = [$($label),*];

            /// All counters with their names.
            pub fn all(&self) -> [(&'static str, u64); Self::NAMES.len()] {
                [$(($label, self.$counter.get())),*]
            }
        }
    };
}

counters! {
    /// Responses received and decoded.
    responses: "response",
    /// Responses rejected with a NACK.
    nacks_sent: "nack_sent",
    /// Requests of any kind, ACKs included.
    requests: "request",
    /// Responses dropped because their type was never requested on their stream (R-Up-11).
    unrequested_responses: "unrequested_response",
    /// Resources, removals and errors that no subscription covers (R-Up-15).
    unrequested_resources: "unrequested_resource",
    /// Resources refused because their dynamic parameter constraints are invalid (R-DP-02).
    refused_resources: "refused_resource",
    /// Names with more than one variant for the same clients (R-DP-04).
    ambiguous: "ambiguous_variant",
    /// Errors of single resources.
    resource_errors: "resource_error",
    /// Unsolicited copies of resources at the version held (R-Relay-21).
    unsolicited: "unsolicited_resend",
    /// Resources whose TTL ended without a renewal (R-TTL-09).
    expired: "expired_resource",
    /// Connections on which locators were given up as unanswered (R-Up-18).
    locators_ignored: "locators_ignored",
    /// Names let go before their linger time, because too many waited.
    crowded_out: "crowded_out",
    /// Names of endpoints that were requested before any client asked.
    prefetched: "prefetch",
    /// Requests that reported changes held by the rollout guard, one for each type.
    holds_reported: "hold_reported",
    /// Resources and removals applied to the cache.
    operations: "operation",
    /// Streams renewed on a live connection (O1).
    renewals: "renewal",
    /// Streams opened for one question.
    inquiries: "inquiry",
    /// Connections established.
    connects: "connect",
    /// Connections established, after the first.
    reconnects: "reconnect",
    /// Failed attempts to connect.
    connect_failures: "connect_failure",
    /// Streams that ended before any response, or with a protocol error.
    stream_failures: "stream_failure",
    /// Changes to the next server, because one did not answer.
    failovers: "failover",
    /// Changes back to a more preferred server.
    failbacks: "failback",
    /// Streams opened to probe a more preferred server.
    probes: "probe",
}

/// Number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
