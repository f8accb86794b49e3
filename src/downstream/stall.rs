//! A transport that is given up when it takes nothing for too long.
//!
//! What serves HTTP/1 waits for its socket for ever. A client that stops reading would hold an answer, and its
//! connection, for as long as it likes (R-Relay-22).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::alarm::Alarm;
use super::connection::Connection;

/// See the module.
#[derive(Debug)]
pub(super) struct Stalling<T> {
    transport: T,
    patience: Duration,
    /// When it is given up, while it takes nothing.
    until: Option<Instant>,
    alarm: Alarm,
    /// Who is told since when it takes nothing.
    connection: Option<Arc<Connection>>,
}

impl<T> Stalling<T> {
    pub(super) fn new(transport: T, patience: Duration) -> Self {
        Self { transport, patience, until: None, alarm: Alarm::default(), connection: None }
    }

    /// Tells a connection since when it takes nothing.
    pub(super) fn telling(mut self, connection: &Arc<Connection>) -> Self {
        self.connection = Some(Arc::clone(connection));
        self
    }

    fn tell(&self, since: Option<Instant>) {
        if let Some(connection) = &self.connection {
            connection.set_stuck(since);
        }
    }

    fn watch<R>(&mut self, taken: Poll<io::Result<R>>, cx: &mut Context<'_>) -> Poll<io::Result<R>> {
        if taken.is_ready() {
            if self.until.take().is_some() {
                self.alarm = Alarm::default();
                self.tell(None);
            }
            return taken;
        }
        let patience = self.patience;
        if self.until.is_none() {
            let now = tokio::time::Instant::now().into_std();
            self.until = Some(now + patience);
            self.tell(Some(now));
        }
        let until = self.until;
        match self.alarm.poll(until, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nothing was taken for {patience:?}"),
            ))),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stalling<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stalling<T> {
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
        Pin::new(&mut self.transport).poll_flush(cx)
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
        let (near, mut far) = tokio::io::duplex(10);
        let mut near = Stalling::new(near, Duration::from_secs(5));
        near.write_all(&[0; 10]).await.expect("there is room");
        let reader = tokio::spawn(async move {
            // Slow, but not too slow: it may go on for as long as it takes.
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                far.read_exact(&mut [0; 10]).await.expect("something to read");
            }
            far
        });
        near.write_all(&[0; 40]).await.expect("what is read makes room");
        let _far = reader.await.expect("the reader ends");
        let error = near.write_all(&[0; 11]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
