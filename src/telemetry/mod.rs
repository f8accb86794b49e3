//! Metrics and their labels, and limits on log lines.
//!
//! A leaf: it knows the terms of the field and nothing of its callers. Labels have bounded cardinality: type,
//! transport, result, reason; never a string that a peer chose. The names are a contract with dashboards;
//! docs/operations.md lists them.

#![expect(clippy::disallowed_macros, reason = "this is the one place where metrics are declared")]

mod at_zero;
mod limits;
mod lines;
mod log_budget;
mod log_level;
mod polls;
mod rollout;
mod snapshot;
mod streams;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub use at_zero::STATUS_CODES;
pub use deltafan_core::LogThrottle;
pub use limits::{refused, refused_at};
pub use lines::Lines;
pub use log_budget::LogBudget;
pub use log_level::LogLevel;
pub use polls::{PollGauge, PollOutcome};
pub use rollout::{RolloutFigures, report_rollouts};
pub use snapshot::{SnapshotFigures, report_snapshot, snapshot_loaded};
pub use streams::{RequestResult, StreamGauge};

const CONNECTIONS: &str = "deltafan_connections";
const STREAMS: &str = "deltafan_streams";
const CLIENTS: &str = "deltafan_clients";
const STREAMS_ENDED: &str = "deltafan_streams_ended_total";
const ACCEPT_FAILURES: &str = "deltafan_accept_failures_total";
const DENIED: &str = "deltafan_denied_total";
const REFUSED: &str = "deltafan_refused_total";
const MEMORY: &str = "deltafan_memory_bytes";
const RESPONSES: &str = "deltafan_responses_total";
const RESPONSE_BYTES: &str = "deltafan_response_bytes_total";
const ENCODES: &str = "deltafan_encodes_total";
const REQUESTS: &str = "deltafan_requests_total";
const PROPAGATION: &str = "deltafan_propagation_seconds";
const POLLS: &str = "deltafan_polls_total";
const HELD_POLLS: &str = "deltafan_held_polls";
const DELAYS: &str = "deltafan_delays_total";
const OVERDUE: &str = "deltafan_overdue_acks_total";
const JSON_WRITTEN: &str = "deltafan_json_written_total";
const RESOURCES: &str = "deltafan_resources";
const COHORTS: &str = "deltafan_cohorts";
const GENERATION: &str = "deltafan_generation";
const UPSTREAM_CONNECTIONS: &str = "deltafan_upstream_connections";
const GROUPS: &str = "deltafan_groups";
const GROUP_CLIENTS: &str = "deltafan_group_clients";
const GROUP_STALE: &str = "deltafan_group_stale_seconds";
const UPSTREAM_CONNECTED: &str = "deltafan_upstream_connected";
const UPSTREAM_SERVER: &str = "deltafan_upstream_active_server";
const UPSTREAM_PROTOCOL: &str = "deltafan_upstream_protocol";
const UPSTREAM_STALE: &str = "deltafan_upstream_stale_seconds";
const UPSTREAM_LAST_ANSWER: &str = "deltafan_upstream_last_answer_age_seconds";
const UPSTREAM_UNANSWERED: &str = "deltafan_upstream_unanswered_subscriptions";
const UPSTREAM: &str = "deltafan_upstream_events_total";
const UPSTREAM_APPLY: &str = "deltafan_upstream_apply_seconds";
const DIRECTORY_FAILURES: &str = "deltafan_directory_failing_files";
const TLS_RELOADS: &str = "deltafan_tls_reloads_total";
const TLS_RELOAD_FAILURES: &str = "deltafan_tls_reload_failures_total";
const TLS_EXPIRY: &str = "deltafan_tls_certificate_expiry_seconds";
const TLS_HANDSHAKES: &str = "deltafan_tls_handshakes_total";
const ROLLOUTS: &str = "deltafan_rollouts_total";
const ROLLOUT_CANARIES: &str = "deltafan_rollout_canaries";
const ROLLOUT_CHANGES: &str = "deltafan_rollout_changes";
const SNAPSHOT_LOADED: &str = "deltafan_snapshot_loaded_resources";
const SNAPSHOT_LOADED_BYTES: &str = "deltafan_snapshot_loaded_bytes";
const SNAPSHOT_LOAD: &str = "deltafan_snapshot_load_seconds";
const SNAPSHOT_WRITES: &str = "deltafan_snapshot_writes_total";
const SNAPSHOT_FAILURES: &str = "deltafan_snapshot_failures_total";
const SNAPSHOT_BYTES: &str = "deltafan_snapshot_bytes";
const SNAPSHOT_WRITE_AGE: &str = "deltafan_snapshot_last_write_age_seconds";
const CACHE_AGE: &str = "deltafan_cache_age_seconds";
const CONFIG_RELOADS: &str = "deltafan_config_reloads_total";
const CONFIG_SUCCESSFUL: &str = "deltafan_config_last_reload_successful";
const CONFIG_SUCCESS_AT: &str = "deltafan_config_last_reload_success_timestamp_seconds";
const CONFIG_RESTART: &str = "deltafan_config_restart_pending";
const BUILD: &str = "deltafan_build_info";

/// Installs the recorder; once per process.
///
/// # Errors
///
/// A recorder is installed already.
pub fn install() -> Result<PrometheusHandle, metrics_exporter_prometheus::BuildError> {
    // In seconds. Propagation within one machine begins at 100 µs.
    const BUCKETS: [f64; 16] = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0,
    ];
    // In seconds. A single change takes microseconds; 0.5 and 2 ms are the targets for large sets.
    const APPLY_BUCKETS: [f64; 15] = [
        0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.25,
        1.0, 5.0,
    ];
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(PROPAGATION.to_owned()), &BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(UPSTREAM_APPLY.to_owned()), &APPLY_BUCKETS)?
        .install_recorder()?;
    describe();
    at_zero::make();
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION"), "commit" => env!("DELTAFAN_COMMIT")).set(1.0);
    Ok(handle)
}

fn describe() {
    describe_gauge!(CONNECTIONS, "open downstream connections");
    describe_gauge!(STREAMS, "open downstream streams");
    describe_gauge!(CLIENTS, "streams and held polls, by type and by what they accepted of it");
    describe_counter!(STREAMS_ENDED, "downstream streams that ended, by gRPC status code");
    describe_counter!(ACCEPT_FAILURES, "connections that could not be accepted");
    describe_counter!(
        DENIED,
        "denials, by the rule: peer, node_id, cluster, type, secret and parameters end the stream, name and wildcard are answered without"
    );
    describe_counter!(REFUSED, "connections, streams and requests refused or closed for a limit, by its key");
    describe_gauge!(MEMORY, Unit::Bytes, "memory of the process, resident and in use, and its watermarks");
    describe_counter!(RESPONSES, "responses written to clients");
    describe_counter!(RESPONSE_BYTES, Unit::Bytes, "bytes of those responses");
    describe_counter!(ENCODES, "responses encoded: beside the responses written, encode-once at work");
    describe_counter!(REQUESTS, "requests of clients, by kind: subscribe, ack, nack, stale");
    describe_histogram!(
        PROPAGATION,
        Unit::Seconds,
        "time from the arrival of a change until a client's transport took it"
    );
    describe_counter!(DELAYS, "waits of a second for what the control plane leaves unanswered, by its type");
    describe_counter!(
        OVERDUE,
        "responses sent without the ACK that they depend on: requests may fail at the client"
    );
    describe_counter!(POLLS, "REST-JSON polls that ended, by outcome");
    describe_gauge!(HELD_POLLS, "REST-JSON polls that are held because there is nothing new");
    describe_counter!(JSON_WRITTEN, "resources written as JSON, and answers put together from them");
    describe_gauge!(RESOURCES, "resources in the origin's wildcard set");
    describe_gauge!(COHORTS, "cohorts: groups of clients that are sent the same bytes");
    describe_gauge!(GENERATION, "newest generation of a type");
    describe_gauge!(
        UPSTREAM_CONNECTED,
        "1 while the connection to the control plane stands, answered or not, or the directory is read"
    );
    describe_gauge!(
        UPSTREAM_CONNECTIONS,
        "connections to the control plane, over which node groups are spread"
    );
    describe_gauge!(GROUPS, "node groups that clients have made, by the rule");
    describe_gauge!(GROUP_CLIENTS, "streams, Fetches and polls in node groups, by the rule");
    describe_gauge!(
        GROUP_STALE,
        Unit::Seconds,
        "longest time for which the resources of a node group may be out of date, by the rule"
    );
    describe_gauge!(
        UPSTREAM_SERVER,
        "number in upstream.servers of the control plane in use; 0 is the first"
    );
    describe_gauge!(
        UPSTREAM_PROTOCOL,
        "1 for the protocol of the streams to the control plane, delta or sotw; 0 for the other, and while it is away"
    );
    describe_gauge!(
        UPSTREAM_STALE,
        Unit::Seconds,
        "time for which resources may be out of date: the control plane is away, or does not answer"
    );
    describe_gauge!(
        UPSTREAM_LAST_ANSWER,
        Unit::Seconds,
        "time since a response of the control plane was last accepted, or since the start"
    );
    describe_gauge!(UPSTREAM_UNANSWERED, "subscriptions that the control plane has not answered");
    describe_counter!(UPSTREAM, "events on the connection to the control plane, by kind");
    describe_histogram!(
        UPSTREAM_APPLY,
        Unit::Seconds,
        "time from a response of the control plane until it is in the cache and clients are woken"
    );
    describe_gauge!(DIRECTORY_FAILURES, "files of the directory source that are not in force as they are");
    describe_counter!(TLS_RELOADS, "changed sets of certificate files that were put in force");
    describe_counter!(TLS_RELOAD_FAILURES, "changed sets of certificate files that could not be used");
    describe_gauge!(
        TLS_EXPIRY,
        Unit::Seconds,
        "expiry of the certificates in force, in seconds since 1970: the earliest of several"
    );
    describe_counter!(TLS_HANDSHAKES, "downstream TLS handshakes, by result");
    rollout::describe();
    snapshot::describe();
    describe_counter!(CONFIG_RELOADS, "reloads of the configuration, by result");
    describe_gauge!(CONFIG_SUCCESSFUL, "1 if the configuration could be used when it was last read");
    describe_gauge!(
        CONFIG_SUCCESS_AT,
        Unit::Seconds,
        "time of the last reading of a usable configuration, in seconds since 1970"
    );
    describe_gauge!(CONFIG_RESTART, "1 while the configuration has changes that need a restart");
    describe_gauge!(BUILD, "always 1; the labels name the build");
}

/// Gauge of one open connection.
#[derive(Debug)]
pub struct ConnectionGauge(());

impl ConnectionGauge {
    /// Counts an accepted connection until the drop.
    pub fn open() -> Self {
        gauge!(CONNECTIONS).increment(1.0);
        Self(())
    }
}

impl Drop for ConnectionGauge {
    fn drop(&mut self) {
        gauge!(CONNECTIONS).decrement(1.0);
    }
}

/// Reports the memory of the process in bytes: resident, and in use.
pub fn report_memory(resident: u64, in_use: u64) {
    gauge!(MEMORY, "what" => "resident").set(resident as f64);
    gauge!(MEMORY, "what" => "in_use").set(in_use as f64);
}

/// Reports the watermarks in bytes above which clients are refused, and closed.
pub fn report_watermarks(refuse_above: u64, close_above: u64) {
    gauge!(MEMORY, "what" => "refuse_above").set(refuse_above as f64);
    gauge!(MEMORY, "what" => "close_above").set(close_above as f64);
}

/// Counts a connection that could not be accepted.
pub fn accept_failed() {
    counter!(ACCEPT_FAILURES).increment(1);
}

/// Counts denied requests, names or wildcards.
pub fn denied(what: &'static str, count: u64) {
    if count > 0 {
        counter!(DENIED, "what" => what).increment(count);
    }
}

/// Counts routes that waited long for an answer of this type.
pub fn delayed(short: &'static str) {
    counter!(DELAYS, "type" => short).increment(1);
}

/// Counts a response that was sent without the ACK that it depends on.
pub fn overdue(awaited: &'static str) {
    counter!(OVERDUE, "awaited" => awaited).increment(1);
}

/// Reports the resources and answers written as JSON since the start.
pub fn report_json(resources: u64, answers: u64) {
    counter!(JSON_WRITTEN, "what" => "resource").absolute(resources);
    counter!(JSON_WRITTEN, "what" => "answer").absolute(answers);
}

/// Figures of one type when the metrics are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypeFigures {
    /// Members of the wildcard set.
    pub members: usize,
    /// Cohorts.
    pub cohorts: usize,
    /// Newest generation.
    pub generation: u64,
}

/// Reports the figures of a type, or of several types that share a label.
pub fn report_type(kind: &'static str, figures: TypeFigures) {
    gauge!(RESOURCES, "type" => kind).set(figures.members as f64);
    gauge!(COHORTS, "type" => kind).set(figures.cohorts as f64);
    gauge!(GENERATION, "type" => kind).set(figures.generation as f64);
}

/// Reports the frames encoded since the start.
pub fn report_encodes(encodes: u64) {
    counter!(ENCODES).absolute(encodes);
}

/// Figures of the control plane when the metrics are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpstreamFigures {
    /// Whether it is connected.
    pub connected: bool,
    /// Number of the server in use.
    pub server: usize,
    /// Label of the protocol of its streams.
    pub protocol: Option<&'static str>,
    /// Time for which cached resources may have been out of date.
    pub stale: Duration,
    /// Time since its last answer.
    pub last_answer: Duration,
    /// Subscriptions without an answer.
    pub unanswered: usize,
}

/// Reports the figures of the control plane.
pub fn report_upstream(figures: UpstreamFigures, events: &[(&'static str, u64)]) {
    gauge!(UPSTREAM_CONNECTED).set(if figures.connected { 1.0 } else { 0.0 });
    for protocol in ["delta", "sotw"] {
        let is_spoken = figures.protocol == Some(protocol);
        gauge!(UPSTREAM_PROTOCOL, "protocol" => protocol).set(if is_spoken { 1.0 } else { 0.0 });
    }
    gauge!(UPSTREAM_SERVER).set(figures.server as f64);
    gauge!(UPSTREAM_STALE).set(figures.stale.as_secs_f64());
    gauge!(UPSTREAM_LAST_ANSWER).set(figures.last_answer.as_secs_f64());
    gauge!(UPSTREAM_UNANSWERED).set(figures.unanswered as f64);
    for (event, count) in events {
        counter!(UPSTREAM, "event" => *event).absolute(*count);
    }
}

/// Reports the connections to the control plane.
pub fn report_upstream_connections(connections: usize) {
    gauge!(UPSTREAM_CONNECTIONS).set(connections as f64);
}

/// Reports the clients of a type that are in this state.
pub fn report_clients(kind: &'static str, state: &'static str, clients: usize) {
    gauge!(CLIENTS, "type" => kind, "state" => state).set(clients as f64);
}

/// Reports the node groups of a rule, which the operator named.
pub fn report_groups(rule: &str, groups: usize, clients: usize, stale: Duration) {
    gauge!(GROUPS, "group" => rule.to_owned()).set(groups as f64);
    gauge!(GROUP_CLIENTS, "group" => rule.to_owned()).set(clients as f64);
    gauge!(GROUP_STALE, "group" => rule.to_owned()).set(stale.as_secs_f64());
}

/// Records the time that a response took from its arrival to the cache.
pub fn upstream_applied(took: Duration) {
    histogram!(UPSTREAM_APPLY).record(took);
}

/// Reports the files of the directory source that are not in force as they are.
pub fn report_directory(failing: usize) {
    gauge!(DIRECTORY_FAILURES).set(failing as f64);
}

/// Counts a TLS handshake of a client.
pub fn tls_handshake(result: &'static str) {
    counter!(TLS_HANDSHAKES, "result" => result).increment(1);
}

/// Counts a changed set of certificate files that is in force. `of` is the key of the configuration that
/// names it.
pub fn tls_reloaded(of: &str) {
    counter!(TLS_RELOADS, "of" => of.to_owned()).increment(1);
}

/// Counts a changed set of certificate files that could not be used.
pub fn tls_reload_failed(of: &str) {
    counter!(TLS_RELOAD_FAILURES, "of" => of.to_owned()).increment(1);
}

/// Reports the expiry of a certificate in force, in seconds since 1970. `which` names the file as the
/// configuration does.
pub fn report_tls_expiry(of: &str, which: &'static str, expires: i64) {
    // Both counters exist before the first event, so that an alert on their rate sees it.
    counter!(TLS_RELOADS, "of" => of.to_owned()).increment(0);
    counter!(TLS_RELOAD_FAILURES, "of" => of.to_owned()).increment(0);
    gauge!(TLS_EXPIRY, "of" => of.to_owned(), "which" => which).set(expires as f64);
}

/// Result of reading the configuration again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadResult {
    /// Changes are in force, or will be after a restart.
    Applied,
    /// Nothing changed.
    Unchanged,
    /// The file cannot be used; the running configuration stays.
    Refused,
}

/// Reports the first reading of the configuration. The counters of reloads exist from then on.
pub fn config_loaded() {
    for result in ["applied", "unchanged", "refused"] {
        counter!(CONFIG_RELOADS, "result" => result).absolute(0);
    }
    config_is_good(false);
}

/// Counts a reload. `restart_pending` says whether the file has changes that need a restart.
pub fn config_reloaded(result: ReloadResult, restart_pending: bool) {
    let label = match result {
        ReloadResult::Applied => "applied",
        ReloadResult::Unchanged => "unchanged",
        ReloadResult::Refused => "refused",
    };
    counter!(CONFIG_RELOADS, "result" => label).increment(1);
    if result == ReloadResult::Refused {
        gauge!(CONFIG_SUCCESSFUL).set(0.0);
    } else {
        config_is_good(restart_pending);
    }
}

fn config_is_good(restart_pending: bool) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!(CONFIG_SUCCESSFUL).set(1.0);
    gauge!(CONFIG_SUCCESS_AT).set(since.as_secs_f64());
    gauge!(CONFIG_RESTART).set(if restart_pending { 1.0 } else { 0.0 });
}
