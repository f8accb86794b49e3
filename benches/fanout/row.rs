//! The rows of the bench.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use super::measure::{median, monotonic_nanos};
use super::origin::Origin;
use super::shape::{Load, Transport};
use super::target::{Driver, Floor, Peer, Relay};

/// About what a cluster or a small set of endpoints takes.
const RESOURCE_BYTES: usize = 300;
/// A change as it goes to a delta client: its resource and some 200 bytes around it.
const DELTA_MESSAGE: usize = 520;
/// Changes of one measured round: enough for the clock of the scheduler.
const CHANGES: usize = 10;

/// What a client-update costs.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    cpu_us: f64,
    p50_ms: f64,
    p99_ms: f64,
    last_ms: f64,
    rss_mib: f64,
}

impl Cost {
    fn medians(costs: &[Self]) -> Self {
        let of = |field: fn(&Self) -> f64| median(costs.iter().map(field).collect());
        Self {
            cpu_us: of(|cost| cost.cpu_us),
            p50_ms: of(|cost| cost.p50_ms),
            p99_ms: of(|cost| cost.p99_ms),
            last_ms: of(|cost| cost.last_ms),
            rss_mib: of(|cost| cost.rss_mib),
        }
    }
}

/// A server under load.
trait Subject {
    fn change(&mut self, load: &Load, round: usize) -> io::Result<()>;
    fn cpu(&self) -> io::Result<u64>;
    fn rss(&self) -> io::Result<u64>;
    fn driver(&mut self) -> &mut Driver;

    /// One round: changes, each awaited by every client that reads.
    fn round(&mut self, load: &Load, round: usize) -> io::Result<Cost> {
        let readers = load.readers();
        let (mut p50, mut p99, mut last) = (Vec::new(), Vec::new(), Vec::new());
        let before = self.cpu()?;
        for change in 0..CHANGES {
            self.driver().expect(readers)?;
            let begun = monotonic_nanos();
            self.change(load, round * CHANGES + change)?;
            let arrivals = self.driver().arrivals()?;
            let ms = |at: u64| at.saturating_sub(begun) as f64 / 1e6;
            p50.push(ms(arrivals.median));
            p99.push(ms(arrivals.p99));
            last.push(ms(arrivals.last));
        }
        let cpu = self.cpu()? - before;
        Ok(Cost {
            cpu_us: cpu as f64 / 1e3 / (readers * CHANGES) as f64,
            p50_ms: median(p50),
            p99_ms: median(p99),
            last_ms: median(last),
            rss_mib: self.rss()? as f64 / 1024.0,
        })
    }
}

struct RelaySubject {
    origin: Origin,
    relay: Relay,
    driver: Driver,
    joined_ms: f64,
}

impl RelaySubject {
    fn start(load: &Load) -> io::Result<Self> {
        let origin = Origin::start();
        origin.fill(load.type_url(), load.resources, RESOURCE_BYTES);
        let relay = Relay::start(origin.address)?;
        let (driver, joined) = Driver::start(relay.address, load)?;
        Ok(Self { origin, relay, driver, joined_ms: joined.as_secs_f64() * 1e3 })
    }
}

impl Subject for RelaySubject {
    fn change(&mut self, load: &Load, round: usize) -> io::Result<()> {
        self.origin.change(load.type_url(), load.changed(round), round as u64 + 2);
        Ok(())
    }

    fn cpu(&self) -> io::Result<u64> {
        self.relay.process.cpu()
    }

    fn rss(&self) -> io::Result<u64> {
        self.relay.process.rss()
    }

    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

struct PeerSubject {
    peer: Peer,
    driver: Driver,
}

impl Subject for PeerSubject {
    fn change(&mut self, load: &Load, round: usize) -> io::Result<()> {
        let which: Vec<String> = load.changed(round).iter().map(usize::to_string).collect();
        self.peer.process.say(&format!("change {} {}", round + 2, which.join(" ")))
    }

    fn cpu(&self) -> io::Result<u64> {
        self.peer.process.cpu()
    }

    fn rss(&self) -> io::Result<u64> {
        self.peer.process.rss()
    }

    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

struct FloorSubject(Floor);

impl Subject for FloorSubject {
    fn change(&mut self, _: &Load, _: usize) -> io::Result<()> {
        self.0.process.say("go")
    }

    fn cpu(&self) -> io::Result<u64> {
        self.0.process.cpu()
    }

    fn rss(&self) -> io::Result<u64> {
        self.0.process.rss()
    }

    fn driver(&mut self) -> &mut Driver {
        &mut self.0.load
    }
}

/// Measures the relay and, where they are there, its peer and the floor, in interleaved rounds.
fn row(name: &str, load: &Load, rounds: usize, peer: Option<&PathBuf>, floor: bool) -> io::Result<Cost> {
    let mut relay = RelaySubject::start(load)?;
    let mut peer = match peer {
        Some(program) => {
            let peer = Peer::start(program, load, RESOURCE_BYTES)?;
            let (driver, _) = Driver::start(peer.address, load)?;
            Some(PeerSubject { peer, driver })
        }
        None => None,
    };
    let mut floor = (floor && load.transport == Transport::Delta && load.streams_per_connection == 1)
        .then(|| Floor::start(load.readers(), DELTA_MESSAGE))
        .transpose()?
        .map(FloorSubject);
    let (mut ours, mut theirs, mut least) = (Vec::new(), Vec::new(), Vec::new());
    let encodes = relay.relay.encodes()?;
    // The first round warms up.
    for round in 0..=rounds {
        let cost = relay.round(load, round)?;
        let other = peer.as_mut().map(|peer| peer.round(load, round)).transpose()?;
        let raw = floor.as_mut().map(|floor| floor.round(load, round)).transpose()?;
        if round > 0 {
            ours.push(cost);
            theirs.extend(other);
            least.extend(raw);
        }
    }
    let per_change = (relay.relay.encodes()? - encodes) as f64 / ((rounds + 1) * CHANGES) as f64;
    let cost = Cost::medians(&ours);
    let Cost { cpu_us, p50_ms, p99_ms, last_ms, rss_mib } = cost;
    print!("{name:<44} {cpu_us:>8.2} us  p50 {p50_ms:>7.2}  p99 {p99_ms:>7.2}  last {last_ms:>7.2} ms  ");
    print!("rss {rss_mib:>6.1} MiB  join {:>6.0} ms  encodes/change {per_change:.1}", relay.joined_ms);
    if !theirs.is_empty() {
        let peer = Cost::medians(&theirs);
        print!("  | linear {:.1} us = {:.1}x", peer.cpu_us, peer.cpu_us / cpu_us);
    }
    if !least.is_empty() {
        let floor = Cost::medians(&least);
        print!(
            "  | {:.2} F ({:.2} us), last {:.2} of the raw loop's",
            cpu_us / floor.cpu_us,
            floor.cpu_us,
            last_ms / floor.last_ms
        );
    }
    println!();
    Ok(cost)
}

/// Every shape of the bench.
pub(crate) fn all(only: &str, rounds: usize, alone: bool) -> io::Result<()> {
    let peer = if alone { None } else { build_peer() };
    if peer.is_none() && !alone {
        println!("SKIPPED: the rows beside go-control-plane (go is not here, or its modules cannot be had)");
    }
    let delta = |clients, resources| Load::wildcard(Transport::Delta, clients, resources);
    let rows = [
        ("delta wildcard 1000 x 100", delta(1000, 100)),
        ("delta wildcard 1000 x 1000", delta(1000, 1000)),
        ("delta wildcard 1000 x 10000", delta(1000, 10_000)),
        (
            "delta wildcard 1000 x 1000, 100 streams each",
            Load { streams_per_connection: 100, ..delta(1000, 1000) },
        ),
        ("delta wildcard 1000 x 1000, 5 % do not read", Load { silent_percent: 5, ..delta(1000, 1000) }),
        ("delta named 1000 x 10 of 1000", Load::named(1000, 10, 1000)),
        ("delta named 5000 x 10 of 1000", Load::named(5000, 10, 1000)),
        ("sotw cds wildcard 1000 x 1000", Load::wildcard(Transport::Sotw, 1000, 1000)),
        ("delta wildcard 8000 x 100", delta(8000, 100)),
    ];
    for (name, load) in rows.iter().filter(|(name, _)| name.contains(only)) {
        row(name, load, rounds, peer.as_ref(), !alone)?;
    }
    Ok(())
}

/// The properties that do not depend on the speed of the machine.
pub(crate) fn short() -> io::Result<()> {
    let mut faults = Vec::new();
    for clients in [50, 500] {
        let load = Load::wildcard(Transport::Delta, clients, 100);
        let mut subject = RelaySubject::start(&load)?;
        let before = subject.relay.encodes()?;
        subject.round(&load, 0)?;
        let encodes = subject.relay.encodes()? - before;
        println!("{clients} clients: {encodes} encodes for {CHANGES} changes");
        if encodes != CHANGES as u64 {
            faults.push(format!("{encodes} encodes for {CHANGES} changes with {clients} clients"));
        }
    }
    let few = row("delta wildcard 300 x 100", &Load::wildcard(Transport::Delta, 300, 100), 5, None, false)?;
    let many =
        row("delta wildcard 300 x 10000", &Load::wildcard(Transport::Delta, 300, 10_000), 5, None, false)?;
    let ratio = many.cpu_us / few.cpu_us;
    println!("cost at 10,000 resources against 100: {ratio:.2}x");
    if ratio > 1.5 {
        faults.push(format!("cost grows with the number of resources: {ratio:.2}x from 100 to 10,000"));
    }
    if faults.is_empty() { Ok(()) } else { Err(io::Error::other(faults.join("; "))) }
}

/// Builds the go-control-plane peer where Go is found.
fn build_peer() -> Option<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/linear");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("linear");
    let built = Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(folder).status();
    built.is_ok_and(|status| status.success()).then_some(program)
}
