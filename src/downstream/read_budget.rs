//! Budget of reads from a socket, after which other tasks run.
//!
//! Owns the number of reads in a row. TLS reads on until it has data. A peer can send empty records or key
//! updates without end. Each costs a decryption, and the layers that measure time see nothing of it.
//!
//! Invariant: a reader that must wait is woken.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::fairness::READS_IN_A_ROW;

/// Transport with a limited number of reads in a row.
#[derive(Debug)]
pub(super) struct ReadBudget<IO> {
    io: IO,
    /// Reads since the transport was last empty, or the reader had to wait.
    reads: u8,
}

impl<IO> ReadBudget<IO> {
    pub(super) const fn new(io: IO) -> Self {
        Self { io, reads: 0 }
    }

    pub(super) const fn get_ref(&self) -> &IO {
        &self.io
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadBudget<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.reads == READS_IN_A_ROW {
            self.reads = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.reads = if read.is_pending() { 0 } else { self.reads + 1 };
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ReadBudget<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn an_endless_transport_is_read_in_portions_and_completely() {
        let mut reader = ReadBudget::new(tokio::io::repeat(7));
        let mut byte = [0];
        for _ in 0..3 {
            for _ in 0..READS_IN_A_ROW {
                assert!(poll!(std::pin::pin!(reader.read(&mut byte))).is_ready());
            }
            assert!(poll!(std::pin::pin!(reader.read(&mut byte))).is_pending());
        }
        let mut many = vec![0; 1000];
        for byte in &mut many {
            reader.read_exact(std::slice::from_mut(byte)).await.expect("it is woken");
        }
        assert!(many.iter().all(|byte| *byte == 7));
    }
}
