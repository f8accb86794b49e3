//! Variables of the environment that switch traces on, as OpenTelemetry defines them. All others are read by its SDK.

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// First of these variables that is set.
fn first_of(
    names: &[&'static str],
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| Some((*name, variable(name).filter(|value| !value.is_empty())?)))
}

/// Collector that spans are sent to, if one is named, with the variable.
pub(super) fn endpoint(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    first_of(&ENDPOINTS, variable)
}

/// Endpoint without the credentials that may be in it.
pub(super) fn shown(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
}

/// Whether traces are asked for. An error says why they cannot be had.
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
    if !uri.starts_with("http://") {
        let uri = shown(&uri);
        return Err(format!(
            "{name} is `{uri}`; set it to http://HOST:4317, as no other scheme is supported"
        ));
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
        for uri in ["https://user:word@collector:4317", "collector:4317", "not a uri %%"] {
            let error = wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", uri)]).unwrap_err();
            assert!(error.contains("set it to http://HOST:4317") && !error.contains("word"), "{error}");
        }
    }
}
