//! HTTP/1.1 client of the commands. Its errors name what the server is instead.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use deltafan_transport::dial::{ANSWERS_IN_TLS, Target, host_and_port, is_tls, open};
use deltafan_transport::terminal::printable;
use deltafan_transport::tls::diagnosis::Http;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::io::InspectReader;

/// Most bytes of an answer.
pub(crate) const LARGEST: usize = 256 << 20;
pub(crate) const NOT_HTTP1: &str = "the server does not speak HTTP/1.1";

/// Bytes of a server that are enough to recognize a protocol.
const HEAD: usize = 64;

#[derive(Debug)]
pub(crate) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    driver: JoinHandle<hyper::Result<()>>,
    /// First bytes of the server; above TLS, if any.
    head: Arc<Mutex<Vec<u8>>>,
    target: Target,
}

impl Connection {
    /// Connects within `limit`, TLS handshake included. A Unix socket ignores the address.
    pub(crate) async fn open(target: &Target, address: &Uri, limit: Duration) -> Result<Self, String> {
        let opened = open(host_and_port(address), target, Http::One, || ());
        let connected = tokio::time::timeout(limit, opened).await;
        let socket = connected.unwrap_or_else(|_| Err(format!("no connection within {limit:?}")))?;
        let head = Arc::<Mutex<Vec<u8>>>::default();
        let seen = Arc::clone(&head);
        let socket = InspectReader::new(socket, move |bytes: &[u8]| {
            let mut head = seen.lock();
            let room = HEAD - head.len();
            head.extend(bytes.iter().take(room));
        });
        let shaken = http1::handshake(TokioIo::new(socket)).await;
        let (requests, driver) = shaken.map_err(|error| error.to_string())?;
        Ok(Self { requests, driver: tokio::spawn(driver), head, target: target.clone() })
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
        match sent.await {
            Ok(response) => Ok(response),
            Err(error) => Err(self.explain(error).await),
        }
    }

    async fn explain(&mut self, error: hyper::Error) -> NoResponse {
        let head = std::mem::take(&mut *self.head.lock());
        // After an earlier response, nothing is known of this one's bytes.
        if head.starts_with(b"HTTP/1") {
            return NoResponse::Lost(error.to_string());
        }
        // The error of a connection that failed before its request is that of the driver.
        let of_connection = match self.driver.is_finished() {
            true => (&mut self.driver).await.ok().and_then(Result::err),
            false => None,
        };
        let fault = read_error(&error).or_else(|| read_error(of_connection.as_ref()?));
        NoResponse::NoServer(match (fault.filter(|_| head.is_empty()), &self.target) {
            (Some(error), Target::Tls(tls)) => tls.diagnosis.of(error, Http::One),
            (Some(error), target) => format!("{}: {error}", target.closed()),
            (None, target) if head.is_empty() => target.closed(),
            (None, Target::Cleartext) if is_tls(&head) => ANSWERS_IN_TLS.to_owned(),
            (None, _) => format!("{NOT_HTTP1}: it answers `{}`", first_line(&head)),
        })
    }
}

/// Fault of the socket, but not of a write, which says less.
fn read_error(error: &hyper::Error) -> Option<&io::Error> {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    let mut faults = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    faults.find(|fault| fault.kind() != io::ErrorKind::BrokenPipe)
}

/// First line, as far as it is kept.
fn first_line(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    printable(String::from_utf8_lossy(line).trim_end())
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoResponse {
    /// The server does not speak HTTP/1.1, or not with this client.
    #[error("{0}")]
    NoServer(String),
    #[error("{0}")]
    Lost(String),
}
