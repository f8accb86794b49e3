//! Long polls that wait for something new.

use std::sync::Arc;
use std::task::{self, Poll as Look, ready};
use std::time::Instant;

use super::alarm::Alarm;
use super::names::NameShare;
use super::peers::Held;
use super::poll_error::Fault;
use super::poll_request::{Caller, Opened};
use super::state::Context;
use super::turns::{LongDrop, MANY, MOMENT};
use crate::subscription::{Poll, Verdict};
use crate::telemetry::PollGauge;

/// A poll that waits.
pub(super) struct Waiting {
    poll: LongDrop<Poll>,
    names: NameShare,
    /// Its place among those of its peer, once it needs one: who sends slowly costs as much as who waits.
    held: Option<Held>,
    parked: bool,
    alarm: Alarm,
    caller: Caller,
    shared: Arc<Context>,
}

/// A poll that no longer does.
pub(super) struct Ended {
    pub(super) poll: LongDrop<Poll>,
    pub(super) verdict: Verdict,
    pub(super) names: NameShare,
}

impl Waiting {
    pub(super) fn new(opened: Opened, caller: Caller, shared: Arc<Context>) -> Self {
        let Opened { poll, held, names } = opened;
        Self { poll, held, names, parked: false, alarm: Alarm::default(), caller, shared }
    }

    pub(super) async fn wait(mut self, gauge: &mut PollGauge) -> Result<Ended, Fault> {
        let verdict = std::future::poll_fn(|cx| self.look(cx, gauge)).await?;
        Ok(Ended { poll: self.poll, verdict, names: self.names })
    }

    fn look(&mut self, cx: &mut task::Context<'_>, gauge: &mut PollGauge) -> Look<Result<Verdict, Fault>> {
        // Registered before looking, so that what changes from here on wakes the poll.
        self.poll.mailbox().register(cx.waker());
        loop {
            let (now, upstream) = (Instant::now(), self.shared.upstream.get());
            // A connection that closes waits for what is open on it.
            let verdict = || {
                if self.caller.connection.is_closing() {
                    self.poll.expire(now, upstream)
                } else {
                    self.poll.next(now, upstream)
                }
            };
            let verdict = self.shared.turns.work(self.poll.names() > MANY, verdict);
            let verdict = verdict.unwrap_or(Verdict::Wait(now + MOMENT));
            let Verdict::Wait(until) = verdict else { return Look::Ready(Ok(verdict)) };
            if self.held.is_none() {
                let limit = self.shared.policy.load().polls.per_peer;
                let held = self.shared.polls.peers.hold(self.caller.peer.source, limit);
                self.held = Some(held.ok_or_else(Fault::too_many)?);
            }
            if !std::mem::replace(&mut self.parked, true) {
                gauge.parked();
            }
            ready!(self.alarm.poll(Some(until), cx));
        }
    }
}
