//! Cost of REST-JSON polls, beside delta streams.

use std::io;
use std::time::Duration;

use super::Bench;
use crate::origin::Origin;
use crate::shape::Load;
use crate::subject::{Comparison, RESOURCE_BYTES, RelaySubject};
use crate::target::{Driver, Relay};
use crate::verdict::Goal;

fn streams(clients: usize) -> Load {
    Load { stride: 0, ..Load::named(clients, 1, 1) }
}

fn polls(clients: usize) -> Load {
    Load { polls: true, ..streams(clients) }
}

/// A change to a thousand clients: the answer and the poll that follows it, against the response and its ACK.
pub(super) fn update(bench: &Bench, name: &str) -> io::Result<()> {
    let mut streams = RelaySubject::start(bench.cores, &streams(1000))?;
    let mut polls = RelaySubject::start(bench.cores, &polls(1000))?;
    let Comparison { base: stream, other: poll, ratio } =
        Comparison::take(&mut streams, &mut polls, bench.rounds)?;
    for (who, cost) in [("poll", poll), ("delta", stream)] {
        println!(
            "{name:<44} {who:<6} {:>8.2} us (load {:.2})  {:>6.0} B  p50 {:>7.2}  last {:>7.2} ms",
            cost.cpu_us, cost.load_us, cost.bytes, cost.p50_ms, cost.last_ms
        );
    }
    Goal::new(2.5, 1.5).at_most("times a delta stream", ratio);
    Ok(())
}

/// Memory that held polls add, and their cost while nothing changes.
pub(super) fn held(bench: &Bench, name: &str) -> io::Result<()> {
    const CLIENTS: usize = 5000;
    const HOLD: Duration = Duration::from_secs(60);
    const QUIET: Duration = Duration::from_secs(2);
    const WATCHED: Duration = Duration::from_secs(20);
    let load = polls(CLIENTS);
    let origin = Origin::start();
    origin.fill(load.kinds[0], load.resources, RESOURCE_BYTES);
    let relay = Relay::holding(bench.cores, origin.address, HOLD)?;
    // Descriptors, and all that the first poll makes.
    drop(Driver::start(bench.cores, relay.address, &polls(1))?);
    relay.wait_for_connections(0)?;
    std::thread::sleep(QUIET);
    let before = relay.process.rss_mib()?;
    let (mut fleet, joined) = Driver::start(bench.cores, relay.address, &load)?;
    std::thread::sleep(QUIET);
    let kib = (relay.process.rss_mib()? - before) * 1024.0 / CLIENTS as f64;
    fleet.tally()?;
    let cpu = relay.process.cpu()?;
    std::thread::sleep(WATCHED);
    let idle = (relay.process.cpu()? - cpu) as f64 / WATCHED.as_nanos() as f64;
    let (held, ended) = (relay.held_polls()?, fleet.tally()?.messages);
    if held != CLIENTS as u64 || ended > 0 {
        return Err(io::Error::other(format!("{held} of {CLIENTS} polls are held, {ended} ended meanwhile")));
    }
    println!(
        "{name}: one connection over HTTP/1.1 each, held for {HOLD:?} at most; joined in {:.0} ms; watched for \
         {WATCHED:?}, in which none ended",
        joined.nanos as f64 / 1e6
    );
    Goal::new(24.0, 16.0).at_most("KiB per held poll", kib);
    Goal::new(0.2, 0.05).at_most("% of a core while all are held", idle * 100.0);
    Ok(())
}
