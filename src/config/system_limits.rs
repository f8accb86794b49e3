//! Defaults that follow from the machine, and the keys of the overload manager.
//!
//! Reads the machine's limits. If one is unreadable, the default is one that any machine
//! bears, or none.

use std::fs;

use procfs::Current as _;
use rustix::process::{Resource, getrlimit};

use super::notation::{Size, TIB};
use super::place::Place;
use super::section::section;
use crate::units::format_size;

section! {
    /// The memory in use above which clients are turned away.
    #[derive(Copy, Eq)]
    #[check(check_watermarks)]
    pub struct Memory {
        /// Above this, new connections and streams are refused, and the relay is not ready. Open ones stay. 0: off.
        /// Default: 80 % of what the control group, or the machine, has.
        #[key(Size<0, TIB>, default = percent(80), example = "1600MiB")]
        pub refuse_above: u64,
        /// Above this, connections are closed, starting with those that use most memory. 0: off. Default: 90 % of what the
        /// control group, or the machine, has.
        #[key(Size<0, TIB>, default = percent(90), example = "1800MiB")]
        pub close_above: u64,
    }
}

fn check_watermarks(memory: &Memory, place: &Place<'_>) {
    let Memory { refuse_above, close_above } = *memory;
    if refuse_above > close_above && close_above > 0 {
        let key = ["refuse_above", "close_above"].map(|key| place.at(key)).into_iter().find(Place::is_there);
        let [refuse, close] = [refuse_above, close_above].map(format_size);
        let problem = format!("`refuse_above`, `{refuse}`, is above `close_above`, which is `{close}`");
        key.unwrap_or_else(|| place.clone()).wrong(&problem);
    }
}

/// Connections that the hard limit of descriptors allows; the relay raises its soft limit.
pub(super) fn descriptors() -> usize {
    /// For listeners, files, the control plane, operators and libraries.
    const RESERVE: u64 = 256;
    const MOST: u64 = 1_000_000;
    let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(MOST);
    let most = (descriptors - RESERVE.min(descriptors / 2)).clamp(1, MOST);
    usize::try_from(most).unwrap_or(usize::MAX)
}

pub(super) fn half(max_connections: Option<usize>) -> usize {
    (max_connections.unwrap_or_default() / 2).max(1)
}

/// A part of the memory in whole MiB. Zero, which is no limit, if the memory is unknown.
fn percent(part: u64) -> u64 {
    machine_memory().map_or(0, |bytes| (bytes / 100 * part) & !0xf_ffff)
}

/// Default budget for shared or waiting bytes: 256 MiB, or a 16th of the memory if that is less. There are
/// four, and one twice as large: three eighths of the memory together. At least 32 MiB: a connection gets a
/// quarter, and the largest request takes 8 MiB while it arrives.
pub(super) fn budget() -> u64 {
    budget_of(machine_memory())
}

fn budget_of(memory: Option<u64>) -> u64 {
    const MIB: u64 = 1 << 20;
    memory.map_or(256 * MIB, |bytes| (bytes / 16 / MIB * MIB).clamp(32 * MIB, 256 * MIB))
}

/// Memory that the control group allows, or else that of the machine, in bytes.
fn machine_memory() -> Option<u64> {
    let of_group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let read = |path| fs::read_to_string(path).ok()?.trim().parse().ok();
    let all = procfs::Meminfo::current().ok().map(|memory| memory.mem_total);
    // Without a limit, version 1 has a huge number, and version 2 a word.
    of_group.into_iter().filter_map(read).chain(all).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert!(percent(80) <= percent(90));
        assert!(descriptors() >= 1);
    }

    #[test]
    fn budgets_follow_from_the_memory() {
        let mib = |memory: Option<u64>| budget_of(memory.map(|mib| mib << 20)) >> 20;
        assert_eq!([None, Some(65_536), Some(4095), Some(512), Some(64)].map(mib), [256, 256, 255, 32, 32]);
    }

    #[test]
    fn one_address_cannot_take_all_connections_unless_the_file_says_so() {
        let read = |text: &str| {
            let text = format!("upstream: {{directory: /d}}\ndownstream: {text}\n");
            crate::config::Config::parse(&text, "f").unwrap().downstream
        };
        let limits = read("{max_connections: 10}");
        assert_eq!((limits.max_connections_per_address, limits.max_connections_per_identity), (5, 5));
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
