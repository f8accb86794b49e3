//! Fleets that come all at once: new ones, and those that were there before.

use std::io;
use std::time::Duration;

use serde_json::json;

use super::Bench;
use crate::measure::median;
use crate::origin::Origin;
use crate::process::Process;
use crate::report::{Joined, Tally};
use crate::shape::{Kind, Load};
use crate::subject::{PeerSubject, RESOURCE_BYTES, RelaySubject, Subject as _};
use crate::target::{Driver, Relay};
use crate::verdict::{Goal, figure};

/// Time and bytes of the joins of one server.
#[derive(Default)]
struct Joins {
    ms: Vec<f64>,
    cpu_us: Vec<f64>,
    /// The load client's own.
    load_us: Vec<f64>,
    last: Option<Joined>,
}

impl Joins {
    fn take(
        &mut self,
        server: &Process,
        start: impl FnOnce() -> io::Result<(Driver, Joined)>,
        clients: usize,
    ) -> io::Result<()> {
        let cpu = server.cpu()?;
        let (driver, joined) = start()?;
        self.ms.push(joined.nanos as f64 / 1e6);
        self.cpu_us.push((server.cpu()? - cpu) as f64 / 1e3 / clients as f64);
        self.load_us.push(driver.0.cpu()? as f64 / 1e3 / clients as f64);
        self.last = Some(joined);
        drop(driver);
        Ok(())
    }

    fn print(&self, name: &str, who: &str, clients: usize) -> (f64, f64) {
        let (ms, cpu_us) = (median(self.ms.clone()), median(self.cpu_us.clone()));
        let tally = self.last.map(|joined| joined.tally).unwrap_or_default();
        let bytes = tally.bytes as f64 / clients as f64;
        let load_us = median(self.load_us.clone());
        println!(
            "{name:<44} {who:<6} {ms:>8.0} ms until all have all  {cpu_us:>8.1} us CPU (load {load_us:.1}) and \
             {bytes:.0} B per join"
        );
        figure(who, json!({"ms": ms, "us": cpu_us}));
        (ms, cpu_us)
    }
}

/// New clients, that need everything.
pub(super) fn join(bench: &Bench, name: &str) -> io::Result<()> {
    let load = Load::delta(1000, 1000);
    // One client stays, so that the servers have what they are asked for.
    let one = Load { clients: 1, ..load.clone() };
    let relay = RelaySubject::start(bench.cores, &one)?;
    let program = bench.peer.as_ref();
    let peer = program.map(|program| PeerSubject::start(bench.cores, program, &one)).transpose()?;
    let (mut ours, mut theirs) = (Joins::default(), Joins::default());
    for _ in 0..bench.rounds {
        ours.take(relay.process(), || Driver::start(bench.cores, relay.relay.address, &load), load.clients)?;
        relay.relay.wait_for_connections(1)?;
        if let Some(peer) = &peer {
            theirs.take(
                peer.process(),
                || Driver::start(bench.cores, peer.address(), &load),
                load.clients,
            )?;
        }
    }
    let (_, cpu) = ours.print(name, "relay", load.clients);
    if peer.is_some() {
        let (_, other) = theirs.print("", "linear", load.clients);
        println!("    times less CPU than linear: {:.2}", other / cpu);
    }
    Ok(())
}

/// Clients that hold everything already, at its current versions, and ask whether that is so.
pub(super) fn storm(bench: &Bench, name: &str) -> io::Result<()> {
    const CLIENTS: usize = 15_000;
    let load = Load { held: true, first: 0, at_once: 2000, ..Load::delta(CLIENTS, 100) };
    let relay = RelaySubject::start(bench.cores, &Load::delta(1, 100))?;
    let mut joins = Joins::default();
    let mut resources = 0;
    for _ in 0..bench.rounds {
        joins.take(relay.process(), || Driver::start(bench.cores, relay.relay.address, &load), CLIENTS)?;
        resources += joins.last.map_or(0, |joined| joined.tally.resources);
        // One process cannot hold two such fleets.
        relay.relay.wait_for_connections(1)?;
    }
    let (ms, _) = joins.print(name, "relay", CLIENTS);
    Goal::new(5.0, 3.0).at_most("seconds until all are answered", ms / 1e3);
    Goal::new(0.0, 0.0).at_most("resources sent", resources as f64);
    Ok(())
}

/// Clients that are there all the time and are sent changes, on a relay to which a fleet comes that asks for what does not change.
pub(super) struct Bystanders {
    // Ends before the server does: clients that lose their server complain.
    driver: Driver,
    pub(super) relay: Relay,
    _origin: Origin,
}

impl Bystanders {
    pub(super) const CLIENTS: usize = 100;
    pub(super) const CHANGES_PER_SECOND: usize = 100;

    /// The fleet asks for [`Kind::Cds`].
    pub(super) fn start(bench: &Bench, load: &Load, fleet: &Load) -> io::Result<Self> {
        let origin = Origin::start();
        origin.fill(Kind::Eds, load.resources, RESOURCE_BYTES);
        origin.fill(Kind::Cds, fleet.resources, RESOURCE_BYTES);
        let relay = Relay::start(bench.cores, origin.address, load)?;
        let (driver, _) = Driver::start(bench.cores, relay.address, load)?;
        origin.churn(Kind::Eds, Self::CHANGES_PER_SECOND);
        Ok(Self { driver, relay, _origin: origin })
    }

    /// Traffic to them while this is done, and its result.
    pub(super) fn during<T>(&mut self, doing: impl FnOnce() -> io::Result<T>) -> io::Result<(Tally, T)> {
        self.driver.tally()?;
        let done = doing()?;
        Ok((self.driver.tally()?, done))
    }

    /// Traffic to them for so long.
    pub(super) fn watch(&mut self, time: Duration) -> io::Result<Tally> {
        self.driver.tally()?;
        std::thread::sleep(time);
        self.driver.tally()
    }
}

/// How old changes are when they come to clients that stay, while a fleet of streams leaves at once.
pub(super) fn leave(bench: &Bench, name: &str) -> io::Result<()> {
    const AROUND: Duration = Duration::from_secs(3);
    let stay = Load::delta(Bystanders::CLIENTS, 100);
    let fleet = Load { kinds: vec![Kind::Cds], streams_per_connection: 100, ..Load::delta(100_000, 1) };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let mut stay = Bystanders::start(bench, &stay, &fleet)?;
        let (leaving, _) = Driver::start(bench.cores, stay.relay.address, &fleet)?;
        before.push(stay.watch(AROUND)?.max_age as f64 / 1e6);
        drop(leaving);
        after.push(stay.watch(AROUND)?.max_age as f64 / 1e6);
    }
    let (before, after) = (median(before), median(after));
    println!(
        "{name}: 100 delta streams stay, {} changes/s; the oldest change was {before:.1} ms old before",
        Bystanders::CHANGES_PER_SECOND
    );
    Goal::new(50.0, 50.0).at_most("ms that the oldest change was old", after);
    Ok(())
}
