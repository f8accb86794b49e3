//! HTTP to the admin address, with errors that name the remedy.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use deltafan_transport::dial::Target;
use deltafan_transport::terminal::in_one_line;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use serde_json::Value as Json;
use tokio::time::timeout;

use crate::http1_client::{Connection, LARGEST};

/// How a relay's 404 answers begin: for another path, for a client, and for a history.
const NO_PAGE: &str = "no such page";
const NO_CLIENT: &str = "no such client";
const NO_HISTORY: &str = "no history";
/// 404 of an xDS listener.
const NO_PATH: &str = "no such path";

/// Admin address of a relay: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminAddress {
    host: String,
    port: u16,
}

impl AdminAddress {
    pub(super) fn uri(&self) -> anyhow::Result<Uri> {
        Ok(Uri::from_str(&self.to_string())?)
    }
}

impl From<SocketAddr> for AdminAddress {
    fn from(address: SocketAddr) -> Self {
        let host = if address.is_ipv6() { format!("[{}]", address.ip()) } else { address.ip().to_string() };
        Self { host, port: address.port() }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; use http://HOST:PORT, with the port of `admin.address`")]
pub(crate) struct AddressError(&'static str);

impl FromStr for AdminAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let uri = Uri::from_str(text).map_err(|_| AddressError("this is no URI"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(AddressError("the admin address speaks no TLS")),
            Some(_) => return Err(AddressError("the admin address speaks HTTP only")),
            None => return Err(AddressError("the scheme is missing")),
        }
        if uri.path() != "/" || uri.query().is_some() {
            return Err(AddressError("the command chooses the path itself"));
        }
        let host = uri.host().unwrap_or_default().to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(80) })
    }
}

/// The relay answered that there is no such client, history or change. No fault of the relay.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Missing(pub(super) String);

#[derive(Debug)]
enum Answer {
    /// 200.
    Found(Bytes),
    /// The relay is not ready, with its reason.
    Unavailable(String),
    /// The relay is older than this command.
    NoSuchPage,
}

#[derive(Debug)]
pub(super) struct AdminClient {
    pub(super) address: AdminAddress,
    connection: Connection,
    patience: Duration,
}

impl AdminClient {
    /// `patience` is the time limit of each answer.
    pub(super) async fn connect(address: AdminAddress, patience: Duration) -> anyhow::Result<Self> {
        let connection = Connection::open(&Target::Cleartext, &address.uri()?, patience).await;
        let connection = connection.map_err(anyhow::Error::msg).with_context(|| {
            format!("could not connect to {address}; does the relay run, and is this its `admin.address` (--admin)?")
        })?;
        Ok(Self { address, connection, patience })
    }

    async fn send(&mut self, method: Method, path: &str) -> anyhow::Result<Answer> {
        let Self { address, patience, .. } = self;
        let (address, patience) = (address.clone(), *patience);
        let page = || format!("{address}{path}");
        let answer = timeout(patience, self.ask(&method, path)).await;
        let answer = answer.map_err(|_| anyhow!("{} has not answered within {patience:?}", page()))?;
        let (status, body) = answer.with_context(|| {
            format!("{address} does not answer in HTTP; is it the relay's `admin.address`, and not an xDS listener?")
        })?;
        if status == StatusCode::OK {
            return Ok(Answer::Found(body));
        }
        let (words, is_order) = (in_one_line(&body), method == Method::POST);
        match status {
            StatusCode::SERVICE_UNAVAILABLE => Ok(Answer::Unavailable(words)),
            StatusCode::BAD_REQUEST => bail!("{address} refused the request: {words}"),
            StatusCode::NOT_FOUND if words.starts_with(NO_PAGE) => Ok(Answer::NoSuchPage),
            StatusCode::METHOD_NOT_ALLOWED if is_order => Ok(Answer::NoSuchPage),
            StatusCode::NOT_FOUND if is_order && words != NO_PATH => Err(Missing(words).into()),
            StatusCode::NOT_FOUND if [NO_CLIENT, NO_HISTORY].iter().any(|no| words.starts_with(no)) => {
                Err(Missing(words).into())
            }
            StatusCode::NOT_FOUND => bail!(
                "{} does not exist: this is no admin address of a relay, maybe one of its xDS listeners; use the port of \
                 `admin.address` (15000 by default)",
                page()
            ),
            _ => bail!("{} answered {status}: {words}", page()),
        }
    }

    async fn ask(&mut self, method: &Method, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
        let host = format!("{}:{}", self.address.host, self.address.port);
        // No page of another site asks, so the relay need not know the host name.
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::HOST, host).header("sec-fetch-site", "none");
        let response = self.connection.ask(request.body(Full::default())?).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| anyhow!("the answer cannot be read: {error}"))?;
        Ok((status, body.to_bytes()))
    }

    /// Fetches JSON.
    ///
    /// # Errors
    ///
    /// [`Missing`] if the relay has no such client or history.
    pub(super) async fn json(&mut self, path: &str) -> anyhow::Result<Json> {
        let answer = self.send(Method::GET, path).await?;
        self.parse(path, answer)
    }

    /// Fetches JSON; `null` if the relay is too old to have it.
    pub(super) async fn json_or_null(&mut self, path: &str) -> anyhow::Result<Json> {
        match self.send(Method::GET, path).await? {
            Answer::NoSuchPage => Ok(Json::Null),
            answer => self.parse(path, answer),
        }
    }

    /// Gives an order, and returns the relay's JSON.
    ///
    /// # Errors
    ///
    /// [`Missing`] if there is nothing to decide on.
    pub(super) async fn post(&mut self, path: &str) -> anyhow::Result<Json> {
        let answer = self.send(Method::POST, path).await?;
        self.parse(path, answer)
    }

    /// Fetches a text.
    pub(super) async fn text(&mut self, path: &str) -> anyhow::Result<String> {
        let answer = self.send(Method::GET, path).await?;
        Ok(String::from_utf8_lossy(&self.found(path, answer)?).into_owned())
    }

    /// Returns the relay's reason if clients should not be sent to it.
    pub(super) async fn ready(&mut self) -> anyhow::Result<Result<(), String>> {
        match self.send(Method::GET, "/ready").await? {
            Answer::Unavailable(reason) => Ok(Err(reason)),
            answer => self.found("/ready", answer).map(|_| Ok(())),
        }
    }

    fn parse(&self, path: &str, answer: Answer) -> anyhow::Result<Json> {
        let page = || format!("{}{path} is no JSON; is this the admin address of a relay?", self.address);
        serde_json::from_slice(&self.found(path, answer)?).with_context(page)
    }

    fn found(&self, path: &str, answer: Answer) -> anyhow::Result<Bytes> {
        let (address, page) = (&self.address, path.split('?').next().unwrap_or_default());
        match answer {
            Answer::Found(body) => Ok(body),
            Answer::Unavailable(words) => bail!("{address}{page} answered 503: {words}"),
            Answer::NoSuchPage => bail!(
                "the relay at {address} has no {page}: it is older than this command; use the `deltafan` that it was \
                 started with"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_in_cleartext() {
        let read = |text: &str| AdminAddress::from_str(text).map(|address| address.to_string());
        assert_eq!(read("http://127.0.0.1:15000").as_deref(), Ok("http://127.0.0.1:15000"));
        assert_eq!(read("http://[::1]:15000/").as_deref(), Ok("http://[::1]:15000"));
        assert_eq!(read("http://relay").as_deref(), Ok("http://relay:80"));
        for (text, reason) in [
            ("127.0.0.1:15000", "scheme is missing"),
            ("https://relay:15000", "no TLS"),
            ("unix:/run/relay", "URI"),
            ("ftp://relay", "HTTP only"),
            ("http://relay:15000/clients", "chooses the path"),
            ("", "no URI"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.to_string().contains(reason), "{text}: {error}");
            assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
        }
    }
}
