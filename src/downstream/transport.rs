//! What a connection runs over.
//!
//! Owns what the kinds of sockets have in common. Cleartext TCP is served as the type it is; what is rarer, or slower
//! anyway, is served in a box.

use std::io;

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};

/// A transport of bytes.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Transport for T {}

/// Any of them.
pub(super) type BoxedTransport = Box<dyn Transport>;

/// A socket that can be looked into.
pub(super) trait Peek: Sync {
    /// What lies in it, once something does; it stays there. Zero at its end.
    fn peek(&self, into: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;

    /// Takes out what lies in it.
    fn discard(&self);
}

impl Peek for TcpStream {
    async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        Self::peek(self, into).await
    }

    fn discard(&self) {
        _ = self.try_read(&mut [0; 1024]);
    }
}

impl Peek for UnixStream {
    async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.readable().await?;
            let peeked = self.try_io(Interest::READABLE, || Ok(recv(self, &mut *into, RecvFlags::PEEK)?.1));
            match peeked {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                peeked => return peeked,
            }
        }
    }

    fn discard(&self) {
        _ = self.try_read(&mut [0; 1024]);
    }
}
