//! A hundredth of a million clients: regions with a relay each, behind one relay of all regions. `benches/fleet.py` computes the same.

use std::io;
use std::time::Instant;

use serde_json::json;

use super::Bench;
use crate::measure::{median, monotonic_nanos};
use crate::origin::Origin;
use crate::shape::Load;
use crate::subject::{CHANGES, RESOURCE_BYTES};
use crate::target::{Driver, Relay};
use crate::verdict::{Goal, figure};

const REGIONS: usize = 4;
const CLIENTS: usize = 2500;
const RESOURCES: usize = 1000;

/// Time until the last client of all regions has a change, and until all that hold everything are back. All relays share a core.
pub(super) fn tree(bench: &Bench, name: &str) -> io::Result<()> {
    let load = Load::delta(CLIENTS, RESOURCES);
    let origin = Origin::start();
    origin.fill(load.kinds[0], RESOURCES, RESOURCE_BYTES);
    let root = Relay::start(bench.cores, origin.address, &load)?;
    let regions: Vec<Relay> =
        (0..REGIONS).map(|_| Relay::start(bench.cores, root.address, &load)).collect::<io::Result<_>>()?;
    let empty = mib(&regions)?;
    let fleet = |load: &Load| -> io::Result<Vec<Driver>> {
        let start = |relay: &Relay| Ok(Driver::start(bench.cores, relay.address, load)?.0);
        regions.iter().map(start).collect()
    };
    let mut drivers = fleet(&load)?;
    let full = mib(&regions)?;
    let (mut last, mut root_us, mut region_us) = (Vec::new(), Vec::new(), Vec::new());
    for change in 0..bench.rounds * CHANGES {
        for driver in &mut drivers {
            driver.expect(CLIENTS)?;
        }
        let (of_root, of_regions) = (root.process.cpu()?, cpu(&regions)?);
        let begun = monotonic_nanos();
        origin.change(load.kinds[0], load.changed(change));
        let mut came = 0;
        for driver in &mut drivers {
            came = came.max(driver.arrivals()?.last);
        }
        last.push(came.saturating_sub(begun) as f64 / 1e6);
        root_us.push((root.process.settled_cpu()? - of_root) as f64 / 1e3 / REGIONS as f64);
        region_us.push((cpu(&regions)? - of_regions) as f64 / 1e3 / (REGIONS * CLIENTS) as f64);
    }
    drop(drivers);
    for relay in &regions {
        relay.wait_for_connections(0)?;
    }
    let before = cpu(&regions)?;
    let begun = Instant::now();
    let back = Load { held: true, first: 0, at_once: 2000, ..load };
    let _back = fleet(&back)?;
    let seconds = begun.elapsed().as_secs_f64();
    let join_us = (cpu(&regions)? - before) as f64 / 1e3 / (REGIONS * CLIENTS) as f64;
    let (last, root_us, region_us) = (median(last), median(root_us), median(region_us));
    let client_kib = (full - empty) * 1024.0 / (REGIONS * CLIENTS) as f64;
    println!(
        "{name}: {REGIONS} regions with {CLIENTS} clients each; a change costs the root {root_us:.1} us for a region, and a region \
         {region_us:.1} us for a client; a return costs {join_us:.0} us, a client {client_kib:.1} KiB"
    );
    println!("    the last client of all has a change after {last:.0} ms; all are back after {seconds:.2} s");
    figure(
        "tree",
        json!({"regions": REGIONS, "clients": CLIENTS, "last_ms": last, "root_us": root_us, "region_us": region_us,
               "return_seconds": seconds, "return_us": join_us, "client_kib": client_kib}),
    );
    Goal::new(1000.0, 250.0).at_most("ms until the last of 10,000 clients has a change", last);
    Ok(())
}

fn mib(relays: &[Relay]) -> io::Result<f64> {
    relays.iter().map(|relay| relay.process.rss_mib()).sum()
}

fn cpu(relays: &[Relay]) -> io::Result<u64> {
    relays.iter().map(|relay| relay.process.cpu()).sum()
}
