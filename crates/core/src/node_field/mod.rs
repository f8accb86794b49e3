//! Single fields of a node, as the rules of an operator name them (R-DP-17, R-Relay-01).
//!
//! Owns the names of the fields, and reading one of them without decoding the rest. Knows no rule. `peer.spiffe_id` is no
//! part of the node but proven by the client's certificate; it has its place here because rules name it in the same way.
//!
//! Invariants: no value is longer than the bound that the caller gives · no bytes of a node make a reader panic · a node is
//! read once for all rules, however many they are.

mod metadata;
mod missing;
mod same;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::str::FromStr;

pub use missing::Missing;
pub use same::are_same_nodes;

use crate::proto::Node;
use metadata::{Paths, Values};
use missing::bounded;

/// A field of a node. An empty one counts as not told, but for a text in the metadata, which is there or is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeField {
    /// `id`
    Id,
    /// `cluster`
    Cluster,
    /// `locality.region`
    Region,
    /// `locality.zone`
    Zone,
    /// `locality.sub_zone`
    SubZone,
    /// `user_agent_name`
    UserAgentName,
    /// The SPIFFE ID that the client has proven to have: no part of the node.
    SpiffeId,
    /// The value that these keys lead to in `metadata`: a text, or a number or a boolean as JSON writes it.
    Metadata(Vec<String>),
}

/// Text that names no field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeFieldError {
    /// No field has this name.
    #[error("no part of a node")]
    Unknown,
    /// Two dots in a row, or one at an end, in a path into the metadata.
    #[error("an empty key in the path")]
    EmptyKey,
}

impl NodeField {
    /// Names of the fields that are not in the metadata.
    pub const NAMED: [(&'static str, Self); 7] = [
        ("node.id", Self::Id),
        ("node.cluster", Self::Cluster),
        ("node.locality.region", Self::Region),
        ("node.locality.zone", Self::Zone),
        ("node.locality.sub_zone", Self::SubZone),
        ("node.user_agent_name", Self::UserAgentName),
        ("peer.spiffe_id", Self::SpiffeId),
    ];
    /// Beginning of the names of fields in the metadata; keys joined by dots follow.
    pub const METADATA: &'static str = "node.metadata.";
}

/// Fields that rules look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFields(Paths);

impl NodeFields {
    /// The fields of some rules.
    pub(crate) fn new<'a>(fields: impl IntoIterator<Item = &'a NodeField>) -> Self {
        let mut paths = Paths::default();
        for field in fields {
            if let NodeField::Metadata(path) = field {
                paths.add(path);
            }
        }
        Self(paths)
    }

    /// Reader of these fields in this node, and of this SPIFFE ID. Values have at most `limit` bytes.
    pub(crate) const fn of<'a>(
        &'a self,
        node: &'a Node,
        spiffe_id: Option<&'a str>,
        limit: usize,
    ) -> FieldReader<'a> {
        FieldReader { paths: &self.0, node, spiffe_id, limit, metadata: OnceCell::new() }
    }
}

/// Reader of the fields of one client.
#[derive(Debug)]
pub(crate) struct FieldReader<'a> {
    paths: &'a Paths,
    node: &'a Node,
    spiffe_id: Option<&'a str>,
    /// Longest value in bytes.
    pub(crate) limit: usize,
    /// Values in the metadata, from the first time that one is asked for.
    metadata: OnceCell<Values<'a>>,
}

impl<'a> FieldReader<'a> {
    /// Value of a field, which is one of those that the reader was made for.
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
            NodeField::Metadata(path) => return self.metadata(path),
        };
        let text = text.filter(|text| !text.is_empty()).ok_or(Missing::NotSaid)?;
        bounded(Cow::Borrowed(text), self.limit)
    }

    fn metadata(&self, path: &[String]) -> Result<Cow<'a, str>, Missing> {
        let index = self.paths.index(path).ok_or(Missing::NotSaid)?;
        let values = self.metadata.get_or_init(|| self.paths.values(&self.node.metadata, self.limit));
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
