//! Routing of HTTP requests to the services that answer them (R-EP-01), unary Fetch methods included.

use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body;
use prost::Message as _;
use tonic::Code;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::Service as _;

use super::body::{ResponseBody, text};
use super::connection::{Connection, NameShare};
use super::grpc_status::Status;
use super::message_assembler::Assembler;
use super::policy::Policy;
use super::poll;
use super::poll_request::PollClient;
use super::scheduler::LazyTimer;
use super::server_state::{HTTP2_REMEDY, ServerState, claimed_node_id, enter, raw_node};
use super::stream::StreamBody;
use crate::cache::{Frame, Protocol};
use crate::fairness::{LARGE_REQUEST, MANY_NAMES, RETRY};
use crate::http2::Backpressure;
use crate::identity::Peer;
use crate::limit::Limit;
use crate::proto;
use crate::resource::Kind;
use crate::routes::{self, Route};
use crate::subscription::{NextStep, Session, SessionConfig};
use crate::upstream::Stay;

#[derive(Debug)]
pub(super) struct Services<H> {
    pub(super) server: Arc<ServerState>,
    pub(super) policy: Arc<Policy>,
    pub(super) rules: Arc<SessionConfig>,
    pub(super) health: HealthServer<H>,
    pub(super) connection: Arc<Connection>,
    pub(super) peer: Arc<Peer>,
}

impl<H> Clone for Services<H> {
    fn clone(&self) -> Self {
        Self {
            server: Arc::clone(&self.server),
            policy: Arc::clone(&self.policy),
            rules: Arc::clone(&self.rules),
            health: self.health.clone(),
            connection: Arc::clone(&self.connection),
            peer: Arc::clone(&self.peer),
        }
    }
}

impl<H: Health> Services<H> {
    pub(super) async fn answer<B>(self, request: Request<B>) -> Response<ResponseBody<B>>
    where
        B: http_body::Body<Data = Bytes> + Backpressure + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        let is_head = request.method() == Method::HEAD;
        let mut response = self.route(request).await;
        if is_head {
            // HEAD receives only the status (RFC 9110, section 9.3.2).
            *response.body_mut() = ResponseBody::Text(None);
        }
        response
    }

    async fn route<B>(self, request: Request<B>) -> Response<ResponseBody<B>>
    where
        B: http_body::Body<Data = Bytes> + Backpressure + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        if let Some(kind) = routes::polled_type(request.uri().path()) {
            let client = PollClient { peer: self.peer, rules: self.rules, connection: self.connection };
            return poll::answer(kind, request, client, self.server).await;
        }
        let route = Route::of(request.uri().path());
        let is_health = request.uri().path().starts_with("/grpc.health.v1.Health/");
        if route.is_none() && !is_health {
            return if is_grpc(&request) {
                let path: String = request.uri().path().chars().take(200).collect();
                refuse(Status::new(Code::Unimplemented, format!("the relay has no method {path}")))
            } else {
                text(StatusCode::NOT_FOUND, "no such path\n")
            };
        }
        if request.version() < Version::HTTP_2 {
            self.server.note_grpc_over_http1(&*self.peer);
            let reason = format!("this path is gRPC, which needs HTTP/2: {HTTP2_REMEDY}\n");
            return text(StatusCode::UPGRADE_REQUIRED, reason);
        }
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "gRPC methods are called with POST\n");
        }
        if !is_grpc(&request) {
            return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "gRPC needs content-type application/grpc\n");
        }
        // Health is reported regardless: refusing it would help nobody.
        if route.is_some() && self.server.admission.overload().refuses_new() {
            return refuse(Status::no_memory());
        }
        if route.is_some() {
            self.connection.note_served();
        }
        if route.is_some() && self.server.is_itself(request.headers()) {
            return refuse(Status::new(
                Code::FailedPrecondition,
                "this relay asks itself: take its own address out of `upstream.servers`",
            ));
        }
        match route {
            Some(Route::Stream(protocol, kind)) => {
                let session = Session::new(
                    Arc::clone(self.server.groups.own().group().cache()),
                    self.rules,
                    protocol,
                    kind.map(Into::into),
                    Instant::now(),
                )
                .of_relay(request.headers().contains_key(RELAY_HEADER))
                .proven(self.peer.certificate.clone())
                .charged_to(self.connection.tenant().cloned());
                let (requests, limits) = (request.into_body(), &self.policy.limits);
                let body =
                    StreamBody::new(requests, session, self.peer, self.connection, self.server, limits);
                grpc(ResponseBody::Stream(Box::new(body)))
            }
            Some(Route::Fetch(kind)) => {
                let (connection, unsent) = (Arc::clone(&self.connection), Arc::clone(&self.server.unsent));
                match self.fetch(kind, request.into_body()).await {
                    Ok(frame) => grpc(ResponseBody::unary(frame, &connection, &unsent)),
                    Err(status) => refuse(status),
                }
            }
            None => {
                let mut health = self.health;
                match health.call(request).await {
                    Ok(response) => response.map(|body| ResponseBody::tonic(body, self.connection)),
                    Err(never) => match never {},
                }
            }
        }
    }

    /// Reads the request and waits until every requested resource is known.
    async fn fetch<B>(self, kind: Kind, body: B) -> Result<Frame, Status>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let Self { server, policy, rules, connection, peer, .. } = self;
        let limits = &policy.limits;
        let mut requests = Assembler::new(body, limits.max_request_bytes);
        let read = std::future::poll_fn(|cx| match requests.poll_message(cx) {
            Poll::Pending => match requests.charge(&server.buffered, &connection, Instant::now()) {
                Ok(()) => Poll::Pending,
                Err(status) => Poll::Ready(Some(Err(status))),
            },
            read => read,
        });
        let message = tokio::time::timeout(limits.first_request_timeout, read)
            .await
            .map_err(|_| Status::new(Code::DeadlineExceeded, "no request came").over(Limit::FirstRequest))?
            .ok_or_else(|| Status::new(Code::InvalidArgument, "a request is required"))??;
        rules.check_parts(Protocol::Sotw, &message)?;
        // The request is whole: its memory no longer counts.
        drop(requests);
        let (cold_deadline, is_long) = (rules.cold_deadline, message.len() > LARGE_REQUEST);
        let mut seat = server.groups.own();
        let cache = Arc::clone(seat.group().cache());
        let session = Session::new(cache, rules, Protocol::Sotw, Some(kind.into()), Instant::now())
            .one_shot()
            .proven(peer.certificate.clone())
            .charged_to(connection.tenant().cloned());
        let mut session = server.scheduler.drop_guard(session, |session| session.names() > MANY_NAMES);
        let hear = || -> Result<(), Status> {
            let request = proto::DiscoveryRequest::decode(message.clone()).map_err(|error| {
                Status::new(Code::InvalidArgument, format!("the request is no DiscoveryRequest: {error}"))
            })?;
            let hear = || {
                if let Some(node) = &request.node {
                    let raw = || raw_node(Protocol::Sotw, &message);
                    seat = enter(&server, session.rules(), &peer, &connection, (node, Stay::Visit), raw)?;
                    session.enter(Arc::clone(seat.group().cache()));
                }
                session.on_sotw_request(request, Instant::now())
            };
            let heard = hear();
            let node = || claimed_node_id(Protocol::Sotw, &message);
            heard.inspect_err(|refusal| server.note_denial(refusal, &*peer, node))?;
            Ok(())
        };
        server.scheduler.run_when_free(is_long, hear).await?;
        let mut names = NameShare::new(&connection);
        if let Some(all) = names.set(session.names(), session.name_bytes()) {
            session.rules().check_connection(all)?;
        }
        ServerState::note_hidden(session.take_hidden());
        let mut timer = LazyTimer::default();
        let answer = std::future::poll_fn(|cx| {
            session.wake_handle().register(cx.waker());
            loop {
                let (now, upstream) = (Instant::now(), seat.group().upstream());
                let is_long = session.evaluation_cost(now) > MANY_NAMES;
                let next = server.scheduler.run(is_long, || session.next(now, upstream));
                match next.unwrap_or(NextStep::Wait(Some(now + RETRY))) {
                    NextStep::Send(outgoing) => return Poll::Ready(Ok(outgoing.frame)),
                    NextStep::Close(refusal) => return Poll::Ready(Err(refusal.into())),
                    NextStep::Wait(deadline) => ready!(timer.poll(deadline, cx)),
                }
            }
        });
        tokio::time::timeout(cold_deadline, answer).await.map_err(|_| {
            Status::new(
                Code::Unavailable,
                "the control plane has not answered for what was asked for; try again",
            )
        })?
    }
}

/// Header that shows a relay downstream that its control plane is a relay.
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

fn refuse<B>(status: Status) -> Response<ResponseBody<B>> {
    status.report("");
    let mut response = grpc(ResponseBody::Text(None));
    response.headers_mut().extend(status.into_trailers());
    response
}
