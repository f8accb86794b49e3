//! Keys and values of the file as bytes.
//!
//! Owns the layout. Keys sort by group, then store, then name, and each part before another has a length prefix.
//! Values have a checksum.
//!
//! Invariant: a value is read only as it was written under its key.
//!
//! Orders of the rollout guard are text. One that cannot be read is dropped: the change that it kept back is tried again.

use std::fmt;
use std::ops::Range;

use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::{GroupFacts, StoreFacts};
use crate::cache::{Completeness, Note, OrderKind, StandingOrder};
use crate::node_group::GroupKey;
use crate::proto::Node;
use crate::resource::{Name, TypeUrl, wire};
use crate::snapshot_content::StoreId;

/// Identity of a node group in the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(Vec<u8>);

impl GroupId {
    /// Group of the relay's own node.
    pub const fn own() -> Self {
        Self(Vec::new())
    }

    /// Group of a rule: the rule's name, the key's text and its values.
    pub fn of(key: &GroupKey) -> Self {
        let mut out = BytesMut::new();
        for part in [key.rule(), key.text()].into_iter().chain(key.values()) {
            put(&mut out, part.as_bytes());
        }
        Self(out.to_vec())
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Rule of the group, and the key's values, which distinguish groups of equal text; `None` for the own
    /// group.
    pub(super) fn rule_and_values(&self) -> Option<(String, Vec<String>)> {
        let (rule, rest) = take(&self.0)?;
        let (_, mut rest) = take(rest)?;
        let mut values = Vec::new();
        while let Some((value, behind)) = take(rest) {
            values.push(String::from_utf8_lossy(value).into_owned());
            rest = behind;
        }
        Some((String::from_utf8_lossy(rule).into_owned(), values))
    }
}

impl fmt::Display for GroupId {
    /// As in log lines. Escapes what could steer a terminal, because a client may choose the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("own");
        }
        let text = |part: &[u8]| String::from_utf8_lossy(part).escape_debug().to_string();
        let parts = take(&self.0).map(|(rule, rest)| (rule, take(rest).map_or(&[][..], |(text, _)| text)));
        match parts {
            None => f.write_str("?"),
            Some((rule, [])) => f.write_str(&text(rule)),
            Some((rule, key)) => write!(f, "{}:{}", text(rule), text(key)),
        }
    }
}

/// Digest of the node fields by which a control plane distinguishes nodes, without those of the client
/// program.
pub fn node_digest(node: &Node) -> u128 {
    let mut out = BytesMut::new();
    let locality = node.locality.clone().unwrap_or_default();
    let texts = [&node.id, &node.cluster, &locality.region, &locality.zone, &locality.sub_zone];
    texts.into_iter().for_each(|text| put(&mut out, text.as_bytes()));
    out.extend_from_slice(&node.metadata);
    xxh3_128(&out)
}

fn put(out: &mut BytesMut, part: &[u8]) {
    wire::put_varint(out, part.len() as u64);
    out.extend_from_slice(part);
}

fn take(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = wire::varint(bytes)?;
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// Prefix of the keys of a group or store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix(Vec<u8>);

impl Prefix {
    pub(super) fn of_group(group: &GroupId) -> Self {
        let mut out = BytesMut::new();
        put(&mut out, &group.0);
        Self(out.to_vec())
    }

    pub(super) fn of_store(group: &GroupId, store: &StoreId) -> Self {
        let mut out = BytesMut::new();
        put(&mut out, &group.0);
        put(&mut out, &store.to_bytes());
        Self(out.to_vec())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn of_name(&self, name: &str) -> Vec<u8> {
        [&self.0, name.as_bytes()].concat()
    }

    /// Name in a key with this prefix.
    pub(super) fn name_in<'k>(&self, key: &'k [u8]) -> Option<&'k str> {
        std::str::from_utf8(key.strip_prefix(&self.0[..])?).ok()
    }

    pub(super) fn range(&self) -> Range<Vec<u8>> {
        let mut end = self.0.clone();
        // A prefix begins with a length, and a final 0xff is carried.
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        self.0.clone()..end
    }
}

/// Group and store in the key of a store.
pub(super) fn parse_store(key: &[u8]) -> Option<(GroupId, StoreId)> {
    let (group, rest) = take(key)?;
    let (store, rest) = take(rest)?;
    rest.is_empty().then_some(())?;
    Some((GroupId(group.to_vec()), StoreId::from_bytes(store)?))
}

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
        if !self.orders.is_empty() {
            out.push(b'\n');
            out.extend_from_slice(self.orders.as_bytes());
        }
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (run, rest) = bytes.split_first_chunk()?;
        let (current, rest) = rest.split_first_chunk()?;
        let (node, server) = rest.split_first_chunk()?;
        let texts = std::str::from_utf8(server).ok()?;
        let (server, orders) = texts.split_once('\n').unwrap_or((texts, ""));
        Some(Self {
            run: u64::from_le_bytes(*run),
            current: u64::from_le_bytes(*current),
            node: u128::from_le_bytes(*node),
            server: server.to_owned(),
            orders: orders.to_owned(),
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

#[derive(Debug, Serialize, Deserialize)]
struct StoredOrder {
    order: String,
    type_url: String,
    parameters: Vec<(String, String)>,
    name: Option<String>,
    /// Hexadecimal.
    digest: Option<String>,
    version: Option<String>,
    at: u64,
    by: String,
}

/// One line; empty without orders.
pub(super) fn orders_text(orders: &[StandingOrder]) -> String {
    if orders.is_empty() {
        return String::new();
    }
    let stored = orders.iter().map(|of| StoredOrder {
        order: of.kind.label().to_owned(),
        type_url: of.type_url.as_str().to_owned(),
        parameters: of.parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        name: of.name.as_ref().map(Name::to_string),
        digest: of.digest.map(|digest| format!("{digest:x}")),
        version: of.version.as_deref().map(str::to_owned),
        at: of.note.at,
        by: of.note.by.to_string(),
    });
    serde_json::to_string(&stored.collect::<Vec<_>>()).unwrap_or_default()
}

pub(super) fn parse_orders(text: &str) -> Vec<StandingOrder> {
    let stored: Vec<StoredOrder> = serde_json::from_str(text).unwrap_or_default();
    let order = |of: StoredOrder| {
        Some(StandingOrder {
            kind: OrderKind::ALL.into_iter().find(|kind| kind.label() == of.order)?,
            type_url: TypeUrl::from(&*of.type_url),
            parameters: of.parameters.into_iter().collect(),
            name: of.name.as_deref().map(Name::from),
            digest: of.digest.map(|text| u128::from_str_radix(&text, 16)).transpose().ok()?,
            version: of.version.map(Into::into),
            note: Note { at: of.at, by: of.by.into() },
        })
    };
    stored.into_iter().filter_map(order).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Kind, Parameters};

    #[test]
    fn keys_of_a_store_stand_together_and_read_back() {
        let store = |parameters: &[(&str, &str)]| StoreId {
            type_url: Kind::Cluster.into(),
            parameters: parameters.iter().copied().collect::<Parameters>(),
        };
        let (own, other) = (GroupId::own(), GroupId(b"\x01a\x01b".to_vec()));
        for group in [&own, &other] {
            for store in [store(&[]), store(&[("a", "b"), ("c", "")])] {
                let prefix = Prefix::of_store(group, &store);
                assert_eq!(parse_store(prefix.as_bytes()), Some((group.clone(), store)));
                let key = prefix.of_name("name");
                assert!(prefix.range().contains(&key) && Prefix::of_group(group).range().contains(&key));
                assert_eq!(prefix.name_in(&key), Some("name"));
            }
        }
        let plain = Prefix::of_store(&own, &store(&[]));
        assert!(!plain.range().contains(&Prefix::of_store(&own, &store(&[("a", "b")])).of_name("x")));
        assert_eq!((own.to_string(), other.to_string()), ("own".to_owned(), "a:b".to_owned()));
    }

    #[test]
    fn the_range_of_a_prefix_that_ends_in_ones_is_carried() {
        let prefix = Prefix(vec![1, 0xff, 0xff]);
        assert_eq!(prefix.range(), vec![1, 0xff, 0xff]..vec![2]);
    }

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
        let server = "http://a:1".to_owned();
        let group = GroupFacts { run: 3, current: 1 << 40, node: 7, server, orders: String::new() };
        for group in [GroupFacts { orders: "[1]".to_owned(), ..group.clone() }, group] {
            assert_eq!(GroupFacts::from_bytes(&group.to_bytes()), Some(group));
        }
        for completeness in DEGREES {
            let store = StoreFacts { completeness, members: 1, records: 2, sum: u64::MAX };
            assert_eq!(StoreFacts::from_bytes(&store.to_bytes()), Some(store));
        }
    }

    #[test]
    fn orders_read_back() {
        let order = |kind, name: Option<&str>, digest, version: Option<&str>| StandingOrder {
            kind,
            type_url: Kind::Cluster.into(),
            parameters: [("a", "b")].into_iter().collect::<Parameters>(),
            name: name.map(Name::from),
            digest,
            version: version.map(Into::into),
            note: Note { at: 1_700_000_000, by: "10.0.0.1 (alice)".into() },
        };
        let orders = [
            order(OrderKind::Hold, None, None, None),
            order(OrderKind::Discard, Some("x\n\"y"), Some(u128::MAX), None),
            order(OrderKind::Restore, Some("x"), None, Some("7")),
        ];
        assert_eq!(parse_orders(&orders_text(&orders)), orders);
        assert!(!orders_text(&orders).contains('\n'));
        assert_eq!(
            (orders_text(&[]), parse_orders(""), parse_orders("no JSON")),
            (String::new(), vec![], vec![])
        );
    }
}
