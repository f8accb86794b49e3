//! Metrics of clients: streams, long polls, refusals and disconnects; and the limit on log lines about limits.

use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deltafan_core::cache::Protocol;
use deltafan_core::resource::Kind;
use deltafan_core::subscription::HiddenCounts;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::LogThrottle;
use super::catalog::*;
use crate::limit::{Limit, is_tls_refusal};

#[derive(Debug)]
struct ResponseMetrics {
    count: Counter,
    bytes: Counter,
    propagation: Histogram,
}

impl ResponseMetrics {
    fn of(kind: &'static str, transport: &'static str) -> Self {
        Self {
            count: counter!(RESPONSES, "type" => kind, "transport" => transport),
            bytes: counter!(RESPONSE_BYTES, "type" => kind, "transport" => transport),
            propagation: histogram!(PROPAGATION, "type" => kind, "transport" => transport),
        }
    }

    fn add(&self, bytes: usize, waited: Option<Duration>) {
        self.count.increment(1);
        self.bytes.increment(bytes as u64);
        waited.into_iter().for_each(|waited| self.propagation.record(waited));
    }
}

/// Metrics of one stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamMetrics(pub Protocol);

impl StreamMetrics {
    /// Counts a response that the transport took. `waited` is the time since its newest change arrived,
    /// `coalesced` the number of overtaken changes.
    pub fn sent(&self, kind: Kind, bytes: usize, waited: Option<Duration>, coalesced: u32) {
        let counters = TypeCounters::of(kind, self.0);
        counters.responses.add(bytes, waited);
        if coalesced > 0 {
            counters.coalesced.increment(coalesced.into());
        }
    }

    /// Counts a request; `took` is the time between a response and its ACK.
    pub fn received(&self, kind: Kind, result: RequestResult, took: Option<Duration>) {
        let counters = TypeCounters::of(kind, self.0);
        counters.requests[result as usize].increment(1);
        if let Some(took) = took {
            counters.acks.record(took);
        }
    }

    pub fn ended(&self, code: &'static str) {
        counter!(STREAMS_ENDED, "transport" => self.0.label(), "code" => code).increment(1);
    }
}

deltafan_core::labelled! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RequestResult {
        /// Answers no response.
        Subscribe = "subscribe",
        Ack = "ack",
        Nack = "nack",
        /// Answers an older response.
        Stale = "stale",
    }
}

#[derive(Debug)]
struct TypeCounters {
    responses: ResponseMetrics,
    /// Of all transports.
    coalesced: Counter,
    acks: Histogram,
    requests: [Counter; RequestResult::ALL.len()],
}

impl TypeCounters {
    /// Made once: a look-up by labels costs more than counting.
    fn of(kind: Kind, protocol: Protocol) -> &'static Self {
        static ALL: [[OnceLock<TypeCounters>; Kind::ALL.len()]; Protocol::ALL.len()] =
            [const { [const { OnceLock::new() }; Kind::ALL.len()] }; Protocol::ALL.len()];
        ALL[protocol as usize][kind as usize].get_or_init(|| {
            let (kind, transport) = (kind.short(), protocol.label());
            let requests = |result: RequestResult| counter!(REQUESTS, "type" => kind, "transport" => transport, "result" => result.label());
            Self {
                responses: ResponseMetrics::of(kind, transport),
                coalesced: counter!(COALESCED, "type" => kind),
                acks: histogram!(ACKS, "type" => kind, "transport" => transport),
                requests: RequestResult::ALL.map(requests),
            }
        })
    }
}

deltafan_core::labelled! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PollOutcome {
        Answered = "answered",
        /// Nothing changed while it was held.
        NotModified = "not_modified",
        /// A resource was still unknown at the end of the hold.
        Unknown = "unknown",
        Refused = "refused",
        TooMany = "too_many",
        /// The descriptors lack the type of a resource.
        UnknownType = "unknown_type",
        /// A resource cannot be written as JSON for another reason.
        Unwritable = "unwritable",
        /// The client hung up.
        Abandoned = "abandoned",
    }
}

/// Counts a poll when it ends.
#[derive(Debug)]
pub struct PollCounter {
    counters: &'static PollCounters,
    outcome: PollOutcome,
}

impl PollCounter {
    pub fn open(kind: Kind) -> Self {
        // A poll that is dropped without another end was abandoned.
        Self { counters: PollCounters::of(kind), outcome: PollOutcome::Abandoned }
    }

    /// Ends it with an answer of `bytes`; `waited` is the time since the newest change in it.
    pub fn answered(&mut self, bytes: usize, waited: Option<Duration>) {
        self.counters.responses.add(bytes, waited);
        self.ended(PollOutcome::Answered);
    }

    pub const fn ended(&mut self, outcome: PollOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for PollCounter {
    fn drop(&mut self) {
        self.counters.outcomes[self.outcome as usize].increment(1);
    }
}

#[derive(Debug)]
struct PollCounters {
    outcomes: [Counter; PollOutcome::ALL.len()],
    responses: ResponseMetrics,
}

impl PollCounters {
    fn of(kind: Kind) -> &'static Self {
        static ALL: [OnceLock<PollCounters>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
        ALL[kind as usize].get_or_init(|| {
            let kind = kind.short();
            let outcome =
                |outcome: PollOutcome| counter!(POLLS, "type" => kind, "outcome" => outcome.label());
            Self { outcomes: PollOutcome::ALL.map(outcome), responses: ResponseMetrics::of(kind, "rest") }
        })
    }
}

deltafan_core::labelled! {
    /// Cause of a refusal, as in the label `cause`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Cause {
        Limit = "limit",
        Denied = "denied",
        Tls = "tls",
        Http1 = "http1",
    }
}

impl Cause {
    /// Notes the time, so that `deltafan status` can tell a refusal that goes on from one that is over.
    fn note(self) {
        static GAUGES: OnceLock<[Gauge; Cause::ALL.len()]> = OnceLock::new();
        let gauges =
            GAUGES.get_or_init(|| Self::ALL.map(|cause| gauge!(LAST_REFUSAL, "cause" => cause.label())));
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        gauges[self as usize].set(since_1970.as_secs_f64());
    }
}

/// Counts a request that the rules of authorization or groups deny.
pub fn denied(what: &'static str) {
    counter!(DENIED, "what" => what).increment(1);
    Cause::Denied.note();
}

/// Counts requested names and wildcards that are hidden from a peer. The client is served without them.
pub fn hidden(counts: HiddenCounts) {
    let add = |what: &'static str, count| {
        if count > 0 {
            counter!(DENIED, "what" => what).increment(count);
        }
    };
    add("name", counts.names);
    add("wildcard", counts.wildcards);
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

/// Counts refusals or disconnects. Returns the number of log lines suppressed since the last one, if this one
/// may be logged.
pub fn refused_at(limit: Limit, count: u64, now: Instant) -> Option<u64> {
    static THROTTLE: LazyLock<LogThrottle<Limit>> = LazyLock::new(LogThrottle::default);
    refused(limit, count);
    THROTTLE.allow(limit, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_refusal_is_said_seldom() {
        let now = Instant::now();
        assert_eq!(refused_at(Limit::Types, 1, now), Some(0));
        assert!((0..100).all(|_| refused_at(Limit::Types, 1, now).is_none()));
    }
}
