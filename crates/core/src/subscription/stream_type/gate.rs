//! Gate of a type: at most one response is not answered, until its time is over.

use std::time::{Duration, Instant};

use super::super::session_config::SessionConfig;
use super::{InFlight, StreamType};

/// Response that a request answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::subscription) enum Answered {
    Newest,
    /// The one before, which was not answered before.
    Overtaken,
    /// None, or another one.
    Other,
}

impl StreamType {
    /// Whether a request with this nonce speaks of the newest response (R-SotW-04).
    pub(in crate::subscription) fn is_newest(&self, nonce: &[u8]) -> bool {
        self.newest_nonce.is_some_and(|newest| newest.text().as_bytes() == nonce)
    }

    /// Takes in the nonce of a request, which may answer the newest response or an earlier one; returns which.
    pub(in crate::subscription) fn hear_nonce(&mut self, nonce: &[u8], now: Instant) -> Answered {
        if self.is_newest(nonce) {
            self.open_gate();
            return Answered::Newest;
        }
        if !nonce.is_empty() {
            self.answered_late(now);
        }
        if self.own().overtaken.is_some_and(|overtaken| overtaken.text().as_bytes() == nonce) {
            self.own_mut().overtaken = None;
            self.trim();
            return Answered::Overtaken;
        }
        Answered::Other
    }

    /// The newest response was answered.
    pub(in crate::subscription) fn open_gate(&mut self) {
        self.in_flight = None;
        self.unanswered = None;
        if let Some(own) = &mut self.own {
            (own.let_go, own.overtaken) = (None, None);
            self.trim();
        }
    }

    /// Whether the client has not accepted the newest response, or may not have.
    pub(in crate::subscription) const fn is_unaccepted(&self) -> bool {
        self.rejected || self.is_unanswered()
    }

    /// Whether the client may not have read all that it was told.
    pub(in crate::subscription) const fn is_unanswered(&self) -> bool {
        self.in_flight.is_some() || self.unanswered.is_some()
    }

    /// An earlier response was answered: the client is slow, or ahead of what was said, but it does answer.
    pub(in crate::subscription) fn answered_late(&mut self, now: Instant) {
        self.unanswered = self.unanswered.map(|_| now);
    }

    /// Whether its client has answered nothing for too long. A client that lets go of all it asked for owes no answer.
    pub(in crate::subscription) fn owes_answer(&self, now: Instant, rules: &SessionConfig) -> bool {
        self.unanswered.is_some_and(|since| now >= since + rules.unacked_timeout)
            && !self.subscription().is_empty()
    }

    /// Whether the newest response was not answered yet, as far as the gate knows.
    #[cfg(test)]
    pub(in crate::subscription) const fn awaits_answer(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The newest response was rejected. Returns whether that is news.
    pub(in crate::subscription) const fn reject(&mut self) -> bool {
        !std::mem::replace(&mut self.rejected, true)
    }

    /// Whether the newest response was rejected.
    pub(in crate::subscription) const fn is_rejected(&self) -> bool {
        self.rejected
    }

    /// The transport took the newest response.
    pub(in crate::subscription) fn taken(&mut self, now: Instant) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.taken.get_or_insert(now);
            self.unanswered.get_or_insert(now);
        }
    }

    /// Whether the ACK of the newest response is still awaited; if so, until when (unless the transport has not
    /// taken it).
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

    /// Whether its client has not answered the newest that it was sent, for less than `wait`; if so, until when at most (unless the
    /// transport has not taken it).
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

    /// When the transport had taken the newest response, if that is not answered and something has changed since.
    pub(in crate::subscription) fn unanswered_with_news(&self) -> Option<Instant> {
        let whole = !self.position.is_start() && !self.position.is_in_parts();
        let has_news = || !self.position.has_told_additions(self.membership.cohort().touched());
        let taken = self.in_flight.map_or(self.unanswered, |in_flight| in_flight.taken);
        taken.filter(|_| whole && has_news())
    }

    /// Whether the newest response was sent without an answer to the one before, which has not come since.
    pub(in crate::subscription) fn has_overtaken(&self) -> bool {
        self.own().overtaken.is_some()
    }

    /// Opens the gate before the newest response is answered. Returns that, for [`close_gate`](Self::close_gate).
    pub(in crate::subscription) const fn overtake(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }

    /// Closes the gate again: nothing overtook the newest response.
    pub(in crate::subscription) const fn close_gate(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
    }

    /// Its subscription is smaller, or seen otherwise: there may be nothing to add any more.
    pub(in crate::subscription) const fn look_again(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.holds_back = false;
        }
    }

    /// Whether its closed gate is known to hold something back.
    pub(super) fn is_gated(&self) -> bool {
        self.in_flight.is_some_and(|in_flight| in_flight.holds_back)
    }
}
