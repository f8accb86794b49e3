//! Memory of answers that their peers have not read yet, and turns of the work behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::connections::Connections;

/// Bytes of unread answers from which on no other is worked out. The last one may exceed it, so that answers of any size are
/// possible: a lane holds this much and one answer.
const ROOM: usize = 64 << 20;
/// Time that a request waits for room before it is refused.
const WAIT: Duration = Duration::from_secs(5);
/// Time between two looks for an answer that may be given up, while a request waits for room.
const LOOK: Duration = Duration::from_secs(1);

/// Reason for which there is no answer.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Other answers take all the room, and their peers read them.
    Busy,
    /// The work did not run to its end, with the reason.
    Failed(&'static str),
}

/// Requests that are worked on one at a time, and the answers to them.
#[derive(Debug)]
pub(super) struct Lane {
    turn: Arc<Semaphore>,
    unread: Arc<Unread>,
    connections: Arc<Connections>,
}

impl Lane {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), unread: Arc::default(), connections }
    }

    pub(super) const fn unread(&self) -> &Arc<Unread> {
        &self.unread
    }

    /// Runs work on a thread of its own: the threads that serve clients do not wait for it. It must count the bytes of the answer.
    ///
    /// # Errors
    ///
    /// Reason for which it did not run, or not to its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Unread>) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let deadline = Instant::now() + WAIT;
        let turn = loop {
            self.make_room(deadline).await?;
            let turn = Arc::clone(&self.turn).acquire_owned().await;
            let turn = turn.map_err(|_| Refusal::Failed("the relay stops"))?;
            // The work before may have taken it.
            if self.unread.has_room() {
                break turn;
            }
        };
        let (tell, told) = tokio::sync::oneshot::channel();
        let unread = Arc::clone(&self.unread);
        let work = move || {
            // Held here: a peer that goes away ends the wait, and not the work.
            let _turn = turn;
            drop(tell.send(work(&unread)));
        };
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(work);
        thread.map_err(|_| Refusal::Failed("there is no thread to be had"))?;
        told.await.map_err(|_| Refusal::Failed("the relay failed; its log says why"))
    }

    /// Waits for room. Peers that do not read must not shut operators out: their connections are closed, one after the other.
    async fn make_room(&self, deadline: Instant) -> Result<(), Refusal> {
        while Instant::now() < deadline {
            let look = deadline.min(Instant::now() + LOOK);
            if timeout_at(look, self.unread.until_room()).await.is_ok() {
                return Ok(());
            }
            self.connections.close_unread();
        }
        Err(Refusal::Busy)
    }
}

/// Count of the bytes of answers that exist.
#[derive(Debug, Default)]
pub(super) struct Unread {
    bytes: AtomicUsize,
    freed: Notify,
}

impl Unread {
    /// Counts the bytes of an answer until the last part of it is dropped.
    pub(super) fn hold(self: &Arc<Self>, answer: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        self.bytes.fetch_add(answer.as_ref().len(), Ordering::AcqRel);
        Bytes::from_owner(Held { answer, unread: Arc::clone(self) })
    }

    fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Acquire) < ROOM
    }

    async fn until_room(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Enabled before the check, so that the last answer is not missed.
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }
}

/// Bytes that are counted.
struct Held<A: AsRef<[u8]>> {
    answer: A,
    unread: Arc<Unread>,
}

impl<A: AsRef<[u8]>> AsRef<[u8]> for Held<A> {
    fn as_ref(&self) -> &[u8] {
        self.answer.as_ref()
    }
}

impl<A: AsRef<[u8]>> Drop for Held<A> {
    fn drop(&mut self) {
        self.unread.bytes.fetch_sub(self.answer.as_ref().len(), Ordering::AcqRel);
        self.unread.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_read_make_room_for_others() {
        let lane = Lane::new(Arc::default());
        let answer = |size| lane.run(move |unread| unread.hold(vec![0; size]));
        let first = answer(ROOM - 1).await.expect("there is room");
        let second = answer(ROOM).await.expect("one may exceed it");
        let begun = Instant::now();
        assert!(matches!(answer(1).await, Err(Refusal::Busy)));
        assert_eq!(begun.elapsed(), WAIT);
        let part = first.slice(..1);
        drop((first, second));
        let third = answer(1).await.expect("the second has gone");
        drop((part, third));
        assert_eq!(lane.unread.bytes.load(Ordering::Acquire), 0);
    }

    /// A peer may ask and go away as often as it likes.
    #[tokio::test]
    async fn work_that_nobody_waits_for_keeps_its_turn() {
        let lane = Lane::new(Arc::default());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let abandoned = lane.run(move |_| ended.recv().is_err());
        assert!(tokio::time::timeout(Duration::from_millis(50), abandoned).await.is_err());
        let mut next = std::pin::pin!(lane.run(|_| ()));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut next).await.is_err(), "it runs still");
        drop(end);
        next.await.expect("it is its turn");
    }
}
