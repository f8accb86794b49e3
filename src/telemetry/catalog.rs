//! All metrics: names and labels.
//!
//! Counters at the start follow from it; docs/metrics.md has the help texts, and explains the values of labels. Buckets
//! of histograms are in [`install`](super::install).

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
    const fn new(kind: MetricKind, name: &'static str, labels: &'static [Label]) -> Self {
        Self { name, kind, labels, from_start: matches!(kind, MetricKind::Counter) }
    }

    const fn at_zero(self) -> Self {
        Self { from_start: true, ..self }
    }

    /// Help text: the first sentence of its meaning on the page for users.
    pub fn help(&self) -> &'static str {
        const PAGE: &str = include_str!("../../docs/metrics.md");
        let mut rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let row = rows.find(|(name, _)| *name == self.name);
        // Kind, labels, meaning.
        let meaning = row.and_then(|(_, cells)| cells.split(" | ").nth(2)).unwrap_or_default();
        meaning.split(". ").next().unwrap_or_default()
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

/// Declares metrics: a constant with the name, and the labels.
macro_rules! metrics {
    ($($name:ident: $kind:ident $text:literal [$($label:expr),*] $($at_zero:ident)?;)+) => {
        $(pub const $name: &str = $text;)+

        const METRICS: &[Metric] = &[$({
            const LABELS: &[Label] = &[$($label),*];
            Metric::new(MetricKind::$kind, $text, LABELS)$(.$at_zero())?
        }),+];
    };
}

/// All metrics.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter()
}

metrics! {
    CONNECTIONS: Gauge "deltafan_connections" [] at_zero;
    CONNECTION_LIMIT: Gauge "deltafan_max_connections" [];
    STREAMS: Gauge "deltafan_streams" [STREAM_TRANSPORT] at_zero;
    CLIENTS: Gauge "deltafan_clients" [TYPE, label("state", labels!(ClientState))] at_zero;
    MAX_LAG: Gauge "deltafan_client_max_lag_generations" [TYPE];
    MAX_UNANSWERED: Gauge "deltafan_client_max_unanswered_seconds" [TYPE];
    STREAMS_ENDED: Counter "deltafan_streams_ended_total" [STREAM_TRANSPORT, CODE];
    ACCEPT_FAILURES: Counter "deltafan_accept_failures_total" [];
    DENIED: Counter "deltafan_denied_total" [
        label("what", &["peer", "node_id", "cluster", "type", "secret", "parameters", "group", "name", "wildcard"])];
    REFUSED: Counter "deltafan_refused_total" [label("reason", labels!(Limit))];
    GRPC_OVER_HTTP1: Counter "deltafan_grpc_over_http1_total" [];
    LAST_REFUSAL: Gauge "deltafan_last_refusal_timestamp_seconds" [
        label("cause", &["limit", "denied", "tls", "http1"])] at_zero;
    REQUESTS: Counter "deltafan_requests_total" [
        TYPE, STREAM_TRANSPORT, label("result", &["subscribe", "ack", "nack", "stale"])];
    RESPONSES: Counter "deltafan_responses_total" [TYPE, TRANSPORT];
    RESPONSE_BYTES: Counter "deltafan_response_bytes_total" [TYPE, TRANSPORT];
    ENCODES: Counter "deltafan_encodes_total" [];
    PROPAGATION: Histogram "deltafan_propagation_seconds" [TYPE, TRANSPORT];
    COALESCED: Counter "deltafan_coalesced_changes_total" [TYPE];
    ACKS: Histogram "deltafan_ack_seconds" [TYPE, STREAM_TRANSPORT];
    DELAYS: Counter "deltafan_delays_total" [label("type", &["cds", "eds", "leds"])];
    OVERDUE: Counter "deltafan_overdue_acks_total" [label("awaited", labels!(Overdue))];
    POLLS: Counter "deltafan_polls_total" [
        TYPE, label("outcome", &["answered", "not_modified", "unknown", "refused", "too_many", "unknown_type",
            "unwritable", "abandoned"])];
    HELD_POLLS: Gauge "deltafan_held_polls" [TYPE] at_zero;
    JSON_WRITTEN: Counter "deltafan_json_written_total" [label("what", &["resource", "answer"])];
    RESOURCES: Gauge "deltafan_resources" [TYPE];
    CACHED_RESOURCES: Gauge "deltafan_cached_resources" [TYPE];
    LOST: Gauge "deltafan_lost_resources" [TYPE];
    CACHED_BYTES: Gauge "deltafan_cached_bytes" [TYPE];
    FINGERPRINT: Gauge "deltafan_state_fingerprint" [TYPE];
    HISTORY_BYTES: Gauge "deltafan_history_bytes" [];
    COHORTS: Gauge "deltafan_cohorts" [TYPE];
    GENERATION: Gauge "deltafan_generation" [TYPE];
    UPSTREAM_CONNECTED: Gauge "deltafan_upstream_connected" [];
    UPSTREAM_STALE: Gauge "deltafan_upstream_stale_seconds" [];
    UPSTREAM_LAST_ANSWER: Gauge "deltafan_upstream_last_answer_age_seconds" [];
    UPSTREAM_UNANSWERED: Gauge "deltafan_upstream_unanswered_subscriptions" [];
    UPSTREAM_REFUSED: Gauge "deltafan_upstream_refused_types" [];
    UPSTREAM_SERVER: Gauge "deltafan_upstream_active_server" [];
    UPSTREAM_APPLY: Histogram "deltafan_upstream_apply_seconds" [] at_zero;
    TLS_HANDSHAKES: Counter "deltafan_tls_handshakes_total" [
        label("result", &["ok", "no_certificate", "unknown_ca", "expired", "revoked", "bad_certificate",
            "incompatible", "refused_by_peer", "not_tls", "to_cleartext", "timeout", "closed", "waited", "left",
            "draining", "protocol"])];
    BUILD: Gauge "deltafan_build_info" [label("version", &[]), label("commit", &[])];
    MEMORY: Gauge "deltafan_memory_bytes" [label("what", &["resident", "in_use", "refuse_above", "close_above"])];
    LOG_LOST: Counter "deltafan_log_lines_lost_total" [];
    PANICS: Counter "deltafan_panics_total" [];
    PROCESS_CPU: Counter "process_cpu_seconds_total" [];
    PROCESS_RESIDENT: Gauge "process_resident_memory_bytes" [];
    PROCESS_VIRTUAL: Gauge "process_virtual_memory_bytes" [];
    PROCESS_FDS: Gauge "process_open_fds" [];
    PROCESS_MAX_FDS: Gauge "process_max_fds" [];
    PROCESS_START: Gauge "process_start_time_seconds" [];
    PROCESS_THREADS: Gauge "process_threads" [];
    CONFIG_RELOADS: Counter "deltafan_config_reloads_total" [
        label("result", &["applied", "unchanged", "refused"])];
    CONFIG_SUCCESSFUL: Gauge "deltafan_config_last_reload_successful" [];
    CONFIG_SUCCESS_AT: Gauge "deltafan_config_last_reload_success_timestamp_seconds" [];
    CONFIG_RESTART: Gauge "deltafan_config_restart_pending" [];
    UPSTREAM_CONNECTIONS: Gauge "deltafan_upstream_connections" [];
    UPSTREAM: Counter "deltafan_upstream_events_total" [label("event", &Counters::NAMES)];
    DIRECTORY_FAILURES: Gauge "deltafan_directory_failing_files" [];
    GROUPS: Gauge "deltafan_groups" [GROUP];
    GROUP_CLIENTS: Gauge "deltafan_group_clients" [GROUP];
    GROUP_STALE: Gauge "deltafan_group_stale_seconds" [GROUP];
    GROUPS_UNANSWERED: Gauge "deltafan_groups_unanswered" [GROUP];
    ROLLOUTS: Counter "deltafan_rollouts_total" [
        label("result", &["spread", "held", "released", "discarded", "unanswered"])];
    ROLLOUT_CANARIES: Gauge "deltafan_rollout_canaries" [];
    ROLLOUT_CHANGES: Gauge "deltafan_rollout_changes" [
        label("state", &["trying", "waiting", "held", "kept_back"])];
    SNAPSHOT_LOADED: Gauge "deltafan_snapshot_loaded_resources" [];
    SNAPSHOT_WRITES: Counter "deltafan_snapshot_writes_total" [];
    SNAPSHOT_FAILURES: Counter "deltafan_snapshot_failures_total" [];
    SNAPSHOT_BYTES: Gauge "deltafan_snapshot_bytes" [];
    SNAPSHOT_WRITE_AGE: Gauge "deltafan_snapshot_last_write_age_seconds" [];
    TLS_RELOADS: Counter "deltafan_tls_reloads_total" [FILES];
    TLS_RELOAD_FAILURES: Counter "deltafan_tls_reload_failures_total" [FILES];
    TLS_SUCCESSFUL: Gauge "deltafan_tls_last_reload_successful" [FILES];
    TLS_EXPIRY: Gauge "deltafan_tls_certificate_expiry_seconds" [
        FILES, label("which", &["cert", "client_ca", "crl"])];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_of_labels_is_there_once() {
        const ONE: Label = Label { name: "one", values: &["a", "b"] };
        const OTHER: Label = Label { name: "other", values: &["c", "d"] };
        const FREE: Label = Label { name: "free", values: &[] };
        let of = |labels| Metric::new(MetricKind::Gauge, "m", labels).combinations();
        let both = |one, other| vec![("one", one), ("other", other)];
        let all = vec![both("a", "c"), both("a", "d"), both("b", "c"), both("b", "d")];
        assert_eq!(of(&[ONE, OTHER]), Some(all));
        assert_eq!(of(&[]), Some(vec![vec![]]));
        assert_eq!(of(&[ONE, FREE]), None);
    }
}
