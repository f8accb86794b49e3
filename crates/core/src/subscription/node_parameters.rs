//! The dynamic parameters that a client is given by the operator's rules, from the node that it says it is (R-DP-17).
//!
//! Owns the rules and their reading of a node. Knows nothing of requests, of variants or of the file where the rules are
//! written.
//!
//! Invariants: what a client is given depends on its node, its SPIFFE ID and the rules alone · no value is longer than the bound, so
//! neither is what a pattern is matched against · without rules nothing is looked at and nothing allocated.

use std::borrow::Cow;

use regex::Regex;

use crate::node_field::{FieldReader, Missing, NodeField, NodeFields};
use crate::proto::Node;
use crate::resource::Parameters;

/// Parameters given to clients that send none.
#[derive(Clone, Debug, Default)]
pub struct NodeParameterRules {
    rules: Vec<Rule>,
    max_value_bytes: usize,
    fields: NodeFields,
}

/// Where the value of one key comes from.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The key.
    pub key: Box<str>,
    /// Field that is looked at.
    pub from: NodeField,
    /// Form that its text must have. The first group of a match is the value; without a pattern all of it is.
    pub pattern: Option<Regex>,
    /// The value where there is none, or none that matches.
    pub default: Option<Box<str>>,
}

/// Result of one rule for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The node has the value.
    Found(Cow<'a, str>),
    /// It has not, for this reason, and the rule has a default.
    Default(&'a str, Missing),
    /// It has not, for this reason, and the key is absent.
    Absent(Missing),
}

impl NodeParameterRules {
    /// No two rules may be for the same key; of those that are, the last would count.
    pub fn new(rules: Vec<Rule>, max_value_bytes: usize) -> Self {
        let fields = NodeFields::new(rules.iter().map(|rule| &rule.from));
        Self { rules, max_value_bytes, fields }
    }

    /// Whether there are no rules, and a node need not be read any further for them.
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Parameters given to a client that says it is this node, and has proven to have this SPIFFE ID.
    pub fn parameters(&self, node: &Node, spiffe_id: Option<&str>) -> Parameters {
        if self.is_empty() {
            return Parameters::NONE;
        }
        let value = |(rule, outcome)| match outcome {
            Outcome::Found(value) => Some((rule, value)),
            Outcome::Default(value, _) => Some((rule, Cow::Borrowed(value))),
            Outcome::Absent(_) => None,
        };
        self.outcomes(node, spiffe_id)
            .filter_map(value)
            .map(|(rule, value): (&Rule, _)| (rule.key.clone(), value))
            .collect()
    }

    /// Parameters that are no claim of the client's: the values that come from its SPIFFE ID.
    pub(super) fn proven(&self, spiffe_id: Option<&str>) -> Parameters {
        if spiffe_id.is_none() {
            return Parameters::NONE;
        }
        let nobody = Node::default();
        let proven = |(rule, outcome): (&Rule, _)| match outcome {
            Outcome::Found(value) if rule.from == NodeField::SpiffeId => Some((rule.key.clone(), value)),
            _ => None,
        };
        self.outcomes(&nobody, spiffe_id).filter_map(proven).collect()
    }

    /// Result of each rule, for people.
    pub fn outcomes<'a>(
        &'a self,
        node: &'a Node,
        spiffe_id: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Rule, Outcome<'a>)> {
        let node = self.fields.of(node, spiffe_id, self.max_value_bytes);
        self.rules.iter().map(move |rule| {
            let outcome = match (rule.value(&node), &rule.default) {
                (Ok(value), _) => Outcome::Found(value),
                (Err(missing), Some(default)) => Outcome::Default(default, missing),
                (Err(missing), None) => Outcome::Absent(missing),
            };
            (rule, outcome)
        })
    }
}

impl Rule {
    fn value<'a>(&self, node: &FieldReader<'a>) -> Result<Cow<'a, str>, Missing> {
        let value = node.read(&self.from)?;
        let Some(pattern) = &self.pattern else { return Ok(value) };
        let group =
            pattern.captures(&value).and_then(|groups| groups.get(1)).ok_or(Missing::NoMatch)?.range();
        Ok(match value {
            Cow::Borrowed(text) => Cow::Borrowed(&text[group]),
            Cow::Owned(text) => Cow::Owned(text[group].to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
