//! Wakers of the streams of a connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;

/// Streams of one connection that were woken since the last poll, each once.
#[derive(Debug, Default)]
pub(super) struct WokenStreams {
    /// In place: most connections have one stream, and each look elsewhere misses the processor's
    /// cache.
    streams: Mutex<SmallVec<[u32; 4]>>,
    has_any: AtomicBool,
    /// Always the same. Set before a stream is polled, so before anything can wake one.
    task: OnceLock<Waker>,
}

impl WokenStreams {
    /// Moves the woken streams to `to`, and wakes `task` for later ones. Call
    /// [`StreamWaker::answer`] for each before it is polled.
    pub(super) fn take(&self, to: &mut Vec<u32>, task: &Waker) {
        let known = self.task.get_or_init(|| task.clone());
        debug_assert!(known.data() == task.data(), "a connection is always polled by the same task");
        if self.has_any.load(Ordering::Acquire) {
            let mut streams = self.streams.lock();
            self.has_any.store(false, Ordering::Relaxed);
            to.extend(streams.drain(..));
        }
    }
}

#[derive(Debug)]
pub(super) struct StreamWaker {
    ready: Arc<WokenStreams>,
    stream: u32,
    rung: AtomicBool,
}

impl StreamWaker {
    pub(super) fn new(ready: &Arc<WokenStreams>, stream: u32) -> Arc<Self> {
        Arc::new(Self { ready: Arc::clone(ready), stream, rung: AtomicBool::new(false) })
    }

    /// Notes that the stream is about to be polled: the next wake-up counts again.
    pub(super) fn answer(&self) {
        self.rung.swap(false, Ordering::AcqRel);
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            let mut streams = self.ready.streams.lock();
            streams.push(self.stream);
            self.ready.has_any.store(true, Ordering::Release);
            drop(streams);
            if let Some(task) = self.ready.task.get() {
                task.wake_by_ref();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_told_once_until_it_was_answered() {
        let ready: Arc<WokenStreams> = Arc::default();
        let wakers = [1, 3].map(|stream| StreamWaker::new(&ready, stream));
        for waker_handle in wakers.iter().cycle().take(6) {
            waker_handle.wake_by_ref();
        }
        let mut woken = Vec::new();
        ready.take(&mut woken, Waker::noop());
        assert_eq!(woken, [1, 3]);
        wakers[1].answer();
        wakers.iter().for_each(Wake::wake_by_ref);
        ready.take(&mut woken, Waker::noop());
        assert_eq!(woken, [1, 3, 3]);
    }
}
