//! Answers that take long or much memory: one at a time, with a bound on unread answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::fleet::LookError;

/// KiB of unread answers that block the next one. The last may exceed it, so that any size is possible: a
/// lane holds this much plus one answer.
const ROOM: u32 = 64 << 10;
/// Longest wait for room before a refusal.
const WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Lane {
    turn: Arc<Semaphore>,
    pub(super) unread: Unread,
}

impl Default for Lane {
    fn default() -> Self {
        let unread = Unread(Arc::new(Semaphore::new(ROOM as usize)));
        Self { turn: Arc::new(Semaphore::new(1)), unread }
    }
}

impl Lane {
    /// Runs work on its own thread, so that serving threads do not wait. The work must count the answer's
    /// bytes.
    ///
    /// # Errors
    ///
    /// Error of the work, or the reason why it did not run, or not to its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Unread) -> Result<T, LookError> + Send + 'static,
    ) -> Result<T, LookError> {
        let failed = |why: &str| LookError::Failed(why.to_owned());
        let deadline = Instant::now() + WAIT;
        let turn = loop {
            let room = timeout_at(deadline, self.unread.0.acquire()).await;
            drop(room.map_err(|_| LookError::Busy)?);
            let turn = Arc::clone(&self.turn).acquire_owned().await;
            let turn = turn.map_err(|_| failed("the relay stops"))?;
            // The work before may have taken the room.
            if self.unread.0.available_permits() > 0 {
                break turn;
            }
        };
        let (tell, told) = tokio::sync::oneshot::channel();
        let unread = self.unread.clone();
        let work = move || {
            // Held here: if the peer leaves, the wait ends but not the work.
            let _turn = turn;
            drop(tell.send(work(&unread)));
        };
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(work);
        thread.map_err(|_| failed("there is no thread to be had"))?;
        told.await.map_err(|_| failed("the relay failed; its log says why"))?
    }
}

#[derive(Clone, Debug)]
pub(super) struct Unread(Arc<Semaphore>);

impl Unread {
    /// Counts an answer's bytes until its last part is dropped. A larger one takes all the room left.
    pub(super) fn hold(&self, answer: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        let size = u32::try_from(answer.as_ref().len().div_ceil(1 << 10)).unwrap_or(ROOM);
        let permit = loop {
            let left = u32::try_from(self.0.available_permits()).unwrap_or(ROOM);
            // Another answer may have taken some of it.
            if let Ok(permit) = Arc::clone(&self.0).try_acquire_many_owned(size.min(left)) {
                break permit;
            }
        };
        Bytes::from_owner(Held { answer, _permit: permit })
    }
}

struct Held<A> {
    answer: A,
    _permit: OwnedSemaphorePermit,
}

impl<A: AsRef<[u8]>> AsRef<[u8]> for Held<A> {
    fn as_ref(&self) -> &[u8] {
        self.answer.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_read_make_room_for_others() {
        const ALL: usize = (ROOM as usize) << 10;
        let lane = Lane::default();
        let answer = |size| lane.run(move |unread| Ok(unread.hold(vec![0; size])));
        let first = answer(ALL - 1024).await.expect("there is room");
        let second = answer(ALL).await.expect("one may exceed it");
        let begun = Instant::now();
        assert!(matches!(answer(1).await, Err(LookError::Busy)));
        assert_eq!(begun.elapsed(), WAIT);
        let part = first.slice(..1);
        drop((first, second));
        let third = answer(1).await.expect("the second has gone");
        drop((part, third));
        assert_eq!(lane.unread.0.available_permits(), ROOM as usize);
    }

    /// A peer may ask and go away as often as it likes.
    #[tokio::test]
    async fn work_that_nobody_waits_for_keeps_its_turn() {
        let lane = Lane::default();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let abandoned = lane.run(move |_| Ok(ended.recv().is_err()));
        assert!(tokio::time::timeout(Duration::from_millis(50), abandoned).await.is_err());
        let mut next = std::pin::pin!(lane.run(|_| Ok(())));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut next).await.is_err(), "it runs still");
        drop(end);
        next.await.expect("it is its turn");
    }
}
