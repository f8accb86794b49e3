//! Cost of a change per client that is told of it.

use std::io;
use std::time::Duration;

use serde_json::json;

use super::Bench;
use crate::measure::median;
use crate::process::{Core, Cores};
use crate::shape::{Client, Load};
use crate::subject::{CHANGES, Comparison, Cost, FloorSubject, PeerSubject, RelaySubject, Subject};
use crate::verdict::{Goal, figure};

/// A second in which changes are gathered, and the window of the bench's guard.
const TRIAL: Duration = Duration::from_millis(1100);

/// Figures that a row has to reach.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Goals {
    /// How many times less CPU than LinearCache.
    pub(super) linear: Option<Goal>,
    /// How many times the CPU of the floor.
    pub(super) floor: Option<Goal>,
    /// When the last client had a change, as a multiple of the raw loop's.
    pub(super) last: Option<Goal>,
}

/// Measures the relay and, where they are there, its peer and the floor, in interleaved rounds.
pub(super) fn update(bench: &Bench, name: &str, load: &Load, goals: Goals) -> io::Result<()> {
    let mut relay = RelaySubject::start(bench.cores, load)?;
    let mut peer =
        bench.peer.as_ref().map(|program| PeerSubject::start(bench.cores, program, load)).transpose()?;
    // The first round warms up, and tells how heavy the floor is to be.
    let warm = relay.round(0)?;
    let mut floor = (!bench.alone && load.streams_per_connection == 1)
        .then(|| FloorSubject::start(bench.cores, load, &warm))
        .transpose()?;
    let (mut ours, mut theirs, mut least) = (Vec::new(), Vec::new(), Vec::new());
    let encodes = relay.relay.encodes()?;
    for round in 0..=bench.rounds {
        let cost = (round > 0).then(|| relay.round(round)).transpose()?;
        let other = peer.as_mut().map(|peer| peer.round(round)).transpose()?;
        let raw = floor.as_mut().map(|floor| floor.round(round)).transpose()?;
        if let Some(cost) = cost {
            ours.push(cost);
            theirs.extend(other);
            least.extend(raw);
        }
    }
    let per_change = (relay.relay.encodes()? - encodes) as f64 / (bench.rounds * CHANGES) as f64;
    let cost = Cost::medians(&ours);
    print_cost(name, "relay", &cost);
    compare(
        "headroom of the load client",
        cost.cpu_us / cost.load_us,
        (load.client != Client::Envoy).then_some((Goal::new(2.0, 2.0), true)),
    );
    println!("    joined in {:.0} ms, encodes per change {per_change:.1}", relay.joined.nanos as f64 / 1e6);
    if !theirs.is_empty() {
        let peer = Cost::medians(&theirs);
        print_cost("", "linear", &peer);
        compare(
            "times less CPU than linear",
            peer.cpu_us / cost.cpu_us,
            goals.linear.map(|goal| (goal, true)),
        );
    }
    if !least.is_empty() {
        let floor = Cost::medians(&least);
        print_cost("", "F", &floor);
        compare("CPU in F", cost.cpu_us / floor.cpu_us, goals.floor.map(|goal| (goal, false)));
        compare(
            "last client, of the raw loop's",
            cost.last_ms / floor.last_ms,
            goals.last.map(|goal| (goal, false)),
        );
    }
    Ok(())
}

pub(super) fn print_cost(name: &str, who: &str, cost: &Cost) {
    let Cost { cpu_us, load_us, p50_ms, p99_ms, last_ms, rss_mib, bytes, .. } = cost;
    figure(
        who,
        json!({"us": cpu_us, "load_us": load_us, "last_ms": last_ms, "rss_mib": rss_mib, "bytes": bytes}),
    );
    println!(
        "{name:<44} {who:<6} {cpu_us:>8.2} us (load {load_us:.2})  {bytes:>8.0} B  \
         p50 {p50_ms:>7.2}  p99 {p99_ms:>7.2}  last {last_ms:>7.2} ms  rss {rss_mib:>6.1} MiB"
    );
}

fn compare(what: &str, value: f64, goal: Option<(Goal, bool)>) {
    match goal {
        Some((goal, true)) => goal.at_least(what, value),
        Some((goal, false)) => goal.at_most(what, value),
        None => {
            println!("    {what}: {value:.2}");
            figure(what, value);
        }
    }
}

/// Cost of an update at 10,000 resources, as a share of that at 100: the median of interleaved rounds.
pub(crate) fn flatness(cores: Cores, clients: usize, rounds: usize) -> io::Result<f64> {
    let mut few = RelaySubject::start(cores, &Load::delta(clients, 100))?;
    let mut many = RelaySubject::start(cores, &Load::delta(clients, 10_000))?;
    Ok(Comparison::take(&mut few, &mut many, rounds)?.ratio)
}

pub(super) fn flat(bench: &Bench, name: &str) -> io::Result<()> {
    println!("{name}: CPU of a client-update, delta wildcard, 1000 clients");
    Goal::new(1.15, 1.03).at_most("times as much", flatness(bench.cores, 1000, bench.rounds)?);
    Ok(())
}

/// Measures two fleets beside each other, each with its name in the table.
pub(super) fn beside(
    bench: &Bench,
    name: &str,
    base: (&str, &Load),
    other: (&str, &Load),
) -> io::Result<Comparison> {
    let mut of_base = RelaySubject::start(bench.cores, base.1)?;
    let mut of_other = RelaySubject::start(bench.cores, other.1)?;
    let comparison = Comparison::take(&mut of_base, &mut of_other, bench.rounds)?;
    print_cost(name, base.0, &comparison.base);
    print_cost("", other.0, &comparison.other);
    Ok(comparison)
}

/// Cost of a change that a twentieth of the clients try first. What canaries and the others are sent is as much as without,
/// and so is the time that a thousand idle connections cost: without a guard, a change waits as long as a trial takes.
pub(super) fn guarded(bench: &Bench, name: &str) -> io::Result<()> {
    let open = Load { pause: TRIAL, ..Load::delta(1000, 1000) };
    let guarded = Load { guarded: true, pause: Duration::ZERO, ..open.clone() };
    let Comparison { ratio, .. } = beside(bench, name, ("open", &open), ("guard", &guarded))?;
    Goal::new(1.15, 1.05).at_most("times the CPU without a guard", ratio);
    Ok(())
}

/// Cost of a change with a worker on each core, beside two relays that have a core and half of the clients each. The second core
/// has the load client too.
pub(super) fn workers(bench: &Bench, name: &str) -> io::Result<()> {
    let two = Load { relay_on: Core::Each, ..Load::delta(10_000, 100) };
    let half = |relay_on| RelaySubject::start(bench.cores, &Load { clients: 5_000, relay_on, ..two.clone() });
    let mut of_two = RelaySubject::start(bench.cores, &two)?;
    let mut apart = [half(Core::Server)?, half(Core::Load)?];
    let before = of_two.process().threads()?;
    let (mut twos, mut halves, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=bench.rounds {
        let (two, apart) = (of_two.round(round)?, round_of_both(&mut apart, round)?);
        if round > 0 {
            ratios.push(two.cpu_us / apart.cpu_us);
            twos.push(two);
            halves.push(apart);
        }
    }
    print_cost(name, "two", &Cost::medians(&twos));
    print_cost("", "apart", &Cost::medians(&halves));
    Goal::new(1.05, 1.02).at_most("times the CPU of a relay on each core", median(ratios));
    let mut used = of_two.process().threads()?.used_since(&before);
    used.sort_unstable_by(|one, other| other.cmp(one));
    let share = used.get(1).map_or(0.0, |second| *second as f64 / used.iter().sum::<u64>() as f64);
    Goal::new(0.3, 0.4).at_least("share of the second worker", share);
    Ok(())
}

/// A round of two equal relays at once: their CPU alone.
fn round_of_both(relays: &mut [RelaySubject; 2], round: usize) -> io::Result<Cost> {
    let readers = relays[0].load().readers();
    let cpu = |[one, other]: &[RelaySubject; 2]| -> io::Result<u64> {
        Ok(one.process().settled_cpu()? + other.process().settled_cpu()?)
    };
    let before = cpu(relays)?;
    for change in 0..CHANGES {
        for relay in &mut *relays {
            relay.driver().expect(readers)?;
        }
        for relay in &mut *relays {
            relay.change(round * CHANGES + change)?;
        }
        for relay in &mut *relays {
            relay.driver().arrivals()?;
        }
    }
    let updates = (2 * readers * CHANGES) as f64;
    Ok(Cost { cpu_us: (cpu(relays)? - before) as f64 / 1e3 / updates, ..Cost::default() })
}

/// Time that each further relay on the way of a change takes, and CPU that the change takes in one: few clients, so that fan-out
/// weighs little.
pub(super) fn chain(bench: &Bench, name: &str) -> io::Result<()> {
    let load = Load::delta(10, 1000);
    let mut chains: Vec<RelaySubject> =
        (0..3).map(|before| RelaySubject::behind(bench.cores, &load, before)).collect::<io::Result<_>>()?;
    let mut floor = FloorSubject::start(bench.cores, &load, &chains[0].round(0)?)?;
    let (mut costs, mut least) = (vec![Vec::new(); chains.len()], Vec::new());
    for round in 0..=bench.rounds {
        for (chain, costs) in chains.iter_mut().zip(&mut costs) {
            let cost = chain.round(round)?;
            if round > 0 {
                costs.push(cost);
            }
        }
        let raw = floor.round(round)?;
        if round > 0 {
            least.push(raw);
        }
    }
    let costs: Vec<Cost> = costs.iter().map(|costs| Cost::medians(costs)).collect();
    print_cost(name, "relay", &costs[0]);
    print_cost("", "F", &Cost::medians(&least));
    Goal::new(1.0, 0.5).at_most("ms for each further relay", (costs[2].p50_ms - costs[0].p50_ms) / 2.0);
    let of_change = costs[0].cpu_us * load.readers() as f64;
    Goal::new(100.0, 100.0).at_most("µs of CPU for a change to ten clients", of_change);
    Ok(())
}
