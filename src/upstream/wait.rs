//! Clock of the upstream tasks, and the events that they wait for.

use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

pub(super) use deltafan_transport::transfer::now;

use super::Tuned;
use crate::cache::{Cache, Wanted};

/// Detector of times in which this process did not run: a suspended process or machine, or busy cores. Such a
/// time is no silence of the control plane. Messages that arrived meanwhile are read before a timer is
/// judged.
///
/// Example: a timer is due in 20 s, and the process is stopped for 60 s. The wait of one slice (100 ms) ends
/// 59.9 s late, so no timer is judged for the next second.
#[derive(Debug)]
pub(super) struct Clock {
    /// Time of the next reading; `None` while nothing is waited for.
    wakes: Option<Instant>,
    /// Time before which no timer is judged.
    not_before: Instant,
}

impl Clock {
    /// Time between two readings, also long before a timer, because earlier pauses count too. The shorter one
    /// applies within `NEAR` of the timer.
    const SLICE: Duration = Duration::from_millis(100);
    const FAR_SLICE: Duration = Duration::from_secs(1);
    const NEAR: Duration = Duration::from_secs(30);
    /// Shortest and longest time to read everything that has arrived; longer after a long pause.
    const GRACE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

    pub(super) const fn new(now: Instant) -> Self {
        Self { wakes: None, not_before: now }
    }

    /// Waits until a timer must be judged, or for one slice.
    pub(super) async fn wait(&mut self, deadline: Option<Instant>) {
        let now = now();
        let deadline = deadline.map(|deadline| deadline.max(self.not_before));
        self.wakes = deadline.map(|deadline| {
            let slice = if deadline < now + Self::NEAR { Self::SLICE } else { Self::FAR_SLICE };
            deadline.min(now + slice)
        });
        sleep_until(self.wakes).await;
    }

    /// Whether a timer is due, and everything that arrived was read.
    pub(super) fn is_due(&self, deadline: Option<Instant>, now: Instant) -> bool {
        deadline.is_some_and(|deadline| deadline.max(self.not_before) <= now)
    }

    /// Returns the time in which the process did not run, if longer than scheduling takes. Call it for each
    /// event: the first one afterwards may not be the end of the wait.
    pub(super) fn overslept(&mut self, now: Instant) -> Option<Duration> {
        let wakes = self.wakes.replace(now + Self::SLICE)?;
        let late = now.saturating_duration_since(wakes);
        if late < Self::SLICE {
            return None;
        }
        self.not_before = now + late.clamp(Self::GRACE.0, Self::GRACE.1);
        Some(late)
    }
}

pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

/// Waits for changed settings. Cancel-safe: they are taken only by returning them.
pub(super) async fn next_tuning(tuned: &mut watch::Receiver<Tuned>) -> Tuned {
    if tuned.changed().await.is_ok() {
        return *tuned.borrow_and_update();
    }
    // The sender is gone.
    pending().await
}

/// Waits for a value that comes once, or never. Cancel-safe: it is taken only by returning it.
pub(super) async fn next_once<T>(once: &mut Option<oneshot::Receiver<T>>) -> T {
    let came = match once {
        Some(once) => once.await,
        None => pending().await,
    };
    *once = None;
    match came {
        Ok(value) => value,
        // The sender is gone.
        Err(_) => pending().await,
    }
}

/// Waits for changes of the clients' interest, and takes them; not before `not_before`. Ends with none for an operator's order, which
/// is due at once.
pub(super) async fn next_interest(cache: &Cache, not_before: Option<Instant>) -> Vec<Wanted> {
    if not_before.is_some() {
        sleep_until(not_before).await;
    }
    poll_fn(|context| {
        // Registered first, so that any later change is seen or wakes this task.
        cache.interest().register(context.waker());
        let interest = cache.take_interest();
        if interest.is_empty() && !cache.has_order() { Poll::Pending } else { Poll::Ready(interest) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause that ends before a timer counts whole, however far the timer is; and once.
    #[tokio::test(start_paused = true)]
    async fn a_pause_counts_whole_before_a_far_timer_and_whatever_event_ends_it() {
        let begun = now();
        let mut clock = Clock::new(begun);
        let wait = clock.wait(Some(begun + Duration::from_secs(80)));
        // Another event comes first.
        assert!(tokio::time::timeout(Duration::from_millis(10), wait).await.is_err());
        let pause = Duration::from_secs(60);
        tokio::time::advance(pause).await;
        let told = clock.overslept(now()).expect("a pause");
        assert!(told + Duration::from_secs(1) >= pause, "told of {told:?}");
        assert_eq!(clock.overslept(now()), None);
        tokio::time::advance(pause).await;
        assert!(clock.overslept(now()).is_some(), "in the middle of an event");
    }

    /// A wait ends after each slice, long before the grace period does.
    #[tokio::test(start_paused = true)]
    async fn no_timer_is_judged_before_the_grace_is_over() {
        let mut clock = Clock::new(now());
        let deadline = now() + Duration::from_secs(2);
        // One slice of a wait begins, and the process is stopped for a minute.
        clock.wakes = Some(now() + Clock::SLICE);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(clock.overslept(now()).is_some());
        let resumed = now();
        // As the client upstream waits.
        let judged = loop {
            clock.wait(Some(deadline)).await;
            if clock.overslept(now()).is_none() && clock.is_due(Some(deadline), now()) {
                break now();
            }
        };
        assert!(judged - resumed >= Clock::GRACE.1, "judged after {:?}", judged - resumed);
    }
}
