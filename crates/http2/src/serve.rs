//! Moves the bytes of one connection, and asks its streams what to say.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::body::{Inbox, RequestBody};
use super::connection::Connection;
use super::outbox::{Batch, Outbox};
use super::pace::Pace;
use super::ready::{Bell, Ready};
use super::stream::Exchange;
use super::{ConnectionError, Limits, Reason};

/// What is read at once.
const INPUT: usize = 64 << 10;
/// Reads, and batches, before others get their turn.
const TURNS: usize = 16;
/// How long that may take: what is small to send can be dear to read.
const SLICE: Duration = Duration::from_millis(1);
/// While so much waits beside bodies (answers to pings, resets, heads), the peer is not heard further and no stream is
/// asked for more.
const CONTROL: usize = 16 << 10;
/// How long a peer has to read what it was sent last, once the connection is over.
const LINGER: Duration = Duration::from_secs(1);

/// Why a connection ended otherwise than by agreement.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The transport broke.
    #[error("the transport: {0}")]
    Transport(#[from] io::Error),
    /// The peer broke the protocol, or did not answer.
    #[error("the peer: {0}")]
    Peer(#[from] ConnectionError),
    /// The peer took nothing.
    #[error("nothing was taken for {0:?}")]
    Stalled(Duration),
}

/// Buffers that a connection needs only while it is looked at.
#[derive(Debug)]
struct Desk {
    input: Box<[u8]>,
    batch: Batch,
    streams: Vec<u32>,
}

thread_local! {
    static DESK: Cell<Option<Box<Desk>>> = const { Cell::new(None) };
}

impl Desk {
    fn take() -> Box<Self> {
        DESK.take().unwrap_or_else(|| {
            Box::new(Self { input: vec![0; INPUT].into(), batch: Batch::default(), streams: Vec::new() })
        })
    }

    /// Leaves the desk to the next connection, with nothing on it: what this one could not send is nobody else's.
    fn leave(mut self: Box<Self>) {
        self.batch.clear();
        self.streams.clear();
        DESK.set(Some(self));
    }
}

/// A stream as it is served.
#[derive(Debug)]
struct Served<B> {
    inbox: Inbox,
    bell: Arc<Bell>,
    waker: Waker,
    state: State<B>,
    /// What is left of the chunk that is being sent.
    chunk: Bytes,
    /// Whether the body was told that a window holds it back.
    held_back: bool,
}

type Answer<B> = Pin<Box<dyn Future<Output = Response<B>> + Send>>;

enum State<B> {
    Answering(Answer<B>),
    Sending(B),
}

impl<B> std::fmt::Debug for State<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Answering(_) => "Answering",
            Self::Sending(_) => "Sending",
        })
    }
}

impl<B> Exchange for Served<B> {
    fn data(&mut self, payload: &[u8]) {
        self.inbox.push(payload);
    }

    fn end(&mut self) {
        self.inbox.end(Ok(()));
    }
}

impl<B> Drop for Served<B> {
    fn drop(&mut self) {
        // Who reads elsewhere learns that no more will come; the end that came before stands.
        self.inbox.end(Err(Reason::Cancel));
    }
}

/// Whether a connection goes on.
#[derive(Debug)]
enum Course {
    Serving,
    /// What is left to be said goes out, then nothing more does; until then the peer has time to read it.
    Closing {
        why: Option<Ended>,
        until: Pin<Box<Sleep>>,
        shut: bool,
    },
}

/// What came of looking at a connection.
#[derive(Debug)]
enum Step {
    /// All is done that can be done now.
    Wait,
    /// Both sides are done.
    Over,
    /// The peer has left.
    Gone,
}

/// Serves one connection: a future that ends with it. It is polled by one task from its first poll on.
#[derive(Debug)]
pub struct Serve<IO, S, B> {
    io: IO,
    service: S,
    connection: Connection<Served<B>>,
    ready: Arc<Ready>,
    outbox: Outbox,
    alarm: Pin<Box<Sleep>>,
    /// When the alarm goes off.
    alarm_at: Instant,
    /// Whether the alarm was set since it was last listened for.
    alarm_set: bool,
    /// The stream from which on they are asked next.
    turn: u32,
    /// Since when the peer takes nothing of what there is to be sent.
    stuck: Pace,
    /// It was asked to go because nothing was asked for on it.
    idle: bool,
    course: Course,
}

impl<IO, S, F, B> Serve<IO, S, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F + Unpin,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin,
{
    /// A connection on which nothing was said yet.
    pub fn new(io: IO, limits: Arc<Limits>, service: S) -> Self {
        let now = tokio::time::Instant::now().into_std();
        let first = now + limits.head_timeout.min(limits.keepalive_interval);
        Self {
            io,
            service,
            connection: Connection::new(limits, now),
            ready: Arc::default(),
            outbox: Outbox::default(),
            alarm: Box::pin(tokio::time::sleep_until(first.into())),
            alarm_at: first,
            alarm_set: true,
            turn: 0,
            stuck: Pace::default(),
            idle: false,
            course: Course::Serving,
        }
    }

    /// Since when the peer takes nothing of what there is to be sent.
    pub const fn stuck(&self) -> Option<Instant> {
        self.stuck.since()
    }

    /// Bytes that are kept for the peer, beside those that its requests and responses keep themselves.
    pub fn held(&self) -> usize {
        self.connection.held() + self.outbox.len()
    }

    /// Streams that were refused because there were too many, since this was last asked.
    pub const fn take_refused(&mut self) -> u64 {
        std::mem::replace(&mut self.connection.refused, 0)
    }

    /// Whether it was asked to go because nothing was asked for on it, since this was last asked.
    pub const fn take_idle(&mut self) -> bool {
        std::mem::replace(&mut self.idle, false)
    }

    /// Has all streams looked at, though nothing woke them. To be polled next.
    pub fn look(&mut self) {
        let streams: Vec<u32> = self.connection.streams.iter().map(|stream| stream.id).collect();
        streams.into_iter().for_each(|stream| self.connection.stir(stream));
    }

    /// Asks the peer for no new streams. Those that are open are polled, so that they can end themselves, and the
    /// connection ends with the last of them. To be polled next.
    pub fn shut_down(&mut self) {
        self.connection.shut_down(tokio::time::Instant::now().into_std());
        self.look();
    }

    fn advance(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<Result<(), Ended>> {
        if matches!(self.course, Course::Serving) {
            let why = match self.step(cx, desk) {
                Ok(Step::Wait) => return Poll::Pending,
                Ok(Step::Gone) => return Poll::Ready(Ok(())),
                Ok(Step::Over) => None,
                Err(Ended::Peer(error)) => {
                    self.connection.fail(error.reason);
                    Some(error.into())
                }
                Err(ended) => return Poll::Ready(Err(ended)),
            };
            let until = Box::pin(tokio::time::sleep(LINGER));
            self.course = Course::Closing { why, until, shut: false };
        }
        let closed = self.close(cx, desk);
        let Course::Closing { why, until, .. } = &mut self.course else { return Poll::Pending };
        if closed.is_pending() {
            ready!(until.as_mut().poll(cx));
        }
        Poll::Ready(why.take().map_or(Ok(()), Err))
    }

    /// Says what is left to be said, and waits until the peer has closed too: a socket that is closed while something
    /// unread lies in it takes back what the peer has not read yet.
    fn close(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<io::Result<()>> {
        ready!(self.outbox.poll_flush(&mut self.io, cx, &mut 0))?;
        drain_control(&mut self.connection, &mut desk.batch);
        if !desk.batch.is_empty() {
            ready!(self.outbox.poll_send(&mut desk.batch, &mut self.io, cx, &mut 0))?;
        }
        let Course::Closing { shut, .. } = &mut self.course else { return Poll::Pending };
        if !*shut {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            *shut = true;
        }
        loop {
            let mut input = ReadBuf::new(&mut desk.input);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut input))?;
            if input.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn step(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Result<Step, Ended> {
        let now = tokio::time::Instant::now().into_std();
        let start = Instant::now();
        for round in 0..TURNS {
            let mut moved = 0;
            let flushed = self.outbox.poll_flush(&mut self.io, cx, &mut moved)?;
            if moved > 0 {
                // What is said beside what waits, as a ping, would be no progress.
                self.connection.taken(now);
                self.stuck.take(moved);
            }
            let heard = if self.connection.control.len() < CONTROL {
                self.hear(cx, desk, now)?
            } else {
                Heard::Unasked
            };
            if matches!(heard, Heard::End) {
                return Ok(Step::Gone);
            }
            if round == 0 {
                // What has come counts as come, however long this connection waited for its turn to hear it.
                if self.outbox.is_empty() && !self.connection.waits_for_window() {
                    self.stuck.pause(now);
                }
                self.keep_time(cx, now)?;
            }
            let mut full = flushed.is_pending();
            if !full {
                self.gather(cx.waker(), desk, now, start);
                if !desk.batch.is_empty() {
                    let mut sent = 0;
                    full = self.outbox.poll_send(&mut desk.batch, &mut self.io, cx, &mut sent)?.is_pending();
                    let said = self.connection.take_said();
                    // Beside what a window holds back, only data is progress.
                    self.stuck.take(if full { sent } else { said });
                }
                if !full && self.connection.is_over() {
                    return Ok(Step::Over);
                }
            }
            let nothing_to_hear = match heard {
                Heard::Nothing => true,
                // The socket says when there is room for what has to go before more is heard.
                Heard::Unasked => full,
                Heard::Something | Heard::End => false,
            };
            if nothing_to_hear && (full || self.connection.stirred.is_empty()) {
                self.note_stuck(cx, now);
                self.note_idle(cx, now);
                return Ok(Step::Wait);
            }
            if start.elapsed() >= SLICE {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Ok(Step::Wait)
    }

    fn hear(&mut self, cx: &mut Context<'_>, desk: &mut Desk, now: Instant) -> Result<Heard, Ended> {
        let mut input = ReadBuf::new(&mut desk.input);
        match Pin::new(&mut self.io).poll_read(cx, &mut input) {
            Poll::Pending => return Ok(Heard::Nothing),
            Poll::Ready(read) => read?,
        }
        if input.filled().is_empty() {
            return Ok(Heard::End);
        }
        let Self { connection, service, ready, .. } = self;
        connection.receive(input.filled(), now, &mut |stream, parts| {
            let bell = Bell::new(ready, stream);
            let waker = Waker::from(Arc::clone(&bell));
            let expected = parts.headers.get(http::header::EXPECT);
            let waits = expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
            let inbox = Inbox::new(waker.clone(), waits);
            let answer = service(Request::from_parts(parts, inbox.body()));
            Served {
                inbox,
                bell,
                waker,
                state: State::Answering(Box::pin(answer)),
                chunk: Bytes::new(),
                held_back: false,
            }
        })?;
        Ok(Heard::Something)
    }

    /// Asks the streams that were woken what they have to say, as far as there is room.
    fn gather(&mut self, task: &Waker, desk: &mut Desk, now: Instant, start: Instant) {
        let Desk { batch, streams, .. } = desk;
        streams.append(&mut self.connection.stirred);
        self.ready.take(streams, task);
        if streams.len() > 1 {
            streams.sort_unstable();
            streams.dedup();
        }
        // Next it is first the turn of the first that had to stand back now, for the batch or the connection's window.
        let turn = streams.partition_point(|stream| *stream < self.turn);
        streams.rotate_left(turn);
        let (mut stood_back, mut over) = (None, false);
        for stream in streams.drain(..) {
            if over || batch.is_full() || self.connection.control.len() >= CONTROL {
                self.connection.stirred.push(stream);
                stood_back.get_or_insert(stream);
            } else {
                if self.poll_stream(stream, batch, now) == Turn::StoodBack {
                    stood_back.get_or_insert(stream);
                }
                over = start.elapsed() >= SLICE;
            }
        }
        self.turn = stood_back.unwrap_or(self.turn);
        drain_control(&mut self.connection, batch);
    }

    fn poll_stream(&mut self, id: u32, batch: &mut Batch, now: Instant) -> Turn {
        let connection = &mut self.connection;
        let Some(at) = connection.find(id) else { return Turn::Had };
        connection.streams[at].exchange.bell.answer();
        let mut turn = Turn::Had;
        let mut has_sent = false;
        loop {
            let room = connection.room(at);
            let Served { inbox, waker, state, chunk, held_back, .. } = &mut connection.streams[at].exchange;
            if !chunk.is_empty() {
                if room == 0 {
                    let Some(blocked) = block(connection, at, has_sent, now) else { return turn };
                    turn = blocked;
                    break;
                }
                has_sent = true;
                let piece = chunk.split_to(room.min(chunk.len()));
                drain_control(connection, batch);
                batch.copy(&connection.data(at, piece.len()).bytes());
                batch.share(piece);
                if batch.is_full() {
                    // Asked for more when the socket has taken this.
                    connection.stirred.push(id);
                    break;
                }
                continue;
            }
            let mut cx = Context::from_waker(waker);
            match state {
                State::Answering(answer) => {
                    let Poll::Ready(response) = answer.as_mut().poll(&mut cx) else {
                        if connection.streams[at].exchange.inbox.take_invitation() {
                            connection.invite(at);
                        }
                        break;
                    };
                    let (parts, body) = response.into_parts();
                    let end = body.is_end_stream();
                    *state = State::Sending(body);
                    connection.respond(at, parts.status, &parts.headers, end);
                    if end {
                        return turn;
                    }
                }
                State::Sending(body) => {
                    if *held_back || room == 0 {
                        *held_back = room == 0;
                        inbox.hold_back(*held_back);
                    }
                    match Pin::new(body).poll_frame(&mut cx) {
                        Poll::Pending if *held_back && inbox.waits_for_window() => {
                            let Some(blocked) = block(connection, at, has_sent, now) else { return turn };
                            turn = blocked;
                            break;
                        }
                        Poll::Pending => {
                            connection.streams[at].starved.end();
                            break;
                        }
                        Poll::Ready(None) => {
                            connection.end(at);
                            return turn;
                        }
                        Poll::Ready(Some(Err(_))) => {
                            connection.reset(at, Reason::Internal);
                            return turn;
                        }
                        Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                            Ok(data) => *chunk = data,
                            Err(frame) => {
                                if let Ok(trailers) = frame.into_trailers() {
                                    connection.trailers(at, &trailers);
                                    return turn;
                                }
                            }
                        },
                    }
                }
            }
        }
        let read = connection.streams[at].exchange.inbox.take_read();
        if read > 0 {
            connection.give_back(at, read);
        }
        turn
    }

    /// Does what is due, and sees to it that what will be is not forgotten.
    fn keep_time(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<(), Ended> {
        let mut next = self.connection.keep_time(now)?;
        if let Some(since) = self.stuck.since() {
            let stall = self.connection.limits.stall_timeout;
            if now >= since + stall {
                return Err(Ended::Stalled(stall));
            }
            next = next.min(since + stall);
        }
        // What moves on is looked at again when the alarm goes off: setting it for each frame would cost more.
        if next < self.alarm_at || now >= self.alarm_at {
            self.set_alarm(next);
        }
        self.listen(cx);
        Ok(())
    }

    fn set_alarm(&mut self, next: Instant) {
        self.alarm.as_mut().reset(next.into());
        self.alarm_at = next;
        self.alarm_set = true;
    }

    fn listen(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.alarm_set) && self.alarm.as_mut().poll(cx).is_ready() {
            // It is as late as that already.
            cx.waker().wake_by_ref();
        }
    }

    fn note_idle(&mut self, cx: &mut Context<'_>, now: Instant) {
        let (until, told) = self.connection.keep_idle(now);
        if told {
            self.idle = true;
            // What it is told goes out.
            cx.waker().wake_by_ref();
        }
        if let Some(until) = until.filter(|until| *until < self.alarm_at) {
            self.set_alarm(until);
            self.listen(cx);
        }
    }

    fn note_stuck(&mut self, cx: &mut Context<'_>, now: Instant) {
        if self.outbox.is_empty() && !self.connection.waits_for_window() {
            self.stuck.end();
            if self.connection.blocked.is_empty() {
                return;
            }
        } else {
            self.stuck.wait(now);
        }
        // A wait that goes on may be over already.
        let until = self.stuck.since().unwrap_or(now) + self.connection.limits.stall_timeout;
        if until < self.alarm_at {
            self.set_alarm(until);
            self.listen(cx);
        }
    }
}

/// What reading brought.
#[derive(Debug)]
enum Heard {
    /// There is nothing now.
    Nothing,
    Something,
    End,
    /// It was not tried.
    Unasked,
}

/// Whether a stream had its turn.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Had,
    /// It had something to send, and others had taken the connection's window.
    StoodBack,
}

/// Has a stream wait for a window. `None` if it has waited for too long, and was broken off.
fn block<X: Exchange>(
    connection: &mut Connection<X>,
    at: usize,
    has_sent: bool,
    now: Instant,
) -> Option<Turn> {
    let id = connection.streams[at].id;
    connection.block(at, now);
    connection.find(id)?;
    Some(if !has_sent && connection.has_no_window() { Turn::StoodBack } else { Turn::Had })
}

/// Control frames go before data of the same stream, which is added next.
fn drain_control<X: Exchange>(connection: &mut Connection<X>, batch: &mut Batch) {
    if !connection.control.is_empty() {
        batch.copy(&std::mem::take(&mut connection.control));
    }
}

impl<IO, S, F, B> Future for Serve<IO, S, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F + Unpin,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin,
{
    type Output = Result<(), Ended>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut desk = Desk::take();
        let ended = self.advance(cx, &mut desk);
        desk.leave();
        ended
    }
}
