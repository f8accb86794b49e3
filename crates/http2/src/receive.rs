//! What comes in on a connection (RFC 9113, sections 4 to 6).

use std::time::Instant;

use http::request;

use super::connection::{Connection, Leaving};
use super::frame::{self, Head, Kind, flag};
use super::head::{Fault, Fields};
use super::pace::Pace;
use super::settings;
use super::stream::{Exchange, Inward, Outward, Stream};
use super::{ConnectionError, PREFACE, Reason};

/// What the heads of unanswered requests may take together: a few bytes can stand for a large one (RFC 7541, section 7.3).
const HEADS: usize = 1 << 20;
/// Frames that a block of headers may come in. One is usual, and what is taken of a block fits into two.
const MAX_CONTINUATIONS: u32 = 8;

const TOO_MUCH: ConnectionError =
    ConnectionError::new(Reason::EnhanceYourCalm, "too many frames without use");

/// What has arrived in part.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    phase: Phase,
    /// Of the preface or a frame.
    partial: Vec<u8>,
    block: Option<Block>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Preface,
    Settings,
    Open,
}

/// A block of headers of which more is to come.
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
    /// Bytes that have come of a frame or head that is not whole.
    pub(super) fn len(&self) -> usize {
        self.partial.len() + self.block.as_ref().map_or(0, |block| block.fragment.len())
    }

    /// Since when something is awaited that must not take long.
    pub(super) fn incomplete_since(&self, opened: Instant) -> Option<Instant> {
        if self.phase == Phase::Open { self.block.as_ref().map(|block| block.since) } else { Some(opened) }
    }
}

impl<X: Exchange> Connection<X> {
    /// Takes in bytes. `open` makes what is kept with a new stream.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        self.heard = now;
        // What is heard is as good as an answer.
        self.pinged = None;
        if self.arriving.partial.is_empty() {
            let rest = self.take_in(bytes, now, open)?;
            self.arriving.partial.extend_from_slice(rest);
            return Ok(());
        }
        let mut partial = std::mem::take(&mut self.arriving.partial);
        partial.extend_from_slice(bytes);
        let rest = self.take_in(&partial, now, open)?.len();
        if rest > 0 {
            partial.drain(..partial.len() - rest);
            partial.shrink_to(rest);
            self.arriving.partial = partial;
        }
        Ok(())
    }

    /// Takes in what is whole and returns the rest.
    fn take_in<'a>(
        &mut self,
        mut bytes: &'a [u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<&'a [u8], ConnectionError> {
        if self.arriving.phase == Phase::Preface {
            let Some((preface, rest)) = bytes.split_first_chunk() else {
                return if PREFACE.starts_with(bytes) { Ok(bytes) } else { Err(no_preface()) };
            };
            if preface != PREFACE {
                return Err(no_preface());
            }
            self.arriving.phase = Phase::Settings;
            bytes = rest;
        }
        while let Some((head, after)) = bytes.split_first_chunk() {
            let head = Head::parse(*head);
            head.check()?;
            let Some((payload, rest)) = after.split_at_checked(head.len) else { break };
            self.frame(head, payload, now, open)?;
            bytes = rest;
        }
        Ok(bytes)
    }

    fn frame(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        if self.arriving.phase == Phase::Settings {
            if head.kind != Kind::Settings || head.has(flag::ACK) {
                return Err(ConnectionError::new(Reason::Protocol, "settings must come first"));
            }
            self.arriving.phase = Phase::Open;
        }
        if let Some(block) = &self.arriving.block
            && (head.kind != Kind::Continuation || head.stream != block.stream)
        {
            return Err(ConnectionError::new(Reason::Protocol, "a block of headers is not whole"));
        }
        match head.kind {
            Kind::Data => self.hear_data(head, payload, now),
            Kind::Headers => self.hear_headers(head, payload, now, open),
            Kind::Continuation => self.hear_continuation(head, payload, now, open),
            Kind::Priority => {
                self.spend(now)?;
                // Priorities mean nothing here, but a stream cannot depend on itself (RFC 7540, section 5.3.1). It need not
                // be open, and what is not cannot be broken off.
                if frame::number(payload) != head.stream {
                    return Ok(());
                }
                self.check_not_idle(head.stream)?;
                if self.find(head.stream).is_some() {
                    self.break_off(head.stream, Reason::Protocol, now)
                } else {
                    Ok(())
                }
            }
            Kind::RstStream => {
                self.spend(now)?;
                self.check_not_idle(head.stream)?;
                match self.find(head.stream) {
                    Some(at) => self.remove(at),
                    None => self.forget_reset(head.stream),
                }
                Ok(())
            }
            Kind::Settings => self.hear_settings(head, payload, now),
            Kind::Ping if head.has(flag::ACK) => {
                self.pong(payload);
                self.spend(now)
            }
            Kind::Ping => {
                frame::put(&mut self.control, Kind::Ping, flag::ACK, 0, payload);
                self.spend(now)
            }
            Kind::GoAway => {
                self.peer_leaves = true;
                self.spend(now)
            }
            Kind::WindowUpdate => self.hear_window_update(head.stream, frame::number(payload), now),
            Kind::PushPromise | Kind::Unknown => self.spend(now),
        }
    }

    /// Charges the peer for a frame that brings nothing.
    fn spend(&mut self, now: Instant) -> Result<(), ConnectionError> {
        self.budget.spend(now).then_some(()).ok_or(TOO_MUCH)
    }

    /// Charges the peer for a head of which nothing came.
    fn spend_on_head(&mut self, now: Instant, bytes: usize) -> Result<(), ConnectionError> {
        self.budget.spend_on_head(now, bytes).then_some(()).ok_or(TOO_MUCH)
    }

    /// Streams with even numbers are ours to open (RFC 9113, section 5.1.1), and none ever is.
    fn check_not_idle(&self, id: u32) -> Result<(), ConnectionError> {
        let known = id <= self.highest && !id.is_multiple_of(2);
        known
            .then_some(())
            .ok_or(ConnectionError::new(Reason::Protocol, "a frame on a stream that was not opened"))
    }

    /// Breaks off a stream for a fault of the peer, which pays for it: it could have us reset stream after stream else.
    fn break_off(&mut self, id: u32, reason: Reason, now: Instant) -> Result<(), ConnectionError> {
        match self.find(id) {
            Some(at) => self.reset(at, reason),
            None => self.refuse(id, reason),
        }
        self.spend(now)
    }

    fn hear_data(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), ConnectionError> {
        let too_much = ConnectionError::new(Reason::FlowControl, "more data than the window allows");
        self.check_not_idle(head.stream)?;
        let data = frame::unpadded(head, payload)?;
        if !self.inward.take(payload.len()) {
            return Err(too_much);
        }
        if data.is_empty() && !head.has(flag::END_STREAM) {
            self.spend(now)?;
        }
        let Some(at) = self.find(head.stream).filter(|at| !self.streams[*at].ended) else {
            self.give_back_to_all(payload.len());
            return self.hear_too_late(head.stream, now);
        };
        let stream = &mut self.streams[at];
        if !stream.inward.take(payload.len()) {
            return Err(too_much);
        }
        stream.unread += payload.len();
        let end = head.has(flag::END_STREAM);
        let missing = stream.missing.map(|missing| missing.checked_sub(data.len() as u64));
        if matches!((missing, end), (Some(None), _) | (Some(Some(1..)), true)) {
            return self.break_off(head.stream, Reason::Protocol, now);
        }
        stream.missing = missing.flatten();
        if !data.is_empty() {
            stream.exchange.data(data);
        }
        if end {
            stream.ended = true;
            stream.exchange.end();
        }
        self.stir(head.stream);
        // Padding is read by nobody else.
        if payload.len() > data.len() {
            self.give_back(at, payload.len() - data.len());
        }
        Ok(())
    }

    /// A frame of a stream that is over, or of which the peer said that it had nothing more to say.
    fn hear_too_late(&mut self, id: u32, now: Instant) -> Result<(), ConnectionError> {
        // It may have been sent before the peer knew.
        if self.was_reset(id) { self.spend(now) } else { self.break_off(id, Reason::StreamClosed, now) }
    }

    fn hear_headers(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        let mut fragment = frame::unpadded(head, payload)?;
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let (priority, rest) = fragment
                .split_first_chunk::<5>()
                .ok_or(ConnectionError::new(Reason::FrameSize, "no room for a priority"))?;
            depends_on_itself = frame::number(priority) == head.stream;
            fragment = rest;
        }
        let (stream, end_stream) = (head.stream, head.has(flag::END_STREAM));
        let mut block = Block {
            stream,
            end_stream,
            depends_on_itself,
            fragment: Vec::new(),
            continuations: 0,
            since: now,
        };
        if head.has(flag::END_HEADERS) {
            return self.hear_block(&block, fragment, now, open);
        }
        block.fragment.extend_from_slice(fragment);
        self.arriving.block = Some(block);
        Ok(())
    }

    fn hear_continuation(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        let lost = ConnectionError::new(Reason::Protocol, "a continuation of nothing");
        let mut block = self.arriving.block.take().ok_or(lost)?;
        block.fragment.extend_from_slice(payload);
        block.continuations += 1;
        // What is worth sending is shorter than what it decodes to.
        if block.continuations > MAX_CONTINUATIONS || block.fragment.len() > 2 * self.limits.max_head_bytes {
            return Err(ConnectionError::new(Reason::EnhanceYourCalm, "a block of headers without end"));
        }
        if head.has(flag::END_HEADERS) {
            return self.hear_block(&block, &block.fragment, now, open);
        }
        self.arriving.block = Some(block);
        Ok(())
    }

    /// A whole block of headers: a new stream, or trailers of one.
    fn hear_block(
        &mut self,
        &Block { stream: id, end_stream, depends_on_itself, .. }: &Block,
        block: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        let mut fields = Fields::new(self.limits.max_head_bytes);
        self.decoder.decode(block, |name, value| fields.add(name, value)).map_err(|_| undecodable())?;
        if depends_on_itself {
            // RFC 7540, section 5.3.1.
            fields.refuse();
        }
        if id.is_multiple_of(2) {
            return Err(ConnectionError::new(Reason::Protocol, "a client's stream with an even number"));
        }
        if id <= self.highest {
            return self.hear_trailers(id, end_stream, &fields, now);
        }
        self.highest = id;
        if self.leaving == Leaving::Final {
            // It was told which stream was the last.
            return self.spend(now);
        }
        if self.streams.len() >= self.limits.max_streams as usize || self.heads >= HEADS {
            self.refuse(id, Reason::RefusedStream);
            self.refused += 1;
            return self.spend(now);
        }
        let request = match fields.into_request() {
            Ok(request) if !(end_stream && request.content_length.is_some_and(|length| length > 0)) => {
                request
            }
            Err(Fault::TooLarge) => {
                self.refuse_head(id, end_stream);
                return self.spend_on_head(now, block.len());
            }
            Ok(_) | Err(Fault::Malformed) => {
                self.refuse(id, Reason::Protocol);
                return self.spend_on_head(now, block.len());
            }
        };
        self.begin();
        self.heads += request.size;
        let mut exchange = open(id, request.parts);
        if end_stream {
            exchange.end();
        }
        self.streams.push(Stream {
            id,
            outward: Outward::new(self.peer.window),
            inward: Inward::new(self.limits.stream_window),
            blocked: false,
            starved: Pace::default(),
            head_bytes: request.size,
            unread: 0,
            ended: end_stream,
            missing: request.content_length,
            exchange,
        });
        self.stir(id);
        Ok(())
    }

    fn hear_trailers(
        &mut self,
        id: u32,
        end_stream: bool,
        fields: &Fields,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        let Some(at) = self.find(id) else {
            return if self.was_reset(id) {
                self.spend(now)
            } else if id == self.highest {
                Err(ConnectionError::new(Reason::StreamClosed, "headers on a stream that is over"))
            } else {
                Err(ConnectionError::new(Reason::Protocol, "a stream with a lower number than one before"))
            };
        };
        let stream = &mut self.streams[at];
        if stream.ended {
            return self.hear_too_late(id, now);
        }
        if !end_stream
            || fields.check_trailers().is_err()
            || stream.missing.is_some_and(|missing| missing > 0)
        {
            return self.break_off(id, Reason::Protocol, now);
        }
        stream.ended = true;
        stream.exchange.end();
        self.stir(id);
        Ok(())
    }

    fn hear_settings(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), ConnectionError> {
        self.spend(now)?;
        if head.has(flag::ACK) {
            return Ok(());
        }
        let before = self.peer.window;
        self.peer.update(payload)?;
        let by = i64::from(self.peer.window) - i64::from(before);
        if by != 0 {
            // Where one window is too large the connection is lost, and with it all others.
            if !self.streams.iter_mut().all(|stream| stream.outward.widen(by)) {
                return Err(settings::window_too_large());
            }
            self.unblock(now);
        }
        frame::put(&mut self.control, Kind::Settings, flag::ACK, 0, &[]);
        Ok(())
    }

    fn hear_window_update(&mut self, id: u32, by: u32, now: Instant) -> Result<(), ConnectionError> {
        self.spend(now)?;
        let zero = ConnectionError::new(Reason::Protocol, "a window update of nothing");
        if id == 0 {
            if by == 0 {
                return Err(zero);
            }
            if !self.outward.widen(i64::from(by)) {
                return Err(settings::window_too_large());
            }
            self.unblock(now);
            return Ok(());
        }
        self.check_not_idle(id)?;
        let Some(at) = self.find(id) else { return Ok(()) };
        if by == 0 {
            return self.break_off(id, Reason::Protocol, now);
        }
        if !self.streams[at].outward.widen(i64::from(by)) {
            return self.break_off(id, Reason::FlowControl, now);
        }
        if std::mem::take(&mut self.streams[at].blocked) {
            self.streams[at].starved.pause(now);
            self.blocked.retain(|blocked| *blocked != id);
            self.stir(id);
        }
        Ok(())
    }

    fn unblock(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.blocked) {
            if let Some(at) = self.find(id) {
                self.streams[at].blocked = false;
                self.streams[at].starved.pause(now);
            }
            self.stir(id);
        }
    }
}

const fn no_preface() -> ConnectionError {
    ConnectionError::new(Reason::Protocol, "this is not HTTP/2")
}

const fn undecodable() -> ConnectionError {
    ConnectionError::new(Reason::Compression, "a block of headers that cannot be decoded")
}
