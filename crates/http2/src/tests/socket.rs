//! Frame by frame over a pipe: when the connection looks at what, and whose turn it is.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Either};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::super::frame::{HEAD, Head, Kind, flag};
use super::super::{Limits, PREFACE, Reason, RequestBody, Serve, ServeError, hpack};
use super::{Answer, Says, block, frame, limits, once, repeat, setting};

/// More than a pipe holds here.
const LARGE: usize = 100_000;

fn open_request(id: u32, flags: u8) -> Vec<u8> {
    frame(Kind::Headers, flag::END_HEADERS | flags, id, &block(&[]))
}

/// One whose peer waits to be told that it may send the body.
fn waiting_request(id: u32) -> Vec<u8> {
    frame(Kind::Headers, flag::END_HEADERS, id, &block(&[("expect", "100-Continue")]))
}

/// The statuses that a stream is answered with, up to its end.
async fn statuses(peer: &mut DuplexStream, id: u32) -> Vec<String> {
    let mut statuses = Vec::new();
    loop {
        let (head, block) = find(peer, |head, _| head.stream == id).await;
        if head.kind == Kind::Headers {
            let tell = |name: &[u8], value: &[u8]| {
                if name == b":status" {
                    statuses.push(String::from_utf8_lossy(value).into_owned());
                }
            };
            hpack::Decoder::default().decode(&block, tell).expect("ours");
        }
        if head.has(flag::END_STREAM) || statuses.last().is_some_and(|status| status == "100") {
            return statuses;
        }
    }
}

/// Reads the body, or answers at once.
async fn answer_body(request: Request<RequestBody>, reads: bool) -> Response<impl Answer> {
    let read = async { request.into_body().collect().await.expect("a body").to_bytes() };
    let body = if reads { read.await } else { Bytes::new() };
    Response::builder().status(if body == "body" { 202 } else { 413 }).body(once(None)).expect("good")
}

#[tokio::test]
async fn continue_is_sent_at_once() {
    let (mut peer, _served) = serve(1 << 20, |request| answer_body(request, true));
    say(&mut peer, &[start(65_535), waiting_request(1)].concat()).await;
    assert_eq!(statuses(&mut peer, 1).await, ["100"]);
    say(&mut peer, &frame(Kind::Data, flag::END_STREAM, 1, b"body")).await;
    let (_, block) = find(&mut peer, |head, _| head.kind == Kind::Headers && head.stream == 1).await;
    assert!(String::from_utf8_lossy(&block).contains("202"), "one answer follows");

    let (mut peer, _served) = serve(1 << 20, |request| answer_body(request, false));
    say(&mut peer, &[start(65_535), waiting_request(1)].concat()).await;
    assert_eq!(statuses(&mut peer, 1).await, ["100"]);
    let (_, block) = find(&mut peer, |head, _| head.kind == Kind::Headers && head.stream == 1).await;
    assert!(String::from_utf8_lossy(&block).contains("413"), "the answer does not wait for the body");
}

fn request(id: u32) -> Vec<u8> {
    open_request(id, flag::END_STREAM)
}

fn ping(payload: u8) -> Vec<u8> {
    frame(Kind::Ping, 0, 0, &[payload; 8])
}

fn window(stream: u32, by: usize) -> Vec<u8> {
    frame(Kind::WindowUpdate, 0, stream, &(by as u32).to_be_bytes())
}

/// A peer that introduces itself with windows of this size for its streams.
fn start(streams: u32) -> Vec<u8> {
    [&PREFACE[..], &setting(4, streams)].concat()
}

fn serve<S, F, B>(pipe: usize, service: S) -> (DuplexStream, JoinHandle<Result<(), ServeError>>)
where
    S: FnMut(Request<RequestBody>) -> F + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let (near, far) = tokio::io::duplex(pipe);
    (near, tokio::spawn(Serve::new(far, Arc::new(limits()), service)))
}

async fn read(peer: &mut DuplexStream) -> Option<(Head, Vec<u8>)> {
    let mut head = [0; HEAD];
    peer.read_exact(&mut head).await.ok()?;
    let head = Head::parse(head);
    let mut payload = vec![0; head.len];
    peer.read_exact(&mut payload).await.expect("a whole frame");
    Some((head, payload))
}

/// Reads until a frame is what is looked for.
async fn find(peer: &mut DuplexStream, mut is: impl FnMut(&Head, &[u8]) -> bool) -> (Head, Vec<u8>) {
    let found = async {
        loop {
            let Some((head, payload)) = read(peer).await else { panic!("it ended") };
            if is(&head, &payload) {
                return (head, payload);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), found).await.expect("it comes")
}

async fn say(peer: &mut DuplexStream, what: &[u8]) {
    tokio::time::timeout(Duration::from_secs(5), peer.write_all(what))
        .await
        .expect("it is heard")
        .expect("an open pipe");
}

/// Counts its message when it makes it, which it does only once it can go.
fn makes_when_it_can_go(request: RequestBody, made: Arc<AtomicU8>, mut bytes: usize) -> impl Answer {
    Says(move |_: &mut Context<'_>| {
        if request.is_held_back() {
            request.wait_for_window();
            return Poll::Pending;
        }
        if bytes == 0 {
            return Poll::Pending;
        }
        made.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Bytes::from(vec![1; std::mem::take(&mut bytes)])))
    })
}

/// Has something to send that a window holds back, until more of the request comes.
fn changes_its_mind(mut request: RequestBody) -> impl Answer {
    Says(move |cx: &mut Context<'_>| {
        if Pin::new(&mut request).poll_frame(cx).is_pending() {
            request.wait_for_window();
        }
        Poll::Pending
    })
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_nothing_to_send_any_more_does_not_wait_for_a_window() {
    for uses_up_connection in [false, true] {
        let mut first = uses_up_connection;
        let (mut peer, _served) = serve(1 << 20, move |request: Request<RequestBody>| {
            let body = match std::mem::take(&mut first) {
                true => Either::Left(once(Some(Bytes::from(vec![1; 65_535])))),
                false => Either::Right(changes_its_mind(request.into_body())),
            };
            async { Response::new(body) }
        });
        let window = if uses_up_connection { 1 << 30 } else { 0 };
        let requests = [open_request(1, 0), open_request(3, 0)];
        say(&mut peer, &[&start(window)[..], &requests.concat()].concat()).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let more: Vec<_> = [1, 3].iter().flat_map(|id| frame(Kind::Data, 0, *id, b"more")).collect();
        say(&mut peer, &more).await;
        let end = tokio::time::timeout(Duration::from_secs(200), answer_pings(peer)).await;
        assert!(end.is_err(), "neither the stream nor the connection is given up");
    }
}

/// Whether the stall timeout went off, which may be an eighth late.
fn is_stall_timeout(after: Duration) -> bool {
    (60..68).contains(&after.as_secs())
}

#[tokio::test(start_paused = true)]
async fn connections_are_pinged_together() {
    let mut peers = Vec::new();
    for _ in 0..10 {
        let (mut peer, served) = serve(1 << 20, repeats);
        say(&mut peer, &start(0)).await;
        peers.push((peer, served));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(28)).await;
    let mut times = std::collections::BTreeSet::new();
    for (peer, _) in &mut peers {
        find(peer, |head, _| head.kind == Kind::Ping).await;
        times.insert(tokio::time::Instant::now());
    }
    assert!(times.len() <= 2, "they may be on both sides of a step: {times:?}");
}

/// Serves streams that say so many bytes each, and counts the messages that they made.
fn makes_late(bytes: usize) -> (DuplexStream, JoinHandle<Result<(), ServeError>>, Arc<AtomicU8>) {
    let made: Arc<AtomicU8> = Arc::default();
    let count = Arc::clone(&made);
    let (peer, served) = serve(1 << 20, move |request| {
        let made = Arc::clone(&count);
        async move { Response::new(makes_when_it_can_go(request.into_body(), made, bytes)) }
    });
    (peer, served, made)
}

#[tokio::test(start_paused = true)]
async fn a_message_is_made_when_the_window_of_its_stream_opens() {
    let (mut peer, _served, made) = makes_late(100);
    say(&mut peer, &[start(0), request(1)].concat()).await;
    find(&mut peer, |head, _| head.kind == Kind::Headers).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(made.load(Ordering::Relaxed), 0);
    say(&mut peer, &window(1, 60)).await;
    find(&mut peer, |head, payload| head.kind == Kind::Data && payload.len() == 60).await;
    say(&mut peer, &window(1, 100)).await;
    find(&mut peer, |head, payload| head.kind == Kind::Data && payload.len() == 40).await;
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_made_when_the_window_of_its_connection_opens() {
    let (mut peer, _served, made) = makes_late(65_535);
    say(&mut peer, &[start(1 << 30), request(1), request(3)].concat()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(made.load(Ordering::Relaxed), 1, "the first takes the whole window");
    say(&mut peer, &window(0, 65_535)).await;
    let mut bytes = 0;
    find(&mut peer, |head, payload| {
        bytes += if head.kind == Kind::Data { payload.len() } else { 0 };
        bytes == 2 * 65_535
    })
    .await;
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_an_unmade_message_waits_for_its_window_as_long_as_others() {
    let (mut peer, _served, made) = makes_late(100);
    say(&mut peer, &[start(0), request(1)].concat()).await;
    let begun = tokio::time::Instant::now();
    let heard = answer_pings(peer).await;
    let (head, payload) = heard.last().expect("something");
    assert_eq!((head.kind, head.stream), (Kind::RstStream, 1));
    assert_eq!(*payload, (Reason::Cancel as u32).to_be_bytes());
    assert!(is_stall_timeout(begun.elapsed()));
    assert_eq!(made.load(Ordering::Relaxed), 0);
}

fn large() -> Bytes {
    Bytes::from(vec![1; LARGE])
}

async fn says_much(_: Request<RequestBody>) -> Response<impl Answer> {
    Response::new(once(Some(large())))
}

async fn repeats(_: Request<RequestBody>) -> Response<impl Answer> {
    Response::new(repeat(large()))
}

#[tokio::test]
async fn a_peer_is_heard_again_after_it_was_owed_too_much() {
    const PINGS: usize = 1100;
    let (mut peer, _served) = serve(50_000, says_much);
    say(&mut peer, &[start(1 << 30), window(0, 1 << 30), request(1)].concat()).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    // Its answer does not fit into the pipe, nor do the answers to the pings.
    say(&mut peer, &ping(7).repeat(PINGS)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (mut bytes, mut pongs) = (0, 0);
    find(&mut peer, |head, payload| {
        bytes += if head.kind == Kind::Data { payload.len() } else { 0 };
        pongs += usize::from(head.kind == Kind::Ping);
        bytes == LARGE && pongs == PINGS
    })
    .await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    say(&mut peer, &ping(9)).await;
    find(&mut peer, |head, payload| head.kind == Kind::Ping && payload == [9; 8]).await;
}

#[tokio::test]
async fn a_peer_is_heard_while_it_reads_nothing() {
    let (near, far) = tokio::io::duplex(50_000);
    let wide = Limits { stream_window: 1 << 20, connection_window: 1 << 20, ..limits() };
    let _served = tokio::spawn(Serve::new(far, Arc::new(wide), says_much));
    let mut peer = near;
    say(&mut peer, &[start(1 << 30), window(0, 1 << 30), open_request(1, 0)].concat()).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    for _ in 0..40 {
        say(&mut peer, &frame(Kind::Data, 0, 1, &[0; 16_000])).await;
    }
}

#[tokio::test]
async fn streams_share_the_window_of_their_connection() {
    let (mut peer, _served) = serve(1 << 20, repeats);
    say(&mut peer, &[start(1 << 30), request(1), request(3), request(5)].concat()).await;
    let (mut told, mut read_since) = (BTreeMap::<u32, usize>::new(), 0);
    while told.values().sum::<usize>() < 3_000_000 {
        let (head, payload) = read(&mut peer).await.expect("it goes on");
        if head.kind == Kind::Data {
            *told.entry(head.stream).or_default() += payload.len();
            read_since += payload.len();
        }
        if read_since > 32_000 {
            say(&mut peer, &window(0, std::mem::take(&mut read_since))).await;
        }
    }
    assert!(told.len() == 3 && told.values().all(|bytes| *bytes > 800_000), "{told:?}");
}

#[tokio::test]
async fn streams_share_the_socket() {
    let (mut peer, _served) = serve(1 << 20, repeats);
    say(&mut peer, &[start(1 << 30), window(0, 1 << 30), request(1), request(3), request(5)].concat()).await;
    let mut told = BTreeMap::<u32, usize>::new();
    while told.values().sum::<usize>() < 30_000_000 {
        let (head, payload) = read(&mut peer).await.expect("it goes on");
        *told.entry(head.stream).or_default() += payload.len();
    }
    assert!(told.values().filter(|bytes| **bytes > 8_000_000).count() == 3, "{told:?}");
}

#[tokio::test]
async fn a_peer_that_takes_everything_is_served_after_others_had_their_turn() {
    // No write is ever refused, so that nothing but the connection itself calls for the rest.
    let (mut peer, _served) = serve(64 << 20, repeats);
    say(&mut peer, &[start(1 << 30), window(0, 1 << 30), request(1)].concat()).await;
    let mut bytes = 0;
    find(&mut peer, |_, payload| {
        bytes += payload.len();
        bytes > 50 << 20
    })
    .await;
}

#[tokio::test]
async fn a_wake_up_from_another_task_is_never_lost() {
    let (tell, told) = mpsc::unbounded_channel();
    let mut told = Some(told);
    let (mut peer, _served) = serve(1 << 20, move |_| {
        let mut told = told.take().expect("one request");
        async { Response::new(Says(move |cx: &mut Context<'_>| told.poll_recv(cx))) }
    });
    say(&mut peer, &[start(1 << 30), request(1)].concat()).await;
    find(&mut peer, |head, _| head.kind == Kind::Headers).await;
    for turn in 0..3 {
        tell.send(Bytes::from(vec![turn; 5])).expect("a stream");
        find(&mut peer, |head, payload| head.kind == Kind::Data && payload == [turn; 5]).await;
    }
}

#[tokio::test]
async fn the_window_is_given_back_for_streams_that_are_read_and_for_others() {
    let (mut peer, _served) = serve(1 << 20, |request: Request<RequestBody>| async move {
        let mut body = request.into_body();
        while body.frame().await.is_some() {}
        std::future::pending::<Response<http_body_util::Empty<Bytes>>>().await
    });
    say(&mut peer, &[start(1 << 30), open_request(1, 0)].concat()).await;
    for _ in 0..3 {
        say(&mut peer, &frame(Kind::Data, 0, 1, &[0; 8000])).await;
        find(&mut peer, |head, _| head.kind == Kind::WindowUpdate && head.stream == 1).await;
    }
    // And where nobody wants the body, as behind an answer that did not need it.
    let (mut peer, _served) = serve(1 << 20, |request: Request<RequestBody>| {
        drop(request);
        async { Response::new(once(Some(Bytes::from_static(b"no")))) }
    });
    say(&mut peer, &[start(1 << 30), open_request(1, 0)].concat()).await;
    for _ in 0..3 {
        say(&mut peer, &frame(Kind::Data, 0, 1, &[0; 8000])).await;
        find(&mut peer, |head, _| head.kind == Kind::WindowUpdate && head.stream == 1).await;
    }
}

#[tokio::test]
async fn an_early_answer_asks_for_no_more() {
    let (mut peer, _served) =
        serve(1 << 20, |_| async { Response::new(http_body_util::Empty::<Bytes>::new()) });
    say(&mut peer, &[start(1 << 30), open_request(1, 0)].concat()).await;
    let (_, payload) = find(&mut peer, |head, _| head.kind == Kind::RstStream).await;
    assert_eq!(payload, (Reason::No as u32).to_be_bytes());
}

#[tokio::test]
async fn a_fault_is_told_before_the_end() {
    let (mut peer, served) = serve(1 << 20, says_much);
    say(&mut peer, &[start(1 << 30), request(1), frame(Kind::Data, 0, 0, b"x")].concat()).await;
    let (_, payload) = find(&mut peer, |head, _| head.kind == Kind::GoAway).await;
    assert_eq!(payload[4..], (Reason::Protocol as u32).to_be_bytes());
    drop(peer);
    assert!(matches!(served.await.expect("no panic"), Err(ServeError::Peer(_))));
}

/// Answers pings, and counts for how long it is let.
async fn answer_pings(mut peer: DuplexStream) -> Vec<(Head, Vec<u8>)> {
    let mut heard = Vec::new();
    while let Some((head, payload)) = read(&mut peer).await {
        if head.kind == Kind::Ping && !head.has(flag::ACK) {
            peer.write_all(&frame(Kind::Ping, flag::ACK, 0, &payload)).await.expect("an open pipe");
        }
        heard.push((head, payload));
        if heard.last().is_some_and(|(head, _)| head.kind == Kind::RstStream) {
            return heard;
        }
    }
    heard
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_is_broken_off_and_no_other() {
    let mut first = true;
    let (mut peer, served) = serve(1 << 20, move |_| {
        let says = std::mem::take(&mut first).then(large);
        async { Response::new(once(says)) }
    });
    say(&mut peer, &[start(1000), window(0, 1 << 30), request(1), request(3), request(5)].concat()).await;
    let begun = tokio::time::Instant::now();
    let heard = answer_pings(peer).await;
    let (head, payload) = heard.last().expect("something");
    assert_eq!((head.kind, head.stream), (Kind::RstStream, 1), "{begun:?}");
    assert_eq!(*payload, (Reason::Cancel as u32).to_be_bytes());
    assert!(is_stall_timeout(begun.elapsed()));
    // The connection ended only now, with its peer.
    served.await.expect("no panic").expect("no error");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_served_on() {
    let (mut peer, served) = serve(50_000, repeats);
    say(&mut peer, &[start(1 << 30), window(0, 1 << 30), request(1)].concat()).await;
    let mut buffer = vec![0; 10_000];
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_ne!(peer.read(&mut buffer).await.expect("it goes on"), 0);
    }
    drop(peer);
    _ = served.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_and_reads_nothing_is_disconnected() {
    let (mut peer, served) = serve(50_000, repeats);
    say(&mut peer, &[start(1 << 30), window(0, 1 << 30), request(1)].concat()).await;
    let begun = tokio::time::Instant::now();
    let talk = async move {
        while peer.write_all(&ping(1)).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(7)).await;
        }
    };
    let (ended, ()) = tokio::join!(served, talk);
    assert!(matches!(ended.expect("no panic"), Err(ServeError::Stalled(_))));
    assert!(is_stall_timeout(begun.elapsed()));
}

/// Windows that open tell nothing of a socket that takes nothing.
#[tokio::test(start_paused = true)]
async fn a_peer_that_changes_windows_and_reads_nothing_is_disconnected() {
    let (mut peer, served) = serve(50_000, repeats);
    say(&mut peer, &[start(100_000), window(0, 1 << 30), request(1)].concat()).await;
    let begun = tokio::time::Instant::now();
    let talk = async move {
        for size in 100_001_u32.. {
            if peer.write_all(&setting(4, size)).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(7)).await;
        }
    };
    let (ended, ()) = tokio::join!(served, talk);
    assert!(matches!(ended.expect("no panic"), Err(ServeError::Stalled(_))));
    assert!(is_stall_timeout(begun.elapsed()));
}

/// Opens a window by one byte every other second, and reads all that comes. Returns whether a stream was broken off at the
/// end, and when that was.
async fn sip(mut peer: DuplexStream, stream: u32) -> (bool, Duration) {
    let begun = tokio::time::Instant::now();
    for turn in 1..300 {
        _ = peer.write_all(&window(stream, 1)).await;
        let next = begun + turn * Duration::from_secs(2);
        while let Ok(read) = tokio::time::timeout_at(next, read(&mut peer)).await {
            match read {
                Some((head, _)) if head.kind != Kind::RstStream => (),
                last => return (last.is_some(), begun.elapsed()),
            }
        }
    }
    panic!("it goes on for ever");
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_window_opens_byte_by_byte_is_broken_off() {
    let (mut peer, _served) = serve(50_000, repeats);
    say(&mut peer, &[start(0), window(0, 1 << 30), request(1)].concat()).await;
    assert!(matches!(sip(peer, 1).await, (true, when) if is_stall_timeout(when)));
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_window_opens_byte_by_byte_is_given_up() {
    let (mut peer, served) = serve(50_000, repeats);
    say(&mut peer, &[start(1 << 30), request(1)].concat()).await;
    assert!(matches!(sip(peer, 0).await, (false, when) if is_stall_timeout(when)));
    assert!(matches!(served.await.expect("no panic"), Err(ServeError::Stalled(_))));
}

#[tokio::test]
async fn heads_of_answers_wait_until_there_is_room() {
    const STREAMS: usize = 100;
    let (mut peer, _served) = serve(2000, |_| async {
        let mut response = Response::new(once(None));
        response.headers_mut().insert("long", "x".repeat(4000).parse().expect("a value"));
        response
    });
    let requests: Vec<u8> = (0..STREAMS).flat_map(|at| request(2 * at as u32 + 1)).collect();
    say(&mut peer, &[start(1 << 30), requests].concat()).await;
    let mut heads = 0;
    find(&mut peer, |head, _| {
        heads += usize::from(head.kind == Kind::Headers);
        heads == STREAMS
    })
    .await;
}
