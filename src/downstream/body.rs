//! Bodies of responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::connection::Connection;
use super::status::Status;
use super::stream::StreamBody;
use super::unsent::{Sending, Unsent};
use crate::cache::Frame;
use crate::http2::Backpressure;
use crate::rest::Answer;

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
    /// An answer to a Fetch.
    pub(super) fn unary(frame: Frame, connection: &Arc<Connection>, unsent: &Arc<Unsent>) -> Self {
        let _sending = unsent.begin(frame.chunks(), connection, Instant::now());
        Self::Unary(Box::new(Unary { frame, at: 0, _sending }))
    }

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
    pub(super) body: tonic::body::Body,
    pub(super) connection: Arc<Connection>,
    pub(super) ended: bool,
}

impl TonicBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
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
        cx: &mut Context<'_>,
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

pub(super) fn text<B>(status: StatusCode, body: impl Into<Bytes>) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::Text(Some(body.into())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
