//! Drain: clients are sent elsewhere.
//!
//! Owns the order of its steps. Knows neither who asked for it nor what follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::downstream::{Connections, ServerState};

/// Longest time for which new clients are served after a drain begins, so that load balancers notice.
const MAX_NOTICE: Duration = Duration::from_secs(5);

/// Parts of the relay that a drain ends.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) server: Arc<ServerState>,
    pub(super) connections: Arc<Connections>,
    pub(super) begun: AtomicBool,
    /// Cancelled when a drain begins.
    pub(super) draining: CancellationToken,
    /// Cancelled when the listeners must stop.
    pub(super) closed: CancellationToken,
}

impl Drain {
    /// Whether one has begun.
    pub(super) fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Marks it as begun; returns whether it was not yet.
    pub(super) fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }

    /// Returns its longest time.
    pub(super) fn window(&self) -> Duration {
        self.server.policy.load().drain()
    }

    /// Sends clients elsewhere, and returns when the last is gone or the window is over. A second one goes on with what is left.
    ///
    /// A load balancer needs a moment to see that this relay is no longer ready, and sends it clients until
    /// then. They are served, and no connection is closed yet whose client could come back. Then the
    /// listeners stop and all connections close.
    pub(super) async fn run(&self) {
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
