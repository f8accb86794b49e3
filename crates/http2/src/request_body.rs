//! Body of a request, and the part of it that has arrived.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use parking_lot::Mutex;

/// Bytes of a request that were not read: never more than the stream's window.
#[derive(Debug)]
struct Buffered {
    data: BytesMut,
    /// Bytes read since [`RequestBuffer::take_read`]: the window grows by as many.
    read: usize,
    has_ended: bool,
    /// Whether the body was dropped, so that nobody will read more.
    dropped: bool,
    invited: Invitation,
    /// Whether a window holds the response back.
    held_back: bool,
    /// Whether the response has something to send and waits for that window.
    waits: bool,
}

/// Whether the peer may send the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invitation {
    /// The peer needs no invitation, or has it.
    Open,
    /// The peer sent `expect: 100-continue` and waits.
    Awaited,
    /// The body is being read, so the peer must get `100 Continue`.
    Due,
}

/// Connection's end of a request body.
#[derive(Debug)]
pub(super) struct RequestBuffer(Arc<Mutex<Buffered>>);

impl RequestBuffer {
    /// If `waits`, the peer sends the body only when it is read.
    pub(super) fn new(waits: bool) -> Self {
        Self(Arc::new(Mutex::new(Buffered {
            data: BytesMut::new(),
            read: 0,
            has_ended: false,
            dropped: false,
            invited: if waits { Invitation::Awaited } else { Invitation::Open },
            held_back: false,
            waits: false,
        })))
    }

    pub(super) fn body(&self) -> RequestBody {
        RequestBody(Arc::clone(&self.0))
    }

    pub(super) fn push(&self, data: &[u8]) {
        let mut buffered = self.0.lock();
        if buffered.dropped {
            buffered.read += data.len();
        } else {
            buffered.data.extend_from_slice(data);
        }
    }

    pub(super) fn end(&self) {
        self.0.lock().has_ended = true;
    }

    /// Whether `100 Continue` is due. Resets the flag.
    pub(super) fn take_invitation(&self) -> bool {
        let mut buffered = self.0.lock();
        let is_due = buffered.invited == Invitation::Due;
        if is_due {
            buffered.invited = Invitation::Open;
        }
        is_due
    }

    /// Sets whether a window holds the response back. Must be called before the response is polled.
    pub(super) fn hold_back(&self, held_back: bool) {
        let mut buffered = self.0.lock();
        (buffered.held_back, buffered.waits) = (held_back, false);
    }

    /// Whether the response has something to send and waits for the window that holds it back.
    pub(super) fn waits_for_window(&self) -> bool {
        self.0.lock().waits
    }

    pub(super) fn take_read(&self) -> usize {
        std::mem::take(&mut self.0.lock().read)
    }
}

/// Body of a request that came over HTTP/2. Trailers are dropped. The stream itself must read it, in its service or
/// response: data wakes nobody else, and a stream that is reset drops both.
#[derive(Debug)]
pub struct RequestBody(Arc<Mutex<Buffered>>);

/// Flow control of the response, for its body.
impl RequestBody {
    /// Whether the peer's windows are closed, so that no response data can go out now.
    pub fn is_held_back(&self) -> bool {
        self.0.lock().held_back
    }

    /// Notes that the response has something to send but has not made it. Its body is polled again when a window
    /// opens.
    pub fn wait_for_window(&self) {
        self.0.lock().waits = true;
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut buffered = self.0.lock();
        if !buffered.data.is_empty() {
            let data = std::mem::take(&mut buffered.data).freeze();
            buffered.read += data.len();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if buffered.has_ended {
            return Poll::Ready(None);
        }
        if buffered.invited == Invitation::Awaited {
            buffered.invited = Invitation::Due;
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let buffered = self.0.lock();
        buffered.data.is_empty() && buffered.has_ended
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let mut buffered = self.0.lock();
        buffered.dropped = true;
        buffered.read += std::mem::take(&mut buffered.data).len();
    }
}
