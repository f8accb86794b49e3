//! Bodies of requests and responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Either;
use hyper::body::Incoming;

use super::connection::Connection;
use super::grpc_status::Status;
use super::stream::StreamBody;
use super::unsent_memory::{SendCursor, Unsent};
use crate::http2::RequestBody;
use crate::json::JsonResponse;

/// Body of a request over HTTP/2, or over HTTP/1.
pub(super) type ClientBody = Either<RequestBody, Incoming>;

#[derive(Debug)]
pub(super) enum ResponseBody {
    /// Stream of an xDS service.
    Stream(Box<StreamBody>),
    /// JSON text that other clients share.
    Shared(Box<SendCursor<JsonResponse>>),
    /// Text for people and for clients that do not speak gRPC.
    Text(Option<Bytes>),
    /// Service of tonic: health.
    Tonic(Box<TonicBody>),
}

impl ResponseBody {
    pub(super) fn tonic(body: tonic::body::Body, connection: Arc<Connection>) -> Self {
        Self::Tonic(Box::new(TonicBody { body, connection }))
    }

    pub(super) fn json(answer: JsonResponse, connection: &Arc<Connection>, unsent: &Arc<Unsent>) -> Self {
        Self::Shared(Box::new(SendCursor::new(answer, connection, unsent, Instant::now())))
    }
}

/// Body of a service of tonic. It ends with its connection once it has nothing to send, so that a health
/// watch holds up no drain.
#[derive(Debug)]
pub(super) struct TonicBody {
    body: tonic::body::Body,
    connection: Arc<Connection>,
}

impl TonicBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        match http_body::Body::poll_frame(Pin::new(&mut self.body), cx) {
            Poll::Pending if self.connection.is_closing() => {
                // HTTP/2 ends the stream with them.
                Poll::Ready(Some(Ok(http_body::Frame::trailers(Status::closing().into_trailers()))))
            }
            polled => polled,
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Stream(stream) => Pin::new(stream.as_mut())
                .poll_frame(cx)
                .map(|next| next.map(|frame| frame.map_err(|e| match e {}))),
            Self::Shared(cursor) => Poll::Ready(cursor.next().map(|chunk| Ok(http_body::Frame::data(chunk)))),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(http_body::Frame::data(text)))),
            Self::Tonic(body) => body.poll(cx),
        }
    }

    /// True for a status alone, which then ends the stream with its headers. gRPC's C core takes an empty
    /// DATA frame behind them for a transport error and loses the status.
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Stream(_) => false,
            Self::Shared(cursor) => cursor.rest().is_empty(),
            Self::Text(text) => text.is_none(),
            Self::Tonic(body) => http_body::Body::is_end_stream(&body.body),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Text(Some(text)) => http_body::SizeHint::with_exact(text.len() as u64),
            Self::Shared(cursor) => {
                let left: usize = cursor.rest().iter().map(Bytes::len).sum();
                http_body::SizeHint::with_exact(left as u64)
            }
            _ => http_body::SizeHint::default(),
        }
    }
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Text(Some(body.into())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
