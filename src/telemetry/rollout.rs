//! Metrics of guarded rollouts.

#![expect(clippy::disallowed_macros, reason = "this is the part of `telemetry` that declares them")]

use std::sync::atomic::Ordering;

use metrics::{counter, gauge};

use super::catalog::{ROLLOUT_CANARIES, ROLLOUT_CHANGES, ROLLOUTS};
use crate::cache::RolloutCounts;

/// Figures of guarded rollouts when the metrics are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct RolloutFigures {
    /// Streams that are canaries.
    pub canaries: usize,
    /// Names that changed and are on trial.
    pub trying: usize,
    /// Names that changed since the trial began.
    pub waiting: usize,
    /// Names whose changes are held.
    pub held: usize,
    /// Names whose changes an operator discarded.
    pub discarded: usize,
}

/// Reports guarded rollouts.
pub fn report_rollouts(figures: RolloutFigures, counts: &RolloutCounts) {
    let RolloutCounts { spread, held, released, discarded, unanswered } = counts;
    for (result, count) in [
        ("spread", spread),
        ("held", held),
        ("released", released),
        ("discarded", discarded),
        ("unanswered", unanswered),
    ] {
        counter!(ROLLOUTS, "result" => result).absolute(count.load(Ordering::Relaxed));
    }
    gauge!(ROLLOUT_CANARIES).set(figures.canaries as f64);
    let RolloutFigures { trying, waiting, held, discarded, .. } = figures;
    for (state, names) in [("trying", trying), ("waiting", waiting), ("held", held), ("discarded", discarded)]
    {
        gauge!(ROLLOUT_CHANGES, "state" => state).set(names as f64);
    }
}
