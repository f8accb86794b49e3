//! REST-JSON long polls of a client, over HTTP/1.1, which every server of them speaks.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use tokio::time::Instant;

use super::asked::Subscription;
use super::ended::Ended;
use super::http1::Connection;
use super::request::Asker;
use super::response::Update;
use super::server::Server;
use crate::directory;
use crate::downstream::poll_path;
use crate::terminal::in_one_line;

/// Largest answer that is read, in bytes.
const LARGEST: usize = 256 << 20;
/// Longest poll. A relay holds a poll for `rest.hold`.
const LONGEST_POLL: Duration = Duration::from_secs(60);
/// Time from one poll to the next if the server does not hold them.
const PAUSE: Duration = Duration::from_secs(1);

/// Polls for one subscription. The connection is kept between them.
pub(super) struct Polls {
    server: Server,
    path: String,
    asker: Asker,
    asked: Subscription,
    /// Version of the last answer.
    version: String,
    connection: Option<Connection>,
    /// Time before which no poll is sent.
    not_before: Instant,
}

impl Polls {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Server that cannot be reached, or a type that REST-JSON does not have.
    pub(super) async fn open(server: Server, asker: Asker, asked: Subscription) -> Result<Self, Ended> {
        let path = poll_path(asked.type_url.kind()).ok_or_else(|| {
            let type_url = &asked.type_url;
            Ended::NoConnection(format!("REST-JSON has no path for {type_url}; use --transport delta"))
        })?;
        let connection = connect(&server).await?;
        Ok(Self {
            server,
            path,
            asker,
            asked,
            version: String::new(),
            connection: Some(connection),
            not_before: Instant::now(),
        })
    }

    /// Polls until an answer has another version than the last one. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// Server that refuses the request or cannot be reached; [`Ended::NotYet`] from one that has no answer yet, after which the polls
    /// may go on.
    pub(super) async fn next(&mut self) -> Result<Update, Ended> {
        loop {
            tokio::time::sleep_until(self.not_before).await;
            let begun = Instant::now();
            let late = |_| Ended::Lost(format!("the server has not answered a poll within {LONGEST_POLL:?}"));
            let (status, body) = tokio::time::timeout(LONGEST_POLL, self.poll()).await.map_err(late)??;
            match status {
                StatusCode::OK => {
                    let update = directory::read_response(&body).map_err(anyhow::Error::from);
                    let update = update
                        .context("the answer is no DiscoveryResponse in JSON")
                        .and_then(|message| Update::of_sotw(message.into(), Some(&self.asked.type_url)))
                        .map_err(Ended::NotRest)?;
                    // Without versions each answer may be another one.
                    if update.version.is_empty() || update.version != self.version {
                        self.version = update.version.clone();
                        return Ok(update);
                    }
                }
                StatusCode::NOT_MODIFIED => {}
                StatusCode::SERVICE_UNAVAILABLE => {
                    self.not_before = begun + PAUSE;
                    let words = Some(in_one_line(&body)).filter(|words| !words.is_empty());
                    return Err(Ended::NotYet(words.unwrap_or_else(|| status.to_string())));
                }
                status => return Err(Ended::Http(status, in_one_line(&body))),
            }
            self.not_before = begun + PAUSE;
        }
    }

    async fn poll(&mut self) -> Result<(StatusCode, Bytes), Ended> {
        let request = self.asked.poll(&self.asker, &self.version).map_err(Ended::Faulty)?;
        let request = self.post(request.to_string()).map_err(Ended::Faulty)?;
        let unreached = |why: String| self.server.no_connection(&why);
        let kept = self.connection.take().filter(Connection::is_ready);
        let answered = match kept {
            // The server may close it at any time between two polls.
            Some(mut kept) => match kept.ask(request.clone()).await {
                Ok(response) => Some((kept, response)),
                Err(_) => None,
            },
            None => None,
        };
        let (connection, response) = match answered {
            Some(answered) => answered,
            None => {
                let mut fresh = connect(&self.server).await?;
                let response = fresh.ask(request).await.map_err(unreached)?;
                (fresh, response)
            }
        };
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| Ended::Lost(format!("within an answer: {error}")))?;
        self.connection = Some(connection);
        Ok((status, body.to_bytes()))
    }

    fn post(&self, body: String) -> anyhow::Result<Request<Full<Bytes>>> {
        let host = self.server.address().authority().map_or("localhost", |authority| authority.as_str());
        let request = Request::post(&self.path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.into()))?;
        Ok(request)
    }
}

async fn connect(server: &Server) -> Result<Connection, Ended> {
    let opened = Connection::open(server.target(), server.address(), server.connect_timeout()).await;
    opened.map_err(|why| server.no_connection(&why))
}
