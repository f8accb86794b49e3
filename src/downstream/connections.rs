//! Open connections: their age, a drain, and the choice of those to close.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::Mutex;
use rand::Rng as _;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::connection::{Connection, Credentials};
use super::policy::Policy;
use super::unsent_memory::Unsent;
use crate::identity::Peer;

/// Connections of all listeners.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<OpenConnections>,
    alive: TaskTracker,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// By number.
    connections: HashMap<u64, Arc<Connection>>,
    opened: u64,
    /// Whether new ones close at once.
    draining: bool,
}

impl Connections {
    /// Time to end for a connection that is closed for lack of memory.
    const GRACE: Duration = Duration::from_secs(2);

    /// Returns the number of connections that had an admitted request or take memory. Others take next to
    /// nothing.
    pub(super) fn served(&self) -> usize {
        self.open.lock().connections.values().filter(|connection| connection.is_served()).count()
    }

    pub fn count(&self) -> usize {
        self.open.lock().connections.len()
    }

    pub(super) fn open(self: &Arc<Self>, max_age: Duration, now: Instant) -> ConnectionGuard {
        // Spread over the last fifth, so that a fleet does not return at once.
        let due = now + max_age.mul_f64(rand::rng().random_range(0.8..=1.0));
        let mut open = self.open.lock();
        open.opened += 1;
        let connection = Arc::new(Connection::new(open.opened, due));
        if open.draining {
            connection.close(now);
        }
        open.connections.insert(connection.number(), Arc::clone(&connection));
        ConnectionGuard { connection, of: Arc::clone(self), _alive: self.alive.token() }
    }

    /// Sets the peer, once. Look up its rights afterwards. A reload first replaces the rules and then
    /// searches for connections, so one of the two sees the other.
    pub(super) fn identify(&self, connection: &Connection, peer: Arc<Peer>) {
        let _listed = self.open.lock();
        connection.set_peer(peer);
    }

    /// Sets the certificates, once. Check them against the settings in force afterwards, for the reason given
    /// at [`identify`](Self::identify).
    pub(super) fn admit<'c>(&self, connection: &'c Connection, credentials: Credentials) -> &'c Credentials {
        let _listed = self.open.lock();
        connection.set_credentials(credentials)
    }

    /// Closes the connection with this number; returns whether there is one.
    pub fn close_one(&self, number: u64) -> bool {
        let found = self.open.lock().connections.get(&number).map(Arc::clone);
        found.inspect(|connection| connection.close(Instant::now())).is_some()
    }

    fn all(&self) -> Vec<Arc<Connection>> {
        self.open.lock().connections.values().map(Arc::clone).collect()
    }

    /// Closes connections at their maximum age, aborts those that do not close, and has streams enforce their
    /// ACK timeout; never returns.
    ///
    /// Rounds for all cost less than a timer of each connection. All may be due at once, as after a pause of the
    /// process. A round closes only as many as let all leave within the time for retirement.
    ///
    /// Each stream is polled four times within the ACK timeout. Example: with 60 s to close and an ACK timeout
    /// of 40 s, a round runs every 5 s and polls half of the connections.
    pub async fn enforce_timeouts(&self, policy: impl Fn() -> Arc<Policy>) {
        let (shortest, longest) = (Duration::from_millis(50), Duration::from_secs(5));
        let mut turn = 0;
        loop {
            let (now, policy) = (tokio::time::Instant::now().into_std(), policy());
            let (stall, unacked) = (policy.limits.stall_timeout, policy.unacked_timeout());
            let pause =
                (stall.min(unacked).min(policy.limits.max_connection_age) / 4).clamp(shortest, longest);
            let parts = u64::try_from(unacked.as_millis() / 4 / pause.as_millis()).unwrap_or(u64::MAX).max(1);
            let (all, mut due) = (self.all(), Vec::new());
            let share = pause.div_duration_f64(policy.retirement().max(pause));
            let most = (all.len() as f64 * share).ceil() as usize;
            for connection in all {
                connection.abort_if_stuck(now, stall);
                if connection.number() % parts == turn % parts {
                    connection.request_recheck();
                }
                if due.len() < most && connection.is_due(now) {
                    due.push(connection);
                }
            }
            turn = (turn + 1) % parts;
            tokio::join!(close_paced(due, pause), tokio::time::sleep(pause));
        }
    }

    /// Closes some connections, paced over `window`. The call chooses and counts them. The returned future
    /// paces them, and ends when all have begun to close.
    pub(crate) fn close_where(
        &self,
        concerned: &dyn Fn(&Connection) -> bool,
        window: Duration,
    ) -> (usize, impl Future<Output = ()> + Send + use<>) {
        let mut all = self.all();
        all.retain(|connection| !connection.is_closing() && concerned(connection));
        (all.len(), close_paced(all, window))
    }

    /// Closes connections until `count` are about to end: the costliest first, then the youngest. Those still
    /// there after [`GRACE`](Self::GRACE) are aborted. Returns the number chosen.
    ///
    /// A stalled transport proves little: a real link stalls during every update. The bytes that wait for it
    /// count.
    ///
    /// Connections chosen earlier count until they are gone, so that no other is closed before their memory
    /// is free. None is closed while all of them are charged with less than a twentieth of the memory in use: the
    /// resources take it, and closing would free next to nothing.
    pub(super) fn close_costliest(&self, count: usize, in_use: u64, unsent: &Unsent, now: Instant) -> usize {
        let (closing, others): (Vec<_>, Vec<_>) =
            self.all().into_iter().partition(|connection| connection.is_closing());
        closing.iter().for_each(|connection| connection.abort_if_stuck(now, Self::GRACE));
        let unsent = unsent.by_connection();
        let mut charged = 0;
        let mut all: Vec<_> = others
            .into_iter()
            .map(|connection| {
                let cost = connection.cost() + unsent.get(&connection.number()).copied().unwrap_or_default();
                charged += cost as u64;
                ((Reverse(cost), Reverse(connection.number())), connection)
            })
            .collect();
        if charged < in_use / 20 {
            return 0;
        }
        let count = count.saturating_sub(closing.len()).min(all.len());
        if count < all.len() {
            all.select_nth_unstable_by_key(count, |(key, _)| *key);
        }
        all[..count].iter().for_each(|(_, connection)| connection.close(now));
        count
    }

    /// Ends all streams, paced over `window`. Returns when no connection is left or the window is over. New
    /// connections close at once.
    pub async fn drain(&self, window: Duration) {
        self.open.lock().draining = true;
        let end = tokio::time::Instant::now() + window;
        close_paced(self.all(), window).await;
        self.emptied_by(end).await;
    }

    /// Waits until no connection is left, but not longer.
    pub(super) async fn emptied_by(&self, end: tokio::time::Instant) {
        self.alive.close();
        _ = tokio::time::timeout_at(end, self.alive.wait()).await;
    }
}

/// Longest time between two closes; a few need not fill the whole window.
const LONGEST_STEP: Duration = Duration::from_millis(20);

/// Closes connections one after the other, so that their clients do not all arrive elsewhere together. The
/// last fifth of the window is left for them to end.
///
/// Example: 100 connections and a window of 1 s close 8 ms apart; 15,000 and 20 s, about 1 ms apart.
async fn close_paced(all: Vec<Arc<Connection>>, window: Duration) {
    let step = window.mul_f64(0.8) / u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
    let mut turn = tokio::time::Instant::now();
    for (number, connection) in all.into_iter().enumerate() {
        if number > 0 {
            // Points in time, not pauses: a pause is never shorter than the timer's tick.
            turn += step.min(LONGEST_STEP);
            tokio::time::sleep_until(turn).await;
        }
        connection.close(Instant::now());
    }
}

/// Entry of a connection in the list; removed on drop.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    pub(super) connection: Arc<Connection>,
    of: Arc<Connections>,
    _alive: TaskTrackerToken,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.of.open.lock().connections.remove(&self.connection.number());
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::{ConnectionState, Usage};
    use super::*;
    use crate::identity::Source;

    #[test]
    fn the_connections_that_cost_most_are_closed_first_and_the_youngest_of_equals() {
        let connections: Arc<Connections> = Arc::default();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let open: Vec<_> =
            (0..6).map(|at| connections.open(Duration::from_secs(3600), now + at * second)).collect();
        open[1].connection.set_used(Usage::Sending, 2 << 20);
        open[2].connection.set_used(Usage::NameBytes, 64_000);
        open[3].connection.set_used(Usage::NameBytes, 1 << 20);
        open[4].connection.set_used(Usage::Http2, 4 << 20);
        let unsent = Unsent::new(usize::MAX);
        let states = || open.iter().map(|guard| guard.connection.state()).collect::<Vec<_>>();
        use ConnectionState::{Aborted, Closing, Open};
        assert_eq!(connections.close_costliest(1, 0, &unsent, now), 1);
        assert_eq!(states(), [Open, Open, Open, Open, Closing, Open]);
        assert_eq!(connections.close_costliest(1, 0, &unsent, now), 0, "that one has not ended yet");
        assert_eq!(connections.close_costliest(3, 0, &unsent, now), 2);
        assert_eq!(states(), [Open, Closing, Open, Closing, Closing, Open]);
        assert_eq!(connections.close_costliest(4, 0, &unsent, now), 1);
        assert_eq!(states(), [Open, Closing, Closing, Closing, Closing, Open]);
        assert_eq!(connections.close_costliest(5, 0, &unsent, now + Connections::GRACE), 1);
        assert_eq!(
            states(),
            [Open, Aborted, Aborted, Aborted, Aborted, Closing],
            "connections that were asked to go are dropped; the youngest of the others is asked"
        );
        assert_eq!(connections.close_costliest(9, 0, &unsent, now), 1, "there are no more");
    }

    #[test]
    fn nobody_is_closed_while_the_resources_take_the_memory() {
        let connections: Arc<Connections> = Arc::default();
        let (now, unsent) = (Instant::now(), Unsent::new(usize::MAX));
        let open = [(); 2].map(|()| connections.open(Duration::from_secs(3600), now));
        open.iter().for_each(|guard| guard.connection.set_used(Usage::Http2, 1 << 20));
        assert_eq!(connections.close_costliest(1, 50 << 20, &unsent, now), 0);
        assert_eq!(connections.close_costliest(1, 40 << 20, &unsent, now), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_with_its_window_however_many_connections_there_are() {
        const WINDOW: Duration = Duration::from_millis(200);
        let connections: Arc<Connections> = Arc::default();
        let _open: Vec<_> =
            (0..2000).map(|_| connections.open(Duration::from_secs(3600), Instant::now())).collect();
        let start = tokio::time::Instant::now();
        connections.drain(WINDOW).await;
        assert!(connections.all().iter().all(|connection| connection.is_closing()));
        assert!(start.elapsed() <= WINDOW + Duration::from_millis(10), "{:?}", start.elapsed());
    }

    impl Connections {
        pub(crate) fn any_awaits_first_answer(&self) -> bool {
            self.all().iter().any(|connection| connection.first_answer().is_due())
        }
    }

    fn open(connections: &Arc<Connections>, last: u8) -> ConnectionGuard {
        let guard = connections.open(Duration::from_secs(3600), Instant::now());
        let peer = Peer::unproven(Source::of([10, 0, 0, last].into()));
        guard.of.identify(&guard.connection, Arc::new(peer));
        guard
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_concerned_peers_close_one_after_the_other() {
        let connections: Arc<Connections> = Arc::default();
        let open: Vec<_> = (0..200).map(|number| open(&connections, number % 2)).collect();
        let unknown = connections.open(Duration::from_secs(3600), Instant::now());
        let source = Source::of([10, 0, 0, 1].into());
        let odd = |connection: &Connection| connection.peer().is_some_and(|peer| peer.source == source);
        let (count, closing) = connections.close_where(&odd, Duration::from_secs(10));
        assert_eq!(count, 100);
        let closed = || connections.all().iter().filter(|connection| connection.is_closing()).count();
        assert_eq!(closed(), 0, "what was chosen waits for its turn");
        let closing = tokio::spawn(closing);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!((49..=52).contains(&closed()), "{} after half of the time", closed());
        closing.await.expect("no panic");
        assert!(open.iter().all(|guard| guard.connection.is_closing() == odd(&guard.connection)));
        assert!(!unknown.connection.is_closing());
        let (count, _) = connections.close_where(&odd, Duration::from_secs(10));
        assert_eq!(count, 0, "they close already");
    }

    /// Counts the connections that begin to close in each of the next seconds.
    async fn closed_by_second(connections: &Connections, seconds: usize) -> Vec<usize> {
        let closed = || connections.all().iter().filter(|connection| connection.is_closing()).count();
        let mut counts = Vec::with_capacity(seconds);
        let mut before = closed();
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let so_far = closed();
            counts.push(so_far - before);
            before = so_far;
        }
        counts
    }

    fn open_fleet(connections: &Arc<Connections>, age: Duration) -> Vec<ConnectionGuard> {
        let now = tokio::time::Instant::now().into_std();
        (0..15_000).map(|_| connections.open(age, now)).collect()
    }

    fn enforce_timeouts(connections: &Arc<Connections>) {
        let (connections, policy) = (Arc::clone(connections), Arc::new(Policy::for_tests()));
        tokio::spawn(async move { connections.enforce_timeouts(|| Arc::clone(&policy)).await });
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_that_connected_at_once_leaves_evenly_over_the_last_fifth_of_the_age() {
        const AGE: usize = 30 * 60;
        let connections: Arc<Connections> = Arc::default();
        enforce_timeouts(&connections);
        tokio::task::yield_now().await;
        let _open = open_fleet(&connections, Duration::from_secs(AGE as u64));
        let counts = closed_by_second(&connections, AGE + 10).await;
        assert_eq!(counts[..AGE * 4 / 5].iter().sum::<usize>(), 0, "too early");
        assert_eq!(counts.iter().sum::<usize>(), 15_000, "too late");
        // 42 on average.
        let most = counts.iter().max().expect("there are seconds");
        assert!(*most < 90, "{most} within a second: {:?}", &counts[AGE * 4 / 5..]);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_due_together_are_paced() {
        let connections: Arc<Connections> = Arc::default();
        let open = open_fleet(&connections, Duration::from_secs(60));
        // A pause of the process: all are overdue.
        tokio::time::advance(Duration::from_secs(3600)).await;
        enforce_timeouts(&connections);
        let counts = closed_by_second(&connections, 20).await;
        assert!(counts.iter().all(|count| *count < 1000), "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), 15_000, "{counts:?}");
        drop(open);
        assert_eq!(connections.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_close_is_aborted_and_a_drain_does_not_revive_it() {
        let connections: Arc<Connections> = Arc::default();
        let (stuck, aged) = (open(&connections, 1), open(&connections, 2));
        let now = Instant::now();
        stuck.connection.close(now);
        let second = Duration::from_secs(1);
        stuck.connection.abort_if_stuck(now + second, second);
        assert_eq!(
            (stuck.connection.state(), aged.connection.state()),
            (ConnectionState::Aborted, ConnectionState::Open)
        );
        connections.drain(second).await;
        assert_eq!(
            (stuck.connection.state(), aged.connection.state()),
            (ConnectionState::Aborted, ConnectionState::Closing)
        );
        let late = connections.open(Duration::from_secs(3600), Instant::now());
        assert_eq!(
            late.connection.state(),
            ConnectionState::Closing,
            "a connection that comes during a drain is not kept"
        );
    }
}
