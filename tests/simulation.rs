//! Random histories against naive models: an origin that says anything that the protocol allows, a dozen clients of
//! every kind, and after each response the question whether it could have been that one. Everything follows from a
//! seed; a failure prints it, and `DELTAFAN_SEED=… DELTAFAN_STEPS=…` plays that history again, up to that step and with
//! everything that was said. `DELTAFAN_STEPS` alone looks for longer.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use deltafan_test_support::wire;

#[path = "simulation/checks.rs"]
mod checks;
#[path = "simulation/client.rs"]
mod client;
#[path = "simulation/origin.rs"]
mod origin;
#[path = "simulation/poller.rs"]
mod poller;
#[path = "simulation/subscription.rs"]
mod subscription;
#[path = "simulation/world.rs"]
mod world;

use world::World;

/// Steps of one history. Longer ones find no more; more of them do.
const STEPS: u64 = 2_000;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn a_million_steps_find_no_difference() {
    let steps = from_env("DELTAFAN_STEPS");
    if let Some(seed) = from_env("DELTAFAN_SEED") {
        return World::new(seed, true).run(steps.unwrap_or(STEPS));
    }
    for seed in 0..steps.unwrap_or(1_000_000) / STEPS {
        World::new(seed, false).run(STEPS);
    }
}
