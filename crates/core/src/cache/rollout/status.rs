//! State of rollouts, as operators see it.

use std::sync::Arc;
use std::time::Duration;

use crate::resource::{Name, Parameters, TypeUrl};

/// State of the rollouts of a node group.
#[derive(Clone, Debug)]
pub struct RolloutStatus {
    /// Phase.
    pub phase: Phase,
    /// Number of streams that are canaries.
    pub canaries: usize,
    /// Number of names in the trial.
    pub tried: usize,
    /// Number of names that changed since it began.
    pub waiting: usize,
    /// Number of trials in a row that no canary has answered.
    pub unanswered: usize,
    /// Changes that were discarded and that the origin has not replaced.
    pub discarded: Vec<(TypeUrl, Name)>,
    /// Changes that are held.
    pub held: Vec<HeldChange>,
}

/// Phase of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All clients have the newest content, but for discarded changes.
    Idle,
    /// Changes have come that are not yet a trial.
    Gathering,
    /// Canaries try changes.
    Trying {
        /// Time that is left.
        left: Duration,
    },
    /// Too many have rejected a change.
    Held,
}

/// A change that canaries have rejected.
#[derive(Clone, Debug)]
pub struct HeldChange {
    /// Type.
    pub type_url: TypeUrl,
    /// Dynamic parameters of the clients that it is for.
    pub parameters: Parameters,
    /// Name.
    pub name: Name,
    /// Version that was rejected; `None` for a removal.
    pub version: Option<Box<str>>,
    /// Canaries that accepted it.
    pub accepted: usize,
    /// Canaries that rejected it.
    pub rejected: usize,
    /// Some of their texts.
    pub texts: Vec<Arc<str>>,
}
