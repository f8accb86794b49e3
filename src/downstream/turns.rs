//! Who takes much of the threads' time takes turns.
//!
//! Owns how that time is shared between connections. Each earns a small part of a thread's time, and may save a few
//! milliseconds of it: a client that hears of changes and acknowledges them never needs more, and is served as soon as
//! there is something to do. Who has spent what it had, or has not earned anything yet, is polled with a permit. Of those
//! there are fewer than threads, they are given in the order in which they were asked for, and one comes back only when all
//! that was ready has been polled and sockets have been looked at, or at once where its poll goes on on a thread of its own.
//! So whoever is new or dear waits for its like, and others wait for one poll at most, however many of them there are.
//!
//! Invariant: who waits for a permit is woken when it has it, and holds none between two polls.

use std::cell::Cell;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

/// What a connection earns: this part of a thread's time.
const SHARE: u32 = 128;
/// What it can save.
const SAVINGS: Duration = Duration::from_millis(5);
/// What it can owe: it may have been the machine that took long, and not the connection.
const DEBT: Duration = Duration::from_millis(100);
/// What it has to have saved to be polled at once: about what one poll may take.
const LEAST: Duration = Duration::from_millis(1);

thread_local! {
    /// The turn of who is being polled on this thread.
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
}

/// So much waits to be dropped: what it holds counts for no limit any more.
const GRAVES: usize = 8;

/// The permits of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Turns {
    permits: Arc<Semaphore>,
    /// Who may have a thread of its own for a while.
    aside: Arc<Semaphore>,
    /// To the thread that drops what takes long to drop; it ends with the last of these.
    graves: mpsc::SyncSender<Box<dyn Send>>,
}

impl Turns {
    /// For a runtime with so many threads.
    pub fn new(threads: usize) -> Self {
        let (graves, gone) = mpsc::sync_channel::<Box<dyn Send>>(GRAVES);
        // As urgent as others: what it drops takes locks that all wait for.
        let bury = move || gone.into_iter().for_each(drop);
        // Where there is no thread to be had, the channel is closed.
        _ = std::thread::Builder::new().name("closing".to_owned()).spawn(bury);
        Self {
            permits: Arc::new(Semaphore::new((threads / 2).max(1))),
            aside: Arc::new(Semaphore::new(threads)),
            graves,
        }
    }

    /// Returns when all who wait for a permit now have had one.
    pub(super) async fn pass(&self) {
        let mut queue = self.queue();
        std::future::poll_fn(|cx| queue.poll(cx)).await.end();
    }

    /// A place to wait for a permit.
    pub(super) fn queue(&self) -> Queue {
        Queue(PollSemaphore::new(Arc::clone(&self.permits)))
    }

    /// Works at what may take long. The thread's other tasks go on elsewhere meanwhile: it is for the operating system to
    /// share out a core between them. `None` where as many as there are threads do that already: it is to be tried again in
    /// a moment. There is no queue, in which somebody who does not come for what it waited for would hold up all.
    pub(super) fn at_length<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Some(work());
        }
        let _permit = self.aside.try_acquire().ok()?;
        // From here on it holds up nobody who waits for this turn: it has left the thread that they wait for.
        TURN.take().into_iter().for_each(Turn::end);
        Some(tokio::task::block_in_place(work))
    }

    /// Drops what may take long to drop on a thread of its own; here, where much waits for that, or there is none.
    pub(super) fn bury(&self, gone: impl Send + 'static) {
        _ = self.graves.try_send(Box::new(gone));
    }

    /// The account of a connection that is new.
    pub(super) fn account(&self) -> Account {
        Account { turns: self.clone(), spent: SAVINGS, as_of: Instant::now(), queue: None }
    }
}

/// From here on this thread runs for others' sake last, as Linux has it: elsewhere, and where it fails, it is as urgent as any.
pub(super) fn give_way() {
    if cfg!(target_os = "linux") {
        _ = rustix::process::setpriority_process(None, 10);
    }
}

/// See [`Turns::queue`].
#[derive(Debug)]
pub(super) struct Queue(PollSemaphore);

impl Queue {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        self.0.poll_acquire(cx).map(Turn)
    }
}

/// A permit to poll once; `None` where the semaphore was closed, which nobody does: it would do no harm to go on.
#[derive(Debug)]
#[must_use = "dropped, it lets the next one go on before others had their turn"]
pub(super) struct Turn(Option<OwnedSemaphorePermit>);

impl Turn {
    /// Gives it back once others had theirs.
    pub(super) fn end(self) {
        let Self(permit) = self;
        tokio::spawn(async move {
            // Behind all that is ready: what wakes itself while it is polled goes to the end of the queue.
            let mut is_behind = false;
            std::future::poll_fn(|cx| {
                if std::mem::replace(&mut is_behind, true) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            // And behind what sockets bring.
            tokio::task::yield_now().await;
            drop(permit);
        });
    }
}

/// While this is there the turn is out: it comes back also from a poll that panics.
struct Polling;

impl Drop for Polling {
    fn drop(&mut self) {
        TURN.take().into_iter().for_each(Turn::end);
    }
}

/// What a connection has taken of the threads' time.
#[derive(Debug)]
pub(super) struct Account {
    turns: Turns,
    /// Beyond what it has earned until `as_of`.
    spent: Duration,
    as_of: Instant,
    /// It waits for a permit.
    queue: Option<Queue>,
}

impl Account {
    /// Polls, at once or when it is this connection's turn, and charges what that takes.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let start = Instant::now();
        let mut turn = None;
        // Who waits goes on waiting, whatever it has earned meanwhile: the permit may be on its way.
        if self.queue.is_some() || self.has_little(start) {
            let queue = self.queue.get_or_insert_with(|| self.turns.queue());
            turn = Some(ready!(queue.poll(cx)));
            self.queue = None;
        }
        TURN.set(turn);
        let polling = Polling;
        let polled = work(cx);
        self.spent = (self.spent + start.elapsed()).min(DEBT);
        drop(polling);
        polled
    }

    fn has_little(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.as_of) / SHARE;
        self.spent = self.spent.saturating_sub(earned);
        self.as_of = now;
        self.spent + LEAST > SAVINGS
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    /// The account of who has not been seen for a second.
    fn saved(turns: &Turns) -> Account {
        Account { as_of: Instant::now() - Duration::from_secs(1), ..turns.account() }
    }

    async fn works(account: &mut Account, takes: Duration) {
        std::future::poll_fn(|cx| {
            account.poll(cx, |_| {
                std::thread::sleep(takes);
                Poll::Ready(())
            })
        })
        .await;
    }

    #[tokio::test]
    async fn who_has_saved_is_served_while_all_permits_are_out_and_a_newcomer_when_one_comes_back() {
        let turns = Turns::new(1);
        let mut queue = turns.queue();
        let turn = std::future::poll_fn(|cx| queue.poll(cx)).await;
        let (mut known, mut new) = (saved(&turns), turns.account());
        for _ in 0..20 {
            assert!(poll!(std::pin::pin!(works(&mut known, Duration::ZERO))).is_ready());
            assert!(poll!(std::pin::pin!(works(&mut new, Duration::ZERO))).is_pending());
        }
        turn.end();
        works(&mut new, Duration::ZERO).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn who_works_at_length_holds_up_nobody_who_waits_for_its_turn() {
        let turns = Turns::new(1);
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel();
        let (mut dear, works_on) = (turns.account(), turns.clone());
        let at_length = tokio::spawn(std::future::poll_fn(move |cx| {
            dear.poll(cx, |_| {
                let work = || {
                    begin.send(()).expect("the test waits");
                    ends.recv_timeout(Duration::from_secs(10)).is_ok()
                };
                Poll::Ready(works_on.at_length(work).expect("nobody else does"))
            })
        }));
        tokio::task::spawn_blocking(move || begun.recv()).await.expect("no panic").expect("it begins");
        let mut new = turns.account();
        let turn = tokio::time::timeout(Duration::from_secs(5), works(&mut new, Duration::ZERO));
        assert!(turn.await.is_ok(), "a newcomer waits for what has a thread of its own");
        end.send(()).expect("it still works");
        assert!(at_length.await.expect("no panic"));
    }

    #[tokio::test]
    async fn who_has_spent_what_it_saved_waits_for_its_turn() {
        let turns = Turns::new(1);
        let mut dear = saved(&turns);
        works(&mut dear, SAVINGS * 2).await;
        let mut queue = turns.queue();
        let turn = std::future::poll_fn(|cx| queue.poll(cx)).await;
        assert!(poll!(std::pin::pin!(works(&mut dear, Duration::ZERO))).is_pending());
        // What it earned meanwhile does not let it leave the queue: the permit on its way would be lost.
        dear.as_of -= Duration::from_secs(10);
        assert!(poll!(std::pin::pin!(works(&mut dear, Duration::ZERO))).is_pending());
        turn.end();
        works(&mut dear, Duration::ZERO).await;
        assert!(dear.queue.is_none());
        let mut queue = turns.queue();
        assert!(poll!(std::future::poll_fn(|cx| queue.poll(cx))).is_pending(), "it comes back after others");
        std::future::poll_fn(|cx| queue.poll(cx)).await.end();
    }
}
