//! Cost of dynamic parameters: a fleet in sets of them, beside one of the same size that has none.

use std::io;

use super::Bench;
use super::update::print_cost;
use crate::measure::median;
use crate::shape::Load;
use crate::subject::{CHANGES, Cost, RelaySubject, Subject as _};
use crate::verdict::Goal;

const CLIENTS: usize = 10_000;
const SETS: usize = 100;
const RESOURCES: usize = 100;

/// An update of clients in sets of parameters, of one of clients without: of a resource that is for all sets, and where
/// each set has a variant of its own and all are replaced at once.
pub(super) fn sets(bench: &Bench, name: &str) -> io::Result<()> {
    let without = Load::delta(CLIENTS, RESOURCES);
    let shared = Load { sets: SETS, ..without.clone() };
    let variants = Load { variants: true, ..shared.clone() };
    let whose = [("none", &without), ("shared", &shared), ("own", &variants)];
    let mut fleets = Vec::new();
    for (who, load) in whose {
        fleets.push((who, RelaySubject::start(bench.cores, load)?, Vec::new()));
    }
    let mut encodes = Vec::new();
    for round in 0..=bench.rounds {
        for (_, fleet, costs) in &mut fleets {
            let cost = fleet.round(round)?;
            match round {
                // It warms up.
                0 => encodes.push(fleet.relay.encodes()?),
                _ => costs.push(cost),
            }
        }
    }
    for (at, (who, fleet, costs)) in fleets.iter().enumerate() {
        print_cost(if at == 0 { name } else { "" }, who, &Cost::medians(costs));
        let encodes = (fleet.relay.encodes()? - encodes[at]) as f64 / (bench.rounds * CHANGES) as f64;
        println!("    joined in {:.0} ms, encodes per change {encodes:.1}", fleet.joined.nanos as f64 / 1e6);
        if at > 0 {
            let ratios = costs
                .iter()
                .zip(&fleets[0].2)
                .map(|(ours, plain): (&Cost, &Cost)| ours.cpu_us / plain.cpu_us);
            Goal::new(1.2, 1.05)
                .at_most("times the CPU of clients without parameters", median(ratios.collect()));
        }
    }
    Ok(())
}
