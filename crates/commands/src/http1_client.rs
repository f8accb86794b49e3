//! HTTP/1.1 client of the commands. Its errors name what the server is instead.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use deltafan_transport::dial::{ANSWERS_IN_TLS, Socket, Target, is_tls};
use deltafan_transport::terminal::printable;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// Most bytes of an answer.
pub(crate) const LARGEST: usize = 256 << 20;
pub(crate) const NOT_HTTP1: &str = "the server does not speak HTTP/1.1";

#[derive(Debug)]
pub(crate) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    heard: Arc<Mutex<Heard>>,
    target: Target,
}

impl Connection {
    /// Connects within `limit`, TLS handshake included. A Unix socket ignores the address.
    pub(crate) async fn open(target: &Target, address: &Uri, limit: Duration) -> Result<Self, String> {
        let connected = tokio::time::timeout(limit, socket(target, address)).await;
        let socket = connected.unwrap_or_else(|_| Err(format!("no connection within {limit:?}")))?;
        let heard = Arc::<Mutex<Heard>>::default();
        let socket = NotingSocket { socket, heard: Arc::clone(&heard) };
        let shaken = http1::handshake(TokioIo::new(socket)).await;
        let (requests, driver) = shaken.map_err(|error| error.to_string())?;
        // Ends with the connection; its errors are also those of a request.
        tokio::spawn(driver);
        Ok(Self { requests, heard, target: target.clone() })
    }

    /// False once the server has closed it.
    pub(crate) fn is_ready(&self) -> bool {
        self.requests.is_ready()
    }

    /// Waits for the response's head.
    pub(crate) async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, NoResponse> {
        let sent = async {
            self.requests.ready().await?;
            self.requests.send_request(request).await
        };
        sent.await.map_err(|error| self.heard.lock().explain(&self.target, &error))
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoResponse {
    /// The server does not speak HTTP/1.1, or not with this client.
    #[error("{0}")]
    NoServer(String),
    #[error("{0}")]
    Unreadable(String),
    #[error("{0}")]
    Lost(String),
}

/// First bytes of a server.
#[derive(Debug, Default)]
struct Heard {
    head: Vec<u8>,
    /// Error before any byte.
    error: Option<io::Error>,
}

impl Heard {
    /// Enough bytes to recognize a protocol.
    const HEAD: usize = 64;

    fn explain(&self, target: &Target, error: &hyper::Error) -> NoResponse {
        // After an earlier response, nothing is known of this one's bytes.
        if self.error.is_none() && self.head.starts_with(b"HTTP/1") {
            let why = error.to_string();
            return if error.is_parse() { NoResponse::Unreadable(why) } else { NoResponse::Lost(why) };
        }
        NoResponse::NoServer(match (&self.error, target) {
            (Some(error), Target::Tls(tls)) => tls.diagnosis().of_http1(error),
            (Some(error), _) => format!("{}: {error}", target.closed()),
            (None, _) if self.head.is_empty() => target.closed(),
            (None, Target::Cleartext) if is_tls(&self.head) => ANSWERS_IN_TLS.to_owned(),
            (None, _) => format!("{NOT_HTTP1}: it answers `{}`", self.first_line()),
        })
    }

    /// First line, as far as it is kept.
    fn first_line(&self) -> String {
        let line = self.head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        printable(String::from_utf8_lossy(line).trim_end())
    }
}

async fn socket(target: &Target, address: &Uri) -> Result<Box<dyn Socket>, String> {
    if let Target::Unix(path) = target {
        return Ok(Box::new(UnixStream::connect(path).await.map_err(|error| error.to_string())?));
    }
    let host = address.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_secure = matches!(target, Target::Tls(_));
    let port = address.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let socket = TcpStream::connect((host, port)).await;
    let socket = socket.map_err(|error| format!("tcp connect error: {error}"))?;
    Ok(match target {
        Target::Tls(tls) => Box::new(tls.connect_http1(socket).await?),
        Target::Cleartext | Target::Unix(_) => Box::new(socket),
    })
}

/// Notes the server's first bytes; above TLS, if any.
struct NotingSocket {
    socket: Box<dyn Socket>,
    heard: Arc<Mutex<Heard>>,
}

impl AsyncRead for NotingSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut this.socket).poll_read(cx, buffer));
        let mut heard = this.heard.lock();
        match read {
            Ok(()) => {
                let room = Heard::HEAD - heard.head.len();
                heard.head.extend(buffer.filled()[before..].iter().take(room));
                Poll::Ready(Ok(()))
            }
            // The request fails too, but its error lacks this cause.
            Err(error) if heard.head.is_empty() => {
                let kind = error.kind();
                heard.error = Some(error);
                Poll::Ready(Err(kind.into()))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for NotingSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
