//! Streams of one connection, and the next event on them.
//!
//! Owns the order in which messages and other events are served, and when the second stream is open. Acts on
//! no event.

use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan_transport::call::{is_of_server, is_reset, status_text};
use deltafan_transport::stream::OpenStream;
use futures_util::StreamExt as _;
use http::Uri;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::super::link::{Line, Link, Server};
use super::super::liveness::{Liveness, LivenessTimes, Purpose, Sign};
use super::super::probe::{ProbeReport, Probes, lend};
use super::super::relay_watch::{RelayWatch, Standing};
use super::super::wait::{Clock, now, sleep_until};
use super::super::{Backoff, Mux, Representative, StreamId, Tuned};
use crate::cache::{Protocol, Wanted};
use crate::fairness::MESSAGES_IN_A_ROW;

/// Waiting ACKs above which responses are no longer read.
const ACKS: usize = 256;

/// Time between two checks for unanswered subscriptions. A refusal of the stream comes before the first
/// check.
const LOOK: Duration = Duration::from_secs(1);

/// Least transfer time that is reported: a report takes work for each name.
const LEAST_TRANSFER: Duration = Duration::from_millis(5);

pub(super) enum Event {
    Message(StreamId, Option<Result<Bytes, Status>>),
    /// Answer to an inquiry, or the end of its stream.
    Inquiry(Option<Result<Bytes, Status>>),
    /// A stream has room for a request.
    Room(StreamId),
    Interest(Vec<Wanted>),
    Tuned(Tuned),
    /// Report of the relay at the other end; `None` if it does not report.
    Watched(Option<bool>),
    /// Report of a probe of another server.
    Probed(ProbeReport),
    Checked,
    /// A deadline has passed, and everything that arrived was read.
    Deadline,
    /// Check for unanswered subscriptions is due.
    Look,
    Nothing,
}

/// Evidence on one connection whether the server speaks delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delta {
    /// Nothing speaks against it.
    Possible,
    /// It reset a stream before any response.
    Doubtful,
    /// It does not speak delta, with the reason.
    Refused(&'static str),
}

/// Both streams of one connection, and the watch of the relay at its end.
pub(super) struct Conversation {
    pub(super) primary: OpenStream,
    pub(super) secondary: Secondary,
    /// Stream of a single question.
    inquiry: Option<OpenStream>,
    pub(super) watch: RelayWatch,
    pub(super) liveness: Liveness,
    /// Response that waits for the first report of its relay. No other is read meanwhile.
    pub(super) kept: Option<(StreamId, Bytes)>,
    /// Whether responses were dropped: later ones are used only on reopened streams.
    pub(super) has_passed_over: bool,
    /// Whether a useful response came on either stream.
    pub(super) answered: bool,
    pub(super) protocol: Protocol,
    pub(super) delta: Delta,
    server: Server,
    /// Reported time in which responses were on their way.
    transferred: Duration,
    /// Transfers and pauses not yet reported to the choice of the server.
    pub(super) excused: Duration,
    clock: Clock,
    /// Messages read in a row; after [`MESSAGES_IN_A_ROW`] everything else gets a turn.
    messages: u32,
    /// Whether to read although ACKs wait.
    insists: bool,
    look_at: Instant,
}

impl Conversation {
    pub(super) fn new(server: Server, protocol: Protocol, backoff: Backoff, liveness: LivenessTimes) -> Self {
        let now = now();
        Self {
            primary: server.open(protocol),
            secondary: Secondary::new(backoff),
            inquiry: None,
            watch: RelayWatch::new(server.channel.clone()),
            liveness: Liveness::new(server.channel.clone(), Arc::clone(&server.pulse), liveness, now),
            kept: None,
            has_passed_over: false,
            answered: false,
            protocol,
            delta: Delta::Possible,
            transferred: server.transfers.so_far(now).0,
            excused: Duration::ZERO,
            server,
            clock: Clock::new(now),
            messages: 0,
            insists: false,
            look_at: now + LOOK,
        }
    }

    pub(super) fn open(&self, stream: StreamId) -> Option<&OpenStream> {
        match stream {
            StreamId::Primary => Some(&self.primary),
            StreamId::Secondary => self.secondary.open.as_ref(),
        }
    }

    /// Reopens both streams in another protocol.
    pub(super) fn speak(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.renew(StreamId::Primary);
    }

    /// Ends a stream, and the secondary one with the primary. The primary one reopens at once, the secondary
    /// one on demand.
    pub(super) fn renew(&mut self, stream: StreamId) {
        self.watch.restart();
        // It belongs to a stream that ends.
        self.kept = None;
        self.secondary.open = None;
        if stream == StreamId::Primary {
            self.has_passed_over = false;
            self.primary = self.server.open(self.protocol);
        }
    }

    /// Opens or closes the secondary stream as `mux` needs it.
    pub(super) fn adjust_secondary(&mut self, mux: &mut Mux, now: Instant) {
        let secondary = &mut self.secondary;
        match (mux.wants_secondary(), secondary.open.is_some()) {
            (true, false) if secondary.retry_at.is_none_or(|at| at <= now) => {
                secondary.answered = false;
                secondary.open = Some(self.server.open(self.protocol));
                mux.opened(StreamId::Secondary, now);
            }
            (false, true) => {
                secondary.open = None;
                mux.closed(StreamId::Secondary);
            }
            _ => {}
        }
    }

    /// Opens a stream for a due inquiry, and closes that of a finished one.
    pub(super) fn inquire(&mut self, mux: &mut Mux, representative: Option<&Representative>) {
        if !mux.has_inquiry() {
            self.inquiry = None;
            if let Some((protocol, request)) = mux.begin_inquiry(now()) {
                let open = self.server.open(protocol);
                // The stream takes several requests before it is open.
                _ = open.outgoing.try_send(lend(representative, request, protocol));
                self.inquiry = Some(open);
            }
        }
    }

    pub(super) fn is_inquiry_of_relay(&self) -> bool {
        self.inquiry.as_ref().is_some_and(OpenStream::is_relay)
    }

    /// Closes an unused primary stream to a relay, because relays end streams without a request. The first
    /// request reopens it.
    pub(super) fn rest_at_relay(&mut self) {
        if self.primary.is_relay() {
            self.primary = self.server.open_when_asked(self.protocol);
        }
    }

    /// Waits for the next event, until `choose_at` at most. Inputs are `interest`, `tuning` and reports of
    /// `probes`. Reports to `mux` the time that was no silence, so that any event may judge it.
    pub(super) async fn next(
        &mut self,
        mux: &mut Mux,
        interest: impl Future<Output = Vec<Wanted>>,
        tuned: impl Future<Output = Tuned>,
        (probes, choose_at): (&mut Probes, Option<Instant>),
    ) -> Event {
        let waits_for_word = self.kept.is_some() && self.watch.standing(now()) == Standing::Unsaid;
        if !waits_for_word && let Some((stream, response)) = self.kept.take() {
            self.excuse(mux);
            let event = Event::Message(stream, Some(Ok(response)));
            self.count(&event);
            return event;
        }
        let retry_at = self.secondary.retry_at(mux);
        let deadline = mux.next_deadline().into_iter().chain(retry_at).chain(choose_at).min();
        let says = StreamId::ALL.map(|stream| mux.has_request(stream));
        let (messages, insists, look_at) = (self.messages, self.insists, self.look_at);
        let Self { primary, secondary, inquiry, watch, liveness, clock, .. } = self;
        let inquiry = inquiry.as_mut().map(|open| &mut open.incoming);
        let (second_in, second_out) = match &mut secondary.open {
            Some(open) => (Some(&mut open.incoming), Some(&open.outgoing)),
            None => (None, None),
        };
        // Fair among themselves.
        let others = async {
            tokio::select! {
                room = room(Some(&primary.outgoing)), if says[0] => {
                    drop(room);
                    Event::Room(StreamId::Primary)
                }
                room = room(second_out), if says[1] => {
                    drop(room);
                    Event::Room(StreamId::Secondary)
                }
                interest = interest => Event::Interest(interest),
                tuned = tuned => Event::Tuned(tuned),
                word = watch.next() => Event::Watched(word),
                () = liveness.next() => Event::Checked,
                word = probes.next() => Event::Probed(word),
                answer = next(inquiry) => Event::Inquiry(answer),
                () = clock.wait(deadline) => Event::Deadline,
                () = sleep_until(Some(look_at)) => Event::Look,
            }
        };
        // Arrived messages are read before a timer is judged. After many of them everything else gets a turn.
        // A server that is slow to read ACKs must not receive more and more of them.
        let is_behind = !insists && mux.acks_waiting() > ACKS && !primary.outgoing.is_closed();
        // While the report of a relay may still come, that is checked every second.
        let event = if is_behind || waits_for_word && !primary.outgoing.is_closed() {
            tokio::select! {
                biased;
                event = others => event,
                () = primary.outgoing.closed() => Event::Nothing,
            }
        } else if messages < MESSAGES_IN_A_ROW {
            let mut streams = [
                (StreamId::Primary, next(Some(&mut primary.incoming))),
                (StreamId::Secondary, next(second_in)),
            ];
            if messages % 2 == 1 {
                streams.reverse();
            }
            let [(first_id, first), (second_id, second)] = streams;
            tokio::select! {
                biased;
                message = first => Event::Message(first_id, message),
                message = second => Event::Message(second_id, message),
                event = others => event,
            }
        } else {
            tokio::select! {
                biased;
                event = others => event,
                () = ready(()) => Event::Nothing,
            }
        };
        self.excuse(mux);
        let event = match event {
            Event::Deadline if !self.clock.is_due(deadline, now()) => Event::Nothing,
            event => event,
        };
        self.count(&event);
        event
    }

    /// Reports time in which this process did not run, or responses were on their way.
    fn excuse(&mut self, mux: &mut Mux) {
        let now = now();
        if let Some(pause) = self.clock.overslept(now) {
            mux.exclude_pause(pause, now);
            self.excused += pause;
        }
        let (total, goes_on) = self.server.transfers.so_far(now);
        // Another thread may have read the clock earlier and noted the end of a response later.
        let time = total.saturating_sub(self.transferred);
        let time = if time < LEAST_TRANSFER { Duration::ZERO } else { time };
        if !time.is_zero() {
            self.liveness.transferred(time, now);
        }
        self.transferred += time;
        self.excused += time;
        mux.transferred(time, goes_on, now);
    }

    /// Checks whether the server is there, if needed. Without another server (`is_only`), that is while
    /// something is unanswered.
    pub(super) fn look_for_life(
        &mut self,
        unanswered: Option<Instant>,
        is_only: bool,
        purpose: impl FnOnce() -> Option<Purpose>,
    ) -> Sign {
        // A message that stops in its middle may also come from a server that hangs.
        let since = unanswered.into_iter().chain(self.server.transfers.incomplete_since()).min();
        let since = if is_only { since } else { Some(self.liveness.begun) };
        self.liveness.look(since, purpose, now(), LOOK)
    }

    /// Counts the messages in a row.
    fn count(&mut self, event: &Event) {
        let is_message = matches!(event, Event::Message(..));
        if is_message {
            self.liveness.received(now());
        }
        self.messages = if is_message { self.messages + 1 } else { 0 };
        // Read at intervals all the same: the server may have ended the stream.
        self.insists = matches!(event, Event::Look) || (self.insists && self.messages > 0);
        if matches!(event, Event::Look) {
            self.look_at = now() + LOOK;
        }
    }
}

/// End of a connection or stream.
pub(super) enum Ended {
    /// No response, or a malformed one. The back-off grows.
    Failed(String),
    /// The server reset the stream before any response. The back-off grows.
    Reset(String),
    /// The server does not implement ADS in this protocol. The back-off grows, and retrying helps little.
    Unfit(Protocol),
    /// No connection, or its end after responses. The back-off restarts.
    Lost(String),
    /// Stream error after responses, on an open connection. The back-off restarts.
    Broken(String),
    /// Orderly end after responses (gRFC A57). The back-off restarts.
    Closed(String),
}

impl Ended {
    /// Returns the end of a stream by a status. `is_answered`: after responses.
    pub(super) fn by(status: &Status, protocol: Protocol, is_answered: bool) -> Self {
        match status.code() {
            Code::Unimplemented => Self::Unfit(protocol),
            _ if !is_answered && is_reset(status) => Self::Reset(status_text(status)),
            _ if !is_answered => Self::Failed(status_text(status)),
            _ if is_of_server(status) => Self::Broken(status_text(status)),
            _ => Self::Lost(status_text(status)),
        }
    }

    pub(super) fn orderly(is_answered: bool) -> Self {
        let reason = "it closed the stream without an error".to_owned();
        if is_answered { Self::Closed(reason) } else { Self::Failed(reason) }
    }

    pub(super) fn reason(self, server: &Uri) -> String {
        match self {
            Self::Failed(why)
            | Self::Reset(why)
            | Self::Lost(why)
            | Self::Broken(why)
            | Self::Closed(why) => why,
            Self::Unfit(Protocol::Delta) => format!(
                "the control plane at {server} does not implement delta ADS (UNIMPLEMENTED): have it serve AggregatedDiscoveryService.DeltaAggregatedResources, set upstream.servers[].protocol to auto or sotw, or set another server in upstream.servers",
            ),
            Self::Unfit(Protocol::Sotw) => format!(
                "the control plane at {server} does not implement ADS (UNIMPLEMENTED): have it serve AggregatedDiscoveryService.DeltaAggregatedResources, or StreamAggregatedResources with upstream.servers[].protocol set to auto or sotw, or set another server in upstream.servers",
            ),
        }
    }
}

/// Secondary stream, open only while it has subscriptions.
pub(super) struct Secondary {
    open: Option<OpenStream>,
    /// Whether a useful response came on it.
    pub(super) answered: bool,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

impl Secondary {
    fn new(mut backoff: Backoff) -> Self {
        backoff.reset();
        Self { open: None, answered: false, backoff, retry_at: None }
    }

    fn retry_at(&self, mux: &Mux) -> Option<Instant> {
        self.retry_at.filter(|_| self.open.is_none() && mux.wants_secondary())
    }

    /// Notes that the server ended it. The primary lives on: a server may not accept two streams.
    pub(super) fn lost(&mut self, mux: &mut Mux, link: &Link, group: Option<&str>, error: &str) {
        self.open = None;
        mux.closed(StreamId::Secondary);
        if self.answered {
            self.backoff.reset();
        }
        let wait = self.backoff.next(&mut rand::rng());
        self.retry_at = Some(now() + wait);
        if let Some(suppressed) = link.allow(Line::Secondary) {
            tracing::warn!(
                group,
                error,
                retry_in = in_words(wait),
                suppressed,
                "the second stream to the control plane ended; types with both a wildcard and names wait for it"
            );
        }
    }
}

pub(super) fn in_words(wait: Duration) -> String {
    format!("{:.1} s", wait.as_secs_f64())
}

async fn next(
    stream: Option<&mut (impl futures_util::Stream<Item = Result<Bytes, Status>> + Unpin)>,
) -> Option<Result<Bytes, Status>> {
    match stream {
        Some(stream) => stream.next().await,
        None => pending().await,
    }
}

/// Waits for room for one request. A stream that takes none reports that as its end.
async fn room(outgoing: Option<&mpsc::Sender<Bytes>>) -> mpsc::Permit<'_, Bytes> {
    match outgoing {
        Some(outgoing) => match outgoing.reserve().await {
            Ok(room) => room,
            Err(_) => pending().await,
        },
        None => pending().await,
    }
}
