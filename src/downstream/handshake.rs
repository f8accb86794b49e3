//! TLS handshakes of clients.
//!
//! Owns their time limit. A handshake takes a few computations of about a millisecond each, done while it is
//! polled. A fleet that reconnects would keep every thread busy, and streams would wait. So each poll needs a
//! permit of the [`FairScheduler`]. The wait for it does not count: otherwise no handshake of a large fleet
//! would end within its limit, and half of the work would be thrown away.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::scheduler::{FairScheduler, PermitRequest};

/// Settings of all handshakes. Clones share them.
#[derive(Clone, Debug)]
pub struct Handshakes {
    scheduler: FairScheduler,
    /// Longest time of one handshake.
    pub(super) timeout: Duration,
}

impl Handshakes {
    /// Creates settings; `timeout` does not include the wait for permits.
    pub const fn new(scheduler: FairScheduler, timeout: Duration) -> Self {
        Self { scheduler, timeout }
    }

    /// Polls a handshake with permits, within the time limit.
    pub(super) fn schedule<F: Future + Unpin>(&self, handshake: F) -> FairHandshake<F> {
        FairHandshake {
            request: self.scheduler.request_permit(),
            waits: None,
            timeout: Box::pin(sleep(self.timeout)),
            handshake,
        }
    }
}

/// Handshake that is polled with permits.
#[derive(Debug)]
pub(super) struct FairHandshake<F> {
    request: PermitRequest,
    /// Start of the wait for a permit.
    waits: Option<Instant>,
    timeout: Pin<Box<Sleep>>,
    handshake: F,
}

/// Handshake that took longer than its limit.
#[derive(Debug)]
pub(super) struct HandshakeTimedOut;

impl<F: Future + Unpin> Future for FairHandshake<F> {
    type Output = Result<F::Output, HandshakeTimedOut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(permit) = self.request.poll(cx) else {
            self.waits.get_or_insert_with(Instant::now);
            return Poll::Pending;
        };
        if let Some(since) = self.waits.take() {
            let until = self.timeout.deadline() + since.elapsed();
            self.timeout.as_mut().reset(until);
        }
        let polled = Pin::new(&mut self.handshake).poll(cx);
        permit.end();
        if let Poll::Ready(done) = polled {
            return Poll::Ready(Ok(done));
        }
        ready!(self.timeout.as_mut().poll(cx));
        Poll::Ready(Err(HandshakeTimedOut))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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
        let all: Vec<_> =
            (0..40).map(|_| tokio::spawn(handshakes.schedule(Box::pin(work(Arc::clone(&seen)))))).collect();
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
                tokio::spawn(handshakes.schedule(Busy { polls: Arc::clone(&seen) }));
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
        let mut stalled = handshakes.schedule(std::future::pending::<()>());
        assert!(futures_util::poll!(&mut stalled).is_pending());
        handshakes.schedule(std::future::ready(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_turn_is_not_the_peers() {
        let handshakes = Handshakes::new(FairScheduler::new(1), Duration::from_secs(5));
        let mut request = handshakes.scheduler.request_permit();
        let all = std::future::poll_fn(|cx| request.poll(cx)).await;
        let waiting = tokio::spawn(handshakes.schedule(std::future::ready(())));
        let stalled = tokio::spawn(handshakes.schedule(std::future::pending::<()>()));
        sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished() && !stalled.is_finished());
        drop(all);
        let start = Instant::now();
        waiting.await.unwrap().expect("it was not late");
        assert!(stalled.await.unwrap().is_err(), "this one was");
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}
