//! Decodes the bytes of one file to its resources. No I/O, and no memory of other files.
//!
//! Readable forms are first converted to binary, so that one place defines valid content. It works on the
//! wire format by hand, because resources must keep their bytes.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::{anyhow, bail, ensure};
use xxhash_rust::xxh3::Xxh3;

use super::key;
use crate::descriptors::message_name;
use crate::descriptors::text_formats::{self, DISCOVERY_RESPONSE, Document, Format, TextError};
use crate::resource::wire::{MalformedError, Value, fields, put_bytes};
use crate::resource::{Envelope, Kind, Name, Resource, TypeUrl};

const WRAPPER: &str = "envoy.service.discovery.v3.Resource";
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
pub(super) fn decode(format: Format, bytes: &[u8]) -> anyhow::Result<Vec<Arc<Resource>>> {
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
        let constraints = twice.constraints().map_or("", |_| " with the same constraints");
        bail!("{} {:?} is there twice{constraints}", twice.type_url(), twice.name());
    }
    Ok(resources)
}

/// Distinguishes the two binary shapes. Both begin with a string, and no version begins like a type URL.
fn recognize(bytes: &[u8]) -> anyhow::Result<Document> {
    let unrecognized = || anyhow!("neither a binary DiscoveryResponse nor a binary google.protobuf.Any");
    let mut known = false;
    let mut first = &[][..];
    for field in fields(bytes) {
        let field = field.map_err(|MalformedError| unrecognized())?;
        known |= (1..=7).contains(&field.number);
        if field.number == 1 {
            first = field.bytes().map_err(|_| unrecognized())?;
        }
    }
    match known {
        true if first.starts_with(TYPE_URL_PREFIX.as_bytes()) => Ok(Document::Any(bytes.to_vec())),
        true => Ok(Document::Response(bytes.to_vec())),
        false => Err(unrecognized()),
    }
}

fn decode_response(bytes: &[u8]) -> anyhow::Result<Vec<Arc<Resource>>> {
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
        decode_resource(any, expected).map_err(|error| anyhow!("resources[{index}]: {error}"))
    });
    resources.collect()
}

fn decode_resource(bytes: &[u8], expected: Option<&str>) -> anyhow::Result<Arc<Resource>> {
    let any = split_any(bytes)?;
    let parts = match message_name(any.type_url)? {
        WRAPPER => split_wrapper(any.value)?,
        type_name if kind_of(type_name).is_named_by_first_field() => {
            let name = first_string(any.value, type_name)?;
            Parts { any: bytes, type_url: any.type_url, name, rest: Vec::new(), named_by_rest: false }
        }
        _ => bail!(
            "how a {} is named is not known: wrap it in type.googleapis.com/{WRAPPER}, whose `name` says it",
            any.type_url
        ),
    };
    let (found, expected) = (parts.type_url, expected.unwrap_or(parts.type_url));
    ensure!(
        found == expected,
        "the type is {found:?}, but the DiscoveryResponse's type_url says {expected:?}"
    );
    ensure!(!parts.name.is_empty(), "{found} has no name: every resource needs one");
    parts.encode()
}

/// Type of a message, whatever precedes its name in a type URL.
fn kind_of(type_name: &str) -> Kind {
    Kind::of_url(&format!("{TYPE_URL_PREFIX}{type_name}"))
}

fn split_any(bytes: &[u8]) -> anyhow::Result<Any<'_>> {
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

fn split_wrapper(bytes: &[u8]) -> anyhow::Result<Parts<'_>> {
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
    let bad =
        || anyhow!("the {WRAPPER} {name:?} must hold exactly one `resource`, and not a {WRAPPER} again");
    let [any] = inner[..] else { return Err(bad()) };
    let type_url = split_any(any)?.type_url;
    if message_name(type_url)? == WRAPPER {
        return Err(bad());
    }
    Ok(Parts { any, type_url, name, rest, named_by_rest })
}

/// Field 1 of a message; empty without. Reads all of the message, because only the end shows a truncated file.
fn first_string<'a>(bytes: &'a [u8], type_name: &str) -> anyhow::Result<&'a str> {
    let mut last = &[][..];
    for field in fields(bytes) {
        let field = field.map_err(|MalformedError| damaged(type_name))?;
        if field.number == 1 {
            last = field.bytes().map_err(|_| damaged(type_name))?;
        }
    }
    utf8(last, type_name)
}

fn utf8<'a>(bytes: &'a [u8], type_name: &str) -> anyhow::Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|_| damaged(type_name))
}

fn damaged(type_name: &str) -> anyhow::Error {
    anyhow!("cut short or damaged: the bytes are not a valid {type_name}")
}

impl Parts<'_> {
    fn encode(self) -> anyhow::Result<Arc<Resource>> {
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
            bail!("the dynamic_parameter_constraints of {:?} cannot be used: {source}", self.name);
        }
        let resource = envelope.encode(&type_url, Name::normal(self.name));
        resource.map(Arc::new).ok_or_else(|| damaged(WRAPPER))
    }
}
