//! Drain: clients are sent elsewhere.
//!
//! Owns the order of its steps. Knows neither its cause nor its consequence.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Connections, ServerState};

/// Longest time for which new clients are served after a drain begins, so that load balancers notice.
const MAX_NOTICE: Duration = Duration::from_secs(5);

/// Parts of the relay that a drain ends.
#[derive(Debug)]
pub struct Drain {
    pub server: Arc<ServerState>,
    pub connections: Arc<Connections>,
    /// Cancelled when a drain begins.
    pub draining: CancellationToken,
    /// Cancelled when the listeners must stop.
    pub closed: CancellationToken,
}

impl Drain {
    pub fn is_begun(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Marks it as begun; returns whether this is the first.
    pub fn begin(&self) -> bool {
        let is_first = !self.is_begun();
        self.draining.cancel();
        is_first
    }

    pub fn window(&self) -> Duration {
        self.server.policy.load().drain()
    }

    /// Drains until the last client is gone or the window is over. A second call continues.
    ///
    /// A load balancer sends clients until it sees that this relay is not ready. They are served, and no
    /// connection closes yet whose client could return. Then the listeners stop and all connections close.
    pub async fn run(&self) {
        self.begin();
        let window = self.window();
        let notice = (window / 10).min(MAX_NOTICE);
        if !self.closed.is_cancelled() {
            self.connections.emptied_by(Instant::now() + notice).await;
        }
        self.closed.cancel();
        self.connections.drain(window - notice).await;
    }
}
