//! Limits that peers reach: their names in metrics and in the log.

use std::sync::OnceLock;
use std::time::Instant;

use metrics::{Counter, counter};
use parking_lot::Mutex;

use super::{LogThrottle, REFUSED};

/// Limit that caused a refusal or a disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Connections of all listeners.
    Connections,
    /// Connections from one address.
    ConnectionsPerAddress,
    /// Connections of one identity.
    ConnectionsPerIdentity,
    /// Streams of one connection.
    Streams,
    /// Bytes of one request.
    RequestBytes,
    /// Bytes of incomplete requests of one connection.
    BufferedPerConnection,
    /// Bytes of incomplete requests of all connections.
    Buffered,
    /// Bytes of the versions that clients of one connection say they hold.
    VersionsPerConnection,
    /// Bytes of the versions that all clients say they hold.
    Versions,
    /// Bytes of large messages that are being sent.
    Unsent,
    /// Names of one type and stream.
    Names,
    /// Names of all types and streams of one connection.
    NamesPerConnection,
    /// Bytes of one name.
    NameBytes,
    /// Bytes of all names and locators of one type and stream.
    SubscriptionBytes,
    /// Dynamic parameters of one locator, or sets of them of one stream.
    Parameters,
    /// Views through dynamic parameters.
    ParameterSets,
    /// Types of one stream; of all streams, types that the control plane does not have.
    Types,
    /// Polls of one address.
    Polls,
    /// Time until the first request.
    FirstRequest,
    /// Time that a request or response may stand still.
    Stall,
    /// Time without a stream.
    Idle,
    /// Time without an ACK or NACK.
    Unacked,
    /// Memory above which new clients are refused.
    MemoryRefuse,
    /// Memory above which connections are closed.
    MemoryClose,
}

/// Label of each limit, and the key of the configuration that raises it.
const NAMES: [(&str, &str); 24] = [
    ("max_connections", "downstream.max_connections"),
    ("max_connections_per_address", "downstream.max_connections_per_address"),
    ("max_connections_per_identity", "downstream.max_connections_per_identity"),
    ("max_streams_per_connection", "downstream.max_streams_per_connection"),
    ("max_request_bytes", "downstream.max_request_bytes"),
    ("max_buffered_request_bytes_per_connection", "downstream.max_buffered_request_bytes_per_connection"),
    ("max_buffered_request_bytes", "downstream.max_buffered_request_bytes"),
    ("max_initial_version_bytes_per_connection", "downstream.max_initial_version_bytes_per_connection"),
    ("max_initial_version_bytes", "downstream.max_initial_version_bytes"),
    ("max_unsent_bytes", "downstream.max_unsent_bytes"),
    ("max_names", "downstream.max_names"),
    ("max_names_per_connection", "downstream.max_names_per_connection"),
    ("max_name_bytes", "downstream.max_name_bytes"),
    ("max_subscription_bytes", "downstream.max_subscription_bytes"),
    ("parameters", "none: it is fixed"),
    ("max_parameter_sets", "cache.max_parameter_sets"),
    ("types", "none: it is fixed"),
    ("max_polls_per_peer", "rest.max_polls_per_peer"),
    ("first_request_timeout", "downstream.first_request_timeout"),
    ("stall_timeout", "downstream.stall_timeout"),
    ("idle_timeout", "downstream.idle_timeout"),
    ("unacked_timeout", "downstream.unacked_timeout"),
    ("memory_refuse_above", "downstream.memory.refuse_above"),
    ("memory_close_above", "downstream.memory.close_above"),
];

/// Metric and log limit of one limit.
#[derive(Debug)]
struct Reached {
    count: Counter,
    complaints: Mutex<LogThrottle>,
}

fn reached(limit: Limit) -> &'static Reached {
    // Looked up once: ten thousand refusals a second must cost little.
    static ALL: OnceLock<[Reached; NAMES.len()]> = OnceLock::new();
    let make =
        |(reason, _)| Reached { count: counter!(REFUSED, "reason" => reason), complaints: Mutex::default() };
    &ALL.get_or_init(|| NAMES.map(make))[limit as usize]
}

impl Limit {
    /// Returns the key of the configuration that raises it.
    pub const fn key(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Counts a refusal or disconnect.
    pub fn count(self) {
        self.count_all(1);
    }

    /// Counts several refusals or disconnects.
    pub fn count_all(self, refused: u64) {
        reached(self).count.increment(refused);
    }

    /// Counts a refusal or disconnect. Returns the number of log lines suppressed since the last one if this
    /// one may be logged, else `None`.
    pub fn reach(self, now: Instant) -> Option<u64> {
        self.count();
        reached(self).complaints.lock().say(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_own_name() {
        assert_eq!(NAMES.len(), Limit::MemoryClose as usize + 1);
        assert_eq!(Limit::Idle.key(), "downstream.idle_timeout");
        assert_eq!(Limit::Polls.key(), "rest.max_polls_per_peer");
        for (reason, key) in NAMES {
            let tail = key.rsplit('.').next().expect("a word");
            let is_last = key.starts_with("none") || reason.ends_with(tail);
            assert!(is_last, "{reason}: {key}");
        }
    }

    #[test]
    fn a_repeated_refusal_is_said_seldom() {
        let now = Instant::now();
        assert_eq!(Limit::Types.reach(now), Some(0));
        assert!((0..100).all(|_| Limit::Types.reach(now).is_none()));
    }
}
