//! What is known of the connections that are open, so that they can be aged, drained and given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::task::Waker;
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
    /// What its requests take that are not whole, in bytes.
    buffered: AtomicUsize,
    /// Names that its streams ask for.
    names: AtomicUsize,
    /// Since when its transport takes nothing of what waits for it.
    stuck: Mutex<Option<Instant>>,
    /// Its streams are to be looked at, though nothing woke them.
    look: AtomicBool,
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

    pub(super) const fn buffered(&self) -> &AtomicUsize {
        &self.buffered
    }

    pub(super) const fn names(&self) -> &AtomicUsize {
        &self.names
    }

    /// Since when its transport takes nothing of what waits, if it does.
    pub(super) fn set_stuck(&self, since: Option<Instant>) {
        *self.stuck.lock() = since;
    }

    /// Whether its streams are to be looked at once, though nothing woke them.
    pub(super) fn takes_look(&self) -> bool {
        self.look.load(Ordering::Relaxed) && self.look.swap(false, Ordering::AcqRel)
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
            buffered: AtomicUsize::new(0),
            names: AtomicUsize::new(0),
            stuck: Mutex::new(None),
            look: AtomicBool::new(false),
        });
        let at = self.open.lock().insert(Arc::clone(&connection));
        ConnectionGuard { connection, at, of: Arc::clone(self) }
    }

    fn all(&self) -> Vec<Arc<Connection>> {
        self.open.lock().iter().map(|(_, connection)| Arc::clone(connection)).collect()
    }

    /// The same, each with a number that it keeps.
    fn numbered(&self) -> Vec<(usize, Arc<Connection>)> {
        self.open.lock().iter().map(|(at, connection)| (at, Arc::clone(connection))).collect()
    }

    /// Closes what is old and gives up what is stuck, for as long as it is awaited. Has the streams of each connection
    /// looked at four times in `unacked`, each time those of a part of all, so that clients that answer nothing are found
    /// out without a timer for each.
    pub async fn keep_order(&self, stall: Duration, unacked: Duration) {
        let (shortest, longest) = (Duration::from_millis(50), Duration::from_secs(5));
        let pause = (stall.min(unacked) / 4).clamp(shortest, longest);
        let parts = usize::try_from(unacked.as_millis() / 4 / pause.as_millis()).unwrap_or(usize::MAX).max(1);
        let mut tick = tokio::time::interval(pause);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for turn in (0..parts).cycle() {
            tick.tick().await;
            let now = Instant::now();
            for (at, connection) in self.numbered() {
                connection.inspect(now, stall);
                if at % parts == turn {
                    connection.look.store(true, Ordering::Release);
                    connection.task.wake();
                }
            }
        }
    }

    /// Closes so many: first those whose transport has taken nothing for longest, then those that cost most. Those that
    /// take nothing are not asked to go. Returns how many there were.
    pub(super) fn close_slowest(&self, count: usize, now: Instant) -> usize {
        /// What a name costs, roughly, beside what is buffered.
        const NAME: usize = 64;
        let mut all: Vec<_> = self
            .all()
            .into_iter()
            .filter(|connection| !connection.is_closing())
            .map(|connection| {
                let [names, bytes] =
                    [&connection.names, &connection.buffered].map(|n| n.load(Ordering::Relaxed));
                let stuck = *connection.stuck.lock();
                let cost = names.saturating_mul(NAME).saturating_add(bytes);
                ((stuck.is_none(), stuck, std::cmp::Reverse(cost)), connection)
            })
            .collect();
        let count = count.min(all.len());
        if count < all.len() {
            all.select_nth_unstable_by_key(count, |(key, _)| *key);
        }
        for ((takes, ..), connection) in &all[..count] {
            if *takes { connection.close(now) } else { connection.turn(Fate::Dies) }
        }
        count
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

    #[test]
    fn those_that_take_nothing_for_longest_are_closed_first_then_those_that_cost_most() {
        let connections: Arc<Connections> = Arc::default();
        let now = Instant::now();
        let open: Vec<_> = (0..6).map(|_| connections.open(Duration::from_secs(3600), now)).collect();
        open[1].connection.set_stuck(Some(now + Duration::from_secs(5)));
        open[4].connection.set_stuck(Some(now + Duration::from_secs(2)));
        open[2].connection.names.store(1000, Ordering::Relaxed);
        open[3].connection.buffered.store(1 << 20, Ordering::Relaxed);
        let fates = || open.iter().map(|guard| guard.connection.fate()).collect::<Vec<_>>();
        use Fate::{Closes, Dies, Stays};
        assert_eq!(connections.close_slowest(1, now), 1);
        assert_eq!(fates(), [Stays, Stays, Stays, Stays, Dies, Stays]);
        assert_eq!(connections.close_slowest(2, now), 2);
        assert_eq!(fates(), [Stays, Dies, Stays, Closes, Dies, Stays]);
        assert_eq!(connections.close_slowest(1, now), 1);
        assert_eq!(fates(), [Stays, Dies, Closes, Closes, Dies, Stays]);
        assert_eq!(connections.close_slowest(9, now), 2, "there are no more");
    }

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
