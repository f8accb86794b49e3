//! State that all long polls share.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::poll_slots::PollSlots;
use crate::rest::Book;
use crate::subscription::Memory;
use crate::telemetry;

/// What all polls share.
#[derive(Debug)]
pub struct PollState {
    pub(super) book: Arc<Book>,
    pub(super) memory: Memory,
    pub(super) slots: Arc<PollSlots>,
    pub(super) complaints: Mutex<telemetry::LogThrottle>,
    /// Whose turn it is to have a large request read.
    pub(super) readers: Arc<Semaphore>,
}

impl PollState {
    /// PollState that are answered out of a book.
    pub fn new(book: Arc<Book>) -> Self {
        Self {
            book,
            memory: Memory::default(),
            slots: Arc::default(),
            complaints: Mutex::default(),
            readers: Arc::new(Semaphore::new(1)),
        }
    }

    /// Lets go of what nobody asks for any more. To be called now and then.
    pub async fn tidy(&self) {
        self.book.tidy().await;
    }
}
