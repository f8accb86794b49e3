//! Address of a server, and connecting to it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use deltafan_transport::dial::{Target, dial};
use deltafan_transport::stream::Transport;
use deltafan_transport::tls::client::ClientFiles;
use deltafan_transport::tls::diagnosis::Settings;
use deltafan_transport::tls::options::TlsOptions;
use tonic::transport::{Channel, Endpoint};

use super::conversation_end::Ended;

#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// With a placeholder for the address of a Unix socket.
    pub(super) endpoint: Endpoint,
    pub(super) target: Target,
    /// As the user wrote it.
    pub(crate) uri: String,
}

impl Server {
    /// Server at `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. Reads the files of TLS.
    pub(crate) fn new(uri: String, tls: TlsOptions, connect_timeout: Duration) -> anyhow::Result<Self> {
        let transport = Transport { connect_timeout, ..Transport::default() };
        let secure = uri.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        if tls != TlsOptions::default() && !secure {
            bail!("the options for certificates need TLS, and {uri} has none; use https://HOST:PORT");
        }
        if let Some(path) = uri.strip_prefix("unix:") {
            let (endpoint, target) = (transport.endpoint("http://localhost")?, Target::Unix(path.into()));
            return Ok(Self { endpoint, target, uri });
        }
        let endpoint = transport.endpoint(&uri)?;
        let target = if secure {
            let files = ClientFiles::new(tls, endpoint.uri())?;
            Target::Tls(Arc::new(files.set_by(Settings::FLAGS).read()?))
        } else {
            Target::Cleartext
        };
        Ok(Self { endpoint, target, uri })
    }

    /// Connects for gRPC.
    pub(crate) async fn connect(&self) -> Result<Channel, Ended> {
        dial(self.endpoint.clone(), self.target.clone()).await.map_err(|why| self.no_connection(&why))
    }

    pub(super) fn no_connection(&self, why: &str) -> Ended {
        Ended::NoConnection(format!("could not connect to {}: {why}", self.uri))
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.endpoint.get_connect_timeout().unwrap_or(Duration::MAX)
    }
}
