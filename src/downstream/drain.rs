//! Drain: clients are sent elsewhere.
//!
//! Owns the order of its steps. Knows neither its cause nor its consequence.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Connections, ServerState};

/// Longest time for which new clients are served after a drain begins, so that load balancers notice.
const MAX_NOTICE: Duration = Duration::from_secs(5);

/// Parts of the relay that a drain ends.
#[derive(Debug)]
pub struct Drain {
    pub server: Arc<ServerState>,
    pub connections: Arc<Connections>,
    pub begun: AtomicBool,
    /// Cancelled when a drain begins.
    pub draining: CancellationToken,
    /// Cancelled when the listeners must stop.
    pub closed: CancellationToken,
}

impl Drain {
    pub fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Marks it as begun; returns whether this is the first.
    pub fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
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
        self.draining.cancel();
        if !self.closed.is_cancelled() {
            self.connections.emptied_within(notice).await;
        }
        self.closed.cancel();
        self.connections.drain(window - notice).await;
    }
}
