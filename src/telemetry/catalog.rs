//! All metrics: names, labels, meanings and alerts.
//!
//! Help texts, counters at the start and docs/metrics.md follow from it. Buckets of histograms are in
//! [`install`](super::install).

use super::metric::Needs::{Directory, Groups, Rollout, Servers, Snapshot, Tls};
use super::metric::{Label, Metric, Values};
use super::trace_metrics;
use crate::limit::Limit;

pub(super) const CONNECTIONS: &str = "deltafan_connections";
pub const CONNECTION_LIMIT: &str = "deltafan_max_connections";
pub(super) const MAX_LAG: &str = "deltafan_client_max_lag_generations";
pub(super) const MAX_UNANSWERED: &str = "deltafan_client_max_unanswered_seconds";
pub(super) const ACKS: &str = "deltafan_ack_seconds";
pub(super) const CACHED_RESOURCES: &str = "deltafan_cached_resources";
pub(super) const CACHED_BYTES: &str = "deltafan_cached_bytes";
pub(super) const FINGERPRINT: &str = "deltafan_state_fingerprint";
pub const HISTORY_BYTES: &str = "deltafan_history_bytes";
pub(super) const LOG_LOST: &str = "deltafan_log_lines_lost_total";
pub(super) const PANICS: &str = "deltafan_panics_total";
pub(super) const PROCESS_CPU: &str = "process_cpu_seconds_total";
pub(super) const PROCESS_RESIDENT: &str = "process_resident_memory_bytes";
pub(super) const PROCESS_VIRTUAL: &str = "process_virtual_memory_bytes";
pub(super) const PROCESS_FDS: &str = "process_open_fds";
pub(super) const PROCESS_MAX_FDS: &str = "process_max_fds";
pub(super) const PROCESS_START: &str = "process_start_time_seconds";
pub(super) const PROCESS_THREADS: &str = "process_threads";
pub(super) const STREAMS: &str = "deltafan_streams";
pub(super) const CLIENTS: &str = "deltafan_clients";
pub(super) const STREAMS_ENDED: &str = "deltafan_streams_ended_total";
pub(super) const ACCEPT_FAILURES: &str = "deltafan_accept_failures_total";
pub(super) const DENIED: &str = "deltafan_denied_total";
pub(super) const GRPC_OVER_HTTP1: &str = "deltafan_grpc_over_http1_total";
pub(super) const LAST_REFUSAL: &str = "deltafan_last_refusal_timestamp_seconds";
pub(super) const REFUSED: &str = "deltafan_refused_total";
pub(super) const MEMORY: &str = "deltafan_memory_bytes";
pub(super) const RESPONSES: &str = "deltafan_responses_total";
pub(super) const RESPONSE_BYTES: &str = "deltafan_response_bytes_total";
pub const ENCODES: &str = "deltafan_encodes_total";
pub(super) const REQUESTS: &str = "deltafan_requests_total";
pub(super) const PROPAGATION: &str = "deltafan_propagation_seconds";
pub(super) const COALESCED: &str = "deltafan_coalesced_changes_total";
pub(super) const POLLS: &str = "deltafan_polls_total";
pub(super) const HELD_POLLS: &str = "deltafan_held_polls";
pub(super) const DELAYS: &str = "deltafan_delays_total";
pub(super) const OVERDUE: &str = "deltafan_overdue_acks_total";
pub(super) const JSON_WRITTEN: &str = "deltafan_json_written_total";
pub(super) const LOST: &str = "deltafan_lost_resources";
pub(super) const RESOURCES: &str = "deltafan_resources";
pub(super) const COHORTS: &str = "deltafan_cohorts";
pub(super) const GENERATION: &str = "deltafan_generation";
pub const UPSTREAM_CONNECTIONS: &str = "deltafan_upstream_connections";
pub(super) const GROUPS: &str = "deltafan_groups";
pub(super) const GROUP_CLIENTS: &str = "deltafan_group_clients";
pub(super) const GROUP_STALE: &str = "deltafan_group_stale_seconds";
pub(super) const GROUPS_UNANSWERED: &str = "deltafan_groups_unanswered";
pub(super) const UPSTREAM_CONNECTED: &str = "deltafan_upstream_connected";
pub(super) const UPSTREAM_SERVER: &str = "deltafan_upstream_active_server";
pub(super) const UPSTREAM_PROTOCOL: &str = "deltafan_upstream_protocol";
pub(super) const UPSTREAM_STALE: &str = "deltafan_upstream_stale_seconds";
pub(super) const UPSTREAM_LAST_ANSWER: &str = "deltafan_upstream_last_answer_age_seconds";
pub(super) const UPSTREAM_UNANSWERED: &str = "deltafan_upstream_unanswered_subscriptions";
pub const UPSTREAM_REFUSED: &str = "deltafan_upstream_refused_types";
pub(super) const UPSTREAM: &str = "deltafan_upstream_events_total";
pub(super) const UPSTREAM_APPLY: &str = "deltafan_upstream_apply_seconds";
pub const DIRECTORY_FAILURES: &str = "deltafan_directory_failing_files";
pub(super) const TLS_RELOADS: &str = "deltafan_tls_reloads_total";
pub(super) const TLS_RELOAD_FAILURES: &str = "deltafan_tls_reload_failures_total";
pub(super) const TLS_SUCCESSFUL: &str = "deltafan_tls_last_reload_successful";
pub(super) const TLS_EXPIRY: &str = "deltafan_tls_certificate_expiry_seconds";
pub(super) const TLS_HANDSHAKES: &str = "deltafan_tls_handshakes_total";
pub(super) const ROLLOUTS: &str = "deltafan_rollouts_total";
pub(super) const ROLLOUT_CANARIES: &str = "deltafan_rollout_canaries";
pub(super) const ROLLOUT_CHANGES: &str = "deltafan_rollout_changes";
pub const SNAPSHOT_LOADED: &str = "deltafan_snapshot_loaded_resources";
pub const SNAPSHOT_LOADED_BYTES: &str = "deltafan_snapshot_loaded_bytes";
pub const SNAPSHOT_LOAD: &str = "deltafan_snapshot_load_seconds";
pub const SNAPSHOT_WRITES: &str = "deltafan_snapshot_writes_total";
pub const SNAPSHOT_FAILURES: &str = "deltafan_snapshot_failures_total";
pub const SNAPSHOT_BYTES: &str = "deltafan_snapshot_bytes";
pub const SNAPSHOT_WRITE_AGE: &str = "deltafan_snapshot_last_write_age_seconds";
pub const CACHE_AGE: &str = "deltafan_cache_age_seconds";
pub(super) const CONFIG_RELOADS: &str = "deltafan_config_reloads_total";
pub(super) const CONFIG_SUCCESSFUL: &str = "deltafan_config_last_reload_successful";
pub(super) const CONFIG_SUCCESS_AT: &str = "deltafan_config_last_reload_success_timestamp_seconds";
pub(super) const CONFIG_RESTART: &str = "deltafan_config_restart_pending";
pub(super) const BUILD: &str = "deltafan_build_info";

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

/// Labels of all limits.
const REASONS: [&str; Limit::ALL.len()] = {
    let mut labels = [""; Limit::ALL.len()];
    let mut at = 0;
    while at < labels.len() {
        labels[at] = Limit::ALL[at].label();
        at += 1;
    }
    labels
};

const fn one_of(name: &'static str, values: &'static [(&'static str, &'static str)]) -> Label {
    Label { name, values: Values::OneOf(values) }
}

const TYPE: Label = one_of(
    "type",
    &[
        ("cds", "clusters"),
        ("eds", "endpoints"),
        ("leds", "endpoints of a locality"),
        ("lds", "listeners"),
        ("srds", "scoped routes"),
        ("rds", "routes"),
        ("vhds", "virtual hosts"),
        ("sds", "Secrets"),
        ("ecds", "extensions"),
        ("rtds", "runtime layers"),
        ("other", "all types without rules of their own"),
    ],
);

const TRANSPORT: Label = one_of(
    "transport",
    &[("delta", "gRPC, delta"), ("sotw", "gRPC, state of the world"), ("rest", "REST-JSON polls")],
);

const STREAM_TRANSPORT: Label = one_of("transport", &[("delta", ""), ("sotw", "")]);

const GROUP: Label = Label { name: "group", values: Values::Free("name of a rule of `groups.rules`") };

const FILES: Label =
    Label { name: "of", values: Values::Free("key that names the files, as `downstream.listeners[0].tls`") };

/// Labels of several metrics.
#[cfg(test)]
pub(super) const SHARED_LABELS: &[Label] = &[TYPE, TRANSPORT, GROUP, FILES];

/// All metrics.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.into_iter().flatten()
}

/// All metrics, by their subject.
pub(super) const SECTIONS: [&[Metric]; 10] = [
    CLIENT_METRICS,
    DELIVERY_METRICS,
    POLL_METRICS,
    CACHE_METRICS,
    UPSTREAM_METRICS,
    GROUP_METRICS,
    KEPT_METRICS,
    TLS_METRICS,
    trace_metrics::METRICS,
    PROCESS_METRICS,
];

const CLIENT_METRICS: &[Metric] = &[
    Metric::gauge(CONNECTIONS, "open downstream connections").at_zero(),
    Metric::gauge(CONNECTION_LIMIT, "connections above which more are refused")
        .noting("`downstream.max_connections`")
        .alert("deltafan_connections > 0.9 * deltafan_max_connections"),
    Metric::gauge(STREAMS, "open downstream streams").by(&[STREAM_TRANSPORT]).at_zero(),
    Metric::gauge(CLIENTS, "streams and held polls, by the state of each of their types")
        .by(&[
            TYPE,
            one_of(
                "state",
                &[
                    ("rejected", "rejected something, and has accepted nothing in its place"),
                    ("waiting", "holds nothing, and was sent nothing yet"),
                    ("unacked", "has not answered the newest response"),
                    ("behind", "was not sent the newest change"),
                    ("resuming", "runs what it held before it connected; not yet known to be the newest"),
                    ("held_back", "the rollout guard keeps it on an earlier state"),
                    ("synced", "has accepted everything that there is for it"),
                ],
            ),
        ])
        .at_zero()
        .noting("[Who runs what](commands.md) finds them")
        .alert("sum(deltafan_clients{state=\"rejected\"}) > 0")
        .when("and on `behind` and `unacked` that last"),
    Metric::gauge(MAX_LAG, "largest lag of a client, in generations of what it requests")
        .by(&[TYPE])
        .noting("`deltafan clients --state behind` names them"),
    Metric::gauge(MAX_UNANSWERED, "longest wait for an answer (ACK or NACK) of a client")
        .by(&[TYPE])
        .in_seconds()
        .noting("`deltafan clients --state unacked` names them")
        .alert("deltafan_client_max_unanswered_seconds > 30"),
    Metric::counter(STREAMS_ENDED, "downstream streams that ended, by gRPC status code")
        .by(&[
            STREAM_TRANSPORT,
            Label { name: "code", values: Values::Listed(&STATUS_CODES, "gRPC status codes") },
        ])
        .noting("May miss streams that their clients reset"),
    Metric::counter(ACCEPT_FAILURES, "connections that could not be accepted")
        .noting("Most often out of descriptors")
        .alert("increase(deltafan_accept_failures_total[5m]) > 0"),
    Metric::counter(DENIED, "denials by the rules of authorization and groups")
        .by(&[one_of(
            "what",
            &[
                ("peer", "the peer may not connect; ends the stream"),
                ("node_id", "ends the stream"),
                ("cluster", "ends the stream"),
                ("type", "ends the stream"),
                ("secret", "a Secret, to a client without a certificate; ends the stream"),
                ("parameters", "dynamic parameters; ends the stream"),
                ("group", "no rule of `groups` matches; ends the stream"),
                ("name", "answered without it"),
                ("wildcard", "answered without it"),
            ],
        )])
        .noting("See [security.md](security.md#identity-and-authorization)"),
    Metric::counter(REFUSED, "connections, streams and requests refused or closed for a limit")
        .by(&[Label {
            name: "reason",
            values: Values::Listed(&REASONS, "limits by their keys, see [limits](tuning.md)"),
        }])
        .alert("increase(deltafan_refused_total{reason!=\"idle_timeout\"}[5m]) > 0"),
    Metric::counter(GRPC_OVER_HTTP1, "gRPC requests over HTTP/1, answered with 426")
        .noting("An Envoy lacks `http2_protocol_options` in the cluster of the relay"),
    Metric::gauge(LAST_REFUSAL, "newest refusal of a client, in seconds since 1970")
        .by(&[one_of(
            "cause",
            &[
                ("limit", "`deltafan_refused_total`, without timeouts"),
                ("denied", "`deltafan_denied_total`, without hidden names"),
                ("tls", "`deltafan_tls_handshakes_total`, without clients that left or time out"),
                ("http1", "`deltafan_grpc_over_http1_total`"),
            ],
        )])
        .in_seconds()
        .at_zero()
        .noting("`deltafan status` is not well within 2 min of one"),
];

const DELIVERY_METRICS: &[Metric] = &[
    Metric::counter(REQUESTS, "requests of clients")
        .by(&[
            TYPE,
            STREAM_TRANSPORT,
            one_of(
                "result",
                &[
                    ("subscribe", "a subscription, and no answer to a response"),
                    ("ack", "the newest response was accepted"),
                    ("nack", "a response was rejected"),
                    ("stale", "an answer to an older response"),
                ],
            ),
        ])
        .alert("increase(deltafan_requests_total{result=\"nack\"}[5m]) > 0"),
    Metric::counter(RESPONSES, "responses that a transport took").by(&[TYPE, TRANSPORT]),
    Metric::counter(RESPONSE_BYTES, "bytes of those responses, with their gRPC prefix").by(&[TYPE, TRANSPORT]).in_bytes(),
    Metric::counter(ENCODES, "responses encoded")
        .noting("Few, beside `deltafan_responses_total`, where clients share encodings"),
    Metric::histogram(PROPAGATION, "time from the arrival of a change until a client's transport took it")
        .by(&[TYPE, TRANSPORT])
        .noting("Without clients that joined later"),
    Metric::counter(COALESCED, "changes that a client was sent only together with a later one of the same type")
        .by(&[TYPE])
        .noting("Counted for each stream. Three changes that come while a client owes an ACK, or its transport has no room, count 2; see [coalesced changes](tuning.md)"),
    Metric::histogram(ACKS, "time from a response until the client acknowledged it")
        .by(&[TYPE, STREAM_TRANSPORT])
        .noting("A client may hold back the ACK of clusters until their endpoints came"),
    Metric::counter(DELAYS, "waits of more than 1 s, by LDS, SRDS, RDS or VHDS of a stream, for resources that the control plane does not answer")
        .by(&[one_of(
            "type",
            &[("cds", "for clusters"), ("eds", "for endpoints"), ("leds", "for endpoints of a locality")],
        )])
        .noting("At most `downstream.ack_timeout`. The log names client and resource at level `debug`"),
    Metric::counter(OVERDUE, "responses sent without the ACK that they depend on: requests may fail at the client")
        .by(&[one_of(
            "awaited",
            &[("clusters", "routes were sent"), ("routes", "removals of clusters or endpoints were sent")],
        )])
        .noting("The ACK did not come in time, or was a NACK: see [swaps](rollout.md). A cluster without endpoints is the usual cause"),
];

const POLL_METRICS: &[Metric] = &[
    Metric::counter(POLLS, "REST-JSON polls that ended")
        .by(&[
            TYPE,
            one_of(
                "outcome",
                &[
                    ("answered", "200"),
                    ("not_modified", "304"),
                    ("unknown", "503: resources unknown at the end of the hold"),
                    ("refused", "4xx: the request was at fault"),
                    ("too_many", "429: the peer has too many polls"),
                    ("unknown_type", "500: a type without a descriptor"),
                    ("unwritable", "500: a resource that is broken, or has no JSON form"),
                    ("abandoned", "the client hung up"),
                ],
            ),
        ])
        .alert("increase(deltafan_polls_total{outcome=~\"unknown_type|unwritable\"}[5m]) > 0"),
    Metric::gauge(HELD_POLLS, "REST-JSON polls held open because nothing is new").by(&[TYPE]).at_zero(),
    Metric::counter(JSON_WRITTEN, "resources written as JSON, and answers put together from them")
        .by(&[one_of("what", &[("resource", ""), ("answer", "")])])
        .noting("Few, beside the polls answered, where clients share them"),
];

const CACHE_METRICS: &[Metric] = &[
    Metric::gauge(RESOURCES, "resources in the wildcard set of the control plane")
        .by(&[TYPE])
        .noting("Counted once for each node group and each set of dynamic parameters. Types that nobody requested have none of these gauges"),
    Metric::gauge(CACHED_RESOURCES, "resources held, by wildcard or by name")
        .by(&[TYPE])
        .noting("Counted as above"),
    Metric::gauge(LOST, "resources removed within a minute, if they were more than half of at least 10")
        .by(&[TYPE])
        .noting("Until half of them are back, an hour at most. `rollout.max_removed` holds such changes")
        .alert("deltafan_lost_resources > 0"),
    Metric::gauge(CACHED_BYTES, "bytes of the resources held, as sent by delta")
        .by(&[TYPE])
        .in_bytes()
        .noting("Views and groups share the memory of equal resources"),
    Metric::gauge(FINGERPRINT, "fingerprint of the names, versions and bodies held; 0 for none")
        .by(&[TYPE])
        .noting("Equal at relays that hold equal resources: compare replicas whose clients request the same. Of Secrets only names count")
        .alert("count(count_values(\"fingerprint\", deltafan_state_fingerprint{type=\"cds\"})) > 1")
        .when("for longer than a change takes"),
    Metric::gauge(HISTORY_BYTES, "bytes that the history of resources takes").in_bytes().noting("`cache.history_bytes` bounds them"),
    Metric::gauge(COHORTS, "cohorts: clients that are sent the same bytes").by(&[TYPE]),
    Metric::gauge(GENERATION, "newest generation of a type").by(&[TYPE]).noting("Grows with each change"),
];

const UPSTREAM_METRICS: &[Metric] = &[
    Metric::gauge(UPSTREAM_CONNECTED, "1 while connected to the control plane, answered or not, or while the directory is read")
        .alert("deltafan_upstream_connected == 0")
        .when("for longer than an outage that you accept"),
    Metric::gauge(UPSTREAM_STALE, "time for which resources may have been out of date, because the control plane is away or silent")
        .in_seconds()
        .noting("From the loss of the connection to the first answer on the next one. 0 where nothing is requested")
        .alert("deltafan_upstream_stale_seconds > 60")
        .when("or an outage that you accept"),
    Metric::gauge(UPSTREAM_LAST_ANSWER, "time since the last accepted response of the control plane, or since the start")
        .in_seconds()
        .noting("Grows while nothing changes"),
    Metric::gauge(UPSTREAM_UNANSWERED, "names and wildcards without an answer on this connection")
        .noting("Updated once a second"),
    Metric::gauge(UPSTREAM_REFUSED, "types whose update the relay refused (NACK), with nothing usable in its place yet, over all node groups")
        .noting("`/upstreams` names them, with the fault"),
    Metric::gauge(UPSTREAM_SERVER, "number in `upstream.servers` of the control plane in use; 0 is the first")
        .noting("See [several control planes](failover.md)"),
    Metric::gauge(UPSTREAM_PROTOCOL, "1 for the protocol of the streams to the control plane, 0 for the other, and while it is away")
        .by(&[one_of("protocol", &[("delta", ""), ("sotw", "")])]),
    Metric::gauge(UPSTREAM_CONNECTIONS, "connections to the control plane, over which node groups are spread")
        .with(Servers)
        .noting("More than one only where it limits the streams of a connection"),
    Metric::counter(UPSTREAM, "events on the connection to the control plane").by(&[one_of("event", EVENTS)]).with(Servers),
    Metric::histogram(UPSTREAM_APPLY, "time from a response of the control plane until it is cached and clients are woken")
        .noting("The next response waits as long")
        .at_zero(),
    Metric::gauge(DIRECTORY_FAILURES, "files of the directory source that cannot be used")
        .with(Directory)
        .alert("deltafan_directory_failing_files > 0"),
];

/// Events upstream.
const EVENTS: &[(&str, &str)] = &[
    ("connect", "connected"),
    ("reconnect", "connected again"),
    ("connect_failure", "could not connect"),
    ("stream_failure", "a stream ended before any response, or with a protocol error"),
    ("request", "a request was sent, ACKs included"),
    ("response", "a response was read"),
    ("nack_sent", "a response was refused for its envelope, see [rules.md](rules.md#upstream)"),
    (
        "hold_reported",
        "a NACK told the control plane of [changes that are held](rollout.md), with `rollout.report: nack`",
    ),
    ("unrequested_response", "dropped: its type was not subscribed to"),
    ("unrequested_resource", "dropped: no subscription covers it. Also errors of the wildcard"),
    ("resource_error", "an error of a single resource; the log has one every 30 s"),
    ("expired_resource", "a resource was removed: its TTL ended without a heartbeat"),
    ("refused_resource", "dynamic parameter constraints not understood; the resource held stays"),
    ("ambiguous_variant", "several variants of a name match the same clients: a fault of the control plane"),
    ("locators_ignored", "locators stayed unanswered; plain names are requested on this connection"),
    ("unsolicited_resend", "a resource sent again at the version held, which is passed on to clients"),
    ("renewal", "a stream was opened anew on a connection that stood, see [rules.md](rules.md#upstream)"),
    (
        "inquiry",
        "a stream was opened for one question that the others leave unanswered: names that clients wait for, or whether a set is complete, see [rules.md](rules.md#known-resources)",
    ),
    (
        "crowded_out",
        "a name was unsubscribed early: more than `upstream.max_lingering_names` lingered, as clients request ever new names",
    ),
    (
        "prefetch",
        "endpoints of a new cluster were requested ahead of clients (`upstream.prefetch_endpoints`)",
    ),
    ("failover", "a control plane did not answer; the next one is used"),
    ("failback", "a more preferred control plane is used again"),
    ("probe", "a stream was opened to see whether a more preferred control plane answers"),
    ("operation", "a resource or a removal handed to the cache"),
];

const GROUP_METRICS: &[Metric] = &[
    Metric::gauge(GROUPS, "node groups that clients have made, by the rule").by(&[GROUP]).with(Groups),
    Metric::gauge(GROUP_CLIENTS, "streams, Fetches and polls in node groups, by the rule")
        .by(&[GROUP])
        .with(Groups),
    Metric::gauge(
        GROUP_STALE,
        "longest time for which resources of a node group may have been out of date, by the rule",
    )
    .by(&[GROUP])
    .in_seconds()
    .with(Groups)
    .noting("Groups that were never answered count in `deltafan_groups_unanswered` only. For the relay's own group see `deltafan_upstream_stale_seconds`"),
    Metric::gauge(
        GROUPS_UNANSWERED,
        "node groups that have waited a minute or more for their first answer, by the rule",
    )
    .by(&[GROUP])
    .with(Groups)
    .noting("A client with a made-up node can cause it")
    .alert("(deltafan_groups_unanswered == deltafan_groups) > 0")
    .when("all groups of a rule"),
];

const KEPT_METRICS: &[Metric] = &[
    Metric::counter(ROLLOUTS, "trials of guarded changes that ended")
        .by(&[one_of(
            "result",
            &[
                ("spread", "all clients are sent the changes"),
                ("held", "canaries rejected them, or they remove too much"),
                ("released", "an operator released held changes"),
                ("discarded", "an operator discarded held changes"),
                ("unanswered", "no canary answered, so the trial began anew"),
            ],
        )])
        .with(Rollout)
        .alert("increase(deltafan_rollouts_total{result=\"unanswered\"}[10m]) > 3")
        .when("canaries hang, or a change kills them"),
    Metric::gauge(ROLLOUT_CANARIES, "streams that are sent guarded changes first").with(Rollout),
    Metric::gauge(ROLLOUT_CHANGES, "changed names that not all clients were sent")
        .by(&[one_of(
            "state",
            &[
                ("trying", "canaries have them"),
                ("waiting", "for the next trial"),
                ("held", "canaries rejected them, they remove too much, or an operator put their type on hold"),
                ("kept_back", "an operator discarded them, or restored an earlier state"),
            ],
        )])
        .with(Rollout)
        .alert("deltafan_rollout_changes{state=\"held\"} > 0"),
    Metric::gauge(
        SNAPSHOT_LOADED,
        "resources of the relay's own group, loaded from the snapshot at the start",
    )
    .with(Snapshot),
    Metric::gauge(SNAPSHOT_LOADED_BYTES, "bytes of resources loaded from the snapshot at the start").in_bytes().with(Snapshot),
    Metric::gauge(SNAPSHOT_LOAD, "time to open and load the snapshot")
        .in_seconds()
        .with(Snapshot),
    Metric::counter(SNAPSHOT_WRITES, "transactions written to the snapshot").with(Snapshot),
    Metric::counter(SNAPSHOT_FAILURES, "failed attempts to open, read or write the snapshot")
        .with(Snapshot)
        .alert("increase(deltafan_snapshot_failures_total[10m]) > 0"),
    Metric::gauge(SNAPSHOT_BYTES, "size of the snapshot on disk").in_bytes().with(Snapshot),
    Metric::gauge(SNAPSHOT_WRITE_AGE, "time since the last write of the snapshot, or since the start")
        .in_seconds()
        .with(Snapshot)
        .noting("Written every 10 s while nothing changes, and not while the control plane is away"),
    Metric::gauge(
        CACHE_AGE,
        "time since the control plane last answered; after a start from the snapshot, since what was loaded was last current",
    )
    .in_seconds()
    .with(Snapshot),
];

const TLS_METRICS: &[Metric] = &[
    Metric::counter(TLS_HANDSHAKES, "downstream TLS handshakes that ended").by(&[one_of(
        "result",
        &[
            ("ok", "accepted"),
            ("no_certificate", "no client certificate"),
            ("unknown_ca", "client certificate of another authority"),
            ("expired", "client certificate expired, or not valid yet"),
            ("revoked", "client certificate revoked"),
            ("bad_certificate", "another fault in the client certificate"),
            ("incompatible", "no version, cipher or protocol in common"),
            ("refused_by_peer", "the client did not accept the relay's certificate, or sent another alert"),
            ("not_tls", "the client speaks cleartext"),
            ("to_cleartext", "the client speaks TLS, and the listener has no `tls`"),
            ("timeout", "not done within `downstream.handshake_timeout`"),
            ("closed", "the client hung up"),
            ("waited", "no turn within 3 s: too many clients at once; it should retry"),
            ("left", "the client closed the connection before its turn"),
            ("draining", "the relay ended it"),
            ("protocol", "another violation of TLS"),
        ],
    )]),
    Metric::counter(TLS_RELOADS, "changed certificate files that were put in force").by(&[FILES]).with(Tls),
    Metric::counter(TLS_RELOAD_FAILURES, "changed certificate files that could not be used")
        .by(&[FILES])
        .with(Tls)
        .noting("The set in force stays in force"),
    Metric::gauge(
        TLS_SUCCESSFUL,
        "1 if the certificate files are in force as last read; 0 while an older set is",
    )
    .by(&[FILES])
    .with(Tls)
    .alert("deltafan_tls_last_reload_successful == 0"),
    Metric::gauge(TLS_EXPIRY, "earliest expiry of the certificates in force, in seconds since 1970")
        .by(&[
            FILES,
            one_of(
                "which",
                &[
                    ("cert", "certificates of the relay"),
                    ("client_ca", "authorities of clients"),
                    ("crl", "next update of a revocation list"),
                ],
            ),
        ])
        .in_seconds()
        .with(Tls)
        .alert("deltafan_tls_certificate_expiry_seconds - time() < 7 * 86400")
        .when("or less, if certificates live for days or hours"),
];

const PROCESS_METRICS: &[Metric] = &[
    Metric::gauge(BUILD, "always 1; the labels name the build").by(&[
        Label { name: "version", values: Values::Free("version of the relay") },
        Label { name: "commit", values: Values::Free("commit that it was built of") },
    ]),
    Metric::gauge(MEMORY, "memory of the process, and its watermarks")
        .by(&[one_of(
            "what",
            &[
                ("resident", "pages of the process"),
                ("in_use", "resident, without what the allocator keeps free; compared with the watermarks"),
                ("refuse_above", "watermark above which new clients are refused; 0 for none"),
                ("close_above", "watermark above which connections are closed; 0 for none"),
            ],
        )])
        .in_bytes(),
    Metric::counter(
        LOG_LOST,
        "log lines lost, because stderr was not read in time or could not be written",
    ),
    Metric::counter(
        PANICS,
        "panics, each with a line in the log. One ends a stream or a task: a defect, or a damaged snapshot file",
    )
    .alert("increase(deltafan_panics_total[15m]) > 0"),
    Metric::counter(PROCESS_CPU, "CPU time of the process in whole seconds").in_seconds(),
    Metric::gauge(PROCESS_RESIDENT, "resident memory of the process, as the system counts it").in_bytes(),
    Metric::gauge(PROCESS_VIRTUAL, "virtual memory of the process").in_bytes(),
    Metric::gauge(PROCESS_FDS, "open file descriptors").alert("process_open_fds > 0.9 * process_max_fds"),
    Metric::gauge(PROCESS_MAX_FDS, "limit of file descriptors"),
    Metric::gauge(PROCESS_START, "start of the process, in seconds since 1970").in_seconds(),
    Metric::gauge(PROCESS_THREADS, "threads of the process"),
    Metric::counter(CONFIG_RELOADS, "reloads of the configuration").by(&[one_of(
        "result",
        &[
            ("applied", "in force now, or after a restart"),
            ("unchanged", "nothing changed"),
            ("refused", "wrong; the running configuration stays"),
        ],
    )]),
    Metric::gauge(CONFIG_SUCCESSFUL, "1 if the configuration could be used when last read")
        .alert("deltafan_config_last_reload_successful == 0"),
    Metric::gauge(
        CONFIG_SUCCESS_AT,
        "last reading of a usable configuration, in seconds since 1970",
    )
    .in_seconds(),
    Metric::gauge(CONFIG_RESTART, "1 while the configuration has changes that need a restart")
        .alert("deltafan_config_restart_pending == 1")
        .when("for longer than a rollout"),
];
