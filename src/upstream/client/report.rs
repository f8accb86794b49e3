//! Ends of a connection, and log lines of a client of the control plane.
//!
//! Owns their words. The [`Link`](super::super::link::Link) limits each over all node groups, because clients
//! can create many groups by inventing nodes.

use std::time::Duration;

use super::super::link::Line;
use super::super::wait::now;
use super::Client;
use super::conversation::{Delta, Ended, in_words};
use crate::cache::Protocol;

impl Client {
    /// Logs that a relay upstream is asked in the protocol that carries less.
    pub(super) fn report_relay_by_sotw(&self) {
        let Some(suppressed) = self.link.allow(Line::RelayBySotw) else { return };
        let uri = self.link.uri();
        tracing::warn!(%uri, suppressed, "the server is a relay, and is asked by state of the world: clients may be shown less than there is; set upstream.servers[].protocol to auto or delta");
    }

    /// Logs that a live server leaves health checks unanswered.
    pub(super) fn report_mute_checks(&self) {
        let uri = self.link.uri();
        tracing::warn!(%uri, "the control plane answers its streams and leaves health checks unanswered: it is not asked for ten minutes, and one that hangs is noticed late. Give its gRPC server more threads than it has streams, or no health service");
    }

    /// Logs the report of a relay upstream on its own control plane.
    pub(super) fn report_word(&self, is_answered: bool) {
        let suppressed =
            if is_answered { self.link.over(Line::Watched) } else { self.link.allow(Line::Watched) };
        let Some(suppressed) = suppressed else { return };
        let uri = self.link.uri();
        if is_answered {
            tracing::info!(%uri, suppressed, "the relay upstream is answered by its control plane again");
        } else {
            tracing::warn!(%uri, suppressed, "the relay upstream is cut off from its control plane; serving cached resources");
        }
    }

    /// Logs the first answer after a complaint about the connection or a stream, once for all groups.
    pub(super) fn report_answer(&self) {
        let of_connection = self.link.over(Line::Complaint);
        let group = self.group.as_deref().filter(|_| of_connection.is_none());
        let Some(suppressed) = of_connection.or_else(|| self.link.over(Line::Stream)) else { return };
        tracing::info!(uri = %self.link.uri(), group, suppressed, "the control plane answers again");
    }

    /// Notes the protocol of an answer. Logs once for all groups that the control plane speaks no
    /// delta.
    pub(super) fn report_protocol(&self, delta: Delta) {
        let Some(protocol) = self.state.borrow().protocol else { return };
        if protocol == Protocol::Sotw && delta == Delta::Doubtful {
            return;
        }
        let is_news = self.link.answered_in(protocol);
        if let Delta::Refused(why) = delta
            && is_news
        {
            let uri = self.link.uri();
            tracing::warn!(
                %uri,
                "the control plane {why}; using state of the world. Set upstream.servers[].protocol to sotw if that is how it is meant"
            );
        }
    }

    /// Notes unanswered subscriptions, and logs them after a while.
    pub(super) fn look_for_silence(&mut self) {
        let now = now();
        let said = Some((self.counters().requests.get(), self.counters().responses.get()));
        // Unanswered requests may end by themselves; all else changes only with a message.
        if self.looked_at != said || self.state.borrow().unanswered.count > 0 {
            self.looked_at = said;
            let unanswered = self.mux.unanswered(now);
            self.state.send_if_modified(|state| state.look(unanswered));
        }
        let (silent, last_answer, answers_others) = {
            let state = self.state.borrow();
            (
                state.unanswered.silent_since(now).zip(state.unanswered.types()),
                state.last_answer,
                state.answered,
            )
        };
        let (uri, group) = (self.link.uri(), self.group.as_deref());
        // Logged once for all groups, because clients can create many.
        if let Some((since, types)) = silent {
            if self.silence.is_none()
                && let Some(suppressed) = self.link.allow(Line::Silence)
            {
                let hint = match answers_others {
                    true => "it answers other types: does it have these resources?",
                    false => "does the control plane know this node?",
                };
                tracing::warn!(
                    %uri,
                    group,
                    suppressed,
                    "subscribed to {types} {} s ago as node {}, no answer: {hint}",
                    now.saturating_duration_since(since).as_secs(),
                    // It may contain captures of a client's node.
                    self.mux.node().id.escape_debug(),
                );
            }
            self.silence.get_or_insert((since, now));
        } else if let Some((since, told)) = self.silence.take()
            // Without requests there is silence, but no answer.
            && last_answer.is_some_and(|answer| answer >= told)
            && let Some(suppressed) = self.link.allow(Line::Answer)
        {
            let waited = now.saturating_duration_since(since).as_secs();
            tracing::info!(%uri, group, suppressed, "the control plane answers, {waited} s after the subscription");
        }
    }

    /// Node that the relay makes for the group, unless it is the relay's own.
    pub(super) fn node_in_group(&self) -> Option<&str> {
        self.group.as_ref().map(|_| &*self.mux.node().id)
    }

    /// Logs an end, limited over all groups. Returns its reason.
    pub(super) fn log(&self, ended: Ended, wait: Duration) -> String {
        let line = match ended {
            Ended::Lost(_) => Line::Complaint,
            Ended::Failed(_) | Ended::Reset(_) | Ended::Unfit(_) | Ended::Broken(_) => Line::Stream,
            Ended::Closed(_) => Line::Ending,
        };
        let suppressed = self.link.allow(line);
        let uri = self.link.uri();
        let retry_in = in_words(wait);
        let is_cached = self.servers.have_answered() || self.state.borrow().restored.is_some();
        let serving = if is_cached { "serving cached resources" } else { "nothing is cached yet" };
        // The end of a connection concerns all groups, that of a stream only one.
        let (node, group) = match line {
            Line::Complaint => (None, None),
            _ => (Some(&*self.mux.node().id), self.group.as_deref()),
        };
        let is_unfit = matches!(ended, Ended::Unfit(_));
        let is_ordinary = matches!(ended, Ended::Closed(_));
        let what = match &ended {
            Ended::Lost(_) => "control plane unreachable",
            Ended::Failed(_) | Ended::Reset(_) => "no usable answer from the control plane",
            Ended::Unfit(_) | Ended::Broken(_) | Ended::Closed(_) => "the control plane ended the stream",
        };
        let reason = ended.reason(uri);
        match suppressed {
            None => {}
            Some(suppressed) if is_unfit => {
                tracing::error!(%uri, group, node, retry_in, suppressed, "{reason}")
            }
            Some(suppressed) if is_ordinary => {
                tracing::info!(%uri, group, node, reason, retry_in, suppressed, "{what}; reconnecting")
            }
            Some(suppressed) => {
                tracing::warn!(%uri, group, node, reason, retry_in, suppressed, "{what}; {serving}")
            }
        }
        reason
    }
}
