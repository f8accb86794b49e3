//! Connecting until the server has been heard.
//!
//! Owns what "connected" means: a TCP connection proves nothing, for the kernel of a frozen server completes it, and so
//! does a proxy in front of a dead one. A server of HTTP/2 begins with SETTINGS, whatever it is asked.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tower::Service as _;

use super::connection::reasons;

/// Connects, and waits for the first words of the server, for at most as long as the endpoint allows.
pub(super) async fn dial(endpoint: Endpoint) -> Result<Channel, String> {
    let limit = endpoint.get_connect_timeout().unwrap_or(Duration::MAX);
    let (heard, hears) = oneshot::channel();
    let heard = Mutex::new(Some(heard));
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    // Before TLS there are only its records to be heard.
    let cleartext = endpoint.uri().scheme_str() != Some("https");
    let connector = tower::service_fn(move |uri: Uri| {
        let (connecting, heard) = (http.call(uri), heard.lock().take());
        async move {
            let socket = connecting.await?.into_inner();
            let head = if cleartext { Head::Awaited(Vec::with_capacity(HEAD)) } else { Head::Any };
            Ok::<_, tower::BoxError>(TokioIo::new(Ear { socket, head, heard }))
        }
    });
    let connect = async {
        let channel = endpoint.connect_with_connector(connector).await.map_err(|error| reasons(&error))?;
        match hears.await {
            Ok(heard) => heard.map(|()| channel),
            Err(_) => Err("the server closed the connection before it said anything".to_owned()),
        }
    };
    match tokio::time::timeout(limit, connect).await {
        Ok(connected) => connected,
        Err(_) => Err(format!("the server has not answered within {limit:?}")),
    }
}

/// The head of an HTTP/2 frame.
const HEAD: usize = 9;
const SETTINGS: u8 = 4;

/// What the server is to begin with.
#[derive(Debug)]
enum Head {
    /// The head of a SETTINGS frame, of which this has come.
    Awaited(Vec<u8>),
    /// Whatever it says.
    Any,
}

/// A socket that tells when the server was first heard. It says nothing more after that.
#[derive(Debug)]
struct Ear {
    socket: TcpStream,
    head: Head,
    heard: Option<oneshot::Sender<Result<(), String>>>,
}

impl Ear {
    fn hear(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let verdict = match &mut self.head {
            Head::Any => Ok(()),
            Head::Awaited(head) => {
                head.extend(bytes.iter().take(HEAD - head.len()));
                match head.as_slice() {
                    [_, _, _, SETTINGS, _, 0, 0, 0, 0] => Ok(()),
                    short if short.len() < HEAD => return,
                    _ => Err("the server does not speak HTTP/2".to_owned()),
                }
            }
        };
        if let Some(heard) = self.heard.take() {
            // Nobody waits any more when the time is over.
            _ = heard.send(verdict);
        }
    }
}

impl AsyncRead for Ear {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buffer))?;
        if this.heard.is_some() {
            this.hear(&buffer.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Ear {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
