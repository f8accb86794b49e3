//! Output to the socket: as many bytes as possible per call, without copying large ones.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use smallvec::SmallVec;
use tokio::io::AsyncWrite;

use crate::rates::MIN_BYTES;

/// Smaller pieces are copied together: cheaper than another entry in the list of `writev`.
const COPIED: usize = 1 << 10;
/// Limits of a batch, approximately. Shared bytes cost no memory while a peer does not read; copied bytes do.
const ENOUGH_BYTES: usize = 1 << 20;
const ENOUGH_COPIED: usize = 64 << 10;
const ENOUGH_PARTS: usize = 128;

#[derive(Debug)]
enum Part {
    /// Range of `copied`.
    Copied(Range<usize>),
    Shared(Bytes),
}

/// Pieces that are written together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    parts: Vec<Part>,
    copied: Vec<u8>,
    bytes: usize,
}

impl Batch {
    pub(super) const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether the batch should be written before more is added.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes >= ENOUGH_BYTES || self.copied.len() >= ENOUGH_COPIED || self.parts.len() >= ENOUGH_PARTS
    }

    pub(super) fn copy(&mut self, piece: &[u8]) {
        let start = self.copied.len();
        self.copied.extend_from_slice(piece);
        self.bytes += piece.len();
        match self.parts.last_mut() {
            Some(Part::Copied(range)) => range.end = self.copied.len(),
            _ => self.parts.push(Part::Copied(start..self.copied.len())),
        }
    }

    pub(super) fn share(&mut self, piece: Bytes) {
        if piece.len() <= COPIED {
            self.copy(&piece);
        } else {
            self.bytes += piece.len();
            self.parts.push(Part::Shared(piece));
        }
    }

    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.copied.clear();
        self.bytes = 0;
    }

    fn bytes_of<'a>(&'a self, part: &'a Part) -> &'a [u8] {
        match part {
            Part::Copied(range) => self.copied.get(range.clone()).unwrap_or_default(),
            Part::Shared(bytes) => bytes,
        }
    }
}

/// Bytes of a batch that the socket did not take. Owns no memory while empty.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    waiting: VecDeque<Bytes>,
    /// Whether the transport took bytes that it has not passed on, as TLS does while its socket is
    /// full.
    unflushed: bool,
}

impl WriteBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.unflushed
    }

    /// Bytes that wait, without those that the transport took.
    pub(super) fn len(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }

    /// Writes waiting bytes; `Ready` once none are left. Adds the number of written bytes to `moved`.
    pub(super) fn poll_flush(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
        moved: &mut usize,
    ) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let slices: SmallVec<[IoSlice<'_>; 64]> =
                self.waiting.iter().take(ENOUGH_PARTS).map(|piece| IoSlice::new(piece)).collect();
            let written = ready!(write(io, cx, &slices));
            drop(slices);
            let mut written = written?;
            *moved += written;
            while let Some(first) = self.waiting.front_mut().filter(|_| written > 0) {
                let part = written.min(first.len());
                first.advance(part);
                written -= part;
                if first.is_empty() {
                    self.waiting.pop_front();
                }
            }
        }
        // Frees the list, which may have grown during a burst of large messages.
        self.waiting = VecDeque::new();
        let flushed = Pin::new(io).poll_flush(cx);
        if self.unflushed && flushed.is_ready() {
            // TLS holds back at most this much.
            *moved += MIN_BYTES;
        }
        self.unflushed = flushed.is_pending();
        flushed
    }

    /// Writes a batch and keeps what the socket does not take. Nothing may be waiting.
    pub(super) fn poll_send(
        &mut self,
        batch: &mut Batch,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
        moved: &mut usize,
    ) -> Poll<io::Result<()>> {
        debug_assert!(self.waiting.is_empty(), "what waits goes first");
        let slices: SmallVec<[IoSlice<'_>; 64]> =
            batch.parts.iter().map(|part| IoSlice::new(batch.bytes_of(part))).collect();
        let mut written = match write(io, cx, &slices) {
            Poll::Ready(written) => written?,
            Poll::Pending => 0,
        };
        drop(slices);
        *moved += written;
        if written < batch.bytes {
            for part in &batch.parts {
                let all = batch.bytes_of(part);
                let taken = written.min(all.len());
                written -= taken;
                if taken < all.len() {
                    self.waiting.push_back(match part {
                        Part::Copied(_) => Bytes::copy_from_slice(&all[taken..]),
                        Part::Shared(bytes) => bytes.slice(taken..),
                    });
                }
            }
        }
        batch.clear();
        self.poll_flush(io, cx, moved)
    }
}

fn write(
    io: &mut (impl AsyncWrite + Unpin),
    cx: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let written = match slices {
        [one] => ready!(Pin::new(io).poll_write(cx, one))?,
        many => ready!(Pin::new(io).poll_write_vectored(cx, many))?,
    };
    if written == 0 { Poll::Ready(Err(io::ErrorKind::WriteZero.into())) } else { Poll::Ready(Ok(written)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transport that takes everything, as TLS does, and passes it on when its socket has room.
    #[derive(Default)]
    struct Buffering {
        has_room: bool,
    }

    impl AsyncWrite for Buffering {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.has_room { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn bytes_held_back_by_the_transport_count_as_waiting() {
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let (mut io, mut write_buffer, mut batch) =
            (Buffering::default(), WriteBuffer::default(), Batch::default());
        batch.copy(b"abc");
        assert!(write_buffer.poll_send(&mut batch, &mut io, cx, &mut 0).is_pending());
        let mut moved = 0;
        assert!(write_buffer.poll_flush(&mut io, cx, &mut moved).is_pending());
        assert!(
            !write_buffer.is_empty() && moved == 0,
            "nothing more is gathered, and the peer counts as stuck"
        );
        io.has_room = true;
        assert!(write_buffer.poll_flush(&mut io, cx, &mut moved).is_ready());
        assert!(write_buffer.is_empty() && moved > 0);
    }
}
