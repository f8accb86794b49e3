//! Bodies of HTTP/1 requests.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::http2::Backpressure;

/// Body that hyper reads. Only long polls come over HTTP/1, and their answers do not change while they are
/// sent: backpressure means nothing here.
pub(super) struct Http1Body(pub(super) Incoming);

impl Backpressure for Http1Body {}

impl Body for Http1Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
