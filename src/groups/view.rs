//! State of the origin, as sessions see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::subscription::Upstream;
use crate::upstream::UpstreamState;

/// State of the origin, as sessions of one group see it.
#[derive(Clone, Debug, Default)]
pub struct UpstreamView(Arc<AtomicU8>);

impl UpstreamView {
    /// Publishes a new state.
    pub fn set(&self, upstream: Upstream) {
        self.0.store(upstream as u8, Ordering::Release);
    }

    /// The newest state.
    pub fn get(&self) -> Upstream {
        let known = [Upstream::Silent, Upstream::Answering];
        let stored = self.0.load(Ordering::Acquire);
        known.into_iter().find(|known| *known as u8 == stored).unwrap_or_default()
    }
}

/// State of a control plane, as sessions see it.
pub const fn seen(state: &UpstreamState) -> Upstream {
    match (state.connected, state.answered) {
        (false, _) => Upstream::Away,
        (true, _) if state.origin_is_cut_off => Upstream::Away,
        (true, false) => Upstream::Silent,
        (true, true) => Upstream::Answering,
    }
}
