//! Gate of a type: at most one response is unanswered, until its timeout.

use std::time::{Duration, Instant};

use super::super::session_config::SessionConfig;
use super::{InFlight, StreamType};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::subscription) enum Answered {
    Newest,
    /// The response before the newest, unanswered so far.
    Overtaken,
    /// No response, or another one.
    Other,
}

impl StreamType {
    /// See R-SotW-04.
    pub(in crate::subscription) fn is_newest(&self, nonce: &[u8]) -> bool {
        self.newest_nonce.is_some_and(|newest| newest.text()[..] == *nonce)
    }

    /// Records the answer in a request's nonce.
    pub(in crate::subscription) fn match_nonce(&mut self, nonce: &[u8], now: Instant) -> Answered {
        if self.is_newest(nonce) {
            self.open_gate();
            return Answered::Newest;
        }
        if !nonce.is_empty() {
            self.answered_late(now);
        }
        if self.own().overtaken.is_some_and(|overtaken| overtaken.text()[..] == *nonce) {
            self.own_mut().overtaken = None;
            self.trim();
            return Answered::Overtaken;
        }
        Answered::Other
    }

    pub(in crate::subscription) fn open_gate(&mut self) {
        self.in_flight = None;
        self.unanswered = None;
        if let Some(own) = &mut self.own {
            (own.wildcard_left, own.overtaken) = (None, None);
            self.trim();
        }
    }

    /// Whether the client has not accepted the newest response, or may not have.
    pub(in crate::subscription) const fn is_unaccepted(&self) -> bool {
        self.rejected || self.is_unanswered()
    }

    /// Whether the client may not have read all that was sent.
    pub(in crate::subscription) const fn is_unanswered(&self) -> bool {
        self.in_flight.is_some() || self.unanswered.is_some()
    }

    /// The client is slow, but it does answer.
    pub(in crate::subscription) fn answered_late(&mut self, now: Instant) {
        self.unanswered = self.unanswered.map(|_| now);
    }

    /// Whether the client has answered nothing for too long. Without subscriptions it owes nothing.
    pub(in crate::subscription) fn owes_answer(&self, now: Instant, rules: &SessionConfig) -> bool {
        self.unanswered.is_some_and(|since| now >= since + rules.unacked_timeout)
            && !self.subscription().is_empty()
    }

    /// Returns false for a repeated NACK.
    pub(in crate::subscription) const fn reject(&mut self) -> bool {
        !std::mem::replace(&mut self.rejected, true)
    }

    pub(in crate::subscription) const fn is_rejected(&self) -> bool {
        self.rejected
    }

    /// Starts the clock of the newest response.
    pub(in crate::subscription) fn on_flushed(&mut self, now: Instant) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.taken.get_or_insert(now);
            self.unanswered.get_or_insert(now);
        }
    }

    /// `Err` while the gate is closed, with its opening time; `Err(None)` if the transport has not
    /// taken the response.
    pub(in crate::subscription) fn gate(
        &mut self,
        now: Instant,
        rules: &SessionConfig,
    ) -> Result<(), Option<Instant>> {
        let Some(in_flight) = self.in_flight else { return Ok(()) };
        let Some(taken) = in_flight.taken else { return Err(None) };
        let opens = taken + rules.ack_timeout;
        if now < opens {
            return Err(Some(opens));
        }
        self.in_flight = None;
        Ok(())
    }

    /// Until when the newest response may stay unanswered, if less than `wait` has passed; `None`
    /// inside if the transport has not taken it.
    pub(in crate::subscription) fn unanswered_within(
        &self,
        wait: Duration,
        now: Instant,
    ) -> Option<Option<Instant>> {
        if wait.is_zero() {
            return None;
        }
        let since = match self.in_flight {
            Some(in_flight) => in_flight.taken,
            None => Some(self.unanswered?),
        };
        let until = since.map(|since| since + wait);
        until.is_none_or(|until| now < until).then_some(until)
    }

    /// When the transport took the unanswered newest response, if something changed since.
    pub(in crate::subscription) fn unanswered_with_news(&self) -> Option<Instant> {
        let whole = !self.position.is_start() && !self.position.is_in_parts();
        let has_news = || !self.position.was_sent_additions(self.membership.cohort().touched());
        let taken = self.in_flight.map_or(self.unanswered, |in_flight| in_flight.taken);
        taken.filter(|_| whole && has_news())
    }

    /// Opens the gate early, until [`close_gate`](Self::close_gate).
    pub(in crate::subscription) const fn overtake(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }

    pub(in crate::subscription) const fn close_gate(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
    }

    /// Lets a gated type be evaluated again: with another subscription there may be no addition.
    pub(in crate::subscription) const fn reevaluate(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.holds_back = false;
        }
    }

    pub(super) fn is_gated(&self) -> bool {
        self.in_flight.is_some_and(|in_flight| in_flight.holds_back)
    }
}
