//! The protocol of one connection, without I/O, clock or tasks: bytes come in, streams change, and what has to be said
//! is put in order. Time is an argument.
//!
//! This half owns the state and what goes out; [`super::receive`] takes in what comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};

use super::budget::Budget;
use super::frame::{self, Head, Kind, MAX_WINDOW, flag};
use super::hpack;
use super::receive::Arriving;
use super::settings::{self, DEFAULT_WINDOW, Peer};
use super::stream::{Exchange, Inward, Outward, Stream};
use super::{ConnectionError, Limits, Reason};

/// Streams that we broke off, of which more may arrive that was sent before the peer knew.
const REMEMBERED_RESETS: usize = 64;
/// Data of which a window lets no more go is worth no answer if it is less than this: a peer that opens its windows by
/// bytes would be sent as many frames.
const WORTH_AN_ANSWER: usize = 256;
/// What our pings say. An answer to the second tells that all has come that was sent before the peer was told to go.
const KEEP_ALIVE: [u8; 8] = *b"alive?\0\0";
const SHUT_DOWN: [u8; 8] = *b"goodbye\0";
/// How long a peer that was told to go is waited for, if it does not answer that ping.
const FAREWELL: Duration = Duration::from_secs(1);

/// How far a connection has come in its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// The peer was told then, but may have opened streams before it knew; it is done with that when it answers a ping.
    Announced(Instant),
    /// New streams are not looked at.
    Final,
}

/// The state of a connection; `X` is what is kept with a stream by who serves it.
#[derive(Debug)]
pub(super) struct Connection<X> {
    pub(super) limits: Arc<Limits>,
    /// By id, which only grow.
    pub(super) streams: Vec<Stream<X>>,
    /// Streams to be looked at, some of them more than once.
    pub(super) stirred: Vec<u32>,
    /// Frames that go out before anything else. Who moves bytes takes them.
    pub(super) control: Vec<u8>,
    pub(super) arriving: Arriving,
    pub(super) decoder: hpack::Decoder,
    pub(super) peer: Peer,
    pub(super) outward: Outward,
    pub(super) inward: Inward,
    /// Bytes of data that were said since [`take_said`](Self::take_said).
    said: usize,
    /// Streams that have something to send and no window for it.
    pub(super) blocked: Vec<u32>,
    /// The newest stream of the peer's.
    pub(super) highest: u32,
    pub(super) leaving: Leaving,
    pub(super) peer_leaves: bool,
    pub(super) budget: Budget,
    resets: VecDeque<u32>,
    /// The newest stream that the peer was told would be answered.
    told: u32,
    /// What the heads of requests take that are not answered yet.
    pub(super) heads: usize,
    no_table_said: bool,
    pub(super) opened: Instant,
    pub(super) heard: Instant,
    pub(super) pinged: Option<Instant>,
    /// Since when no stream is open, as far as it was noticed.
    idle: Option<Instant>,
    /// Streams that were refused because there were too many, since that was last asked.
    pub(super) refused: u64,
}

impl<X: Exchange> Connection<X> {
    /// A connection on which nothing was said yet.
    pub(super) fn new(limits: Arc<Limits>, now: Instant) -> Self {
        let mut control = Vec::new();
        settings::put_ours(&limits, &mut control);
        let inward = Inward::new(limits.connection_window.max(DEFAULT_WINDOW));
        Self {
            limits,
            streams: Vec::new(),
            stirred: Vec::new(),
            control,
            arriving: Arriving::default(),
            decoder: hpack::Decoder::default(),
            peer: Peer::default(),
            outward: Outward::new(DEFAULT_WINDOW),
            inward,
            said: 0,
            blocked: Vec::new(),
            highest: 0,
            leaving: Leaving::No,
            peer_leaves: false,
            budget: Budget::new(now),
            resets: VecDeque::new(),
            told: MAX_WINDOW,
            heads: 0,
            no_table_said: false,
            opened: now,
            heard: now,
            pinged: None,
            idle: None,
            refused: 0,
        }
    }

    pub(super) fn find(&self, id: u32) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.id).ok()
    }

    /// The stream is to be looked at. None is while the socket takes nothing, and the list must not grow with each frame of a
    /// peer that sends on.
    pub(super) fn stir(&mut self, id: u32) {
        if self.stirred.len() > 2 * self.streams.len() + 8 {
            let mut stirred = std::mem::take(&mut self.stirred);
            stirred.sort_unstable();
            stirred.dedup();
            stirred.retain(|id| self.find(*id).is_some());
            self.stirred = stirred;
        }
        self.stirred.push(id);
    }

    /// Bytes that are kept for the peer beside the messages that streams send: of streams, of frames that are not whole, of heads that
    /// are not answered, of requests that nobody has read, and of frames that have not gone out.
    pub(super) fn held(&self) -> usize {
        /// About what a stream takes that says nothing, with whoever serves it.
        const STREAM: usize = 4 << 10;
        let frames = self.arriving.len() + self.heads + self.inward.unread() + self.control.len();
        frames + self.streams.len() * STREAM
    }

    /// Whether all that there was to do is done.
    pub(super) const fn is_over(&self) -> bool {
        self.streams.is_empty() && (self.peer_leaves || matches!(self.leaving, Leaving::Final))
    }

    // === What goes out ===

    /// How much a stream may send now, in one frame.
    pub(super) fn room(&self, at: usize) -> usize {
        self.streams[at].outward.room().min(self.outward.room()).min(self.peer.max_payload)
    }

    /// Spends the windows on a frame of data, and returns its head.
    pub(super) fn data(&mut self, at: usize, len: usize) -> Head {
        if len >= WORTH_AN_ANSWER || len < self.room(at) {
            self.budget.earn();
        }
        self.said += len;
        self.outward.spend(len);
        let stream = &mut self.streams[at];
        stream.outward.spend(len);
        stream.starved.take(len);
        Head::new(Kind::Data, 0, stream.id, len)
    }

    /// The stream has something to send and no window for it. It is looked at again when one opens: unless windows open so
    /// slowly that it is given up.
    pub(super) fn block(&mut self, at: usize, now: Instant) {
        let has_no_window = self.has_no_window();
        let stream = &mut self.streams[at];
        if stream.outward.room() == 0 {
            stream.starved.wait(now);
        }
        if !has_no_window
            && stream.starved.since().is_some_and(|since| since + self.limits.stall_timeout <= now)
        {
            return self.reset(at, Reason::Cancel);
        }
        if !std::mem::replace(&mut stream.blocked, true) {
            self.blocked.push(stream.id);
        }
    }

    /// Whether the window of the connection is used up.
    pub(super) fn has_no_window(&self) -> bool {
        self.outward.room() == 0
    }

    /// Whether something waits for the window of the connection.
    pub(super) fn waits_for_window(&self) -> bool {
        self.has_no_window() && !self.blocked.is_empty()
    }

    /// The transport has taken something that it had refused: the peer reads, and is alive.
    pub(super) const fn taken(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = None;
    }

    /// Bytes of data that were said since the last call.
    pub(super) const fn take_said(&mut self) -> usize {
        std::mem::replace(&mut self.said, 0)
    }

    /// So many bytes of a stream's request were read.
    pub(super) fn give_back(&mut self, at: usize, len: usize) {
        let stream = &mut self.streams[at];
        stream.unread = stream.unread.saturating_sub(len);
        if !stream.ended
            && let Some(more) = stream.inward.give_back(len)
        {
            frame::put(&mut self.control, Kind::WindowUpdate, 0, stream.id, &more.to_be_bytes());
        }
        self.give_back_to_all(len);
    }

    pub(super) fn give_back_to_all(&mut self, len: usize) {
        if let Some(more) = self.inward.give_back(len) {
            frame::put(&mut self.control, Kind::WindowUpdate, 0, 0, &more.to_be_bytes());
        }
    }

    /// Tells a peer that waits for it that it may send its request's body (RFC 9110, section 10.1.1). It is not told once
    /// there is a response: that is the answer.
    pub(super) fn invite(&mut self, at: usize) {
        let mut block = self.block_start();
        hpack::encode(":status", StatusCode::CONTINUE.as_str().as_bytes(), &mut block);
        self.put_block(self.streams[at].id, &block, false);
    }

    /// The head of a response, which is all of it if `end`.
    pub(super) fn respond(&mut self, at: usize, status: StatusCode, headers: &HeaderMap, end: bool) {
        self.heads -= std::mem::take(&mut self.streams[at].head_bytes);
        let mut block = self.block_start();
        hpack::encode(":status", status.as_str().as_bytes(), &mut block);
        encode_all(headers, &mut block);
        self.put_block(self.streams[at].id, &block, end);
        if end {
            self.finish(at);
        }
    }

    /// What follows a response's body, and ends it.
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

    /// Answers a request whose head is too large, and which is not kept, in the words of HTTP.
    pub(super) fn refuse_head(&mut self, id: u32, ended: bool) {
        let mut block = self.block_start();
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        hpack::encode(":status", status.as_str().as_bytes(), &mut block);
        self.put_block(id, &block, true);
        if !ended {
            self.refuse(id, Reason::No);
        }
    }

    fn block_start(&mut self) -> Vec<u8> {
        let mut block = Vec::with_capacity(128);
        if self.peer.small_table && !std::mem::replace(&mut self.no_table_said, true) {
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

    /// The response is whole. What of the request is still to come is not needed.
    fn finish(&mut self, at: usize) {
        self.budget.earn();
        if self.streams[at].ended {
            self.remove(at);
        } else {
            self.reset(at, Reason::No);
        }
    }

    /// Breaks a stream off.
    pub(super) fn reset(&mut self, at: usize, reason: Reason) {
        let id = self.streams[at].id;
        self.remove(at);
        self.refuse(id, reason);
    }

    /// Breaks off a stream that is not kept.
    pub(super) fn refuse(&mut self, id: u32, reason: Reason) {
        frame::put(&mut self.control, Kind::RstStream, 0, id, &(reason as u32).to_be_bytes());
        if self.resets.len() == REMEMBERED_RESETS {
            self.resets.pop_front();
        }
        self.resets.push_back(id);
    }

    /// The peer knows that a stream is over.
    pub(super) fn forget_reset(&mut self, id: u32) {
        self.resets.retain(|reset| *reset != id);
    }

    /// Whether more of this stream may arrive though we broke it off.
    pub(super) fn was_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }

    pub(super) fn remove(&mut self, at: usize) {
        let stream = self.streams.remove(at);
        self.heads -= stream.head_bytes;
        if stream.blocked {
            self.blocked.retain(|id| *id != stream.id);
        }
        self.give_back_to_all(stream.unread);
        if self.streams.is_empty() {
            // A proxy's connection had a thousand; the next fleet may be one.
            self.streams = Vec::new();
        }
    }

    // === The end, and time ===

    /// Lets the peer know that it should open no new streams; those that are open go on.
    pub(super) fn shut_down(&mut self, now: Instant) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Announced(now);
            self.pinged = Some(now);
            self.put_go_away(MAX_WINDOW, Reason::No);
            frame::put(&mut self.control, Kind::Ping, 0, 0, &SHUT_DOWN);
        }
    }

    /// The connection ends here and now.
    pub(super) fn fail(&mut self, reason: Reason) {
        self.leaving = Leaving::Final;
        self.put_go_away(self.highest, reason);
        self.streams.clear();
    }

    fn put_go_away(&mut self, last: u32, reason: Reason) {
        // What was said not to be answered stays so (RFC 9113, section 6.8).
        self.told = self.told.min(last);
        let [last, reason] = [self.told, reason as u32].map(u32::to_be_bytes);
        frame::put(&mut self.control, Kind::GoAway, 0, 0, &[last, reason].concat());
    }

    /// The peer has answered a ping.
    pub(super) fn pong(&mut self, payload: &[u8]) {
        if payload == SHUT_DOWN && matches!(self.leaving, Leaving::Announced(_)) {
            self.say_which_was_last();
        }
    }

    /// A stream was opened.
    pub(super) const fn begin(&mut self) {
        self.idle = None;
    }

    /// Notes whether any stream is open, and asks the peer to go if there was none for too long. Returns when to look
    /// again. Whether that is why it was told to go now is said beside.
    pub(super) fn keep_idle(&mut self, now: Instant) -> (Option<Instant>, bool) {
        if !self.streams.is_empty() || self.leaving != Leaving::No {
            self.idle = None;
            return (None, false);
        }
        let until = *self.idle.get_or_insert(now) + self.limits.idle_timeout;
        if now < until {
            return (Some(until), false);
        }
        self.shut_down(now);
        (Some(now + self.limits.keepalive_timeout), true)
    }

    /// The second step of a shutdown: streams from here on are not looked at.
    fn say_which_was_last(&mut self) {
        self.leaving = Leaving::Final;
        self.put_go_away(self.highest, Reason::No);
    }

    /// Does what is due, and returns when to come again.
    pub(super) fn keep_time(&mut self, now: Instant) -> Result<Instant, ConnectionError> {
        let mut next = self.heard + self.limits.keepalive_interval;
        match self.pinged {
            Some(pinged) => {
                let until = pinged + self.limits.keepalive_timeout;
                if now >= until {
                    return Err(ConnectionError::new(Reason::No, "a ping was not answered"));
                }
                next = until;
            }
            None if now >= next => {
                frame::put(&mut self.control, Kind::Ping, 0, 0, &KEEP_ALIVE);
                self.pinged = Some(now);
                next = now + self.limits.keepalive_timeout;
            }
            None => {}
        }
        if let Leaving::Announced(since) = self.leaving {
            // Who never answers pings, or opens streams without end, would never leave.
            if now >= since + FAREWELL {
                self.say_which_was_last();
            } else {
                next = next.min(since + FAREWELL);
            }
        }
        if let Some(starved) = self.give_up_starved(now) {
            next = next.min(starved);
        }
        if let Some(since) = self.arriving.incomplete_since(self.opened) {
            let until = since + self.limits.head_timeout;
            if now >= until {
                return Err(ConnectionError::new(Reason::EnhanceYourCalm, "a head was not whole in time"));
            }
            next = next.min(until);
        }
        Ok(next)
    }

    /// Breaks off the streams whose windows stay closed: what is behind them may be one of many clients of a proxy, and
    /// the others go on. Returns when to look again.
    fn give_up_starved(&mut self, now: Instant) -> Option<Instant> {
        let patience = self.limits.stall_timeout;
        let (mut next, mut given_up) = (None::<Instant>, Vec::new());
        for id in &self.blocked {
            let Some(stream) = self.find(*id).map(|at| &self.streams[at]) else { continue };
            let Some(until) = stream.starved.since().map(|since| since + patience) else { continue };
            if stream.outward.room() > 0 || self.has_no_window() {
                // It waits for the window of the connection too, which is a matter of the connection: without its streams,
                // nothing would be left of the reason to give it up.
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
