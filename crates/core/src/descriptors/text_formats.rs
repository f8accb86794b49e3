//! Converts JSON, YAML and proto text to binary. Knows the descriptors and the type of a text; `file_decoder`
//! judges the content.
//!
//! Invariants:
//! - Depth is bounded before anything recursive runs.
//! - Equal texts give equal bytes (`encode`).
//! - No error quotes a value, which may be a private key.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use prost::Message as _;
use prost_reflect::text_format::ParseError;
use prost_reflect::{
    DeserializeOptions, DynamicMessage, MapKey, MessageDescriptor, ReflectMessage as _, Value as ProtoValue,
};
use serde_json::Value;
use serde_path_to_error::Segment;

use super::document_fault;
use super::{ANY, DescriptorError, MAX_DEPTH, any_type_url, check_bounds, message, unpack_any};
use crate::resource::wire::put_bytes;

/// Limit on the events of a YAML file. The library's own bounds suit hand-written settings. File size bounds
/// these events, except aliases, which keep the library's bound.
const MAX_YAML_EVENTS: usize = 64 << 20;

/// Type of a whole answer.
pub const DISCOVERY_RESPONSE: &str = "envoy.service.discovery.v3.DiscoveryResponse";
pub const NODE: &str = "envoy.config.core.v3.Node";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Binary,
    Json,
    Yaml,
    Text,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Document {
    Response(Vec<u8>),
    Any(Vec<u8>),
}

/// Text that does not hold the expected message.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("the file is empty: expected a DiscoveryResponse or one google.protobuf.Any")]
    Empty,
    #[error("{0}")]
    Syntax(String),
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
}

impl Format {
    /// Returns the format by the extension; `None` for other files.
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension().and_then(OsStr::to_str)? {
            "pb" | "binpb" => Some(Self::Binary),
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "pb_text" | "textproto" | "txtpb" => Some(Self::Text),
            _ => None,
        }
    }
}

/// Reads a DiscoveryResponse, or one resource with its `@type`, from JSON or YAML.
///
/// # Errors
///
/// Text that holds neither.
pub fn json_or_yaml(format: Format, bytes: &[u8]) -> Result<Document, TextError> {
    let text = utf8(bytes)?;
    let value = value(format, text)?;
    let Value::Object(fields) = &value else {
        return Err(TextError::Syntax(
            "expected an object: a DiscoveryResponse, or a resource with \"@type\"".to_owned(),
        ));
    };
    let (type_name, document): (_, fn(Vec<u8>) -> Document) = match fields.contains_key("@type") {
        true => (ANY, Document::Any),
        false => (DISCOVERY_RESPONSE, Document::Response),
    };
    let parsed = document_fault::read(&message(type_name)?, &value, text, &[], &DeserializeOptions::new());
    let parsed = parsed.map_err(|fault| TextError::Syntax(format!("not a valid {type_name}: {fault}")))?;
    Ok(document(encode(&parsed)?))
}

/// Reads an encoded `envoy.config.core.v3.Node` from a file that is a node or a bootstrap with one. The
/// extension decides between JSON and YAML, which is the default.
///
/// # Errors
///
/// [`TextError`] if the bytes are neither JSON nor YAML, or hold no node.
pub fn read_node(file: &Path, bytes: &[u8]) -> Result<Vec<u8>, TextError> {
    let text = utf8(bytes)?;
    let value = value(Format::of(file).unwrap_or(Format::Yaml), text)?;
    // A Node has no such field; bootstraps of Envoy and gRPC have.
    let node = value.get("node").unwrap_or(&value);
    if !node.is_object() {
        return Err(TextError::Syntax(format!(
            "expected an {NODE}, or a bootstrap with a `node`, as an object"
        )));
    }
    let place = Vec::from_iter(value.get("node").map(|_| Segment::Map { key: "node".to_owned() }));
    let what = if place.is_empty() { "it has no `node`, and by itself it" } else { "its `node`" };
    let node = document_fault::read(&message(NODE)?, node, text, &place, &DeserializeOptions::new());
    let node = node.map_err(|fault| TextError::Syntax(format!("{what} is not a valid {NODE}: {fault}")))?;
    Ok(encode(&node)?)
}

/// Shows an encoded message of this type as JSON.
///
/// # Errors
///
/// [`TextError`] if the type is unknown, or the bytes are no such message.
pub fn message_json(type_name: &str, encoded: &[u8]) -> Result<Value, TextError> {
    let message = super::parse(&message(type_name)?, encoded)?;
    serde_json::to_value(&message).map_err(|error| TextError::Syntax(error.to_string()))
}

/// Encodes a DiscoveryResponse from proto3 JSON; equal texts give equal bytes. Omits fields without a
/// descriptor.
///
/// # Errors
///
/// [`TextError`] if the bytes are no such JSON, or hold a type without a descriptor.
pub fn read_response(json: &[u8]) -> Result<Vec<u8>, TextError> {
    let text = utf8(json)?;
    let value = value(Format::Json, text)?;
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let response = document_fault::read(&message(DISCOVERY_RESPONSE)?, &value, text, &[], &options);
    let response =
        response.map_err(|fault| TextError::Syntax(format!("not a DiscoveryResponse: {fault}")))?;
    Ok(encode(&response)?)
}

fn utf8(bytes: &[u8]) -> Result<&str, TextError> {
    std::str::from_utf8(bytes).map_err(|error| TextError::Syntax(format!("not text: {error}")))
}

/// Reads JSON, or else YAML.
fn value(format: Format, text: &str) -> Result<Value, TextError> {
    if format == Format::Json {
        return serde_json::from_str(text).map_err(|error| TextError::Syntax(format!("not JSON: {error}")));
    }
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
    serde_saphyr::from_str_with_options(text, options).map_err(|error| TextError::Syntax(yaml_fault(&error)))
}

/// YAML error without its quotes.
fn yaml_fault(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let reason = match error {
        // From the scanner, which quotes at most a character.
        Error::ExternalMessage { msg, .. } => msg.as_str(),
        Error::Eof { .. } => "unexpected end",
        Error::DuplicateMappingKey { .. } => "a key is there twice",
        Error::MultipleDocuments { .. } => "a second document begins; only one is allowed",
        Error::Budget { .. } => "nested too deep, or too large",
        _ => "a tag, alias or value that JSON does not have",
    };
    match error.location() {
        Some(location) => format!("not YAML: line {}: {reason}", location.line()),
        None => format!("not YAML: {reason}"),
    }
}

/// As [`json_or_yaml`], of proto text.
///
/// # Errors
///
/// Text that holds neither.
pub fn text(bytes: &[u8]) -> Result<Document, TextError> {
    let text = utf8(bytes)?;
    check_bounds(bytes, usize::MAX).map_err(|_| DescriptorError::TooDeep)?;
    let response = DynamicMessage::parse_text_format(message(DISCOVERY_RESPONSE)?, text);
    match response {
        // It may have comments only.
        Ok(response) if response.fields().next().is_none() => Err(TextError::Empty),
        Ok(response) => Ok(Document::Response(encode(&response)?)),
        Err(error) => match DynamicMessage::parse_text_format(message(ANY)?, text) {
            Ok(any) => Ok(Document::Any(encode(&any)?)),
            Err(any_error) => {
                // At the top, `[` begins only the expanded form of an Any.
                let is_any = text.trim_start().starts_with('[');
                let (shape, error) = if is_any { (ANY, any_error) } else { (DISCOVERY_RESPONSE, error) };
                let fault = text_fault(&message(shape)?, text, &error);
                Err(TextError::Syntax(format!("not the text of a {shape}: {fault}")))
            }
        },
    }
}

/// First fault of a text, and its line: shorter prefixes are only incomplete. The parser's error has no line,
/// and quotes the text.
fn text_fault(message: &MessageDescriptor, text: &str, error: &ParseError) -> String {
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).chain([text.len()]).collect();
    let is_incomplete = |error: &ParseError| error.to_string().ends_with("but reached end of input");
    let is_before = |end: &usize| {
        let parsed = DynamicMessage::parse_text_format(message.clone(), &text[..*end]);
        parsed.map_or_else(|error| is_incomplete(&error), |_| true)
    };
    let line = ends.len().min(ends.partition_point(is_before) + 1);
    let error = error.to_string();
    // A type is no value.
    let reason = if error.starts_with("message type ") {
        &error
    } else {
        "syntax, an unknown field or a value that does not fit"
    };
    format!("line {line}: {reason}")
}

/// Canonical encoding of a message: equal texts give equal bytes, in every run and on every machine. The
/// library's maps are in hash order, which differs between runs, and versions made from such bytes would
/// change after every restart. So maps are written in key order, and the content of an `Any` is written anew.
///
/// # Errors
///
/// Message that nests too deep, or holds an `Any` of an unknown type.
pub fn encode(message: &DynamicMessage) -> Result<Vec<u8>, DescriptorError> {
    encode_at(message, 0)
}

fn encode_at(message: &DynamicMessage, depth: usize) -> Result<Vec<u8>, DescriptorError> {
    if depth > MAX_DEPTH {
        return Err(DescriptorError::TooDeep);
    }
    if message.descriptor().full_name() == ANY {
        return encode_any(message, depth);
    }
    let mut out = Vec::new();
    for (field, value) in message.fields() {
        let kind = field.kind();
        let Some(of) = kind.as_message().filter(|_| !field.is_group()) else {
            // Numbers, strings and lists of them have only one encoding.
            let mut single = DynamicMessage::new(message.descriptor());
            single.set_field(&field, value.clone());
            out.extend(single.encode_to_vec());
            continue;
        };
        let messages: Vec<Cow<'_, DynamicMessage>> = match value {
            ProtoValue::Message(inner) => vec![Cow::Borrowed(inner)],
            ProtoValue::List(items) => {
                items.iter().filter_map(ProtoValue::as_message).map(Cow::Borrowed).collect()
            }
            ProtoValue::Map(entries) => {
                let entry = |(key, value): (&MapKey, &ProtoValue)| {
                    let mut entry = DynamicMessage::new(of.clone());
                    entry.set_field_by_number(1, key.clone().into());
                    entry.set_field_by_number(2, value.clone());
                    Cow::Owned(entry)
                };
                entries.iter().collect::<BTreeMap<_, _>>().into_iter().map(entry).collect()
            }
            _ => continue,
        };
        for inner in messages {
            put_bytes(&mut out, field.number(), &encode_at(&inner, depth + 1)?);
        }
    }
    for (extension, value) in message.extensions() {
        let mut single = DynamicMessage::new(message.descriptor());
        single.set_extension(&extension, value.clone());
        out.extend(single.encode_to_vec());
    }
    message.unknown_fields().for_each(|field| field.encode(&mut out));
    Ok(out)
}

fn encode_any(any: &DynamicMessage, depth: usize) -> Result<Vec<u8>, DescriptorError> {
    if any.fields().next().is_none() {
        return Ok(Vec::new());
    }
    let value = encode_at(&unpack_any(any)?, depth + 1)?;
    Ok(prost_types::Any { type_url: any_type_url(any).to_owned(), value }.encode_to_vec())
}
