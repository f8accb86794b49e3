//! Refusals and disconnects of clients: metrics, and limit on log lines about limits.

use std::sync::{LazyLock, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, counter, gauge};

use super::LogThrottle;
use super::catalog::{DENIED, GRPC_OVER_HTTP1, LAST_REFUSAL, REFUSED, TLS_HANDSHAKES};
use crate::limit::{Limit, is_tls_refusal};

/// Cause of a refusal, as in the label `cause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Limit,
    Denied,
    Tls,
    Http1,
}

impl Cause {
    const LABELS: [&'static str; 4] = ["limit", "denied", "tls", "http1"];

    /// Notes the time, so that `deltafan status` can tell a refusal that goes on from one that is over.
    fn note(self) {
        static GAUGES: OnceLock<[Gauge; Cause::LABELS.len()]> = OnceLock::new();
        let gauges = GAUGES.get_or_init(|| Self::LABELS.map(|cause| gauge!(LAST_REFUSAL, "cause" => cause)));
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        gauges[self as usize].set(since_1970.as_secs_f64());
    }
}

/// Counts a request that the rules of authorization or groups deny.
pub fn denied(what: &'static str) {
    counter!(DENIED, "what" => what).increment(1);
    Cause::Denied.note();
}

/// Counts requested names that are hidden from a peer. The client is served without them.
pub fn hidden(what: &'static str, count: u64) {
    if count > 0 {
        counter!(DENIED, "what" => what).increment(count);
    }
}

/// Counts a gRPC request over HTTP/1.
pub fn grpc_over_http1() {
    counter!(GRPC_OVER_HTTP1).increment(1);
    Cause::Http1.note();
}

pub fn tls_handshake(result: &'static str) {
    counter!(TLS_HANDSHAKES, "result" => result).increment(1);
    if is_tls_refusal(result) {
        Cause::Tls.note();
    }
}

pub fn refused(limit: Limit, count: u64) {
    if !limit.is_for_silence() {
        Cause::Limit.note();
    }
    // Looked up once: ten thousand refusals a second must cost little.
    static COUNTERS: OnceLock<[Counter; Limit::ALL.len()]> = OnceLock::new();
    let counter = |limit: Limit| counter!(REFUSED, "reason" => limit.label());
    COUNTERS.get_or_init(|| Limit::ALL.map(counter))[limit as usize].increment(count);
}

/// Counts a refusal or disconnect. Returns the number of log lines suppressed since the last one, if this one
/// may be logged.
pub fn refused_at(limit: Limit, now: Instant) -> Option<u64> {
    static THROTTLE: LazyLock<LogThrottle<Limit>> = LazyLock::new(LogThrottle::default);
    refused(limit, 1);
    THROTTLE.say(limit, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_refusal_is_said_seldom() {
        let now = Instant::now();
        assert_eq!(refused_at(Limit::Types, now), Some(0));
        assert!((0..100).all(|_| refused_at(Limit::Types, now).is_none()));
    }
}
