//! Body of a request, and the part of it that has arrived.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use parking_lot::Mutex;

/// Part of a request that has arrived, and what its two ends tell each other. Read and set without the lock, as each
/// poll of a response asks for most of it.
#[derive(Debug, Default)]
struct Shared {
    unread: Mutex<Unread>,
    has_data: AtomicBool,
    has_ended: AtomicBool,
    /// Bytes read since [`RequestBuffer::take_read`]: the window grows by as many.
    read: AtomicUsize,
    /// Whether a window holds the response back.
    held_back: AtomicBool,
    /// Whether the response has something to send and waits for that window.
    waits: AtomicBool,
}

/// Never more than the stream's window.
#[derive(Debug, Default)]
struct Unread {
    data: BytesMut,
    /// Whether the body was dropped, so that nobody will read more.
    dropped: bool,
}

/// Connection's end of a request body.
#[derive(Debug, Default)]
pub(super) struct RequestBuffer(Arc<Shared>);

impl RequestBuffer {
    pub(super) fn body(&self) -> RequestBody {
        RequestBody(Arc::clone(&self.0))
    }

    pub(super) fn push(&self, data: &[u8]) {
        let mut unread = self.0.unread.lock();
        if unread.dropped {
            self.0.read.fetch_add(data.len(), Relaxed);
        } else {
            unread.data.extend_from_slice(data);
            self.0.has_data.store(true, Release);
        }
    }

    pub(super) fn end(&self) {
        self.0.has_ended.store(true, Release);
    }

    /// Sets whether a window holds the response back. Must be called before the response is polled.
    pub(super) fn hold_back(&self, held_back: bool) {
        self.0.held_back.store(held_back, Relaxed);
        self.0.waits.store(false, Relaxed);
    }

    /// Whether the response has something to send and waits for the window that holds it back.
    pub(super) fn waits_for_window(&self) -> bool {
        self.0.waits.load(Relaxed)
    }

    pub(super) fn take_read(&self) -> usize {
        if self.0.read.load(Relaxed) == 0 { 0 } else { self.0.read.swap(0, Relaxed) }
    }
}

/// Body of a request that came over HTTP/2. Trailers are dropped. The stream itself must read it, in its service or
/// response: data wakes nobody else, and a stream that is reset drops both.
#[derive(Debug)]
pub struct RequestBody(Arc<Shared>);

/// Flow control of the response, for its body.
impl RequestBody {
    /// Whether the peer's windows are closed, so that no response data can go out now.
    pub fn is_held_back(&self) -> bool {
        self.0.held_back.load(Relaxed)
    }

    /// Notes that the response has something to send but has not made it. Its body is polled again when a window
    /// opens.
    pub fn wait_for_window(&self) {
        self.0.waits.store(true, Relaxed);
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // Read first: no data follows the end.
        let has_ended = self.0.has_ended.load(Acquire);
        if self.0.has_data.load(Acquire) {
            let data = self.take();
            return Poll::Ready(Some(Ok(Frame::data(data.freeze()))));
        }
        if has_ended { Poll::Ready(None) } else { Poll::Pending }
    }

    fn is_end_stream(&self) -> bool {
        self.0.has_ended.load(Acquire) && !self.0.has_data.load(Acquire)
    }
}

impl RequestBody {
    fn take(&self) -> BytesMut {
        let mut unread = self.0.unread.lock();
        self.0.has_data.store(false, Relaxed);
        let data = std::mem::take(&mut unread.data);
        self.0.read.fetch_add(data.len(), Relaxed);
        data
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.0.unread.lock().dropped = true;
        drop(self.take());
    }
}
