//! Metrics of the snapshot on disk.

#![expect(clippy::disallowed_macros, reason = "this is the part of `telemetry` that declares them")]

use std::time::Duration;

use metrics::{counter, gauge};

use super::catalog::{
    CACHE_AGE, SNAPSHOT_BYTES, SNAPSHOT_FAILURES, SNAPSHOT_LOAD, SNAPSHOT_LOADED, SNAPSHOT_LOADED_BYTES,
    SNAPSHOT_WRITE_AGE, SNAPSHOT_WRITES,
};

/// Figures of the snapshot when the metrics are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotFigures {
    /// Resources that were loaded at the start.
    pub loaded: usize,
    /// Their bytes.
    pub loaded_bytes: usize,
    /// Time that this took.
    pub load: Duration,
    /// Transactions that were written.
    pub writes: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time since the last transaction.
    pub last_write: Duration,
    /// Time since the control plane last answered.
    pub age: Duration,
}

/// Reports the figures of the snapshot.
pub fn report_snapshot(figures: SnapshotFigures) {
    gauge!(SNAPSHOT_LOADED).set(figures.loaded as f64);
    gauge!(SNAPSHOT_LOADED_BYTES).set(figures.loaded_bytes as f64);
    gauge!(SNAPSHOT_LOAD).set(figures.load.as_secs_f64());
    counter!(SNAPSHOT_WRITES).absolute(figures.writes);
    counter!(SNAPSHOT_FAILURES).absolute(figures.failures);
    gauge!(SNAPSHOT_BYTES).set(figures.bytes as f64);
    gauge!(SNAPSHOT_WRITE_AGE).set(figures.last_write.as_secs_f64());
    gauge!(CACHE_AGE).set(figures.age.as_secs_f64());
}
