//! Assembly of gRPC messages from the pieces of a request body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body;
use tonic::Code;

use super::connection::Connection;
use super::grpc_status::Status;
use super::request_memory::{
    MemoryShare, Payer, RequestMemory, TooLargeError, VersionExtractor, has_versions,
};
use crate::grpc::Prefix;
use crate::limit::Limit;
use crate::subscription::Versions;

/// Bytes that count as progress of a request and restart its timeout.
const STRETCH: usize = 1 << 20;

/// Cuts a request body into messages. Holds only the bytes of the arriving message.
#[derive(Debug)]
pub(super) struct Assembler<B> {
    body: B,
    /// Bytes of the prefix of the next message, then of the message.
    partial: BytesMut,
    /// Missing bytes of the message, once its prefix is known.
    missing: Option<usize>,
    /// Bytes since its timeout began.
    stretch: usize,
    /// Extractor of the versions, on delta streams.
    extractor: Option<VersionExtractor>,
    /// Arrived bytes that were not parsed.
    rest: Bytes,
    /// Message that was put back.
    whole: Option<Bytes>,
    limit: usize,
    /// Share of the request memory, while bytes are kept between two polls.
    share: Option<Box<MemoryShare>>,
}

impl<B> Assembler<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(super) fn new(body: B, limit: usize) -> Self {
        Self {
            body,
            partial: BytesMut::new(),
            missing: None,
            stretch: 0,
            extractor: None,
            rest: Bytes::new(),
            whole: None,
            limit,
            share: None,
        }
    }

    /// Creates an assembler for a delta stream. `limit` excludes the versions.
    pub(super) fn extracting_versions(body: B, limit: usize, payer: Payer) -> Self {
        Self { extractor: Some(VersionExtractor::new(Some(payer))), ..Self::new(body, limit) }
    }

    pub(super) fn take_versions(&mut self) -> Versions {
        self.extractor.as_mut().map(VersionExtractor::take_versions).unwrap_or_default()
    }

    /// Polls for the next message; `None` at the end of the requests.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        if let Some(message) = self.whole.take() {
            return Poll::Ready(Some(Ok(message)));
        }
        loop {
            match self.take() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // gRPC gives trailers of a request no meaning.
                    self.rest = frame.into_data().unwrap_or_default();
                }
                Some(Err(_)) => {
                    return Poll::Ready(Some(Err(Status::new(Code::Cancelled, "the client broke off"))));
                }
                None if self.partial.is_empty() && self.missing.is_none() => return Poll::Ready(None),
                None => {
                    let status =
                        Status::new(Code::InvalidArgument, "the request ended in the middle of a message");
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
    }

    pub(super) const fn body(&self) -> &B {
        &self.body
    }

    /// Puts back a message that cannot be handled yet; it comes next again.
    pub(super) fn put_back(&mut self, message: Bytes) {
        self.whole = Some(message);
    }

    pub(super) const fn has_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// Takes a whole message, if one has arrived.
    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        if let Some(message) = self.take_in_one_piece() {
            return Ok(Some(message));
        }
        let missing = match self.missing {
            Some(missing) => missing,
            None => match self.take_prefix()? {
                Some(len) => len,
                None => return Ok(None),
            },
        };
        let piece = self.rest.split_to(missing.min(self.rest.len()));
        self.missing = Some(missing - piece.len());
        match &mut self.extractor {
            None => self.partial.extend_from_slice(&piece),
            Some(extractor) => {
                if let Err(TooLargeError) = extractor.push(&piece, &mut self.partial, self.limit) {
                    return Err(self.too_large("a request without its `initial_resource_versions`"));
                }
            }
        }
        self.stretch += piece.len();
        if self.missing != Some(0) {
            return Ok(None);
        }
        if let Some(extractor) = &mut self.extractor {
            extractor.end(&mut self.partial);
        }
        (self.missing, self.stretch) = (None, 0);
        if let Some(share) = &mut self.share {
            share.since = None;
        }
        Ok(Some(std::mem::take(&mut self.partial).freeze()))
    }

    /// Takes a message that arrived in one piece, as most do, without a copy. Leaves messages with versions,
    /// and refused ones, to [`take`](Self::take).
    fn take_in_one_piece(&mut self) -> Option<Bytes> {
        if self.missing.is_some() || !self.partial.is_empty() {
            return None;
        }
        let prefix = Prefix::of(&self.rest)?;
        let end = Prefix::LENGTH + prefix.length;
        let message = self.rest.get(Prefix::LENGTH..end)?;
        let is_refused = prefix.is_compressed || prefix.length > self.limit;
        if is_refused || (self.extractor.is_some() && has_versions(message)) {
            return None;
        }
        let mut message = self.rest.split_to(end);
        message.advance(Prefix::LENGTH);
        Some(message)
    }

    /// Takes the length of the next message, once its prefix is whole.
    fn take_prefix(&mut self) -> Result<Option<usize>, Status> {
        let missing = (Prefix::LENGTH - self.partial.len()).min(self.rest.len());
        self.partial.extend_from_slice(&self.rest.split_to(missing));
        let Some(Prefix { is_compressed, length: len }) = Prefix::of(&self.partial) else { return Ok(None) };
        if is_compressed {
            return Err(Status::new(
                Code::Unimplemented,
                "compressed requests are not supported; send grpc-encoding identity",
            ));
        }
        // With an extractor the kept part is smaller, and known only as it arrives.
        if len > self.limit && self.extractor.is_none() {
            return Err(self.too_large(&format!("a request of {len} bytes")));
        }
        self.partial.clear();
        self.missing = Some(len);
        Ok(Some(len))
    }

    fn too_large(&self, what: &str) -> Status {
        Status::new(Code::ResourceExhausted, format!("{what} is over the limit of {}", self.limit))
            .over(Limit::RequestBytes)
    }

    /// Charges the bytes kept until more arrives. Call it when no more bytes are there.
    pub(super) fn charge(
        &mut self,
        of: &Arc<RequestMemory>,
        connection: &Arc<Connection>,
        now: Instant,
    ) -> Result<(), Status> {
        // The buffer of the message grew by doubling.
        let whole = self.whole.as_ref().map_or(0, |whole| whole.len().next_power_of_two());
        let entry = self.extractor.as_ref().map_or(0, VersionExtractor::partial_bytes);
        let bytes = self.partial.capacity() + self.rest.len() + whole + entry;
        if bytes == 0 && self.missing.is_none() {
            self.share = None;
            return Ok(());
        }
        let share = self.share.get_or_insert_with(|| Box::new(MemoryShare::new(of, connection)));
        if self.stretch >= STRETCH {
            (self.stretch, share.since) = (0, None);
        }
        if self.whole.is_none() {
            // After a message was put back, the relay is late, not the peer.
            share.since.get_or_insert(now);
        }
        share.set(bytes).map_err(Status::too_much_buffered)
    }

    /// Time at which the incomplete message began to arrive.
    pub(super) fn incomplete_since(&self) -> Option<Instant> {
        self.share.as_ref()?.since
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::downstream::Connections;
    use crate::downstream::connection::Usage;
    use crate::proto::DeltaDiscoveryRequest;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    /// Assembles a body of these pieces; returns the messages and the end.
    fn assemble(pieces: Vec<Bytes>, limit: usize) -> (Vec<Bytes>, Result<(), Code>) {
        let frames =
            pieces.into_iter().map(|piece| Ok::<_, std::convert::Infallible>(http_body::Frame::data(piece)));
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let mut assembler = Assembler::new(body, limit);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut messages = Vec::new();
        loop {
            match assembler.poll_message(&mut cx) {
                Poll::Ready(Some(Ok(message))) => messages.push(message),
                Poll::Ready(Some(Err(status))) => return (messages, Err(status.code)),
                Poll::Ready(None) | Poll::Pending => return (messages, Ok(())),
            }
        }
    }

    /// Messages of a body that is there at once, and its end.
    fn read(mut body: &[u8], limit: usize) -> (Vec<&[u8]>, Result<(), Code>) {
        let mut messages = Vec::new();
        while !body.is_empty() {
            let Some((&[compressed, a, b, c, d], rest)) = body.split_first_chunk() else {
                return (messages, Err(Code::InvalidArgument));
            };
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            match rest.split_at_checked(len) {
                _ if compressed != 0 => return (messages, Err(Code::Unimplemented)),
                _ if len > limit => return (messages, Err(Code::ResourceExhausted)),
                None => return (messages, Err(Code::InvalidArgument)),
                Some((message, rest)) => {
                    messages.push(message);
                    body = rest;
                }
            }
        }
        (messages, Ok(()))
    }

    proptest! {
        #[test]
        fn a_body_is_read_alike_however_it_is_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
            extra in proptest::collection::vec(0..3_u8, 0..20),
            limit in 100_usize..1000,
            cuts in proptest::collection::vec(1_usize..200, 1..40),
        ) {
            let mut whole: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
            whole.extend(extra);
            let mut rest = &whole[..];
            let mut pieces = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece.to_vec());
                rest = after;
            }
            let pieces = pieces.into_iter().map(Bytes::from).collect();
            let (out, end) = assemble(pieces, limit);
            let (expected, expected_end) = read(&whole, limit);
            prop_assert_eq!((out, end), (expected.into_iter().map(Bytes::copy_from_slice).collect(), expected_end));
        }
    }

    #[test]
    fn a_message_that_is_put_back_is_the_next_again_and_its_bytes_count_but_nobody_is_late() {
        let pieces = [framed(b"first"), framed(b"second")].concat();
        let frame = Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(pieces)));
        let body = http_body_util::StreamBody::new(futures_util::stream::iter([frame]));
        let mut assembler = Assembler::new(body, 100);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut next = |assembler: &mut Assembler<_>| match assembler.poll_message(&mut cx) {
            Poll::Ready(Some(Ok(message))) => message,
            other => panic!("{other:?}"),
        };
        let first = next(&mut assembler);
        assembler.put_back(first.clone());
        let connections: Arc<Connections> = Arc::default();
        let open = connections.open(Duration::from_secs(60), Instant::now());
        let charge = |assembler: &mut Assembler<_>, room: usize| {
            assembler.share = None;
            assembler.charge(&RequestMemory::new(room, 1 << 20), &open.connection, Instant::now())
        };
        charge(&mut assembler, 100).expect("there is room");
        assert_eq!((assembler.has_whole(), assembler.incomplete_since()), (true, None));
        assert!(charge(&mut assembler, first.len() + framed(b"second").len() - 1).is_err(), "it counts");
        assert_eq!((next(&mut assembler), assembler.has_whole()), (first, false));
        assert_eq!(&next(&mut assembler)[..], b"second");
    }

    #[test]
    fn a_large_request_that_gets_on_has_its_time_anew_and_one_that_does_not_has_it_once() {
        let held = (0..20_000).map(|number| (format!("{number:0>100}"), "1".to_owned())).collect();
        let request = DeltaDiscoveryRequest { initial_resource_versions: held, ..Default::default() };
        let request = Bytes::from(framed(&request.encode_to_vec()));
        let connections: Arc<Connections> = Arc::default();
        let start = Instant::now();
        let open = connections.open(Duration::from_secs(60), start);
        for (piece, expected) in [(1 << 18, [0, 0, 0, 0, 4, 4, 4, 4]), (1000, [0; 8])] {
            let mut pieces = (0..8).map(|at| request.slice(at * piece..(at + 1) * piece));
            let mut comes = false;
            let body = http_body_util::StreamBody::new(futures_util::stream::poll_fn(move |_| {
                comes = !comes;
                match comes {
                    true => Poll::Ready(
                        pieces
                            .next()
                            .map(|piece| Ok::<_, std::convert::Infallible>(http_body::Frame::data(piece))),
                    ),
                    false => Poll::Pending,
                }
            }));
            let payer = Payer {
                of: RequestMemory::versions(1 << 30, 1 << 30),
                connection: Arc::clone(&open.connection),
            };
            let mut assembler = Assembler::extracting_versions(body, 1000, payer);
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let buffered = RequestMemory::new(1 << 20, 1 << 20);
            let since = [0, 1, 2, 3, 4, 5, 6, 7].map(|second| {
                let now = start + Duration::from_secs(second);
                assert!(assembler.poll_message(&mut cx).is_pending());
                assembler.charge(&buffered, &open.connection, now).expect("there is room");
                assembler.incomplete_since().expect("it is not whole").duration_since(start).as_secs()
            });
            assert_eq!(since, expected, "in pieces of {piece} bytes");
        }
        assert_eq!(open.connection.used(Usage::Versions), 0, "given back");
    }

    /// An ACK is read where it arrived.
    #[test]
    fn a_delta_request_that_arrives_in_one_piece_is_not_copied_unless_it_has_versions() {
        let connections: Arc<Connections> = Arc::default();
        let open = connections.open(Duration::from_secs(60), Instant::now());
        let held = [("a".to_owned(), "1".to_owned())].into();
        let mut request = DeltaDiscoveryRequest { response_nonce: "7".to_owned(), ..Default::default() };
        let ack = request.encode_to_vec();
        request.initial_resource_versions = held;
        let chunk = Bytes::from([framed(&ack), framed(&request.encode_to_vec()), framed(&ack)].concat());
        let arrived = Ok::<_, std::convert::Infallible>(http_body::Frame::data(chunk.clone()));
        let body = http_body_util::StreamBody::new(futures_util::stream::iter([arrived]));
        let payer =
            Payer { of: RequestMemory::versions(1 << 20, 1 << 20), connection: Arc::clone(&open.connection) };
        let mut assembler = Assembler::extracting_versions(body, 1000, payer);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let next = [false, true, false].map(|has_versions| {
            let Poll::Ready(Some(Ok(message))) = assembler.poll_message(&mut cx) else {
                panic!("it has arrived")
            };
            assert_eq!(&message[..], &ack[..]);
            assert_eq!(assembler.take_versions().is_empty(), !has_versions);
            chunk.as_ptr_range().contains(&message.as_ptr())
        });
        assert_eq!(next, [true, false, true]);
    }

    #[test]
    fn a_message_over_the_limit_is_refused_before_it_is_read() {
        let out = assemble(vec![Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff])], 1000);
        assert_eq!(out, (vec![], Err(Code::ResourceExhausted)));
    }

    #[test]
    fn a_message_cut_off_is_a_fault_of_the_client() {
        let out = assemble(vec![framed(b"hello")[..7].to_vec().into()], 1000);
        assert_eq!(out, (vec![], Err(Code::InvalidArgument)));
    }
}
