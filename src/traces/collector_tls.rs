//! TLS connection to a collector. Certificate files are read for each connection, since they may be renewed.

use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use opentelemetry_otlp::{OTEL_EXPORTER_OTLP_TIMEOUT, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::BoxError;

use super::otel_environment;
use crate::tls::client::ClientFiles;
use crate::tls::diagnosis::Settings;

const VARIABLES: Settings = Settings {
    authorities: otel_environment::AUTHORITIES,
    certificate: otel_environment::CERTIFICATE,
    key: otel_environment::KEY,
    name: otel_environment::ENDPOINT,
};
/// Default of OpenTelemetry for an export.
const USUAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Channel to a collector; connects when spans are due.
pub(super) fn channel(uri: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(uri.to_owned()).map_err(|error| error.to_string())?;
    let files = ClientFiles::new(otel_environment::tls(&variable)?, endpoint.uri());
    let files = files.map_err(|error| error.to_string())?.set_by(VARIABLES);
    // Reports a fault at the start.
    files.read().map_err(|error| error.to_string())?;
    let milliseconds = |name| variable(name)?.parse().ok().map(Duration::from_millis);
    let timeout =
        [OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT].into_iter().find_map(milliseconds);
    let timeout = timeout.unwrap_or(USUAL_TIMEOUT);
    let connector = tower::service_fn(move |uri: Uri| {
        let files = files.clone();
        async move { Ok::<_, BoxError>(TokioIo::new(connect(&uri, files).await?)) }
    });
    Ok(endpoint.timeout(timeout).connect_timeout(timeout).connect_with_connector_lazy(connector))
}

async fn connect(uri: &Uri, files: ClientFiles) -> Result<TlsStream<TcpStream>, BoxError> {
    let tls = tokio::task::spawn_blocking(move || files.read()).await??;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let socket = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await?;
    Ok(tls.connect(socket).await?)
}
