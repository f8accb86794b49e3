//! The two servers on connections in memory, the application that both serve, and what is seen of them.
//!
//! The application answers a GET at once with more than a window holds, a POST with its body when that is whole, with
//! trailers, and all else at once with nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use deltafan::http2::{RequestBody, Serve};
use h2::RecvStream;
use h2::server::{Connection, Handshake, SendResponse};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, request};
use http_body::{Body, Frame};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::http2::{CONNECTION_WINDOW, MAX_HEAD, MAX_STREAMS, RUNTIME, STREAM_WINDOW, limits};
use super::frames::{DATA, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE};

/// Answer to a GET: more than a window.
const LARGE: usize = 30_000;
const HEAD: usize = 9;

/// Everything that is seen of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stream {
    /// The request, as the application was given it: its head,
    pub(super) head: Option<Head>,
    /// its body as far as it was read,
    pub(super) body: Vec<u8>,
    /// and whether that was all.
    pub(super) whole: bool,
    /// Blocks of headers of the response.
    pub(super) blocks: usize,
    pub(super) answered: usize,
    pub(super) ended: bool,
    pub(super) reset: Option<u32>,
}

/// Everything that is seen of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) streams: BTreeMap<u32, Stream>,
    /// Windows that the peer was given beyond those that a connection begins with.
    pub(super) windows: BTreeMap<u32, usize>,
    pub(super) settings: usize,
    pub(super) pongs: Vec<Vec<u8>>,
    /// The first GOAWAY: the newest stream that it speaks of, and the code.
    pub(super) go_away: Option<(u32, u32)>,
    /// Nothing more will come of this connection.
    pub(super) over: bool,
    /// Bytes of the response bodies.
    pub(super) data: usize,
    parsed: usize,
}

impl Seen {
    /// A stream as it is now.
    pub(super) fn stream(&self, id: u32) -> Stream {
        self.streams.get(&id).cloned().unwrap_or_default()
    }

    fn stream_mut(&mut self, id: u32) -> &mut Stream {
        self.streams.entry(id).or_default()
    }

    /// Takes in the frames that a server sent since the last time.
    fn parse(&mut self, told: &[u8]) {
        while let Some((&[l0, l1, l2, kind, flags, s0, s1, s2, s3], rest)) =
            told[self.parsed..].split_first_chunk::<HEAD>()
        {
            let len = u32::from_be_bytes([0, l0, l1, l2]) as usize;
            let Some(payload) = rest.get(..len) else { break };
            self.frame(kind, flags, u32::from_be_bytes([s0, s1, s2, s3]), payload);
            self.parsed += HEAD + len;
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        let number = |at: usize| {
            payload.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_be_bytes(*four))
        };
        match kind {
            DATA => {
                self.data += payload.len();
                self.stream_mut(id).answered += payload.len();
            }
            HEADERS => self.stream_mut(id).blocks += 1,
            RST_STREAM => drop(self.stream_mut(id).reset.get_or_insert_with(|| number(0))),
            SETTINGS if flags & 1 == 1 => self.settings += 1,
            PING if flags & 1 == 1 => self.pongs.push(payload.to_vec()),
            GOAWAY => drop(self.go_away.get_or_insert_with(|| (number(0), number(4)))),
            WINDOW_UPDATE => *self.windows.entry(id).or_default() += number(0) as usize,
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            self.stream_mut(id).ended = true;
        }
    }
}

/// Requests as the application of one server was given them.
#[derive(Debug, Default)]
struct Given {
    /// The stream whose frame is being read.
    current: u32,
    streams: BTreeMap<u32, Stream>,
}

type Log = Arc<Mutex<Given>>;

/// A request's head, alike for both servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) path: String,
    /// Authority of the URI, or the field `host`.
    pub(super) authority: Vec<u8>,
    /// All others, ordered by name.
    pub(super) fields: Vec<(String, Vec<u8>)>,
}

impl Head {
    fn of(parts: &request::Parts) -> Self {
        // One of the servers keeps the authority in the URI, the other in `host`.
        let host = parts.headers.get("host").map(HeaderValue::as_bytes);
        let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes()).or(host);
        // CONNECT has none.
        let path = if parts.method == Method::CONNECT { "" } else { parts.uri.path() };
        let fields = parts.headers.iter().filter(|(name, _)| *name != "host");
        let mut fields: Vec<_> =
            fields.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
        // Fields of one name stay as they are ordered.
        fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self {
            method: parts.method.clone(),
            path: format!("{path}?{}", parts.uri.query().unwrap_or_default()),
            authority: authority.unwrap_or_default().to_vec(),
            fields,
        }
    }

    /// Whether its authority is none that a URI can have.
    pub(super) fn has_odd_authority(&self) -> bool {
        Authority::try_from(&self.authority[..]).is_err()
    }
}

fn note(log: &Log, id: u32, parts: &request::Parts) {
    let mut given = log.lock();
    let stream = Stream { head: Some(Head::of(parts)), ..Stream::default() };
    assert!(given.streams.insert(id, stream).is_none(), "one request on a stream");
}

fn note_body(log: &Log, id: u32, data: Option<&[u8]>) {
    let mut given = log.lock();
    let stream = given.streams.get_mut(&id).expect("its head came before");
    match data {
        Some(data) => stream.body.extend_from_slice(data),
        None => stream.whole = true,
    }
}

/// Notes what both sides of a server have shown.
fn look(seen: &mut Seen, log: &Log, wire: &Wire, over: bool) {
    seen.parse(&wire.0.borrow().told);
    seen.over |= over;
    for (id, given) in &log.lock().streams {
        let stream = seen.stream_mut(*id);
        stream.head.clone_from(&given.head);
        stream.body.clone_from(&given.body);
        stream.whole = given.whole;
    }
}

/// Set when a task is to be polled again.
#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls until nothing asks for more.
fn settle(mut poll: impl FnMut(&mut Context<'_>) -> bool) -> bool {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    for _ in 0..1000 {
        if poll(&mut Context::from_waker(&waker)) {
            return true;
        }
        if !woken.0.swap(false, Ordering::Relaxed) {
            return false;
        }
    }
    panic!("a server that never comes to rest");
}

#[derive(Debug, Default)]
struct Both {
    sent: Vec<u8>,
    told: Vec<u8>,
}

/// A socket in memory.
#[derive(Clone, Debug, Default)]
struct Wire(Rc<RefCell<Both>>);

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let sent = &mut self.0.borrow_mut().sent;
        if sent.is_empty() {
            // It is polled whenever there is more.
            return Poll::Pending;
        }
        let len = sent.len().min(to.remaining());
        to.put_slice(&sent[..len]);
        sent.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().told.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

// === Ours ===

type Service = Box<dyn FnMut(Request<RequestBody>) -> Answering>;
type Answering = Pin<Box<dyn Future<Output = Response<Answer>> + Send>>;

pub(super) struct Ours {
    wire: Wire,
    log: Log,
    serve: Pin<Box<Serve<Wire, Service, Answer>>>,
    pub(super) seen: Seen,
}

impl Ours {
    pub(super) fn new() -> Self {
        let (wire, log) = (Wire::default(), Log::default());
        let given = Arc::clone(&log);
        let service: Service = Box::new(move |request| Box::pin(answer_ours(request, Arc::clone(&given))));
        let serve = RUNTIME.with(|runtime| {
            let _context = runtime.enter();
            Box::pin(Serve::new(wire.clone(), limits(), service))
        });
        Self { wire, log, serve, seen: Seen::default() }
    }

    pub(super) fn send(&mut self, bytes: &[u8], stream: u32) {
        if self.seen.over {
            return;
        }
        self.wire.0.borrow_mut().sent.extend_from_slice(bytes);
        self.log.lock().current = stream;
        let over = RUNTIME.with(|runtime| {
            let _context = runtime.enter();
            settle(|cx| self.serve.as_mut().poll(cx).is_ready())
        });
        look(&mut self.seen, &self.log, &self.wire, over);
    }
}

fn answer_ours(request: Request<RequestBody>, log: Log) -> impl Future<Output = Response<Answer>> + Send {
    let (parts, mut body) = request.into_parts();
    let id = log.lock().current;
    note(&log, id, &parts);
    async move {
        let mut response = Response::new(Answer::default());
        match parts.method {
            Method::GET => {
                response.body_mut().data = Bytes::from(vec![b'y'; LARGE]);
                response.body_mut().request = Some(body);
            }
            Method::POST => {
                let mut whole = Vec::new();
                // A request that breaks off is dropped with its answer.
                while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                    let data = frame.into_data().unwrap_or_default();
                    note_body(&log, id, Some(&data));
                    whole.extend_from_slice(&data);
                }
                note_body(&log, id, None);
                response.body_mut().data = whole.into();
                response.body_mut().trailers = true;
            }
            _ => *response.status_mut() = StatusCode::NO_CONTENT,
        }
        response
    }
}

/// A response's body: what is left of it.
#[derive(Debug, Default)]
struct Answer {
    data: Bytes,
    trailers: bool,
    /// Kept and not read.
    request: Option<RequestBody>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.data.len().min(3000);
        if piece > 0 {
            return Poll::Ready(Some(Ok(Frame::data(self.data.split_to(piece)))));
        }
        let trailers = std::mem::take(&mut self.trailers);
        Poll::Ready(trailers.then(|| Ok(Frame::trailers(status()))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && !self.trailers
    }
}

fn status() -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))])
}

// === That of h2 ===

enum Phase {
    Shaking(Handshake<Wire, Bytes>),
    Open(Connection<Wire, Bytes>),
    Over,
}

/// The application at work on a request.
type Task = Pin<Box<dyn Future<Output = Result<(), h2::Error>>>>;

pub(super) struct Theirs {
    wire: Wire,
    log: Log,
    phase: Phase,
    answers: Vec<Task>,
    pub(super) seen: Seen,
}

impl Theirs {
    pub(super) fn new() -> Self {
        let wire = Wire::default();
        let handshake = h2::server::Builder::new()
            .max_concurrent_streams(MAX_STREAMS)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // Its limit is the first size that is too large.
            .max_header_list_size(MAX_HEAD as u32 + 1)
            .max_concurrent_reset_streams(64)
            .reset_stream_duration(Duration::from_secs(3600))
            .max_pending_accept_reset_streams(1000)
            .max_local_error_reset_streams(None)
            .handshake(wire.clone());
        let (log, answers) = (Log::default(), Vec::new());
        Self { wire, log, phase: Phase::Shaking(handshake), answers, seen: Seen::default() }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.wire.0.borrow_mut().sent.extend_from_slice(bytes);
        let Self { phase, answers, log, .. } = self;
        let over = settle(|cx| {
            let over = advance(phase, answers, log, cx);
            answers.retain_mut(|answer| answer.as_mut().poll(cx).is_pending());
            over
        });
        look(&mut self.seen, &self.log, &self.wire, over);
    }
}

/// Whether the connection is over.
fn advance(phase: &mut Phase, answers: &mut Vec<Task>, log: &Log, cx: &mut Context<'_>) -> bool {
    loop {
        match phase {
            Phase::Shaking(handshake) => match Pin::new(handshake).poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(connection)) => *phase = Phase::Open(connection),
                Poll::Ready(Err(_)) => *phase = Phase::Over,
            },
            Phase::Open(connection) => match connection.poll_accept(cx) {
                Poll::Pending => return false,
                Poll::Ready(Some(Ok((request, respond)))) => {
                    answers.push(Box::pin(answer_theirs(request, respond, Arc::clone(log))));
                    // It has something to say at once, which is not to wait.
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Some(Err(_)) | None) => *phase = Phase::Over,
            },
            Phase::Over => return true,
        }
    }
}

async fn answer_theirs(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    log: Log,
) -> Result<(), h2::Error> {
    let id = respond.stream_id().as_u32();
    let (parts, mut body) = request.into_parts();
    note(&log, id, &parts);
    let mut response = Response::new(());
    let (data, trailers) = match parts.method {
        Method::GET => (Bytes::from(vec![b'y'; LARGE]), false),
        Method::POST => {
            let mut whole = Vec::new();
            while let Some(data) = body.data().await {
                let Ok(data) = data else { return std::future::pending().await };
                body.flow_control().release_capacity(data.len())?;
                note_body(&log, id, Some(&data));
                whole.extend_from_slice(&data);
            }
            body.trailers().await?;
            note_body(&log, id, None);
            (Bytes::from(whole), true)
        }
        _ => {
            *response.status_mut() = StatusCode::NO_CONTENT;
            return respond.send_response(response, true).map(drop);
        }
    };
    let mut send = respond.send_response(response, false)?;
    let mut left = data;
    while !left.is_empty() {
        send.reserve_capacity(left.len());
        let Some(room) = poll_fn(|cx| send.poll_capacity(cx)).await.transpose()? else { return Ok(()) };
        let piece = left.split_to(room.min(left.len()));
        send.send_data(piece, left.is_empty() && !trailers)?;
    }
    if trailers {
        send.send_trailers(status())?;
    }
    // Its body was not read, and what of it is still to come is not needed.
    drop(body);
    Ok(())
}
