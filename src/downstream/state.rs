//! State that all connections of all listeners share.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::admission::Admission;
use super::policy::Policy;
use super::poll_state::PollState;
use super::request_memory::RequestMemory;
use super::scheduler::FairScheduler;
use super::unsent::Unsent;
use crate::cache::Cache;
use crate::subscription::{Client, Hidden, Refusal, Upstream};
use crate::telemetry;

/// State of the origin, as sessions see it.
#[derive(Clone, Debug, Default)]
pub struct UpstreamView(Arc<AtomicU8>);

impl UpstreamView {
    /// Says how things stand with the origin.
    pub fn set(&self, upstream: Upstream) {
        self.0.store(upstream as u8, Ordering::Release);
    }

    pub(super) fn get(&self) -> Upstream {
        let known = [Upstream::Silent, Upstream::Answering];
        let stored = self.0.load(Ordering::Acquire);
        known.into_iter().find(|known| *known as u8 == stored).unwrap_or_default()
    }
}

/// What all streams share.
#[derive(Debug)]
pub struct ServerState {
    /// The cache they read.
    pub cache: Arc<Cache>,
    /// The rules and limits in force for those who connect now; who is connected has its own.
    pub policy: ArcSwap<Policy>,
    /// How many denials are logged.
    pub denials: Mutex<telemetry::LogThrottle>,
    /// Who may connect.
    pub admission: Arc<Admission>,
    /// What requests take that are not whole.
    pub buffered: Arc<RequestMemory>,
    /// What the versions take that clients say they hold.
    pub versions: Arc<RequestMemory>,
    /// Count of the large messages that are being sent.
    pub unsent: Arc<Unsent>,
    /// State of the origin.
    pub upstream: UpstreamView,
    /// How many rejections are logged: a fleet may reject the same update all at once.
    pub rejections: Mutex<telemetry::Budget>,
    /// What its long polls share.
    pub polls: PollState,
    /// Whose turn it is where there is much to do.
    pub scheduler: FairScheduler,
}

impl ServerState {
    /// Counts what the operator's rules deny a peer, and tells it: who tries the doors is not to go unseen.
    pub(super) fn note_denial(&self, refusal: &Refusal, peer: &dyn Display, client: Option<&Client>) {
        let Some(denied) = refusal.denied else { return };
        telemetry::denied(denied.label(), 1);
        if let Some(unsaid) = self.denials.lock().say(Instant::now()) {
            let node = client.map_or("", |client| client.node_id.as_str());
            // A field: what is said after the level is not escaped, and a type's name is the client's to choose.
            let why = refusal.message.as_str();
            tracing::warn!(%peer, node, what = denied.label(), why, unsaid, "denied to a client");
        }
    }

    /// Counts what a peer asked for and is not shown.
    pub(super) fn note_hidden(hidden: Hidden) {
        telemetry::denied("name", hidden.names);
        telemetry::denied("wildcard", hidden.wildcards);
    }
}
