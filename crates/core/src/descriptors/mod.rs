//! Descriptors of Envoy's v3 API, and messages as JSON and in other forms of text.
//!
//! Owns the embedded descriptors and those that an operator adds. Knows nothing of the relay's own
//! types, and does no I/O. The embedded set (see `proto/README.md`) is unpacked at first use, so a
//! relay that speaks only gRPC never pays for it.
//!
//! Invariants: the embedded set decodes (a test checks it) · no input overflows the stack: more
//! than [`MAX_DEPTH`] nested messages, counted through every `Any`, are refused.

mod descriptor_sets;
mod document_fault;
mod redact;
pub mod text_formats;

use std::io::Read as _;
use std::sync::OnceLock;

use flate2::read::GzDecoder;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage as _, Value};

pub use descriptor_sets::{DescriptorSet, Descriptors, SetError};
pub use document_fault::near;

/// Protobuf's own default, but an `Any` does not start a new count.
pub const MAX_DEPTH: usize = 100;

pub const ANY: &str = "google.protobuf.Any";

static PACKED: &[u8] = include_bytes!("../../../../proto/descriptors.binpb.gz");
static POOL: OnceLock<DescriptorPool> = OnceLock::new();

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    #[error("type {0:?} is not among the descriptors of Envoy's v3 API, nor any that were added")]
    UnknownType(String),
    #[error("type URL {0:?} has no '/': expected type.googleapis.com/ and a message name")]
    BadTypeUrl(String),
    #[error("the bytes are not a valid {type_name}: {reason}")]
    Malformed { type_name: String, reason: String },
    #[error("messages nest deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("{type_name} has a value that JSON cannot show: {reason}")]
    NotShowable { type_name: String, reason: String },
}

/// The first call takes tens of milliseconds.
pub fn pool() -> &'static DescriptorPool {
    POOL.get_or_init(unpack)
}

/// Canonical proto3 JSON of an encoded `google.protobuf.Any`, with `@type`, nested ones included.
///
/// # Errors
///
/// [`DescriptorError`] if the type has no descriptor, or the bytes do not fit it.
pub fn any_to_json(any: &[u8]) -> Result<serde_json::Value, DescriptorError> {
    let any = read_any(pool(), any)?;
    serde_json::to_value(&any).map_err(|error| not_showable(&any, &error))
}

fn read_any(pool: &DescriptorPool, any: &[u8]) -> Result<DynamicMessage, DescriptorError> {
    let any = parse(&message_in(pool, ANY)?, any)?;
    check(&any, 0)?;
    Ok(any)
}

fn not_showable(any: &DynamicMessage, error: &serde_json::Error) -> DescriptorError {
    DescriptorError::NotShowable { type_name: any_type_url(any).to_owned(), reason: error.to_string() }
}

/// Descriptor of a message.
///
/// # Errors
///
/// [`DescriptorError::UnknownType`] for an unknown name.
pub fn message(name: &str) -> Result<MessageDescriptor, DescriptorError> {
    message_in(pool(), name)
}

fn message_in(pool: &DescriptorPool, name: &str) -> Result<MessageDescriptor, DescriptorError> {
    pool.get_message_by_name(name).ok_or_else(|| DescriptorError::UnknownType(name.to_owned()))
}

/// Full name of the message in a type URL.
///
/// # Errors
///
/// [`DescriptorError::BadTypeUrl`] for a URL without a slash.
pub fn message_name(type_url: &str) -> Result<&str, DescriptorError> {
    let name = type_url.rsplit_once('/').map(|(_, name)| name);
    name.ok_or_else(|| DescriptorError::BadTypeUrl(type_url.to_owned()))
}

/// Decodes the content of an `Any`.
///
/// # Errors
///
/// [`DescriptorError`] if the type has no descriptor, or the bytes do not fit it.
pub fn unpack_any(any: &DynamicMessage) -> Result<DynamicMessage, DescriptorError> {
    let name = message_name(any_type_url(any))?;
    let value = any.get_field_by_number(2);
    let value = value.as_deref().and_then(Value::as_bytes).map_or(&[][..], |value| &value[..]);
    parse(&message_in(any.descriptor().parent_pool(), name)?, value)
}

pub fn any_type_url(any: &DynamicMessage) -> &str {
    any.fields()
        .find(|(field, _)| field.number() == 1)
        .and_then(|(_, value)| value.as_str())
        .unwrap_or_default()
}

fn parse(descriptor: &MessageDescriptor, bytes: &[u8]) -> Result<DynamicMessage, DescriptorError> {
    DynamicMessage::decode(descriptor.clone(), bytes).map_err(|error| DescriptorError::Malformed {
        type_name: descriptor.full_name().to_owned(),
        reason: error.to_string(),
    })
}

/// The serializer follows nested `Any`s to any depth, and its error does not name the part.
fn check(message: &DynamicMessage, depth: usize) -> Result<(), DescriptorError> {
    if depth > MAX_DEPTH {
        return Err(DescriptorError::TooDeep);
    }
    if message.descriptor().full_name() == ANY {
        return check(&unpack_any(message)?, depth + 1);
    }
    check_numbers(message)?;
    message.fields().try_for_each(|(_, value)| check_value(value, depth + 1))
}

/// In well-known types the serializer writes `null` for a number that is not finite, which would be
/// read as no value.
fn check_numbers(message: &DynamicMessage) -> Result<(), DescriptorError> {
    let descriptor = message.descriptor();
    let is_finite = |value: &Value| match value {
        Value::F64(number) => number.is_finite(),
        Value::F32(number) => number.is_finite(),
        _ => true,
    };
    let is_concerned = descriptor.full_name().starts_with("google.protobuf.");
    if is_concerned && !message.fields().all(|(_, value)| is_finite(value)) {
        return Err(DescriptorError::NotShowable {
            type_name: descriptor.full_name().to_owned(),
            reason: "a number in it is not finite".to_owned(),
        });
    }
    Ok(())
}

fn check_value(value: &Value, depth: usize) -> Result<(), DescriptorError> {
    match value {
        Value::Message(message) => check(message, depth),
        Value::List(items) => items.iter().try_for_each(|item| check_value(item, depth)),
        Value::Map(entries) => entries.values().try_for_each(|value| check_value(value, depth)),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("it has more than {0} values")]
    TooMany(usize),
}

/// Checks depth and number of values of JSON or proto text before it is parsed: parsers recurse as deep as it nests.
///
/// All nesting needs a bracket. So one count of brackets covers messages, `Struct`, `Value`,
/// `ListValue` and `Any` in any mixture, without a second count inside (CVE-2026-0994). One pass, no
/// recursion, no memory. An invalid text may pass; the parser stops where it is invalid. That is
/// also where JSON has a comment or a quote of proto text.
pub(crate) fn check_bounds(text: &[u8], max_values: usize) -> Result<(), BoundsError> {
    let (mut depth, mut values) = (0_usize, 0_usize);
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'#' => _ = bytes.find(|&byte| byte == b'\n'),
            b'"' | b'\'' => {
                while let Some(inner) = bytes.next().filter(|&inner| inner != byte && inner != b'\n') {
                    if inner == b'\\' {
                        bytes.next();
                    }
                }
            }
            b'{' | b'<' | b'[' => {
                depth += 1;
                values += 1;
            }
            b'}' | b'>' | b']' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(BoundsError::TooDeep);
        }
        if values > max_values {
            return Err(BoundsError::TooMany(max_values));
        }
    }
    Ok(())
}

#[expect(clippy::expect_used, reason = "the bytes are part of the program, and a test decodes them")]
fn unpack() -> DescriptorPool {
    DescriptorPool::decode(shipped().as_slice()).expect("the embedded descriptors decode")
}

#[expect(clippy::expect_used, reason = "the bytes are part of the program, and a test decodes them")]
fn shipped() -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(PACKED).read_to_end(&mut bytes).expect("the embedded descriptors unpack");
    bytes
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::Any;
    use serde_json::json;

    use super::*;

    fn any(type_name: &str, value: Vec<u8>) -> Any {
        Any { type_url: format!("type.googleapis.com/{type_name}"), value }
    }

    fn from_json(value: &serde_json::Value) -> Vec<u8> {
        DynamicMessage::deserialize(message(ANY).unwrap(), value).unwrap().encode_to_vec()
    }

    #[test]
    fn the_embedded_set_has_the_types_of_every_discovery_service() {
        let start = std::time::Instant::now();
        assert!(pool().all_messages().len() > 1500);
        println!("decoded in {:?}", start.elapsed());
        for name in [
            "envoy.config.cluster.v3.Cluster",
            "envoy.config.endpoint.v3.ClusterLoadAssignment",
            "envoy.config.listener.v3.Listener",
            "envoy.config.route.v3.RouteConfiguration",
            "envoy.config.route.v3.ScopedRouteConfiguration",
            "envoy.config.route.v3.VirtualHost",
            "envoy.extensions.transport_sockets.tls.v3.Secret",
            "envoy.service.runtime.v3.Runtime",
            "envoy.config.core.v3.TypedExtensionConfig",
            "envoy.service.discovery.v3.DiscoveryResponse",
            "envoy.service.discovery.v3.Resource",
            "envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig",
            "xds.type.matcher.v3.Matcher",
            "google.rpc.Status",
        ] {
            assert!(message(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_cluster_with_tls_comes_back_as_the_json_it_was_made_from() {
        let shown = json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": "checkout",
            "connectTimeout": "0.250s",
            "transportSocket": {
                "name": "envoy.transport_sockets.tls",
                "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "sni": "checkout.example.com",
                },
            },
        });
        assert_eq!(any_to_json(&from_json(&shown)).unwrap(), shown);
    }

    #[test]
    fn typed_structs_come_back_as_the_json_they_were_made_from() {
        for type_name in ["xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"] {
            let shown = json!({
                "@type": format!("type.googleapis.com/{type_name}"),
                "typeUrl": "type.googleapis.com/acme.Filter",
                "value": {"rules": [{"header": "x-a", "any": {"of": [null, true, 1.5]}}], "": {}},
            });
            let any = from_json(&shown);
            assert_eq!(any_to_json(&any).unwrap(), shown);
            let mut written = Vec::new();
            Descriptors::default().write_json(&any, &mut written).unwrap();
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&written).unwrap(), shown);
        }
        // By the numbers of the protocol, and not only by ours.
        let bytes = b"\x0a\x03t/a\x12\x07\x0a\x05\x0a\x01k\x12\x00".to_vec();
        let any = any("xds.type.v3.TypedStruct", bytes).encode_to_vec();
        let shown = json!({
            "@type": "type.googleapis.com/xds.type.v3.TypedStruct", "typeUrl": "t/a", "value": {"k": null}
        });
        assert_eq!(any_to_json(&any).unwrap(), shown);
    }

    #[test]
    fn well_known_types_that_no_file_imports_are_shown_too() {
        let mask = |paths: &[&str]| {
            let mask =
                prost_types::FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() };
            any_to_json(&any("google.protobuf.FieldMask", mask.encode_to_vec()).encode_to_vec())
        };
        let type_url = "type.googleapis.com/google.protobuf.FieldMask";
        assert_eq!(mask(&["a.b", "c"]), Ok(json!({"@type": type_url, "value": "a.b,c"})));
        assert_eq!(
            mask(&["user_agent.build_version"]),
            Ok(json!({"@type": type_url, "value": "userAgent.buildVersion"}))
        );
        assert_eq!(mask(&[]), Ok(json!({"@type": type_url, "value": ""})));
        // JSON would read it back as another path.
        assert!(matches!(mask(&["userAgent"]), Err(DescriptorError::NotShowable { .. })));

        for name in ["Api", "Empty", "Enum", "Field", "Method", "Mixin", "Option", "SourceContext", "Type"] {
            assert!(message(&format!("google.protobuf.{name}")).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_error_names_the_unknown_type_however_deep_it_is() {
        let socket = prost_reflect::DynamicMessage::parse_text_format(
            message("envoy.config.cluster.v3.Cluster").unwrap(),
            r#"transport_socket { typed_config { type_url: "type.googleapis.com/acme.Tls" } }"#,
        );
        let cluster = any("envoy.config.cluster.v3.Cluster", socket.unwrap().encode_to_vec());
        assert_eq!(
            any_to_json(&cluster.encode_to_vec()),
            Err(DescriptorError::UnknownType("acme.Tls".to_owned()))
        );
    }

    #[test]
    fn malformed_bytes_and_a_missing_type_are_told() {
        assert!(matches!(any_to_json(&[0xff]), Err(DescriptorError::Malformed { .. })));
        assert!(matches!(any_to_json(&[]), Err(DescriptorError::BadTypeUrl(_))));
        let truncated = any("envoy.config.cluster.v3.Cluster", vec![0x0a, 9, b'x']).encode_to_vec();
        let error = any_to_json(&truncated).unwrap_err();
        assert!(error.to_string().contains("envoy.config.cluster.v3.Cluster"), "{error}");
    }

    #[test]
    fn a_number_that_would_be_shown_as_null_is_refused() {
        let fault = |type_name: &str, field: u8, bytes: &[u8]| {
            any_to_json(&any(type_name, [&[field], bytes].concat()).encode_to_vec())
        };
        let [nan, infinite] = [f64::NAN, f64::NEG_INFINITY].map(f64::to_le_bytes);
        for result in [
            fault("google.protobuf.DoubleValue", 0x09, &nan),
            fault("google.protobuf.Value", 0x11, &infinite),
            fault("google.protobuf.FloatValue", 0x0d, &f32::INFINITY.to_le_bytes()),
        ] {
            assert!(matches!(result, Err(DescriptorError::NotShowable { .. })), "{result:?}");
        }
        assert!(fault("google.protobuf.DoubleValue", 0x09, &1.5_f64.to_le_bytes()).is_ok());
    }

    #[test]
    fn nesting_is_bounded_through_anys_and_structs() {
        let nested = |levels: usize| {
            let mut inner = any("google.protobuf.Empty", Vec::new());
            for _ in 0..levels {
                inner = any(ANY, inner.encode_to_vec());
            }
            inner.encode_to_vec()
        };
        assert!(any_to_json(&nested(MAX_DEPTH / 2 - 1)).is_ok());
        assert_eq!(any_to_json(&nested(MAX_DEPTH * 20)), Err(DescriptorError::TooDeep));

        let mut value = json!("x");
        for _ in 0..MAX_DEPTH / 2 - 4 {
            value = json!([value]);
        }
        let list = json!({"@type": "type.googleapis.com/google.protobuf.Value", "value": value});
        assert_eq!(any_to_json(&from_json(&list)).unwrap(), list);
    }
}
