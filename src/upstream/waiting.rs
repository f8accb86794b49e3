//! The clock, and what the tasks of the upstream wait for.

use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::Instant;

use tokio::sync::watch;

use super::Tuning;
use crate::cache::{Cache, Wanted};

/// The clock; tests may hold tokio's.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits until then, or for ever.
pub(super) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

/// What the operator wants changed, once there is something. Cancel-safe: it is taken only by returning it.
pub(super) async fn tuned(tuning: &mut watch::Receiver<Option<Tuning>>) -> Tuning {
    while tuning.changed().await.is_ok() {
        if let Some(tuning) = *tuning.borrow_and_update() {
            return tuning;
        }
    }
    // Nobody can any more.
    pending().await
}

/// What the clients want changed, once there is something, and not before then.
pub(super) async fn wanted(cache: &Cache, not_before: Option<Instant>) -> Vec<Wanted> {
    if not_before.is_some() {
        at(not_before).await;
    }
    poll_fn(|context| {
        // Registered first: what comes in between is seen or wakes us, or both.
        cache.interest().register(context.waker());
        let interest = cache.take_interest();
        if interest.is_empty() { Poll::Pending } else { Poll::Ready(interest) }
    })
    .await
}
