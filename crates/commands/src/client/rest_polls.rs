//! REST-JSON long polls of a client over HTTP/1.1, which every REST server speaks.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::{Bytes, BytesMut};
use deltafan_core::descriptors::text_formats::read_response;
use deltafan_core::routes::poll_path;
use deltafan_transport::terminal::in_one_line;
use deltafan_transport::transfer::Transfers;
use http::uri::Authority;
use http::{Request, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use tokio::time::Instant;

use super::client_request::Query;
use super::client_response::Update;
use super::conversation_end::Ended;
use super::server_address::Server;
use crate::http1_client::{Connection, LARGEST, NoResponse};

/// Time between polls if the server does not hold them.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Polls {
    query: Query,
    path: String,
    /// Of the last answer.
    version: String,
    /// For the first poll.
    connection: Option<Connection>,
    not_before: Instant,
    transfers: Transfers,
}

impl Polls {
    /// Connects.
    pub(super) async fn open(query: Query, transfers: Transfers) -> Result<Self, Ended> {
        let type_url = &query.asked.type_url;
        let path = poll_path(type_url.kind()).ok_or_else(|| {
            Ended::NoConnection(format!("REST-JSON has no path for {type_url}; use --transport delta"))
        })?;
        let connection = Some(connect(&query.server).await?);
        Ok(Self { query, path, version: String::new(), connection, not_before: Instant::now(), transfers })
    }

    /// Polls until an answer has another version.
    ///
    /// # Errors
    ///
    /// Server that refuses the request or cannot be reached; [`Ended::NotYet`] from one that has no answer
    /// yet, after which the polls may go on.
    pub(super) async fn next(&mut self) -> Result<Update, Ended> {
        loop {
            tokio::time::sleep_until(self.not_before).await;
            let begun = Instant::now();
            let (status, body) = self.poll().await?;
            match status {
                StatusCode::OK => {
                    let update = self.read_update(&body)?;
                    // Without versions each answer may differ.
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

    fn read_update(&self, body: &[u8]) -> Result<Update, Ended> {
        let message = read_response(body).context("the answer is no DiscoveryResponse in JSON");
        // A server that answers in JSON is not reported as lacking REST-JSON.
        let is_json = body.trim_ascii_start().starts_with(b"{");
        let message = message.map_err(if is_json { Ended::Faulty } else { Ended::NotRest })?;
        if message.is_empty() {
            return Err(Ended::NotRest(anyhow!("the answer is an empty JSON object")));
        }
        Update::of_sotw(message.into(), Some(&self.query.asked.type_url)).map_err(Ended::Faulty)
    }

    async fn poll(&mut self) -> Result<(StatusCode, Bytes), Ended> {
        let request = self.query.asked.poll(&self.query.asker, &self.version).map_err(Ended::Faulty)?;
        let host = self.query.server.endpoint.uri().authority().map_or("localhost", Authority::as_str);
        let request = Request::post(&self.path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(request.to_string().into()))
            .map_err(|error| Ended::Faulty(error.into()))?;
        let no_response = |why| match why {
            NoResponse::NoServer(why) => self.query.server.no_connection(&why),
            NoResponse::Lost(why) => Ended::Lost(why),
        };
        let mut connection = match self.connection.take() {
            Some(first) => first,
            None => connect(&self.query.server).await?,
        };
        let response = connection.ask(request).await.map_err(no_response)?;
        let status = response.status();
        let body = read(response.into_body(), &self.transfers).await?;
        Ok((status, body))
    }
}

async fn connect(server: &Server) -> Result<Connection, Ended> {
    let opened = Connection::open(&server.target, server.endpoint.uri(), server.connect_timeout()).await;
    opened.map_err(|why| server.no_connection(&why))
}

async fn read<B>(mut body: B, transfers: &Transfers) -> Result<Bytes, Ended>
where
    B: Body<Data = Bytes, Error: fmt::Display> + Unpin,
{
    let mut transfer = transfers.of_stream();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Ended::Lost(format!("within an answer: {error}")))?;
        let data = frame.into_data();
        transfer.read(data.as_ref().map_or(0, Bytes::len), true, Instant::now().into_std());
        if let Ok(data) = data {
            if whole.len() + data.len() > LARGEST {
                return Err(Ended::Faulty(anyhow!("the answer has more than {LARGEST} bytes")));
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_part_of_an_answer_is_seen() {
        let transfers = Transfers::default();
        let frames = stream::iter(["a", "b"]).then(|byte| async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(byte)))
        });
        let whole = read(StreamBody::new(Box::pin(frames)), &transfers);
        tokio::pin!(whole);
        tokio::time::timeout(Duration::from_secs(15), &mut whole).await.unwrap_err();
        assert!(transfers.is_under_way());
        assert_eq!(whole.await.unwrap(), "ab");
        assert!(!transfers.is_under_way());
    }
}
