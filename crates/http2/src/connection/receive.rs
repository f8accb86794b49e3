//! Input of a connection (RFC 9113, sections 4 to 6).

use std::time::Instant;

use http::{StatusCode, header, request};

use super::{Block, Connection, Phase, Shutdown};
use crate::frame::{self, Head, Kind, flag};
use crate::headers::{Fields, HeadError};
use crate::rates::MinRate;
use crate::stream::{RecvWindow, SendWindow, Stream, StreamHandler};
use crate::{ConnectionError, PREFACE, Reason};

/// Most bytes of the header blocks of all unanswered requests: a few bytes can stand for a large
/// block (RFC 7541, section 7.3).
const HEADS: usize = 1 << 20;
/// Most CONTINUATION frames of a header block. One is usual, and the largest accepted block fits
/// into two.
const MAX_CONTINUATIONS: u32 = 8;

const NO_PREFACE: ConnectionError =
    ConnectionError::new(Reason::Protocol, "the preface is not that of HTTP/2");
const UNDECODABLE: ConnectionError =
    ConnectionError::new(Reason::Compression, "a header block that cannot be decoded");
const TOO_MUCH: ConnectionError =
    ConnectionError::new(Reason::EnhanceYourCalm, "too many frames that do no work");

impl<X: StreamHandler> Connection<X> {
    /// Processes input. `open` makes the driver's part of a new stream.
    ///
    /// # Errors
    ///
    /// If the peer violates the protocol in a way that ends the connection.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        self.last_received = now;
        // Any input is as good as the answer to a PING.
        self.ping_sent_at = None;
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

    /// Processes the whole frames and returns the rest.
    fn take_in<'a>(
        &mut self,
        mut bytes: &'a [u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<&'a [u8], ConnectionError> {
        if self.arriving.phase == Phase::Preface {
            let Some((preface, rest)) = bytes.split_first_chunk() else {
                return if PREFACE.starts_with(bytes) { Ok(bytes) } else { Err(NO_PREFACE) };
            };
            if preface != PREFACE {
                return Err(NO_PREFACE);
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
                return Err(ConnectionError::new(Reason::Protocol, "the first frame is not SETTINGS"));
            }
            self.arriving.phase = Phase::Open;
        }
        if let Some(block) = &self.arriving.block
            && (head.kind != Kind::Continuation || head.stream != block.stream)
        {
            return Err(ConnectionError::new(Reason::Protocol, "another frame within a header block"));
        }
        match head.kind {
            Kind::Data => self.on_data(head, payload, now),
            Kind::Headers => self.on_headers(head, payload, now, open),
            Kind::Continuation => self.on_continuation(head, payload, now, open),
            Kind::Priority => {
                self.spend(now)?;
                // Priorities are ignored, but a stream cannot depend on itself (RFC 7540, section
                // 5.3.1). PRIORITY is allowed on streams that are not open, which cannot be reset.
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
                    None => self.resets.retain(|reset| *reset != head.stream),
                }
                Ok(())
            }
            Kind::Settings => self.on_settings(head, payload, now),
            Kind::Ping if head.has(flag::ACK) => {
                self.pong(payload);
                self.spend(now)
            }
            Kind::Ping => {
                frame::put(&mut self.control, Kind::Ping, flag::ACK, 0, payload);
                self.spend(now)
            }
            Kind::GoAway => {
                self.goaway_received = true;
                self.spend(now)
            }
            Kind::WindowUpdate => self.on_window_update(head.stream, frame::number(payload), now),
            Kind::PushPromise | Kind::Unknown => self.spend(now),
        }
    }

    fn spend(&mut self, now: Instant) -> Result<(), ConnectionError> {
        self.spend_on_head(now, 0)
    }

    fn spend_on_head(&mut self, now: Instant, bytes: usize) -> Result<(), ConnectionError> {
        self.work_budget.spend(now, bytes).then_some(()).ok_or(TOO_MUCH)
    }

    /// Refuses frames on streams that were never opened. Even numbers are ours to open (RFC 9113,
    /// section 5.1.1), and we open none.
    fn check_not_idle(&self, id: u32) -> Result<(), ConnectionError> {
        let known = id <= self.highest && !id.is_multiple_of(2);
        known.then_some(()).ok_or(ConnectionError::new(Reason::Protocol, "a frame on an idle stream"))
    }

    /// Resets a stream for an error of the peer and charges the peer, as it could make us reset
    /// stream after stream.
    fn break_off(&mut self, id: u32, reason: Reason, now: Instant) -> Result<(), ConnectionError> {
        match self.find(id) {
            Some(at) => self.reset(at, reason),
            None => self.refuse(id, reason),
        }
        self.spend(now)
    }

    fn on_data(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), ConnectionError> {
        let too_much = ConnectionError::new(Reason::FlowControl, "more DATA than the window allows");
        self.check_not_idle(head.stream)?;
        let data = frame::without_padding(head, payload)?;
        if !self.recv_window.take(payload.len()) {
            return Err(too_much);
        }
        if data.is_empty() && !head.has(flag::END_STREAM) {
            self.spend(now)?;
        }
        let Some(at) = self.find(head.stream).filter(|at| !self.streams[*at].ended) else {
            self.give_back_to_all(payload.len());
            return self.on_closed_stream(head.stream, now);
        };
        let stream = &mut self.streams[at];
        if !stream.recv_window.take(payload.len()) {
            return Err(too_much);
        }
        let end = head.has(flag::END_STREAM);
        let body_left = stream.body_left.map(|body_left| body_left.checked_sub(data.len() as u64));
        if matches!((body_left, end), (Some(None), _) | (Some(Some(1..)), true)) {
            return self.break_off(head.stream, Reason::Protocol, now);
        }
        stream.body_left = body_left.flatten();
        if !data.is_empty() {
            stream.handler.data(data);
        }
        if end {
            stream.ended = true;
            stream.handler.end();
        }
        self.schedule(head.stream);
        // Nobody reads padding, so its window is returned here.
        if payload.len() > data.len() {
            self.give_back(at, payload.len() - data.len());
        }
        Ok(())
    }

    /// Handles a frame on a stream that is closed, or half-closed by the peer.
    fn on_closed_stream(&mut self, id: u32, now: Instant) -> Result<(), ConnectionError> {
        // The peer may have sent it before it knew.
        if self.was_reset(id) { self.spend(now) } else { self.break_off(id, Reason::StreamClosed, now) }
    }

    fn on_headers(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        let mut fragment = frame::without_padding(head, payload)?;
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let (priority, rest) = fragment
                .split_first_chunk::<5>()
                .ok_or(ConnectionError::new(Reason::FrameSize, "HEADERS too short for its priority"))?;
            depends_on_itself = frame::number(priority) == head.stream;
            fragment = rest;
        }
        let mut block = Block {
            stream: head.stream,
            end_stream: head.has(flag::END_STREAM),
            depends_on_itself,
            fragment: Vec::new(),
            continuations: 0,
            since: now,
        };
        if head.has(flag::END_HEADERS) {
            return self.on_header_block(&block, fragment, now, open);
        }
        block.fragment.extend_from_slice(fragment);
        self.arriving.block = Some(block);
        Ok(())
    }

    fn on_continuation(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        let lost = ConnectionError::new(Reason::Protocol, "CONTINUATION without HEADERS");
        let mut block = self.arriving.block.take().ok_or(lost)?;
        block.fragment.extend_from_slice(payload);
        block.continuations += 1;
        // A block is shorter than what it decodes to.
        if block.continuations > MAX_CONTINUATIONS || block.fragment.len() > 2 * self.limits.max_head_bytes {
            return Err(ConnectionError::new(Reason::EnhanceYourCalm, "a header block without end"));
        }
        if head.has(flag::END_HEADERS) {
            return self.on_header_block(&block, &block.fragment, now, open);
        }
        self.arriving.block = Some(block);
        Ok(())
    }

    /// Handles a whole header block: a new stream, or trailers of an open one.
    fn on_header_block(
        &mut self,
        &Block { stream: id, end_stream, depends_on_itself, .. }: &Block,
        block: &[u8],
        now: Instant,
        open: &mut impl FnMut(u32, request::Parts) -> X,
    ) -> Result<(), ConnectionError> {
        let mut fields = Fields::new(self.limits.max_head_bytes);
        self.decoder.decode(block, |name, value| fields.add(name, value)).map_err(|_| UNDECODABLE)?;
        if depends_on_itself {
            // RFC 7540, section 5.3.1.
            fields.refuse();
        }
        if id.is_multiple_of(2) {
            return Err(ConnectionError::new(Reason::Protocol, "a client's stream with an even number"));
        }
        if id <= self.highest {
            return self.on_trailers(id, end_stream, &fields, now);
        }
        self.highest = id;
        if self.shutdown == Shutdown::Final {
            // The GOAWAY told the peer which stream was the last.
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
            Err(HeadError::TooLarge) => {
                self.refuse_head(id, end_stream);
                return self.spend_on_head(now, block.len());
            }
            Ok(_) | Err(HeadError::Malformed) => {
                self.refuse(id, Reason::Protocol);
                return self.spend_on_head(now, block.len());
            }
        };
        self.idle = None;
        self.heads += request.size;
        let expected = request.parts.headers.get(header::EXPECT).filter(|_| !end_stream);
        if expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
            // RFC 9110, section 10.1.1.
            let block = self.status(StatusCode::CONTINUE);
            self.put_block(id, &block, false);
        }
        let mut handler = open(id, request.parts);
        if end_stream {
            handler.end();
        }
        // Most connections have one stream.
        if self.streams.is_empty() {
            self.streams.reserve_exact(1);
        }
        self.streams.push(Stream {
            id,
            send_window: SendWindow::new(self.peer.window),
            recv_window: RecvWindow::new(self.limits.stream_window),
            blocked: false,
            window_wait: MinRate::default(),
            head_bytes: request.size,
            ended: end_stream,
            body_left: request.content_length,
            handler,
        });
        self.schedule(id);
        Ok(())
    }

    fn on_trailers(
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
                Err(ConnectionError::new(Reason::StreamClosed, "HEADERS on a closed stream"))
            } else {
                Err(ConnectionError::new(
                    Reason::Protocol,
                    "a new stream with a lower number than one before",
                ))
            };
        };
        let stream = &mut self.streams[at];
        if stream.ended {
            return self.on_closed_stream(id, now);
        }
        if !end_stream
            || fields.check_trailers().is_err()
            || stream.body_left.is_some_and(|body_left| body_left > 0)
        {
            return self.break_off(id, Reason::Protocol, now);
        }
        stream.ended = true;
        stream.handler.end();
        self.schedule(id);
        Ok(())
    }

    fn on_settings(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), ConnectionError> {
        self.spend(now)?;
        if head.has(flag::ACK) {
            return Ok(());
        }
        let before = self.peer.window;
        self.peer.update(payload)?;
        let by = i64::from(self.peer.window) - i64::from(before);
        if by != 0 {
            // A single window beyond the maximum ends the connection with all streams.
            if !self.streams.iter_mut().all(|stream| stream.send_window.widen(by)) {
                return Err(frame::window_too_large());
            }
            self.unblock(now);
        }
        frame::put(&mut self.control, Kind::Settings, flag::ACK, 0, &[]);
        Ok(())
    }

    fn on_window_update(&mut self, id: u32, by: u32, now: Instant) -> Result<(), ConnectionError> {
        self.spend(now)?;
        let zero = ConnectionError::new(Reason::Protocol, "WINDOW_UPDATE of zero");
        if id == 0 {
            if by == 0 {
                return Err(zero);
            }
            if !self.send_window.widen(i64::from(by)) {
                return Err(frame::window_too_large());
            }
            self.unblock(now);
            return Ok(());
        }
        self.check_not_idle(id)?;
        let Some(at) = self.find(id) else { return Ok(()) };
        if by == 0 {
            return self.break_off(id, Reason::Protocol, now);
        }
        if !self.streams[at].send_window.widen(i64::from(by)) {
            return self.break_off(id, Reason::FlowControl, now);
        }
        if std::mem::take(&mut self.streams[at].blocked) {
            self.streams[at].window_wait.pause(now);
            self.blocked.retain(|blocked| *blocked != id);
            self.schedule(id);
        }
        Ok(())
    }

    fn unblock(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.blocked) {
            if let Some(at) = self.find(id) {
                self.streams[at].blocked = false;
                self.streams[at].window_wait.pause(now);
            }
            self.schedule(id);
        }
    }
}
