//! REST-JSON long polls over HTTP (R-REST-01).
//!
//! Moves a request to a [`Poll`] and its verdict to a response. A poll that waits is this future and nothing else: no
//! task, no queue, and what was needed to read the request is gone. When the client hangs up, the transport drops the
//! future, and with it the poll, its place in the cohort and the interest upstream.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::task::{self, Poll as Look, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use parking_lot::Mutex;

use super::alarm::Alarm;
use super::connection::Connection;
use super::peers::{Held, Peers};
use super::service::{Context, ResponseBody, text};
use crate::identity::{Peer, Source};
use crate::proto;
use crate::resource::Kind;
use crate::rest::{self, Answer, Book, Unwritable};
use crate::subscription::{Code, Memory, Poll, Refusal, Rules, Verdict};
use crate::telemetry::{self, PollGauge, PollOutcome};

/// How long a client waits for its answer, says Envoy.
const EXPECTED_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";
/// What is left of that for the way: this, or a fifth of it where it is short.
const MARGIN: Duration = Duration::from_millis(200);
/// How long an answer that cannot be written is at most held back: less where the hold is shorter.
const PENANCE: Duration = Duration::from_secs(1);
/// When who was refused for the number of polls, or for what is not known, may try again, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// What all polls share.
#[derive(Debug)]
pub struct Polls {
    hold: Duration,
    /// How long a connection over HTTP/1 may be without a request.
    pub(super) idle_timeout: Duration,
    book: Arc<Book>,
    memory: Memory,
    peers: Arc<Peers>,
    complaints: Mutex<telemetry::Sparingly>,
}

impl Polls {
    /// Polls that are held for so long, so many of one peer, and answered out of a book.
    pub fn new(hold: Duration, idle_timeout: Duration, max_polls_per_peer: usize, book: Arc<Book>) -> Self {
        Self {
            hold,
            idle_timeout,
            book,
            memory: Memory::default(),
            peers: Peers::new(max_polls_per_peer),
            complaints: Mutex::default(),
        }
    }

    /// How long a request with these headers may be held (R-REST-06).
    fn hold(&self, headers: &HeaderMap) -> Duration {
        let expected = headers.get(EXPECTED_TIMEOUT).and_then(|value| value.to_str().ok()?.parse().ok());
        match expected.map(Duration::from_millis) {
            // Envoy does not send a timeout that is switched off; zero is no time to answer in.
            None | Some(Duration::ZERO) => self.hold,
            Some(expected) => self.hold.min(expected - MARGIN.min(expected / 5)),
        }
    }
}

/// Who polls, and over what.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) peer: Arc<Peer>,
    pub(super) rules: Arc<Rules>,
    pub(super) connection: Arc<Connection>,
}

/// Answers a request for a path of REST-JSON.
pub(super) async fn answer<B>(
    kind: Kind,
    request: Request<B>,
    caller: Caller,
    shared: Arc<Context>,
) -> Response<ResponseBody<B>>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    if request.method() != Method::POST {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "REST-JSON is asked with POST\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let now = Instant::now();
    let mut gauge = PollGauge::open(kind.short());
    // In a box, so that a poll that waits does not keep the room that reading took.
    let opened = Box::pin(open(kind, request, &caller, &shared, now)).await;
    let ended = match opened {
        Ok(poll) => {
            let waiting =
                Waiting { poll, held: None, alarm: Alarm::default(), caller, shared: Arc::clone(&shared) };
            wait(waiting, &mut gauge).await
        }
        Err(fault) => Err(fault),
    };
    let done = match ended {
        Ok(Ended { poll, verdict }) => Box::pin(write(poll, verdict, &shared)).await,
        Err(fault) => Err(fault),
    };
    match done {
        Ok(Written { answer, waited }) => {
            gauge.answered(answer.len(), waited);
            let mut response = Response::new(ResponseBody::json(&answer));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(fault) => {
            gauge.ended(fault.outcome);
            fault.into_response()
        }
    }
}

/// An end without an answer.
struct Fault {
    outcome: PollOutcome,
    status: StatusCode,
    /// For the one who asked; there is nothing to say about 304.
    reason: Option<String>,
}

impl Fault {
    fn new(outcome: PollOutcome, status: StatusCode, reason: impl Into<String>) -> Self {
        Self { outcome, status, reason: Some(reason.into()) }
    }

    fn refused(status: StatusCode, reason: impl Into<String>) -> Self {
        Self::new(PollOutcome::Refused, status, reason)
    }

    fn into_response<B>(self) -> Response<ResponseBody<B>> {
        let Some(mut reason) = self.reason else {
            let mut response = Response::new(ResponseBody::Text(None));
            *response.status_mut() = self.status;
            return response;
        };
        reason.push('\n');
        let mut response = text(self.status, reason);
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.code {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::refused(status, refusal.message)
    }
}

/// Reads a request and takes its place among those who wait for the same.
async fn open<B>(
    kind: Kind,
    request: Request<B>,
    caller: &Caller,
    shared: &Context,
    now: Instant,
) -> Result<Poll, Fault>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    // The type of the body is not looked at: it can only be one, and curl says another unless told otherwise.
    let (head, body) = request.into_parts();
    let codings = head.headers.get_all(header::CONTENT_ENCODING);
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Fault::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed"));
    }
    let body = read(body, shared).await?;
    let request = parse(&body, &shared.rules)?;
    drop(body);
    // Who is on this machine shares a socket as others do an address.
    let peer = match caller.peer.source {
        Source::Ip(IpAddr::V4(address)) => address.to_ipv6_mapped(),
        Source::Ip(IpAddr::V6(address)) => address,
        Source::Unix => Ipv6Addr::UNSPECIFIED,
    };
    let polls = &shared.polls;
    let hold = polls.hold(&head.headers);
    Ok(Poll::new(&shared.cache, &caller.rules, &polls.memory, kind, request, &peer.octets(), hold, now)?)
}

async fn read<B>(body: B, shared: &Context) -> Result<Bytes, Fault>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let limit = shared.limits.max_request_bytes;
    let too_large = || {
        let reason = format!("a request of more than {limit} bytes is over the limit");
        Fault::refused(StatusCode::PAYLOAD_TOO_LARGE, reason)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let patience = shared.limits.first_request_timeout;
    let read = tokio::time::timeout(patience, Limited::new(body, limit).collect()).await;
    let read =
        read.map_err(|_| Fault::refused(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"))?;
    let body = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => too_large(),
        None => Fault::refused(StatusCode::BAD_REQUEST, format!("the body is not whole: {error}")),
    })?;
    Ok(body.to_bytes())
}

fn parse(body: &[u8], rules: &Rules) -> Result<proto::DiscoveryRequest, Fault> {
    rest::read(body, rules.max_names, !rules.given.is_empty())
        .map_err(|error| Fault::refused(StatusCode::BAD_REQUEST, error.to_string()))
}

/// A poll that waits.
struct Waiting {
    poll: Poll,
    /// Its place among those of its peer, once it needs one.
    held: Option<Held>,
    alarm: Alarm,
    caller: Caller,
    shared: Arc<Context>,
}

/// A poll that no longer does.
struct Ended {
    poll: Poll,
    verdict: Verdict,
}

async fn wait(waiting: Waiting, gauge: &mut PollGauge) -> Result<Ended, Fault> {
    let mut waiting = waiting;
    let verdict = std::future::poll_fn(|cx| waiting.look(cx, gauge)).await?;
    Ok(Ended { poll: waiting.poll, verdict })
}

impl Waiting {
    fn look(&mut self, cx: &mut task::Context<'_>, gauge: &mut PollGauge) -> Look<Result<Verdict, Fault>> {
        // Registered before looking, so that what changes from here on wakes the poll.
        self.poll.mailbox().register(cx.waker());
        loop {
            let (now, upstream) = (Instant::now(), self.shared.upstream.get());
            // A connection that closes waits for what is open on it.
            let verdict = if self.caller.connection.is_closing() {
                self.poll.expire(now, upstream)
            } else {
                self.poll.next(now, upstream)
            };
            let Verdict::Wait(until) = verdict else { return Look::Ready(Ok(verdict)) };
            if self.held.is_none() {
                self.held = self.shared.polls.peers.hold(self.caller.peer.source);
                if self.held.is_none() {
                    return Look::Ready(Err(too_many()));
                }
                gauge.parked();
            }
            ready!(self.alarm.poll(Some(until), cx));
        }
    }
}

fn too_many() -> Fault {
    let reason = "too many requests of this address are held already (rest.max_polls_per_peer)";
    Fault::new(PollOutcome::TooMany, StatusCode::TOO_MANY_REQUESTS, reason)
}

/// What a poll is given.
struct Written {
    answer: Answer,
    /// Since the newest change that it waited for.
    waited: Option<Duration>,
}

async fn write(poll: Poll, verdict: Verdict, shared: &Context) -> Result<Written, Fault> {
    let polls = &shared.polls;
    let written = match verdict {
        Verdict::Answer(version) => polls.book.answer(poll.type_url(), version, || poll.found()).await,
        Verdict::Unknown => {
            poll.end(None, &polls.memory, Instant::now());
            let reason = "the control plane has not answered for what was asked for; try again";
            return Err(Fault::new(PollOutcome::Unknown, StatusCode::SERVICE_UNAVAILABLE, reason));
        }
        Verdict::NotModified | Verdict::Wait(_) => {
            poll.end(None, &polls.memory, Instant::now());
            let (outcome, status) = (PollOutcome::NotModified, StatusCode::NOT_MODIFIED);
            return Err(Fault { outcome, status, reason: None });
        }
    };
    let now = Instant::now();
    match written {
        Ok(answer) => {
            let waited = poll.changed_at().map(|changed| now.saturating_duration_since(changed));
            poll.end(Some(answer.version), &polls.memory, now);
            Ok(Written { answer, waited })
        }
        Err(error) => {
            // An operator can mend it; the client cannot.
            if let Some(unsaid) = polls.complaints.lock().say(now) {
                tracing::warn!(type_url = poll.type_url().as_str(), %error, unsaid, "a poll cannot be answered");
            }
            // Nothing will be better at once, and a fleet would come back at once.
            let until = poll.until().min(now + PENANCE);
            drop(poll);
            tokio::time::sleep_until(until.into()).await;
            let outcome = match error {
                Unwritable::UnknownType { .. } => PollOutcome::UnknownType,
                Unwritable::Broken { .. } | Unwritable::Failed => PollOutcome::Unwritable,
            };
            Err(Fault::new(outcome, StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
        }
    }
}
