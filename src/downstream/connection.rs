//! What is known of the connections that are open, so that they can be aged, drained and given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use rand::Rng as _;
use slab::Slab;
use tokio::sync::Notify;

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It lives.
    Stays,
    /// It takes no new streams, and those it has end.
    Closes,
    /// It is dropped as it is: it does not close.
    Dies,
}

const FATES: [Fate; 3] = [Fate::Stays, Fate::Closes, Fate::Dies];

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    fate: AtomicU8,
    /// When it is to close by itself (`max_connection_age`, or its turn in a drain); later: when it began to.
    closes: Mutex<Instant>,
    task: AtomicWaker,
}

impl Connection {
    pub(super) fn fate(&self) -> Fate {
        FATES[usize::from(self.fate.load(Ordering::Acquire))]
    }

    /// Whether its streams are to end.
    pub(super) fn is_closing(&self) -> bool {
        self.fate() != Fate::Stays
    }

    /// Whom to wake when its fate turns; register first, look after.
    pub(super) fn register(&self, task: &Waker) {
        self.task.register(task);
    }

    /// Returns when it is to close.
    pub(super) async fn until_closing(&self) {
        std::future::poll_fn(|cx| {
            self.register(cx.waker());
            if self.is_closing() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn turn(&self, fate: Fate) {
        self.fate.store(fate as u8, Ordering::Release);
        self.task.wake();
    }

    fn close(&self, now: Instant) {
        *self.closes.lock() = now;
        self.turn(Fate::Closes);
    }

    /// Looks whether it is time to close, or whether it has not closed for too long.
    fn inspect(&self, now: Instant, stall: Duration) {
        let closes = *self.closes.lock();
        match self.fate() {
            Fate::Stays if now >= closes => self.close(now),
            // What is not ours, as a watch of the health service, does not end by itself.
            Fate::Closes if now >= closes + stall => self.turn(Fate::Dies),
            _ => {}
        }
    }
}

/// All connections of all listeners.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<Slab<Arc<Connection>>>,
    draining: AtomicBool,
    empty: Notify,
}

impl Connections {
    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.lock().is_empty()
    }

    pub(super) fn open(self: &Arc<Self>, max_age: Duration, now: Instant) -> ConnectionGuard {
        // Spread over the last fifth, so that a fleet that connected at once does not come back at once.
        let age = max_age.mul_f64(rand::rng().random_range(0.8..=1.0));
        let closes = if self.draining.load(Ordering::Acquire) { now } else { now + age };
        let connection = Arc::new(Connection {
            fate: AtomicU8::new(Fate::Stays as u8),
            closes: Mutex::new(closes),
            task: AtomicWaker::new(),
        });
        let at = self.open.lock().insert(Arc::clone(&connection));
        ConnectionGuard { connection, at, of: Arc::clone(self) }
    }

    fn all(&self) -> Vec<Arc<Connection>> {
        self.open.lock().iter().map(|(_, connection)| Arc::clone(connection)).collect()
    }

    /// Closes what is old and gives up what is stuck, for as long as it is awaited.
    pub async fn keep_order(&self, stall: Duration) {
        let mut tick =
            tokio::time::interval((stall / 4).clamp(Duration::from_millis(50), Duration::from_secs(5)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = Instant::now();
            self.all().iter().for_each(|connection| connection.inspect(now, stall));
        }
    }

    /// Ends all streams, paced over `window` so that their clients do not arrive elsewhere all at once, and returns
    /// when no connection is left or the window is over.
    pub async fn drain(&self, window: Duration) {
        self.draining.store(true, Ordering::Release);
        let start = tokio::time::Instant::now();
        let end = start + window;
        let all = self.all();
        let step = window.mul_f64(0.8) / u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
        let step = step.min(Duration::from_millis(20));
        let mut turn = start;
        for connection in all {
            connection.close(Instant::now());
            // Moments, not pauses: a pause is never shorter than the timer's tick.
            turn += step;
            tokio::time::sleep_until(turn).await;
        }
        loop {
            let emptied = self.empty.notified();
            // One that was accepted meanwhile closes too.
            self.all()
                .iter()
                .filter(|connection| !connection.is_closing())
                .for_each(|connection| connection.close(Instant::now()));
            if self.is_empty() || tokio::time::timeout_at(end, emptied).await.is_err() {
                return;
            }
        }
    }
}

/// A connection's place among the open ones.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    pub(super) connection: Arc<Connection>,
    at: usize,
    of: Arc<Connections>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.of.open.lock().remove(self.at);
        self.of.empty.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_ends_with_its_window_however_many_connections_there_are() {
        const WINDOW: Duration = Duration::from_millis(200);
        let connections: Arc<Connections> = Arc::default();
        let _open: Vec<_> =
            (0..2000).map(|_| connections.open(Duration::from_secs(3600), Instant::now())).collect();
        let start = Instant::now();
        connections.drain(WINDOW).await;
        assert!(connections.all().iter().all(|connection| connection.is_closing()));
        assert!(start.elapsed() < WINDOW * 3, "{:?}", start.elapsed());
    }
}
