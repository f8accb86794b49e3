//! Condition of the server in use, and the change to the one that `Failover` chooses. Choice of the protocol.

use std::sync::Arc;
use std::time::Duration;

use super::super::link::{Lease, Line};
use super::super::liveness::{Sign, Streams};
use super::super::wait::now;
use super::super::{ServerChange, ServerCondition, StreamId};
use super::Client;
use super::conversation::{Conversation, Delta, Ended};
use crate::cache::Protocol;

/// Time between two comparisons of the probes' questions with the subscription.
const ASK_AGAIN: Duration = Duration::from_secs(1);

const LACKS_DELTA: &str = "does not implement delta ADS (UNIMPLEMENTED)";
const RESETS_DELTA: &str = "resets each delta stream";

impl Client {
    /// Condition of the server in use, as seen on a connection.
    pub(super) fn condition(&self, talk: &Conversation) -> ServerCondition {
        let state = self.state.borrow();
        match state.unanswered.since {
            _ if state.origin_is_cut_off => ServerCondition::CutOff,
            _ if talk.answered => ServerCondition::Answers { first_hand: talk.watch.vouches() },
            Some(_) => ServerCondition::Silent,
            None => ServerCondition::Idle,
        }
    }

    /// Looks once a second at everything that no event shows. Returns the end of the connection.
    pub(super) fn look(&mut self, lease: &Lease, talk: &mut Conversation) -> Option<Ended> {
        self.restore_late(talk);
        if !self.mux.has_asked(StreamId::Primary) {
            talk.rest_at_relay();
        }
        self.look_for_silence();
        self.note_refusals();
        if self.representative.as_ref().is_some_and(|one| one.is_outdated()) {
            self.mux.node_is_outdated();
        }
        self.leave_silent_address(lease, talk).or_else(|| self.look_for_life(lease, talk))
    }

    /// Checks by a health check whether the server is there, if needed. Returns the end if it is gone.
    fn look_for_life(&mut self, lease: &Lease, talk: &mut Conversation) -> Option<Ended> {
        if !lease.has_room_for_calls(talk.watch.is_open()) {
            return None;
        }
        self.note_mute_checks(talk);
        let (unanswered, is_only) = (self.state.borrow().unanswered.since, self.servers.count() == 1);
        let streams = match (talk.answered, unanswered) {
            (true, _) => Streams::Answered,
            (false, Some(_)) => Streams::Unanswered,
            (false, None) => Streams::Idle,
        };
        // A server that has not answered yet is given the time.
        let is_only = is_only || streams == Streams::Unanswered;
        let purpose = || self.link.checks().purpose(streams, now());
        match talk.look_for_life(unanswered, is_only, purpose) {
            Sign::Fine => None,
            Sign::Gone { is_first } => {
                lease.silent();
                if is_first {
                    self.link.checks().gave_up();
                }
                let timeout = self.link.options().liveness.timeout;
                Some(Ended::Lost(format!(
                    "it sends nothing, and did not answer a health check within {timeout:?}"
                )))
            }
            Sign::Mute => {
                self.link.checks().failed(now());
                if !self.note_mute_checks(talk) {
                    // It may hang by now; earlier answers prove nothing.
                    talk.answered = false;
                    self.renew(StreamId::Primary, talk);
                }
                None
            }
            Sign::Closed => {
                let why = "it wants no more of this connection (GOAWAY), and is silent on it".to_owned();
                Some(Ended::Closed(why))
            }
        }
    }

    /// Notes whether the server answers its streams but no checks. Returns whether that is so.
    fn note_mute_checks(&self, talk: &mut Conversation) -> bool {
        let are_mute = talk.liveness.is_mute() && self.link.checks().are_mute(now());
        if are_mute {
            self.report_mute_checks();
        }
        are_mute
    }

    /// Ends a connection whose only server stays silent, if its name has other addresses. One that hangs must
    /// not hide them: the next attempt begins with another. Of several servers the next one is already in use
    /// by then.
    fn leave_silent_address(&self, lease: &Lease, talk: &Conversation) -> Option<Ended> {
        let is_silent = self.condition(talk) == ServerCondition::Silent;
        let asked = self.state.borrow().unanswered.since.filter(|_| is_silent)?;
        let after = self.failover.after();
        if self.failover.has_choice() || !lease.has_other_addresses() || now() < asked + after {
            return None;
        }
        lease.silent();
        Some(Ended::Failed(format!(
            "it is connected and has answered nothing for {} s; trying the next address of its name",
            after.as_secs()
        )))
    }

    /// Updates the condition of the server in use. Returns the change, if any.
    pub(super) fn choose(&mut self, condition: ServerCondition) -> Option<ServerChange> {
        let now = now();
        let change = self.failover.look(condition, now);
        if let Some(change) = change {
            self.change_server(change);
        }
        if self.failover.active() > 0 && self.asks_again.is_none_or(|at| at <= now) {
            self.asks_again = Some(now + ASK_AGAIN);
            self.probes.set_questions(self.mux.questions());
        }
        self.probes.before(self.failover.active(), self.mux.node(), self.representative.as_ref());
        change
    }

    fn change_server(&mut self, change: ServerChange) {
        self.report_change(change);
        let to = change.to();
        self.link = Arc::clone(self.servers.link(to));
        self.backoff = self.link.options().backoff;
        self.asks_again = None;
        // A server that is left for a more preferred one has no fault.
        let fault = match change {
            ServerChange::Next { silent_for, .. } => {
                Some(format!("it has not answered for {} s", silent_for.as_secs()))
            }
            ServerChange::Back { .. } => None,
        };
        self.state.send_modify(|state| state.changed_to(to, fault));
    }

    /// Counts and logs a change of the server, with a limit. Each group changes by itself.
    fn report_change(&self, change: ServerChange) {
        let group = self.group.as_deref();
        let (from, to) = (self.link.uri(), self.servers.link(change.to()).uri());
        match change {
            ServerChange::Next { silent_for, .. } => {
                self.counters().failovers.add(1);
                if let Some(suppressed) = self.link.allow(Line::Failover) {
                    let seconds = silent_for.as_secs();
                    tracing::warn!(
                        group,
                        node = self.node_in_group(),
                        suppressed,
                        "control plane {from} has not answered for {seconds} s; using {to}"
                    );
                }
            }
            ServerChange::Back { .. } => {
                self.counters().failbacks.add(1);
                if let Some(suppressed) = self.link.allow(Line::Failback) {
                    tracing::info!(
                        group,
                        suppressed,
                        "control plane {to} answers again; returning to it from {from}"
                    );
                }
            }
        }
    }
}

/// Detection of the protocol that the control plane speaks, on each connection.
///
/// A control plane without delta sends UNIMPLEMENTED, or it resets the stream, as one that panics does. Resets
/// have other causes too, such as a restart behind a proxy, or overload. So state of the world is tried, and
/// after an answer delta again: a second reset then proves that delta is missing. The finding holds for the
/// connection. The next one begins with delta, because the server may have been replaced.
impl Client {
    /// Switches to state of the world if the server may not speak delta. Returns any other end.
    pub(super) fn fall_back(
        &mut self,
        stream: StreamId,
        end: Ended,
        talk: &mut Conversation,
    ) -> Option<Ended> {
        if self.link.options().protocol.is_some() || talk.protocol != Protocol::Delta {
            return Some(end);
        }
        // A server may reset the second stream because it is one too many.
        talk.delta = match (&end, stream, talk.delta) {
            (Ended::Unfit(_), StreamId::Primary, _) => Delta::Refused(LACKS_DELTA),
            (Ended::Unfit(_), StreamId::Secondary, _) if !talk.answered => Delta::Refused(LACKS_DELTA),
            (Ended::Reset(_), StreamId::Primary, Delta::Possible)
                if !self.link.has_answered_in(Protocol::Sotw) =>
            {
                Delta::Doubtful
            }
            (Ended::Reset(_), StreamId::Primary, _) => Delta::Refused(RESETS_DELTA),
            _ => return Some(end),
        };
        self.speak(Protocol::Sotw, talk);
        None
    }

    /// Retries delta after an answer in state of the world, if the reset may have had another cause.
    pub(super) fn try_delta_again(&mut self, talk: &mut Conversation) {
        if talk.delta == Delta::Doubtful && talk.protocol == Protocol::Sotw && talk.answered {
            self.speak(Protocol::Delta, talk);
        }
    }

    /// Reopens the streams in another protocol.
    fn speak(&mut self, protocol: Protocol, talk: &mut Conversation) {
        self.mux.closed(StreamId::Primary);
        self.mux.set_protocol(protocol);
        // The protocol is reported with the first answer in it.
        talk.answered = false;
        talk.speak(protocol);
        self.mux.opened(StreamId::Primary, now());
        self.state.send_modify(|state| state.protocol = Some(protocol));
    }
}
