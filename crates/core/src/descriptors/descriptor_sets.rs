//! Descriptor sets that an operator adds to the embedded one, and resources as JSON by all of them.
//!
//! A set is a `google.protobuf.FileDescriptorSet`, as `protoc --include_imports
//! --descriptor_set_out` and `buf build -o` write it, gzipped or not. A file with the name of an
//! embedded one replaces it, so that a newer API of Envoy can be added. Two added sets must not
//! differ in a file.

use std::io::Read as _;

use flate2::read::GzDecoder;
use indexmap::IndexMap;
use prost::Message as _;
use prost_reflect::{DescriptorPool, SerializeOptions};
use prost_types::FileDescriptorProto;

use super::{DescriptorError, pool};

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

struct DescriptorFile {
    bytes: Vec<u8>,
    /// Without comments.
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
        // In the order of their first occurrence: a file comes after those that it imports.
        let mut files = IndexMap::<String, (usize, DescriptorFile)>::new();
        files.extend(embedded.into_iter().map(|file| (file.proto.name().to_owned(), (0, file))));
        for (at, set) in sets.iter().enumerate() {
            let refuse = |reason: String| SetError { origin: set.origin.clone(), reason };
            for file in read(&set.bytes).map_err(refuse)? {
                let name = file.proto.name().to_owned();
                if let Some((other, before)) = files.get(&name)
                    && ![0, at + 1].contains(other)
                    && before.proto != file.proto
                {
                    let other = &sets[other - 1].origin;
                    return Err(refuse(format!("has another {name:?} than {other}; leave one of them out")));
                }
                files.insert(name, (at + 1, file));
            }
        }
        // Only all sets together are complete: they may refer to each other.
        let file = files.values().map(|(_, file)| file.bytes.clone()).collect();
        let pool = DescriptorPool::decode(RawSet { file }.encode_to_vec().as_slice()).map_err(|error| {
            let blamed = error.file().and_then(|name| files.get(name)).map_or(0, |(from, _)| *from);
            // A misfit with the embedded set is due to an added set: the last one, if no other is
            // named.
            let origin = &sets[blamed.checked_sub(1).unwrap_or(sets.len() - 1)].origin;
            SetError { origin: origin.clone(), reason: format!("does not fit with the others: {error}") }
        })?;
        Ok(Self { extended: Some(pool) })
    }

    pub(super) fn pool(&self) -> &DescriptorPool {
        self.extended.as_ref().unwrap_or_else(|| pool())
    }

    /// Whether first use takes no extra time.
    pub fn are_unpacked(&self) -> bool {
        self.extended.is_some() || super::POOL.get().is_some()
    }

    /// Writes the canonical proto3 JSON of an encoded `google.protobuf.Any`, with `@type`, nested
    /// ones included.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`] if the type has no descriptor, or the bytes do not fit it.
    pub fn write_json(&self, any: &[u8], out: &mut Vec<u8>) -> Result<(), DescriptorError> {
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
        let mut proto = FileDescriptorProto::decode(bytes.as_slice())?;
        proto.source_code_info = None;
        Ok(DescriptorFile { bytes, proto })
    });
    parsed.collect::<Result<_, _>>().map_err(is_none)
}
