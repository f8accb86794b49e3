//! Sockets of clients: their traits, the protocol by the first bytes, and wrappers with limits.
//!
//! Cleartext TCP keeps its own type for speed; Unix sockets and TLS are boxed.
//!
//! hyper waits for an HTTP/1 socket for ever. A client that stops reading would keep an answer and its
//! connection (R-Relay-22). So a transport that takes next to nothing times out.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

use super::scheduler::LazyTimer;
use crate::http2::{MIN_BYTES, MinRate};

pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Transport for T {}

pub(super) type BoxedTransport = Box<dyn Transport>;

/// Socket that knows whether its peer has left.
pub(super) trait Departure {
    /// Whether the peer is known to have closed the connection, even behind unread bytes. Makes no system
    /// call.
    fn has_left(&self) -> bool;
}

fn is_closed(ready: Option<io::Result<Ready>>) -> bool {
    ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
}

impl Departure for TcpStream {
    fn has_left(&self) -> bool {
        is_closed(self.ready(Interest::READABLE).now_or_never())
    }
}

impl Departure for UnixStream {
    fn has_left(&self) -> bool {
        is_closed(self.ready(Interest::READABLE).now_or_never())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireProtocol {
    Http1,
    Http2,
    /// TLS handshake on a cleartext listener.
    Tls,
    /// No protocol that is served here.
    Unknown,
}

impl WireProtocol {
    /// Bytes that distinguish HTTP/2 from every method of HTTP/1.
    const SNIFFED_BYTES: u64 = 3;

    fn of(start: &[u8]) -> Self {
        match start {
            b"PRI" => Self::Http2,
            // Not every word in capitals: a faulty HTTP/2 preface ends the connection (RFC 9113, section
            // 3.4).
            b"GET" | b"HEA" | b"POS" | b"PUT" | b"DEL" | b"CON" | b"OPT" | b"TRA" | b"PAT" => Self::Http1,
            // Handshake record of any version (RFC 8446, section 5.1).
            [22, 3, _] => Self::Tls,
            _ => Self::Unknown,
        }
    }

    /// Detects the protocol. Returns the bytes that were read for that too.
    pub(crate) async fn sniff(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<(Self, Vec<u8>)> {
        let mut start = Vec::new();
        socket.take(Self::SNIFFED_BYTES).read_to_end(&mut start).await?;
        Ok((Self::of(&start), start))
    }
}

/// Transport of HTTP/1, with the first bytes that were taken to detect the protocol. Writes fail after it took less than
/// [`MIN_BYTES`] for too long.
#[derive(Debug)]
pub(crate) struct WriteTimeout<T> {
    start: Vec<u8>,
    transport: T,
    timeout: Duration,
    pace: MinRate,
    timer: LazyTimer,
}

impl<T> WriteTimeout<T> {
    pub(crate) fn new(start: Vec<u8>, transport: T, timeout: Duration) -> Self {
        Self { start, transport, timeout, pace: MinRate::default(), timer: LazyTimer::default() }
    }

    fn watch(&mut self, taken: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = &taken {
            self.pace.take(*result.as_ref().unwrap_or(&0));
            return taken;
        }
        let (timeout, now) = (self.timeout, tokio::time::Instant::now().into_std());
        self.pace.wait(now);
        match self.timer.poll(self.pace.since().map(|since| since + timeout), cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the client took less than {MIN_BYTES} bytes in {timeout:?}"),
            ))),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.start.is_empty() {
            // Few enough for any buffer. hyper would double it for what follows; the next read repeats an error or the end.
            into.put_slice(&std::mem::take(&mut self.start));
            _ = Pin::new(&mut self.transport).poll_read(cx, into);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.transport).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.watch(taken, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.transport).poll_write_vectored(cx, bytes);
        self.watch(taken, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        // Everything written has left.
        if flushed.is_ready() {
            self.pace.end();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_read_brings_the_first_bytes_and_what_came_behind_them() {
        let (near, mut far) = tokio::io::duplex(10);
        let (mut near, mut read) = (WriteTimeout::new(b"PO".into(), near, Duration::MAX), [0; 8]);
        far.write_all(b"ST").await.expect("there is room");
        assert_eq!(near.read(&mut read).await.expect("open"), 4);
        assert_eq!(&read[..4], b"POST");
        near.start = b"alone".into();
        assert_eq!(near.read(&mut read).await.expect("it waits for nothing"), 5);
        near.start = b"last".into();
        drop(far);
        for expected in [4, 0] {
            assert_eq!(near.read(&mut read).await.expect("the end is told after them"), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_transport_that_takes_a_byte_now_and_then_is_given_up() {
        let (near, mut far) = tokio::io::duplex(10);
        let mut near = WriteTimeout::new(Vec::new(), near, Duration::from_secs(5));
        tokio::spawn(async move {
            while far.read_exact(&mut [0]).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        });
        let start = tokio::time::Instant::now();
        let error = near.write_all(&[0; 100]).await.expect_err("that is no reading");
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, Duration::from_secs(5)));
    }
}
