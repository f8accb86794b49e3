//! Clients that stop reading while large resources change.

use std::io;

use super::Bench;
use crate::measure::{median, monotonic_nanos};
use crate::process::Cores;
use crate::shape::Load;
use crate::subject::{RelaySubject, Subject as _};
use crate::verdict::Goal;

const PUSH_BYTES: usize = 1 << 20;
const PUSHES: usize = 4;

/// A relay that is told of large changes.
struct Pushed {
    subject: RelaySubject,
    before_mib: f64,
    p99_ms: Vec<f64>,
}

impl Pushed {
    fn start(cores: Cores, readers: usize, silent: usize) -> io::Result<Self> {
        let clients = readers + silent;
        let load = Load { silent_percent: 100 * silent / clients, ..Load::delta(clients, PUSHES) };
        let subject = RelaySubject::start(cores, &load)?;
        subject.process().reset_peak()?;
        Ok(Self { before_mib: subject.process().rss_mib()?, subject, p99_ms: Vec::new() })
    }

    fn push(&mut self, at: usize) -> io::Result<()> {
        let readers = self.subject.load().readers();
        let kind = self.subject.load().kinds[0];
        self.subject.driver().expect(readers)?;
        let begun = monotonic_nanos();
        self.subject.origin.change_size(kind, vec![at % PUSHES], PUSH_BYTES);
        let arrivals = self.subject.driver().arrivals()?;
        self.p99_ms.push(arrivals.p99.saturating_sub(begun) as f64 / 1e6);
        Ok(())
    }

    fn peak_mib(&self) -> io::Result<f64> {
        Ok(self.subject.process().peak_mib()? - self.before_mib)
    }

    fn grown_mib(&self) -> io::Result<f64> {
        Ok(self.subject.process().rss_mib()? - self.before_mib)
    }
}

/// How far resident memory rises at most, in MiB, while large resources are pushed to clients of whom some do not read.
pub(crate) fn growth_by_pushes(cores: Cores, readers: usize, silent: usize) -> io::Result<f64> {
    let mut pushed = Pushed::start(cores, readers, silent)?;
    for at in 0..PUSHES {
        pushed.push(at)?;
    }
    pushed.peak_mib()
}

pub(super) fn silent(bench: &Bench, name: &str) -> io::Result<()> {
    const READERS: usize = 500;
    let mut with = Pushed::start(bench.cores, READERS, 500)?;
    let mut without = Pushed::start(bench.cores, READERS, 0)?;
    let (mut after, mut peak) = (0.0, 0.0);
    for round in 0..bench.rounds {
        for at in 0..PUSHES {
            with.push(round * PUSHES + at)?;
            without.push(round * PUSHES + at)?;
        }
        if round == 0 {
            (after, peak) = (with.grown_mib()?, with.peak_mib()?);
        }
    }
    let (slow, healthy) = (median(with.p99_ms.clone()), median(without.p99_ms.clone()));
    println!(
        "{name}: {READERS} others read, {PUSHES} pushes of 1 MiB: rss {:.1} MiB, after them + {after:.1}; p99 {slow:.1} ms \
         beside {healthy:.1} without the silent ones ({} pushes of each)",
        with.before_mib,
        with.p99_ms.len()
    );
    println!(
        "    at most, after all pushes: + {:.1} MiB, and without the silent ones + {:.1}",
        with.peak_mib()?,
        without.peak_mib()?
    );
    Goal::new(64.0, 16.0).at_most("MiB more at most", peak);
    Goal::new(1.1, 1.1)
        .at_most("p99 of those who read, of what it is without the silent ones", slow / healthy);
    Ok(())
}
