//! The relay as an xDS client: from one origin, or from a directory in its place, into the cache.
//!
//! Owns the aggregated streams to the origin, what is subscribed to on them, and what is known by the answers. Knows nothing of clients:
//! what they want comes from the cache as names with parameters, and nothing of theirs reaches the origin but those (R-Relay-14), and
//! texts of rejections where the rollout guard reports what it holds. [`Mux`] is a plain value that is told what happened and when;
//! [`DirectoryMirror`] takes its place where the origin is a directory. The program's `upstream` module moves bytes and tells them.
//!
//! Four rules decide what exists. Each fact about an origin (O1 and others, docs/origins.md) has its place beside the rule that it concerns:
//!
//! | Rule | Place |
//! |---|---|
//! | 1. A response changes what it names. | `response` checks it, `topic/hear` finds the questions that it answers, `topic/apply_response` the changes |
//! | 2. An answer is complete with its end mark (R-Up-22). | `members` and `names/request` ask; `members` and `names/answer` (`hear_end`) judge what answers it |
//! | 3. What was asked for and is missing from a complete answer is absent. | `members` and `names/answer` (`take_whole`), `topic/apply_response` (`learn_end`) |
//! | 4. What stays unanswered is asked by inquiry: names, or a census of a set. | `names/answer` (`take_unanswered`) and `members` (`census_since`) say when, `inquiry` asks, `mux/inquiries` learns |
//! | Fallback: silence shows a set to clients that hold nothing, and removes nothing. | `arrival`, `topic/advance` |
//!
//! | The origin … | Place |
//! |---|---|
//! | must not be told a version (spelling, TTL, other server) | `target` (`claim`) |
//! | needs a new stream | `topic` says so (`renews`), `mux/stream` has the pace |
//! | ends the stream when asked for a type | `suspects`, `mux/trials` |
//! | speaks state of the world | `sotw/ask`, `sotw/hear` |
//! | has variants, or does not read locators | `topic_set`, `variants`, `mux/unanswered` |
//! | is a relay, or refuses a census | `topic` (`OriginHabits`) |
//!
//! Invariants:
//! - On one stream a type is subscribed to either as wildcard or by names, never first the one and then the other (R-Relay-03). A
//!   wildcard is not let go on a stream that lives (O1).
//! - A response is applied as a whole or, with a NACK, not at all (R-Up-12, R-Up-13).
//! - What is kept is bounded by what was subscribed to on the connection that stands, whatever the origin sends.

mod aliases;
mod answer;
mod arrival;
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
mod server;
mod silence;
mod sotw;
mod suspects;
mod target;
mod topic;
mod topic_set;
mod upstream_state;
mod variants;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub use backoff::Backoff;
pub use directory_mirror::{DirectoryMirror, DirectoryResource};
pub use failover::{Change as ServerChange, Failover, FailoverTimes, Sight};
pub use mux::{Mux, Restored};
pub use probe::{Question, came_from};
pub use readiness::{Readiness, Verdict};
pub use refusal::Refusal;
pub use representative::{NodeBudget, NodeBudgetError, Representative, Stay};
pub use response::{Complaint, ProtocolError};
pub use server::ServerId;
pub use silence::{SilenceEvent, SilenceLog, Unanswered};
pub use upstream_state::UpstreamState;

use crate::proto::Node;
use crate::{LogThrottle, RelayIdentity};

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

/// How names are asked for that clients want with dynamic parameters (R-Up-18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locators {
    /// By resource locators: the name and the parameters. An origin that leaves them unanswered is asked by plain names,
    /// until the next connection.
    #[default]
    Native,
    /// By the name alone, in the lists that every origin reads, for those that send all variants of a name.
    Plain,
}

/// How the relay behaves as a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Node that the relay sends in the first message of each stream (R-Up-01).
    pub node: Node,
    /// Name of this process in responses for clients, and in those that came from it (R-Relay-19, R-Relay-24).
    pub identity: RelayIdentity,
    /// How long what nobody wants stays subscribed (R-Relay-16).
    pub linger: Duration,
    /// No more than so many of these, the wildcard counted as a name; past that the oldest are let go early.
    pub max_lingering: usize,
    /// Number of these over all node groups whose settings share it: the bound is one for all.
    pub all_lingering: Arc<AtomicUsize>,
    /// No more than so many sets of parameters of which anything lingers, counted per type: each takes a topic, and a look
    /// at each response.
    pub max_lingering_sets: usize,
    /// Limits on log lines about responses. All node groups share them: a fault that is sent to each group is logged once.
    pub complaints: Arc<LogThrottle<Complaint>>,
    /// Least silence after which an answer is settled (R-Relay-05), see `arrival`.
    pub settle: Duration,
    /// A wildcard beside wildcards with other parameters settles no sooner after the first part of its answer; what may not be kept is
    /// dropped so long after it came (R-XT-09).
    pub settle_max: Duration,
    /// Subscription changes after the first are sent this far apart (R-Up-20).
    pub request_interval: Duration,
    /// Whether all servers give equal content equal versions, so that versions of one are offered to another (R-Up-04).
    pub same_versions: bool,
    /// Server whose versions clients are told as they are, where there are several; those of others are marked.
    pub first_server: Option<ServerId>,
    /// See [`Locators`].
    pub locators: Locators,
    /// An origin that leaves a locator unanswered for so long, and never showed that it knows constraints, is taken not to
    /// read locators (R-Up-18).
    pub locator_timeout: Duration,
    /// A question without an answer is asked again after this time, on a stream of its own (O1, O2).
    pub answer_timeout: Duration,
    /// Whether clients are told the origin's resource errors (R-Err-07). If not, all that counts of them is that a
    /// resource does not exist.
    pub resource_errors: bool,
    /// Whether the origin is asked for the endpoints of new clusters before a client asks for them.
    pub prefetch_endpoints: bool,
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
            settle: Duration::from_millis(200),
            settle_max: Duration::from_secs(1),
            request_interval: Duration::from_millis(10),
            same_versions: false,
            first_server: None,
            locators: Locators::default(),
            // Clients give up on a first answer after 15 s (R-SotW-26).
            locator_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(3),
            resource_errors: true,
            prefetch_endpoints: true,
        }
    }
}

/// Settings of a source that may change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// As in [`Settings`].
    pub settle: Duration,
    /// As in [`Settings`].
    pub settle_max: Duration,
    /// As in [`Settings`].
    pub resource_errors: bool,
    /// Whether endpoints are sent again when their cluster changed (R-ADS-05).
    pub eds_repush: bool,
    /// As in [`Settings`].
    pub prefetch_endpoints: bool,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $counter:ident: $label:literal,)*) => {
        /// Counts of upstream events since the start.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $counter: Counter,)*
        }

        impl Counters {
            /// Number of counters.
            pub const COUNT: usize = [$($label),*].len();

            /// All of them with their names.
            pub fn all(&self) -> [(&'static str, u64); Self::COUNT] {
                [$(($label, self.$counter.get())),*]
            }
        }
    };
}

counters! {
    /// Responses received and decoded.
    responses: "response",
    /// Responses refused with a NACK.
    nacks_sent: "nack_sent",
    /// Requests of any kind, ACKs included.
    requests: "request",
    /// Responses dropped because their type was never subscribed to on their stream (R-Up-11).
    unrequested_responses: "unrequested_response",
    /// Resources, removals and errors ignored because nothing subscribed to covers them (R-Up-15).
    unrequested_resources: "unrequested_resource",
    /// Resources refused because their dynamic parameter constraints are not to be understood (R-DP-02).
    refused_resources: "refused_resource",
    /// Names of which more than one variant was found to be for the same clients (R-DP-04).
    ambiguous: "ambiguous_variant",
    /// Errors of single resources, whether or not they were of use.
    resource_errors: "resource_error",
    /// Resources sent again by the origin of its own accord at the version held (R-Relay-21).
    unsolicited: "unsolicited_resend",
    /// Resources whose TTL ended without a word of the origin (R-TTL-09).
    expired: "expired_resource",
    /// Connections on which locators were given up, because the origin does not answer them (R-Up-18).
    locators_ignored: "locators_ignored",
    /// Names let go before their linger time, because too many waited.
    crowded_out: "crowded_out",
    /// Names of endpoints that were asked for before any client asked for them.
    prefetched: "prefetch",
    /// Requests that told of changes which the rollout guard holds, one for each type.
    holds_reported: "hold_reported",
    /// Resources and removals handed to the cache.
    operations: "operation",
    /// Streams that were opened anew on a connection that stood (O1).
    renewals: "renewal",
    /// Streams that were opened for one question.
    inquiries: "inquiry",
    /// Connections that stood.
    connects: "connect",
    /// Connections that stood, after the first.
    reconnects: "reconnect",
    /// Attempts to connect that failed.
    connect_failures: "connect_failure",
    /// Streams that ended before any response, or with a fault in the protocol.
    stream_failures: "stream_failure",
    /// Changes to the next server, because one did not answer.
    failovers: "failover",
    /// Changes back to a more preferred server.
    failbacks: "failback",
    /// Streams that were opened to find out whether a more preferred server answers.
    probes: "probe",
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `count` more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
