//! All metrics: names, labels, meanings and alerts.
//!
//! Help texts, counters at the start and docs/metrics.md follow from it. Buckets of histograms are in
//! [`install`](super::install).

use super::metric::Needs::{Directory, Groups, Rollout, Servers, Snapshot, Tls, Traces};
use super::metric::{Label, Metric, Values};
use crate::limit::Limit;

/// gRPC status codes with which streams end.
const STATUS_CODES: [&str; 10] = [
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
    SECTIONS.iter().flat_map(|(_, metrics)| *metrics)
}

/// Declares metrics by their subject, and a constant with the name of each.
macro_rules! metrics {
    ($($title:literal => {$(
        $name:ident = $kind:ident($text:literal, $meaning:literal) $(.$with:ident($($argument:tt)*))*;
    )+})+) => {
        $($(pub const $name: &str = $text;)+)+

        /// All metrics, with the title of each subject.
        pub(super) const SECTIONS: &[(&str, &[Metric])] = &[$((
            $title,
            &[$(Metric::$kind($text, $meaning) $(.$with($($argument)*))*),+],
        )),+];
    };
}

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

metrics! {
    "Clients" => {
        CONNECTIONS = gauge("deltafan_connections", "open downstream connections").at_zero();
        CONNECTION_LIMIT = gauge("deltafan_max_connections", "connections above which more are refused")
            .noting("`downstream.max_connections`")
            .alert("deltafan_connections > 0.9 * deltafan_max_connections");
        STREAMS = gauge("deltafan_streams", "open downstream streams").by(&[STREAM_TRANSPORT]).at_zero();
        CLIENTS = gauge("deltafan_clients", "streams and held polls, by the state of each of their types")
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
            .when("and on `behind` and `unacked` that last");
        MAX_LAG = gauge("deltafan_client_max_lag_generations", "largest lag of a client, in generations of what it requests")
            .by(&[TYPE])
            .noting("`deltafan clients --state behind` names them");
        MAX_UNANSWERED = gauge("deltafan_client_max_unanswered_seconds", "longest wait for an answer (ACK or NACK) of a client")
            .by(&[TYPE])
            .noting("`deltafan clients --state unacked` names them")
            .alert("deltafan_client_max_unanswered_seconds > 30");
        STREAMS_ENDED = counter("deltafan_streams_ended_total", "downstream streams that ended, by gRPC status code")
            .by(&[
                STREAM_TRANSPORT,
                Label { name: "code", values: Values::Listed(&STATUS_CODES, "gRPC status codes") },
            ])
            .noting("May miss streams that their clients reset");
        ACCEPT_FAILURES = counter("deltafan_accept_failures_total", "connections that could not be accepted")
            .noting("Most often out of descriptors")
            .alert("increase(deltafan_accept_failures_total[5m]) > 0");
        DENIED = counter("deltafan_denied_total", "denials by the rules of authorization and groups")
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
            .noting("See [security.md](security.md#identity-and-authorization)");
        REFUSED = counter("deltafan_refused_total", "connections, streams and requests refused or closed for a limit")
            .by(&[Label {
                name: "reason",
                values: Values::Listed(&REASONS, "limits by their keys, see [limits](tuning.md)"),
            }])
            .alert("increase(deltafan_refused_total{reason!=\"idle_timeout\"}[5m]) > 0");
        GRPC_OVER_HTTP1 = counter("deltafan_grpc_over_http1_total", "gRPC requests over HTTP/1, answered with 426")
            .noting("An Envoy lacks `http2_protocol_options` in the cluster of the relay");
        LAST_REFUSAL = gauge("deltafan_last_refusal_timestamp_seconds", "newest refusal of a client, in seconds since 1970")
            .by(&[one_of(
                "cause",
                &[
                    ("limit", "`deltafan_refused_total`, without timeouts"),
                    ("denied", "`deltafan_denied_total`, without hidden names"),
                    ("tls", "`deltafan_tls_handshakes_total`, without clients that left or time out"),
                    ("http1", "`deltafan_grpc_over_http1_total`"),
                ],
            )])
            .at_zero()
            .noting("`deltafan status` is not well within 2 min of one");
    }
    "Delivery" => {
        REQUESTS = counter("deltafan_requests_total", "requests of clients")
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
            .alert("increase(deltafan_requests_total{result=\"nack\"}[5m]) > 0");
        RESPONSES = counter("deltafan_responses_total", "responses that a transport took").by(&[TYPE, TRANSPORT]);
        RESPONSE_BYTES = counter("deltafan_response_bytes_total", "bytes of those responses, with their gRPC prefix").by(&[TYPE, TRANSPORT]);
        ENCODES = counter("deltafan_encodes_total", "responses encoded")
            .noting("Few, beside `deltafan_responses_total`, where clients share encodings");
        PROPAGATION = histogram("deltafan_propagation_seconds", "time from the arrival of a change until a client's transport took it")
            .by(&[TYPE, TRANSPORT])
            .noting("Without clients that joined later");
        COALESCED = counter("deltafan_coalesced_changes_total", "changes that a client was sent only together with a later one of the same type")
            .by(&[TYPE])
            .noting("Counted for each stream. Three changes that come while a client owes an ACK, or its transport has no room, count 2; see [coalesced changes](tuning.md)");
        ACKS = histogram("deltafan_ack_seconds", "time from a response until the client acknowledged it")
            .by(&[TYPE, STREAM_TRANSPORT])
            .noting("A client may hold back the ACK of clusters until their endpoints came");
        DELAYS = counter("deltafan_delays_total", "waits of more than 1 s, by LDS, SRDS, RDS or VHDS of a stream, for resources that the control plane does not answer")
            .by(&[one_of(
                "type",
                &[("cds", "for clusters"), ("eds", "for endpoints"), ("leds", "for endpoints of a locality")],
            )])
            .noting("At most `downstream.ack_timeout`. The log names client and resource at level `debug`");
        OVERDUE = counter("deltafan_overdue_acks_total", "responses sent without the ACK that they depend on: requests may fail at the client")
            .by(&[one_of(
                "awaited",
                &[("clusters", "routes were sent"), ("routes", "removals of clusters or endpoints were sent")],
            )])
            .noting("The ACK did not come in time, or was a NACK: see [swaps](rollout.md). A cluster without endpoints is the usual cause");
    }
    "REST-JSON" => {
        POLLS = counter("deltafan_polls_total", "REST-JSON polls that ended")
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
            .alert("increase(deltafan_polls_total{outcome=~\"unknown_type|unwritable\"}[5m]) > 0");
        HELD_POLLS = gauge("deltafan_held_polls", "REST-JSON polls held open because nothing is new").by(&[TYPE]).at_zero();
        JSON_WRITTEN = counter("deltafan_json_written_total", "resources written as JSON, and answers put together from them")
            .by(&[one_of("what", &[("resource", ""), ("answer", "")])])
            .noting("Few, beside the polls answered, where clients share them");
    }
    "Cache" => {
        RESOURCES = gauge("deltafan_resources", "resources in the wildcard set of the control plane")
            .by(&[TYPE])
            .noting("Counted once for each node group and each set of dynamic parameters. Types that nobody requested have none of these gauges");
        CACHED_RESOURCES = gauge("deltafan_cached_resources", "resources held, by wildcard or by name")
            .by(&[TYPE])
            .noting("Counted as above");
        LOST = gauge("deltafan_lost_resources", "resources removed within a minute, if they were more than half of at least 10")
            .by(&[TYPE])
            .noting("Until half of them are back, an hour at most. `rollout.max_removed` holds such changes")
            .alert("deltafan_lost_resources > 0");
        CACHED_BYTES = gauge("deltafan_cached_bytes", "bytes of the resources held, as sent by delta")
            .by(&[TYPE])
            .noting("Views and groups share the memory of equal resources");
        FINGERPRINT = gauge("deltafan_state_fingerprint", "fingerprint of the names, versions and bodies held; 0 for none")
            .by(&[TYPE])
            .noting("Equal at relays that hold equal resources: compare replicas whose clients request the same. Of Secrets only names count")
            .alert("count(count_values(\"fingerprint\", deltafan_state_fingerprint{type=\"cds\"})) > 1")
            .when("for longer than a change takes");
        HISTORY_BYTES = gauge("deltafan_history_bytes", "bytes that the history of resources takes").noting("`cache.history_bytes` bounds them");
        COHORTS = gauge("deltafan_cohorts", "cohorts: clients that are sent the same bytes").by(&[TYPE]);
        GENERATION = gauge("deltafan_generation", "newest generation of a type").by(&[TYPE]).noting("Grows with each change");
    }
    "Control plane" => {
        UPSTREAM_CONNECTED = gauge("deltafan_upstream_connected", "1 while connected to the control plane, answered or not, or while the directory is read")
            .alert("deltafan_upstream_connected == 0")
            .when("for longer than an outage that you accept");
        UPSTREAM_STALE = gauge("deltafan_upstream_stale_seconds", "time for which resources may have been out of date, because the control plane is away or silent")
            .noting("From the loss of the connection to the first answer on the next one. 0 where nothing is requested")
            .alert("deltafan_upstream_stale_seconds > 60")
            .when("or an outage that you accept");
        UPSTREAM_LAST_ANSWER = gauge("deltafan_upstream_last_answer_age_seconds", "time since the last accepted response of the control plane, or since the start")
            .noting("Grows while nothing changes");
        UPSTREAM_UNANSWERED = gauge("deltafan_upstream_unanswered_subscriptions", "names and wildcards without an answer on this connection")
            .noting("Updated once a second");
        UPSTREAM_REFUSED = gauge("deltafan_upstream_refused_types", "types whose update the relay refused (NACK), with nothing usable in its place yet, over all node groups")
            .noting("`/upstreams` names them, with the fault");
        UPSTREAM_SERVER = gauge("deltafan_upstream_active_server", "number in `upstream.servers` of the control plane in use; 0 is the first")
            .noting("See [several control planes](failover.md)");
        UPSTREAM_PROTOCOL = gauge("deltafan_upstream_protocol", "1 for the protocol of the streams to the control plane, 0 for the other, and while it is away")
            .by(&[one_of("protocol", &[("delta", ""), ("sotw", "")])]);
        UPSTREAM_CONNECTIONS = gauge("deltafan_upstream_connections", "connections to the control plane, over which node groups are spread")
            .with(Servers)
            .noting("More than one only where it limits the streams of a connection");
        UPSTREAM = counter("deltafan_upstream_events_total", "events on the connection to the control plane").by(&[one_of("event", EVENTS)]).with(Servers);
        UPSTREAM_APPLY = histogram("deltafan_upstream_apply_seconds", "time from a response of the control plane until it is cached and clients are woken")
            .noting("The next response waits as long")
            .at_zero();
        DIRECTORY_FAILURES = gauge("deltafan_directory_failing_files", "files of the directory source that cannot be used")
            .with(Directory)
            .alert("deltafan_directory_failing_files > 0");
    }
    "Node groups" => {
        GROUPS = gauge("deltafan_groups", "node groups that clients have made, by the rule").by(&[GROUP]).with(Groups);
        GROUP_CLIENTS = gauge("deltafan_group_clients", "streams, Fetches and polls in node groups, by the rule")
            .by(&[GROUP])
            .with(Groups);
        GROUP_STALE = gauge("deltafan_group_stale_seconds", "longest time for which resources of a node group may have been out of date, by the rule")
        .by(&[GROUP])
        .with(Groups)
        .noting("Groups that were never answered count in `deltafan_groups_unanswered` only. For the relay's own group see `deltafan_upstream_stale_seconds`");
        GROUPS_UNANSWERED = gauge("deltafan_groups_unanswered", "node groups that have waited a minute or more for their first answer, by the rule")
        .by(&[GROUP])
        .with(Groups)
        .noting("A client with a made-up node can cause it")
        .alert("(deltafan_groups_unanswered == deltafan_groups) > 0")
        .when("all groups of a rule");
    }
    "Guarded rollouts and snapshot" => {
        ROLLOUTS = counter("deltafan_rollouts_total", "trials of guarded changes that ended")
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
            .when("canaries hang, or a change kills them");
        ROLLOUT_CANARIES = gauge("deltafan_rollout_canaries", "streams that are sent guarded changes first").with(Rollout);
        ROLLOUT_CHANGES = gauge("deltafan_rollout_changes", "changed names that not all clients were sent")
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
            .alert("deltafan_rollout_changes{state=\"held\"} > 0");
        SNAPSHOT_LOADED = gauge("deltafan_snapshot_loaded_resources", "resources of the relay's own group, loaded from the snapshot at the start")
        .with(Snapshot);
        SNAPSHOT_LOADED_BYTES = gauge("deltafan_snapshot_loaded_bytes", "bytes of resources loaded from the snapshot at the start").with(Snapshot);
        SNAPSHOT_LOAD = gauge("deltafan_snapshot_load_seconds", "time to open and load the snapshot")
            .with(Snapshot);
        SNAPSHOT_WRITES = counter("deltafan_snapshot_writes_total", "transactions written to the snapshot").with(Snapshot);
        SNAPSHOT_FAILURES = counter("deltafan_snapshot_failures_total", "failed attempts to open, read or write the snapshot")
            .with(Snapshot)
            .alert("increase(deltafan_snapshot_failures_total[10m]) > 0");
        SNAPSHOT_BYTES = gauge("deltafan_snapshot_bytes", "size of the snapshot on disk").with(Snapshot);
        SNAPSHOT_WRITE_AGE = gauge("deltafan_snapshot_last_write_age_seconds", "time since the last write of the snapshot, or since the start")
            .with(Snapshot)
            .noting("Written once a minute while nothing changes, and not while the control plane is away");
        CACHE_AGE = gauge("deltafan_cache_age_seconds", "time since the control plane last answered; after a start from the snapshot, since what was loaded was last current")
        .with(Snapshot);
    }
    "TLS" => {
        TLS_HANDSHAKES = counter("deltafan_tls_handshakes_total", "downstream TLS handshakes that ended").by(&[one_of(
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
        )]);
        TLS_RELOADS = counter("deltafan_tls_reloads_total", "changed certificate files that were put in force").by(&[FILES]).with(Tls);
        TLS_RELOAD_FAILURES = counter("deltafan_tls_reload_failures_total", "changed certificate files that could not be used")
            .by(&[FILES])
            .with(Tls)
            .noting("The set in force stays in force");
        TLS_SUCCESSFUL = gauge("deltafan_tls_last_reload_successful", "1 if the certificate files are in force as last read; 0 while an older set is")
        .by(&[FILES])
        .with(Tls)
        .alert("deltafan_tls_last_reload_successful == 0");
        TLS_EXPIRY = gauge("deltafan_tls_certificate_expiry_seconds", "earliest expiry of the certificates in force, in seconds since 1970")
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
            .with(Tls)
            .alert("deltafan_tls_certificate_expiry_seconds - time() < 7 * 86400")
            .when("or less, if certificates live for days or hours");
    }
    "Traces" => {
        TRACES = counter("deltafan_traces_total", "changes of the control plane, by the end of their traces")
            .by(&[one_of(
                "result",
                &[
                    ("complete", "all clients that it concerns have answered"),
                    ("overtaken", "everything changed again before that"),
                    ("timed_out", "60 s passed before that"),
                    ("stopped", "the relay ended before that"),
                    ("unsampled", "left out by the sampler (`OTEL_TRACES_SAMPLER`)"),
                    ("dropped", "not followed: 64 others were"),
                ],
            )])
            .with(Traces);
        TRACE_SPANS = counter("deltafan_trace_spans_total", "spans of traces, by their end")
            .by(&[one_of(
                "result",
                &[
                    ("exported", "the collector took them"),
                    ("failed", "lost: the collector did not take them"),
                    ("dropped", "lost: the queue was full (`OTEL_BSP_MAX_QUEUE_SIZE`)"),
                ],
            )])
            .with(Traces);
    }
    "Process and configuration" => {
        BUILD = gauge("deltafan_build_info", "always 1; the labels name the build").by(&[
            Label { name: "version", values: Values::Free("version of the relay") },
            Label { name: "commit", values: Values::Free("commit that it was built of") },
        ]);
        MEMORY = gauge("deltafan_memory_bytes", "memory of the process, and its watermarks")
            .by(&[one_of(
                "what",
                &[
                    ("resident", "pages of the process"),
                    ("in_use", "resident, without what the allocator keeps free; compared with the watermarks"),
                    ("refuse_above", "watermark above which new clients are refused; 0 for none"),
                    ("close_above", "watermark above which connections are closed; 0 for none"),
                ],
            )]);
        LOG_LOST = counter("deltafan_log_lines_lost_total", "log lines lost, because stderr was not read in time or could not be written");
        PANICS = counter("deltafan_panics_total", "panics, each with a line in the log. One ends a stream or a task: a defect, or a damaged snapshot file")
        .alert("increase(deltafan_panics_total[15m]) > 0");
        PROCESS_CPU = counter("process_cpu_seconds_total", "CPU time of the process in whole seconds");
        PROCESS_RESIDENT = gauge("process_resident_memory_bytes", "resident memory of the process, as the system counts it");
        PROCESS_VIRTUAL = gauge("process_virtual_memory_bytes", "virtual memory of the process");
        PROCESS_FDS = gauge("process_open_fds", "open file descriptors").alert("process_open_fds > 0.9 * process_max_fds");
        PROCESS_MAX_FDS = gauge("process_max_fds", "limit of file descriptors");
        PROCESS_START = gauge("process_start_time_seconds", "start of the process, in seconds since 1970");
        PROCESS_THREADS = gauge("process_threads", "threads of the process");
        CONFIG_RELOADS = counter("deltafan_config_reloads_total", "reloads of the configuration").by(&[one_of(
            "result",
            &[
                ("applied", "in force now, or after a restart"),
                ("unchanged", "nothing changed"),
                ("refused", "wrong; the running configuration stays"),
            ],
        )]);
        CONFIG_SUCCESSFUL = gauge("deltafan_config_last_reload_successful", "1 if the configuration could be used when last read")
            .alert("deltafan_config_last_reload_successful == 0");
        CONFIG_SUCCESS_AT = gauge("deltafan_config_last_reload_success_timestamp_seconds", "last reading of a usable configuration, in seconds since 1970");
        CONFIG_RESTART = gauge("deltafan_config_restart_pending", "1 while the configuration has changes that need a restart")
            .alert("deltafan_config_restart_pending == 1")
            .when("for longer than a rollout");
    }
}
