//! Tables of the file, and what their rows say.
//!
//! Owns the layout. Keys sort by group, then store, then name. The library verifies all pages when it opens the
//! file.
//!
//! Orders of the rollout guard are text. One that cannot be read is dropped: the change that it kept back is tried again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redb::TableDefinition;
use serde::Deserialize as _;
use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::Xxh3;

use super::GroupFacts;
use crate::cache::{Note, OrderKind, StandingOrder, View};
use crate::node_group::GroupKey;
use crate::proto::Node;
use crate::resource::{Constraints, Name, Parameters, Resource, TypeUrl, VersionForm};
use crate::snapshot_content::{Kept, Record, StoreId};

/// Version of the layout. Later versions of this program find it at the same place.
pub(super) const META: TableDefinition<'_, &str, u32> = TableDefinition::new("deltafan");
/// Facts by group.
pub(super) const GROUPS: TableDefinition<'_, &str, GroupRow<'_>> = TableDefinition::new("groups");
/// Known extent of the wildcard set and the number of its members, by store.
pub(super) const STORES: TableDefinition<'_, StoreKey<'_>, (u8, u64)> = TableDefinition::new("stores");
/// Records by store and name.
pub(super) const RECORDS: TableDefinition<'_, RecordKey<'_>, RecordRow<'_>> = TableDefinition::new("records");

/// Moment, node, server and orders of [`GroupFacts`].
pub(super) type GroupRow<'r> = (u64, u128, &'r str, &'r str);
/// Group, type URL, and parameters as JSON.
pub(super) type StoreKey<'k> = (&'k str, &'k str, &'k str);
/// Key of the store, and a name.
pub(super) type RecordKey<'k> = (&'k str, &'k str, &'k str, &'k str);
/// Whether it is a member; whether a relay made up the version, and the bytes of its mark; the TTL and its end in
/// nanoseconds; constraints; and the encoding for clients, or `None` of a collection.
pub(super) type RecordRow<'r> = (bool, bool, u64, Option<(u64, u64)>, Option<&'r [u8]>, Option<&'r [u8]>);

/// Identity of a node group in the file: empty, or rule, text and values of its key as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(String);

impl GroupId {
    /// Group of the relay's own node.
    pub const fn own() -> Self {
        Self(String::new())
    }

    /// Group of a rule.
    pub fn of(key: &GroupKey) -> Self {
        let parts: Vec<&str> = [key.rule(), key.text()].into_iter().chain(key.values()).collect();
        Self(serde_json::Value::from(parts).to_string())
    }

    pub(super) fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Rule, text and values of the key; `None` for the own group.
    pub(super) fn parts(&self) -> Option<(String, String, Vec<String>)> {
        let mut parts = serde_json::from_str::<Vec<String>>(&self.0).ok()?.into_iter();
        Some((parts.next()?, parts.next()?, parts.collect()))
    }
}

impl fmt::Display for GroupId {
    /// As in log lines. Escapes what could steer a terminal, because a client may choose the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            None => f.write_str("own"),
            Some((rule, text, _)) if text.is_empty() => write!(f, "{}", rule.escape_debug()),
            Some((rule, text, _)) => write!(f, "{}:{}", rule.escape_debug(), text.escape_debug()),
        }
    }
}

/// Digest of the node fields by which a control plane distinguishes nodes, without those of the client
/// program.
pub fn node_digest(node: &Node) -> u128 {
    let locality = node.locality.clone().unwrap_or_default();
    let texts = [&node.id, &node.cluster, &locality.region, &locality.zone, &locality.sub_zone];
    let mut hasher = Xxh3::new();
    for part in texts.map(|text| text.as_bytes()).into_iter().chain([&node.metadata[..]]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.digest128()
}

pub(super) fn parameters_text(parameters: &Parameters) -> String {
    let pairs: BTreeMap<&str, &str> = parameters.iter().collect();
    serde_json::to_string(&pairs).unwrap_or_default()
}

pub(super) fn parse_store(type_url: &str, parameters: &str) -> Option<StoreId> {
    let pairs: BTreeMap<String, String> = serde_json::from_str(parameters).ok()?;
    Some(StoreId { type_url: TypeUrl::from(type_url), parameters: pairs.into_iter().collect() })
}

impl GroupFacts {
    pub(super) fn row(&self) -> GroupRow<'_> {
        (self.current, self.node, &self.server, &self.orders)
    }

    pub(super) fn parse((current, node, server, orders): GroupRow<'_>) -> Self {
        Self { current, node, server: server.to_owned(), orders: orders.to_owned() }
    }
}

pub(super) fn record_row(record: &Record) -> RecordRow<'_> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let is_member = record.view == View::Wildcard;
    let lease = record.lease.map(|(ttl, deadline)| (nanos(ttl), nanos(deadline)));
    match &record.kept {
        Kept::Collection => (is_member, false, 0, lease, None, None),
        Kept::Resource(resource) => {
            let VersionForm { is_own, mark_bytes } = resource.version_form();
            let constraints = resource.constraints().map(|constraints| &constraints.encoded()[..]);
            (is_member, is_own, mark_bytes as u64, lease, constraints, Some(resource.delta_entry()))
        }
    }
}

pub(super) fn parse_record(type_url: &TypeUrl, row: RecordRow<'_>) -> Option<Record> {
    let (is_member, is_own, mark_bytes, lease, constraints, entry) = row;
    let kept = match entry {
        None => Kept::Collection,
        Some(entry) => {
            let constraints = constraints.map(Constraints::parse).transpose().ok()?.flatten();
            let form = VersionForm { is_own, mark_bytes: usize::try_from(mark_bytes).ok()? };
            Kept::Resource(Arc::new(Resource::from_entry(type_url, entry, constraints, form).ok()?))
        }
    };
    let view = if is_member { View::Wildcard } else { View::Named };
    let lease = lease.map(|(ttl, deadline)| (Duration::from_nanos(ttl), Duration::from_nanos(deadline)));
    Some(Record { view, kept, lease })
}

/// One line; empty without orders.
pub(super) fn orders_text(orders: &[StandingOrder]) -> String {
    if orders.is_empty() {
        return String::new();
    }
    let order = |of: &StandingOrder| {
        json!({
            "order": of.kind,
            "type_url": of.type_url.as_str(),
            "parameters": of.parameters.iter().collect::<Vec<_>>(),
            "name": of.name,
            "digest": of.digest.map(|digest| format!("{digest:x}")),
            "version": of.version.as_deref(),
            "at": of.note.at,
            "by": &*of.note.by,
        })
    };
    Json::from_iter(orders.iter().map(order)).to_string()
}

pub(super) fn parse_orders(text: &str) -> Vec<StandingOrder> {
    let order = |of: &Json| {
        let text = |key: &str| of[key].as_str();
        let parameters = Vec::<(String, String)>::deserialize(&of["parameters"]).ok()?;
        Some(StandingOrder {
            kind: OrderKind::ALL.into_iter().find(|kind| text("order") == Some(kind.label()))?,
            type_url: text("type_url")?.into(),
            parameters: parameters.into_iter().collect(),
            name: text("name").map(Name::from),
            digest: text("digest").map(|digest| u128::from_str_radix(digest, 16)).transpose().ok()?,
            version: text("version").map(Into::into),
            note: Note { at: of["at"].as_u64()?, by: text("by")?.into() },
        })
    };
    let orders: Vec<Json> = serde_json::from_str(text).unwrap_or_default();
    orders.iter().filter_map(order).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Kind;

    #[test]
    fn identities_of_groups_and_stores_read_back() {
        let group = GroupId(r#"["a","b","b"]"#.to_owned());
        assert_eq!(group.parts(), Some(("a".to_owned(), "b".to_owned(), vec!["b".to_owned()])));
        assert_eq!((GroupId::own().to_string(), group.to_string()), ("own".to_owned(), "a:b".to_owned()));
        for pairs in [&[][..], &[("a", "b"), ("c", "\"")]] {
            let parameters = pairs.iter().copied().collect::<Parameters>();
            let id = StoreId { type_url: Kind::Cluster.into(), parameters };
            assert_eq!(parse_store(id.type_url.as_str(), &parameters_text(&id.parameters)), Some(id));
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
