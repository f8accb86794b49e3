//! Protocol of one connection, without I/O, clock or tasks: bytes come in, streams change, and
//! frames to be sent are put in order. Time is an argument.
//!
//! This file owns the state and the output; `receive` processes input.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};

mod receive;

use crate::frame::{self, DEFAULT_WINDOW, Head, Kind, MAX_WINDOW, Peer, flag};
use crate::rates::WorkBudget;
use crate::stream::{RecvWindow, SendWindow, Stream, StreamHandler};
use crate::{ConnectionError, Limits, Reason, hpack};

/// Remembered streams that we reset: more of their frames may arrive, sent before the peer knew.
const REMEMBERED_RESETS: usize = 64;
/// DATA shorter than this that fills a window earns the peer nothing: a peer could open its windows
/// by bytes to get many frames.
const WORTH_AN_ANSWER: usize = 256;
/// Payloads of our PINGs. The answer to the second shows that all streams opened before the GOAWAY
/// have arrived.
const KEEP_ALIVE: [u8; 8] = *b"alive?\0\0";
const SHUT_DOWN: [u8; 8] = *b"goodbye\0";
/// Time to wait for that answer.
const SHUTDOWN_PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Progress of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shutdown {
    No,
    /// The first GOAWAY was sent at this time. Until the peer answers the PING behind it, streams
    /// may arrive that it opened before.
    Announced(Instant),
    /// The second GOAWAY was sent. New streams are ignored.
    Final,
}

/// State of a connection. `X` is the driver's part of a stream.
#[derive(Debug)]
pub(super) struct Connection<X> {
    pub(super) limits: Arc<Limits>,
    /// By id, which only grows.
    pub(super) streams: Vec<Stream<X>>,
    /// Streams to be polled, perhaps repeated.
    pub(super) scheduled: Vec<u32>,
    /// Frames that are written first. The driver takes them.
    pub(super) control: Vec<u8>,
    pub(super) arriving: Arriving,
    decoder: hpack::Decoder,
    peer: Peer,
    send_window: SendWindow,
    recv_window: RecvWindow,
    /// Bytes of DATA sent since [`take_data_sent`](Self::take_data_sent).
    data_sent: usize,
    /// Streams that have something to send and no window.
    pub(super) blocked: Vec<u32>,
    /// Highest stream id of the peer.
    highest: u32,
    shutdown: Shutdown,
    goaway_received: bool,
    work_budget: WorkBudget,
    resets: VecDeque<u32>,
    /// Highest stream id that a GOAWAY announced as processed.
    goaway_stream: u32,
    /// Bytes of header blocks of unanswered requests.
    pub(super) heads: usize,
    table_size_sent: bool,
    opened: Instant,
    pub(super) last_received: Instant,
    ping_sent_at: Option<Instant>,
    /// Time since which no stream is open, if known.
    idle: Option<Instant>,
    /// Whether the peer was asked to go because no stream was open for `idle_timeout`.
    pub(super) was_idle: bool,
    /// Streams refused because too many were open, since the driver took the count.
    pub(super) refused: u64,
}

impl<X: StreamHandler> Connection<X> {
    /// New connection with SETTINGS ready to be sent.
    pub(super) fn new(limits: Arc<Limits>, now: Instant) -> Self {
        let mut control = Vec::new();
        frame::put_ours(&limits, &mut control);
        let recv_window = RecvWindow::new(limits.connection_window.max(DEFAULT_WINDOW));
        Self {
            limits,
            streams: Vec::new(),
            scheduled: Vec::new(),
            control,
            arriving: Arriving::default(),
            decoder: hpack::Decoder::default(),
            peer: Peer::default(),
            send_window: SendWindow::new(DEFAULT_WINDOW),
            recv_window,
            data_sent: 0,
            blocked: Vec::new(),
            highest: 0,
            shutdown: Shutdown::No,
            goaway_received: false,
            work_budget: WorkBudget::new(now),
            resets: VecDeque::new(),
            goaway_stream: MAX_WINDOW,
            heads: 0,
            table_size_sent: false,
            opened: now,
            last_received: now,
            ping_sent_at: None,
            idle: None,
            was_idle: false,
            refused: 0,
        }
    }

    pub(super) fn find(&self, id: u32) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.id).ok()
    }

    /// Schedules a stream to be polled. No stream is polled while the socket takes nothing, so
    /// frames of a peer that keeps sending must not grow the list.
    pub(super) fn schedule(&mut self, id: u32) {
        if self.scheduled.len() > 2 * self.streams.len() + 8 {
            let mut scheduled = std::mem::take(&mut self.scheduled);
            scheduled.sort_unstable();
            scheduled.dedup();
            scheduled.retain(|id| self.find(*id).is_some());
            self.scheduled = scheduled;
        }
        self.scheduled.push(id);
    }

    /// Bytes kept for the peer beside response messages: streams, incomplete frames, header blocks
    /// of unanswered requests, unread bodies and waiting control frames.
    pub(super) fn held(&self) -> usize {
        /// Approximate bytes of an idle stream with its session.
        const STREAM: usize = 4 << 10;
        let frames = self.arriving.len() + self.heads + self.recv_window.unread() + self.control.len();
        frames + self.streams.len() * STREAM
    }

    pub(super) const fn is_done(&self) -> bool {
        self.streams.is_empty() && (self.goaway_received || matches!(self.shutdown, Shutdown::Final))
    }

    // === Output ===

    /// Bytes that a stream may send now in one frame.
    pub(super) fn room(&self, at: usize) -> usize {
        self.streams[at].send_window.room().min(self.send_window.room()).min(self.peer.max_payload)
    }

    /// Takes `len` bytes out of the windows, and returns the header of their DATA frame.
    pub(super) fn data(&mut self, at: usize, len: usize) -> Head {
        if len >= WORTH_AN_ANSWER || len < self.room(at) {
            self.work_budget.earn();
        }
        self.data_sent += len;
        self.send_window.spend(len);
        let stream = &mut self.streams[at];
        stream.send_window.spend(len);
        stream.window_wait.take(len);
        Head::new(Kind::Data, 0, stream.id, len)
    }

    /// Notes that a stream has something to send and no window. It is scheduled when one opens, or
    /// reset if windows open too slowly.
    pub(super) fn block(&mut self, at: usize, now: Instant) {
        let has_no_window = self.has_no_window();
        let stream = &mut self.streams[at];
        if stream.send_window.room() == 0 {
            stream.window_wait.wait(now);
        }
        if !has_no_window
            && stream.window_wait.since().is_some_and(|since| since + self.limits.stall_timeout <= now)
        {
            return self.reset(at, Reason::Cancel);
        }
        if !std::mem::replace(&mut stream.blocked, true) {
            self.blocked.push(stream.id);
        }
    }

    pub(super) fn end_wait(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        stream.window_wait.end();
        if std::mem::take(&mut stream.blocked) {
            let id = stream.id;
            self.blocked.retain(|blocked| *blocked != id);
        }
    }

    pub(super) fn has_no_window(&self) -> bool {
        self.send_window.room() == 0
    }

    /// Whether a stream waits for the connection's window.
    pub(super) fn waits_for_window(&self) -> bool {
        self.has_no_window() && !self.blocked.is_empty()
    }

    /// Notes that the transport took bytes that it had refused: the peer reads, and is alive.
    pub(super) const fn taken(&mut self, now: Instant) {
        self.last_received = now;
        self.ping_sent_at = None;
    }

    /// Bytes of DATA sent since the last call.
    pub(super) const fn take_data_sent(&mut self) -> usize {
        std::mem::replace(&mut self.data_sent, 0)
    }

    pub(super) fn give_back(&mut self, at: usize, len: usize) {
        let stream = &mut self.streams[at];
        if let Some(more) = stream.recv_window.give_back(len).filter(|_| !stream.ended) {
            frame::put(&mut self.control, Kind::WindowUpdate, 0, stream.id, &more.to_be_bytes());
        }
        self.give_back_to_all(len);
    }

    pub(super) fn give_back_to_all(&mut self, len: usize) {
        if let Some(more) = self.recv_window.give_back(len) {
            frame::put(&mut self.control, Kind::WindowUpdate, 0, 0, &more.to_be_bytes());
        }
    }

    /// Sends the header block of a response, which is the whole response if `end`.
    pub(super) fn respond(&mut self, at: usize, status: StatusCode, headers: &HeaderMap, end: bool) {
        self.heads -= std::mem::take(&mut self.streams[at].head_bytes);
        let mut block = self.status(status);
        encode_all(headers, &mut block);
        self.put_block(self.streams[at].id, &block, end);
        if end {
            self.finish(at);
        }
    }

    /// Sends trailers, which end a response.
    pub(super) fn trailers(&mut self, at: usize, trailers: &HeaderMap) {
        let mut block = self.block_start();
        encode_all(trailers, &mut block);
        self.put_block(self.streams[at].id, &block, true);
        self.finish(at);
    }

    /// Ends a response that has no trailers.
    pub(super) fn end(&mut self, at: usize) {
        frame::put(&mut self.control, Kind::Data, flag::END_STREAM, self.streams[at].id, &[]);
        self.finish(at);
    }

    /// Answers a request with too large a header block with 431. The request is dropped.
    pub(super) fn refuse_head(&mut self, id: u32, ended: bool) {
        let block = self.status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        self.put_block(id, &block, true);
        if !ended {
            self.refuse(id, Reason::No);
        }
    }

    /// Start of the header block of a response.
    pub(super) fn status(&mut self, status: StatusCode) -> Vec<u8> {
        let mut block = self.block_start();
        hpack::encode(":status", status.as_str().as_bytes(), &mut block);
        block
    }

    fn block_start(&mut self) -> Vec<u8> {
        let mut block = Vec::with_capacity(128);
        if self.peer.small_table && !std::mem::replace(&mut self.table_size_sent, true) {
            hpack::encode_no_table(&mut block);
        }
        block
    }

    fn put_block(&mut self, id: u32, block: &[u8], end: bool) {
        let mut pieces = block.chunks(self.peer.max_payload).peekable();
        let mut kind = Kind::Headers;
        let mut flags = if end { flag::END_STREAM } else { 0 };
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                flags |= flag::END_HEADERS;
            }
            frame::put(&mut self.control, kind, flags, id, piece);
            (kind, flags) = (Kind::Continuation, 0);
        }
    }

    /// Closes a stream whose response is whole. The rest of its request is not needed.
    fn finish(&mut self, at: usize) {
        self.work_budget.earn();
        if self.streams[at].ended {
            self.remove(at);
        } else {
            self.reset(at, Reason::No);
        }
    }

    pub(super) fn reset(&mut self, at: usize, reason: Reason) {
        let id = self.streams[at].id;
        self.remove(at);
        self.refuse(id, reason);
    }

    /// Sends RST_STREAM for a stream that is not kept.
    pub(super) fn refuse(&mut self, id: u32, reason: Reason) {
        frame::put(&mut self.control, Kind::RstStream, 0, id, &(reason as u32).to_be_bytes());
        if self.resets.len() == REMEMBERED_RESETS {
            self.resets.pop_front();
        }
        self.resets.push_back(id);
    }

    /// Whether frames of a stream that we reset may still arrive.
    pub(super) fn was_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }

    pub(super) fn remove(&mut self, at: usize) {
        let stream = self.streams.remove(at);
        self.heads -= stream.head_bytes;
        if stream.blocked {
            self.blocked.retain(|id| *id != stream.id);
        }
        self.give_back_to_all(stream.recv_window.unread());
        if self.streams.is_empty() {
            // A proxy's connection may have had a thousand streams: free the list.
            self.streams = Vec::new();
        }
    }

    // === Shutdown and time ===

    /// Starts a graceful shutdown: the peer should open no new streams; open ones go on.
    pub(super) fn shut_down(&mut self, now: Instant) {
        if self.shutdown == Shutdown::No {
            self.shutdown = Shutdown::Announced(now);
            self.ping_sent_at = Some(now);
            self.put_go_away(MAX_WINDOW, Reason::No);
            frame::put(&mut self.control, Kind::Ping, 0, 0, &SHUT_DOWN);
        }
    }

    /// Ends the connection at once, with a GOAWAY.
    pub(super) fn fail(&mut self, reason: Reason) {
        self.shutdown = Shutdown::Final;
        self.put_go_away(self.highest, reason);
        self.streams.clear();
    }

    fn put_go_away(&mut self, last: u32, reason: Reason) {
        // A later GOAWAY must not announce a higher stream (RFC 9113, section 6.8).
        self.goaway_stream = self.goaway_stream.min(last);
        let [last, reason] = [self.goaway_stream, reason as u32].map(u32::to_be_bytes);
        frame::put(&mut self.control, Kind::GoAway, 0, 0, &[last, reason].concat());
    }

    pub(super) fn pong(&mut self, payload: &[u8]) {
        if payload == SHUT_DOWN && matches!(self.shutdown, Shutdown::Announced(_)) {
            self.send_last_stream();
        }
    }

    /// Checks for open streams, and starts a shutdown after `idle_timeout` without one. Returns
    /// when to check again.
    fn keep_idle(&mut self, now: Instant) -> Option<Instant> {
        if !self.streams.is_empty() || self.shutdown != Shutdown::No {
            self.idle = None;
            return None;
        }
        let until = *self.idle.get_or_insert(now) + self.limits.idle_timeout;
        if now < until {
            return Some(until);
        }
        self.shut_down(now);
        self.was_idle = true;
        None
    }

    /// Second step of a shutdown: streams opened from here on are ignored.
    fn send_last_stream(&mut self) {
        self.shutdown = Shutdown::Final;
        self.put_go_away(self.highest, Reason::No);
    }

    /// Handles due timeouts, and returns the time of the next.
    pub(super) fn keep_time(&mut self, now: Instant) -> Result<Instant, ConnectionError> {
        let idle = self.keep_idle(now);
        let mut next = self.last_received + self.limits.keepalive_interval;
        match self.ping_sent_at {
            Some(ping_sent_at) => {
                let until = ping_sent_at + self.limits.keepalive_timeout;
                if now >= until {
                    return Err(ConnectionError::new(Reason::No, "a PING was not answered in time"));
                }
                next = until;
            }
            None if now >= next => {
                frame::put(&mut self.control, Kind::Ping, 0, 0, &KEEP_ALIVE);
                self.ping_sent_at = Some(now);
                next = now + self.limits.keepalive_timeout;
            }
            None => {}
        }
        if let Shutdown::Announced(since) = self.shutdown {
            // A peer that never answers PINGs, or keeps opening streams, would never leave.
            if now >= since + SHUTDOWN_PING_TIMEOUT {
                self.send_last_stream();
            } else {
                next = next.min(since + SHUTDOWN_PING_TIMEOUT);
            }
        }
        next = next.min(self.reset_starved(now).unwrap_or(next));
        if let Some(since) = self.arriving.incomplete_since(self.opened) {
            let until = since + self.limits.head_timeout;
            if now >= until {
                return Err(ConnectionError::new(
                    Reason::EnhanceYourCalm,
                    "a header block was not whole in time",
                ));
            }
            next = next.min(until);
        }
        Ok(next.min(idle.unwrap_or(next)))
    }

    /// Resets streams whose windows stay closed. Each may belong to another client of a proxy, and
    /// the others go on. Returns when to check again.
    fn reset_starved(&mut self, now: Instant) -> Option<Instant> {
        let patience = self.limits.stall_timeout;
        let (mut next, mut given_up) = (None::<Instant>, Vec::new());
        for id in &self.blocked {
            let Some(stream) = self.find(*id).map(|at| &self.streams[at]) else { continue };
            let Some(until) = stream.window_wait.since().map(|since| since + patience) else { continue };
            if stream.send_window.room() > 0 || self.has_no_window() {
                // The stream also waits for the connection's window, which is handled elsewhere.
                // Without its blocked streams nothing would show that the connection must be
                // closed.
            } else if now >= until {
                given_up.push(*id);
            } else {
                next = Some(next.map_or(until, |next| next.min(until)));
            }
        }
        for id in given_up {
            if let Some(at) = self.find(id) {
                self.reset(at, Reason::Cancel);
            }
        }
        next
    }
}

fn encode_all(headers: &HeaderMap, block: &mut Vec<u8>) {
    headers.iter().for_each(|(name, value)| hpack::encode(name.as_str(), value.as_bytes(), block));
}

#[derive(Debug, Default)]
pub(super) struct Arriving {
    phase: Phase,
    /// Start of the preface or of a frame.
    pub(super) partial: Vec<u8>,
    block: Option<Block>,
}

/// Phase of a connection's input, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Preface,
    Settings,
    Open,
}

/// Incomplete header block.
#[derive(Debug)]
struct Block {
    stream: u32,
    end_stream: bool,
    depends_on_itself: bool,
    fragment: Vec<u8>,
    continuations: u32,
    since: Instant,
}

impl Arriving {
    /// Bytes of an incomplete frame or header block.
    fn len(&self) -> usize {
        self.partial.len() + self.block.as_ref().map_or(0, |block| block.fragment.len())
    }

    /// Start of the wait for incomplete input that must not take long.
    fn incomplete_since(&self, opened: Instant) -> Option<Instant> {
        if self.phase == Phase::Open { self.block.as_ref().map(|block| block.since) } else { Some(opened) }
    }
}
