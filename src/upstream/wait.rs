//! The clock, and what the tasks of the upstream wait for.

use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Tuning;
use crate::cache::{Cache, Wanted};

/// The clock; tests may hold tokio's.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Notices when this process did not run: it was stopped, its machine was, or its cores were busy. Such a time is no silence
/// of the origin, and what has arrived meanwhile is to be read before a timer is judged.
#[derive(Debug)]
pub(super) struct Clock {
    /// When the wait that began last is over.
    wakes: Option<Instant>,
    /// No timer is judged before then.
    not_before: Instant,
}

impl Clock {
    /// While a timer is this near, the clock is looked at in every slice: a pause that ends before the timer counts too.
    const NEAR: Duration = Duration::from_secs(30);
    const SLICE: Duration = Duration::from_millis(100);
    /// Time within which everything that has arrived is read; it has to be longer after a long pause.
    const GRACE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

    pub(super) const fn new(now: Instant) -> Self {
        Self { wakes: None, not_before: now }
    }

    /// Waits until a timer is to be judged, or for a slice of that time.
    pub(super) async fn wait(&mut self, deadline: Option<Instant>) {
        let now = now();
        let deadline = deadline.map(|deadline| deadline.max(self.not_before));
        let is_near = deadline.is_some_and(|deadline| deadline < now + Self::NEAR);
        let wakes = deadline.map(|deadline| if is_near { deadline.min(now + Self::SLICE) } else { deadline });
        // A wait that is begun again before its time is the same wait.
        self.wakes =
            wakes.map(|wakes| self.wakes.filter(|_| is_near).map_or(wakes, |begun| begun.min(wakes)));
        sleep_until(self.wakes).await;
    }

    /// Whether a timer is to be judged: it is over, and what has arrived was read.
    pub(super) fn is_due(&self, deadline: Option<Instant>, now: Instant) -> bool {
        deadline.is_some_and(|deadline| deadline.max(self.not_before) <= now)
    }

    /// For how long the process did not run, if that was longer than it takes to be scheduled.
    pub(super) fn overslept(&mut self, now: Instant) -> Option<Duration> {
        let wakes = self.wakes.take()?;
        let late = now.saturating_duration_since(wakes);
        if late < Self::SLICE {
            return None;
        }
        self.not_before = now + late.clamp(Self::GRACE.0, Self::GRACE.1);
        Some(late)
    }
}

/// Waits until then, or for ever.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

/// What the operator wants changed, once there is something. Cancel-safe: it is taken only by returning it.
pub(super) async fn next_tuning(tuning: &mut watch::Receiver<Option<Tuning>>) -> Tuning {
    while tuning.changed().await.is_ok() {
        if let Some(tuning) = *tuning.borrow_and_update() {
            return tuning;
        }
    }
    // Nobody can any more.
    pending().await
}

/// What the clients want changed, once there is something, and not before then.
pub(super) async fn next_interest(cache: &Cache, not_before: Option<Instant>) -> Vec<Wanted> {
    if not_before.is_some() {
        sleep_until(not_before).await;
    }
    poll_fn(|context| {
        // Registered first: what comes in between is seen or wakes us, or both.
        cache.interest().register(context.waker());
        let interest = cache.take_interest();
        if interest.is_empty() { Poll::Pending } else { Poll::Ready(interest) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait ends after each slice, long before the grace does.
    #[tokio::test(start_paused = true)]
    async fn no_timer_is_judged_before_the_grace_is_over() {
        let mut clock = Clock::new(now());
        let deadline = now() + Duration::from_secs(2);
        // One slice of a wait begins, and the process is stopped for a minute.
        clock.wakes = Some(now() + Clock::SLICE);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(clock.overslept(now()).is_some());
        let resumed = now();
        // As client.rs does.
        let judged = loop {
            clock.wait(Some(deadline)).await;
            if clock.overslept(now()).is_none() && clock.is_due(Some(deadline), now()) {
                break now();
            }
        };
        assert!(judged - resumed >= Clock::GRACE.1, "judged after {:?}", judged - resumed);
    }
}
