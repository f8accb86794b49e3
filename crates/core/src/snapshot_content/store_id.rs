//! Identity of a store.

use bytes::BytesMut;

use crate::resource::{Parameters, TypeUrl, wire};

/// Identity of a store in a node group: a type and one set of parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId {
    pub type_url: TypeUrl,
    pub parameters: Parameters,
}

impl StoreId {
    /// Unique bytes of a store: the type, then each key and value, as protobuf strings.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        let mut put = |text: &str| {
            wire::put_varint(&mut out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        };
        put(self.type_url.as_str());
        for (key, value) in self.parameters.iter() {
            put(key);
            put(value);
        }
        out.to_vec()
    }

    /// Reads back [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut texts = Vec::new();
        while !rest.is_empty() {
            let (len, after) = wire::varint(rest)?;
            let (text, after) = after.split_at_checked(usize::try_from(len).ok()?)?;
            texts.push(std::str::from_utf8(text).ok()?);
            rest = after;
        }
        let (type_url, pairs) = texts.split_first()?;
        let (pairs, odd) = pairs.as_chunks::<2>();
        let parameters = pairs.iter().map(|[key, value]| (*key, *value)).collect();
        odd.is_empty().then(|| Self { type_url: TypeUrl::from(*type_url), parameters })
    }
}
