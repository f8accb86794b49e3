//! Limits whose defaults follow from the machine: how many connections, and how much memory.
//!
//! Owns these keys, and the reading of what the machine allows. What cannot be read is no error: the limit is then one
//! that any machine bears, or there is none.

use std::fs;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::section::Section;
use super::units;

/// Connections that are open at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ConnectionLimits {
    /// Of all listeners. Default: the hard limit of descriptors less 256, at most a million.
    pub max_connections: usize,
    /// From one address; all Unix sockets count as one. Default: half of `max_connections`.
    pub max_connections_per_address: usize,
    /// Of one identity: SPIFFE ID, or else subject, of a certificate. Default: half of `max_connections`.
    pub max_connections_per_identity: usize,
}

/// The memory in use above which clients are turned away. Zero: whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// New connections and streams are refused, in bytes; never above `close_above`. Default: 80 % of what there is.
    #[serde(serialize_with = "units::serialize_size")]
    pub refuse_above: u64,
    /// Connections are closed, in bytes. Default: 90 % of what there is.
    #[serde(serialize_with = "units::serialize_size")]
    pub close_above: u64,
}

impl ConnectionLimits {
    /// No address and no identity can take all there are.
    fn of(max_connections: usize) -> Self {
        let half = (max_connections / 2).max(1);
        Self { max_connections, max_connections_per_address: half, max_connections_per_identity: half }
    }

    pub(super) fn read(&mut self, section: &Section<'_>) {
        section.count("max_connections", &mut self.max_connections);
        *self = Self::of(self.max_connections);
        section.count("max_connections_per_address", &mut self.max_connections_per_address);
        section.count("max_connections_per_identity", &mut self.max_connections_per_identity);
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        /// For listeners, files, the control plane, operators, and what libraries open.
        const RESERVE: u64 = 256;
        const MOST: u64 = 1_000_000;
        // The relay raises its soft limit to the hard one.
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(MOST);
        let most = (descriptors - RESERVE.min(descriptors / 2)).clamp(1, MOST);
        Self::of(usize::try_from(most).unwrap_or(usize::MAX))
    }
}

impl Memory {
    pub(super) fn read(&mut self, section: &Section<'_>) {
        section.size("refuse_above", &mut self.refuse_above);
        section.size("close_above", &mut self.close_above);
        if self.refuse_above > self.close_above && self.close_above > 0 {
            let key = if section.has("refuse_above") { "refuse_above" } else { "close_above" };
            let [refuse, close] = [self.refuse_above, self.close_above].map(units::format_size);
            let problem = format!("`refuse_above`, `{refuse}`, is above `close_above`, which is `{close}`");
            section.wrong(key, section.line_of(key), &problem);
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        let percent = |part: u64| machine_memory().map_or(0, |bytes| (bytes / 100 * part) & !0xf_ffff);
        Self { refuse_above: percent(80), close_above: percent(90) }
    }
}

/// The default of a budget for what is shared or waits: 256 MiB, or a 16th of the memory that there is, where that is less.
/// There are four of them and one that is twice as large, so that together they take three eighths of the memory at most.
/// From 32 MiB: a connection gets a quarter, and the largest request takes 8 MiB while it comes.
pub(super) fn budget() -> u64 {
    budget_of(machine_memory())
}

fn budget_of(memory: Option<u64>) -> u64 {
    const MIB: u64 = 1 << 20;
    memory.map_or(256 * MIB, |bytes| (bytes / 16 / MIB * MIB).clamp(32 * MIB, 256 * MIB))
}

/// What the control group of the process allows, or else what the machine has, in bytes.
fn machine_memory() -> Option<u64> {
    let of_group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let read = |path| fs::read_to_string(path).ok()?.trim().parse().ok();
    let all = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    // Without a limit, version 1 says a number beyond any machine, and version 2 a word.
    of_group.into_iter().filter_map(read).chain(all).min()
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_has_is_read() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        let memory = Memory::default();
        assert!(memory.refuse_above <= memory.close_above);
        assert!(ConnectionLimits::default().max_connections >= 1);
    }

    #[test]
    fn budgets_follow_from_the_memory() {
        let mib = |memory: Option<u64>| budget_of(memory.map(|mib| mib << 20)) >> 20;
        assert_eq!([None, Some(65_536), Some(4095), Some(512), Some(64)].map(mib), [256, 256, 255, 32, 32]);
    }

    #[test]
    fn one_address_cannot_take_all_connections_unless_it_is_said() {
        let read = |text: &str| {
            let text = format!("upstream: {{directory: /d}}\ndownstream: {text}\n");
            crate::config::Config::parse(&text, "f").unwrap().downstream.limits
        };
        assert_eq!(read("{max_connections: 10}"), ConnectionLimits::of(10));
        assert_eq!(read("{max_connections: 10}").max_connections_per_address, 5);
        assert_eq!(
            read("{max_connections: 10, max_connections_per_address: 10}").max_connections_per_address,
            10
        );
    }

    #[test]
    fn watermarks_are_in_order() {
        let read = |text: &str| {
            let text = format!("upstream: {{directory: /d}}\ndownstream:\n  memory: {text}\n");
            crate::config::Config::parse(&text, "f").map(|config| config.downstream.memory)
        };
        let error = read("{refuse_above: 2GiB, close_above: 1GiB}").unwrap_err().to_string();
        assert!(error.contains("is above `close_above`, which is `1GiB`"), "{error}");
        assert_eq!(
            read("{refuse_above: 1, close_above: 0}").unwrap(),
            Memory { refuse_above: 1, close_above: 0 }
        );
    }
}
