//! Descriptor sets that an operator adds to the embedded one, and resources as JSON by all of them.
//!
//! A set is a `google.protobuf.FileDescriptorSet`, as `protoc --include_imports
//! --descriptor_set_out` and `buf build -o` write it, gzipped or not. A file with the name of an
//! embedded one replaces it, so that a newer API of Envoy can be added. Two added sets must not
//! differ in a file.
//!
//! The library decodes a message into a tree before it writes JSON. An empty message of two bytes
//! takes some 130 there: 12 MB of these took 790 MB. The size of the tree is estimated from the bytes, without memory, so that
//! such a message is refused before it is decoded.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use prost::Message as _;
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor, SerializeOptions};
use prost_types::FileDescriptorProto;

use super::{ANY, DescriptorError, MAX_DEPTH, message_in, message_name, pool};
use crate::resource::wire;

const MAX_BYTES: u64 = 256 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];

#[derive(Clone, Debug)]
pub struct DescriptorSet {
    /// For messages.
    pub origin: String,
    pub bytes: Vec<u8>,
}

/// `google.protobuf.FileDescriptorSet` with its files as bytes. Parsed files lose options that are
/// extensions, and so which fields are [sensitive](Descriptors::redacted_json).
#[derive(Clone, PartialEq, prost::Message)]
struct RawSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    file: Vec<Vec<u8>>,
}

#[derive(Clone)]
struct DescriptorFile {
    bytes: Vec<u8>,
    proto: FileDescriptorProto,
}

/// Reason to refuse a set.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {reason}")]
pub struct SetError {
    origin: String,
    reason: String,
}

/// The embedded descriptors with additions.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    /// `None` without additions: the embedded set is unpacked on first use.
    extended: Option<DescriptorPool>,
    replaced: usize,
}

impl Descriptors {
    /// The embedded descriptors with these sets.
    ///
    /// # Errors
    ///
    /// [`SetError`] if a set cannot be read, or does not fit the others.
    pub fn with(sets: &[DescriptorSet]) -> Result<Self, SetError> {
        if sets.is_empty() {
            return Ok(Self::default());
        }
        let embedded = read(&super::shipped())
            .map_err(|reason| SetError { origin: "the embedded set".to_owned(), reason })?;
        let mut files: BTreeMap<String, (usize, DescriptorFile)> = BTreeMap::new();
        let mut order: Vec<String> = Vec::new();
        let mut add = |from: usize, file: DescriptorFile| {
            let name = file.proto.name().to_owned();
            let before = files.insert(name.clone(), (from, file));
            if before.is_none() {
                order.push(name);
            }
            before
        };
        embedded.into_iter().for_each(|file| _ = add(0, file));
        let mut replaced = 0;
        for (at, set) in sets.iter().enumerate() {
            let refuse = |reason: String| SetError { origin: set.origin.clone(), reason };
            for file in read(&set.bytes).map_err(refuse)? {
                let name = file.proto.name().to_owned();
                match add(at + 1, file.clone()) {
                    Some((0, before)) => replaced += usize::from(differ(&before.proto, &file.proto)),
                    Some((other, before)) if other != at + 1 && differ(&before.proto, &file.proto) => {
                        let other = &sets[other - 1].origin;
                        return Err(refuse(format!(
                            "has another {name:?} than {other}; leave one of them out"
                        )));
                    }
                    Some(_) | None => {}
                }
            }
        }
        // Only all sets together are complete: they may refer to each other.
        let file = order.iter().filter_map(|name| Some(files.get(name)?.1.bytes.clone())).collect();
        let pool = DescriptorPool::decode(RawSet { file }.encode_to_vec().as_slice()).map_err(|error| {
            let blamed = error.file().and_then(|name| files.get(name)).map_or(0, |(from, _)| *from);
            // A misfit with the embedded set is due to an added set: the last one, if no other is
            // named.
            let origin = &sets[blamed.checked_sub(1).unwrap_or(sets.len() - 1)].origin;
            SetError { origin: origin.clone(), reason: format!("does not fit with the others: {error}") }
        })?;
        Ok(Self { extended: Some(pool), replaced })
    }

    pub(super) fn pool(&self) -> &DescriptorPool {
        self.extended.as_ref().unwrap_or_else(|| pool())
    }

    /// Number of embedded files that were replaced.
    pub const fn replaced(&self) -> usize {
        self.replaced
    }

    /// Whether first use takes no extra time.
    pub fn are_unpacked(&self) -> bool {
        self.extended.is_some() || super::POOL.get().is_some()
    }

    /// Writes the canonical proto3 JSON of an encoded `google.protobuf.Any`, with `@type`, nested
    /// ones included, in about `limit` bytes of memory at most.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`] if the type has no descriptor, the bytes do not fit it, or it takes more
    /// memory.
    pub fn write_json(&self, any: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), DescriptorError> {
        if tree_size(self.pool(), any, 0) > limit {
            return Err(DescriptorError::TooLarge);
        }
        let any = super::read_any(self.pool(), any)?;
        let start = out.len();
        any.serialize_with_options(&mut serde_json::Serializer::new(&mut *out), &SerializeOptions::new())
            .map_err(|error| super::not_showable(&any, &error))?;
        drop_values_of_empty(start, out);
        Ok(())
    }
}

/// Removes the `value` from each `Any` of `google.protobuf.Empty`, from `start` on. C++ and Python
/// take it for an unknown field, but prost-reflect writes it.
/// Quotes within strings are escaped, so only a `Struct` that spells such an `Any` could match, and
/// it means the same.
fn drop_values_of_empty(start: usize, out: &mut Vec<u8>) {
    const TYPE: &[u8] = br#""@type":"type.googleapis.com/google.protobuf.Empty""#;
    const VALUE: &[u8] = br#","value":{}"#;
    let mut at = start;
    while let Some(found) =
        out.get(at..).and_then(|rest| rest.windows(TYPE.len()).position(|text| text == TYPE))
    {
        at += found + TYPE.len();
        if out[at..].starts_with(VALUE) {
            out.drain(at..at + VALUE.len());
        }
    }
}

fn read(bytes: &[u8]) -> Result<Vec<DescriptorFile>, String> {
    let mut unpacked = Vec::new();
    let plain = if bytes.starts_with(&GZIP) {
        let read = GzDecoder::new(bytes).take(MAX_BYTES + 1).read_to_end(&mut unpacked);
        read.map_err(|error| format!("is not whole gzip: {error}"))?;
        if unpacked.len() as u64 > MAX_BYTES {
            return Err(format!("unpacks to more than {} MiB", MAX_BYTES >> 20));
        }
        unpacked.as_slice()
    } else {
        bytes
    };
    let is_none = |error| format!("is no google.protobuf.FileDescriptorSet, gzipped or not: {error}");
    let set = RawSet::decode(plain).map_err(is_none)?;
    if set.file.is_empty() {
        return Err("has no files in it".to_owned());
    }
    let parsed = set.file.into_iter().map(|bytes| {
        let proto = FileDescriptorProto::decode(bytes.as_slice())?;
        Ok(DescriptorFile { bytes, proto })
    });
    parsed.collect::<Result<_, _>>().map_err(is_none)
}

/// Whether two files differ in more than comments.
fn differ(one: &FileDescriptorProto, other: &FileDescriptorProto) -> bool {
    let plain = |file: &FileDescriptorProto| FileDescriptorProto { source_code_info: None, ..file.clone() };
    plain(one) != plain(other)
}

/// With its place in a list or map.
const VALUE: usize = 130;

/// Size with all nested ones. Malformed or too deep parts are refused anyway.
fn tree_size(pool: &DescriptorPool, any: &[u8], depth: usize) -> usize {
    let (mut inner, mut value) = (None, &[][..]);
    for field in wire::fields(any).map_while(Result::ok) {
        match (field.number, field.text(), field.bytes()) {
            (1, Ok(type_url), _) => {
                inner = message_name(type_url).and_then(|name| message_in(pool, name)).ok()
            }
            (2, _, Ok(bytes)) => value = bytes,
            _ => {}
        }
    }
    any.len() + VALUE + inner.map_or(0, |inner| of_message(&inner, value, depth + 1))
}

fn of_message(message: &MessageDescriptor, bytes: &[u8], depth: usize) -> usize {
    if depth > MAX_DEPTH {
        return 0;
    }
    if message.full_name() == ANY {
        return tree_size(message.parent_pool(), bytes, depth);
    }
    let mut size = bytes.len();
    for field in wire::fields(bytes).map_while(Result::ok) {
        size += VALUE;
        let (Some(known), Ok(inner)) = (message.get_field(field.number), field.bytes()) else { continue };
        size += match known.kind() {
            Kind::Message(of) => of_message(&of, inner, depth + 1),
            Kind::String | Kind::Bytes => 0,
            // Packed: each byte may be a number.
            _ => inner.len() * VALUE,
        };
    }
    size
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::Any;

    use super::super::{DescriptorError, Descriptors, pool};
    use super::*;

    fn cluster(value: Vec<u8>) -> Vec<u8> {
        let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
        Any { type_url, value }.encode_to_vec()
    }

    #[test]
    fn empty_messages_count_as_what_they_take_and_are_refused_before_they_do() {
        // Field 8: health checks, of two bytes each.
        let any = cluster([0x42, 0].repeat(100_000));
        let size = tree_size(pool(), &any, 0);
        assert!((60 * any.len()..80 * any.len()).contains(&size), "{size} for {}", any.len());
        let mut out = Vec::new();
        let written = Descriptors::default().write_json(&any, size - 1, &mut out);
        assert_eq!((written, out.len()), (Err(DescriptorError::TooLarge), 0));
        assert_eq!(Descriptors::default().write_json(&any, size, &mut out), Ok(()));
    }

    #[test]
    fn long_texts_count_once() {
        // Field 1: the name.
        let name = "n".repeat(100_000);
        let any = cluster([&[10, 0xa0, 0x8d, 0x06], name.as_bytes()].concat());
        let size = tree_size(pool(), &any, 0);
        assert!((any.len()..4 * any.len()).contains(&size), "{size}");
    }
}
