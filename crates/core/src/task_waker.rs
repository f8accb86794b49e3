//! Waker of one task, for as long as that lives.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::task::Waker;

/// Waker of one task. It is set once and stays after a wake-up, so a task that looks again and again pays nothing.
#[derive(Debug, Default)]
pub struct TaskWaker(OnceLock<Waker>);

impl TaskWaker {
    /// Sets the task; later calls must come from the same one. Register first, then check for work.
    pub fn register(&self, waker: &Waker) {
        if let Some(known) = self.0.get() {
            debug_assert!(known.data() == waker.data(), "it belongs to one task");
        } else if self.0.set(waker.clone()).is_ok() {
            // Either the check that follows finds the work, or `wake` finds the task.
            fence(Ordering::SeqCst);
        }
    }

    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        self.0.get().into_iter().for_each(Waker::wake_by_ref);
    }
}
