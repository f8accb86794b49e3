//! Fair sharing of CPU time between connections.
//!
//! Owns how that time is shared between connections. Each earns a small part of a thread's time, and may save a few
//! milliseconds of it: a client that hears of changes and acknowledges them never needs more, and is served as soon as
//! there is something to do. Who has spent what it had, or has not earned anything yet, is polled with a permit. Of those
//! there are fewer than threads, and one comes back only when all that was ready has been polled and sockets have been
//! looked at, or at once where its poll goes on on a thread of its own.
//! So others wait for one poll at most, however many are new or dear. Among these the one comes first that took the least
//! time lately: a client that hears of hundreds of changes a second does not wait for those that ask for all they can get.
//! Nobody waits for ever: for each millisecond that somebody took, it lets those go first that come within ten, and never
//! those that come more than a second later.
//!
//! Example: twenty connections ask for something without end, and each takes 50 ms of the thread's second. A client to which
//! changes cost 12 ms a second goes before all that have not waited 380 ms longer.
//!
//! Invariant: who waits for a permit is woken when it has it, and holds none between two polls.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// What a connection earns: this part of a thread's time.
const REFILL_DIVISOR: u32 = 128;
/// What it can save.
const MAX_BUDGET: Duration = Duration::from_millis(5);
/// What it can owe: it may have been the machine that took long, and not the connection.
const MAX_DEBT: Duration = Duration::from_millis(100);
/// In seconds: what was taken this long ago counts half or less.
const DECAY_SECONDS: f32 = 1.0;
/// Seconds that a newcomer is assumed to have used: it is not known yet how dear it will be.
const NEWCOMER_SECONDS: f32 = 0.02;
/// For how many seconds a connection lets others go first, for each that it took.
const HANDICAP: f32 = 10.0;
/// For how long at most.
const MAX_HANDICAP: Duration = Duration::from_secs(1);
/// What it has to have saved to be polled at once: about what one poll may take.
const MIN_BUDGET: Duration = Duration::from_millis(1);

thread_local! {
    /// The turn of who is being polled on this thread.
    static PERMIT: Cell<Option<Permit>> = const { Cell::new(None) };
}

/// Time after which work that has to wait for other long work is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(2);
/// Bytes of a request that may take long to read.
pub(super) const LARGE_REQUEST: usize = 64 << 10;
/// Names that may take long to look at, or to let go of.
pub(super) const MANY_NAMES: usize = 20_000;

/// So much waits to be dropped: what it holds counts for no limit any more.
const RECLAIM_QUEUE_LEN: usize = 8;

/// The permits of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct FairScheduler {
    permits: Arc<PermitPool>,
    /// Who may have a thread of its own for a while.
    aside: Arc<Semaphore>,
    /// To the thread that drops what takes long to drop; it ends with the last of these.
    reclaim_queue: mpsc::SyncSender<Box<dyn Send>>,
}

impl FairScheduler {
    /// For a runtime with so many threads.
    pub fn new(threads: usize) -> Self {
        let (reclaim_queue, gone) = mpsc::sync_channel::<Box<dyn Send>>(RECLAIM_QUEUE_LEN);
        // As urgent as others: what it drops takes locks that all wait for.
        let drop_in_background = move || gone.into_iter().for_each(drop);
        // Where there is no thread to be had, the channel is closed.
        _ = std::thread::Builder::new().name("closing".to_owned()).spawn(drop_in_background);
        Self {
            permits: PermitPool::new((threads / 2).max(1)),
            aside: Arc::new(Semaphore::new(threads)),
            reclaim_queue,
        }
    }

    /// Returns when all newcomers that wait for a permit now have had one.
    pub(super) async fn yield_to_waiting(&self) {
        let mut request = self.request_permit();
        std::future::poll_fn(|cx| request.poll(cx)).await.end();
    }

    /// A place to wait for a permit.
    pub(super) fn request_permit(&self) -> PermitRequest {
        PermitRequest { of: Arc::clone(&self.permits), place: None }
    }

    /// Works at what may take long. The thread's other tasks go on elsewhere meanwhile: it is for the operating system to
    /// share out a core between them. `None` where as many as there are threads do that already: it is to be tried again in
    /// a moment. There is no queue, in which somebody who does not come for what it waited for would hold up all.
    pub(super) fn run_blocking<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Some(work());
        }
        let _permit = self.aside.try_acquire().ok()?;
        // From here on it holds up nobody who waits for this turn: it has left the thread that they wait for.
        PERMIT.take().into_iter().for_each(Permit::end);
        Some(tokio::task::block_in_place(work))
    }

    /// Works here and now, or [at length](Self::run_blocking) if it may take long.
    pub(super) fn run<T>(&self, is_long: bool, work: impl FnOnce() -> T) -> Option<T> {
        if is_long { self.run_blocking(work) } else { Some(work()) }
    }

    /// As [`work`](Self::work), once that is possible.
    pub(super) async fn run_when_free<T>(&self, is_long: bool, work: impl FnOnce() -> T) -> T {
        let mut work = Some(work);
        loop {
            if let Some(done) = self.run(is_long, || work.take().map(|work| work())).flatten() {
                return done;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// A value that is dropped on a thread of its own if `is_long` says that it takes long.
    pub(super) fn drop_guard<T: Send + 'static>(
        &self,
        value: T,
        is_long: fn(&T) -> bool,
    ) -> BackgroundDrop<T> {
        BackgroundDrop { value: Some(value), scheduler: self.clone(), is_long }
    }

    /// Drops what may take long to drop on a thread of its own; here, where much waits for that, or there is none.
    pub(super) fn drop_in_background(&self, gone: impl Send + 'static) {
        _ = self.reclaim_queue.try_send(Box::new(gone));
    }

    /// The budget of a connection that is new.
    pub(super) fn budget(&self) -> CpuBudget {
        CpuBudget {
            scheduler: self.clone(),
            spent: MAX_BUDGET,
            as_of: Instant::now(),
            lately: NEWCOMER_SECONDS,
            request: None,
        }
    }
}

/// See [`FairScheduler::drop_guard`].
#[derive(Debug)]
pub(super) struct BackgroundDrop<T: Send + 'static> {
    /// There until it is dropped.
    value: Option<T>,
    scheduler: FairScheduler,
    is_long: fn(&T) -> bool,
}

impl<T: Send + 'static> Deref for BackgroundDrop<T> {
    type Target = T;

    #[expect(clippy::expect_used, reason = "it is taken out by drop alone")]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("not dropped yet")
    }
}

impl<T: Send + 'static> DerefMut for BackgroundDrop<T> {
    #[expect(clippy::expect_used, reason = "it is taken out by drop alone")]
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("not dropped yet")
    }
}

impl<T: Send + 'static> Drop for BackgroundDrop<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take_if(|value| (self.is_long)(value)) {
            self.scheduler.drop_in_background(value);
        }
    }
}

/// From here on this thread runs for others' sake last, as Linux has it: elsewhere, and where it fails, it is as urgent as any.
pub(super) fn lower_thread_priority() {
    if cfg!(target_os = "linux") {
        _ = rustix::process::setpriority_process(None, 10);
    }
}

/// PermitPool to be handed out, and the connections that wait for one.
#[derive(Debug)]
struct PermitPool(Mutex<Waitlist>);

#[derive(Debug)]
struct Waitlist {
    free: usize,
    /// By the moment from which on nobody who comes is let go first. Who is not there any more has a permit.
    waiting: BTreeMap<Place, Waker>,
    newest: u64,
}

/// That moment, and a number.
type Place = (Instant, u64);

impl PermitPool {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Waitlist { free: count, waiting: BTreeMap::new(), newest: 0 })))
    }

    /// One comes back, to whom it is first the turn of.
    fn release(&self) {
        let mut line = self.0.lock();
        let next = line.waiting.pop_first();
        line.free += usize::from(next.is_none());
        drop(line);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

/// See [`FairScheduler::queue`].
#[derive(Debug)]
pub(super) struct PermitRequest {
    of: Arc<PermitPool>,
    place: Option<Place>,
}

impl PermitRequest {
    /// Waits as a newcomer does.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<Permit> {
        self.poll_as(NEWCOMER_SECONDS, cx.waker())
    }

    /// Waits as a connection that took so many seconds lately.
    fn poll_as(&mut self, taken: f32, waker: &Waker) -> Poll<Permit> {
        let mut line = self.of.0.lock();
        match self.place {
            Some(place) => {
                if let Some(waiting) = line.waiting.get_mut(&place) {
                    waiting.clone_from(waker);
                    return Poll::Pending;
                }
                self.place = None;
            }
            None if line.free > 0 => line.free -= 1,
            None => {
                line.newest += 1;
                let handicap = Duration::from_secs_f32(taken * HANDICAP).min(MAX_HANDICAP);
                let place = (Instant::now() + handicap, line.newest);
                line.waiting.insert(place, waker.clone());
                self.place = Some(place);
                return Poll::Pending;
            }
        }
        Poll::Ready(Permit(ReturnOnDrop(Arc::clone(&self.of))))
    }
}

impl Drop for PermitRequest {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        if self.of.0.lock().waiting.remove(&place).is_none() {
            // It was on its way here.
            self.of.release();
        }
    }
}

/// Goes to the next one when it is dropped.
#[derive(Debug)]
struct ReturnOnDrop(Arc<PermitPool>);

impl Drop for ReturnOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A permit to poll once.
#[derive(Debug)]
#[must_use = "dropped, it lets the next one go on before others had their turn"]
pub(super) struct Permit(ReturnOnDrop);

impl Permit {
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
struct ReleaseAfterPoll;

impl Drop for ReleaseAfterPoll {
    fn drop(&mut self) {
        PERMIT.take().into_iter().for_each(Permit::end);
    }
}

/// What a connection has taken of the threads' time.
#[derive(Debug)]
pub(super) struct CpuBudget {
    scheduler: FairScheduler,
    /// Beyond what it has earned until `as_of`.
    spent: Duration,
    as_of: Instant,
    /// Seconds that it took lately.
    lately: f32,
    /// It waits for a permit.
    request: Option<PermitRequest>,
}

impl CpuBudget {
    /// Polls, at once or when it is this connection's turn, and charges what that takes.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let start = Instant::now();
        let mut permit = None;
        // Who waits goes on waiting, whatever it has earned meanwhile: the permit may be on its way.
        if self.request.is_some() || self.has_little(start) {
            let request = self.request.get_or_insert_with(|| self.scheduler.request_permit());
            permit = Some(ready!(request.poll_as(self.lately, cx.waker())));
            self.request = None;
        }
        PERMIT.set(permit);
        let polling = ReleaseAfterPoll;
        let polled = work(cx);
        let took = start.elapsed();
        self.spent = (self.spent + took).min(MAX_DEBT);
        self.lately += took.min(MAX_DEBT).as_secs_f32();
        drop(polling);
        polled
    }

    fn has_little(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.as_of);
        self.spent = self.spent.saturating_sub(passed / REFILL_DIVISOR);
        self.lately /= 1.0 + passed.as_secs_f32() / DECAY_SECONDS;
        self.as_of = now;
        self.spent + MIN_BUDGET > MAX_BUDGET
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    /// The budget of who has not been seen for a second.
    fn saved(scheduler: &FairScheduler) -> CpuBudget {
        CpuBudget { as_of: Instant::now() - Duration::from_secs(1), ..scheduler.budget() }
    }

    async fn works(budget: &mut CpuBudget, takes: Duration) {
        std::future::poll_fn(|cx| {
            budget.poll(cx, |_| {
                std::thread::sleep(takes);
                Poll::Ready(())
            })
        })
        .await;
    }

    #[tokio::test]
    async fn who_has_saved_is_served_while_all_permits_are_out_and_a_newcomer_when_one_comes_back() {
        let scheduler = FairScheduler::new(1);
        let mut request = scheduler.request_permit();
        let permit = std::future::poll_fn(|cx| request.poll(cx)).await;
        let (mut known, mut new) = (saved(&scheduler), scheduler.budget());
        for _ in 0..20 {
            assert!(poll!(std::pin::pin!(works(&mut known, Duration::ZERO))).is_ready());
            assert!(poll!(std::pin::pin!(works(&mut new, Duration::ZERO))).is_pending());
        }
        permit.end();
        works(&mut new, Duration::ZERO).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn who_works_at_length_holds_up_nobody_who_waits_for_its_turn() {
        let scheduler = FairScheduler::new(1);
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel();
        let (mut dear, works_on) = (scheduler.budget(), scheduler.clone());
        let run_blocking = tokio::spawn(std::future::poll_fn(move |cx| {
            dear.poll(cx, |_| {
                let work = || {
                    begin.send(()).expect("the test waits");
                    ends.recv_timeout(Duration::from_secs(10)).is_ok()
                };
                Poll::Ready(works_on.run_blocking(work).expect("nobody else does"))
            })
        }));
        tokio::task::spawn_blocking(move || begun.recv()).await.expect("no panic").expect("it begins");
        let mut new = scheduler.budget();
        let permit = tokio::time::timeout(Duration::from_secs(5), works(&mut new, Duration::ZERO));
        assert!(permit.await.is_ok(), "a newcomer waits for what has a thread of its own");
        end.send(()).expect("it still works");
        assert!(run_blocking.await.expect("no panic"));
    }

    /// Returns in which order these are polled, when a permit comes back for which they all wait.
    async fn order(scheduler: &FairScheduler, accounts: Vec<(&'static str, CpuBudget)>) -> Vec<&'static str> {
        let mut request = scheduler.request_permit();
        let permit = std::future::poll_fn(|cx| request.poll(cx)).await;
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (name, mut budget) in accounts {
            let done = Arc::clone(&done);
            tasks.push(tokio::spawn(async move {
                works(&mut budget, Duration::ZERO).await;
                done.lock().push(name);
            }));
            // It has its place before the next one asks.
            tokio::task::yield_now().await;
        }
        permit.end();
        for task in tasks {
            task.await.expect("no panic");
        }
        Arc::into_inner(done).expect("the tasks are over").into_inner()
    }

    #[tokio::test]
    async fn a_connection_that_took_less_lately_goes_first() {
        let scheduler = FairScheduler::new(1);
        let took = |lately: f32| CpuBudget { lately, spent: MAX_DEBT, ..scheduler.budget() };
        let accounts = vec![
            ("greedy", took(0.1)),
            ("dear", took(0.05)),
            ("new", scheduler.budget()),
            ("busy", took(0.012)),
            ("new too", scheduler.budget()),
        ];
        assert_eq!(order(&scheduler, accounts).await, ["busy", "new", "new too", "dear", "greedy"]);
    }

    #[tokio::test]
    async fn a_place_that_is_given_up_leaves_its_permit_to_the_next() {
        let scheduler = FairScheduler::new(1);
        let permit = std::future::poll_fn(|cx| scheduler.request_permit().poll(cx)).await;
        let (mut first, mut second) = (scheduler.request_permit(), scheduler.request_permit());
        assert!(poll!(std::future::poll_fn(|cx| first.poll(cx))).is_pending());
        assert!(poll!(std::future::poll_fn(|cx| second.poll(cx))).is_pending());
        // It is the first one's, which does not come for it.
        drop(permit);
        drop(first);
        std::future::poll_fn(|cx| second.poll(cx)).await.end();
    }

    #[tokio::test]
    async fn who_has_spent_what_it_saved_waits_for_its_turn() {
        let scheduler = FairScheduler::new(1);
        let mut dear = saved(&scheduler);
        works(&mut dear, MAX_BUDGET * 2).await;
        let mut request = scheduler.request_permit();
        let permit = std::future::poll_fn(|cx| request.poll(cx)).await;
        assert!(poll!(std::pin::pin!(works(&mut dear, Duration::ZERO))).is_pending());
        // What it earned meanwhile does not let it leave the queue: the permit on its way would be lost.
        dear.as_of -= Duration::from_secs(10);
        assert!(poll!(std::pin::pin!(works(&mut dear, Duration::ZERO))).is_pending());
        permit.end();
        works(&mut dear, Duration::ZERO).await;
        assert!(dear.request.is_none());
        let mut request = scheduler.request_permit();
        assert!(
            poll!(std::future::poll_fn(|cx| request.poll(cx))).is_pending(),
            "it comes back after others"
        );
        std::future::poll_fn(|cx| request.poll(cx)).await.end();
    }
}
