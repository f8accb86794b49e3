//! All metrics: names, labels and help texts.
//!
//! Help texts and counters at the start follow from it; docs/metrics.md explains the values of labels. Buckets of
//! histograms are in [`install`](super::install).

use crate::limit::Limit;
use deltafan_core::cache::Protocol;
use deltafan_core::resource::Kind;
use deltafan_core::subscription::{ClientState, Overdue};
use deltafan_core::upstream::Counters;

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [Label],
    /// Help text.
    pub meaning: &'static str,
    /// Whether it is served from the start, with all label values.
    pub from_start: bool,
}

deltafan_core::labelled! {
    /// Labels are the names in the text format of Prometheus.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MetricKind {
        Counter = "counter",
        Gauge = "gauge",
        Histogram = "histogram",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Label {
    pub name: &'static str,
    /// Empty if they are words of the configuration or of the build, never of a peer.
    pub values: &'static [&'static str],
}

impl Metric {
    const fn new(
        kind: MetricKind,
        name: &'static str,
        labels: &'static [Label],
        meaning: &'static str,
    ) -> Self {
        Self { name, kind, labels, meaning, from_start: matches!(kind, MetricKind::Counter) }
    }

    const fn at_zero(self) -> Self {
        Self { from_start: true, ..self }
    }

    /// All combinations of label values; `None` if one label is free.
    pub fn combinations(&self) -> Option<Vec<Vec<(&'static str, &'static str)>>> {
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let with = |before: &Vec<_>, value| before.iter().copied().chain([(label.name, value)]).collect();
            all = all
                .iter()
                .flat_map(|before| label.values.iter().map(move |value| with(before, *value)))
                .collect();
        }
        (!all.is_empty()).then_some(all)
    }
}

const fn label(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values }
}

/// Labels of all variants of an enum.
macro_rules! labels {
    ($of:ty) => {{
        const LABELS: [&str; <$of>::ALL.len()] = {
            let mut labels = [""; <$of>::ALL.len()];
            let mut at = 0;
            while at < labels.len() {
                labels[at] = <$of>::ALL[at].label();
                at += 1;
            }
            labels
        };
        &LABELS
    }};
}

const TYPE: Label = label("type", labels!(Kind));
const TRANSPORT: Label = label("transport", &["delta", "sotw", "rest"]);
const STREAM_TRANSPORT: Label = label("transport", labels!(Protocol));
/// Names of `groups.rules`.
const GROUP: Label = label("group", &[]);
/// Keys that name files, as `downstream.listeners[0].tls`.
const FILES: Label = label("of", &[]);
/// gRPC status codes with which streams end.
const CODE: Label = label(
    "code",
    &[
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
    ],
);

/// Declares metrics: a constant with the name, the labels, and the help text.
macro_rules! metrics {
    ($($name:ident: $kind:ident $text:literal [$($label:expr),*], $meaning:literal $($at_zero:ident)?;)+) => {
        $(pub const $name: &str = $text;)+

        const METRICS: &[Metric] = &[$({
            const LABELS: &[Label] = &[$($label),*];
            Metric::new(MetricKind::$kind, $text, LABELS, $meaning)$(.$at_zero())?
        }),+];
    };
}

/// All metrics.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter()
}

metrics! {
    CONNECTIONS: Gauge "deltafan_connections" [], "open downstream connections" at_zero;
    CONNECTION_LIMIT: Gauge "deltafan_max_connections" [], "connections above which more are refused";
    STREAMS: Gauge "deltafan_streams" [STREAM_TRANSPORT], "open downstream streams" at_zero;
    CLIENTS: Gauge "deltafan_clients" [TYPE, label("state", labels!(ClientState))],
        "streams and held polls, by the state of each of their types" at_zero;
    MAX_LAG: Gauge "deltafan_client_max_lag_generations" [TYPE],
        "largest lag of a client, in generations of what it requests";
    MAX_UNANSWERED: Gauge "deltafan_client_max_unanswered_seconds" [TYPE],
        "longest wait for an answer (ACK or NACK) of a client";
    STREAMS_ENDED: Counter "deltafan_streams_ended_total" [STREAM_TRANSPORT, CODE],
        "downstream streams that ended, by gRPC status code";
    ACCEPT_FAILURES: Counter "deltafan_accept_failures_total" [], "connections that could not be accepted";
    DENIED: Counter "deltafan_denied_total" [
        label("what", &["peer", "node_id", "cluster", "type", "secret", "parameters", "group", "name", "wildcard"])],
        "denials by the rules of authorization and groups";
    REFUSED: Counter "deltafan_refused_total" [label("reason", labels!(Limit))],
        "connections, streams and requests refused or closed for a limit";
    GRPC_OVER_HTTP1: Counter "deltafan_grpc_over_http1_total" [], "gRPC requests over HTTP/1, answered with 426";
    LAST_REFUSAL: Gauge "deltafan_last_refusal_timestamp_seconds" [
        label("cause", &["limit", "denied", "tls", "http1"])],
        "newest refusal of a client, in seconds since 1970" at_zero;
    REQUESTS: Counter "deltafan_requests_total" [
        TYPE, STREAM_TRANSPORT, label("result", &["subscribe", "ack", "nack", "stale"])],
        "requests of clients";
    RESPONSES: Counter "deltafan_responses_total" [TYPE, TRANSPORT], "responses that a transport took";
    RESPONSE_BYTES: Counter "deltafan_response_bytes_total" [TYPE, TRANSPORT],
        "bytes of those responses, with their gRPC prefix";
    ENCODES: Counter "deltafan_encodes_total" [], "responses encoded";
    PROPAGATION: Histogram "deltafan_propagation_seconds" [TYPE, TRANSPORT],
        "time from the arrival of a change until a client's transport took it";
    COALESCED: Counter "deltafan_coalesced_changes_total" [TYPE],
        "changes that a client was sent only together with a later one of the same type";
    ACKS: Histogram "deltafan_ack_seconds" [TYPE, STREAM_TRANSPORT],
        "time from a response until the client acknowledged it";
    DELAYS: Counter "deltafan_delays_total" [label("type", &["cds", "eds", "leds"])],
        "waits of more than 1 s, by LDS, SRDS, RDS or VHDS of a stream, for resources that the control plane does not answer";
    OVERDUE: Counter "deltafan_overdue_acks_total" [label("awaited", labels!(Overdue))],
        "responses sent without the ACK that they depend on: requests may fail at the client";
    POLLS: Counter "deltafan_polls_total" [
        TYPE, label("outcome", &["answered", "not_modified", "unknown", "refused", "too_many", "unknown_type",
            "unwritable", "abandoned"])],
        "REST-JSON polls that ended";
    HELD_POLLS: Gauge "deltafan_held_polls" [TYPE], "REST-JSON polls held open because nothing is new" at_zero;
    JSON_WRITTEN: Counter "deltafan_json_written_total" [label("what", &["resource", "answer"])],
        "resources written as JSON, and answers put together from them";
    RESOURCES: Gauge "deltafan_resources" [TYPE], "resources in the wildcard set of the control plane";
    CACHED_RESOURCES: Gauge "deltafan_cached_resources" [TYPE], "resources held, by wildcard or by name";
    LOST: Gauge "deltafan_lost_resources" [TYPE],
        "resources removed within a minute, if they were more than half of at least 10";
    CACHED_BYTES: Gauge "deltafan_cached_bytes" [TYPE], "bytes of the resources held, as sent by delta";
    FINGERPRINT: Gauge "deltafan_state_fingerprint" [TYPE],
        "fingerprint of the names, versions and bodies held; 0 for none";
    HISTORY_BYTES: Gauge "deltafan_history_bytes" [], "bytes that the history of resources takes";
    COHORTS: Gauge "deltafan_cohorts" [TYPE], "cohorts: clients that are sent the same bytes";
    GENERATION: Gauge "deltafan_generation" [TYPE], "newest generation of a type";
    UPSTREAM_CONNECTED: Gauge "deltafan_upstream_connected" [],
        "1 while connected to the control plane, answered or not, or while the directory is read";
    UPSTREAM_STALE: Gauge "deltafan_upstream_stale_seconds" [],
        "time for which resources may have been out of date, because the control plane is away or silent";
    UPSTREAM_LAST_ANSWER: Gauge "deltafan_upstream_last_answer_age_seconds" [],
        "time since the last accepted response of the control plane; before it since the start, with the age of a snapshot";
    UPSTREAM_UNANSWERED: Gauge "deltafan_upstream_unanswered_subscriptions" [],
        "names and wildcards without an answer on this connection";
    UPSTREAM_REFUSED: Gauge "deltafan_upstream_refused_types" [],
        "types whose update the relay refused (NACK), with nothing usable in its place yet, over all node groups";
    UPSTREAM_SERVER: Gauge "deltafan_upstream_active_server" [],
        "number in `upstream.servers` of the control plane in use; 0 is the first";
    UPSTREAM_APPLY: Histogram "deltafan_upstream_apply_seconds" [],
        "time from a response of the control plane until it is cached and clients are woken" at_zero;
    TLS_HANDSHAKES: Counter "deltafan_tls_handshakes_total" [
        label("result", &["ok", "no_certificate", "unknown_ca", "expired", "revoked", "bad_certificate",
            "incompatible", "refused_by_peer", "not_tls", "to_cleartext", "timeout", "closed", "waited", "left",
            "draining", "protocol"])],
        "downstream TLS handshakes that ended";
    BUILD: Gauge "deltafan_build_info" [label("version", &[]), label("commit", &[])],
        "always 1; the labels name the build";
    MEMORY: Gauge "deltafan_memory_bytes" [label("what", &["resident", "in_use", "refuse_above", "close_above"])],
        "memory of the process, and its watermarks";
    LOG_LOST: Counter "deltafan_log_lines_lost_total" [],
        "log lines lost, because stderr was not read in time or could not be written";
    PANICS: Counter "deltafan_panics_total" [],
        "panics, each with a line in the log. One ends a stream or a task: a defect, or a damaged snapshot file";
    PROCESS_CPU: Counter "process_cpu_seconds_total" [], "CPU time of the process in whole seconds";
    PROCESS_RESIDENT: Gauge "process_resident_memory_bytes" [],
        "resident memory of the process, as the system counts it";
    PROCESS_VIRTUAL: Gauge "process_virtual_memory_bytes" [], "virtual memory of the process";
    PROCESS_FDS: Gauge "process_open_fds" [], "open file descriptors";
    PROCESS_MAX_FDS: Gauge "process_max_fds" [], "limit of file descriptors";
    PROCESS_START: Gauge "process_start_time_seconds" [], "start of the process, in seconds since 1970";
    PROCESS_THREADS: Gauge "process_threads" [], "threads of the process";
    CONFIG_RELOADS: Counter "deltafan_config_reloads_total" [
        label("result", &["applied", "unchanged", "refused"])],
        "reloads of the configuration";
    CONFIG_SUCCESSFUL: Gauge "deltafan_config_last_reload_successful" [],
        "1 if the configuration could be used when last read";
    CONFIG_SUCCESS_AT: Gauge "deltafan_config_last_reload_success_timestamp_seconds" [],
        "last reading of a usable configuration, in seconds since 1970";
    CONFIG_RESTART: Gauge "deltafan_config_restart_pending" [],
        "1 while the configuration has changes that need a restart";
    UPSTREAM_CONNECTIONS: Gauge "deltafan_upstream_connections" [],
        "connections to the control plane, over which node groups are spread";
    UPSTREAM: Counter "deltafan_upstream_events_total" [label("event", &Counters::NAMES)],
        "events on the connection to the control plane";
    DIRECTORY_FAILURES: Gauge "deltafan_directory_failing_files" [],
        "files of the directory source that cannot be used";
    GROUPS: Gauge "deltafan_groups" [GROUP], "node groups that clients have made, by the rule";
    GROUP_CLIENTS: Gauge "deltafan_group_clients" [GROUP],
        "streams and polls in node groups, by the rule";
    GROUP_STALE: Gauge "deltafan_group_stale_seconds" [GROUP],
        "longest time for which resources of a node group may have been out of date, by the rule";
    GROUPS_UNANSWERED: Gauge "deltafan_groups_unanswered" [GROUP],
        "node groups that have waited a minute or more for their first answer, by the rule";
    ROLLOUTS: Counter "deltafan_rollouts_total" [
        label("result", &["spread", "held", "released", "discarded", "unanswered"])],
        "trials of guarded changes that ended";
    ROLLOUT_CANARIES: Gauge "deltafan_rollout_canaries" [], "streams that are sent guarded changes first";
    ROLLOUT_CHANGES: Gauge "deltafan_rollout_changes" [
        label("state", &["trying", "waiting", "held", "kept_back"])],
        "changed names that not all clients were sent";
    SNAPSHOT_LOADED: Gauge "deltafan_snapshot_loaded_resources" [],
        "resources of the relay's own group, loaded from the snapshot at the start";
    SNAPSHOT_WRITES: Counter "deltafan_snapshot_writes_total" [], "transactions written to the snapshot";
    SNAPSHOT_FAILURES: Counter "deltafan_snapshot_failures_total" [],
        "failed attempts to open, read or write the snapshot";
    SNAPSHOT_BYTES: Gauge "deltafan_snapshot_bytes" [], "size of the snapshot on disk";
    SNAPSHOT_WRITE_AGE: Gauge "deltafan_snapshot_last_write_age_seconds" [],
        "time since the last write of the snapshot, or since the start";
    TLS_RELOADS: Counter "deltafan_tls_reloads_total" [FILES], "changed certificate files that were put in force";
    TLS_RELOAD_FAILURES: Counter "deltafan_tls_reload_failures_total" [FILES],
        "changed certificate files that could not be used";
    TLS_SUCCESSFUL: Gauge "deltafan_tls_last_reload_successful" [FILES],
        "1 if the certificate files are in force as last read; 0 while an older set is";
    TLS_EXPIRY: Gauge "deltafan_tls_certificate_expiry_seconds" [
        FILES, label("which", &["cert", "client_ca", "crl"])],
        "earliest expiry of the certificates in force, in seconds since 1970";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_of_labels_is_there_once() {
        const ONE: Label = Label { name: "one", values: &["a", "b"] };
        const OTHER: Label = Label { name: "other", values: &["c", "d"] };
        const FREE: Label = Label { name: "free", values: &[] };
        let of = |labels| Metric::new(MetricKind::Gauge, "m", labels, "").combinations();
        let both = |one, other| vec![("one", one), ("other", other)];
        let all = vec![both("a", "c"), both("a", "d"), both("b", "c"), both("b", "d")];
        assert_eq!(of(&[ONE, OTHER]), Some(all));
        assert_eq!(of(&[]), Some(vec![vec![]]));
        assert_eq!(of(&[ONE, FREE]), None);
    }
}
