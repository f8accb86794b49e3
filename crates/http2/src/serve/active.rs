//! One stream of a connection: its request and its response.
//!
//! Owns the progress of the response. Knows nothing of other streams, nor of its turn.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body;

use crate::Reason;
use crate::connection::Connection;
use crate::request_body::{RequestBody, RequestBuffer};
use crate::stream::StreamHandler;
use crate::wakers::StreamWaker;
use crate::write_buffer::Batch;

#[derive(Debug)]
pub(super) struct ActiveStream<B> {
    incoming: RequestBuffer,
    waker_handle: Arc<StreamWaker>,
    waker: Waker,
    state: State<B>,
    /// Rest of the current chunk.
    chunk: Bytes,
    /// Whether the response body was told that a window is closed.
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

impl<B> ActiveStream<B> {
    pub(super) fn new<F>(
        waker_handle: Arc<StreamWaker>,
        head: request::Parts,
        service: impl FnOnce(Request<RequestBody>) -> F,
    ) -> Self
    where
        F: Future<Output = Response<B>> + Send + 'static,
    {
        let waker = Waker::from(Arc::clone(&waker_handle));
        let incoming = RequestBuffer::default();
        let answer = service(Request::from_parts(head, incoming.body()));
        let state = State::Answering(Box::pin(answer));
        Self { incoming, waker_handle, waker, state, chunk: Bytes::new(), held_back: false }
    }
}

impl<B> StreamHandler for ActiveStream<B> {
    fn data(&mut self, payload: &[u8]) {
        self.incoming.push(payload);
    }

    fn end(&mut self) {
        self.incoming.end();
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Taken,
    /// It has data, but other streams used up the connection's window.
    Deferred,
}

enum Polled {
    Ready,
    Pending,
    /// There is more to send than a window takes.
    Blocked,
    Over,
}

/// Sends all of a stream that fits.
pub(super) fn poll<B: Body<Data = Bytes> + Unpin>(
    connection: &mut Connection<ActiveStream<B>>,
    id: u32,
    batch: &mut Batch,
    now: Instant,
) -> Turn {
    let Some(at) = connection.find(id) else { return Turn::Taken };
    connection.streams[at].handler.waker_handle.answer();
    let mut turn = Turn::Taken;
    let mut has_sent = false;
    loop {
        let room = connection.room(at);
        let polled = if connection.streams[at].handler.chunk.is_empty() {
            poll_response(connection, at, room)
        } else {
            has_sent |= room > 0;
            send_chunk(connection, at, room, batch)
        };
        match polled {
            Polled::Ready => {}
            Polled::Pending => break,
            Polled::Blocked => {
                let Some(blocked) = block(connection, at, has_sent, now) else { return turn };
                turn = blocked;
                break;
            }
            Polled::Over => return turn,
        }
    }
    let read = connection.streams[at].handler.incoming.take_read();
    if read > 0 {
        connection.give_back(at, read);
    }
    turn
}

/// Adds to the batch as much of the chunk as fits.
fn send_chunk<B>(
    connection: &mut Connection<ActiveStream<B>>,
    at: usize,
    room: usize,
    batch: &mut Batch,
) -> Polled {
    if room == 0 {
        return Polled::Blocked;
    }
    let chunk = &mut connection.streams[at].handler.chunk;
    let piece = chunk.split_to(room.min(chunk.len()));
    drain_control(connection, batch);
    batch.copy(&connection.data(at, piece.len()).bytes());
    batch.share(piece);
    if batch.is_full() {
        // Polled again when the socket has taken this batch.
        let id = connection.streams[at].id;
        connection.scheduled.push(id);
        return Polled::Pending;
    }
    Polled::Ready
}

/// Polls the service for its response, or the response body for its next frame.
fn poll_response<B: Body<Data = Bytes> + Unpin>(
    connection: &mut Connection<ActiveStream<B>>,
    at: usize,
    room: usize,
) -> Polled {
    let ActiveStream { incoming, waker, state, chunk, held_back, .. } = &mut connection.streams[at].handler;
    let mut cx = Context::from_waker(waker);
    match state {
        State::Answering(answer) => {
            let Poll::Ready(response) = answer.as_mut().poll(&mut cx) else { return Polled::Pending };
            let (parts, body) = response.into_parts();
            let end = body.is_end_stream();
            *state = State::Sending(body);
            connection.respond(at, parts.status, &parts.headers, end);
            if end {
                return Polled::Over;
            }
        }
        State::Sending(body) => {
            if *held_back || room == 0 {
                *held_back = room == 0;
                incoming.hold_back(*held_back);
            }
            match Pin::new(body).poll_frame(&mut cx) {
                Poll::Pending if *held_back && incoming.waits_for_window() => return Polled::Blocked,
                Poll::Pending => {
                    connection.end_wait(at);
                    return Polled::Pending;
                }
                Poll::Ready(None) => {
                    connection.end(at);
                    return Polled::Over;
                }
                Poll::Ready(Some(Err(_))) => {
                    connection.reset(at, Reason::Internal);
                    return Polled::Over;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => *chunk = data,
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            connection.trailers(at, &trailers);
                            return Polled::Over;
                        }
                    }
                },
            }
        }
    }
    Polled::Ready
}

/// Lets a stream wait for a window. `None` if it has waited too long and was reset.
fn block<X: StreamHandler>(
    connection: &mut Connection<X>,
    at: usize,
    has_sent: bool,
    now: Instant,
) -> Option<Turn> {
    let id = connection.streams[at].id;
    connection.block(at, now);
    connection.find(id)?;
    Some(if !has_sent && connection.has_no_window() { Turn::Deferred } else { Turn::Taken })
}

/// Control frames precede the DATA of the same stream, which is added next.
pub(super) fn drain_control<X: StreamHandler>(connection: &mut Connection<X>, batch: &mut Batch) {
    if !connection.control.is_empty() {
        batch.copy(&std::mem::take(&mut connection.control));
    }
}
