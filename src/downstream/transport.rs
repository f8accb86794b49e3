//! Transports of connections.
//!
//! Owns the traits of all sockets. Cleartext TCP keeps its own type for speed; Unix sockets and TLS are
//! boxed.

use std::io;

use futures_util::FutureExt as _;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, Ready};
use tokio::net::{TcpStream, UnixStream};

pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Transport for T {}

pub(super) type BoxedTransport = Box<dyn Transport>;

/// Socket whose first bytes can be read without taking them.
pub(crate) trait Peek: Sync {
    /// Copies arrived bytes once there are any, and leaves them in place. Returns 0 at the end.
    fn peek(&self, into: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;

    /// Discards arrived bytes.
    fn discard(&self);

    /// Whether the peer is known to have closed the connection, even behind unread bytes. Makes no system
    /// call.
    fn has_left(&self) -> bool;
}

/// Whether the known readiness shows that the peer sends nothing more.
fn is_closed(ready: Option<io::Result<Ready>>) -> bool {
    ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
}

impl Peek for TcpStream {
    async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        Self::peek(self, into).await
    }

    fn discard(&self) {
        _ = self.try_read(&mut [0; 1024]);
    }

    fn has_left(&self) -> bool {
        is_closed(self.ready(Interest::READABLE).now_or_never())
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

    fn has_left(&self) -> bool {
        is_closed(self.ready(Interest::READABLE).now_or_never())
    }
}
