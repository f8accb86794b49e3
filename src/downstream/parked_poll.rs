//! Long polls that wait for a change.

use std::sync::Arc;
use std::task::{self, ready};
use std::time::Instant;

use super::connection::NameShare;
use super::poll_error::PollError;
use super::poll_request::{OpenedPoll, PollClient};
use super::scheduler::BackgroundDrop;
use super::server_state::ServerState;
use super::timer::LazyTimer;
use crate::fairness::{MANY_NAMES, RETRY};
use crate::fleet::Registration;
use crate::groups::GroupSeat;
use crate::pool::Share;
use crate::subscription::{Poll, PollVerdict};
use crate::telemetry::PollGauge;

pub(super) struct ParkedPoll {
    poll: BackgroundDrop<Poll>,
    names: NameShare,
    /// Slot of its peer, once needed: a slow request costs as much as a waiting poll.
    slot: Option<Share>,
    parked: bool,
    timer: LazyTimer,
    client: PollClient,
    seat: GroupSeat,
    _registration: Registration,
    server: Arc<ServerState>,
}

pub(super) struct DecidedPoll {
    pub(super) poll: BackgroundDrop<Poll>,
    pub(super) verdict: PollVerdict,
    pub(super) names: NameShare,
}

impl ParkedPoll {
    pub(super) fn new(opened: OpenedPoll, client: PollClient, server: Arc<ServerState>) -> Self {
        let OpenedPoll { poll, slot, names, seat, registration } = opened;
        Self {
            poll,
            slot,
            names,
            parked: false,
            timer: LazyTimer::default(),
            client,
            seat,
            _registration: registration,
            server,
        }
    }

    pub(super) async fn wait(mut self, gauge: &mut PollGauge) -> Result<DecidedPoll, PollError> {
        let verdict = std::future::poll_fn(|cx| self.look(cx, gauge)).await?;
        Ok(DecidedPoll { poll: self.poll, verdict, names: self.names })
    }

    fn look(
        &mut self,
        cx: &mut task::Context<'_>,
        gauge: &mut PollGauge,
    ) -> task::Poll<Result<PollVerdict, PollError>> {
        // Registered before the check, so that any later change wakes the poll.
        self.poll.wake_handle().register(cx.waker());
        loop {
            let (now, upstream) = (Instant::now(), self.seat.group().upstream());
            // A closing connection waits for its open requests.
            let verdict = || {
                if self.client.connection.is_closing() {
                    self.poll.expire(now, upstream)
                } else {
                    self.poll.next(now, upstream)
                }
            };
            let verdict = self.server.scheduler.run(self.poll.names() > MANY_NAMES, verdict);
            let verdict = verdict.unwrap_or(PollVerdict::Wait(now + RETRY));
            let PollVerdict::Wait(until) = verdict else { return task::Poll::Ready(Ok(verdict)) };
            if self.slot.is_none() {
                let polls = &self.server.polls;
                let slot = polls.park(self.client.peer.source, &self.server.policy.load());
                self.slot = Some(slot.ok_or_else(PollError::too_many)?);
            }
            if !std::mem::replace(&mut self.parked, true) {
                gauge.parked();
            }
            ready!(self.timer.poll(Some(until), cx));
        }
    }
}
