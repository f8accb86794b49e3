//! One HTTP/2 connection and whatever its peer sends, in whatever pieces: no panic, whole frames within the windows that
//! the peer has opened, and answers in proportion to what came.

use std::convert::Infallible;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use deltafan::http2::{Limits, PREFACE, RequestBody, Serve};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Runtime;

use super::input::Input;

const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const DEFAULT_WINDOW: usize = 65_535;
const MAX_PAYLOAD: usize = 16 << 10;
/// `:method: POST`, `:scheme: http`, `:path: /` and `:authority: relay`.
const REQUEST: &[u8] = b"\x83\x86\x84\x41\x05relay";

/// How pieces are cut, then frames in a short form.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (read, write, shut_down) = (input.byte(), input.byte(), input.byte());
    let sent = frames(&mut input);
    let mut pipe = Pipe { sent: &sent, read: step(read), write: step(write), pause: false, told: Vec::new() };
    serve(&mut pipe, usize::from(shut_down));
    check(&pipe.told, &sent);
}

/// Small numbers are lengths, large ones anything.
fn step(byte: u8) -> usize {
    if byte < 100 { usize::from(byte) + 1 } else { usize::MAX }
}

fn frames(input: &mut Input<'_>) -> Vec<u8> {
    let mut sent = Vec::new();
    let kind = input.byte();
    if kind != 0xff {
        sent.extend_from_slice(PREFACE);
    }
    while !input.is_empty() {
        let (kind, flags, stream) = (input.byte(), input.byte(), input.byte());
        let mut put = |kind: u8, flags: u8, payload: &[u8]| {
            sent.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
            sent.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
            sent.extend_from_slice(payload);
        };
        match kind {
            0..=11 => put(kind, flags, input.piece()),
            12 => put(HEADERS, 4 | flags & 1, REQUEST),
            13 => put(HEADERS, 4 | flags & 1, &[REQUEST, input.piece()].concat()),
            14 => put(DATA, flags & 1, &vec![b'x'; usize::from(input.byte()) * 100]),
            _ => sent.extend_from_slice(input.piece()),
        }
    }
    sent
}

const MAX_STREAMS: u32 = 5;
const STREAM_WINDOW: u32 = 10_000;
const CONNECTION_WINDOW: u32 = 70_000;
const MAX_HEAD: usize = 1000;

fn limits() -> Arc<Limits> {
    let second = Duration::from_secs(1);
    Arc::new(Limits {
        max_streams: MAX_STREAMS,
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        max_head_bytes: MAX_HEAD,
        head_timeout: 5 * second,
        keepalive_interval: 30 * second,
        keepalive_timeout: 10 * second,
        stall_timeout: 60 * second,
        idle_timeout: 300 * second,
    })
}

thread_local! {
    /// Its clock stands still: nothing is awaited.
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
}

fn serve(pipe: &mut Pipe<'_>, shut_down: usize) {
    RUNTIME.with(|runtime| {
        let _context = runtime.enter();
        let mut cx = Context::from_waker(Waker::noop());
        let mut serve = Box::pin(Serve::new(pipe, limits(), answer));
        // Each look takes a piece at least. What is left by then waits for the peer, or for the time.
        for look in 1..1000 {
            if serve.as_mut().poll(&mut cx).is_ready() {
                break;
            }
            if look == shut_down {
                serve.as_mut().get_mut().shut_down();
            }
        }
    });
}

async fn answer(request: Request<RequestBody>) -> Response<Answer> {
    let chunks = if request.method() == http::Method::GET { 40 } else { 0 };
    let mut response = Response::new(Answer { request: request.into_body(), chunks, ended: false });
    response.headers_mut().insert("kind", http::HeaderValue::from_static("echo"));
    response
}

/// Sends back what comes, or for a GET a lot of its own, then trailers.
struct Answer {
    request: RequestBody,
    chunks: usize,
    ended: bool,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(chunks) = self.chunks.checked_sub(1) {
            self.chunks = chunks;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'y'; 3000])))));
        }
        Poll::Ready(match ready!(Pin::new(&mut self.request).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            None => {
                self.ended = true;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
        })
    }
}

/// A socket on which the peer says what it says, whatever it is told.
struct Pipe<'a> {
    sent: &'a [u8],
    read: usize,
    write: usize,
    /// Whether the next write has to wait, if the peer is one that takes little at a time.
    pause: bool,
    told: Vec<u8>,
}

impl AsyncRead for Pipe<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.sent.is_empty() {
            return Poll::Pending;
        }
        let (piece, rest) = self.sent.split_at(self.read.min(self.sent.len()).min(to.remaining()));
        to.put_slice(piece);
        self.sent = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.pause = !self.pause && self.write != usize::MAX;
        if self.pause {
            return Poll::Pending;
        }
        let taken = self.write.saturating_mul(10).min(bytes.len());
        self.told.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The frames of a text: kind, stream, payload.
fn read_frames(mut bytes: &[u8]) -> Vec<(u8, u32, &[u8])> {
    let mut frames = Vec::new();
    while let Some((&[l0, l1, l2, kind, _, s0, s1, s2, s3], rest)) = bytes.split_first_chunk::<HEAD>() {
        let len = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let (payload, rest) = rest.split_at(len.min(rest.len()));
        frames.push((kind, u32::from_be_bytes([s0, s1, s2, s3]), payload));
        bytes = rest;
    }
    frames
}

fn check(told: &[u8], sent: &[u8]) {
    let heard = read_frames(sent.strip_prefix(PREFACE.as_slice()).unwrap_or_default());
    let frames = read_frames(told);
    assert!(frames.first().is_none_or(|(kind, ..)| *kind == SETTINGS));

    let data: usize =
        frames.iter().filter(|(kind, ..)| *kind == DATA).map(|(.., payload)| payload.len()).sum();
    let opened = heard.iter().filter(|(kind, stream, _)| *kind == WINDOW_UPDATE && stream << 1 == 0);
    let opened = opened.filter_map(|(.., payload)| payload.first_chunk().copied().map(u32::from_be_bytes));
    let window =
        opened.fold(DEFAULT_WINDOW, |window, more| window.saturating_add(more as usize & 0x7fff_ffff));
    assert!(data <= window, "{data} bytes of data in a window of {window}");

    let larger = heard.iter().any(|(kind, ..)| *kind == SETTINGS);
    for (kind, stream, payload) in &frames {
        assert!(*kind <= 9 && *kind != 5, "nothing is pushed, and no frame of kind {kind} is known");
        assert!(larger || payload.len() <= MAX_PAYLOAD);
        // Only what the peer has opened is answered.
        assert!(*stream == 0 || heard.iter().any(|(_, opened, _)| opened & 0x7fff_ffff == *stream));
    }
    let others = told.len() - data;
    assert!(others <= 4096 + 64 * sent.len(), "{others} bytes for {} bytes", sent.len());
}
