//! Fields of a node that the operator's rules name (R-DP-17, R-Relay-01).
//!
//! Owns the names of the fields, and reading one of them without decoding the rest. Knows no rule.
//! `peer.spiffe_id` and `peer.san` are not part of the node but proven by the client's certificate;
//! rules name them alike.
//!
//! Invariants: no value is longer than the caller's bound · no node makes a reader panic · a node
//! is read once for all rules.

mod metadata;
mod node_equality;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::str::FromStr;

pub use metadata::Missing;
pub use node_equality::are_same_nodes;

use crate::proto::Node;
use metadata::{Values, bounded, values};

/// Field of a node. An empty one counts as missing, except for metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeField {
    Id,
    Cluster,
    Region,
    Zone,
    SubZone,
    UserAgentName,
    /// Proven SPIFFE ID of the client, which is not part of the node.
    SpiffeId,
    /// Proven names of the client: the SPIFFE ID, then DNS names in lower case. Only conditions read them.
    San,
    /// Value at these keys in `metadata`: a string, or a number or boolean as in JSON.
    Metadata(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeFieldError {
    #[error("no part of a node")]
    Unknown,
    /// Two dots in a row, or one at an end, in a metadata path.
    #[error("an empty key in the path")]
    EmptyKey,
}

impl NodeField {
    /// Names of the fields outside of the metadata.
    pub const NAMED: [(&'static str, Self); 8] = [
        ("node.id", Self::Id),
        ("node.cluster", Self::Cluster),
        ("node.locality.region", Self::Region),
        ("node.locality.zone", Self::Zone),
        ("node.locality.sub_zone", Self::SubZone),
        ("node.user_agent_name", Self::UserAgentName),
        ("peer.spiffe_id", Self::SpiffeId),
        ("peer.san", Self::San),
    ];
    /// Prefix of metadata fields; keys joined by dots follow.
    pub const METADATA: &'static str = "node.metadata.";

    /// Whether the client's certificate proves it.
    pub const fn is_proven(&self) -> bool {
        matches!(self, Self::SpiffeId | Self::San)
    }
}

/// Fields that rules read.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFields {
    /// Sorted paths of those in the metadata.
    paths: Vec<Vec<String>>,
    /// Bytes of the longest value.
    limit: usize,
}

impl NodeFields {
    /// Fields whose values have at most `limit` bytes.
    pub(crate) fn new<'a>(fields: impl IntoIterator<Item = &'a NodeField>, limit: usize) -> Self {
        let path = |field: &NodeField| match field {
            NodeField::Metadata(path) => Some(path.clone()),
            _ => None,
        };
        let mut paths: Vec<_> = fields.into_iter().filter_map(path).collect();
        paths.sort_unstable();
        paths.dedup();
        Self { paths, limit }
    }

    /// Reader of these fields for one client.
    pub(crate) const fn of<'a>(&'a self, node: &'a Node, spiffe_id: Option<&'a str>) -> FieldReader<'a> {
        FieldReader { fields: self, node, spiffe_id, metadata: OnceCell::new() }
    }
}

#[derive(Debug)]
pub(crate) struct FieldReader<'a> {
    fields: &'a NodeFields,
    node: &'a Node,
    spiffe_id: Option<&'a str>,
    /// Values in the metadata, read on first use.
    metadata: OnceCell<Values<'a>>,
}

impl<'a> FieldReader<'a> {
    /// Value of a field, which must be one of the reader's.
    pub(crate) fn read(&self, field: &NodeField) -> Result<Cow<'a, str>, Missing> {
        let (node, locality) = (self.node, self.node.locality.as_ref());
        let text = match field {
            NodeField::Id => Some(&*node.id),
            NodeField::Cluster => Some(&*node.cluster),
            NodeField::Region => locality.map(|locality| &*locality.region),
            NodeField::Zone => locality.map(|locality| &*locality.zone),
            NodeField::SubZone => locality.map(|locality| &*locality.sub_zone),
            NodeField::UserAgentName => Some(&*node.user_agent_name),
            NodeField::SpiffeId => self.spiffe_id,
            NodeField::San => None,
            NodeField::Metadata(path) => return self.metadata(path),
        };
        let text = text.filter(|text| !text.is_empty()).ok_or(Missing::NotSet)?;
        bounded(Cow::Borrowed(text), self.limit())
    }

    /// Bytes of the longest value.
    pub(crate) const fn limit(&self) -> usize {
        self.fields.limit
    }

    fn metadata(&self, path: &[String]) -> Result<Cow<'a, str>, Missing> {
        let index =
            self.fields.paths.binary_search_by(|known| known[..].cmp(path)).map_err(|_| Missing::NotSet)?;
        let values =
            self.metadata.get_or_init(|| values(&self.fields.paths, &self.node.metadata, self.limit()));
        values[index].clone()
    }
}

impl FromStr for NodeField {
    type Err = NodeFieldError;

    fn from_str(text: &str) -> Result<Self, NodeFieldError> {
        if let Some((_, field)) = Self::NAMED.into_iter().find(|(name, _)| *name == text) {
            return Ok(field);
        }
        let path = text.strip_prefix(Self::METADATA).ok_or(NodeFieldError::Unknown)?;
        let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
        if keys.iter().any(String::is_empty) {
            Err(NodeFieldError::EmptyKey)
        } else {
            Ok(Self::Metadata(keys))
        }
    }
}

impl fmt::Display for NodeField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata(keys) => write!(f, "{}{}", Self::METADATA, keys.join(".")),
            field => {
                let named = Self::NAMED.into_iter().find(|(_, known)| known == field);
                f.write_str(named.map_or("", |(name, _)| name))
            }
        }
    }
}
