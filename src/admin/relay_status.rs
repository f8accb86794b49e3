//! State of the relay that the admin address reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::descriptors::Descriptors;
use crate::downstream::{Drain, OverloadManager, ResponseCache};
use crate::fleet::{Fleet, rollouts_of, seconds};
use crate::groups::Groups;
use crate::snapshot::Disk;
use crate::telemetry::{self, LogLevel, LogThrottle};

/// Readiness, or the reason against it.
pub type Ready = Result<(), String>;

#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub path: PathBuf,
    /// Digest of the file's content.
    pub digest: u64,
    pub at: Instant,
    /// Whether the file has since had unusable content.
    pub is_refused: bool,
}

#[derive(Debug)]
pub struct RelayStatus {
    pub groups: Arc<Groups>,
    pub responses: Arc<ResponseCache>,
    pub descriptors: Descriptors,
    pub metrics: PrometheusHandle,
    pub is_ready: watch::Receiver<Ready>,
    pub drain: Arc<Drain>,
    /// Cancelled when the relay ends.
    pub everything: CancellationToken,
    pub overload: Arc<OverloadManager>,
    pub fleet: Arc<Fleet>,
    /// `None` without a snapshot.
    pub disk: Option<Arc<Disk>>,
    /// Servers as configured; none for a directory.
    pub servers: Vec<String>,
    pub started: Instant,
    /// Own node, as shown to operators.
    pub node: Json,
    /// `None` before the file is watched.
    pub loaded: Mutex<Option<LoadedConfig>>,
    /// `None` for a foreign log.
    pub log_level: Option<LogLevel>,
    /// Limits log lines about refresh orders, which scripts may repeat endlessly.
    pub refreshes: LogThrottle,
}

impl RelayStatus {
    pub(super) fn report_groups(&self) {
        if let Some(connections) = self.groups.connections() {
            telemetry::set(telemetry::UPSTREAM_CONNECTIONS, &[], connections as f64);
        }
        let mut refused = self.groups.origin().state().map_or(0, |state| state.refusals.len());
        for of in self.groups.figures(Instant::now()) {
            telemetry::report_groups(&of.rule, of.groups, of.clients, of.stale_seconds, of.unanswered);
            refused += of.refused_types;
        }
        telemetry::set(telemetry::UPSTREAM_REFUSED, &[], refused as f64);
    }

    pub(super) fn report_rollouts(&self) {
        let all: Vec<_> = rollouts_of(&self.groups, None).map(|(_, rollout)| rollout).collect();
        if let Some(any) = all.first() {
            let all: Vec<_> = all.iter().map(|rollout| rollout.status(Instant::now())).collect();
            telemetry::report_rollouts(&all, any.counts());
        }
    }

    pub(super) fn report_snapshot(&self) {
        let Some(disk) = &self.disk else { return };
        let (status, now) = (disk.status(), Instant::now());
        let loaded = status.loaded.map_or(0, |loaded| loaded.resources);
        let written = now.saturating_duration_since(status.last_write.unwrap_or(disk.started));
        for (gauge, value) in [
            (telemetry::SNAPSHOT_LOADED, loaded as f64),
            (telemetry::SNAPSHOT_BYTES, status.bytes as f64),
            (telemetry::SNAPSHOT_WRITE_AGE, written.as_secs_f64()),
        ] {
            telemetry::set(gauge, &[], value);
        }
        telemetry::set_total(telemetry::SNAPSHOT_WRITES, &[], status.writes);
        telemetry::set_total(telemetry::SNAPSHOT_FAILURES, &[], status.failures);
    }
}

/// Answer to `/server_info`, with Envoy's names where it has them.
pub(super) fn server_info(status: &RelayStatus, now: Instant) -> Json {
    let state = if status.drain.is_begun() {
        "DRAINING"
    } else if status.is_ready.borrow().is_ok() {
        "LIVE"
    } else {
        "INITIALIZING"
    };
    let config = status.loaded.lock().clone().map(|loaded| {
        json!({
            "path": loaded.path.display().to_string(),
            "xxh3": format!("{:016x}", loaded.digest),
            "loaded_seconds_ago": seconds(loaded.at, now),
            "newest_content_refused": loaded.is_refused,
        })
    });
    let uptime = seconds(status.started, now);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "build": {
            "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
            "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        },
        "state": state,
        "uptime_current_epoch": format!("{}s", uptime as u64),
        "uptime_seconds": uptime,
        "node": status.node,
        "config": config,
    })
}
