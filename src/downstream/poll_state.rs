//! State that all long polls share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::response_cache::ResponseCache;
use crate::identity::Source;
use crate::quota::Quota;
use crate::subscription::PollHistory;
use crate::telemetry;

/// State of all long polls.
#[derive(Debug)]
pub struct PollState {
    pub(super) responses: Arc<ResponseCache>,
    pub(super) memory: PollHistory,
    /// Polls that wait, and polls whose requests are arriving, by address.
    pub(super) parked: Arc<Quota<Source>>,
    pub(super) throttle: telemetry::LogThrottle,
    /// Permit to decode a large request: one at a time.
    pub(super) readers: Arc<Semaphore>,
}

impl PollState {
    /// Creates the state for polls that share these responses.
    pub fn new(responses: Arc<ResponseCache>) -> Self {
        Self {
            responses,
            memory: PollHistory::default(),
            parked: Arc::default(),
            throttle: telemetry::LogThrottle::default(),
            readers: Arc::new(Semaphore::new(1)),
        }
    }

    /// Drops cached responses that nobody asks for any more. Call it now and then.
    pub async fn tidy(&self) {
        self.responses.tidy().await;
    }
}
