//! State that all long polls share.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::poll_slots::PollSlots;
use crate::rest::Book;
use crate::subscription::PollHistory;
use crate::telemetry;

/// State of all long polls.
#[derive(Debug)]
pub struct PollState {
    pub(super) book: Arc<Book>,
    pub(super) memory: PollHistory,
    pub(super) slots: Arc<PollSlots>,
    pub(super) throttle: Mutex<telemetry::LogThrottle>,
    /// Permit to decode a large request: one at a time.
    pub(super) readers: Arc<Semaphore>,
}

impl PollState {
    /// Creates the state for polls that `book` answers.
    pub fn new(book: Arc<Book>) -> Self {
        Self {
            book,
            memory: PollHistory::default(),
            slots: Arc::default(),
            throttle: Mutex::default(),
            readers: Arc::new(Semaphore::new(1)),
        }
    }

    /// Drops cached answers that nobody asks for any more. Call it now and then.
    pub async fn tidy(&self) {
        self.book.tidy().await;
    }
}
