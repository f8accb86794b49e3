//! What a process costs, read from /proc.

use std::fs;
use std::io;

/// CPU time that all threads of a process have used, in nanoseconds.
pub(crate) fn cpu_nanos(pid: u32) -> io::Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ended meanwhile has nothing to read.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        sum += text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Resident memory of a process, in KiB.
pub(crate) fn rss_kib(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| io::Error::other("no VmRSS"))
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
