//! Metrics of the process, under Prometheus' standard names.

#![expect(clippy::disallowed_macros, reason = "this is the part of `telemetry` that declares them")]

use metrics::{counter, gauge};
use procfs::process::{LimitValue, Process};
use procfs::{ProcResult, WithCurrentSystemInfo as _};

use super::catalog::{
    LOG_LOST, PANICS, PROCESS_CPU, PROCESS_FDS, PROCESS_MAX_FDS, PROCESS_RESIDENT, PROCESS_START,
    PROCESS_THREADS, PROCESS_VIRTUAL,
};
use super::log_output::{lost_lines, panics};

/// Keeps the last values where `/proc` cannot be read.
pub fn report_process() {
    counter!(LOG_LOST).absolute(lost_lines());
    counter!(PANICS).absolute(panics());
    if let Err(error) = report() {
        tracing::debug!(%error, "cannot read /proc/self for metrics");
    }
}

fn report() -> ProcResult<()> {
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
