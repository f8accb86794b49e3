//! Variables of OpenTelemetry that switch traces on. Its SDK reads all others.

use crate::tls::options::{CertificateFiles, TlsOptions};

pub(super) const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(super) const AUTHORITIES: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
pub(super) const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE";
pub(super) const KEY: &str = "OTEL_EXPORTER_OTLP_CLIENT_KEY";

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
pub(super) fn endpoint(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    first_of(&ENDPOINTS, variable)
}

/// How to verify a collector at `https`, and our certificate.
pub(super) fn tls(variable: impl Fn(&str) -> Option<String>) -> Result<TlsOptions, String> {
    let file = |names: &[&'static str]| first_of(names, &variable).map(|(_, path)| path.into());
    let own = match (file(&CERTIFICATE_FILES), file(&KEY_FILES)) {
        (Some(cert_file), Some(key_file)) => Some(CertificateFiles { cert_file, key_file }),
        (None, None) => None,
        (Some(_), None) => return Err(format!("{CERTIFICATE} is of no use without {KEY}; set both or none")),
        (None, Some(_)) => return Err(format!("{KEY} is of no use without {CERTIFICATE}; set both or none")),
    };
    Ok(TlsOptions { ca_file: file(&AUTHORITY_FILES), own, ..TlsOptions::default() })
}

pub(super) fn is_secure(endpoint: &str) -> bool {
    endpoint.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

/// Endpoint without credentials.
pub(super) fn shown(endpoint: &str) -> String {
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
