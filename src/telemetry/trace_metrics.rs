//! Metrics of OpenTelemetry traces.

use metrics::counter;

use super::metric::Needs::Traces;
use super::metric::{Label, Metric, Values};

const TRACES: &str = "deltafan_traces_total";
const SPANS: &str = "deltafan_trace_spans_total";

pub(super) const METRICS: &[Metric] = &[
    Metric::counter(TRACES, "changes of the control plane, by the end of their traces")
        .by(&[Label {
            name: "result",
            values: Values::OneOf(&[
                ("complete", "all clients that it concerns have answered"),
                ("overtaken", "everything changed again before that"),
                ("timed_out", "60 s passed before that"),
                ("stopped", "the relay ended before that"),
                ("unsampled", "left out by the sampler (`OTEL_TRACES_SAMPLER`)"),
                ("dropped", "not followed: 64 others were"),
            ]),
        }])
        .with(Traces),
    Metric::counter(SPANS, "spans of traces, by their end")
        .by(&[Label {
            name: "result",
            values: Values::OneOf(&[
                ("exported", "the collector took them"),
                ("failed", "lost: the collector did not take them"),
                ("dropped", "lost: the queue was full (`OTEL_BSP_MAX_QUEUE_SIZE`)"),
            ]),
        }])
        .with(Traces),
];

deltafan_core::labelled! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TraceEnd {
        /// Each client has answered.
        Complete = "complete",
        /// All of its names changed again.
        Overtaken = "overtaken",
        TimedOut = "timed_out",
        Stopped = "stopped",
        /// The sampler leaves it out.
        Unsampled = "unsampled",
    }
}

pub fn traces_begin() {
    for metric in METRICS {
        for labels in metric.combinations().into_iter().flatten() {
            counter!(metric.name, &labels).absolute(0);
        }
    }
}

pub fn trace_ended(end: TraceEnd) {
    counter!(TRACES, "result" => end.label()).increment(1);
}

pub fn change_not_followed() {
    counter!(TRACES, "result" => "dropped").increment(1);
}

pub fn spans_exported(spans: usize, is_taken: bool) {
    let result = if is_taken { "exported" } else { "failed" };
    counter!(SPANS, "result" => result).increment(spans as u64);
}

pub fn span_dropped() {
    counter!(SPANS, "result" => "dropped").increment(1);
}
