//! HTTP to the admin address, with errors that name the remedy.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use deltafan_transport::dial::Target;
use deltafan_transport::terminal::in_one_line;
use http::uri::Authority;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use serde_json::Value as Json;
use tokio::time::timeout;

use crate::http1_client::{Connection, LARGEST};

/// Admin address of a relay: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminAddress(pub(super) Uri);

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_bare =
            |uri: &Uri| uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none();
        let uri = Uri::from_str(text).ok().filter(is_bare);
        let wrong = "use http://HOST:PORT, with the port of `admin.address`; it speaks no TLS, and the command chooses the path";
        uri.map(Self).ok_or_else(|| wrong.to_owned())
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
        let connection = Connection::open(&Target::Cleartext, &address.0, patience).await;
        let connection = connection.map_err(anyhow::Error::msg).with_context(|| {
            format!("could not connect to {address}; does the relay run, and is this its `admin.address` (--admin)?")
        })?;
        Ok(Self { address, connection, patience })
    }

    /// Gives an order by POST, or fetches JSON by GET.
    ///
    /// # Errors
    ///
    /// [`Missing`] if the relay has no such client or history, or there is nothing to decide on.
    pub(super) async fn json(&mut self, method: Method, path: &str) -> anyhow::Result<Json> {
        let (address, patience) = (self.address.clone(), self.patience);
        let answer = timeout(patience, self.ask(&method, path)).await;
        let answer = answer.map_err(|_| anyhow!("{address}{path} has not answered within {patience:?}"))?;
        let (status, body) = answer.with_context(|| {
            format!("{address} does not answer in HTTP; is it the relay's `admin.address`, and not an xDS listener?")
        })?;
        let (words, is_order) = (in_one_line(&body), method == Method::POST);
        let begins = |with: &[&str]| with.iter().any(|with| words.starts_with(with));
        match status {
            StatusCode::OK => serde_json::from_slice(&body).with_context(|| {
                format!("{address}{path} is no JSON; is this the admin address of a relay?")
            }),
            StatusCode::BAD_REQUEST => bail!("{address} refused the request: {words}"),
            _ if begins(&["no such page"]) || (is_order && status == StatusCode::METHOD_NOT_ALLOWED) => {
                bail!(
                    "the relay at {address} has no {}: it is older than this command; use the `deltafan` that it was started with",
                    path.split('?').next().unwrap_or_default()
                )
            }
            // An xDS listener has no such path.
            StatusCode::NOT_FOUND if is_order && !begins(&["no such path"]) => Err(Missing(words).into()),
            StatusCode::NOT_FOUND if begins(&["no such client", "no history"]) => Err(Missing(words).into()),
            StatusCode::NOT_FOUND => bail!(
                "{address}{path} does not exist: this is no admin address of a relay, maybe one of its xDS listeners; use the \
                 port of `admin.address` (15000 by default)"
            ),
            _ => bail!("{address}{path} answered {status}: {words}"),
        }
    }

    async fn ask(&mut self, method: &Method, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
        // No page of another site asks, so the relay need not know the host name.
        let request = Request::builder().method(method).uri(path).header("sec-fetch-site", "none");
        let host = self.address.0.authority().map_or("", Authority::as_str);
        let request = request.header(header::HOST, host);
        let response = self.connection.ask(request.body(Full::default())?).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| anyhow!("the answer cannot be read: {error}"))?;
        Ok((status, body.to_bytes()))
    }

    /// Fetches JSON; an error is as of [`Self::json`].
    pub(super) async fn get(&mut self, path: &str) -> anyhow::Result<Json> {
        self.json(Method::GET, path).await
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
        assert_eq!(read("http://relay").as_deref(), Ok("http://relay"));
        for text in [
            "127.0.0.1:15000",
            "https://relay:15000",
            "unix:/run/relay",
            "ftp://relay",
            "http://relay:15000/clients",
            "http://relay:15000/?a",
            "",
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains("http://HOST:PORT"), "{error}");
        }
    }
}
