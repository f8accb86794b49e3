//! Response body of a stream: everything that one client stream does.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Body;
use prost::Message as _;
use tonic::Code;

use super::connection::{Connection, NameShare};
use super::grpc_status::Status;
use super::message_assembler::Assembler;
use super::request_memory::Payer;
use super::scheduler::LazyTimer;
use super::server_state::{ServerState, claimed_node_id, meet};
use super::unsent_memory::SendCursor;
use crate::cache::Protocol;
use crate::config::Downstream;
use crate::fairness::{
    LARGE_REQUEST, LONGEST_FIRST_ANSWER_WAIT, MANY_NAMES, REQUEST_SLICE, REQUESTS_IN_A_ROW, RETRY,
};
use crate::fleet::Registration;
use crate::groups::GroupSeat;
use crate::http2::RequestBody;
use crate::identity::Peer;
use crate::limit::Limit;
use crate::proto;
use crate::subscription::{
    AckedType, Deadline, NextStep, Outgoing, RequestKind, Session, SessionError, Versions,
};
use crate::telemetry::{self, RequestResult, StreamMetrics};

enum RequestOutcome {
    /// Pure ACK of the newest response of a type.
    Ack(AckedType),
    RequestKind(RequestKind),
}

fn handle(
    session: &mut Session,
    meet: impl FnOnce(&mut Session, Option<&proto::Node>, &[u8]) -> Result<(), SessionError>,
    message: &Bytes,
    versions: Versions,
    now: Instant,
) -> Result<RequestOutcome, SessionError> {
    if let Some(acked) = session.on_ack(message) {
        return Ok(RequestOutcome::Ack(acked));
    }
    session.rules().check_parts(session.protocol(), message)?;
    // A node may be kept, and must not keep the rest of its request.
    let message = Bytes::copy_from_slice(message);
    let undecodable =
        |error| SessionError::invalid(format!("the request is not a protobuf of this method: {error}"));
    let handled = match session.protocol() {
        Protocol::Sotw => {
            let request = proto::DiscoveryRequest::decode(message.clone()).map_err(undecodable)?;
            meet(session, request.node.as_ref(), &message)?;
            session.on_sotw_request(request, now)
        }
        Protocol::Delta => {
            let request = proto::DeltaDiscoveryRequest::decode(message.clone()).map_err(undecodable)?;
            meet(session, request.node.as_ref(), &message)?;
            session.on_delta_request(request, versions, now)
        }
    };
    handled.map(RequestOutcome::RequestKind)
}

/// Stream of one client. Dropped when the transport is done with it.
#[derive(Debug)]
pub(super) struct StreamBody {
    requests: Assembler<RequestBody>,
    session: Session,
    seat: GroupSeat,
    peer: Arc<Peer>,
    connection: Arc<Connection>,
    server: Arc<ServerState>,
    writing: Option<SendCursor<Outgoing>>,
    timer: LazyTimer,
    /// Whether it waits for the connection's turn for the first answer.
    awaits_turn: bool,
    /// Time by which its first request must begin to arrive.
    first_due: Instant,
    /// Time from the begin of a request to its end.
    stall_timeout: Duration,
    ended: bool,
    names: NameShare,
    /// Entry among the clients, for operators.
    registration: Registration,
    /// Progress of the session at the last `follow`.
    followed: u64,
    metrics: StreamMetrics,
}

impl StreamBody {
    pub(super) fn new(
        requests: RequestBody,
        session: Session,
        peer: Arc<Peer>,
        connection: Arc<Connection>,
        server: Arc<ServerState>,
        limits: &Downstream,
    ) -> Self {
        let (transport, number) = (session.protocol().label(), connection.number());
        let registration = server.fleet.open(transport, Arc::clone(&peer), number, Instant::now());
        let payer = || Payer { of: Arc::clone(&server.versions), connection: Arc::clone(&connection) };
        let requests = match session.protocol() {
            Protocol::Sotw => Assembler::new(requests, limits.max_request_bytes),
            Protocol::Delta => Assembler::extracting_versions(requests, limits.max_request_bytes, payer()),
        };
        Self {
            requests,
            peer,
            metrics: StreamMetrics(session.protocol()),
            seat: server.groups.own(),
            server,
            session,
            writing: None,
            awaits_turn: false,
            timer: LazyTimer::default(),
            first_due: Instant::now() + limits.first_request_timeout,
            stall_timeout: limits.stall_timeout,
            ended: false,
            names: NameShare::new(&connection),
            connection,
            registration,
            followed: 0,
        }
    }

    /// Takes the next chunk of the message being sent.
    fn chunk(&mut self, now: Instant) -> Option<Bytes> {
        if let Some(chunk) = self.writing.as_mut()?.next() {
            return Some(chunk);
        }
        let written = self.writing.take()?;
        let outgoing = written.message();
        self.session.on_flushed(now);
        let waited = outgoing.changed_at.map(|changed| now.saturating_duration_since(changed));
        let kind = outgoing.type_url.kind();
        self.metrics.sent(kind, outgoing.frame.size(), waited, outgoing.coalesced);
        None
    }

    /// Reads and handles requests; returns whether all that came were handled. `Err` ends the stream.
    fn read(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<bool, Status> {
        for _ in 0..REQUESTS_IN_A_ROW {
            let message = match self.requests.poll_message(cx) {
                Poll::Pending => return self.charge_memory(now).map(|()| true),
                Poll::Ready(Some(message)) => message?,
                Poll::Ready(None) => return Err(Status::ok()),
            };
            match self.handle(message, now) {
                Some(Ok(RequestOutcome::Ack(acked))) => {
                    let took = self.registration.acked_at(acked.at, now);
                    self.metrics.received(acked.kind, RequestResult::Ack, took);
                    continue;
                }
                Some(Ok(RequestOutcome::RequestKind(heard))) => {
                    self.record(&heard, now);
                }
                Some(Err(status)) => return Err(status),
                None => return self.charge_memory(now).map(|()| true),
            }
            // Too many end the stream, and so their upstream subscription.
            let (names, bytes) = (self.session.names(), self.session.name_bytes());
            self.names.set(names, bytes, self.session.rules())?;
            if now.elapsed() >= REQUEST_SLICE {
                break;
            }
        }
        cx.waker().wake_by_ref();
        self.charge_memory(now).map(|()| false)
    }

    fn charge_memory(&mut self, now: Instant) -> Result<(), Status> {
        self.requests.charge(&self.server.buffered, &self.connection, now)
    }

    /// Notes for operators that the session passed changes that do not concern its client.
    fn follow(&mut self) {
        let progress = self.session.progress();
        if std::mem::replace(&mut self.followed, progress) != progress {
            self.registration.follow(&self.session);
        }
    }

    /// Counts a request, and notes it for operators.
    fn record(&self, heard: &RequestKind, now: Instant) {
        // An answer belongs to a response before the subscription changed.
        let (type_url, result, took) = match heard {
            RequestKind::Subscribed { type_url } => (type_url, RequestResult::Subscribe, None),
            RequestKind::Ack { type_url } => {
                (type_url, RequestResult::Ack, self.registration.acked(type_url, now))
            }
            RequestKind::Nack { type_url, error } => {
                self.registration.rejected(&self.session, type_url, error, false, now);
                (type_url, RequestResult::Nack, None)
            }
            RequestKind::Late { type_url, error: Some(error) } => {
                self.registration.rejected(&self.session, type_url, error, true, now);
                (type_url, RequestResult::Nack, None)
            }
            RequestKind::Late { type_url, error: None } => {
                self.registration.acked_late(type_url, now);
                (type_url, RequestResult::Stale, None)
            }
            RequestKind::Stale { type_url } => (type_url, RequestResult::Stale, None),
        };
        self.metrics.received(type_url.kind(), result, took);
        self.registration.follow_request(&self.session, self.seat.key());
    }

    /// Handles a request; `None` if that takes long and no thread is free for it.
    fn handle(&mut self, message: Bytes, now: Instant) -> Option<Result<RequestOutcome, Status>> {
        let (session, requests, seat) = (&mut self.session, &mut self.requests, &mut self.seat);
        let at = (&*self.server, &*self.peer, &*self.connection);
        let meet = |session: &mut Session, node: Option<&proto::Node>, message: &[u8]| {
            meet(seat, session, at, node, message)
        };
        // A state-of-the-world request replaces the whole subscription.
        let replaces_many = session.protocol() == Protocol::Sotw && session.names() > MANY_NAMES;
        let told = if message.len() <= LARGE_REQUEST && !replaces_many {
            handle(session, meet, &message, requests.take_versions(), now)
        } else if let Some(told) = (self.server.scheduler)
            .run_blocking(|| handle(session, meet, &message, requests.take_versions(), now))
        {
            told
        } else {
            self.requests.put_back(message);
            return None;
        };
        telemetry::hidden(self.session.take_hidden());
        Some(told.map_err(|refusal| {
            let (protocol, client) = (self.session.protocol(), self.session.client());
            let node = || match client {
                Some(client) => client.node_id.clone(),
                None => claimed_node_id(protocol, &message),
            };
            self.server.note_denial(&refusal, &*self.peer, node);
            refusal.into()
        }))
    }

    /// Next step of the session. Without a send window it composes nothing, but evaluates each change: a stream
    /// with nothing to send must not be given up for its window.
    fn next(&mut self, now: Instant) -> NextStep {
        let first_answer = self.connection.first_answer();
        if first_answer.is_due() || self.session.is_up_to_date(now) {
            return NextStep::Wait(None);
        }
        let needs_turn =
            first_answer.needs_turn() && !self.is_late(now) && self.server.scheduler.is_contended();
        let (session, upstream) = (&mut self.session, self.seat.group().origin().upstream());
        let is_held_back = self.requests.body().is_held_back();
        let is_long = session.evaluation_cost(now) > MANY_NAMES;
        let next = || {
            if is_held_back || needs_turn {
                session.next_without_room(now, upstream)
            } else {
                Some(session.next(now, upstream))
            }
        };
        let next = self.server.scheduler.run(is_long, next).unwrap_or_else(|| {
            self.connection.first_answer().keep_place();
            Some(NextStep::Wait(Some(now + RETRY)))
        });
        for kind in self.session.take_delays() {
            telemetry::count(telemetry::DELAYS, &[("type", kind.short())], 1);
        }
        if !matches!(next, Some(NextStep::Send(_))) {
            self.follow();
        }
        if let Some(next) = next {
            return next;
        }
        if is_held_back {
            self.requests.body().wait_for_window();
        } else {
            self.awaits_turn = true;
            self.connection.request_first_answer(&self.session, now);
        }
        NextStep::Wait(None)
    }

    /// Whether the first answer would be too late. A client that holds everything, and is answered with its
    /// first change, is not part of a storm.
    fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.session.first_request_at()) > LONGEST_FIRST_ANSWER_WAIT
    }

    /// Returns the next chunk; `Err` ends the stream.
    fn poll_chunk(&mut self, cx: &mut Context<'_>, mut now: Instant) -> Poll<Result<Bytes, Status>> {
        loop {
            if self.connection.is_closing() {
                return Poll::Ready(Err(Status::closing()));
            }
            let is_turn = self.connection.first_answer().is_turn() && std::mem::take(&mut self.awaits_turn);
            if is_turn && self.is_late(now) {
                self.connection.first_answer().keep_place();
                return Poll::Ready(Err(Status::overloaded()));
            }
            let mut deadline = Deadline(match self.next(now) {
                NextStep::Send(mut outgoing) => {
                    self.connection.first_answer().give();
                    if let Some(awaited) = outgoing.overdue {
                        telemetry::count(telemetry::OVERDUE, &[("awaited", awaited.label())], 1);
                    }
                    self.registration.sent(&self.session, &mut outgoing, now);
                    self.followed = self.session.progress();
                    let unsent = &self.server.unsent;
                    self.writing = Some(SendCursor::new(outgoing, &self.connection, unsent, now));
                    match self.chunk(now) {
                        Some(chunk) => return Poll::Ready(Ok(chunk)),
                        None => continue,
                    }
                }
                NextStep::Close(refusal) => return Poll::Ready(Err(refusal.into())),
                NextStep::Wait(until) => until,
            });
            if self.requests.has_whole() {
                deadline.not_after(now + RETRY);
            }
            if let Some((until, limit, why)) = self.request_deadline() {
                if now >= until {
                    return Poll::Ready(Err(Status::new(Code::DeadlineExceeded, why).over(limit)));
                }
                deadline.not_after(until);
            }
            ready!(self.timer.poll(deadline.0, cx));
            now = Instant::now();
        }
    }

    /// Time by which a request must begin to come, or be whole, and the limit and text if not.
    fn request_deadline(&self) -> Option<(Instant, Limit, &'static str)> {
        if let Some(since) = self.requests.incomplete_since() {
            let why = "a request began to come and was not whole in time";
            return Some((since + self.stall_timeout, Limit::Stall, why));
        }
        let is_owed = self.session.client().is_none() && !self.requests.has_whole();
        is_owed.then_some((self.first_due, Limit::FirstRequest, "no request came on this stream"))
    }

    fn end(&mut self, status: Status) -> http_body::Frame<Bytes> {
        self.ended = true;
        let node = self.session.client().map_or("", |client| client.node_id.as_str());
        status.report(node);
        tracing::debug!(node, code = ?status.code, reason = status.message, "stream ends");
        self.metrics.ended(status.label());
        http_body::Frame::trailers(status.into_trailers())
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        if self.session.names() > MANY_NAMES {
            self.server.scheduler.drop_in_background(self.session.leave());
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let now = Instant::now();
        if let Some(chunk) = this.chunk(now) {
            return Poll::Ready(Some(Ok(http_body::Frame::data(chunk))));
        }
        // Registered before the check, so that any later change wakes the stream.
        this.session.wake_handle().register(cx.waker());
        match this.read(cx, now) {
            // A resuming Envoy requests its routes after its clusters, and the answer for clusters depends on
            // both (R-ADS-03).
            Ok(false) => return Poll::Pending,
            Ok(true) => {}
            Err(status) => return Poll::Ready(Some(Ok(this.end(status)))),
        }
        match this.poll_chunk(cx, now) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(chunk)) => Poll::Ready(Some(Ok(http_body::Frame::data(chunk)))),
            Poll::Ready(Err(status)) => Poll::Ready(Some(Ok(this.end(status)))),
        }
    }
}
