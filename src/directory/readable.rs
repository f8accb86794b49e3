//! JSON, YAML and proto text into the binary form. Knows the descriptors, and which message a text is; what the
//! message holds is `decode`'s affair.
//!
//! Invariants: depth is bounded before anything recursive runs · equal texts give equal bytes (`canonical`).

use prost_reflect::{DeserializeOptions, DynamicMessage};
use serde_json::Value;

use super::{
    canonical,
    document::{DISCOVERY_RESPONSE, DecodeError, Document, Format},
};
use crate::descriptors::{ANY, DescriptorError, MAX_DEPTH, message, message_name};

/// Limit on the events of a YAML file. The library's own bounds are made for settings typed by people; the size of the file, which is
/// bounded, bounds these too, save for aliases, which keep the library's.
const MAX_YAML_EVENTS: usize = 64 << 20;

const NODE: &str = "envoy.config.core.v3.Node";

pub(super) fn json(bytes: &[u8]) -> Result<Document, DecodeError> {
    from_value(&json_value(bytes)?)
}

pub(super) fn yaml(bytes: &[u8]) -> Result<Document, DecodeError> {
    from_value(&yaml_value(bytes)?)
}

/// See [`super::read_node`].
pub(super) fn node(format: Format, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let value = match format {
        Format::Json => json_value(bytes)?,
        _ => yaml_value(bytes)?,
    };
    // A Node has no field of this name; bootstraps of Envoy and of gRPC have.
    let node = value.get("node").unwrap_or(&value);
    if !node.is_object() {
        return Err(DecodeError::Syntax(format!(
            "expected an {NODE}, or a bootstrap with a `node`, as an object"
        )));
    }
    let node = parse(NODE, node).map_err(|reason| {
        let what =
            if value.get("node").is_some() { "its `node`" } else { "it has no `node`, and by itself it" };
        DecodeError::Syntax(format!("{what} is not a valid {NODE}: {reason}"))
    })?;
    Ok(canonical::encode(&node)?)
}

/// See [`super::node_json`].
pub(super) fn node_json(encoded: &[u8]) -> Result<Value, DecodeError> {
    let show = || {
        let descriptor = message(NODE).map_err(|error| error.to_string())?;
        let node = DynamicMessage::decode(descriptor, encoded).map_err(|error| error.to_string())?;
        serde_json::to_value(&node).map_err(|error| error.to_string())
    };
    show().map_err(|reason: String| DecodeError::Syntax(format!("not a valid {NODE}: {reason}")))
}

/// See [`super::read_response`].
pub(super) fn response(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let value = json_value(bytes)?;
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let response = DynamicMessage::deserialize_with_options(message(DISCOVERY_RESPONSE)?, &value, &options);
    let response = response.map_err(|error| match unknown_type(&value) {
        Some(unknown) => unknown.into(),
        None => DecodeError::Syntax(format!("not a DiscoveryResponse: {error}")),
    })?;
    Ok(canonical::encode(&response)?)
}

fn json_value(bytes: &[u8]) -> Result<Value, DecodeError> {
    serde_json::from_slice(bytes).map_err(|error| DecodeError::Syntax(format!("not JSON: {error}")))
}

fn yaml_value(bytes: &[u8]) -> Result<Value, DecodeError> {
    let options = serde_saphyr::options! {
        // YAML 1.2: `no` and `on` are words, as in a host name.
        strict_booleans: true,
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_events: MAX_YAML_EVENTS,
            max_nodes: MAX_YAML_EVENTS,
        },
    };
    serde_saphyr::from_slice_with_options(bytes, options)
        .map_err(|error| DecodeError::Syntax(format!("not YAML: {error}")))
}

pub(super) fn text(bytes: &[u8]) -> Result<Document, DecodeError> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| DecodeError::Syntax(format!("not text: {error}")))?;
    let outline = outline(text)?;
    let response = DynamicMessage::parse_text_format(message(DISCOVERY_RESPONSE)?, text);
    match response {
        Ok(_) if outline.blank => Err(DecodeError::Empty),
        Ok(response) => Ok(Document::Response(canonical::encode(&response)?)),
        Err(error) => match DynamicMessage::parse_text_format(message(ANY)?, text) {
            Ok(any) => Ok(Document::Any(canonical::encode(&any)?)),
            Err(any_error) => {
                // `[` begins the expanded form of an Any, and nothing else at the top.
                let (shape, error) =
                    if outline.begins_with_bracket { (ANY, any_error) } else { (DISCOVERY_RESPONSE, error) };
                Err(DecodeError::Syntax(format!("not the text of a {shape}: {error}")))
            }
        },
    }
}

fn from_value(value: &Value) -> Result<Document, DecodeError> {
    let Value::Object(fields) = value else {
        return Err(DecodeError::Syntax(
            "expected an object: a DiscoveryResponse, or a resource with \"@type\"".to_owned(),
        ));
    };
    if fields.contains_key("@type") {
        let any = parse(ANY, value).map_err(|reason| explain(value, reason))?;
        return Ok(Document::Any(canonical::encode(&any)?));
    }
    let response = parse(DISCOVERY_RESPONSE, value).map_err(|reason| {
        // The message comes without a place. Each resource on its own shows whose it is.
        let resources = fields.get("resources").and_then(Value::as_array).into_iter().flatten().enumerate();
        let mut failed =
            resources.filter_map(|(index, resource)| Some((index, resource, parse(ANY, resource).err()?)));
        match failed.next() {
            Some((index, resource, reason)) => {
                DecodeError::In { index, source: Box::new(explain(resource, reason)) }
            }
            None => DecodeError::Syntax(format!("not a DiscoveryResponse: {reason}")),
        }
    })?;
    Ok(Document::Response(canonical::encode(&response)?))
}

fn parse(type_name: &str, value: &Value) -> Result<DynamicMessage, String> {
    let descriptor = message(type_name).map_err(|error| error.to_string())?;
    DynamicMessage::deserialize(descriptor, value).map_err(|error| error.to_string())
}

/// Says which type a resource that does not parse has, or which type in it nobody knows.
fn explain(resource: &Value, reason: String) -> DecodeError {
    if let Some(error) = unknown_type(resource) {
        return error.into();
    }
    match resource.get("@type").and_then(Value::as_str) {
        Some(type_url) => DecodeError::Syntax(format!("not a valid {type_url}: {reason}")),
        None => DecodeError::Syntax(format!("a resource needs \"@type\": {reason}")),
    }
}

/// The first `@type` that the descriptors do not have. Only asked about what failed: a struct of the user's own may
/// well have a key of that name.
fn unknown_type(value: &Value) -> Option<DescriptorError> {
    match value {
        Value::Object(fields) => {
            let type_url = fields.get("@type").and_then(Value::as_str);
            let own = type_url.and_then(|type_url| message_name(type_url).and_then(message).err());
            own.or_else(|| fields.values().find_map(unknown_type))
        }
        Value::Array(items) => items.iter().find_map(unknown_type),
        _ => None,
    }
}

struct Outline {
    blank: bool,
    begins_with_bracket: bool,
}

/// Looks over proto text without parsing it: the parser recurses as deep as the text nests, so that is bounded
/// here.
fn outline(text: &str) -> Result<Outline, DecodeError> {
    let mut outline = Outline { blank: true, begins_with_bracket: false };
    let mut depth = 0_usize;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'#' => {
                bytes.find(|&byte| byte == b'\n');
                continue;
            }
            b'"' | b'\'' => {
                while let Some(inner) = bytes.next().filter(|&inner| inner != byte && inner != b'\n') {
                    if inner == b'\\' {
                        bytes.next();
                    }
                }
            }
            b'{' | b'<' | b'[' => depth += 1,
            b'}' | b'>' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(DescriptorError::TooDeep.into());
        }
        if outline.blank && !byte.is_ascii_whitespace() {
            outline.blank = false;
            outline.begins_with_bracket = byte == b'[';
        }
    }
    Ok(outline)
}
