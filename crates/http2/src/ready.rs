//! Which streams of a connection were woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Woken {
    streams: Vec<u32>,
    task: Option<Waker>,
}

/// The streams of one connection that were woken since it last looked, each once.
#[derive(Debug, Default)]
pub(super) struct Ready(Mutex<Woken>);

impl Ready {
    /// Adds those that were woken to `to`, and wakes `task` for those that will be. Each must be told by
    /// [`Bell::answer`] before it is polled.
    pub(super) fn take(&self, to: &mut Vec<u32>, task: &Waker) {
        let mut woken = self.0.lock();
        to.append(&mut woken.streams);
        if !woken.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            woken.task = Some(task.clone());
        }
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
        self.rung.swap(false, Ordering::AcqRel);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            let mut woken = self.ready.0.lock();
            woken.streams.push(self.stream);
            if let Some(task) = &woken.task {
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
        let ready: Arc<Ready> = Arc::default();
        let bells = [1, 3].map(|stream| Bell::new(&ready, stream));
        for bell in bells.iter().cycle().take(6) {
            bell.wake_by_ref();
        }
        let mut woken = Vec::new();
        ready.take(&mut woken, Waker::noop());
        assert_eq!(woken, [1, 3]);
        bells[1].answer();
        bells.iter().for_each(Wake::wake_by_ref);
        ready.take(&mut woken, Waker::noop());
        assert_eq!(woken, [1, 3, 3]);
    }
}
