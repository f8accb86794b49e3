//! Turn of a connection for its first answer, while more clients come than can be answered at once.
//!
//! Owns the order of first answers, and the longest wait for one. Does not know the answers.
//!
//! After a restart a whole fleet asks at once. Without an order, all answers come late, many after their
//! deadline. So while others wait for a permit of the [`FairScheduler`](super::scheduler::FairScheduler), a
//! connection without an answer waits too, in the place of its [`Newcomer`] class. Clients that resume come
//! first, because they need little. A relay goes before clients that hold nothing, because it has clients of
//! its own.
//!
//! After [`LONGEST_FIRST_ANSWER_WAIT`](crate::fairness::LONGEST_FIRST_ANSWER_WAIT) the client has given up.
//! Its stream is refused, which costs next to nothing. Clients that hold nothing are the first to be refused.
//! A connection that is refused or put off keeps its place for its next request. A turn that the peer leaves
//! unused ends its place, which could otherwise be used again and again.
//!
//! Example: 10,000 clients without resources come at 0 s, and 2,000 that resume at 1 s. The relay answers
//! 1,000 in a second. It answers clients without resources until 1 s, all that resume until 3 s, then the
//! other 9,000. It refuses those left after 12 s.
//!
//! Invariant: a connection whose turn is due is polled, or in the queue for a permit.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fairness::{COLD_HANDICAP, RELAY_HANDICAP};
use crate::subscription::Session;

/// Class of a client without a first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newcomer {
    /// It holds resources of an earlier stream.
    Resuming,
    /// Relay that holds nothing.
    Relay,
    /// Client that holds nothing.
    Cold,
}

impl Newcomer {
    pub(super) fn of(session: &Session) -> Self {
        if session.resumes() {
            Self::Resuming
        } else if session.is_relay() {
            Self::Relay
        } else {
            Self::Cold
        }
    }

    /// Time for which later arrivals that hold more go first.
    const fn handicap(self) -> Duration {
        match self {
            Self::Resuming => Duration::ZERO,
            Self::Relay => RELAY_HANDICAP,
            Self::Cold => COLD_HANDICAP,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct FirstAnswer {
    state: AtomicU8,
    /// Place in the queue, from the first wait until an unused turn.
    place: Mutex<Option<Instant>>,
    /// Whether the turn was unused through no fault of the peer.
    keeps_place: AtomicBool,
}

/// No stream waits for its turn.
const IDLE: u8 = 0;
/// A stream has something to send and waits for a permit.
const DUE: u8 = 1;
/// The connection is being polled with that permit.
const TURN: u8 = 2;
/// A response was sent.
const GIVEN: u8 = 3;

impl FirstAnswer {
    fn state(&self) -> u8 {
        // All users run in the task of the connection.
        self.state.load(Ordering::Relaxed)
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }

    /// Whether the answer must wait for its turn if others wait for a permit.
    pub(super) fn needs_turn(&self) -> bool {
        self.state() == IDLE
    }

    pub(super) fn is_due(&self) -> bool {
        self.state() == DUE
    }

    pub(super) fn is_turn(&self) -> bool {
        self.state() == TURN
    }

    pub(super) fn request_turn(&self, class: Newcomer, now: Instant) {
        self.place.lock().get_or_insert_with(|| now + class.handicap());
        self.set(DUE);
    }

    /// Place in the queue, if a stream waits for its turn.
    pub(super) fn place(&self) -> Option<Instant> {
        if self.is_due() { *self.place.lock() } else { None }
    }

    /// Gives the turn to all streams of the connection, until [`end_turn`](Self::end_turn).
    pub(super) fn begin_turn(&self) {
        self.set(TURN);
    }

    /// Keeps the place after this turn without a response: the relay refused a stream or put it off.
    pub(super) fn keep_place(&self) {
        self.keeps_place.store(self.is_turn(), Ordering::Relaxed);
    }

    /// Ends the turn. If it was unused, the next stream asks anew.
    pub(super) fn end_turn(&self) {
        if self.is_turn() {
            if !self.keeps_place.swap(false, Ordering::Relaxed) {
                *self.place.lock() = None;
            }
            self.set(IDLE);
        }
    }

    pub(super) fn give(&self) {
        self.set(GIVEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_refused_keeps_its_place_and_one_that_was_answered_has_none() {
        let (answer, now) = (FirstAnswer::default(), Instant::now());
        answer.request_turn(Newcomer::Cold, now);
        let place = answer.place();
        assert!(place.is_some());
        answer.begin_turn();
        answer.keep_place();
        answer.end_turn();
        assert!(answer.needs_turn() && answer.place().is_none());
        answer.request_turn(Newcomer::Cold, now + Duration::from_secs(9));
        assert_eq!(answer.place(), place);
        answer.begin_turn();
        answer.give();
        answer.end_turn();
        assert!(!answer.needs_turn() && answer.place().is_none());
    }

    #[test]
    fn a_turn_that_is_not_used_ends_the_place() {
        let (answer, now) = (FirstAnswer::default(), Instant::now());
        answer.request_turn(Newcomer::Cold, now);
        let place = answer.place();
        answer.begin_turn();
        answer.end_turn();
        answer.request_turn(Newcomer::Cold, now + Duration::from_secs(9));
        assert!(answer.place() > place);
    }
}
