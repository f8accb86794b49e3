//! Random histories with time: origins as they are, links as they are, the whole pure core of the relay between them and clients
//! of every kind, with each timer at its default. Everything follows from a seed; a failure prints it, and
//! `DELTAFAN_SEED=… DELTAFAN_STEPS=…` plays that history again, up to that step and with everything that was said.
//! `DELTAFAN_STEPS` alone looks for longer, from the seed `DELTAFAN_FIRST` on, in histories of `DELTAFAN_LENGTH` steps each;
//! with `DELTAFAN_SURVEY=1` it goes on after failures. Example: `DELTAFAN_LENGTH=5000 DELTAFAN_STEPS=200000` plays 40 seeds.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use deltafan_test_support::wire;

#[path = "timed_simulation/client.rs"]
mod client;
#[path = "timed_simulation/flavor.rs"]
mod flavor;
#[path = "timed_simulation/found.rs"]
mod found;
#[path = "timed_simulation/judge.rs"]
mod judge;
#[path = "timed_simulation/net.rs"]
mod net;
#[path = "timed_simulation/origin.rs"]
mod origin;
#[path = "timed_simulation/plan.rs"]
mod plan;
#[path = "timed_simulation/queue.rs"]
mod queue;
#[path = "timed_simulation/quiet.rs"]
mod quiet;
#[path = "timed_simulation/reading.rs"]
mod reading;
#[path = "timed_simulation/relay.rs"]
mod relay;
#[path = "timed_simulation/trouble.rs"]
mod trouble;
#[path = "timed_simulation/truth.rs"]
mod truth;
#[path = "timed_simulation/wiring.rs"]
mod wiring;
#[path = "timed_simulation/world.rs"]
mod world;

use world::World;

/// Steps of one history, unless others are asked for.
const STEPS: u64 = 60;

/// After so many of them everybody must have what is theirs.
const QUIET: u64 = 20;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn run(seed: u64, steps: u64, trace: bool) {
    let mut world = World::new(seed, trace);
    for step in 0..steps {
        world.place.step = step;
        world.step();
        if (step + 1).is_multiple_of(QUIET) {
            world.quiet();
        }
    }
}

/// Runs histories whether or not others failed, and says of each that did what it failed with.
fn survey(seeds: std::ops::Range<u64>, length: u64) {
    let mut failed = 0;
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    for seed in seeds {
        failed += usize::from(std::panic::catch_unwind(|| run(seed, length, false)).is_err());
    }
    drop(std::panic::take_hook());
    assert_eq!(failed, 0, "histories failed");
}

#[test]
fn histories_that_found_a_defect_find_none() {
    for (seed, defect) in found::FOUND {
        let run = std::panic::catch_unwind(|| run(*seed, STEPS, false));
        assert!(run.is_ok(), "it was kept because of this: {defect}");
    }
}

#[test]
fn nothing_live_is_lost_and_every_change_arrives() {
    let steps = from_env("DELTAFAN_STEPS");
    if let Some(seed) = from_env("DELTAFAN_SEED") {
        return run(seed, steps.unwrap_or(STEPS), true);
    }
    let first = from_env("DELTAFAN_FIRST").unwrap_or(0);
    let length = from_env("DELTAFAN_LENGTH").unwrap_or(STEPS);
    let seeds = first..first + steps.unwrap_or(9_000) / length;
    if from_env("DELTAFAN_SURVEY").is_some() {
        return survey(seeds, length);
    }
    for seed in seeds {
        run(seed, length, false);
    }
}
