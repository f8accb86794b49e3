//! Checksums of the values in the file, and the encodings of facts.
//!
//! Invariant: a value is read only as it was written under its key.

use xxhash_rust::xxh3::Xxh3;

use super::{GroupFacts, StoreFacts};
use crate::cache::Completeness;

const CHECKSUM: usize = size_of::<u64>();

/// Checksum of a value under its key.
pub(super) fn checksum(key: &[u8], value: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.digest()
}

/// Value behind its checksum.
pub(super) fn seal(key: &[u8], value: &[u8]) -> (u64, Vec<u8>) {
    let sum = checksum(key, value);
    let mut sealed = Vec::with_capacity(CHECKSUM + value.len());
    sealed.extend_from_slice(&sum.to_le_bytes());
    sealed.extend_from_slice(value);
    (sum, sealed)
}

/// Claimed checksum of a sealed value.
pub(super) fn said_checksum(sealed: &[u8]) -> Option<u64> {
    sealed.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Removes the checksum; `None` if it does not match.
pub(super) fn unseal<'s>(key: &[u8], sealed: &'s [u8]) -> Option<(u64, &'s [u8])> {
    let (sum, value) = sealed.split_first_chunk::<CHECKSUM>()?;
    let sum = u64::from_le_bytes(*sum);
    (sum == checksum(key, value)).then_some((sum, value))
}

impl GroupFacts {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.run.to_le_bytes());
        out.extend_from_slice(&self.current.to_le_bytes());
        out.extend_from_slice(&self.node.to_le_bytes());
        out.extend_from_slice(self.server.as_bytes());
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (run, rest) = bytes.split_first_chunk()?;
        let (current, rest) = rest.split_first_chunk()?;
        let (node, server) = rest.split_first_chunk()?;
        Some(Self {
            run: u64::from_le_bytes(*run),
            current: u64::from_le_bytes(*current),
            node: u128::from_le_bytes(*node),
            server: std::str::from_utf8(server).ok()?.to_owned(),
        })
    }
}

const DEGREES: [Completeness; 4] =
    [Completeness::Unknown, Completeness::Settled, Completeness::Presumed, Completeness::Complete];

impl StoreFacts {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut out = vec![self.completeness as u8];
        for number in [self.members, self.records, self.sum] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (degree, rest) = bytes.split_first()?;
        let (members, rest) = rest.split_first_chunk()?;
        let (records, rest) = rest.split_first_chunk()?;
        let (sum, rest) = rest.split_first_chunk()?;
        let completeness = DEGREES.into_iter().find(|one| *one as u8 == *degree)?;
        rest.is_empty().then(|| Self {
            completeness,
            members: u64::from_le_bytes(*members),
            records: u64::from_le_bytes(*records),
            sum: u64::from_le_bytes(*sum),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_under_its_key_and_as_it_was_written_only() {
        let (sum, sealed) = seal(b"key", b"value");
        assert_eq!(unseal(b"key", &sealed), Some((sum, &b"value"[..])));
        assert_eq!(unseal(b"other", &sealed), None);
        for at in 0..sealed.len() * 8 {
            let mut torn = sealed.clone();
            torn[at / 8] ^= 1 << (at % 8);
            assert_eq!(unseal(b"key", &torn), None, "bit {at}");
        }
        assert_eq!(unseal(b"key", &sealed[..7]), None);
    }

    #[test]
    fn facts_read_back() {
        let group = GroupFacts { run: 3, current: 1 << 40, node: 7, server: "http://a:1".to_owned() };
        assert_eq!(GroupFacts::from_bytes(&group.to_bytes()), Some(group));
        for completeness in DEGREES {
            let store = StoreFacts { completeness, members: 1, records: 2, sum: u64::MAX };
            assert_eq!(StoreFacts::from_bytes(&store.to_bytes()), Some(store));
        }
    }
}
