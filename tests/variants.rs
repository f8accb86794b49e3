//! Random histories of dynamic parameters, from an origin that publishes variants, through the upstream side and the
//! cache, to clients that ask with parameters in every way there is, against a naive evaluator (R-DP-*). Everything follows
//! from a seed; a failure prints it, and `DELTAFAN_SEED=… DELTAFAN_STEPS=…` plays that history again, up to that step
//! and with everything that was said. `DELTAFAN_STEPS` alone looks for longer.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "what other tests send or read")]
mod wire;

#[path = "variants/client.rs"]
mod client;
#[path = "variants/origin.rs"]
mod origin;
#[path = "variants/poller.rs"]
mod poller;
#[path = "variants/rule.rs"]
mod rule;
#[path = "variants/world.rs"]
mod world;

use world::World;

/// Steps of one history. Longer ones find no more; more of them do.
const STEPS: u64 = 1_000;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Seeds that found a defect.
const FOUND: &[(u64, &str)] = &[
    (70, "a variant that went while the origin was away is served for good by a name with parameters"),
    (384, "the same for a client that brought it along and does not ask for it any more"),
    (316, "a wildcard with parameters shows a name that is no member"),
];

#[test]
fn histories_that_found_a_defect_find_none() {
    for (seed, defect) in FOUND {
        let run = std::panic::catch_unwind(|| World::new(*seed, false).run(STEPS));
        assert!(run.is_ok(), "it was kept because of this: {defect}");
    }
}

#[test]
fn every_client_has_the_variants_that_are_for_it() {
    let steps = from_env("DELTAFAN_STEPS");
    if let Some(seed) = from_env("DELTAFAN_SEED") {
        return World::new(seed, true).run(steps.unwrap_or(STEPS));
    }
    let first = from_env("DELTAFAN_FIRST").unwrap_or(0);
    for seed in first..first + steps.unwrap_or(20_000) / STEPS {
        World::new(seed, false).run(STEPS);
    }
}
