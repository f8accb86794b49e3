//! Cost of a process, read from /proc; a clock that all processes share; medians and quantiles.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;

/// CPU time that each thread of a process has used, in nanoseconds, by its id.
///
/// Threads are kept apart because what one used is gone from /proc when it ends, as an idle one of Tokio's blocking pool
/// does after ten seconds: a sum over those that are there can be less than it was.
#[derive(Default)]
pub(crate) struct Threads(BTreeMap<OsString, u64>);

impl Threads {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?;
            // A thread that ended meanwhile has nothing to read.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
            threads.insert(task.file_name(), nanos);
        }
        Ok(Self(threads))
    }

    /// Use of each thread in between, but for those that ended.
    pub(crate) fn used_since(&self, before: &Self) -> Vec<u64> {
        let of = |(id, now): (_, &u64)| now.saturating_sub(before.0.get(id).copied().unwrap_or(0));
        self.0.iter().map(of).collect()
    }

    pub(crate) fn since(&self, before: &Self) -> u64 {
        self.used_since(before).into_iter().sum()
    }
}

/// Resident memory of a process, in KiB.
pub(crate) fn rss_kib(pid: u32) -> io::Result<u64> {
    status(pid, "VmRSS:")
}

/// The most that was resident since the start, or since [`reset_peak`], in KiB.
pub(crate) fn peak_kib(pid: u32) -> io::Result<u64> {
    status(pid, "VmHWM:")
}

/// How often threads of a process went to sleep since they began: each time, something wakes them again.
pub(crate) fn sleeps(pid: u32) -> io::Result<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
    let ids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    // A thread may end meanwhile.
    Ok(ids.filter_map(|id| status(id, "voluntary_ctxt_switches:").ok()).sum())
}

/// Lets the peak begin anew at what is resident now (proc(5), clear_refs).
pub(crate) fn reset_peak(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

fn status(pid: u32, key: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| io::Error::other(format!("no {key} of process {pid}")))
}

/// A clock that all processes of the machine share.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The value that this fraction of sorted values does not exceed.
pub(crate) fn quantile(sorted: &[u64], fraction: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * fraction) as usize).copied().unwrap_or(0)
}

/// Millions of durations in a few kilobytes, each to within 3 %.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    const STEPS: u32 = 5;

    pub(crate) fn new() -> Self {
        Self { counts: vec![0; 64 << Self::STEPS], total: 0, max: 0 }
    }

    pub(crate) fn record(&mut self, value: u64) {
        self.counts[Self::bucket(value)] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    const fn bucket(value: u64) -> usize {
        let value = value | (1 << Self::STEPS);
        let octave = value.ilog2() - Self::STEPS;
        (((octave as u64) << Self::STEPS) + (value >> octave)) as usize - (1 << Self::STEPS)
    }

    /// The upper end of the bucket up to which this fraction lies.
    pub(crate) fn quantile(&self, fraction: f64) -> u64 {
        let mut left = (self.total as f64 * fraction).ceil() as u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            if *count >= left {
                let (octave, step) = (bucket as u64 >> Self::STEPS, bucket as u64 & ((1 << Self::STEPS) - 1));
                return (((1 << Self::STEPS) + step + 1) << octave).min(self.max);
            }
            left -= count;
        }
        self.max
    }

    pub(crate) const fn max(&self) -> u64 {
        self.max
    }
}
