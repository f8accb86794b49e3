//! Routing of HTTP requests to the services that answer them (R-EP-01).

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Either;
use tonic::Code;
use tower::Service as _;

use super::body::{ClientBody, ResponseBody, text};
use super::grpc_status::Status;
use super::poll;
use super::server_state::{HTTP2_REMEDY, Services};
use super::stream::StreamBody;
use crate::routes;
use crate::subscription::Session;

impl Services {
    pub(super) async fn answer(self, request: Request<ClientBody>) -> Response<ResponseBody> {
        let is_head = request.method() == Method::HEAD;
        let mut response = self.route(request).await;
        if is_head {
            // HEAD receives only the status (RFC 9110, section 9.3.2).
            *response.body_mut() = ResponseBody::Text(None);
        }
        response
    }

    async fn route(self, request: Request<ClientBody>) -> Response<ResponseBody> {
        if let Some(kind) = routes::polled_type(request.uri().path()) {
            return poll::answer(kind, request, self).await;
        }
        let streamed = routes::streamed(request.uri().path());
        let is_health = request.uri().path().starts_with("/grpc.health.v1.Health/");
        if streamed.is_none() && !is_health {
            return if is_grpc(request.headers()) {
                let path: String = request.uri().path().chars().take(200).collect();
                refuse(Status::new(Code::Unimplemented, format!("the relay has no method {path}")))
            } else {
                text(StatusCode::NOT_FOUND, "no such path\n")
            };
        }
        let (head, body) = request.into_parts();
        let Either::Left(body) = body else {
            self.server.note_grpc_over_http1(&*self.peer);
            let reason = format!("this path is gRPC, which needs HTTP/2: {HTTP2_REMEDY}\n");
            return text(StatusCode::UPGRADE_REQUIRED, reason);
        };
        if head.method != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "gRPC methods are called with POST\n");
        }
        if !is_grpc(&head.headers) {
            return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "gRPC needs content-type application/grpc\n");
        }
        let Some((protocol, kind)) = streamed else {
            // Health is reported whatever memory there is: refusing it would help nobody.
            let (mut health, connection) = (self.server.health.clone(), self.connection);
            let Ok(response) = health.call(Request::from_parts(head, body)).await;
            return response.map(|body| ResponseBody::tonic(body, connection));
        };
        if self.server.admission.overload.refuses_new() {
            return refuse(Status::no_memory());
        }
        self.connection.note_served();
        if self.server.is_itself(&head.headers) {
            return refuse(Status::new(
                Code::FailedPrecondition,
                "this relay asks itself: take its own address out of `upstream.servers`",
            ));
        }
        let session = Session::new(
            Arc::clone(self.server.groups.own().group().cache()),
            self.rules,
            protocol,
            kind.map(Into::into),
            Instant::now(),
        )
        .of_relay(head.headers.contains_key(RELAY_HEADER))
        .proven(self.peer.certificate.clone())
        .charged_to(self.connection.tenant().cloned());
        let limits = &self.policy.limits;
        let stream = StreamBody::new(body, session, self.peer, self.connection, self.server, limits);
        grpc(ResponseBody::Stream(Box::new(stream)))
    }
}

/// Header that shows a relay downstream that its control plane is a relay.
const RELAY_HEADER: HeaderName = HeaderName::from_static(crate::grpc::RELAY_HEADER);
const RELAY_VALUE: &str = env!("CARGO_PKG_VERSION");

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn grpc(body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(RELAY_HEADER, HeaderValue::from_static(RELAY_VALUE));
    response
}

/// Response that is a status alone, in its head.
fn refuse(status: Status) -> Response<ResponseBody> {
    status.report("");
    let mut response = grpc(ResponseBody::Text(None));
    response.headers_mut().extend(status.into_trailers());
    response
}
