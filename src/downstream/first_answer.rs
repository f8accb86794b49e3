//! Turn of a connection for its first answer, while more clients come than can be answered at once.
//!
//! Owns the order of first answers, and the longest wait for one. Does not know what an answer holds.
//!
//! After a restart of the relay a whole fleet asks at once. Without an order, all would be answered at about the time at which the
//! last one is, many of them after their deadline. So while others wait for a permit of the
//! [`FairScheduler`](super::scheduler::FairScheduler), a connection that has not been answered yet waits for one too, in the place
//! of its [`Newcomer`] class. Clients that resume come first: there is little to send to them, and they are soon out of the way.
//! A relay goes before clients that hold nothing, for it has clients of its own. Once answered, a connection has no class.
//!
//! An answer later than [`LONGEST_FIRST_ANSWER_WAIT`](crate::fairness::LONGEST_FIRST_ANSWER_WAIT) would come to a client that has
//! given up, so the stream is refused instead, which costs next to nothing. Clients that hold nothing have the last places, and are
//! the first to be refused. A connection that is refused, or put off, keeps its place: it is among the first when it asks again. A
//! turn that its clients do not use ends it: a peer could go before others again and again with an old place.
//!
//! Example: at 0 s 10,000 clients without resources come, at 1 s 2,000 that resume. 1,000 are answered in a second. Until 1 s
//! clients without resources are answered, from 1 to 3 s all that resume, then the other 9,000; those that are left after 12 s are
//! refused.
//!
//! Invariant: a connection whose turn is due is polled, or in the queue for a permit.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fairness::{COLD_HANDICAP, RELAY_HANDICAP};
use crate::subscription::Session;

/// Class of a client that has not been answered yet.
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

    /// Time for which those that come later and hold more go first.
    const fn handicap(self) -> Duration {
        match self {
            Self::Resuming => Duration::ZERO,
            Self::Relay => RELAY_HANDICAP,
            Self::Cold => COLD_HANDICAP,
        }
    }
}

/// Progress of a connection to its first answer.
#[derive(Debug, Default)]
pub(super) struct FirstAnswer {
    state: AtomicU8,
    /// Place in the queue, from the first time that it waits until a turn of which no use is made.
    place: Mutex<Option<Instant>>,
    /// Whether the turn was not used for no fault of the peer.
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
        // All who use it run in the task of the connection.
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

    /// Asks for a turn.
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

    /// Has the connection keep its place after this turn, if it is one, though no response was sent: the relay refused a stream or put
    /// it off.
    pub(super) fn keep_place(&self) {
        self.keeps_place.store(self.is_turn(), Ordering::Relaxed);
    }

    /// Ends the turn. If no stream has used it, the next one asks anew.
    pub(super) fn end_turn(&self) {
        if self.is_turn() {
            if !self.keeps_place.swap(false, Ordering::Relaxed) {
                *self.place.lock() = None;
            }
            self.set(IDLE);
        }
    }

    /// Notes that a response was sent.
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
