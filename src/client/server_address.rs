//! Address of a server, and connecting to it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tonic::transport::{Channel, Endpoint};

use super::conversation_end::Ended;
use crate::tls::client::ClientFiles;
use crate::tls::diagnosis::Settings;
use crate::tls::options::TlsOptions;
use crate::upstream::{Target, Transport, dial};

#[derive(Clone, Debug)]
pub struct Server {
    endpoint: Endpoint,
    target: Target,
    /// As the user wrote it.
    uri: String,
}

impl Server {
    /// Server at `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. Reads the files of TLS.
    ///
    /// # Errors
    ///
    /// Malformed address, options of TLS for a server without TLS, or a file that cannot be used.
    pub fn new(uri: String, tls: Option<TlsOptions>, connect_timeout: Duration) -> anyhow::Result<Self> {
        let transport = Transport { connect_timeout, ..Transport::default() };
        let secure = uri.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        if tls.is_some() && !secure {
            bail!("the options for certificates need TLS, and {uri} has none; use https://HOST:PORT");
        }
        if let Some(path) = uri.strip_prefix("unix:") {
            let (endpoint, target) = (transport.endpoint("http://localhost")?, Target::Unix(path.into()));
            return Ok(Self { endpoint, target, uri });
        }
        let endpoint = transport.endpoint(&uri)?;
        let target = if secure {
            let files = ClientFiles::new(tls.unwrap_or_default(), endpoint.uri())?;
            Target::Tls(Arc::new(files.set_by(Settings::FLAGS).read()?))
        } else {
            Target::Cleartext
        };
        Ok(Self { endpoint, target, uri })
    }

    /// Connects for gRPC.
    ///
    /// # Errors
    ///
    /// Stage that failed, its cause and the remedy.
    pub(crate) async fn connect(&self) -> Result<Channel, Ended> {
        dial(self.endpoint.clone(), self.target.clone()).await.map_err(|why| self.no_connection(&why))
    }

    pub(super) fn no_connection(&self, why: &str) -> Ended {
        Ended::NoConnection(format!("could not connect to {}: {why}", self.uri))
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// A placeholder for a Unix socket.
    pub(super) fn address(&self) -> &http::Uri {
        self.endpoint.uri()
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.endpoint.get_connect_timeout().unwrap_or(Duration::MAX)
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }
}
