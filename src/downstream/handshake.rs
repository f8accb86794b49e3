//! TLS handshakes of clients.
//!
//! Owns how long one may take, and how many are worked at at a time. The work of a handshake is a few computations of a
//! millisecond, done while it is polled; a fleet that comes back would keep every thread at it, and streams that live
//! would wait. So a poll needs a permit, of which there are fewer than threads, and which comes back once others had
//! their turn: with a single thread, all handshakes that are ready would else be polled in a row. A peer that stalls
//! holds none. And the wait for one is not the peer's: were it counted, a fleet too large for the time that one
//! handshake may take would never come in, for all would be given up after half of the work.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::PollSemaphore;

/// What all handshakes share. Clones share it.
#[derive(Clone, Debug)]
pub struct Handshakes {
    permits: Arc<Semaphore>,
    /// How long one may take.
    pub(super) timeout: Duration,
}

impl Handshakes {
    /// For a runtime with so many threads.
    pub fn new(threads: usize, timeout: Duration) -> Self {
        Self { permits: Arc::new(Semaphore::new((threads / 2).max(1))), timeout }
    }

    /// A handshake that takes its turns, and may take so long beside them.
    pub(super) fn take_turns<F: Future + Unpin>(&self, handshake: F) -> InTurn<F> {
        InTurn {
            turn: PollSemaphore::new(Arc::clone(&self.permits)),
            waits: None,
            patience: Box::pin(sleep(self.timeout)),
            handshake,
        }
    }
}

/// See [`Handshakes::take_turns`].
#[derive(Debug)]
pub(super) struct InTurn<F> {
    turn: PollSemaphore,
    /// Since when it waits for its turn.
    waits: Option<Instant>,
    patience: Pin<Box<Sleep>>,
    handshake: F,
}

/// The peer took too long.
#[derive(Debug)]
pub(super) struct TimedOut;

impl<F: Future + Unpin> Future for InTurn<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Nobody closes the semaphore; without a permit it would do no harm to go on.
        let Poll::Ready(permit) = self.turn.poll_acquire(cx) else {
            self.waits.get_or_insert_with(Instant::now);
            return Poll::Pending;
        };
        if let Some(since) = self.waits.take() {
            let until = self.patience.deadline() + since.elapsed();
            self.patience.as_mut().reset(until);
        }
        let polled = Pin::new(&mut self.handshake).poll(cx);
        // What yields goes on when all that was ready before has been polled, and sockets have been looked at.
        tokio::spawn(async {
            tokio::task::yield_now().await;
            drop(permit);
        });
        if let Poll::Ready(done) = polled {
            return Poll::Ready(Ok(done));
        }
        ready!(self.patience.as_mut().poll(cx));
        Poll::Ready(Err(TimedOut))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Seen {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    /// Works at each poll as a handshake does, and waits for its peer between them.
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
        let handshakes = Handshakes::new(threads, Duration::from_secs(5));
        let seen = Arc::<Seen>::default();
        let all: Vec<_> =
            (0..40).map(|_| tokio::spawn(handshakes.take_turns(Box::pin(work(Arc::clone(&seen)))))).collect();
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

    /// Ready as often as it is polled.
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
        let handshakes = Handshakes::new(1, Duration::from_secs(5));
        let polls = Arc::<AtomicUsize>::default();
        let seen = Arc::clone(&polls);
        let most = tokio::spawn(async move {
            for _ in 0..40 {
                tokio::spawn(handshakes.take_turns(Busy { polls: Arc::clone(&seen) }));
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
    async fn who_waits_for_its_peer_is_in_nobodys_way() {
        let handshakes = Handshakes::new(1, Duration::from_secs(5));
        let mut stalled = handshakes.take_turns(std::future::pending::<()>());
        assert!(futures_util::poll!(&mut stalled).is_pending());
        handshakes.take_turns(std::future::ready(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_turn_is_not_the_peers() {
        let handshakes = Handshakes::new(1, Duration::from_secs(5));
        let all = Arc::clone(&handshakes.permits).acquire_owned().await.unwrap();
        let waiting = tokio::spawn(handshakes.take_turns(std::future::ready(())));
        let stalled = tokio::spawn(handshakes.take_turns(std::future::pending::<()>()));
        sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished() && !stalled.is_finished());
        drop(all);
        let start = Instant::now();
        waiting.await.unwrap().expect("it was not late");
        assert!(stalled.await.unwrap().is_err(), "this one was");
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}
