//! From an HTTP request to the service that answers it.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{self, Poll};
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use parking_lot::Mutex;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::Service as _;

use super::admission::Admission;
use super::buffered::Buffered;
use super::connection::Connection;
use super::fetch;
use super::policy::Policy;
use super::poll::{self, Caller, Polls};
use super::routes::{self, Route};
use super::status::Status;
use super::stream::StreamBody;
use super::turns::Turns;
use super::unsent::{Sending, Unsent};
use crate::cache::{Cache, Frame};
use crate::http2::Backpressure;
use crate::identity::Peer;
use crate::rest::Answer;
use crate::subscription::{Client, Hidden, Refusal, Rules, Session, Upstream};
use crate::telemetry;

/// State of the origin, as sessions see it.
#[derive(Clone, Debug, Default)]
pub struct UpstreamView(Arc<AtomicU8>);

impl UpstreamView {
    /// Says how things stand with the origin.
    pub fn set(&self, upstream: Upstream) {
        self.0.store(upstream as u8, Ordering::Release);
    }

    pub(super) fn get(&self) -> Upstream {
        let known = [Upstream::Silent, Upstream::Answering];
        let stored = self.0.load(Ordering::Acquire);
        known.into_iter().find(|known| *known as u8 == stored).unwrap_or_default()
    }
}

/// What all streams share.
#[derive(Debug)]
pub struct Context {
    /// The cache they read.
    pub cache: Arc<Cache>,
    /// The rules and limits in force for those who connect now; who is connected has its own.
    pub policy: ArcSwap<Policy>,
    /// How many denials are logged.
    pub denials: Mutex<telemetry::LogThrottle>,
    /// Who may connect.
    pub admission: Arc<Admission>,
    /// What requests take that are not whole.
    pub buffered: Arc<Buffered>,
    /// What the versions take that clients say they hold.
    pub versions: Arc<Buffered>,
    /// Count of the large messages that are being sent.
    pub unsent: Arc<Unsent>,
    /// State of the origin.
    pub upstream: UpstreamView,
    /// How many rejections are logged: a fleet may reject the same update all at once.
    pub rejections: Mutex<telemetry::Budget>,
    /// What its long polls share.
    pub polls: Polls,
    /// Whose turn it is where there is much to do.
    pub turns: Turns,
}

impl Context {
    /// Counts what the operator's rules deny a peer, and tells it: who tries the doors is not to go unseen.
    pub(super) fn note_denial(&self, refusal: &Refusal, peer: &dyn Display, client: Option<&Client>) {
        let Some(denied) = refusal.denied else { return };
        telemetry::denied(denied.label(), 1);
        if let Some(unsaid) = self.denials.lock().say(Instant::now()) {
            let node = client.map_or("", |client| client.node_id.as_str());
            // A field: what is said after the level is not escaped, and a type's name is the client's to choose.
            let why = refusal.message.as_str();
            tracing::warn!(%peer, node, what = denied.label(), why, unsaid, "denied to a client");
        }
    }

    /// Counts what a peer asked for and is not shown.
    pub(super) fn note_hidden(hidden: Hidden) {
        telemetry::denied("name", hidden.names);
        telemetry::denied("wildcard", hidden.wildcards);
    }
}

/// The body of a response.
#[derive(Debug)]
pub(super) enum ResponseBody<B> {
    /// A stream of an xDS service.
    Stream(Box<StreamBody<B>>),
    /// One gRPC message and its status.
    Unary(Box<Unary>),
    /// A text that others are sent too.
    Shared(Box<Shared>),
    /// A text for people and non-gRPC clients.
    Text(Option<Bytes>),
    /// A service of tonic's.
    Tonic(Box<TonicBody>),
}

impl<B> ResponseBody<B> {
    /// An answer to a poll.
    pub(super) fn json(answer: &Answer, connection: &Arc<Connection>, unsent: &Arc<Unsent>) -> Self {
        let _sending = unsent.begin(answer.chunks(), connection, Instant::now());
        Self::Shared(Box::new(Shared { answer: answer.clone(), at: 0, _sending }))
    }
}

/// A text that others are sent too, and how many of its pieces were taken.
#[derive(Debug)]
pub(super) struct Shared {
    _sending: Sending,
    answer: Answer,
    at: usize,
}

impl Shared {
    fn left(&self) -> &[Bytes] {
        self.answer.chunks().get(self.at..).unwrap_or_default()
    }
}

/// A message, and how many of its pieces were taken.
#[derive(Debug)]
pub(super) struct Unary {
    _sending: Sending,
    frame: Frame,
    at: usize,
}

/// The body of a service of tonic's. What has nothing more to say now ends when its connection closes: a health watch
/// would hold up a drain else.
#[derive(Debug)]
pub(super) struct TonicBody {
    body: tonic::body::Body,
    connection: Arc<Connection>,
    ended: bool,
}

impl TonicBody {
    fn poll(
        &mut self,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match http_body::Body::poll_frame(Pin::new(&mut self.body), cx) {
            Poll::Pending if self.connection.is_closing() => {
                self.ended = true;
                Poll::Ready(Some(Ok(http_body::Frame::trailers(Status::closing().into_trailers()))))
            }
            polled => polled,
        }
    }
}

impl<B> http_body::Body for ResponseBody<B>
where
    B: http_body::Body<Data = Bytes> + Backpressure + Unpin,
{
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Stream(stream) => Pin::new(stream.as_mut())
                .poll_frame(cx)
                .map(|next| next.map(|frame| frame.map_err(|e| match e {}))),
            Self::Unary(unary) => {
                let Unary { frame, at, .. } = unary.as_mut();
                *at += 1;
                Poll::Ready(match frame.chunks().get(*at - 1) {
                    Some(chunk) => Some(Ok(http_body::Frame::data(chunk.clone()))),
                    None if *at == frame.chunks().len() + 1 => {
                        Some(Ok(http_body::Frame::trailers(Status::ok().into_trailers())))
                    }
                    None => None,
                })
            }
            Self::Shared(shared) => {
                let chunk = shared.left().first().cloned();
                shared.at += 1;
                Poll::Ready(chunk.map(|chunk| Ok(http_body::Frame::data(chunk))))
            }
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(http_body::Frame::data(text)))),
            Self::Tonic(body) => body.poll(cx),
        }
    }

    /// A status alone has to end the stream with its headers: gRPC's C core takes an empty DATA frame behind them for
    /// a fault of the transport and loses the status.
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Stream(_) | Self::Unary(_) => false,
            Self::Shared(shared) => shared.left().is_empty(),
            Self::Text(text) => text.is_none(),
            Self::Tonic(body) => http_body::Body::is_end_stream(&body.body),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Text(Some(text)) => http_body::SizeHint::with_exact(text.len() as u64),
            Self::Shared(shared) => {
                let left: usize = shared.left().iter().map(Bytes::len).sum();
                http_body::SizeHint::with_exact(left as u64)
            }
            _ => http_body::SizeHint::default(),
        }
    }
}

/// One connection's view of the services.
#[derive(Debug)]
pub(super) struct Services<H> {
    pub(super) shared: Arc<Context>,
    pub(super) policy: Arc<Policy>,
    pub(super) rules: Arc<Rules>,
    pub(super) health: HealthServer<H>,
    pub(super) connection: Arc<Connection>,
    pub(super) peer: Arc<Peer>,
}

impl<H> Clone for Services<H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            policy: Arc::clone(&self.policy),
            rules: Arc::clone(&self.rules),
            health: self.health.clone(),
            connection: Arc::clone(&self.connection),
            peer: Arc::clone(&self.peer),
        }
    }
}

impl<H: Health> Services<H> {
    /// Answers a request.
    pub(super) async fn answer<B>(self, request: Request<B>) -> Response<ResponseBody<B>>
    where
        B: http_body::Body<Data = Bytes> + Backpressure + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        let is_head = request.method() == Method::HEAD;
        let mut response = self.answer_in_full(request).await;
        if is_head {
            // Nothing here is answered to HEAD but that it is not (RFC 9110, section 9.3.2).
            *response.body_mut() = ResponseBody::Text(None);
        }
        response
    }

    async fn answer_in_full<B>(self, request: Request<B>) -> Response<ResponseBody<B>>
    where
        B: http_body::Body<Data = Bytes> + Backpressure + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        if let Some(kind) = routes::poll(request.uri().path()) {
            let caller = Caller { peer: self.peer, rules: self.rules, connection: self.connection };
            return poll::answer(kind, request, caller, self.shared).await;
        }
        let route = Route::of(request.uri().path());
        let is_health = request.uri().path().starts_with("/grpc.health.v1.Health/");
        if route.is_none() && !is_health {
            return if is_grpc(&request) {
                let path: String = request.uri().path().chars().take(200).collect();
                refuse(Status::unimplemented(format!("the relay has no method {path}")))
            } else {
                text(StatusCode::NOT_FOUND, "no such path\n")
            };
        }
        if request.version() < Version::HTTP_2 {
            return text(StatusCode::UPGRADE_REQUIRED, "this path is gRPC, which needs HTTP/2\n");
        }
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "gRPC methods are called with POST\n");
        }
        if !is_grpc(&request) {
            return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "gRPC needs content-type application/grpc\n");
        }
        // Health is told as ever: it is no fault of this relay's that would be mended elsewhere.
        if route.is_some() && self.shared.admission.memory().refuses() {
            return refuse(Status::no_memory());
        }
        if route.is_some() {
            self.connection.note_served();
        }
        match route {
            Some(Route::Stream(protocol, kind)) => {
                let session = Session::new(
                    Arc::clone(&self.shared.cache),
                    self.rules,
                    protocol,
                    kind.map(Into::into),
                    Instant::now(),
                )
                .proven(self.peer.proven())
                .charged_to(self.connection.tenant().cloned());
                let (requests, limits) = (request.into_body(), &self.policy.limits);
                let body =
                    StreamBody::new(requests, session, self.peer, self.connection, self.shared, limits);
                grpc(ResponseBody::Stream(Box::new(body)))
            }
            Some(Route::Fetch(kind)) => {
                let (body, connection) = (request.into_body(), &self.connection);
                let (limits, unsent) = (&self.policy.limits, Arc::clone(&self.shared.unsent));
                match fetch::fetch(kind, body, self.peer, self.rules, connection, limits, self.shared).await {
                    Ok(frame) => {
                        let _sending = unsent.begin(frame.chunks(), connection, Instant::now());
                        grpc(ResponseBody::Unary(Box::new(Unary { frame, at: 0, _sending })))
                    }
                    Err(status) => refuse(status),
                }
            }
            None => {
                let mut health = self.health;
                match health.call(request).await {
                    Ok(response) => response.map(|body| {
                        let connection = self.connection;
                        ResponseBody::Tonic(Box::new(TonicBody { body, connection, ended: false }))
                    }),
                    Err(never) => match never {},
                }
            }
        }
    }
}

/// Tells a relay behind this one that its origin is a relay too.
const RELAY_HEADER: HeaderName = HeaderName::from_static(crate::grpc::RELAY_HEADER);
const RELAY_VALUE: &str = env!("CARGO_PKG_VERSION");

fn is_grpc<B>(request: &Request<B>) -> bool {
    request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn grpc<B>(body: ResponseBody<B>) -> Response<ResponseBody<B>> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(RELAY_HEADER, HeaderValue::from_static(RELAY_VALUE));
    response
}

/// A response that is only a status.
fn refuse<B>(status: Status) -> Response<ResponseBody<B>> {
    status.report("");
    let mut response = grpc(ResponseBody::Text(None));
    response.headers_mut().extend(status.into_trailers());
    response
}

pub(super) fn text<B>(status: StatusCode, body: impl Into<Bytes>) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::Text(Some(body.into())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
