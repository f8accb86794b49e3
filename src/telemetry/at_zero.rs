//! Metrics that exist from the start, with each of their labels.
//!
//! A counter that appears with its first event begins at 1 for Prometheus: `increase()` and `rate()` do not see that event, so an alert
//! on them misses it. Metrics of what is not configured, such as the snapshot, are not there.

#![expect(clippy::disallowed_macros, reason = "this is the part of `telemetry` that makes them")]

use metrics::{counter, gauge, histogram};

use super::catalog;
use super::metric::{Metric, MetricKind, Needs};

/// Makes the metrics.
pub(super) fn make() {
    for metric in catalog::all().filter(|metric| metric.from_start && metric.needs == Needs::Nothing) {
        metric.combinations().into_iter().flatten().for_each(|labels| make_one(metric, &labels));
    }
}

fn make_one(metric: &Metric, labels: &[(&'static str, &'static str)]) {
    match metric.kind {
        MetricKind::Counter => counter!(metric.name, labels).absolute(0),
        MetricKind::Gauge => gauge!(metric.name, labels).increment(0.0),
        MetricKind::Histogram => drop(histogram!(metric.name, labels)),
    }
}
