//! Choice of the server: observation of the one in use, and the change to another one.

use std::sync::Arc;
use std::time::Duration;

use super::super::link::{Lease, Line};
use super::super::probe::Questions;
use super::super::wait::now;
use super::super::{ServerChange, ServerCondition};
use super::Client;
use super::conversation::Conversation;
use super::ended::Ended;

/// Time between two comparisons of the probes' questions with the subscription.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Client {
    /// Condition of the server in use, as seen on a connection.
    pub(super) fn condition(&self, talk: &Conversation) -> ServerCondition {
        let state = self.state.borrow();
        match state.unanswered.since {
            _ if state.origin_is_cut_off => ServerCondition::CutOff,
            _ if talk.answered => ServerCondition::Answers { first_hand: talk.watch.vouches() },
            Some(asked) => ServerCondition::Silent(asked),
            None => ServerCondition::Idle,
        }
    }

    /// Ends a connection whose only server stays silent, if its name has other addresses. One that hangs must
    /// not hide them: the next attempt begins with another. Of several servers the next one is already in use
    /// by then.
    pub(super) fn leave_silent_address(&self, lease: &Lease, talk: &Conversation) -> Option<Ended> {
        let ServerCondition::Silent(asked) = self.condition(talk) else { return None };
        let after = self.failover.after();
        if self.failover.has_choice()
            || !lease.has_other_addresses()
            || now() < asked + talk.transfers + after
        {
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
        if !self.failover.has_choice() {
            return None;
        }
        let now = now();
        let change = self.failover.look(condition, now);
        if let Some(change) = change {
            self.change_server(change);
        }
        if self.failover.active() > 0 && self.asks_again.is_none_or(|at| at <= now) {
            self.asks_again = Some(now + ASK_AGAIN);
            self.probes.set_questions(Questions {
                asked: self.mux.questions(),
                node: Arc::clone(&self.node),
                representative: self.representative.clone(),
            });
        }
        self.probes.before(self.failover.active());
        change
    }

    fn change_server(&mut self, change: ServerChange) {
        self.report_change(change);
        self.has_complained = false;
        if std::mem::take(&mut self.is_away) {
            self.link.regain();
        }
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
                if let Some(suppressed) = self.link.say(Line::Failover) {
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
                if let Some(suppressed) = self.link.say(Line::Failback) {
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
