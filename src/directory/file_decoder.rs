//! Decodes the bytes of one file to its resources. No I/O, and no memory of other files.
//!
//! Readable forms are first converted to binary, so that one place defines valid content. It works on the
//! wire format by hand, because resources must keep their bytes.

use std::collections::HashSet;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::{DecodeError, WRAPPER, key};
use crate::descriptors::message_name;
use crate::descriptors::text_formats::{self, DISCOVERY_RESPONSE, Document, Format, TextError};
use crate::resource::wire::{MalformedError, Value, fields, put_bytes};
use crate::resource::{Envelope, Kind, Name, Resource, TypeUrl};

const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

struct Any<'a> {
    type_url: &'a str,
    value: &'a [u8],
}

/// Resource before it is wrapped.
struct Parts<'a> {
    any: &'a [u8],
    type_url: &'a str,
    name: &'a str,
    /// Other fields of the wrapper, as they came.
    rest: Vec<u8>,
    /// Whether `rest` holds the name (in a `ResourceName`), so that field 3 must stay unset.
    named_by_rest: bool,
}

/// Decodes the resources of one file, in their order.
pub(super) fn decode(format: Format, bytes: &[u8]) -> Result<Vec<Arc<Resource>>, DecodeError> {
    if bytes.trim_ascii().is_empty() {
        // A writer may truncate the file first, so an empty file never removes resources.
        return Err(TextError::Empty.into());
    }
    let document = match format {
        Format::Binary => recognize(bytes)?,
        Format::Json | Format::Yaml => text_formats::json_or_yaml(format, bytes)?,
        Format::Text => text_formats::text(bytes)?,
    };
    let resources = match &document {
        Document::Response(response) => decode_response(response)?,
        Document::Any(bytes) => {
            let any = split_any(bytes)?;
            if message_name(any.type_url)? == DISCOVERY_RESPONSE {
                decode_response(any.value)?
            } else {
                vec![decode_resource(bytes, None)?]
            }
        }
    };
    let mut seen = HashSet::new();
    if let Some(twice) = resources.iter().find(|resource| !seen.insert(key(resource))) {
        return Err(DecodeError::Duplicate(twice.clone()));
    }
    Ok(resources)
}

/// Distinguishes the two binary shapes. Both begin with a string, and no version begins like a type URL.
fn recognize(bytes: &[u8]) -> Result<Document, DecodeError> {
    let mut known = false;
    let mut first = &[][..];
    for field in fields(bytes) {
        let field = field.map_err(|MalformedError| DecodeError::Unrecognized)?;
        known |= (1..=7).contains(&field.number);
        if field.number == 1 {
            first = field.bytes().map_err(|_| DecodeError::Unrecognized)?;
        }
    }
    match known {
        true if first.starts_with(TYPE_URL_PREFIX.as_bytes()) => Ok(Document::Any(bytes.to_vec())),
        true => Ok(Document::Response(bytes.to_vec())),
        false => Err(DecodeError::Unrecognized),
    }
}

fn decode_response(bytes: &[u8]) -> Result<Vec<Arc<Resource>>, DecodeError> {
    let mut anys = Vec::new();
    let mut expected = None;
    for field in fields(bytes) {
        let field = field.map_err(|MalformedError| damaged(DISCOVERY_RESPONSE))?;
        match (field.number, field.value) {
            (2, Value::Bytes(bytes)) => anys.push(bytes),
            (4, Value::Bytes(bytes)) => expected = Some(utf8(bytes, DISCOVERY_RESPONSE)?),
            (2 | 4, _) => return Err(damaged(DISCOVERY_RESPONSE)),
            _ => {}
        }
    }
    let expected = expected.filter(|type_url| !type_url.is_empty());
    let resources = anys.into_iter().enumerate().map(|(index, any)| {
        decode_resource(any, expected).map_err(|error| DecodeError::In { index, source: Box::new(error) })
    });
    resources.collect()
}

fn decode_resource(bytes: &[u8], expected: Option<&str>) -> Result<Arc<Resource>, DecodeError> {
    let any = split_any(bytes)?;
    let parts = match message_name(any.type_url)? {
        WRAPPER => split_wrapper(any.value)?,
        type_name if kind_of(type_name).is_named_by_first_field() => {
            let name = first_string(any.value, type_name)?;
            Parts { any: bytes, type_url: any.type_url, name, rest: Vec::new(), named_by_rest: false }
        }
        _ => return Err(DecodeError::NeedsWrapper(any.type_url.to_owned())),
    };
    if let Some(expected) = expected.filter(|expected| *expected != parts.type_url) {
        return Err(DecodeError::TypeMismatch {
            found: parts.type_url.to_owned(),
            expected: expected.to_owned(),
        });
    }
    if parts.name.is_empty() {
        return Err(DecodeError::Unnamed(parts.type_url.to_owned()));
    }
    parts.encode()
}

/// Type of a message, whatever precedes its name in a type URL.
fn kind_of(type_name: &str) -> Kind {
    Kind::of_url(&format!("{TYPE_URL_PREFIX}{type_name}"))
}

fn split_any(bytes: &[u8]) -> Result<Any<'_>, DecodeError> {
    const NAME: &str = "google.protobuf.Any";
    let mut any = Any { type_url: "", value: &[] };
    for field in fields(bytes) {
        let field = field.map_err(|MalformedError| damaged(NAME))?;
        match (field.number, field.value) {
            (1, Value::Bytes(bytes)) => any.type_url = utf8(bytes, NAME)?,
            (2, Value::Bytes(bytes)) => any.value = bytes,
            (1 | 2, _) => return Err(damaged(NAME)),
            _ => {}
        }
    }
    message_name(any.type_url)?;
    Ok(any)
}

fn split_wrapper(bytes: &[u8]) -> Result<Parts<'_>, DecodeError> {
    const RESOURCE_NAME: &str = "envoy.service.discovery.v3.ResourceName";
    let (mut own_name, mut long_name, mut rest) = ("", "", Vec::new());
    let mut inner = Vec::new();
    for field in fields(bytes) {
        let field = field.map_err(|MalformedError| damaged(WRAPPER))?;
        match (field.number, field.value) {
            (1, Value::Bytes(_)) => {} // the version: ours replaces it
            (2, Value::Bytes(bytes)) => inner.push(bytes),
            (3, Value::Bytes(bytes)) => own_name = utf8(bytes, WRAPPER)?,
            (1..=3, _) => return Err(damaged(WRAPPER)),
            (8, Value::Bytes(bytes)) => {
                long_name = first_string(bytes, RESOURCE_NAME)?;
                rest.extend_from_slice(field.raw);
            }
            _ => rest.extend_from_slice(field.raw),
        }
    }
    let named_by_rest = own_name.is_empty();
    let name = if named_by_rest { long_name } else { own_name };
    let [any] = inner[..] else { return Err(DecodeError::BadWrapper(name.to_owned())) };
    let type_url = split_any(any)?.type_url;
    if message_name(type_url)? == WRAPPER {
        return Err(DecodeError::BadWrapper(name.to_owned()));
    }
    Ok(Parts { any, type_url, name, rest, named_by_rest })
}

/// Field 1 of a message; empty without. Reads all of the message, because only the end shows a truncated file.
fn first_string<'a>(bytes: &'a [u8], type_name: &str) -> Result<&'a str, DecodeError> {
    let mut last = &[][..];
    for field in fields(bytes) {
        let field = field.map_err(|MalformedError| damaged(type_name))?;
        if field.number == 1 {
            last = field.bytes().map_err(|_| damaged(type_name))?;
        }
    }
    utf8(last, type_name)
}

fn utf8<'a>(bytes: &'a [u8], type_name: &str) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| damaged(type_name))
}

fn damaged(type_name: &str) -> DecodeError {
    DecodeError::Damaged(type_name.to_owned())
}

impl Parts<'_> {
    fn encode(self) -> Result<Arc<Resource>, DecodeError> {
        // The rest counts too: clients would miss a changed TTL or alias under an unchanged version.
        let mut hash = Xxh3::new();
        hash.update(self.any);
        hash.update(&self.rest);

        let mut wrapper = Vec::with_capacity(self.any.len() + self.rest.len() + self.name.len() + 32);
        put_bytes(&mut wrapper, 1, format!("{:016x}", hash.digest()).as_bytes());
        put_bytes(&mut wrapper, 2, self.any);
        if !self.named_by_rest {
            put_bytes(&mut wrapper, 3, self.name.as_bytes());
        }
        wrapper.extend_from_slice(&self.rest);
        let type_url = TypeUrl::from(self.type_url);
        let envelope = Envelope::parse(&wrapper, &type_url)?;
        if let Err(source) = &envelope.constraints {
            return Err(DecodeError::Constraints { name: self.name.to_owned(), source: source.clone() });
        }
        let resource = envelope.encode(&type_url, Name::normal(self.name));
        resource.map(Arc::new).ok_or_else(|| damaged(WRAPPER))
    }
}
