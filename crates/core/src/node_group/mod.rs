//! Node groups: which clients share a subscription upstream, and the node that the control plane is shown (R-Relay-01, 02).
//!
//! Owns the rules of `groups:`, their reading of a node, and the node of each group. Knows nothing of caches, streams or the
//! file where the rules are written. [`Rule::new`] reads one rule and reports all faults of it; [`GroupRules::new`] puts
//! rules together with the relay's own node. [`GroupRules::place`] says where a client belongs, by its node and what its
//! certificate proves: in the relay's own group ([`Placement::Own`]), in a group of a rule ([`GroupPlace`]), or nowhere
//! ([`NoGroupError`]). Clients with equal [`GroupKey`]s are in one group. Its [node](GroupRules::node) is [`GroupNode::Made`],
//! to be sent upstream as it is, or [`GroupNode::Client`]: the caller sends the bytes of the node of one of the group's clients.
//! [`GroupRules::outcomes`] says for people why each rule matches or does not.
//!
//! Invariants: the first rule that matches decides · a made node depends on its group's key and the configuration alone, so
//! not on which client came first · no value is longer than the bound, and their number is bounded by the rules: neither key
//! nor node grow with what a client says · what a client has proven is never taken from its node.

mod condition;
mod rule;
mod template;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

pub use condition::{Condition, MatchKey};
pub use rule::{Fault, NodeSpec, Rule, RuleError, RuleSpec};
pub use template::TemplateError;

use crate::identity::Certificate;
use crate::node_field::{FieldReader, Missing, NodeFields};
use crate::proto::Node;

/// Names of rules that a refusal lists.
const LISTED: usize = 20;

/// Group of clients that no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// The group of the relay's own node.
    #[default]
    Own,
    /// None: they are refused.
    Refuse,
}

/// Rules that place clients in groups. The default places all in the relay's own.
#[derive(Clone, Debug, Default)]
pub struct GroupRules {
    rules: Vec<Rule>,
    unmatched: Unmatched,
    own: Node,
    max_value_bytes: usize,
    fields: NodeFields,
}

/// Group of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The group of the relay's own node.
    Own,
    /// A group that a rule makes.
    Group(GroupPlace),
}

/// Group that a rule makes of clients with the same values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// Index of the rule.
    pub rule: usize,
    /// Name of the rule, which no other has: the label of metrics. It is the operator's, never a client's.
    pub name: Arc<str>,
    /// Identity of the group.
    pub key: GroupKey,
}

/// Identity of a group: the name of its rule and the values in the rule's `key`. Where the node is that of a client, the names in
/// the client's certificate are the last value.
///
/// Two keys with the same text are equal only if the values in it are: `${a}-${b}` of `x-y`, `z` is not that of `x`, `y-z`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    rule: Arc<str>,
    text: Arc<str>,
    values: Arc<[Box<str>]>,
}

/// Node of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupNode {
    /// This one, whoever the clients are.
    Made(Box<Node>),
    /// That of one of its clients, verbatim.
    Client,
}

/// Refusal of a client that no rule matches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node group takes this client: {}", in_words(.tried))]
pub struct NoGroupError {
    /// Names of the rules that were tried, in their order.
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

/// Result of one rule for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOutcome<'a> {
    /// Each condition, with the value that matches or the reason why none does.
    pub conditions: Vec<(&'a Condition, Result<Cow<'a, str>, Missing>)>,
    /// Value in the rule's key that is longer than the bound, so that the rule does not match.
    pub too_long: Option<String>,
}

impl RuleOutcome<'_> {
    /// Whether the rule matches.
    pub fn matches(&self) -> bool {
        self.too_long.is_none() && self.conditions.iter().all(|(_, result)| result.is_ok())
    }
}

impl GroupRules {
    /// Rules in the order in which they are tried; no two may have the same name. Fields that a made node does not say are
    /// those of `own`, the relay's node. Longer values than `max_value_bytes` match nothing.
    pub fn new(rules: Vec<Rule>, unmatched: Unmatched, own: Node, max_value_bytes: usize) -> Self {
        let fields = NodeFields::new(rules.iter().flat_map(Rule::fields));
        Self { rules, unmatched, own, max_value_bytes, fields }
    }

    /// Whether there are no rules and all clients are in the relay's own group, whatever their nodes say.
    pub fn is_trivial(&self) -> bool {
        self.rules.is_empty() && self.unmatched == Unmatched::Own
    }

    /// Names of the rules, in their order.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().map(Rule::name)
    }

    /// Group of a client that says it is this node, and has proven to hold this certificate.
    ///
    /// # Errors
    ///
    /// [`NoGroupError`] if no rule matches and such clients are refused.
    pub fn place(&self, node: &Node, proof: Option<&Certificate>) -> Result<Placement, NoGroupError> {
        let node = self.reader(node, proof);
        for (at, rule) in self.rules.iter().enumerate() {
            let Some(key) = rule.key(&node, proof) else { continue };
            return Ok(Placement::Group(GroupPlace { rule: at, name: Arc::clone(rule.name()), key }));
        }
        match self.unmatched {
            Unmatched::Own => Ok(Placement::Own),
            Unmatched::Refuse => {
                let tried = self.rules.iter().map(|rule| Arc::clone(rule.name())).collect();
                Err(NoGroupError { tried })
            }
        }
    }

    fn reader<'a>(&'a self, node: &'a Node, proof: Option<&'a Certificate>) -> FieldReader<'a> {
        let spiffe_id = proof.and_then(|proof| proof.spiffe_id.as_deref());
        self.fields.of(node, spiffe_id, self.max_value_bytes)
    }

    /// Node of a group of these rules, which is made anew each time: to be asked when the group is.
    pub fn node(&self, place: &GroupPlace) -> GroupNode {
        self.rules[place.rule].node(&place.key, &self.own)
    }

    /// Whether groups of its rule differ by what their clients have proven.
    pub fn is_by_identity(&self, place: &GroupPlace) -> bool {
        self.rules[place.rule].is_by_identity()
    }

    /// Whether the node of a group of these rules is that of one of its clients.
    pub fn lends(&self, place: &GroupPlace) -> bool {
        self.rules[place.rule].lends()
    }

    /// Result of each rule for people, also of those after the one that decides.
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
    /// Name of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Values in the key, by which groups with equal texts differ.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|value| &**value)
    }

    /// Text of the key; empty where the rule has none. It may hold what a client chose: no label of a metric.
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
