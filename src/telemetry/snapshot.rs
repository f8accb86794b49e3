//! Metrics of the snapshot on disk.

#![expect(clippy::disallowed_macros, reason = "this is the part of `telemetry` that declares them")]

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::{
    CACHE_AGE, SNAPSHOT_BYTES, SNAPSHOT_FAILURES, SNAPSHOT_LOAD, SNAPSHOT_LOADED, SNAPSHOT_LOADED_BYTES,
    SNAPSHOT_WRITE_AGE, SNAPSHOT_WRITES,
};

pub(super) fn describe() {
    describe_gauge!(SNAPSHOT_LOADED, "resources that were loaded from the snapshot at the start");
    describe_gauge!(SNAPSHOT_LOADED_BYTES, Unit::Bytes, "bytes of those resources");
    describe_gauge!(SNAPSHOT_LOAD, Unit::Seconds, "time that it took to open and load the snapshot");
    describe_counter!(SNAPSHOT_WRITES, "transactions that were written to the snapshot");
    describe_counter!(SNAPSHOT_FAILURES, "attempts to open, read or write the snapshot that failed");
    describe_gauge!(SNAPSHOT_BYTES, Unit::Bytes, "size of the snapshot on disk");
    describe_gauge!(
        SNAPSHOT_WRITE_AGE,
        Unit::Seconds,
        "time since the snapshot was last written, or since the start; it is written when something changed"
    );
    describe_gauge!(
        CACHE_AGE,
        Unit::Seconds,
        "time since the control plane last answered, in this process or in the one before it"
    );
}

/// Figures of the snapshot when the metrics are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotFigures {
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
    counter!(SNAPSHOT_WRITES).absolute(figures.writes);
    counter!(SNAPSHOT_FAILURES).absolute(figures.failures);
    gauge!(SNAPSHOT_BYTES).set(figures.bytes as f64);
    gauge!(SNAPSHOT_WRITE_AGE).set(figures.last_write.as_secs_f64());
    gauge!(CACHE_AGE).set(figures.age.as_secs_f64());
}

/// Reports the resources that were loaded at the start.
pub fn snapshot_loaded(resources: usize, bytes: usize, took: Duration) {
    gauge!(SNAPSHOT_LOADED).set(resources as f64);
    gauge!(SNAPSHOT_LOADED_BYTES).set(bytes as f64);
    gauge!(SNAPSHOT_LOAD).set(took.as_secs_f64());
}
