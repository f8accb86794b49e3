//! What is known of the connections that are open, so that they can be aged, drained and given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::Rng as _;
use slab::Slab;
use tokio::sync::Notify;

use crate::cache::Mailbox;

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It lives.
    Stays,
    /// It takes no new streams, and those it has end.
    Closes,
    /// It is dropped as it is: its transport takes nothing, or does not close.
    Dies,
}

#[derive(Debug)]
struct Progress {
    fate: Fate,
    /// When it is to close by itself (`max_connection_age`, or its turn in a drain).
    closes: Instant,
    /// When a stream of it last took or awaited something.
    polled: Instant,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    progress: Mutex<Progress>,
    closing: AtomicBool,
    /// Streams that have handed a chunk to the transport and were not asked for more yet.
    parked: AtomicUsize,
    streams: Mutex<Slab<Arc<Mailbox>>>,
    pub(super) news: Notify,
}

impl Connection {
    pub(super) fn fate(&self) -> Fate {
        self.progress.lock().fate
    }

    /// Whether its streams are to end.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn stream(self: &Arc<Self>, mailbox: &Arc<Mailbox>) -> StreamGuard {
        let at = self.streams.lock().insert(Arc::clone(mailbox));
        StreamGuard { connection: Arc::clone(self), at, parked: false }
    }

    fn close(&self) {
        self.progress.lock().fate = Fate::Closes;
        self.closing.store(true, Ordering::Release);
        let mailboxes: Vec<_> = self.streams.lock().iter().map(|(_, mailbox)| Arc::clone(mailbox)).collect();
        mailboxes.iter().for_each(|mailbox| mailbox.wake());
        self.news.notify_one();
    }

    fn die(&self) {
        self.progress.lock().fate = Fate::Dies;
        self.news.notify_one();
    }

    /// Looks whether it is time to close, or whether its transport has taken nothing, or not closed, for too long. A stream that
    /// alone takes nothing on a connection that moves costs a position and is left alone.
    fn inspect(&self, now: Instant, stall: Duration) {
        let (fate, closes, polled) = {
            let progress = self.progress.lock();
            (progress.fate, progress.closes, progress.polled)
        };
        if fate != Fate::Dies && self.parked.load(Ordering::Acquire) > 0 && now >= polled + stall {
            self.die();
        } else if fate == Fate::Stays && now >= closes {
            self.close();
        } else if fate == Fate::Closes && now >= closes.max(polled) + stall {
            // What is not ours, as a watch of the health service, does not end by itself.
            self.die();
        }
    }
}

/// A stream's place on its connection.
#[derive(Debug)]
pub(super) struct StreamGuard {
    connection: Arc<Connection>,
    at: usize,
    parked: bool,
}

impl StreamGuard {
    pub(super) fn is_closing(&self) -> bool {
        self.connection.is_closing()
    }

    /// The transport asks for more.
    pub(super) fn polled(&mut self, now: Instant) {
        self.connection.progress.lock().polled = now;
        self.park(false);
    }

    /// The transport was given a chunk.
    pub(super) fn park(&mut self, parked: bool) {
        match (self.parked, parked) {
            (false, true) => _ = self.connection.parked.fetch_add(1, Ordering::AcqRel),
            (true, false) => _ = self.connection.parked.fetch_sub(1, Ordering::AcqRel),
            _ => {}
        }
        self.parked = parked;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.park(false);
        self.connection.streams.lock().remove(self.at);
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
            progress: Mutex::new(Progress { fate: Fate::Stays, closes, polled: now }),
            closing: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            streams: Mutex::default(),
            news: Notify::new(),
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
            connection.close();
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
                .for_each(|connection| connection.close());
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
