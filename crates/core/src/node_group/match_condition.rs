//! One condition of a rule: a key of `match` and the pattern for its whole value.
//!
//! Owns reading the value. Of several names in a certificate, the first that matches is the value.

use std::borrow::Cow;

use regex::Regex;

use crate::identity::Certificate;
use crate::node_field::{FieldReader, Missing, NodeField, NodeFields};
use crate::proto::Node;
use crate::resource::Pattern;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub key: NodeField,
    pattern: Pattern,
}

impl Condition {
    /// `whole`: the equivalent anchored expression.
    pub fn new(key: NodeField, text: &str, whole: Regex) -> Self {
        Self { key, pattern: Pattern::new(text, whole) }
    }

    pub fn pattern(&self) -> &str {
        self.pattern.text()
    }

    pub(super) fn captures(&self) -> impl Iterator<Item = (usize, &str)> {
        self.pattern.regex().capture_names().enumerate().filter_map(|(at, name)| Some((at, name?)))
    }

    pub(super) fn value<'a>(
        &self,
        node: &FieldReader<'a>,
        proof: Option<&'a Certificate>,
    ) -> Result<Cow<'a, str>, Missing> {
        match &self.key {
            NodeField::San => self.name(proof.ok_or(Missing::NotSet)?, node.limit()),
            field => {
                let value = node.read(field)?;
                if self.pattern.matches(&value) { Ok(value) } else { Err(Missing::NoMatch) }
            }
        }
    }

    fn name<'a>(&self, proof: &'a Certificate, limit: usize) -> Result<Cow<'a, str>, Missing> {
        let id = proof.spiffe_id.as_deref().map(Cow::Borrowed);
        // DNS names have no case, so neither patterns nor keys depend on it.
        let dns = proof.dns_names.iter().map(|name| Cow::Owned(name.to_ascii_lowercase()));
        let mut missing = Missing::NotSet;
        for name in id.into_iter().chain(dns) {
            if name.len() > limit {
                missing = Missing::TooLong;
            } else if self.pattern.matches(&name) {
                return Ok(name);
            } else {
                missing = Missing::NoMatch;
            }
        }
        Err(missing)
    }

    /// Empty if the group took no part in the match.
    pub(super) fn capture(&self, value: &str, group: usize) -> Box<str> {
        let captures = self.pattern.regex().captures(value);
        captures
            .and_then(|captures| captures.get(group))
            .map_or_else(Box::default, |text| text.as_str().into())
    }
}

/// Conditions that a client must all meet.
#[derive(Clone, Debug)]
pub struct NodeMatch {
    conditions: Vec<Condition>,
    fields: NodeFields,
}

impl NodeMatch {
    /// Values longer than `max_value_bytes` match nothing.
    pub fn new(conditions: Vec<Condition>, max_value_bytes: usize) -> Self {
        let fields = NodeFields::new(conditions.iter().map(|condition| &condition.key), max_value_bytes);
        Self { conditions, fields }
    }

    /// Whether a client with this claimed node and proven certificate meets all.
    pub fn matches(&self, node: &Node, proof: Option<&Certificate>) -> bool {
        let spiffe_id = proof.and_then(|proof| proof.spiffe_id.as_deref());
        let node = self.fields.of(node, spiffe_id);
        self.conditions.iter().all(|condition| condition.value(&node, proof).is_ok())
    }
}
