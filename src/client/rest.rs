//! REST-JSON long polls of a client, over HTTP/1.1, which every server of them speaks.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::asked::Subscription;
use super::ended::Ended;
use super::request::Asker;
use super::response::Update;
use super::server::Server;
use crate::directory;
use crate::downstream::poll_path;
use crate::upstream::Target;

/// Bytes of the largest answer.
const LARGEST: usize = 256 << 20;
/// Words of a refusal that are kept.
const WORDS: usize = 400;
/// Time for an answer. A relay holds a poll for `rest.hold`.
const LONGEST_POLL: Duration = Duration::from_secs(60);
/// Time to the next poll where the server has not held one.
const PAUSE: Duration = Duration::from_secs(1);

/// Polls of one type, on a connection that is kept.
pub(super) struct Polls {
    server: Server,
    path: String,
    asker: Asker,
    asked: Subscription,
    /// Version of the last answer.
    version: String,
    connection: Option<SendRequest<Full<Bytes>>>,
    /// Time before which no poll is sent.
    not_before: Instant,
}

/// Bytes to and from a server.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

impl Polls {
    /// # Errors
    ///
    /// Type that REST-JSON does not have.
    pub(super) fn new(server: Server, asker: Asker, asked: Subscription) -> Result<Self, Ended> {
        let path = poll_path(asked.type_url.kind()).ok_or_else(|| {
            let type_url = &asked.type_url;
            Ended::NoConnection(format!("REST-JSON has no path for {type_url}; use --transport delta"))
        })?;
        Ok(Self {
            server,
            path,
            asker,
            asked,
            version: String::new(),
            connection: None,
            not_before: Instant::now(),
        })
    }

    /// Polls until there is an answer with another version than the last one. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// Server that refuses the request or cannot be reached; [`Ended::NotYet`] for one that has no answer yet, after which the polls
    /// may go on.
    pub(super) async fn next(&mut self) -> Result<Update, Ended> {
        loop {
            tokio::time::sleep_until(self.not_before).await;
            let begun = Instant::now();
            let late =
                |_| Ended::Faulty(anyhow!("the server has not answered a poll within {LONGEST_POLL:?}"));
            let (status, body) = tokio::time::timeout(LONGEST_POLL, self.poll()).await.map_err(late)??;
            match status {
                StatusCode::OK => {
                    let update = directory::read_response(&body).map_err(anyhow::Error::from);
                    let update = update
                        .context("the answer is no DiscoveryResponse in JSON")
                        .and_then(|message| Update::of_sotw(message.into(), Some(&self.asked.type_url)))
                        .map_err(Ended::Faulty)?;
                    // A server without versions tells nothing by them.
                    if update.version.is_empty() || update.version != self.version {
                        self.version = update.version.clone();
                        return Ok(update);
                    }
                }
                StatusCode::NOT_MODIFIED => {}
                StatusCode::SERVICE_UNAVAILABLE => {
                    self.not_before = begun + PAUSE;
                    return Err(Ended::NotYet(words(&body)));
                }
                status => return Err(Ended::Http(status, words(&body))),
            }
            self.not_before = begun + PAUSE;
        }
    }

    async fn poll(&mut self) -> Result<(StatusCode, Bytes), Ended> {
        let request = self.asked.poll(&self.asker, &self.version).map_err(Ended::Faulty)?;
        let body = Bytes::from(request.to_string());
        let response = match self.connection.take() {
            // The server may have closed it since.
            Some(kept) if kept.is_ready() => match self.ask(kept, body.clone()).await {
                Ok(response) => Ok(response),
                Err(_) => self.ask(self.connect().await?, body).await,
            },
            _ => self.ask(self.connect().await?, body).await,
        };
        let (connection, response) = response.map_err(Ended::Faulty)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| Ended::Faulty(anyhow!("the answer cannot be read: {error}")))?;
        self.connection = Some(connection);
        Ok((status, body.to_bytes()))
    }

    async fn ask(
        &self,
        mut connection: SendRequest<Full<Bytes>>,
        body: Bytes,
    ) -> anyhow::Result<(SendRequest<Full<Bytes>>, Response<Incoming>)> {
        let host = self.server.address().authority().map_or("localhost", |authority| authority.as_str());
        let request = Request::post(&self.path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let response = connection.send_request(request).await;
        Ok((connection, response.context("the server does not answer in HTTP/1.1")?))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Ended> {
        let limit = self.server.connect_timeout();
        let connected = tokio::time::timeout(limit, self.socket()).await;
        let late = || Err(format!("no connection within {limit:?}"));
        let socket = connected.unwrap_or_else(|_| late()).map_err(|why| self.server.no_connection(&why))?;
        let shaken = http1::handshake(TokioIo::new(socket)).await;
        let (connection, driver) = shaken.map_err(|error| Ended::Faulty(error.into()))?;
        // It ends with the connection, and every error of it is also one of the request.
        tokio::spawn(driver);
        Ok(connection)
    }

    async fn socket(&self) -> Result<Box<dyn Socket>, String> {
        if let Target::Unix(path) = self.server.target() {
            return Ok(Box::new(UnixStream::connect(path).await.map_err(|error| error.to_string())?));
        }
        let address = self.server.address();
        let host = address.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_tls = matches!(self.server.target(), Target::Tls(_));
        let port = address.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let socket = TcpStream::connect((host, port)).await;
        let socket = socket.map_err(|error| format!("tcp connect error: {error}"))?;
        Ok(match self.server.target() {
            Target::Tls(tls) => Box::new(tls.connect_http1(socket).await?),
            Target::Cleartext | Target::Unix(_) => Box::new(socket),
        })
    }
}

/// Beginning of the text of an answer.
fn words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(WORDS)]);
    text.trim_end().to_owned()
}
