//! Runner of random histories: seeds, lengths, replay.
//!
//! Owns the environment variables that select histories, and the line that says how to play one again. Knows nothing of what
//! happens in a history. An example: `DELTAFAN_LENGTH=5000 DELTAFAN_STEPS=200000` plays 40 seeds of 5,000 steps each.

use std::panic::catch_unwind;

/// Family of histories. Each follows from its seed alone, so the order of random draws decides what a kept seed is worth.
pub(crate) trait Scenario: Sized {
    /// Name of its module, by which `cargo test` finds it.
    const NAME: &'static str;
    /// Steps of one history.
    const LENGTH: u64;
    /// Steps of a test, over all of its histories.
    const STEPS: u64;

    /// Begins a history. With `trace` it prints everything that is said.
    fn new(seed: u64, trace: bool) -> Self;

    fn step(&mut self, step: u64);

    /// Checks the end of a history, whatever its length.
    fn finish(self) {}

    /// Parameters that were drawn from the seed, to be printed where the history fails.
    fn parameters(&self) -> String {
        String::new()
    }
}

/// Position in a history, which is printed if that panics.
struct Position {
    scenario: &'static str,
    seed: u64,
    step: u64,
    parameters: String,
}

impl Drop for Position {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { scenario, seed, step, parameters } = self;
            eprintln!("{parameters}");
            let steps = *step + 1;
            eprintln!(
                "failed at step {step}: DELTAFAN_SEED={seed} DELTAFAN_STEPS={steps} cargo test --test sim {scenario}::"
            );
        }
    }
}

fn history<S: Scenario>(seed: u64, length: u64, trace: bool) {
    let mut position = Position { scenario: S::NAME, seed, step: 0, parameters: String::new() };
    let mut scenario = S::new(seed, trace);
    position.parameters = scenario.parameters();
    for step in 0..length {
        position.step = step;
        scenario.step(step);
    }
    scenario.finish();
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Plays the histories that the environment selects: one seed with its trace, or many.
pub(crate) fn play<S: Scenario>() {
    let steps = from_env("DELTAFAN_STEPS");
    if let Some(seed) = from_env("DELTAFAN_SEED") {
        return history::<S>(seed, steps.unwrap_or(S::LENGTH), true);
    }
    let first = from_env("DELTAFAN_FIRST").unwrap_or(0);
    let length = from_env("DELTAFAN_LENGTH").unwrap_or(S::LENGTH);
    let goes_on = from_env("DELTAFAN_SURVEY").is_some();
    let mut failed = 0;
    for seed in first..first + steps.unwrap_or(S::STEPS) / length {
        if goes_on {
            failed += usize::from(catch_unwind(|| history::<S>(seed, length, false)).is_err());
        } else {
            history::<S>(seed, length, false);
        }
    }
    assert_eq!(failed, 0, "histories failed");
}

/// Plays kept seeds. The defect that each once found is the message if it fails.
pub(crate) fn play_kept<S: Scenario>(seeds: &[(u64, &str)]) {
    for (seed, defect) in seeds {
        let result = catch_unwind(|| history::<S>(*seed, S::LENGTH, false));
        assert!(result.is_ok(), "it was kept because of this: {defect}");
    }
}
