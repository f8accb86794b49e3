//! REST-JSON long polls over HTTP (R-REST-01).
//!
//! Moves a request to a [`Poll`] and its verdict to a response. A poll that waits is this future and nothing else: no
//! task, no queue, and what was needed to read the request is gone. When the client hangs up, the transport drops the
//! future, and with it the poll, its place in the cohort and the interest upstream.

use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll as Look, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::alarm::Alarm;
use super::buffered::Share;
use super::connection::Connection;
use super::names::NameShare;
use super::peers::{Held, Peers};
use super::policy::Policy;
use super::service::{Context, ResponseBody, text};
use super::status::{limit_of, report};
use super::turns::{LARGE, LongDrop, MANY, MOMENT, give_way};
use crate::identity::{Peer, Source};
use crate::proto;
use crate::resource::Kind;
use crate::rest::{self, Answer, BadRequest, Book, OutOfBounds, Unwritable};
use crate::subscription::{Asker, Code, Memory, Poll, Refusal, Rules, Verdict};
use crate::telemetry::{self, Limit, PollGauge, PollOutcome};

/// How long a client waits for its answer, says Envoy.
const EXPECTED_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";
/// What is left of that for the way: this, or a fifth of it where it is short.
const MARGIN: Duration = Duration::from_millis(200);
/// How long a body is read, however fast it comes, before others have their turn.
const SLICE: Duration = Duration::from_micros(500);
/// How long an answer that cannot be written is at most held back: less where the hold is shorter.
const PENANCE: Duration = Duration::from_secs(1);
/// Said to a client whose request has not come whole when its connection closes.
const CLOSING: &str = "the relay closes this connection; reconnect";
/// When who was refused for the number of polls, or for what is not known, may try again, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// What all polls share.
#[derive(Debug)]
pub struct Polls {
    book: Arc<Book>,
    memory: Memory,
    peers: Arc<Peers>,
    complaints: Mutex<telemetry::LogThrottle>,
    /// Whose turn it is to have a large request read.
    readers: Arc<Semaphore>,
}

impl Polls {
    /// Polls that are answered out of a book.
    pub fn new(book: Arc<Book>) -> Self {
        Self {
            book,
            memory: Memory::default(),
            peers: Arc::default(),
            complaints: Mutex::default(),
            readers: Arc::new(Semaphore::new(1)),
        }
    }

    /// Lets go of what nobody asks for any more. To be called now and then.
    pub async fn tidy(&self) {
        self.book.tidy().await;
    }
}

/// How long a request with these headers may be held, `longest` at most (R-REST-06).
fn hold(longest: Duration, headers: &HeaderMap) -> Duration {
    let expected = headers.get(EXPECTED_TIMEOUT).and_then(|value| value.to_str().ok()?.parse().ok());
    match expected.map(Duration::from_millis) {
        // Envoy does not send a timeout that is switched off; zero is no time to answer in.
        None | Some(Duration::ZERO) => longest,
        Some(expected) => longest.min(expected - MARGIN.min(expected / 5)),
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
        Box::pin(discard(request.into_body(), &shared.policy.load_full())).await;
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "REST-JSON is asked with POST\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let now = Instant::now();
    let mut gauge = PollGauge::open(kind.short());
    if shared.admission.memory().refuses() {
        gauge.ended(PollOutcome::Refused);
        let reason = "the relay is short of memory; try another server or again";
        return Fault::refused(StatusCode::SERVICE_UNAVAILABLE, reason)
            .over(Limit::MemoryRefuse)
            .into_response();
    }
    caller.connection.note_served();
    let connection = Arc::clone(&caller.connection);
    // In a box, so that a poll that waits does not keep the room that reading took.
    let opened = Box::pin(open(kind, request, &caller, &shared, now)).await;
    let ended = match opened {
        Ok(Opened { poll, held, names }) => {
            let waiting = Waiting {
                poll,
                held,
                names,
                parked: false,
                alarm: Alarm::default(),
                caller,
                shared: Arc::clone(&shared),
            };
            wait(waiting, &mut gauge).await
        }
        Err(fault) => Err(fault),
    };
    let done = match ended {
        // Its names count until it is answered.
        Ok(Ended { poll, verdict, names: _names }) => Box::pin(write(poll, verdict, &shared)).await,
        Err(fault) => Err(fault),
    };
    match done {
        Ok(Written { answer, waited }) => {
            gauge.answered(answer.len(), waited);
            let mut response = Response::new(ResponseBody::json(&answer, &connection, &shared.unsent));
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
    /// The limit that was reached, where it was one.
    limit: Option<Limit>,
}

impl Fault {
    fn new(outcome: PollOutcome, status: StatusCode, reason: impl Into<String>) -> Self {
        Self { outcome, status, reason: Some(reason.into()), limit: None }
    }

    fn refused(status: StatusCode, reason: impl Into<String>) -> Self {
        Self::new(PollOutcome::Refused, status, reason)
    }

    const fn over(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    fn into_response<B>(self) -> Response<ResponseBody<B>> {
        let Some(mut reason) = self.reason else {
            let mut response = Response::new(ResponseBody::Text(None));
            *response.status_mut() = self.status;
            return response;
        };
        if let Some(limit) = self.limit {
            report(limit, "a client of REST-JSON", &reason);
        }
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
        Self { limit: refusal.bound.map(limit_of), ..Self::refused(status, refusal.message) }
    }
}

/// Reads a request and takes its place among those who wait for the same.
async fn open<B>(
    kind: Kind,
    request: Request<B>,
    caller: &Caller,
    shared: &Context,
    now: Instant,
) -> Result<Opened, Fault>
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
    let mut held = None;
    // A connection may be older than what is in force.
    let policy = shared.policy.load_full();
    let (body, share) = read(body, caller, &policy, shared, &mut held).await?;
    let request = if body.len() > LARGE {
        let (rules, turn) =
            (Arc::clone(&caller.rules), Arc::clone(&shared.polls.readers).acquire_owned().await);
        // What it takes is counted until it is read, also if nobody waits for that any more.
        let kept = (turn, share);
        let read = aside(move || {
            let read = parse(&body, &rules);
            drop(body);
            drop(kept);
            read
        });
        let read = read.await;
        read.ok_or_else(|| Fault::refused(StatusCode::INTERNAL_SERVER_ERROR, "reading it failed"))??
    } else {
        let read = parse(&body, &caller.rules);
        drop(share);
        read?
    };
    // Who is on this machine shares a socket as others do an address.
    let peer = match caller.peer.source {
        Source::Ip(IpAddr::V4(address)) => address.to_ipv6_mapped(),
        Source::Ip(IpAddr::V6(address)) => address,
        Source::Unix => Ipv6Addr::UNSPECIFIED,
    };
    let polls = &shared.polls;
    let hold = hold(policy.polls.hold, &head.headers);
    let (spiffe_id, tenant) = (caller.peer.spiffe_id(), caller.connection.tenant());
    let from = Asker { key: &peer.octets(), spiffe_id, tenant };
    let is_long = request.resource_names.len() + request.resource_locators.len() > MANY;
    let read = || Poll::new(&shared.cache, &caller.rules, &polls.memory, kind, request, from, hold, now);
    let poll = shared.turns.work_soon(is_long, read).await;
    let poll = poll.inspect_err(|refusal| shared.note_denial(refusal, &*caller.peer, None))?;
    Context::note_hidden(poll.hidden());
    let mut names = NameShare::new(&caller.connection);
    if let Some(all) = names.set(poll.names(), poll.name_bytes()) {
        // Other requests of the connection take what there is: this one is not too large.
        caller
            .rules
            .check_connection(all)
            .map_err(|refusal| Fault { status: StatusCode::SERVICE_UNAVAILABLE, ..Fault::from(refusal) })?;
    }
    let poll = shared.turns.owning(poll, |poll| poll.names() > MANY);
    Ok(Opened { poll, held, names })
}

/// Reads a body into one buffer. Its pieces are copied: each may be a byte that keeps all of a buffer that was read into.
async fn read<B>(
    body: B,
    caller: &Caller,
    policy: &Policy,
    shared: &Context,
    held: &mut Option<Held>,
) -> Result<(Bytes, Share), Fault>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let limit = policy.limits.max_request_bytes;
    let too_large = || {
        let reason = format!("a request of more than {limit} bytes is over the limit");
        Fault::refused(StatusCode::PAYLOAD_TOO_LARGE, reason).over(Limit::RequestBytes)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let patience = policy.limits.first_request_timeout;
    let mut share = Share::new(&shared.buffered, &caller.connection);
    let collect = async {
        let (mut body, mut read, mut turn) = (body, BytesMut::new(), Instant::now());
        let mut next = |cx: &mut task::Context<'_>| {
            // A connection that closes does not wait for what may never come.
            if caller.connection.is_closing() {
                return Look::Ready(Err(Fault::refused(StatusCode::SERVICE_UNAVAILABLE, CLOSING)));
            }
            let polled = Pin::new(&mut body).poll_frame(cx);
            if polled.is_pending() && held.is_none() {
                let per_peer = policy.polls.max_polls_per_peer;
                *held = Some(shared.polls.peers.hold(caller.peer.source, per_peer).ok_or_else(too_many)?);
            }
            polled.map(Ok)
        };
        while let Some(frame) = std::future::poll_fn(&mut next).await? {
            let frame = frame.map_err(|error| {
                Fault::refused(StatusCode::BAD_REQUEST, format!("the body is not whole: {error}"))
            })?;
            let data = frame.into_data().unwrap_or_default();
            if read.len() + data.len() > limit {
                return Err(too_large());
            }
            read.extend_from_slice(&data);
            share.set(read.capacity()).map_err(|limit| {
                let reason = "too much of requests has come that are not whole yet";
                Fault::refused(StatusCode::SERVICE_UNAVAILABLE, reason).over(limit)
            })?;
            if turn.elapsed() >= SLICE {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
        Ok(read.freeze())
    };
    let late = || Fault::refused(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    let read = tokio::time::timeout(patience, collect).await;
    let body = read.map_err(|_| late().over(Limit::FirstRequest))??;
    Ok((body, share))
}

/// Reads a body that nobody needs: behind an answer that comes before its end the connection could not be used again.
async fn discard<B>(mut body: B, policy: &Policy)
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let limit = policy.limits.max_request_bytes;
    let read = async {
        let mut length = 0;
        while length <= limit
            && let Some(Ok(frame)) = body.frame().await
        {
            length += frame.into_data().map_or(0, |data| data.len());
        }
    };
    // Who takes longer is answered all the same.
    _ = tokio::time::timeout(policy.limits.first_request_timeout, read).await;
}

/// Does what takes long on a thread of its own, which gives way to those that serve everybody. `None` where there is none
/// to be had, or the work panicked.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = move || {
        give_way();
        _ = tell.send(work());
    };
    std::thread::Builder::new().name("reader".to_owned()).spawn(work).ok()?;
    told.await.ok()
}

fn parse(body: &[u8], rules: &Rules) -> Result<proto::DiscoveryRequest, Fault> {
    rest::read(body, rules.max_names, !rules.given.is_empty()).map_err(|error| match error {
        BadRequest::OutOfBounds(OutOfBounds::TooMany(_)) => {
            Fault::refused(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).over(Limit::Names)
        }
        _ => Fault::refused(StatusCode::BAD_REQUEST, error.to_string()),
    })
}

/// A poll that was read.
struct Opened {
    poll: LongDrop<Poll>,
    /// Its place among those of its peer, if it needs one already.
    held: Option<Held>,
    names: NameShare,
}

/// A poll that waits.
struct Waiting {
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
struct Ended {
    poll: LongDrop<Poll>,
    verdict: Verdict,
    names: NameShare,
}

async fn wait(waiting: Waiting, gauge: &mut PollGauge) -> Result<Ended, Fault> {
    let mut waiting = waiting;
    let verdict = std::future::poll_fn(|cx| waiting.look(cx, gauge)).await?;
    Ok(Ended { poll: waiting.poll, verdict, names: waiting.names })
}

impl Waiting {
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
                let limit = self.shared.policy.load().polls.max_polls_per_peer;
                let held = self.shared.polls.peers.hold(self.caller.peer.source, limit);
                self.held = Some(held.ok_or_else(too_many)?);
            }
            if !std::mem::replace(&mut self.parked, true) {
                gauge.parked();
            }
            ready!(self.alarm.poll(Some(until), cx));
        }
    }
}

fn too_many() -> Fault {
    let reason = "too many requests of this address are held already (rest.max_polls_per_peer)";
    Fault::new(PollOutcome::TooMany, StatusCode::TOO_MANY_REQUESTS, reason).over(Limit::Polls)
}

/// What a poll is given.
struct Written {
    answer: Answer,
    /// Since the newest change that it waited for.
    waited: Option<Duration>,
}

async fn write(poll: LongDrop<Poll>, verdict: Verdict, shared: &Context) -> Result<Written, Fault> {
    let polls = &shared.polls;
    let written = match verdict {
        Verdict::Answer(version) => {
            let found = || {
                let found = shared.turns.work(poll.names() > MANY, || poll.found());
                found.unwrap_or_else(|| poll.found())
            };
            polls.book.answer(poll.type_url(), version, &poll.asked(), found).await
        }
        Verdict::Unknown => {
            poll.end(None, &polls.memory, Instant::now());
            let reason = "the control plane has not answered for what was asked for; try again";
            return Err(Fault::new(PollOutcome::Unknown, StatusCode::SERVICE_UNAVAILABLE, reason));
        }
        Verdict::NotModified | Verdict::Wait(_) => {
            poll.end(None, &polls.memory, Instant::now());
            let (outcome, status) = (PollOutcome::NotModified, StatusCode::NOT_MODIFIED);
            return Err(Fault { outcome, status, reason: None, limit: None });
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
