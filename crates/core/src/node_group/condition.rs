//! One condition of a rule: a key of `match` and the pattern that its whole value has to match.
//!
//! Owns reading the value. Names of a certificate are several: the first that matches is the value.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use regex::Regex;

use crate::identity::Certificate;
use crate::node_field::{FieldReader, Missing, NodeField, NodeFieldError};

/// Field that a condition looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchKey {
    /// A field with one value.
    Field(NodeField),
    /// A subject alternative name that the client has proven to have: its SPIFFE ID, then its DNS names in lower case.
    San,
}

/// Pattern for the value of a field.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The field.
    pub key: MatchKey,
    text: Box<str>,
    whole: Regex,
}

impl MatchKey {
    /// Name of [`Self::San`].
    pub const SAN: &'static str = "peer.san";

    /// Whether the value is proven by the client's certificate, and no part of its node.
    pub fn is_proven(&self) -> bool {
        matches!(self, Self::San | Self::Field(NodeField::SpiffeId))
    }
}

impl FromStr for MatchKey {
    type Err = NodeFieldError;

    fn from_str(text: &str) -> Result<Self, NodeFieldError> {
        if text == Self::SAN { Ok(Self::San) } else { text.parse().map(Self::Field) }
    }
}

impl fmt::Display for MatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => field.fmt(f),
            Self::San => f.write_str(Self::SAN),
        }
    }
}

impl Condition {
    /// A pattern as it is written, and the expression that is anchored at both ends and means the same.
    pub fn new(key: MatchKey, text: &str, whole: Regex) -> Self {
        Self { key, text: text.into(), whole }
    }

    /// The pattern as it is written.
    pub fn pattern(&self) -> &str {
        &self.text
    }

    /// Names of the groups in the pattern, with their indexes.
    pub(super) fn captures(&self) -> impl Iterator<Item = (usize, &str)> {
        self.whole.capture_names().enumerate().filter_map(|(at, name)| Some((at, name?)))
    }

    /// Value that matches.
    pub(super) fn value<'a>(
        &self,
        node: &FieldReader<'a>,
        proof: Option<&'a Certificate>,
    ) -> Result<Cow<'a, str>, Missing> {
        match &self.key {
            MatchKey::Field(field) => {
                let value = node.read(field)?;
                if self.whole.is_match(&value) { Ok(value) } else { Err(Missing::NoMatch) }
            }
            MatchKey::San => self.name(proof.ok_or(Missing::NotSaid)?, node.limit),
        }
    }

    fn name<'a>(&self, proof: &'a Certificate, limit: usize) -> Result<Cow<'a, str>, Missing> {
        let id = proof.spiffe_id.as_deref().map(Cow::Borrowed);
        // DNS names have no case, so patterns need not care for it and keys do not differ by it.
        let dns = proof.dns_names.iter().map(|name| Cow::Owned(name.to_ascii_lowercase()));
        let mut missing = Missing::NotSaid;
        for name in id.into_iter().chain(dns) {
            if name.len() > limit {
                missing = Missing::TooLong;
            } else if self.whole.is_match(&name) {
                return Ok(name);
            } else {
                missing = Missing::NoMatch;
            }
        }
        Err(missing)
    }

    /// Text of a group in a value that matches. Empty if the group took no part in it.
    pub(super) fn capture(&self, value: &str, group: usize) -> Box<str> {
        let captures = self.whole.captures(value);
        captures
            .and_then(|captures| captures.get(group))
            .map_or_else(Box::default, |text| text.as_str().into())
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.text) == (&other.key, &other.text)
    }
}

impl Eq for Condition {}
