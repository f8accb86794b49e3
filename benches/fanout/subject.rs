//! A server under load, measured in rounds.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::floor::Sizes;
use super::h2;
use super::measure::{median, monotonic_nanos};
use super::origin::Origin;
use super::process::{Cores, Process};
use super::report::{Arrivals, Joined};
use super::shape::{Client, Load};
use super::target::{Driver, Floor, Peer, Relay};

/// About what a cluster or a small set of endpoints takes.
pub(crate) const RESOURCE_BYTES: usize = 300;
/// Changes of one measured round: enough for the clock of the scheduler.
pub(crate) const CHANGES: usize = 10;

/// Cost of a client-update.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) cpu_us: f64,
    /// The load client's own.
    pub(crate) load_us: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) last_ms: f64,
    pub(crate) rss_mib: f64,
    /// Bytes that a client read, frames and all, and those that it wrote.
    pub(crate) bytes: f64,
    pub(crate) sent: f64,
}

impl Cost {
    pub(crate) fn medians(costs: &[Self]) -> Self {
        let of = |field: fn(&Self) -> f64| median(costs.iter().map(field).collect());
        Self {
            cpu_us: of(|cost| cost.cpu_us),
            load_us: of(|cost| cost.load_us),
            p50_ms: of(|cost| cost.p50_ms),
            p99_ms: of(|cost| cost.p99_ms),
            last_ms: of(|cost| cost.last_ms),
            rss_mib: of(|cost| cost.rss_mib),
            bytes: of(|cost| cost.bytes),
            sent: of(|cost| cost.sent),
        }
    }
}

/// A server under load.
pub(crate) trait Subject {
    fn load(&self) -> &Load;
    fn change(&mut self, round: usize) -> io::Result<()>;
    fn process(&self) -> &Process;
    fn driver(&mut self) -> &mut Driver;

    /// Makes a change, and waits until every client that reads has it. Returns when it was made.
    fn push(&mut self, change: usize) -> io::Result<(u64, Arrivals)> {
        let readers = self.load().readers();
        std::thread::sleep(self.load().pause);
        self.driver().expect(readers)?;
        let begun = monotonic_nanos();
        self.change(change)?;
        Ok((begun, self.driver().arrivals()?))
    }

    /// One round: changes, each awaited by every client that reads.
    fn round(&mut self, round: usize) -> io::Result<Cost> {
        let readers = self.load().readers();
        let (mut p50, mut p99, mut last) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut sent) = (0, 0);
        let (cpu, load) = (self.process().cpu()?, self.driver().0.cpu()?);
        for change in 0..CHANGES {
            let (begun, arrivals) = self.push(round * CHANGES + change)?;
            let ms = |at: u64| at.saturating_sub(begun) as f64 / 1e6;
            p50.push(ms(arrivals.median));
            p99.push(ms(arrivals.p99));
            last.push(ms(arrivals.last));
            bytes += arrivals.tally.bytes;
            sent += arrivals.tally.sent;
        }
        let updates = (readers * CHANGES) as f64;
        Ok(Cost {
            cpu_us: (self.process().settled_cpu()? - cpu) as f64 / 1e3 / updates,
            load_us: (self.driver().0.cpu()? - load) as f64 / 1e3 / updates,
            p50_ms: median(p50),
            p99_ms: median(p99),
            last_ms: median(last),
            rss_mib: self.process().rss_mib()?,
            bytes: bytes as f64 / updates,
            sent: sent as f64 / updates,
        })
    }
}

/// Two subjects measured beside each other.
pub(crate) struct Comparison {
    pub(crate) base: Cost,
    pub(crate) other: Cost,
    /// CPU of the other, as a multiple of the base's: the median over the rounds.
    pub(crate) ratio: f64,
}

impl Comparison {
    /// Medians of interleaved rounds, after one that warms up.
    pub(crate) fn take(base: &mut impl Subject, other: &mut impl Subject, rounds: usize) -> io::Result<Self> {
        let (mut of_base, mut of_other, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            let (base, other) = (base.round(round)?, other.round(round)?);
            if round > 0 {
                ratios.push(other.cpu_us / base.cpu_us);
                of_base.push(base);
                of_other.push(other);
            }
        }
        Ok(Self { base: Cost::medians(&of_base), other: Cost::medians(&of_other), ratio: median(ratios) })
    }
}

/// The relay, with an origin that changes as it is told.
pub(crate) struct RelaySubject {
    load: Load,
    // Ends before the server does: clients that lose their server complain.
    driver: Driver,
    pub(crate) relay: Relay,
    /// Relays between it and the origin.
    _tiers: Vec<Relay>,
    pub(crate) origin: Origin,
    pub(crate) joined: Joined,
}

impl RelaySubject {
    pub(crate) fn start(cores: Cores, load: &Load) -> io::Result<Self> {
        Self::behind(cores, load, 0)
    }

    /// Starts it behind so many other relays.
    pub(crate) fn behind(cores: Cores, load: &Load, relays: usize) -> io::Result<Self> {
        let origin = Origin::start();
        let variants = if load.variants { load.sets } else { 0 };
        for kind in &load.kinds {
            origin.fill_variants(*kind, load.resources, RESOURCE_BYTES, variants);
        }
        let mut tiers: Vec<Relay> = Vec::new();
        for _ in 0..relays {
            let upstream = tiers.last().map_or(origin.address, |relay| relay.address);
            tiers.push(Relay::start(cores, upstream, load)?);
        }
        let relay = Relay::start(cores, tiers.last().map_or(origin.address, |relay| relay.address), load)?;
        let (driver, joined) = Driver::start(cores, relay.address, load)?;
        Ok(Self { load: load.clone(), origin, relay, _tiers: tiers, driver, joined })
    }
}

impl RelaySubject {
    /// Has the fleet leave, then the relay end.
    pub(crate) fn end(self) -> io::Result<()> {
        let Self { driver, mut relay, .. } = self;
        drop(driver);
        relay.process.end()
    }
}

impl Subject for RelaySubject {
    fn load(&self) -> &Load {
        &self.load
    }

    fn change(&mut self, round: usize) -> io::Result<()> {
        self.origin.change(self.load.kinds[0], self.load.changed(round));
        Ok(())
    }

    fn process(&self) -> &Process {
        &self.relay.process
    }

    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

/// go-control-plane's LinearCache with the same resources.
pub(crate) struct PeerSubject {
    load: Load,
    driver: Driver,
    peer: Peer,
}

impl PeerSubject {
    pub(crate) fn start(cores: Cores, program: &Path, load: &Load) -> io::Result<Self> {
        let peer = Peer::start(cores, program, load, RESOURCE_BYTES)?;
        let (driver, _) = Driver::start(cores, peer.address, load)?;
        Ok(Self { load: load.clone(), peer, driver })
    }
}

impl PeerSubject {
    pub(crate) const fn address(&self) -> SocketAddr {
        self.peer.address
    }
}

impl Subject for PeerSubject {
    fn load(&self) -> &Load {
        &self.load
    }

    fn change(&mut self, round: usize) -> io::Result<()> {
        let which: Vec<String> = self.load.changed(round).iter().map(usize::to_string).collect();
        self.peer.process.say(&format!("change {} {}", round + 2, which.join(" ")))
    }

    fn process(&self) -> &Process {
        &self.peer.process
    }

    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

/// The raw loop over as many connections, with as many bytes to and fro.
pub(crate) struct FloorSubject {
    load: Load,
    floor: Floor,
}

impl FloorSubject {
    /// As heavy as an update was measured to be. There is none for streams that share a connection: their messages
    /// could share a write as well, which makes any factor.
    pub(crate) fn start(cores: Cores, load: &Load, cost: &Cost) -> io::Result<Self> {
        let size = |bytes: f64| (bytes.round() as usize).max(1);
        let answer = if load.client == Client::Envoy { 0 } else { h2::PING_BYTES };
        let sizes = Sizes { message: size(cost.bytes) - answer, ack: size(cost.sent), answer };
        let floor = Floor::start(cores, load.readers(), sizes)?;
        Ok(Self { load: load.clone(), floor })
    }
}

impl Subject for FloorSubject {
    fn load(&self) -> &Load {
        &self.load
    }

    fn change(&mut self, _: usize) -> io::Result<()> {
        self.floor.process.say("go")
    }

    fn process(&self) -> &Process {
        &self.floor.process
    }

    fn driver(&mut self) -> &mut Driver {
        &mut self.floor.load
    }
}
