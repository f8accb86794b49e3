//! Node groups: which clients share a subscription upstream, and the node that the control plane
//! sees (R-Relay-01, 02).
//!
//! Owns the rules of `groups:`, their reading of a node, and the node of each group. Knows nothing
//! of caches, streams or the file with the rules.
//!
//! [`Rule::new`] parses a rule; [`GroupRules::new`] adds the relay's own node.
//! [`GroupRules::place`] places a client by its node and its certificate: in the relay's own group
//! (`None`), in a group of a rule ([`GroupPlace`]), or nowhere ([`NoGroupError`]).
//! Clients with equal [`GroupKey`]s share a group. Its [node](GroupRules::node) is
//! [`GroupNode::Made`], sent upstream as it is, or [`GroupNode::Client`], the bytes of the node of
//! one of its clients. [`GroupRules::outcomes`] explains the result of each rule.
//!
//! Invariants: the first rule that matches decides · a made node depends only on its group's key
//! and the configuration, not on which client came first · values are bounded in length, so neither
//! key nor node grow with a client's claims · proven names are never taken from a node.

mod group_rule;
mod match_condition;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

pub use group_rule::{Fault, Rule, RuleSpec};
pub use match_condition::{Condition, NodeMatch};

use crate::identity::Certificate;
use crate::node_field::{FieldReader, Missing, NodeFields};
use crate::proto::Node;

/// Most names in a refusal.
const LISTED: usize = 20;

/// Group of clients that no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    #[default]
    Own,
    Refuse,
}

/// The default places all clients in the relay's own group.
#[derive(Clone, Debug, Default)]
pub struct GroupRules {
    rules: Vec<Rule>,
    unmatched: Unmatched,
    own: Node,
    fields: NodeFields,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    pub rule: usize,
    pub key: GroupKey,
}

/// Identity of a group: the name of its rule and the values in the rule's `key`. If the group shows
/// the node of a client, the names in the certificate are the last value.
///
/// Keys with equal text differ if their values do: `${a}-${b}` of `x-y`, `z` is not that of `x`,
/// `y-z`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    rule: Arc<str>,
    text: Arc<str>,
    values: Arc<[Box<str>]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupNode {
    /// This node for all clients.
    Made(Box<Node>),
    /// That of one of its clients, verbatim.
    Client,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node group takes this client: {}", in_words(.tried))]
pub struct NoGroupError {
    pub tried: Vec<Arc<str>>,
}

fn in_words(names: &[Arc<str>]) -> String {
    if names.is_empty() {
        return "`groups.rules` is empty".to_owned();
    }
    let listed = names.iter().take(LISTED).map(|name| &**name).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => format!("it matches none of the rules {listed}"),
        more => format!("it matches none of the rules {listed} and {more} more"),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOutcome<'a> {
    pub conditions: Vec<(&'a Condition, Result<Cow<'a, str>, Missing>)>,
    /// Value in the rule's key that is too long to match.
    pub too_long: Option<String>,
}

impl RuleOutcome<'_> {
    pub fn matches(&self) -> bool {
        self.too_long.is_none() && self.conditions.iter().all(|(_, result)| result.is_ok())
    }
}

impl GroupRules {
    /// Rules in order, with unique names. A made node takes missing fields from `own`, the relay's
    /// node. Values longer than `max_value_bytes` match nothing.
    pub fn new(rules: Vec<Rule>, unmatched: Unmatched, own: Node, max_value_bytes: usize) -> Self {
        let fields = NodeFields::new(rules.iter().flat_map(Rule::fields), max_value_bytes);
        Self { rules, unmatched, own, fields }
    }

    pub fn is_trivial(&self) -> bool {
        self.rules.is_empty() && self.unmatched == Unmatched::Own
    }

    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().map(Rule::name)
    }

    /// Group of a client with this claimed node and proven certificate; `None`: the relay's own.
    ///
    /// # Errors
    ///
    /// [`NoGroupError`] if no rule matches and such clients are refused.
    pub fn place(
        &self,
        node: &Node,
        proof: Option<&Certificate>,
    ) -> Result<Option<GroupPlace>, NoGroupError> {
        let node = self.reader(node, proof);
        for (at, rule) in self.rules.iter().enumerate() {
            let Some(key) = rule.key(&node, proof) else { continue };
            return Ok(Some(GroupPlace { rule: at, key }));
        }
        match self.unmatched {
            Unmatched::Own => Ok(None),
            Unmatched::Refuse => {
                let tried = self.rules.iter().map(|rule| Arc::clone(rule.name())).collect();
                Err(NoGroupError { tried })
            }
        }
    }

    fn reader<'a>(&'a self, node: &'a Node, proof: Option<&'a Certificate>) -> FieldReader<'a> {
        let spiffe_id = proof.and_then(|proof| proof.spiffe_id.as_deref());
        self.fields.of(node, spiffe_id)
    }

    /// Built by each call.
    pub fn node(&self, place: &GroupPlace) -> GroupNode {
        self.rules[place.rule].node(&place.key, &self.own)
    }

    pub fn rule(&self, place: &GroupPlace) -> &Rule {
        &self.rules[place.rule]
    }

    /// Results for people, including rules after the one that decides.
    pub fn outcomes<'a>(
        &'a self,
        node: &'a Node,
        proof: Option<&'a Certificate>,
    ) -> impl Iterator<Item = (&'a Rule, RuleOutcome<'a>)> {
        let node = self.reader(node, proof);
        self.rules.iter().map(move |rule| (rule, rule.outcome(&node, proof)))
    }
}

impl GroupKey {
    /// Unique and set by the operator: safe as a metric label.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|value| &**value)
    }

    /// It may hold a client's text: never use it as a metric label.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() { f.write_str(&self.rule) } else { write!(f, "{}:{}", self.rule, self.text) }
    }
}

#[cfg(test)]
mod tests;
