//! The whole against the client of the h2 crate, over a pipe.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::{PREFACE, RequestBody, Serve, ServeError};
use super::{Answer, limits, once, repeat};

/// Sends back what comes, and says at the end how much it was.
struct Echo {
    request: RequestBody,
    length: usize,
    ended: bool,
}

impl Body for Echo {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = std::task::ready!(Pin::new(&mut self.request).poll_frame(cx));
        Poll::Ready(Some(Ok(match frame {
            Some(Ok(frame)) => {
                let data = frame.into_data().expect("a request's trailers are not told");
                self.length += data.len();
                Frame::data(data)
            }
            Some(Err(reason)) => panic!("{reason}"),
            None => {
                self.ended = true;
                let mut trailers = HeaderMap::new();
                trailers.insert("length", self.length.into());
                Frame::trailers(trailers)
            }
        })))
    }
}

async fn echo(request: Request<RequestBody>) -> Response<Echo> {
    let mut response = Response::new(Echo { request: request.into_body(), length: 0, ended: false });
    response.headers_mut().insert("kind", "echo".parse().expect("a value"));
    response
}

/// A client of a service, on a pipe that holds so much, with windows of so much for a stream and for the connection.
async fn connect<S, F, B>(
    pipe: usize,
    [stream, connection]: [u32; 2],
    service: S,
) -> (h2::client::SendRequest<Bytes>, tokio::task::JoinHandle<Result<(), ServeError>>)
where
    S: FnMut(Request<RequestBody>) -> F + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let (near, far) = tokio::io::duplex(pipe);
    let served = tokio::spawn(Serve::new(far, Arc::new(limits()), service));
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(stream)
        .initial_connection_window_size(connection)
        .handshake(near)
        .await
        .expect("a handshake");
    tokio::spawn(connection);
    (sender, served)
}

/// Sends pieces as windows allow, and returns what came back.
async fn handler(sender: h2::client::SendRequest<Bytes>, pieces: Vec<Bytes>) -> (Vec<u8>, HeaderMap) {
    let mut sender = sender.ready().await.expect("the connection lives");
    let request = Request::post("http://relay/echo").body(()).expect("a request");
    let (response, mut out) = sender.send_request(request, false).expect("a stream");
    let sending = tokio::spawn(async move {
        for mut piece in pieces {
            while !piece.is_empty() {
                out.reserve_capacity(piece.len());
                let room =
                    std::future::poll_fn(|cx| out.poll_capacity(cx)).await.expect("open").expect("no reset");
                out.send_data(piece.split_to(room.min(piece.len())), false).expect("there is room");
            }
        }
        out.send_data(Bytes::new(), true).expect("an end");
    });
    let response = response.await.expect("a response");
    assert_eq!(response.headers()["kind"], "echo");
    let mut body = response.into_body();
    let mut back = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.expect("no reset");
        back.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len()).expect("what was taken");
    }
    sending.await.expect("all was sent");
    (back, body.trailers().await.expect("no reset").expect("trailers"))
}

/// Bytes that can be read through a window without using up the budget for frames that do no work, however fast both
/// sides are.
///
/// DATA of less than 256 bytes that fills a window earns the reader nothing, and the `h2` crate opens a window again at
/// its half: windows of less than 512 bytes cost up to four WINDOW_UPDATEs for each window's worth of bytes, two of the
/// stream and two of the connection. 2000 of them are free.
fn bytes_for(window: u32) -> usize {
    if window < 1024 { 400 * window as usize } else { usize::MAX }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_byte_comes_back_whatever_the_windows_and_the_socket(
        pipe in 30_usize..100_000,
        window in 10_u32..50_000,
        streams in proptest::collection::vec(proptest::collection::vec(0_usize..20_000, 0..5), 1..8),
    ) {
        let bytes: usize = streams.iter().flatten().sum();
        let scale = bytes.div_ceil(bytes_for(window.min(pipe as u32))).max(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let (sender, served) = connect(pipe, [window; 2], echo).await;
            let mut open = Vec::new();
            for (at, pieces) in streams.into_iter().enumerate() {
                let pieces: Vec<_> = pieces.into_iter().map(|len| Bytes::from(vec![at as u8; len / scale])).collect();
                let expected = pieces.concat();
                open.push((tokio::spawn(handler(sender.clone(), pieces)), expected));
            }
            for (stream, expected) in open {
                let (back, trailers) = match stream.await {
                    Ok(answer) => answer,
                    Err(error) => panic!("{error}; the server ended with {:?}", served.await),
                };
                assert!(back == expected, "{} bytes instead of {}", back.len(), expected.len());
                assert_eq!(trailers["length"], expected.len().to_string());
            }
            drop(sender);
            served.await.expect("no panic").expect("a peer that leaves is no error");
        });
    }
}

async fn endless(_: Request<RequestBody>) -> Response<impl Answer> {
    Response::new(repeat(Bytes::from(vec![b'x'; 100_000])))
}

/// A stream that is not read takes one window of its own out of that of its connection.
const WINDOWS: [u32; 2] = [65_535, 1 << 20];

#[tokio::test]
async fn a_stream_that_is_not_read_holds_up_no_other() {
    let (mut sender, _served) = connect(50_000, WINDOWS, endless).await;
    let request = || Request::post("http://relay/").body(()).expect("a request");
    let (held, _) = sender.send_request(request(), true).expect("a stream");
    let _held = held.await.expect("a response").into_body();
    let (read, _) = sender.send_request(request(), true).expect("a stream");
    let mut read = read.await.expect("a response").into_body();
    let mut bytes = 0;
    while bytes < 10_000_000 {
        let Some(data) = read.data().await else { panic!("it is endless") };
        let data = data.expect("no reset");
        bytes += data.len();
        read.flow_control().release_capacity(data.len()).expect("what was taken");
    }
}

#[tokio::test]
async fn a_request_that_is_broken_off_takes_its_reader_with_it() {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let mut tell = Some(tell);
    let (mut sender, _served) = connect(50_000, WINDOWS, move |request: Request<RequestBody>| {
        let tell = tell.take().expect("one request");
        async move {
            let _tell = tell;
            _ = request.into_body().collect().await;
            Response::new(once(None))
        }
    })
    .await;
    let request = Request::post("http://relay/").body(()).expect("a request");
    let (_response, mut out) = sender.send_request(request, false).expect("a stream");
    out.send_data(Bytes::from_static(b"half"), false).expect("a stream");
    tokio::time::sleep(Duration::from_millis(50)).await;
    out.send_reset(h2::Reason::CANCEL);
    told.await.expect_err("it is dropped");
}

#[tokio::test]
async fn bytes_left_in_the_batch_do_not_reach_the_next_connection() {
    // A socket on which the peer begins, and that breaks at the first write.
    let (mut near, reads) = tokio::io::duplex(1000);
    near.write_all(&PREFACE[..]).await.expect("a pipe");
    let (_, writes) = tokio::io::duplex(1);
    let broken = Serve::new(tokio::io::join(reads, writes), Arc::new(limits()), echo).await;
    assert!(matches!(broken, Err(ServeError::Transport(_))), "{broken:?}");
    let (near, far) = tokio::io::duplex(1000);
    let served = tokio::spawn(Serve::new(far, Arc::new(limits()), echo));
    let (mut near, mut said) = (near, Vec::new());
    near.write_all(&PREFACE[..]).await.expect("a pipe");
    while said.len() < 40 {
        near.read_buf(&mut said).await.expect("a pipe");
    }
    drop(near);
    served.await.expect("no panic").expect("a peer that leaves is no error");
    // Settings and a window, once.
    assert_eq!(said.len(), 9 + 3 * 6 + 9 + 4, "{said:?}");
}
