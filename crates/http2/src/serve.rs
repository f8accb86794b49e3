//! Driver of one connection: moves its bytes and polls its streams.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

mod active;

use crate::connection::Connection;
use crate::rates::MinRate;
use crate::request_body::RequestBody;
use crate::wakers::{StreamWaker, WokenStreams};
use crate::write_buffer::{Batch, WriteBuffer};
use crate::{ConnectionError, Limits};

use active::{ActiveStream, Turn, drain_control};

/// Bytes read from the socket at once.
const READ_BUFFER: usize = 64 << 10;
/// Rounds of reading and writing before other tasks get their turn.
const MAX_ROUNDS: usize = 16;
/// Time after which other tasks get their turn: a frame that is cheap to send can be expensive to
/// process.
const SLICE: Duration = Duration::from_millis(1);
/// Bytes of waiting control frames (PING answers, RST_STREAM, HEADERS) above which the peer is not
/// read and no body is polled.
const MAX_CONTROL: usize = 16 << 10;
/// Time for a peer to read the last frames once the connection is over.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reason of an end without agreement.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the transport: {0}")]
    Transport(#[from] io::Error),
    /// The peer violated the protocol or did not answer a PING.
    #[error("the peer: {0}")]
    Peer(#[from] ConnectionError),
    /// The peer read less than [`super::MIN_BYTES`] bytes within the stall timeout, although more
    /// was waiting.
    #[error("nothing was taken for {0:?}")]
    Stalled(Duration),
}

/// Buffers that a connection needs only while it is polled. They belong to the thread.
#[derive(Debug)]
struct Scratch {
    input: Box<[u8]>,
    batch: Batch,
    streams: Vec<u32>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    fn take() -> Box<Self> {
        SCRATCH.take().unwrap_or_else(|| {
            Box::new(Self {
                input: vec![0; READ_BUFFER].into(),
                batch: Batch::default(),
                streams: Vec::new(),
            })
        })
    }

    /// Returns the buffers to the thread, empty: bytes of one connection must not reach the next.
    fn leave(mut self: Box<Self>) {
        self.batch.clear();
        self.streams.clear();
        SCRATCH.set(Some(self));
    }
}

#[derive(Debug)]
enum Lifecycle {
    Serving,
    /// The last frames are written; the peer then has until `until` to read them.
    Closing {
        why: Option<ServeError>,
        until: Pin<Box<Sleep>>,
        shut: bool,
    },
}

/// Result of one poll of a connection.
#[derive(Debug)]
enum Step {
    /// Nothing more can be done now.
    Wait,
    /// Both sides are done.
    Over,
    /// The peer closed the connection.
    Gone,
}

/// Future that serves one connection and ends with it. It must always be polled by the same task.
#[derive(Debug)]
pub struct Serve<IO, S, B> {
    io: IO,
    service: S,
    connection: Connection<ActiveStream<B>>,
    ready: Arc<WokenStreams>,
    write_buffer: WriteBuffer,
    alarm: Pin<Box<Sleep>>,
    /// Time that `alarm` is set to.
    alarm_at: Instant,
    /// First stream to poll in the next batch.
    turn: u32,
    stuck: MinRate,
    lifecycle: Lifecycle,
}

impl<IO, S, F, B> Serve<IO, S, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F + Unpin,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin,
{
    pub fn new(io: IO, limits: Arc<Limits>, service: S) -> Self {
        let now = tokio::time::Instant::now().into_std();
        Self {
            io,
            service,
            connection: Connection::new(limits, now),
            ready: Arc::default(),
            write_buffer: WriteBuffer::default(),
            // Set by the first poll.
            alarm: Box::pin(tokio::time::sleep_until(now.into())),
            alarm_at: now,
            turn: 0,
            stuck: MinRate::default(),
            lifecycle: Lifecycle::Serving,
        }
    }

    /// Puts bytes first that were read to detect HTTP/2, less than the preface.
    #[must_use]
    pub fn behind(mut self, start: &[u8]) -> Self {
        self.connection.arriving.partial.extend_from_slice(start);
        self
    }

    /// Bytes kept for the peer, without those that its requests and responses keep.
    pub fn held(&self) -> usize {
        self.connection.held() + self.write_buffer.len()
    }

    /// Takes the number of streams refused because too many were open.
    pub const fn take_refused(&mut self) -> u64 {
        std::mem::replace(&mut self.connection.refused, 0)
    }

    /// Takes whether the peer was asked to go for being idle.
    pub const fn take_idle(&mut self) -> bool {
        std::mem::replace(&mut self.connection.was_idle, false)
    }

    /// Schedules all streams. The connection must be polled next.
    pub fn look(&mut self) {
        let Connection { streams, scheduled, .. } = &mut self.connection;
        scheduled.extend(streams.iter().map(|stream| stream.id));
    }

    /// Starts a graceful shutdown: sends GOAWAY and schedules all open streams, so that they can
    /// end. The connection ends with the last of them. It must be polled next.
    pub fn shut_down(&mut self) {
        self.connection.shut_down(tokio::time::Instant::now().into_std());
        self.look();
    }

    fn advance(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<Result<(), ServeError>> {
        if matches!(self.lifecycle, Lifecycle::Serving) {
            let why = match self.step(cx, scratch) {
                Ok(Step::Wait) => return Poll::Pending,
                Ok(Step::Gone) => return Poll::Ready(Ok(())),
                Ok(Step::Over) => None,
                Err(ServeError::Peer(error)) => {
                    self.connection.fail(error.reason);
                    Some(error.into())
                }
                Err(ended) => return Poll::Ready(Err(ended)),
            };
            let until = Box::pin(tokio::time::sleep(CLOSE_TIMEOUT));
            self.lifecycle = Lifecycle::Closing { why, until, shut: false };
        }
        let closed = self.close(cx, scratch);
        let Lifecycle::Closing { why, until, .. } = &mut self.lifecycle else { return Poll::Pending };
        if closed.is_pending() {
            ready!(until.as_mut().poll(cx));
        }
        Poll::Ready(why.take().map_or(Ok(()), Err))
    }

    /// Writes the last frames, then waits for the peer to close. Closing a socket with unread input
    /// discards what the peer has not read yet.
    fn close(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<io::Result<()>> {
        ready!(self.write_buffer.poll_flush(&mut self.io, cx, &mut 0))?;
        drain_control(&mut self.connection, &mut scratch.batch);
        if !scratch.batch.is_empty() {
            ready!(self.write_buffer.poll_send(&mut scratch.batch, &mut self.io, cx, &mut 0))?;
        }
        let Lifecycle::Closing { shut, .. } = &mut self.lifecycle else { return Poll::Pending };
        if !*shut {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            *shut = true;
        }
        loop {
            let mut input = ReadBuf::new(&mut scratch.input);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut input))?;
            if input.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn step(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Result<Step, ServeError> {
        let start = tokio::time::Instant::now();
        let now = start.into_std();
        for _ in 0..MAX_ROUNDS {
            let mut moved = 0;
            let flushed = self.write_buffer.poll_flush(&mut self.io, cx, &mut moved)?;
            if moved > 0 {
                // Only bytes that had been waiting count: a PING that fits beside them is no progress.
                self.connection.taken(now);
                self.stuck.take(moved);
            }
            let heard = if self.connection.control.len() < MAX_CONTROL {
                self.read(cx, scratch, now)?
            } else {
                ReadOutcome::Skipped
            };
            if matches!(heard, ReadOutcome::Eof) {
                return Ok(Step::Gone);
            }
            let mut full = flushed.is_pending();
            if !full {
                self.fill_batch(cx.waker(), scratch, start);
                if !scratch.batch.is_empty() {
                    let mut sent = 0;
                    full = self
                        .write_buffer
                        .poll_send(&mut scratch.batch, &mut self.io, cx, &mut sent)?
                        .is_pending();
                    let said = self.connection.take_data_sent();
                    // While a window is closed, only DATA is progress.
                    self.stuck.take(if full { sent } else { said });
                }
                if !full && self.connection.is_done() {
                    return Ok(Step::Over);
                }
            }
            let nothing_to_hear = match heard {
                ReadOutcome::WouldBlock => true,
                // The socket wakes the task when there is room for what must be written before more is read.
                ReadOutcome::Skipped => full,
                ReadOutcome::Data | ReadOutcome::Eof => false,
            };
            if nothing_to_hear && (full || self.connection.scheduled.is_empty()) {
                self.keep_time(cx, now, true)?;
                return Ok(Step::Wait);
            }
            if start.elapsed() >= SLICE {
                break;
            }
        }
        self.keep_time(cx, now, false)?;
        cx.waker().wake_by_ref();
        Ok(Step::Wait)
    }

    fn read(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        now: Instant,
    ) -> Result<ReadOutcome, ServeError> {
        let mut input = ReadBuf::new(&mut scratch.input);
        match Pin::new(&mut self.io).poll_read(cx, &mut input) {
            Poll::Pending => return Ok(ReadOutcome::WouldBlock),
            Poll::Ready(read) => read?,
        }
        if input.filled().is_empty() {
            return Ok(ReadOutcome::Eof);
        }
        let Self { connection, service, ready, .. } = self;
        connection.receive(input.filled(), now, &mut |stream, parts| {
            ActiveStream::new(StreamWaker::new(ready, stream), parts, &mut *service)
        })?;
        Ok(ReadOutcome::Data)
    }

    /// Polls the scheduled streams until the batch is full.
    fn fill_batch(&mut self, task: &Waker, scratch: &mut Scratch, start: tokio::time::Instant) {
        let Scratch { batch, streams, .. } = scratch;
        streams.append(&mut self.connection.scheduled);
        self.ready.take(streams, task);
        if streams.len() > 1 {
            streams.sort_unstable();
            streams.dedup();
        }
        // The first stream that was deferred now comes first next time.
        let turn = streams.partition_point(|stream| *stream < self.turn);
        streams.rotate_left(turn);
        let (mut stood_back, mut polled, mut over) = (None, false, false);
        for stream in streams.drain(..) {
            over = over || (polled && start.elapsed() >= SLICE);
            if over || batch.is_full() || self.connection.control.len() >= MAX_CONTROL {
                self.connection.scheduled.push(stream);
                stood_back.get_or_insert(stream);
            } else {
                if active::poll(&mut self.connection, stream, batch, start.into_std()) == Turn::Deferred {
                    stood_back.get_or_insert(stream);
                }
                polled = true;
            }
        }
        self.turn = stood_back.unwrap_or(self.turn);
        drain_control(&mut self.connection, batch);
    }

    /// Handles due timeouts, and sets the alarm for the next. Called last: input that is there counts as received,
    /// however late this connection was polled. `is_done`: nothing more can be done now.
    fn keep_time(&mut self, cx: &mut Context<'_>, now: Instant, is_done: bool) -> Result<(), ServeError> {
        if !self.write_buffer.is_empty() || self.connection.waits_for_window() {
            self.stuck.wait(now);
        } else if is_done {
            self.stuck.end();
        } else {
            self.stuck.pause(now);
        }
        let mut next = self.connection.keep_time(now)?;
        if let Some(since) = self.stuck.since() {
            let stall = self.connection.limits.stall_timeout;
            if now >= since + stall {
                return Err(ServeError::Stalled(stall));
            }
            next = next.min(since + stall);
        }
        // A deadline that moved into the future is checked when the alarm goes off: setting the
        // timer for each frame would cost more.
        let mut is_due = false;
        if next < self.alarm_at || now >= self.alarm_at {
            self.alarm.as_mut().reset(in_step(next, now).into());
            self.alarm_at = next;
            is_due = self.alarm.as_mut().poll(cx).is_ready();
        }
        // A PING, GOAWAY or RST_STREAM must be written, unless the socket is full, which wakes the task.
        if is_due || (self.write_buffer.is_empty() && !self.connection.control.is_empty()) {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }
}

/// Puts off a time by at most an eighth of the wait for it, so that the alarms of many connections go off together: a process
/// with idle connections wakes seldom.
///
/// Example: alarms in 30 s go off at every other second since the start of the process.
fn in_step(at: Instant, now: Instant) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let step = (millis(at.saturating_duration_since(now)) / 8).checked_ilog2().map_or(1, |log| 1 << log);
    let steps = millis(at.saturating_duration_since(*START)) / step + 1;
    *START + Duration::from_millis(steps * step)
}

#[derive(Debug)]
enum ReadOutcome {
    WouldBlock,
    Data,
    Eof,
    /// Not tried: too many control frames wait.
    Skipped,
}

impl<IO, S, F, B> Future for Serve<IO, S, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F + Unpin,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin,
{
    type Output = Result<(), ServeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut scratch = Scratch::take();
        let ended = self.advance(cx, &mut scratch);
        scratch.leave();
        ended
    }
}
