//! Single fields of a node, as the rules of an operator name them (R-DP-17, R-Relay-01).
//!
//! Owns the names of the fields, and reading one of them without decoding the rest. Knows no rule. `peer.spiffe_id` is no
//! part of the node but proven by the client's certificate; it has its place here because rules name it in the same way.
//!
//! Invariants: no value is longer than the bound that the caller gives · no bytes of a node make a reader panic or recurse.

mod metadata;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::proto::Node;

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

/// Reason for which a node has no value for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is not there, or empty.
    NotSaid,
    /// It is null, a list, an object, or a number that is none.
    NoText,
    /// Its text is longer than a value may be.
    TooLong,
    /// It does not match the pattern, or the group that is the value takes no part in the match.
    NoMatch,
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

    /// Value of at most `limit` bytes in this node, or of this SPIFFE ID.
    pub(crate) fn read<'a>(
        &self,
        node: &'a Node,
        spiffe_id: Option<&'a str>,
        limit: usize,
    ) -> Result<Cow<'a, str>, Missing> {
        let locality = node.locality.as_ref();
        let text = match self {
            Self::Id => Some(&*node.id),
            Self::Cluster => Some(&*node.cluster),
            Self::Region => locality.map(|locality| &*locality.region),
            Self::Zone => locality.map(|locality| &*locality.zone),
            Self::SubZone => locality.map(|locality| &*locality.sub_zone),
            Self::UserAgentName => Some(&*node.user_agent_name),
            Self::SpiffeId => spiffe_id,
            Self::Metadata(path) => return bounded(metadata::text(&node.metadata, path)?, limit),
        };
        let text = text.filter(|text| !text.is_empty()).ok_or(Missing::NotSaid)?;
        bounded(Cow::Borrowed(text), limit)
    }
}

fn bounded(value: Cow<'_, str>, limit: usize) -> Result<Cow<'_, str>, Missing> {
    if value.len() > limit { Err(Missing::TooLong) } else { Ok(value) }
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
