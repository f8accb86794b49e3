//! Routing of HTTP requests to the services that answer them.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::Service as _;

use super::body::{ResponseBody, text};
use super::connection::Connection;
use super::grpc_status::Status;
use super::policy::Policy;
use super::poll;
use super::poll_request::PollClient;
use super::server_state::{HTTP2_REMEDY, ServerState};
use super::stream::StreamBody;
use super::unary;
use crate::http2::Backpressure;
use crate::identity::Peer;
use crate::routes::{self, Route};
use crate::subscription::{Session, SessionConfig};

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
                refuse(Status::unimplemented(format!("the relay has no method {path}")))
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
            return refuse(Status::failed_precondition(
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
                let (body, connection) = (request.into_body(), &self.connection);
                let (limits, unsent) = (&self.policy.limits, Arc::clone(&self.server.unsent));
                match unary::fetch(kind, body, self.peer, self.rules, connection, limits, self.server).await {
                    Ok(frame) => grpc(ResponseBody::unary(frame, connection, &unsent)),
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
