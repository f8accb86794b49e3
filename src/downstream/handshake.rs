//! TLS handshakes of clients.
//!
//! Owns their time limit. A handshake takes a few computations of about a millisecond, done while it is
//! polled. A fleet that reconnects would keep every thread busy. So each poll needs a permit of the
//! [`FairScheduler`](super::scheduler::FairScheduler). The wait for it does not count, or handshakes of a large fleet would time out with half
//! of the work done.
//!
//! No work is done for a peer that has left. After [`LONGEST_HANDSHAKE_WAIT`] a peer is about to leave, and
//! is refused so that it retries. A begun handshake goes before later ones for [`PLACED_HANDSHAKE_POLLS`]
//! polls, as many as it needs. After that it waits like a new one: a peer that sends byte by byte must not
//! keep precedence.
//!
//! Example: 15,000 clients come at once, and each leaves after 5 s. The relay serves 1,000 in a second. After
//! 3 s it refuses the other 12,000, which retry within a second or two. Each served client has waited 3 s at
//! most. Without the limit, all clients served after 5 s would have left.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::scheduler::PermitRequest;
use crate::fairness::{LONGEST_HANDSHAKE_WAIT, PLACED_HANDSHAKE_POLLS};

/// Reason for which a handshake was given up: a metric label and a text.
pub(super) type HandshakeGivenUp = (&'static str, &'static str);

const TIMED_OUT: HandshakeGivenUp = ("timeout", "not done within `downstream.handshake_timeout`");
const WAITED: HandshakeGivenUp =
    ("waited", "had no turn in time: too many clients connect at once; the client has to come again");
const LEFT: HandshakeGivenUp = ("left", "the client closed the connection before its turn");

/// Polls a handshake with permits, within `limit`, which excludes the wait for permits. `has_left` tells whether
/// its peer is known to be gone.
pub(super) async fn schedule<F: Future + Unpin>(
    mut request: PermitRequest,
    limit: Duration,
    mut handshake: F,
    has_left: fn(&F) -> bool,
) -> Result<F::Output, HandshakeGivenUp> {
    let (arrived, mut timeout) = (Instant::now(), pin!(sleep(limit)));
    // Number of polls, and start of the wait for a permit.
    let (mut polls, mut waits) = (0_u8, None);
    poll_fn(|cx| {
        let is_placed = polls < PLACED_HANDSHAKE_POLLS;
        let came = if is_placed { arrived } else { Instant::now() }.into_std();
        let Poll::Ready(permit) = request.poll_since(came, cx) else {
            waits.get_or_insert_with(Instant::now);
            return Poll::Pending;
        };
        // Without work, the permit goes to the next one at once.
        if waits.is_some() && has_left(&handshake) {
            return Poll::Ready(Err(LEFT));
        }
        if polls == 0 && arrived.elapsed() > LONGEST_HANDSHAKE_WAIT {
            return Poll::Ready(Err(WAITED));
        }
        polls = polls.saturating_add(1);
        if let Some(since) = waits.take() {
            let until = timeout.deadline() + since.elapsed();
            timeout.as_mut().reset(until);
        }
        let polled = Pin::new(&mut handshake).poll(cx);
        permit.end();
        if let Poll::Ready(done) = polled {
            return Poll::Ready(Ok(done));
        }
        ready!(timeout.as_mut().poll(cx));
        Poll::Ready(Err(TIMED_OUT))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use std::task::Context;

    use super::super::scheduler::{FairScheduler, Permit};
    use super::*;

    struct Handshakes {
        scheduler: FairScheduler,
        limit: Duration,
    }

    impl Handshakes {
        fn new(scheduler: FairScheduler, limit: Duration) -> Self {
            Self { scheduler, limit }
        }

        fn schedule<F: Future + Unpin>(
            &self,
            handshake: F,
            has_left: fn(&F) -> bool,
        ) -> impl Future<Output = Result<F::Output, HandshakeGivenUp>> + use<F> {
            schedule(self.scheduler.request_permit(), self.limit, handshake, has_left)
        }
    }

    #[derive(Default)]
    struct Seen {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    /// Computes at each poll, and waits for its peer in between, as a handshake does.
    async fn work(seen: Arc<Seen>) {
        for _ in 0..5 {
            let now = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
            seen.most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            seen.now.fetch_sub(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    }

    async fn most_at_a_time(threads: usize) -> usize {
        let handshakes = Handshakes::new(FairScheduler::new(threads), Duration::from_secs(5));
        let seen = Arc::<Seen>::default();
        let all: Vec<_> = (0..40)
            .map(|_| tokio::spawn(handshakes.schedule(Box::pin(work(Arc::clone(&seen))), |_| false)))
            .collect();
        for one in all {
            one.await.unwrap().unwrap();
        }
        seen.most.load(Ordering::SeqCst)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 8)]
    async fn no_more_than_half_of_the_threads_work_at_handshakes() {
        assert_eq!(most_at_a_time(1).await, 1);
        assert_eq!(most_at_a_time(2).await, 1);
        assert_eq!(most_at_a_time(6).await, 3);
    }

    /// Future that is ready for more work after every poll.
    #[derive(Default)]
    struct Busy {
        polls: Arc<AtomicUsize>,
    }

    impl Future for Busy {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.polls.fetch_add(1, Ordering::SeqCst);
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn on_a_single_thread_others_have_their_turn_after_each_poll() {
        let handshakes = Handshakes::new(FairScheduler::new(1), Duration::from_secs(5));
        let polls = Arc::<AtomicUsize>::default();
        let seen = Arc::clone(&polls);
        let most = tokio::spawn(async move {
            for _ in 0..40 {
                tokio::spawn(handshakes.schedule(Busy { polls: Arc::clone(&seen) }, |_| false));
            }
            let mut most = 0;
            for _ in 0..50 {
                let before = seen.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                most = most.max(seen.load(Ordering::SeqCst) - before);
            }
            most
        });
        let most = most.await.unwrap();
        assert!((1..=2).contains(&most), "{most} polls of handshakes between two turns of another");
    }

    #[tokio::test]
    async fn a_handshake_that_waits_for_its_peer_holds_no_permit() {
        let handshakes = Handshakes::new(FairScheduler::new(1), Duration::from_secs(5));
        let mut stalled = pin!(handshakes.schedule(std::future::pending::<()>(), |_| false));
        assert!(futures_util::poll!(&mut stalled).is_pending());
        handshakes.schedule(std::future::ready(()), |_| false).await.unwrap();
    }

    /// The only permit, until it is dropped.
    async fn only_permit(handshakes: &Handshakes) -> Permit {
        let mut request = handshakes.scheduler.request_permit();
        std::future::poll_fn(|cx| request.poll_since(Instant::now().into_std(), cx)).await
    }

    fn is_still_here<F>(_: &F) -> bool {
        false
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_turn_is_not_the_peers() {
        let handshakes = Handshakes::new(FairScheduler::new(1), Duration::from_secs(2));
        let all = only_permit(&handshakes).await;
        let waiting = tokio::spawn(handshakes.schedule(std::future::ready(()), is_still_here));
        let stalled = tokio::spawn(handshakes.schedule(std::future::pending::<()>(), is_still_here));
        sleep(LONGEST_HANDSHAKE_WAIT - Duration::from_millis(1)).await;
        assert!(!waiting.is_finished() && !stalled.is_finished());
        drop(all);
        let start = Instant::now();
        waiting.await.unwrap().expect("it was not late");
        assert_eq!(stalled.await.unwrap(), Err(TIMED_OUT), "this one was");
        assert_eq!(start.elapsed().as_secs(), 2);
    }

    /// Handshake that must not be polled.
    fn untouched() -> impl Future<Output = ()> + Unpin + Send + 'static {
        std::future::poll_fn(|_| panic!("work was done for it"))
    }

    #[tokio::test(start_paused = true)]
    async fn no_work_is_done_for_a_peer_that_waited_too_long_or_has_left() {
        let handshakes = Handshakes::new(FairScheduler::new(1), Duration::from_secs(10));
        let all = only_permit(&handshakes).await;
        let late = tokio::spawn(handshakes.schedule(untouched(), is_still_here));
        sleep(LONGEST_HANDSHAKE_WAIT).await;
        let gone = tokio::spawn(handshakes.schedule(untouched(), |_| true));
        let fresh = tokio::spawn(handshakes.schedule(std::future::ready(()), is_still_here));
        sleep(Duration::from_secs(1)).await;
        drop(all);
        assert_eq!(late.await.unwrap(), Err(WAITED));
        assert_eq!(gone.await.unwrap(), Err(LEFT));
        fresh.await.unwrap().expect("one that came later is served");
    }

    /// The work on a handshake that has begun is not thrown away for those that come later.
    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_has_begun_goes_before_those_that_came_later() {
        let handshakes = Handshakes::new(FairScheduler::new(1), Duration::from_secs(10));
        let answered = Arc::<tokio::sync::Notify>::default();
        let peer = Arc::clone(&answered);
        let order = Arc::<parking_lot::Mutex<Vec<&str>>>::default();
        let begun = tokio::spawn(handshakes.schedule(
            {
                let order = Arc::clone(&order);
                Box::pin(async move {
                    peer.notified().await;
                    order.lock().push("begun");
                })
            },
            is_still_here,
        ));
        sleep(Duration::from_secs(1)).await;
        let all = only_permit(&handshakes).await;
        let later = {
            let order = Arc::clone(&order);
            Box::pin(async move { order.lock().push("later") })
        };
        let later = tokio::spawn(handshakes.schedule(later, is_still_here));
        sleep(Duration::from_millis(500)).await;
        answered.notify_one();
        sleep(LONGEST_HANDSHAKE_WAIT / 2).await;
        drop(all);
        begun.await.unwrap().expect("it may wait for as long as it takes");
        later.await.unwrap().expect("it did not wait for long");
        assert_eq!(*order.lock(), ["begun", "later"]);
    }

    /// It would starve them, byte by byte.
    #[tokio::test(start_paused = true)]
    async fn a_handshake_in_many_parts_does_not_go_before_newcomers_all_the_time() {
        let handshakes = Handshakes::new(FairScheduler::new(1), Duration::from_secs(1_000));
        let order = Arc::<parking_lot::Mutex<Vec<&str>>>::default();
        let part = Arc::<tokio::sync::Notify>::default();
        let peer = {
            let (order, part) = (Arc::clone(&order), Arc::clone(&part));
            Box::pin(async move {
                loop {
                    part.notified().await;
                    order.lock().push("part");
                }
            })
        };
        let parts = tokio::spawn(handshakes.schedule(peer, is_still_here));
        for _ in 0..=PLACED_HANDSHAKE_POLLS {
            part.notify_one();
            sleep(Duration::from_millis(1)).await;
        }
        order.lock().clear();
        let all = only_permit(&handshakes).await;
        let newcomer = {
            let order = Arc::clone(&order);
            Box::pin(async move { order.lock().push("newcomer") })
        };
        let newcomer = tokio::spawn(handshakes.schedule(newcomer, is_still_here));
        sleep(Duration::from_secs(1)).await;
        part.notify_one();
        sleep(Duration::from_secs(1)).await;
        drop(all);
        newcomer.await.unwrap().expect("it did not wait for long");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(*order.lock(), ["newcomer", "part"]);
        parts.abort();
    }
}
