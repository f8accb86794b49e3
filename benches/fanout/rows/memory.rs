//! Resident memory of clients that are up to date and quiet. Single-shot: each figure takes a fresh relay.

use std::io;
use std::time::Duration;

use super::Bench;
use crate::origin::Origin;
use crate::process::Cores;
use crate::shape::{Kind, Load};
use crate::subject::RESOURCE_BYTES;
use crate::target::{Driver, Relay};
use crate::verdict::Goal;

/// Names of each type. 37 does not divide it, so that up to as many clients have sets that all differ.
const POOL: usize = 2048;
/// After the last ACK was written, until the relay has read it and let go of what it had in hand.
const QUIET: Duration = Duration::from_secs(2);

/// Memory that a fleet adds to a relay that knows all names already, in KiB.
pub(crate) fn growth(cores: Cores, load: &Load) -> io::Result<f64> {
    let origin = Origin::start();
    for kind in &load.kinds {
        origin.fill(*kind, load.resources, RESOURCE_BYTES);
    }
    let relay = Relay::start(cores, origin.address, load)?;
    let _knows = Driver::start(cores, relay.address, &knowing(load))?;
    std::thread::sleep(QUIET);
    let before = relay.process.rss_mib()?;
    let _fleet = Driver::start(cores, relay.address, load)?;
    std::thread::sleep(QUIET);
    Ok((relay.process.rss_mib()? - before) * 1024.0)
}

/// Clients that between them ask for everything that the clients of a load do.
fn knowing(load: &Load) -> Load {
    let one = Load { clients: 1, streams_per_connection: 1, ..load.clone() };
    if load.names == 0 {
        return one;
    }
    // All names of all types are more than fit into the window of a stream.
    const SHARES: usize = 8;
    let names = load.kinds.len() * load.resources / SHARES;
    Load { clients: SHARES, names, first: names, stride: load.resources / SHARES, ..one }
}

/// One connection, one aggregated stream, four types.
pub(crate) fn four_types(clients: usize, names: usize, stride: usize) -> Load {
    Load { kinds: Kind::ALL.to_vec(), stride, ..Load::named(clients, names, POOL) }
}

pub(super) fn idle(bench: &Bench, name: &str, load: &Load, goal: Goal) -> io::Result<()> {
    let kib = growth(bench.cores, load)? / load.clients as f64;
    println!("{name}: {} clients, one connection and one stream each, 50 names of 4 types", load.clients);
    goal.at_most("KiB per client", kib);
    Ok(())
}

pub(super) fn subscription(bench: &Bench, name: &str) -> io::Result<()> {
    const CLIENTS: usize = 1000;
    let (few, many) = (50, 450);
    let more = growth(bench.cores, &four_types(CLIENTS, many, 37))?
        - growth(bench.cores, &four_types(CLIENTS, few, 37))?;
    let bytes = more * 1024.0 / (CLIENTS * (many - few)) as f64;
    println!("{name}: {CLIENTS} clients with {many} names each against {few}, all sets different");
    Goal::new(48.0, 16.0).at_most("bytes per name more", bytes);
    Ok(())
}

pub(super) fn fleet(
    bench: &Bench,
    name: &str,
    clients: usize,
    streams_per_connection: usize,
) -> io::Result<()> {
    let load = Load { streams_per_connection, ..Load::delta(clients, 100) };
    let kib = growth(bench.cores, &load)?;
    println!("{name}: delta wildcard, 100 resources, {:.2} KiB per stream", kib / clients as f64);
    Goal::new(3.0, 1.5).at_most("GiB in all", kib / f64::from(1 << 20));
    Ok(())
}
