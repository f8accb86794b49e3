//! Changes that do not wait for anybody: joins onto a large set meanwhile, and a steady load for minutes.

use std::io;
use std::time::{Duration, Instant};

use super::Bench;
use crate::measure::quantile;
use crate::shape::Load;
use crate::subject::{RelaySubject, Subject as _};
use crate::target::{Driver, Relay};
use crate::verdict::Goal;

/// How long the writer took for each response of the control plane.
struct Stalls {
    buckets: Vec<(f64, u64)>,
}

impl Stalls {
    fn since(before: &Self, relay: &Relay) -> io::Result<Self> {
        let mut buckets = relay.applied()?;
        for (bucket, (_, earlier)) in buckets.iter_mut().zip(&before.buckets) {
            bucket.1 -= earlier;
        }
        Ok(Self { buckets })
    }

    /// The bound of the bucket in which this fraction lies, in milliseconds.
    fn ms(&self, fraction: f64) -> f64 {
        let total = self.buckets.last().map_or(0, |(_, count)| *count);
        let rank = (total as f64 * fraction).ceil() as u64;
        self.buckets.iter().find(|(_, count)| *count >= rank).map_or(0.0, |(bound, _)| bound * 1e3)
    }

    fn print(&self, what: &str) {
        let total = self.buckets.last().map_or(0, |(_, count)| *count);
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|fraction| self.ms(fraction));
        println!(
            "    {what}: the writer took p50 ≤ {p50} ms, p99 ≤ {p99} ms, max ≤ {max} ms ({total} responses)"
        );
    }
}

fn print_acks(mut acks: Vec<u64>) {
    acks.sort_unstable();
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|fraction| quantile(&acks, fraction) as f64 / 1e6);
    println!(
        "    the origin had its ACKs after p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms ({})",
        acks.len()
    );
}

/// Clients that take a large state while it changes. Each leaves when it has it: a thousand that stay are owed a
/// million updates a second. Single-shot.
pub(super) fn joins(bench: &Bench, name: &str) -> io::Result<()> {
    const PER_SECOND: usize = 1000;
    let load = Load { leaves: true, at_once: 20, ..Load::delta(1000, 100_000) };
    let one = Load { clients: 1, leaves: false, ..load.clone() };
    let subject = RelaySubject::start(bench.cores, &one)?;
    let kind = load.kinds[0];
    println!(
        "{name}: {PER_SECOND} changes/s, 1000 joins, {} at a time, each leaves when it has all",
        load.at_once
    );
    subject.origin.acks();
    let before = Stalls { buckets: subject.relay.applied()? };
    subject.origin.churn(kind, PER_SECOND);
    std::thread::sleep(Duration::from_secs(5));
    let alone = Stalls::since(&before, &subject.relay)?;
    alone.print("before the joins");
    print_acks(subject.origin.acks());
    let before = Stalls { buckets: subject.relay.applied()? };
    let (_driver, joined) = Driver::start(bench.cores, subject.relay.address, &load)?;
    subject.origin.rest();
    let stalls = Stalls::since(&before, &subject.relay)?;
    stalls.print("during the joins");
    print_acks(subject.origin.acks());
    println!(
        "    joined in {:.1} s, {:.1} MB each; rss {:.0} MiB",
        joined.nanos as f64 / 1e9,
        joined.tally.bytes as f64 / 1e6 / load.clients as f64,
        subject.process().rss_mib()?
    );
    Goal::new(2.0, 0.5).at_most("ms that the writer stalled, p99", stalls.ms(0.99));
    Ok(())
}

/// So many client-updates per second for minutes. Single-shot.
pub(super) fn sustained(bench: &Bench, name: &str) -> io::Result<()> {
    const CLIENTS: usize = 5000;
    let per_second = (bench.rate / CLIENTS).max(1);
    let mut subject = RelaySubject::start(bench.cores, &Load::delta(CLIENTS, 100))?;
    let kind = subject.load().kinds[0];
    subject.origin.churn(kind, per_second);
    // Until everybody has had some.
    std::thread::sleep(Duration::from_secs(2));
    subject.driver().tally()?;
    let half = Duration::from_secs(bench.seconds) / 2;
    let (cpu, load_cpu, begun) = (subject.process().cpu()?, subject.driver().0.cpu()?, Instant::now());
    let start = subject.process().rss_mib()?;
    std::thread::sleep(half);
    let middle = subject.process().rss_mib()?;
    std::thread::sleep(half);
    let tally = subject.driver().tally()?;
    let (seconds, end) = (begun.elapsed().as_secs_f64(), subject.process().rss_mib()?);
    let achieved = tally.resources as f64 / seconds;
    let core = |nanos: u64| nanos as f64 / 1e7 / seconds;
    let [p50, p99, max] = [tally.p50_age, tally.p99_age, tally.max_age].map(|age| age as f64 / 1e6);
    println!(
        "{name}: {CLIENTS} delta wildcard clients x {per_second} changes/s for {seconds:.0} s: {achieved:.0} updates/s in {:.0} \
         responses/s of {:.0} B; p50 {p50:.1}  p99 {p99:.1}  max {max:.1} ms",
        tally.messages as f64 / seconds,
        tally.bytes as f64 / tally.messages.max(1) as f64,
    );
    println!(
        "    the relay used {:.0} % of its core, the load client {:.0} % of the other; rss {start:.1}, {middle:.1}, {end:.1} MiB \
         at the start, in the middle and at the end",
        core(subject.process().cpu()? - cpu),
        core(subject.driver().0.cpu()? - load_cpu),
    );
    let wanted = (per_second * CLIENTS) as f64;
    Goal::new(0.99, 0.99).at_least("achieved, of the rate that was asked for", achieved / wanted);
    Goal::new(250.0, 250.0).at_most("ms until a client had a change, p99", p99);
    Goal::new(1.05, 1.01).at_most("rss at the end, of that in the middle", end / middle);
    Ok(())
}
