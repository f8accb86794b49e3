//! Fair scheduling of CPU time between connections, and a timer that allocates nothing while unset.
//!
//! Each connection has a CPU budget, capped at 5 ms. It refills at 1/128 of a thread's time (7.8 ms per
//! second). A client that only receives and acknowledges changes never needs more, and is polled at once. A
//! new connection, or one with less than 1 ms left, needs a permit for each poll. One that has ended needs a
//! permit to be dropped, unless it is aborted. There are permits for half of the threads. A permit comes back
//! when every ready task was polled and sockets were read, or when the poll moves to its own thread. So other
//! clients wait for at most one poll or drop, however many connections are new, expensive or at their end.
//!
//! Among waiting connections, the one with the least recent CPU time goes first. Each recent millisecond puts
//! it behind arrivals of the next 10 ms, and behind those of the next second at most. So no connection waits
//! for ever.
//!
//! Example: a poll takes 4.5 ms of a full budget. The 0.5 ms left are too little. After 64 ms the connection
//! has earned another 0.5 ms and is polled at once again.
//!
//! Example: twenty connections never stop asking. Each takes 50 ms a second, a handicap of 500 ms. A client
//! whose changes cost 12 ms a second has one of 120 ms. It goes before all that have not waited 380 ms
//! longer.
//!
//! Invariant: a waiting connection is woken when it has a permit, and holds none between two polls.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::time::Sleep;

use crate::fairness::{
    DECAY_SECONDS, HANDICAP, MAX_BUDGET, MAX_DEBT, MAX_HANDICAP, MIN_BUDGET, NEWCOMER_SECONDS,
    RECLAIM_QUEUE_LEN, REFILL_DIVISOR, RETRY,
};

thread_local! {
    /// Permit of the connection that this thread polls.
    static PERMIT: Cell<Option<Permit>> = const { Cell::new(None) };
}

/// CPU time of a process. Clones share it.
#[derive(Clone, Debug)]
pub struct FairScheduler {
    permits: Arc<PermitPool>,
    /// Right to occupy a thread for a while.
    aside: Arc<Semaphore>,
    /// Queue of the thread that drops large values. The thread ends with the last sender.
    reclaim_queue: mpsc::SyncSender<Box<dyn Send>>,
}

impl FairScheduler {
    /// Creates a scheduler for a runtime with `threads` workers.
    pub fn new(threads: usize) -> Self {
        let (reclaim_queue, gone) = mpsc::sync_channel::<Box<dyn Send>>(RECLAIM_QUEUE_LEN);
        // Runs at normal priority: dropping takes contended locks.
        let drop_in_background = move || gone.into_iter().for_each(drop);
        // Without the thread, the channel is closed.
        _ = std::thread::Builder::new().name("closing".to_owned()).spawn(drop_in_background);
        Self {
            permits: PermitPool::new((threads / 2).max(1)),
            aside: Arc::new(Semaphore::new(threads)),
            reclaim_queue,
        }
    }

    /// Waits until every connection that now wants a permit has had one.
    pub(super) async fn yield_to_waiting(&self) {
        let (now, mut request) = (Instant::now(), self.request_permit());
        std::future::poll_fn(|cx| request.poll_since(now, cx)).await.end();
    }

    pub(super) fn is_contended(&self) -> bool {
        !self.permits.0.lock().waiting.is_empty()
    }

    pub(crate) fn request_permit(&self) -> PermitRequest {
        PermitRequest { of: Arc::clone(&self.permits), place: None }
    }

    /// Runs long work; other tasks of this thread move elsewhere. `None` if one such thread per worker
    /// already runs: try again after [`RETRY`]. A queue would stall behind a task that does not return for
    /// its place.
    pub(super) fn run_blocking<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Some(work());
        }
        let _permit = self.aside.try_acquire().ok()?;
        // The permit goes on: the work has left the shared threads.
        PERMIT.take().into_iter().for_each(Permit::end);
        Some(tokio::task::block_in_place(work))
    }

    /// Runs work here, or by [`run_blocking`](Self::run_blocking) if it may take long.
    pub(super) fn run<T>(&self, is_long: bool, work: impl FnOnce() -> T) -> Option<T> {
        if is_long { self.run_blocking(work) } else { Some(work()) }
    }

    /// Runs work as [`run`](Self::run) does, once a thread is free.
    pub(super) async fn run_when_free<T>(&self, is_long: bool, work: impl FnOnce() -> T) -> T {
        let mut work = Some(work);
        loop {
            if let Some(done) = self.run(is_long, || work.take().map(|work| work())).flatten() {
                return done;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Drops a value on another thread, or here if that thread is too busy.
    pub(super) fn drop_in_background(&self, gone: impl Send + 'static) {
        _ = self.reclaim_queue.try_send(Box::new(gone));
    }

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

/// Value that is dropped in the background if that may take long.
#[derive(Debug)]
pub(super) struct BackgroundDrop<T: Send + 'static> {
    /// Present until the drop.
    value: Option<T>,
    /// `None` if the drop is short.
    scheduler: Option<FairScheduler>,
}

impl<T: Send + 'static> BackgroundDrop<T> {
    pub(super) fn new(value: T, scheduler: Option<FairScheduler>) -> Self {
        Self { value: Some(value), scheduler }
    }
}

impl<T: Send + 'static> Deref for BackgroundDrop<T> {
    type Target = T;

    #[expect(clippy::expect_used, reason = "it is taken out by drop alone")]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("not dropped yet")
    }
}

impl<T: Send + 'static> Drop for BackgroundDrop<T> {
    fn drop(&mut self) {
        if let Some(scheduler) = &self.scheduler {
            scheduler.drop_in_background(self.value.take());
        }
    }
}

/// Free permits, and the connections that wait for one.
#[derive(Debug)]
struct PermitPool(Mutex<Waitlist>);

#[derive(Debug)]
struct Waitlist {
    free: usize,
    /// Waiting connections. One that was removed has a permit.
    waiting: BTreeMap<Place, Waker>,
    newest: u64,
}

/// Time after which no later connection goes first, and a number.
type Place = (Instant, u64);

impl PermitPool {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Waitlist { free: count, waiting: BTreeMap::new(), newest: 0 })))
    }

    fn release(&self) {
        let mut list = self.0.lock();
        let next = list.waiting.pop_first();
        list.free += usize::from(next.is_none());
        drop(list);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

#[derive(Debug)]
pub(crate) struct PermitRequest {
    of: Arc<PermitPool>,
    place: Option<Place>,
}

impl PermitRequest {
    /// Waits as a connection that was new at `came`.
    pub(crate) fn poll_since(&mut self, came: Instant, cx: &Context<'_>) -> Poll<Permit> {
        self.poll_as((came, NEWCOMER_SECONDS), cx.waker())
    }

    /// Waits as a connection that came then and took `taken` seconds lately.
    fn poll_as(&mut self, (came, taken): (Instant, f32), waker: &Waker) -> Poll<Permit> {
        let mut list = self.of.0.lock();
        match self.place {
            Some(place) => {
                if let Some(waiting) = list.waiting.get_mut(&place) {
                    waiting.clone_from(waker);
                    return Poll::Pending;
                }
                self.place = None;
            }
            None if list.free > 0 => list.free -= 1,
            None => {
                list.newest += 1;
                let handicap = Duration::from_secs_f32(taken * HANDICAP).min(MAX_HANDICAP);
                let place = (came + handicap, list.newest);
                list.waiting.insert(place, waker.clone());
                self.place = Some(place);
                return Poll::Pending;
            }
        }
        Poll::Ready(Permit(Arc::clone(&self.of)))
    }
}

impl Drop for PermitRequest {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        if self.of.0.lock().waiting.remove(&place).is_none() {
            // The permit was on its way here.
            self.of.release();
        }
    }
}

/// Permit for one poll. On drop the next connection gets it.
#[derive(Debug)]
#[must_use = "dropped, it lets the next one go on before others had their turn"]
pub(crate) struct Permit(Arc<PermitPool>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Permit {
    /// Gives it back once other tasks have run.
    pub(crate) fn end(self) {
        tokio::spawn(async move {
            // Behind all ready tasks: a task that wakes itself goes to the end of the queue.
            let mut is_behind = false;
            std::future::poll_fn(|cx| {
                if std::mem::replace(&mut is_behind, true) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            // Then behind the tasks that sockets wake.
            tokio::task::yield_now().await;
            drop(self);
        });
    }
}

/// Ends the permit after a poll, also after a panic.
struct ReleaseAfterPoll;

impl Drop for ReleaseAfterPoll {
    fn drop(&mut self) {
        PERMIT.take().into_iter().for_each(Permit::end);
    }
}

#[derive(Debug)]
pub(super) struct CpuBudget {
    scheduler: FairScheduler,
    /// Time spent beyond the time earned until `as_of`. The budget left is [`MAX_BUDGET`] less this.
    spent: Duration,
    as_of: Instant,
    /// Seconds of recent CPU time; decays.
    lately: f32,
    request: Option<PermitRequest>,
}

impl CpuBudget {
    /// Polls at once, or with a permit, and charges the time. With a `place` it needs a permit and waits as a
    /// connection of that time.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        place: Option<Instant>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let start = Instant::now();
        let mut permit = None;
        // A connection stays in the queue whatever it has earned: the permit may be on its way.
        if self.request.is_some() || self.has_little(start) || place.is_some() {
            let request = self.request.get_or_insert_with(|| self.scheduler.request_permit());
            let came = place.unwrap_or(start);
            permit = Some(ready!(request.poll_as((came, self.lately), cx.waker())));
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

/// Timer for a deadline that may change with each poll.
#[derive(Debug, Default)]
pub(super) struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Returns `Ready` at `deadline`; never without one.
    pub(super) fn poll(&mut self, deadline: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = deadline.map(tokio::time::Instant::from_std) else {
            self.0 = None;
            return Poll::Pending;
        };
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if sleep.deadline() != deadline {
            sleep.as_mut().reset(deadline);
        }
        sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::super::connection::FirstAnswer;
    use super::*;
    use crate::fairness::COLD_HANDICAP;

    /// Budget of a connection that has been idle for a second.
    fn saved(scheduler: &FairScheduler) -> CpuBudget {
        CpuBudget { as_of: Instant::now() - Duration::from_secs(1), ..scheduler.budget() }
    }

    async fn works(budget: &mut CpuBudget, takes: Duration) {
        std::future::poll_fn(|cx| {
            budget.poll(cx, None, |_| {
                std::thread::sleep(takes);
                Poll::Ready(())
            })
        })
        .await;
    }

    #[tokio::test]
    async fn a_saved_budget_needs_no_permit_and_a_new_connection_waits_for_one() {
        let scheduler = FairScheduler::new(1);
        let mut request = scheduler.request_permit();
        let permit = std::future::poll_fn(|cx| request.poll_since(Instant::now(), cx)).await;
        let (mut known, mut new) = (saved(&scheduler), scheduler.budget());
        for _ in 0..20 {
            assert!(poll!(std::pin::pin!(works(&mut known, Duration::ZERO))).is_ready());
            assert!(poll!(std::pin::pin!(works(&mut new, Duration::ZERO))).is_pending());
        }
        permit.end();
        works(&mut new, Duration::ZERO).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_holds_no_permit() {
        let scheduler = FairScheduler::new(1);
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel();
        let (mut dear, works_on) = (scheduler.budget(), scheduler.clone());
        let run_blocking = tokio::spawn(std::future::poll_fn(move |cx| {
            dear.poll(cx, None, |_| {
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

    /// Returns the order in which connections are polled that all wait for one permit, those with a place in it.
    async fn order(
        scheduler: &FairScheduler,
        budgets: Vec<(&'static str, CpuBudget, Option<Instant>)>,
    ) -> Vec<&'static str> {
        let mut request = scheduler.request_permit();
        let permit = std::future::poll_fn(|cx| request.poll_since(Instant::now(), cx)).await;
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (name, mut budget, place) in budgets {
            let done = Arc::clone(&done);
            tasks.push(tokio::spawn(async move {
                std::future::poll_fn(|cx| budget.poll(cx, place, |_| Poll::Ready(()))).await;
                done.lock().push(name);
            }));
            // It has its place before the next one comes.
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
        let budgets = vec![
            ("greedy", took(0.1)),
            ("dear", took(0.05)),
            ("new", scheduler.budget()),
            ("busy", took(0.012)),
            ("new too", scheduler.budget()),
        ];
        let budgets = budgets.into_iter().map(|(name, budget)| (name, budget, None)).collect();
        assert_eq!(order(&scheduler, budgets).await, ["busy", "new", "new too", "dear", "greedy"]);
    }

    #[tokio::test]
    async fn first_answers_are_given_by_class_and_then_in_the_order_of_arrival() {
        let scheduler = FairScheduler::new(1);
        let now = Instant::now();
        let newcomer = |name, handicap, came: u64| {
            let answer = FirstAnswer::default();
            answer.request_turn(now + Duration::from_secs(came) + handicap);
            (name, saved(&scheduler), answer.place())
        };
        let budgets = vec![
            newcomer("cold", COLD_HANDICAP, 0),
            newcomer("cold, later", COLD_HANDICAP, 1),
            newcomer("resuming", Duration::ZERO, 2),
            newcomer("resuming, much later", Duration::ZERO, 6),
        ];
        let expected = ["resuming", "cold", "cold, later", "resuming, much later"];
        assert_eq!(order(&scheduler, budgets).await, expected);
    }

    #[tokio::test]
    async fn a_place_that_is_given_up_leaves_its_permit_to_the_next() {
        let scheduler = FairScheduler::new(1);
        let permit =
            std::future::poll_fn(|cx| scheduler.request_permit().poll_since(Instant::now(), cx)).await;
        let (mut first, mut second) = (scheduler.request_permit(), scheduler.request_permit());
        assert!(poll!(std::future::poll_fn(|cx| first.poll_since(Instant::now(), cx))).is_pending());
        assert!(poll!(std::future::poll_fn(|cx| second.poll_since(Instant::now(), cx))).is_pending());
        // The first one has it now, and does not come for it.
        drop(permit);
        drop(first);
        std::future::poll_fn(|cx| second.poll_since(Instant::now(), cx)).await.end();
    }

    #[tokio::test]
    async fn a_connection_without_budget_waits_for_a_permit() {
        let scheduler = FairScheduler::new(1);
        let mut dear = saved(&scheduler);
        works(&mut dear, MAX_BUDGET * 2).await;
        let mut request = scheduler.request_permit();
        let permit = std::future::poll_fn(|cx| request.poll_since(Instant::now(), cx)).await;
        assert!(poll!(std::pin::pin!(works(&mut dear, Duration::ZERO))).is_pending());
        // Time earned meanwhile does not let it leave the queue: the permit on its way would be lost.
        dear.as_of -= Duration::from_secs(10);
        assert!(poll!(std::pin::pin!(works(&mut dear, Duration::ZERO))).is_pending());
        permit.end();
        works(&mut dear, Duration::ZERO).await;
        assert!(dear.request.is_none());
        let mut request = scheduler.request_permit();
        assert!(
            poll!(std::future::poll_fn(|cx| request.poll_since(Instant::now(), cx))).is_pending(),
            "it comes back after others"
        );
        std::future::poll_fn(|cx| request.poll_since(Instant::now(), cx)).await.end();
    }
}
