//! The body of a request, and what of it has arrived.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use parking_lot::Mutex;

use super::Reason;

/// What has arrived on a stream and was not read: never more than its window.
#[derive(Debug)]
struct Arrived {
    data: BytesMut,
    /// Bytes that were read since that was last asked: the peer may send as many again.
    read: usize,
    end: Option<Result<(), Reason>>,
    /// Who waits for more.
    reader: Option<Waker>,
    /// The stream itself.
    own: Waker,
    /// Nobody will read any more.
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
    /// It needs no invitation, or has it.
    Open,
    /// It sends `expect: 100-continue` and waits.
    Awaited,
    /// The body is read, so that it is to be told.
    Due,
}

/// The connection's end of a request body.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Mutex<Arrived>>);

impl Inbox {
    /// Of the stream that is polled when `own` is woken. The peer may wait until the body is read.
    pub(super) fn new(own: Waker, waits: bool) -> Self {
        let (data, read, end, reader, dropped) = (BytesMut::new(), 0, None, None, false);
        let invited = if waits { Invitation::Awaited } else { Invitation::Open };
        let (held_back, waits) = (false, false);
        Self(Arc::new(Mutex::new(Arrived {
            data,
            read,
            end,
            reader,
            own,
            dropped,
            invited,
            held_back,
            waits,
        })))
    }

    pub(super) fn body(&self) -> RequestBody {
        RequestBody(Arc::clone(&self.0))
    }

    /// Data arrived. Who waits is woken, but for the stream itself, which is polled anyhow.
    pub(super) fn push(&self, data: &[u8]) {
        let mut arrived = self.0.lock();
        if arrived.dropped {
            arrived.read += data.len();
            return;
        }
        arrived.data.extend_from_slice(data);
        arrived.wake();
    }

    /// Nothing more will come.
    pub(super) fn end(&self, how: Result<(), Reason>) {
        let mut arrived = self.0.lock();
        arrived.end.get_or_insert(how);
        arrived.wake();
    }

    /// Whether the peer is to be told now that it may send the body. Once.
    pub(super) fn take_invitation(&self) -> bool {
        let mut arrived = self.0.lock();
        let is_due = arrived.invited == Invitation::Due;
        if is_due {
            arrived.invited = Invitation::Open;
        }
        is_due
    }

    /// Says whether a window holds the response back. To be called before the response is polled.
    pub(super) fn hold_back(&self, held_back: bool) {
        let mut arrived = self.0.lock();
        (arrived.held_back, arrived.waits) = (held_back, false);
    }

    /// Whether the response has something to send and waits for the window that holds it back.
    pub(super) fn waits_for_window(&self) -> bool {
        self.0.lock().waits
    }

    /// Bytes that were read since this was last called.
    pub(super) fn take_read(&self) -> usize {
        std::mem::take(&mut self.0.lock().read)
    }
}

impl Arrived {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take()
            && !reader.will_wake(&self.own)
        {
            reader.wake();
        }
    }
}

/// The body of a request that came over HTTP/2. Trailers are not told.
#[derive(Debug)]
pub struct RequestBody(Arc<Mutex<Arrived>>);

/// Flow control of a response, as its body sees it through the body of the request.
pub trait Backpressure {
    /// Whether the peer's windows are closed, so that nothing which the response hands out can go now.
    fn is_held_back(&self) -> bool {
        false
    }

    /// The response has something to send, has not made it, and is to be polled when a window opens.
    fn wait_for_window(&self) {}
}

impl Backpressure for RequestBody {
    fn is_held_back(&self) -> bool {
        self.0.lock().held_back
    }

    fn wait_for_window(&self) {
        self.0.lock().waits = true;
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Reason;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut arrived = self.0.lock();
        if !arrived.data.is_empty() {
            let data = std::mem::take(&mut arrived.data).freeze();
            arrived.read += data.len();
            if !cx.waker().will_wake(&arrived.own) {
                // Read elsewhere: the stream gives the window back when it is polled.
                arrived.own.wake_by_ref();
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match arrived.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(reason)) => Poll::Ready(Some(Err(reason))),
            None => {
                if arrived.invited == Invitation::Awaited {
                    arrived.invited = Invitation::Due;
                    arrived.own.wake_by_ref();
                }
                if !arrived.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
                    arrived.reader = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let arrived = self.0.lock();
        arrived.data.is_empty() && arrived.end == Some(Ok(()))
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let mut arrived = self.0.lock();
        arrived.dropped = true;
        let unread = std::mem::take(&mut arrived.data).len();
        arrived.read += unread;
        if unread > 0 {
            arrived.own.wake_by_ref();
        }
    }
}
