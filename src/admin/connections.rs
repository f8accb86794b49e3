//! Connections to the admin address: how many there are, and whether their peers go on.
//!
//! Invariants: there are [`MOST`] connections at most · a new one always finds a place · no answer waits for longer than
//! [`STALL`] for a peer that takes nothing of it, nor, where others need its memory, for one
//! that takes less than [`BRISK`] after [`PATIENCE`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;

/// Connections that are open at once. A browser opens six for the page, probes and Prometheus one each; each is a descriptor that no
/// xDS client has.
const MOST: usize = 64;
/// Time without a request after which a connection is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Time within which a peer takes a [`PIECE`] of each answer, or all that is left. 546 B/s; links of people are faster.
const STALL: Duration = Duration::from_secs(60);
/// Time after which an answer may be given up if others need its memory, beside what the peer has earned by what it took: a second for
/// each [`BRISK`] bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes a second of a reader that is left in peace even then.
const BRISK: usize = 256 << 10;
/// Bytes of answers from which on a connection is worth closing: where all memory is taken, one of [`MOST`] has as many.
const WORTH: usize = 1 << 20;
/// Bytes that the kernel may hold for a peer. By default they are some MiB, which a peer that does not read seems to have taken.
pub(super) const SEND_BUFFER: usize = 64 << 10;
/// Bytes a second that a peer has earned time for by what it took at once. The kernel of a peer may take tens of MiB in a moment, and a
/// slow reader then makes no room there for minutes. Example: with 26 MiB taken, an answer stalls after 416 s + [`STALL`].
const RATE: usize = 64 << 10;
/// Bytes by which progress is seen.
const PIECE: usize = 32 << 10;
/// Time between two looks at a connection.
const LOOK: Duration = Duration::from_secs(5);

/// All connections that are open.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Mutex<Slab<Arc<Connection>>>,
    freed: Notify,
}

impl Connections {
    /// Returns a place for a new connection. If all are taken, a connection is closed for it: of the address that has most, the one
    /// that has done nothing for longest. A host that takes all it can keeps no other out.
    pub(super) async fn open(self: &Arc<Self>, peer: IpAddr) -> Place {
        // An IPv4 address counts as such also where the socket maps it to IPv6.
        let peer = peer.to_canonical();
        loop {
            {
                let mut open = self.open.lock();
                if open.len() < MOST {
                    let connection = Arc::new(Connection::new(peer));
                    let at = open.insert(Arc::clone(&connection));
                    return Place { connection, at, of: Arc::clone(self) };
                }
                close_one(&open);
            }
            self.freed.notified().await;
        }
    }

    /// Closes the connection whose answers hold most memory, of those whose peers do not read, or slowly. Small ones are let be.
    pub(super) fn close_unread(&self) {
        let now = Instant::now();
        let open = self.open.lock();
        let unread = open.iter().map(|(_, connection)| (connection.unread(now), connection));
        if let Some((WORTH.., connection)) = unread.max_by_key(|&(bytes, _)| bytes) {
            connection.closing.cancel();
        }
    }
}

fn close_one(open: &Slab<Arc<Connection>>) {
    let all = || open.iter().map(|(_, connection)| connection);
    if all().any(|connection| connection.closing.is_cancelled()) {
        return;
    }
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    all().for_each(|connection| *counts.entry(connection.peer).or_default() += 1);
    let rank = |connection: &&Arc<Connection>| {
        (counts[&connection.peer], std::cmp::Reverse(connection.state.lock().last))
    };
    if let Some(connection) = all().max_by_key(rank) {
        connection.closing.cancel();
    }
}

/// Place of a connection among all; free once dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) connection: Arc<Connection>,
    at: usize,
    of: Arc<Connections>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.open.lock().remove(self.at);
        self.of.freed.notify_one();
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    peer: IpAddr,
    closing: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Time of the last sign of life: a request, or a part of an answer that was taken.
    last: Instant,
    exchanges: Slab<Progress>,
}

/// A request, and how far the answer to it is.
#[derive(Debug)]
struct Progress {
    /// Whether the peer would take more than there is.
    waits_for_us: bool,
    /// Bytes that it was not sent yet, though they are there.
    unsent: usize,
    /// Bytes that it has taken since `begun`.
    taken: usize,
    /// Time when there began to be something to take.
    begun: Instant,
    /// Time since when it has taken nothing.
    since: Instant,
}

impl Progress {
    /// Whether something waits for the peer, for this time and longer than it has earned at this many bytes a second.
    fn waits(&self, time: Duration, rate: usize, now: Instant) -> bool {
        let earned = Duration::from_secs((self.taken / rate) as u64);
        (self.unsent > 0 || !self.waits_for_us) && now.duration_since(self.begun) >= time + earned
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.waits(PATIENCE, BRISK, now)
    }

    fn stalls(&self, now: Instant) -> bool {
        self.waits(STALL, RATE, now) && now.duration_since(self.since) >= STALL
    }
}

impl Connection {
    fn new(peer: IpAddr) -> Self {
        let state = State { last: Instant::now(), exchanges: Slab::new() };
        Self { peer, closing: CancellationToken::new(), state: Mutex::new(state) }
    }

    /// Notes a request.
    pub(super) fn begin(self: &Arc<Self>) -> Exchange {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.last = now;
        let at = state.exchanges.insert(Progress {
            waits_for_us: true,
            unsent: 0,
            taken: 0,
            begun: now,
            since: now,
        });
        Exchange(Arc::new(Entry { at, of: Arc::clone(self) }))
    }

    /// Drives the future of a connection until it ends, or its peer does not go on. `close` asks it to end.
    pub(super) async fn drive<F, E>(
        &self,
        mut serve: Pin<&mut F>,
        close: impl Fn(Pin<&mut F>),
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
    where
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut look = tokio::time::interval(LOOK);
        let mut is_asked = false;
        loop {
            tokio::select! {
                ended = serve.as_mut() => return ended.map_err(Into::into),
                () = self.until_closing() => return Err("closed to make room for another connection or answer".into()),
                now = look.tick() => {
                    if self.is_stalled(now) {
                        return Err(format!("the peer took less than {PIECE} bytes of an answer in {STALL:?}").into());
                    }
                    if self.is_idle(now) {
                        if std::mem::replace(&mut is_asked, true) {
                            return Err("the peer did not end an idle connection".into());
                        }
                        close(serve.as_mut());
                    }
                }
            }
        }
    }

    /// Returns when the place is needed for another connection, or the memory of its answers for others.
    pub(super) async fn until_closing(&self) {
        self.closing.cancelled().await;
    }

    fn is_idle(&self, now: Instant) -> bool {
        let state = self.state.lock();
        state.exchanges.is_empty() && now.duration_since(state.last) >= IDLE
    }

    /// Returns how many bytes the answers hold that the peer does not read, or slowly.
    fn unread(&self, now: Instant) -> usize {
        let state = self.state.lock();
        let unread =
            state.exchanges.iter().filter(|(_, progress)| progress.unsent > 0 && progress.is_slow(now));
        // An answer is held as a whole until its last byte has gone.
        unread.map(|(_, progress)| progress.unsent + progress.taken).sum()
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.state.lock().exchanges.iter().any(|(_, progress)| progress.stalls(now))
    }
}

/// Request that is not answered to its end.
#[derive(Clone, Debug)]
pub(super) struct Exchange(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    at: usize,
    of: Arc<Connection>,
}

impl Exchange {
    /// Watches how an answer is taken.
    pub(super) fn watch(self, body: Body) -> WatchedBody {
        self.0.set_waits_for_us(false);
        WatchedBody { body, rest: Bytes::new(), exchange: self }
    }
}

impl Entry {
    fn change(&self, change: impl FnOnce(&mut Progress, &mut Instant)) {
        let mut state = self.of.state.lock();
        let State { last, exchanges } = &mut *state;
        change(&mut exchanges[self.at], last);
    }

    /// Notes whether the peer waits for the relay; it takes nothing since then otherwise.
    fn set_waits_for_us(&self, waits: bool) {
        self.change(|progress, _| {
            if std::mem::replace(&mut progress.waits_for_us, waits) && !waits && progress.unsent == 0 {
                let now = Instant::now();
                (progress.begun, progress.since, progress.taken) = (now, now, 0);
            }
        });
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        state.exchanges.remove(self.at);
        state.last = Instant::now();
    }
}

/// Body of an answer in pieces, each of which tells when it has gone.
///
/// hyper holds the bytes that it was given until the transport takes them, and asks for no more: neither a blocked socket nor a window
/// of HTTP/2 that stays closed shows otherwise.
#[derive(Debug)]
pub(super) struct WatchedBody {
    body: Body,
    rest: Bytes,
    exchange: Exchange,
}

impl http_body::Body for WatchedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        while self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            self.exchange.0.set_waits_for_us(polled.is_pending());
            match ready!(polled).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => {
                    self.exchange.0.change(|progress, _| progress.unsent += data.len());
                    self.rest = data;
                }
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let length = self.rest.len().min(PIECE);
        let bytes = self.rest.split_to(length);
        let piece = Piece { bytes, exchange: self.exchange.clone() };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.body.size_hint());
        match hint.exact() {
            Some(exact) => hint.set_exact(exact + rest),
            None => hint.set_lower(hint.lower() + rest),
        }
        hint
    }
}

/// Bytes of an answer that the transport has not taken yet.
struct Piece {
    bytes: Bytes,
    exchange: Exchange,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let now = Instant::now();
        self.exchange.0.change(|progress, last| {
            progress.unsent -= self.bytes.len();
            progress.taken += self.bytes.len();
            (progress.since, *last) = (now, now);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use hyper::server::conn::{http1, http2};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

    /// Serves answers of this size. Resolves when the connection ends, to the reason and the time that it took.
    fn serve(io: DuplexStream, size: usize, is_http2: bool) -> tokio::task::JoinHandle<(Ended, Duration)> {
        tokio::spawn(async move {
            let begun = Instant::now();
            let connection = Arc::new(Connection::new(IpAddr::from([10, 0, 0, 1])));
            let requests = Arc::clone(&connection);
            let service = service_fn(move |_: Request<hyper::body::Incoming>| {
                let exchange = requests.begin();
                let body = Body::new(Full::new(Bytes::from(vec![b'x'; size])));
                async move { Ok::<_, Infallible>(Response::new(exchange.watch(body))) }
            });
            let io = TokioIo::new(io);
            let ended = if is_http2 {
                let serve = pin!(http2::Builder::new(TokioExecutor::new()).serve_connection(io, service));
                connection.drive(serve, |serve| serve.graceful_shutdown()).await
            } else {
                let serve = pin!(http1::Builder::new().serve_connection(io, service));
                connection.drive(serve, |serve| serve.graceful_shutdown()).await
            };
            (ended, begun.elapsed())
        })
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: relay\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_given_up() {
        let (mut near, far) = tokio::io::duplex(1000);
        let served = serve(far, 10 * PIECE, false);
        near.write_all(GET).await.expect("there is room");
        let (ended, after) = served.await.expect("no panic");
        assert!(ended.is_err_and(|error| error.to_string().contains("took less")));
        assert!(after >= STALL && after <= STALL + LOOK, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_of_which_a_byte_is_read_now_and_then_is_given_up() {
        let (mut near, far) = tokio::io::duplex(1000);
        let served = serve(far, 10 * PIECE, false);
        near.write_all(GET).await.expect("there is room");
        while near.read_exact(&mut [0]).await.is_ok() && !served.is_finished() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (ended, after) = served.await.expect("no panic");
        assert!(ended.is_err() && after <= STALL + LOOK, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_slowly_goes_on_for_as_long_as_it_takes() {
        let (mut near, far) = tokio::io::duplex(1000);
        // hyper copies up to 13 pieces where a transport takes no list of buffers.
        let served = serve(far, 420 * PIECE, false);
        let begun = Instant::now();
        near.write_all(GET).await.expect("there is room");
        for _ in 0..20 {
            tokio::time::sleep(STALL - LOOK).await;
            near.read_exact(&mut vec![0; 20 * PIECE]).await.expect("the answer goes on");
        }
        assert!(begun.elapsed() > 10 * STALL);
        assert!(!served.is_finished());
    }

    /// Frames that a client of HTTP/2 begins with: its settings, by which a stream may be sent this much.
    fn first_frames(window: u32) -> Vec<u8> {
        let settings = [&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4][..], &window.to_be_bytes()].concat();
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat()
    }

    /// A peer with a window that stays closed reads the socket, and none of the answer.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_no_window_opens_for_is_given_up() {
        for (window, size) in [(0, 10), (10, 10 * PIECE), (2 * PIECE as u32, 10 * PIECE)] {
            let (mut near, far) = tokio::io::duplex(100_000);
            let served = serve(far, size, true);
            // GET, /, http and the authority `a`, by the static table of HPACK.
            let request = [&[0, 0, 6, 1, 5, 0, 0, 0, 1][..], &[0x82, 0x84, 0x86, 0x01, 1, b'a']].concat();
            near.write_all(&[first_frames(window), request].concat()).await.expect("there is room");
            let reads = tokio::spawn(async move { near.read_to_end(&mut Vec::new()).await });
            let (ended, after) = served.await.expect("no panic");
            assert!(ended.is_err_and(|error| error.to_string().contains("took less")), "window {window}");
            assert!(after >= STALL && after <= STALL + LOOK, "{after:?}");
            drop(reads);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_is_asked_to_end() {
        let (mut near, far) = tokio::io::duplex(1000);
        let served = serve(far, 10, false);
        near.write_all(GET).await.expect("there is room");
        near.read_exact(&mut [0; 50]).await.expect("an answer");
        let (ended, after) = served.await.expect("no panic");
        ended.expect("it ends in order");
        assert!(after >= IDLE && after <= IDLE + LOOK, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_takes_the_place_of_the_idlest_of_the_busiest_address() {
        let connections: Arc<Connections> = Arc::default();
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let mut places = vec![connections.open(address(1)).await];
        for _ in 1..MOST {
            tokio::time::sleep(Duration::from_secs(1)).await;
            places.push(connections.open(address(2)).await);
        }
        drop(places[1].connection.begin());
        let mut next = pin!(connections.open(address(3)));
        assert!(futures_util::poll!(&mut next).is_pending(), "it waits for the end of another");
        assert!(futures_util::poll!(&mut next).is_pending());
        let closing = || places.iter().position(|place| place.connection.closing.is_cancelled());
        assert_eq!(
            closing(),
            Some(2),
            "the only connection of an address stays, and one that was busy just now"
        );
        drop(places.remove(2));
        next.await;
        assert!(!places.iter().any(|place| place.connection.closing.is_cancelled()), "one made room");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_for_others_is_that_of_the_largest_answer_that_is_not_read() {
        let connections: Arc<Connections> = Arc::default();
        let mut places = Vec::new();
        let mut bodies = Vec::new();
        for size in [20, 90, 50, 200] {
            let place = connections.open(IpAddr::from([10, 0, 0, 1])).await;
            let body = Body::new(Full::new(Bytes::from(vec![b'x'; size * PIECE])));
            bodies.push(place.connection.begin().watch(body));
            places.push(place);
        }
        let mut pieces = Vec::new();
        for body in &mut bodies {
            pieces.push(body.frame().await);
        }
        // The kernel of its peer takes much at once.
        for _ in 0..8 * BRISK / PIECE {
            drop(bodies[3].frame().await);
        }
        connections.close_unread();
        let closing = || places.iter().position(|place| place.connection.closing.is_cancelled());
        assert_eq!(closing(), None, "they have just been asked for");
        tokio::time::sleep(PATIENCE).await;
        connections.close_unread();
        assert_eq!(closing(), Some(1), "of the largest one much was taken");
        let small: Arc<Connections> = Arc::default();
        let place = small.open(IpAddr::from([10, 0, 0, 1])).await;
        let mut body =
            place.connection.begin().watch(Body::new(Full::new(Bytes::from(vec![b'x'; WORTH - 1]))));
        let _piece = body.frame().await;
        tokio::time::sleep(PATIENCE).await;
        small.close_unread();
        assert!(!place.connection.closing.is_cancelled(), "little would be had from it");
    }
}
