//! Metrics and their labels, and limits on log lines.
//!
//! A leaf: knows nothing of its callers. Labels are bounded: type, transport, result, reason; never a string
//! that a peer chose. Dashboards rely on the names; docs/metrics.md lists them.

#![expect(clippy::disallowed_macros, reason = "this is the one place where metrics are declared")]

mod catalog;
mod client_metrics;
mod log_output;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deltafan_core::cache::{HeldTotals, RolloutCounts, RolloutStatus};
use deltafan_core::upstream::UpstreamState;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use procfs::process::{LimitValue, Process};
use procfs::{ProcResult, WithCurrentSystemInfo as _};

pub use catalog::{all as all_metrics, *};
pub use client_metrics::{
    PollCounter, PollOutcome, RequestResult, StreamMetrics, denied, grpc_over_http1, hidden, refused,
    refused_at, tls_handshake,
};
pub use deltafan_core::LogThrottle;
pub use log_output::{Lines, LogLevel, log_panics, report_lost_lines, write_log_to};
use log_output::{lost_lines, panics};

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
    // In seconds. A single change takes microseconds; the targets for large sets are 0.5 and 2 ms.
    const APPLY_BUCKETS: [f64; 15] = [
        0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.25,
        1.0, 5.0,
    ];
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(PROPAGATION.to_owned()), &BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(ACKS.to_owned()), &BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(UPSTREAM_APPLY.to_owned()), &APPLY_BUCKETS)?
        .install_recorder()?;
    describe();
    make_at_zero();
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION"), "commit" => env!("DELTAFAN_COMMIT")).set(1.0);
    Ok(handle)
}

fn describe() {
    for metric in all() {
        let (name, help) = (metric.name, metric.help());
        match metric.kind {
            MetricKind::Counter => describe_counter!(name, help),
            MetricKind::Gauge => describe_gauge!(name, help),
            MetricKind::Histogram => describe_histogram!(name, help),
        }
    }
}

/// Labels of a metric with their values.
type Labels<'l> = &'l [(&'static str, &'static str)];

pub fn set(gauge: &'static str, labels: Labels<'_>, value: f64) {
    gauge!(gauge, labels).set(value);
}

/// Total since the start.
pub fn set_total(counter: &'static str, labels: Labels<'_>, total: u64) {
    counter!(counter, labels).absolute(total);
}

pub fn count(counter: &'static str, labels: Labels<'_>, more: u64) {
    counter!(counter, labels).increment(more);
}

#[derive(Clone, Copy, Debug, Default)]
pub struct TypeFigures {
    pub members: usize,
    pub cohorts: usize,
    pub generation: u64,
    pub held: HeldTotals,
    pub lost: usize,
}

/// Reports a type, or several types that share a label.
pub fn report_type(kind: &'static str, figures: TypeFigures) {
    gauge!(RESOURCES, "type" => kind).set(figures.members as f64);
    gauge!(COHORTS, "type" => kind).set(figures.cohorts as f64);
    gauge!(GENERATION, "type" => kind).set(figures.generation as f64);
    gauge!(CACHED_RESOURCES, "type" => kind).set(figures.held.resources as f64);
    gauge!(CACHED_BYTES, "type" => kind).set(figures.held.bytes as f64);
    gauge!(LOST, "type" => kind).set(figures.lost as f64);
    gauge!(FINGERPRINT, "type" => kind).set(fingerprint(figures.held.digest));
}

/// First 48 bits, which a gauge holds exactly.
const fn fingerprint(digest: u128) -> f64 {
    (digest >> 80) as f64
}

/// Reports the source; a directory has no `state`.
pub fn report_upstream(
    connected: bool,
    state: Option<&UpstreamState>,
    events: &[(&'static str, u64)],
    now: Instant,
) {
    gauge!(UPSTREAM_CONNECTED).set(f64::from(connected));
    let of = |figure: &dyn Fn(&UpstreamState) -> f64| state.map_or(0.0, figure);
    gauge!(UPSTREAM_SERVER).set(of(&|state| state.server as f64));
    gauge!(UPSTREAM_STALE).set(of(&|state| state.stale_for(now).as_secs_f64()));
    gauge!(UPSTREAM_LAST_ANSWER).set(of(&|state| state.silent_for(now).as_secs_f64()));
    gauge!(UPSTREAM_UNANSWERED).set(of(&|state| state.unanswered.count as f64));
    for (event, count) in events {
        counter!(UPSTREAM, "event" => *event).absolute(*count);
    }
}

pub fn report_groups(rule: &str, groups: usize, clients: usize, stale_seconds: f64, unanswered: usize) {
    gauge!(GROUPS, "group" => rule.to_owned()).set(groups as f64);
    gauge!(GROUP_CLIENTS, "group" => rule.to_owned()).set(clients as f64);
    gauge!(GROUP_STALE, "group" => rule.to_owned()).set(stale_seconds);
    gauge!(GROUPS_UNANSWERED, "group" => rule.to_owned()).set(unanswered as f64);
}

pub fn upstream_applied(took: Duration) {
    histogram!(UPSTREAM_APPLY).record(took);
}

/// Reports that certificate files were read: for the first time, or after `reloads` or `failures` of changed ones. Both
/// counters exist from the first time on, so that an alert on the rate sees the first event. `of` is the key of the files.
pub fn tls_read(of: &str, reloads: u64, failures: u64) {
    counter!(TLS_RELOADS, "of" => of.to_owned()).increment(reloads);
    counter!(TLS_RELOAD_FAILURES, "of" => of.to_owned()).increment(failures);
    gauge!(TLS_SUCCESSFUL, "of" => of.to_owned()).set(if failures == 0 { 1.0 } else { 0.0 });
}

/// In seconds since 1970. `which` names the file as the configuration does.
pub fn report_tls_expiry(of: &str, which: &'static str, expires: i64) {
    gauge!(TLS_EXPIRY, "of" => of.to_owned(), "which" => which).set(expires as f64);
}

deltafan_core::labelled! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ReloadResult {
        /// In force, or after a restart.
        Applied = "applied",
        Unchanged = "unchanged",
        Refused = "refused",
    }
}

/// `restart_pending`: the file has changes that need a restart.
pub fn config_reloaded(result: ReloadResult, restart_pending: bool) {
    count(CONFIG_RELOADS, &[("result", result.label())], 1);
    if result == ReloadResult::Refused {
        gauge!(CONFIG_SUCCESSFUL).set(0.0);
    } else {
        config_loaded(restart_pending);
    }
}

pub fn config_loaded(restart_pending: bool) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!(CONFIG_SUCCESSFUL).set(1.0);
    gauge!(CONFIG_SUCCESS_AT).set(since.as_secs_f64());
    gauge!(CONFIG_RESTART).set(f64::from(restart_pending));
}

/// Creates the metrics that exist from the start, with each label. `increase()` and `rate()` of Prometheus
/// miss the first event of a counter that appears with it.
fn make_at_zero() {
    for metric in all().filter(|metric| metric.from_start) {
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

pub fn report_rollouts(all: &[RolloutStatus], counts: &RolloutCounts) {
    let RolloutCounts { spread, held, released, discarded, unanswered } = counts;
    for (result, count) in [
        ("spread", spread),
        ("held", held),
        ("released", released),
        ("discarded", discarded),
        ("unanswered", unanswered),
    ] {
        counter!(ROLLOUTS, "result" => result).absolute(count.load(Ordering::Relaxed));
    }
    let sum = |of: fn(&RolloutStatus) -> usize| all.iter().map(of).sum::<usize>() as f64;
    gauge!(ROLLOUT_CANARIES).set(sum(|of| of.canaries));
    for (state, names) in [
        ("trying", sum(|of| of.trying)),
        ("waiting", sum(|of| of.waiting)),
        ("held", sum(|of| of.held.len() + of.on_hold)),
        ("kept_back", sum(|of| of.kept_back)),
    ] {
        gauge!(ROLLOUT_CHANGES, "state" => state).set(names);
    }
}

/// Sets the metrics of the process under Prometheus' standard names. Keeps the last values where `/proc` cannot be read.
pub fn report_process() {
    counter!(LOG_LOST).absolute(lost_lines());
    counter!(PANICS).absolute(panics());
    if let Err(error) = try_report_process() {
        tracing::debug!(%error, "cannot read /proc/self for metrics");
    }
}

fn try_report_process() -> ProcResult<()> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks = procfs::ticks_per_second();
    // Counters are whole numbers.
    counter!(PROCESS_CPU).absolute((stat.utime + stat.stime) / ticks);
    let started = procfs::boot_time_secs()? + stat.starttime / ticks;
    for (name, value) in [
        (PROCESS_RESIDENT, stat.rss_bytes().get()),
        (PROCESS_VIRTUAL, stat.vsize),
        (PROCESS_START, started),
        (PROCESS_FDS, process.fd_count()? as u64),
    ] {
        gauge!(name).set(value as f64);
    }
    gauge!(PROCESS_THREADS).set(stat.num_threads as f64);
    let most = process.limits()?.max_open_files.soft_limit;
    gauge!(PROCESS_MAX_FDS).set(match most {
        LimitValue::Value(most) => most as f64,
        LimitValue::Unlimited => f64::INFINITY,
    });
    Ok(())
}
