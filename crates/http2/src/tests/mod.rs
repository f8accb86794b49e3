//! The protocol by what RFC 9113 says, and the whole against a client that others wrote.

mod peer;
mod protocol;
mod socket;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};

use super::frame::{Kind, put};
use super::{Limits, hpack};

fn limits() -> Limits {
    Limits {
        max_streams: 100,
        stream_window: 10_000,
        connection_window: 70_000,
        max_head_bytes: 16 << 10,
        head_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(3600),
        keepalive_interval: Duration::from_secs(30),
        keepalive_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(60),
    }
}

fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, kind, flags, stream, payload);
    out
}

/// The head of a request with these fields beside those that each has.
fn block(more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/a")];
    fields.iter().chain(more).for_each(|(name, value)| hpack::encode(name, value.as_bytes(), &mut block));
    block
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    frame(Kind::Settings, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// Body of the answer of a service.
trait Answer: Body<Data = Bytes, Error = Infallible> + Send + Unpin {}

impl<B: Body<Data = Bytes, Error = Infallible> + Send + Unpin> Answer for B {}

/// Body of which a function gives the next piece.
struct Says<F>(F);

impl<F: FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Unpin> Body for Says<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        (self.0)(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Says this, then nothing.
fn once(mut bytes: Option<Bytes>) -> impl Answer {
    Says(move |_: &mut Context<'_>| bytes.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(bytes))))
}

/// Says one thing again and again.
fn repeat(bytes: Bytes) -> impl Answer {
    Says(move |_: &mut Context<'_>| Poll::Ready(Some(bytes.clone())))
}
