//! A limit on how many Envoys run at once, whatever the number of test threads.

use parking_lot::{Condvar, Mutex};

const SEATS: usize = 4;

static FREE: Mutex<usize> = Mutex::new(SEATS);
static GIVEN_BACK: Condvar = Condvar::new();

/// Seats taken by one test; given back when dropped.
pub(crate) struct Seats(usize);

impl Seats {
    /// Takes all the seats of a test at once: taking them one by one could deadlock two tests.
    pub(crate) fn take(count: usize) -> Self {
        assert!(count <= SEATS, "a test may run {SEATS} Envoys at most");
        let mut free = FREE.lock();
        GIVEN_BACK.wait_while(&mut free, |free| *free < count);
        *free -= count;
        Self(count)
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        *FREE.lock() += self.0;
        GIVEN_BACK.notify_all();
    }
}
