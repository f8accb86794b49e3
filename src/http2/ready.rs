//! Which streams of a connection were woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// The streams of one connection that were woken since it last looked, each once.
#[derive(Debug, Default)]
pub(super) struct Ready {
    woken: Mutex<Vec<u32>>,
    task: AtomicWaker,
}

impl Ready {
    /// Whom to wake; register first, look after.
    pub(super) fn register(&self, task: &Waker) {
        self.task.register(task);
    }

    /// Adds those that were woken to `to`. Each must be told by [`Bell::answer`] before it is polled.
    pub(super) fn take(&self, to: &mut Vec<u32>) {
        to.append(&mut self.woken.lock());
    }
}

/// What wakes one stream, which wakes its connection.
#[derive(Debug)]
pub(super) struct Bell {
    ready: Arc<Ready>,
    stream: u32,
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new(ready: &Arc<Ready>, stream: u32) -> Arc<Self> {
        Arc::new(Self { ready: Arc::clone(ready), stream, rung: AtomicBool::new(false) })
    }

    /// The stream is about to be polled: what wakes it from here on wakes it again.
    pub(super) fn answer(&self) {
        self.rung.store(false, Ordering::Release);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.ready.woken.lock().push(self.stream);
            self.ready.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_told_once_until_it_was_answered() {
        let ready: Arc<Ready> = Arc::default();
        let bells = [1, 3].map(|stream| Bell::new(&ready, stream));
        for bell in bells.iter().cycle().take(6) {
            bell.wake_by_ref();
        }
        let mut woken = Vec::new();
        ready.take(&mut woken);
        assert_eq!(woken, [1, 3]);
        bells[1].answer();
        bells.iter().for_each(Wake::wake_by_ref);
        ready.take(&mut woken);
        assert_eq!(woken, [1, 3, 3]);
    }
}
