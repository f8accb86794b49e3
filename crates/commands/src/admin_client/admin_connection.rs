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

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why| Err(format!("{why}; use http://HOST:PORT, with the port of `admin.address`"));
        let Ok(uri) = Uri::from_str(text) else { return wrong("this is no URI") };
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return wrong("the admin address speaks no TLS"),
            Some(_) => return wrong("the admin address speaks HTTP only"),
            None => return wrong("the scheme is missing"),
        }
        if uri.path() != "/" || uri.query().is_some() {
            return wrong("the command chooses the path itself");
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

    /// Returns the body of a 200, or the reason of a 503.
    async fn send(&mut self, method: Method, path: &str) -> anyhow::Result<Result<Bytes, String>> {
        let Self { address, patience, .. } = self;
        let (address, patience) = (address.clone(), *patience);
        let answer = timeout(patience, self.ask(&method, path)).await;
        let answer = answer.map_err(|_| anyhow!("{address}{path} has not answered within {patience:?}"))?;
        let (status, body) = answer.with_context(|| {
            format!("{address} does not answer in HTTP; is it the relay's `admin.address`, and not an xDS listener?")
        })?;
        let (words, is_order) = (in_one_line(&body), method == Method::POST);
        match status {
            StatusCode::OK => Ok(Ok(body)),
            StatusCode::SERVICE_UNAVAILABLE => Ok(Err(words)),
            StatusCode::BAD_REQUEST => bail!("{address} refused the request: {words}"),
            _ if words.starts_with(NO_PAGE) || (is_order && status == StatusCode::METHOD_NOT_ALLOWED) => {
                bail!(
                    "the relay at {address} has no {}: it is older than this command; use the `deltafan` that it was started with",
                    page(path)
                )
            }
            StatusCode::NOT_FOUND if is_order && words != NO_PATH => Err(Missing(words).into()),
            StatusCode::NOT_FOUND if [NO_CLIENT, NO_HISTORY].iter().any(|no| words.starts_with(no)) => {
                Err(Missing(words).into())
            }
            StatusCode::NOT_FOUND => bail!(
                "{address}{path} does not exist: this is no admin address of a relay, maybe one of its xDS listeners; use the \
                 port of `admin.address` (15000 by default)"
            ),
            _ => bail!("{address}{path} answered {status}: {words}"),
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

    async fn found(&mut self, method: Method, path: &str) -> anyhow::Result<Bytes> {
        let answer = self.send(method, path).await?;
        answer.map_err(|words| anyhow!("{}{} answered 503: {words}", self.address, page(path)))
    }

    /// Gives an order by POST, or fetches JSON by GET.
    ///
    /// # Errors
    ///
    /// [`Missing`] if the relay has no such client or history, or there is nothing to decide on.
    pub(super) async fn json(&mut self, method: Method, path: &str) -> anyhow::Result<Json> {
        let body = self.found(method, path).await?;
        let is_none = || format!("{}{path} is no JSON; is this the admin address of a relay?", self.address);
        serde_json::from_slice(&body).with_context(is_none)
    }

    /// Fetches JSON; an error is as of [`Self::json`].
    pub(super) async fn get(&mut self, path: &str) -> anyhow::Result<Json> {
        self.json(Method::GET, path).await
    }

    /// Fetches a text.
    pub(super) async fn text(&mut self, path: &str) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&self.found(Method::GET, path).await?).into_owned())
    }

    /// Returns the relay's reason if clients should not be sent to it.
    pub(super) async fn ready(&mut self) -> anyhow::Result<Result<(), String>> {
        Ok(self.send(Method::GET, "/ready").await?.map(drop))
    }
}

/// Without a query.
fn page(path: &str) -> &str {
    path.split('?').next().unwrap_or_default()
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
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("http://HOST:PORT"), "{error}");
        }
    }
}
