//! Counters that exist from the start, with each of their labels.
//!
//! A counter that appears with its first event begins at 1 for Prometheus: `increase()` and `rate()` do not see that event, so an alert
//! on them misses it. Counters of what is not configured, such as the snapshot, are not there.

use metrics::counter;

use super::polls::{PollOutcome, REST};
use super::streams::RequestResult;
use super::{
    ACCEPT_FAILURES, DELAYS, DENIED, OVERDUE, POLLS, REQUESTS, RESPONSE_BYTES, RESPONSES, STREAMS_ENDED,
    TLS_HANDSHAKES, limits,
};

/// Short names of types, as metrics have them.
const TYPES: [&str; 11] =
    ["cds", "eds", "leds", "lds", "srds", "rds", "vhds", "sds", "ecds", "rtds", "other"];

/// Transports of streams.
const STREAM_TRANSPORTS: [&str; 2] = ["delta", "sotw"];

/// gRPC status codes with which streams end.
pub const STATUS_CODES: [&str; 10] = [
    "ok",
    "cancelled",
    "invalid_argument",
    "deadline_exceeded",
    "permission_denied",
    "failed_precondition",
    "resource_exhausted",
    "unimplemented",
    "unavailable",
    "other",
];

/// Subjects of denials.
const DENIALS: [&str; 9] =
    ["peer", "node_id", "cluster", "type", "secret", "parameters", "group", "name", "wildcard"];

/// Results of TLS handshakes.
const HANDSHAKES: [&str; 16] = [
    "ok",
    "no_certificate",
    "unknown_ca",
    "expired",
    "revoked",
    "bad_certificate",
    "incompatible",
    "refused_by_peer",
    "not_tls",
    "to_cleartext",
    "timeout",
    "closed",
    "waited",
    "left",
    "draining",
    "protocol",
];

/// Makes the counters.
pub(super) fn make() {
    limits::make();
    counter!(ACCEPT_FAILURES).absolute(0);
    for awaited in ["clusters", "routes"] {
        counter!(OVERDUE, "awaited" => awaited).absolute(0);
    }
    for what in DENIALS {
        counter!(DENIED, "what" => what).absolute(0);
    }
    for result in HANDSHAKES {
        counter!(TLS_HANDSHAKES, "result" => result).absolute(0);
    }
    for transport in STREAM_TRANSPORTS {
        for code in STATUS_CODES {
            counter!(STREAMS_ENDED, "transport" => transport, "code" => code).absolute(0);
        }
    }
    for kind in TYPES {
        for transport in STREAM_TRANSPORTS {
            for result in RequestResult::LABELS {
                counter!(REQUESTS, "type" => kind, "transport" => transport, "result" => result).absolute(0);
            }
        }
        for transport in [STREAM_TRANSPORTS[0], STREAM_TRANSPORTS[1], REST] {
            counter!(RESPONSES, "type" => kind, "transport" => transport).absolute(0);
            counter!(RESPONSE_BYTES, "type" => kind, "transport" => transport).absolute(0);
        }
        for outcome in PollOutcome::LABELS {
            counter!(POLLS, "type" => kind, "outcome" => outcome).absolute(0);
        }
    }
    // Types that lead routes.
    for kind in ["cds", "eds", "leds"] {
        counter!(DELAYS, "type" => kind).absolute(0);
    }
}
