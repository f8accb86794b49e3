//! Timeout of a transport that takes nothing, or next to nothing.
//!
//! hyper waits for an HTTP/1 socket for ever. A client that stops reading would keep an answer and its
//! connection (R-Relay-22).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::timer::LazyTimer;
use crate::http2::{MIN_BYTES, MinRate};

/// Transport whose writes fail after it took less than [`MIN_BYTES`] for too long.
#[derive(Debug)]
pub(crate) struct WriteTimeout<T> {
    transport: T,
    timeout: Duration,
    pace: MinRate,
    timer: LazyTimer,
}

impl<T> WriteTimeout<T> {
    pub(crate) fn new(transport: T, timeout: Duration) -> Self {
        Self { transport, timeout, pace: MinRate::default(), timer: LazyTimer::default() }
    }

    /// Changes the rate, and drops the timer once nothing waits.
    fn keep(&mut self, change: impl FnOnce(&mut MinRate)) {
        change(&mut self.pace);
        if self.pace.since().is_none() {
            self.timer = LazyTimer::default();
        }
    }

    fn watch(&mut self, taken: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = &taken {
            let bytes = *result.as_ref().unwrap_or(&0);
            self.keep(|pace| pace.take(bytes));
            return taken;
        }
        let (timeout, now) = (self.timeout, tokio::time::Instant::now().into_std());
        self.keep(|pace| pace.wait(now));
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
            self.keep(MinRate::end);
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

    #[tokio::test(start_paused = true)]
    async fn r_relay_22_a_transport_that_takes_nothing_is_given_up() {
        let (near, mut far) = tokio::io::duplex(MIN_BYTES);
        let mut near = WriteTimeout::new(near, Duration::from_secs(5));
        near.write_all(&vec![0; MIN_BYTES]).await.expect("there is room");
        let reader = tokio::spawn(async move {
            // Slow, but fast enough to go on for ever.
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                far.read_exact(&mut vec![0; MIN_BYTES]).await.expect("something to read");
            }
            far
        });
        near.write_all(&vec![0; 4 * MIN_BYTES]).await.expect("reading makes room");
        let _far = reader.await.expect("the reader ends");
        let error = near.write_all(&vec![0; MIN_BYTES + 1]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_transport_that_takes_a_byte_now_and_then_is_given_up() {
        let (near, mut far) = tokio::io::duplex(10);
        let mut near = WriteTimeout::new(near, Duration::from_secs(5));
        tokio::spawn(async move {
            while far.read_exact(&mut [0]).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        });
        let start = tokio::time::Instant::now();
        let error = near.write_all(&[0; 100]).await.expect_err("that is no reading");
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, Duration::from_secs(5)));
    }

    /// A small answer may be taken slowly: the next wait begins with the next answer.
    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_all_has_gone() {
        let (near, mut far) = tokio::io::duplex(10);
        let mut near = WriteTimeout::new(near, Duration::from_secs(5));
        let reader = tokio::spawn(async move {
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                far.read_exact(&mut [0; 10]).await.expect("something to read");
            }
        });
        for _ in 0..4 {
            near.write_all(&[0; 10]).await.expect("it is read in time");
            near.flush().await.expect("nothing is held back");
        }
        reader.await.expect("the reader ends");
    }
}
