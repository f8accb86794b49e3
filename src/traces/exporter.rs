//! Export of spans: OTLP over gRPC, in batches, on a thread of the SDK.
//!
//! Counts spans by the result of their export, and logs faults with a limit.
//!
//! Owns the variables of OpenTelemetry that switch traces on; its SDK reads all others. Certificate files are read for each
//! connection to the collector, since they may be renewed.

use std::time::{Duration, Instant};

use http::Uri;
use hyper_util::rt::TokioIo;
use opentelemetry_otlp::{
    OTEL_EXPORTER_OTLP_TIMEOUT, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, SpanExporter as OtlpExporter,
    WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::BoxError;

use crate::telemetry::{self, LogThrottle};
use crate::tls::client::ClientFiles;
use crate::tls::diagnosis::{Http, Settings};
use crate::tls::options::{CertificateFiles, TlsOptions};

/// Makes and exports spans, as configured in the environment.
pub(super) fn provider(variable: impl Fn(&str) -> Option<String>) -> Result<SdkTracerProvider, String> {
    let uri = endpoint(&variable).map_or_else(String::new, |(_, uri)| uri);
    let mut exporter = OtlpExporter::builder().with_tonic();
    if is_secure(&uri) {
        exporter = exporter.with_channel(channel(&uri, &variable)?);
    }
    let exporter = exporter.build().map_err(|error| error.to_string())?;
    let endpoint = shown(&uri);
    tracing::info!(endpoint, "sending traces of changes to an OpenTelemetry collector");
    let exporter = ReportingExporter { exporter, endpoint, throttle: LogThrottle::default() };
    let mut resource = Resource::builder();
    let is_named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    if !is_named {
        resource = resource.with_service_name("deltafan");
    }
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build())
}

#[derive(Debug)]
struct ReportingExporter {
    exporter: OtlpExporter,
    endpoint: String,
    throttle: LogThrottle,
}

impl SpanExporter for ReportingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        let end = if result.is_ok() { "exported" } else { "failed" };
        telemetry::count(telemetry::TRACE_SPANS, ("result", end), spans as u64);
        let endpoint = &*self.endpoint;
        match &result {
            Ok(()) => {
                if let Some(suppressed) = self.throttle.over(()) {
                    tracing::info!(endpoint, suppressed, "the OpenTelemetry collector takes traces again");
                }
            }
            Err(error) => {
                if let Some(suppressed) = self.throttle.say((), Instant::now()) {
                    tracing::warn!(
                        endpoint,
                        %error,
                        spans,
                        suppressed,
                        "the OpenTelemetry collector does not take traces, which are lost; clients are served as before"
                    );
                }
            }
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const AUTHORITIES: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE";
const KEY: &str = "OTEL_EXPORTER_OTLP_CLIENT_KEY";

// The variable for traces only comes first.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const AUTHORITY_FILES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", AUTHORITIES];
const CERTIFICATE_FILES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", CERTIFICATE];
const KEY_FILES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", KEY];

fn first_of(
    names: &[&'static str],
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| Some((*name, variable(name).filter(|value| !value.is_empty())?)))
}

/// Collector in the environment, with its variable.
fn endpoint(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    first_of(&ENDPOINTS, variable)
}

/// How to verify a collector at `https`, and our certificate.
fn tls(variable: impl Fn(&str) -> Option<String>) -> Result<TlsOptions, String> {
    let file = |names: &[&'static str]| first_of(names, &variable).map(|(_, path)| path.into());
    let own = match (file(&CERTIFICATE_FILES), file(&KEY_FILES)) {
        (Some(cert_file), Some(key_file)) => Some(CertificateFiles { cert_file, key_file }),
        (None, None) => None,
        (Some(_), None) => return Err(format!("{CERTIFICATE} is of no use without {KEY}; set both or none")),
        (None, Some(_)) => return Err(format!("{KEY} is of no use without {CERTIFICATE}; set both or none")),
    };
    Ok(TlsOptions { ca_file: file(&AUTHORITY_FILES), own, ..TlsOptions::default() })
}

fn is_secure(endpoint: &str) -> bool {
    endpoint.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

/// Endpoint without credentials.
fn shown(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
}

/// An error says why there can be no traces.
pub(super) fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> Result<bool, String> {
    let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let Some((name, uri)) = endpoint(&variable).filter(|_| !is_disabled) else { return Ok(false) };
    match first_of(&["OTEL_TRACES_EXPORTER"], &variable) {
        Some((_, exporter)) if exporter == "none" => return Ok(false),
        Some((name, exporter)) if exporter != "otlp" => {
            return Err(format!("{name} is `{exporter}`; set it to otlp or none"));
        }
        _ => {}
    }
    if !uri.starts_with("http://") && !is_secure(&uri) {
        let uri = shown(&uri);
        return Err(format!("{name} is `{uri}`; set it to http://HOST:4317, or https://HOST:4317 for TLS"));
    }
    match first_of(&PROTOCOLS, &variable) {
        Some((name, protocol)) if protocol != "grpc" => Err(format!(
            "{name} is `{protocol}`; set it to grpc, and the endpoint to the collector's port for that (4317)"
        )),
        _ => Ok(true),
    }
}

const VARIABLES: Settings =
    Settings { authorities: AUTHORITIES, certificate: CERTIFICATE, key: KEY, name: ENDPOINT };
/// Default of OpenTelemetry for an export.
const USUAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Channel to a collector; connects when spans are due.
pub(super) fn channel(uri: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(uri.to_owned()).map_err(|error| error.to_string())?;
    let files = ClientFiles::new(tls(&variable)?, endpoint.uri());
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
    Ok(tls.connect(socket, Http::Two).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    fn wanted(set: &[(&str, &str)]) -> Result<bool, String> {
        is_wanted(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn an_endpoint_switches_traces_on() {
        assert_eq!(wanted(&[]), Ok(false));
        assert_eq!(wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]), Ok(false));
        assert_eq!(wanted(&[ON]), Ok(true));
        assert_eq!(wanted(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a:4317")]), Ok(true));
    }

    #[test]
    fn the_switches_of_opentelemetry_switch_them_off() {
        assert_eq!(wanted(&[ON, ("OTEL_SDK_DISABLED", "TRUE")]), Ok(false));
        assert_eq!(wanted(&[ON, ("OTEL_SDK_DISABLED", "false")]), Ok(true));
        assert_eq!(wanted(&[ON, ("OTEL_TRACES_EXPORTER", "none")]), Ok(false));
        assert_eq!(wanted(&[ON, ("OTEL_TRACES_EXPORTER", "otlp")]), Ok(true));
    }

    #[test]
    fn what_the_relay_cannot_do_is_an_error_with_the_remedy() {
        let error = wanted(&[ON, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).unwrap_err();
        assert!(error.contains("OTEL_EXPORTER_OTLP_PROTOCOL") && error.contains("grpc"), "{error}");
        let of_traces = [
            ON,
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ];
        assert_eq!(wanted(&of_traces), Ok(true));
        assert!(wanted(&[ON, ("OTEL_TRACES_EXPORTER", "zipkin")]).is_err());
        for uri in ["grpc://user:word@collector:4317", "collector:4317", "not a uri %%"] {
            let error = wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", uri)]).unwrap_err();
            assert!(error.contains("set it to http://HOST:4317") && !error.contains("word"), "{error}");
        }
    }

    #[test]
    fn files_of_tls_are_named_by_the_variables_of_opentelemetry() {
        let files = |set: &[(&str, &str)]| {
            tls(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317")]), Ok(true));
        assert_eq!(files(&[]), Ok(TlsOptions::default()));
        let own = [
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "own.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "own.key"),
        ];
        let all = [
            own[0],
            own[1],
            (AUTHORITIES, "ca.pem"),
            ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "traces.pem"),
        ];
        let expected = TlsOptions {
            ca_file: Some("traces.pem".into()),
            own: Some(CertificateFiles { cert_file: "own.pem".into(), key_file: "own.key".into() }),
            ..TlsOptions::default()
        };
        assert_eq!(files(&all), Ok(expected));
        for [one, other] in [own, [own[1], own[0]]] {
            let error = files(&[one]).unwrap_err();
            assert!(error.starts_with(one.0) && error.contains(other.0), "{error}");
        }
    }
}
