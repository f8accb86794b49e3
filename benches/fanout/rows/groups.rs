//! Cost of node groups: a fleet in many of them, beside one of the same size in one.

use std::io;

use super::Bench;
use super::update::beside;
use crate::shape::Load;
use crate::subject::Comparison;
use crate::verdict::Goal;

const CLIENTS: usize = 10_000;
const GROUPS: usize = 200;
const RESOURCES: usize = 1000;

/// A change that the control plane makes for every group, and memory where all groups hold the same.
pub(super) fn groups(bench: &Bench, name: &str) -> io::Result<()> {
    let alone = Load { groups: 1, ..Load::delta(CLIENTS, RESOURCES) };
    let apart = Load { groups: GROUPS, ..alone.clone() };
    let Comparison { base: one, other: many, ratio } =
        beside(bench, name, ("one", &alone), ("many", &apart))?;
    Goal::new(1.2, 1.05).at_most("times the CPU of one group", ratio);
    Goal::new(1.3, 1.1).at_most("times the memory of one group", many.rss_mib / one.rss_mib);
    Ok(())
}
