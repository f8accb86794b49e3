//! `groups`: rules that place clients in node groups.
//!
//! Owns the notation of rules and of a group's node. The core reads templates; their faults become lines of
//! the file here. Every rule that parses can be followed.

use serde_json::{Map, Value as Json};

use super::errors::quoted;
use super::node::Locality;
use super::notation::{
    Anything, Choice, Count, Filled, List, Nested, Notation, OneOf, Optional, Text, expression,
};
use super::place::{Place, check_unique};
use super::schema::Printed;
use super::section::section;
use super::values::no_field;
use crate::node_group::{Condition, Fault, Rule, RuleSpec, Unmatched};

const MAX_NAME: usize = 63;
/// The relay's own group; no rule may have this name.
const OWN: &str = "own";
/// The node of one of the group's clients.
const CLIENT: &str = "client";

section! {
    /// The rules, and the group of clients that match none.
    #[check(check_rules)]
    pub struct Groups {
        /// Clients that match no rule: `own` puts them into the group of the relay's own `node`, `refuse` rejects them
        /// (PERMISSION_DENIED, REST 403).
        #[key(OneOf, default = Unmatched::Own)]
        pub default: Unmatched,
        /// Groups at a time, besides the relay's own. A client that needs a further one is refused.
        #[key(Count<1, 100_000>, default = 1024)]
        pub max: usize,
        /// The first rule that matches decides. `deltafan check --config FILE --node FILE` shows the group of a node, and why.
        #[key(List<Nested>, default = Vec::new())]
        pub rules: Vec<GroupRule>,
    }
}

impl Choice for Unmatched {
    const WORDS: &'static [(&'static str, Self)] = &[(OWN, Self::Own), ("refuse", Self::Refuse)];
}

section! {
    /// One rule.
    #[check(check_rule)]
    pub struct GroupRule {
        /// Label in metrics, unique: at most 63 letters, digits, `-`, `_` and `.`.
        #[key(Label, required = "a label for metrics", example = "edge")]
        name: String,
        /// All of these must match. Keys are those of `dynamic_parameters[].from`, or peer.san: any DNS name (in lower
        /// case) or the SPIFFE ID of the client's certificate. Values are regular expressions for the whole field.
        /// `key` and `node` may use a named group `(?P<name>...)`. Fields longer than `downstream.max_name_bytes` match
        /// nothing.
        #[key(
            Conditions, name = "match", required = "which clients it takes, as in {node.id: \"edge-.*\"}",
            example = "{node.id: \"edge-(?P<region>[a-z]+)-.*\", peer.spiffe_id: \"spiffe://mesh/ns/edge/.*\"}"
        )]
        conditions: Vec<Condition>,
        /// One group for each value of this text. ${name} is a named group in `match`, or a field such as ${node.id} or
        /// ${peer.spiffe_id}; absent ones are empty text. $$ is a dollar sign. Default: one group for the rule. With
        /// `node: client` each authenticated identity has its own group per value, unless the text holds a named group
        /// of a `peer.` pattern.
        #[key(Optional<Text>, example = "\"${region}\"")]
        key: Option<String>,
        /// Node that the control plane sees: id, cluster, locality and metadata. Their texts may hold values that are
        /// in `key`; omitted parts come from the relay's own `node`. Or `client`: the node of one of the group's
        /// clients, verbatim.
        #[key(
            NodeOfGroup, required = "the node that the control plane sees, or `client`",
            example = "{id: \"edge-${region}\", cluster: edge, locality: {region: \"${region}\"}, metadata: {role: gateway}}"
        )]
        node: Option<Map<String, Json>>,
    }
}

section! {
    /// Node of a group, made from templates. What is absent is as in the relay's own node.
    #[derive(Eq)]
    struct MadeNode {
        /// Template of `node.id`.
        #[key(Filled, required = "the `node.id` that the control plane sees")]
        id: String,
        /// Template of `node.cluster`.
        #[key(Optional<Text>)]
        cluster: Option<String>,
        /// Templates of the parts of `node.locality`.
        #[key(Optional<Nested>)]
        locality: Option<Locality>,
        /// Metadata, whose texts are templates.
        #[key(Optional<Anything>)]
        metadata: Option<Map<String, Json>>,
    }
}

impl GroupRule {
    /// Parses the templates.
    ///
    /// # Errors
    ///
    /// Faults, which reading has reported.
    pub fn rule(&self) -> Result<Rule, Vec<Fault>> {
        let Self { name, conditions, key, node } = self.clone();
        Rule::new(RuleSpec { name: &name, conditions, key: key.as_deref(), node })
    }
}

fn check_rule(rule: &GroupRule, place: &Place<'_>) {
    for fault in rule.rule().err().into_iter().flatten() {
        fault.path.iter().fold(place.clone(), |place, key| place.at(key)).wrong(&fault.problem);
    }
}

fn check_rules(groups: &Groups, place: &Place<'_>) {
    let rules = place.at("rules").items().into_iter().flatten().zip(&groups.rules);
    check_unique(rules.map(|(place, rule)| (place.at("name"), &rule.name)), "is the name of the rule");
}

/// Label of metrics.
#[derive(Debug)]
struct Label;

impl Notation<String> for Label {
    fn read(place: &Place<'_>) -> Option<String> {
        place.parsed(|text| {
            if text == OWN {
                return Err(format!("`{OWN}` is the group of the relay's own node; choose another name"));
            }
            let is_label = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_label) {
                return Ok(text.to_owned());
            }
            Err(format!(
                "{} is no label; write at most {MAX_NAME} letters, digits, `-`, `_` and `.`",
                quoted(text)
            ))
        })
    }

    fn print(value: &String) -> Option<Printed> {
        Text::print(value)
    }
}

#[derive(Debug)]
pub(super) struct Conditions;

impl Notation<Vec<Condition>> for Conditions {
    fn read(place: &Place<'_>) -> Option<Vec<Condition>> {
        if !place.is_there() || !place.is_mapping("a mapping") {
            return None;
        }
        if place.children().next().is_none() {
            place.wrong(
                "is empty, so that it takes every client; write node.id: \".*\" for all with a `node.id`",
            );
            return None;
        }
        let condition = |(key, place): (&str, Place<'_>)| {
            let field = key.parse().map_err(|error| place.wrong(&no_field(error, &[], key))).ok();
            let pattern = place.parsed(|text| Ok((text.to_owned(), expression(text)?)));
            field.zip(pattern).map(|(field, (text, whole))| Condition::new(field, &text, whole))
        };
        // Reads all of them: all problems are reported.
        let conditions: Vec<Option<Condition>> = place.children().map(condition).collect();
        let mut conditions: Vec<Condition> = conditions.into_iter().collect::<Option<_>>()?;
        conditions.sort_by_key(|condition| condition.key.to_string());
        Some(conditions)
    }

    fn print(value: &Vec<Condition>) -> Option<Printed> {
        let entry = |condition: &Condition| (condition.key.to_string(), condition.pattern().into());
        Some(Printed::Value(Json::Object(value.iter().map(entry).collect())))
    }
}

/// Node of a group: a mapping, or the word `client`, which is `None`.
#[derive(Debug)]
struct NodeOfGroup;

impl Notation<Option<Map<String, Json>>> for NodeOfGroup {
    fn read(place: &Place<'_>) -> Option<Option<Map<String, Json>>> {
        if place.text() == Some(CLIENT) {
            return Some(None);
        }
        if !place.is_there() || !place.is_mapping("`client` or a mapping") {
            return None;
        }
        let node: MadeNode = Nested::read(place)?;
        match serde_json::to_value(Nested::print(&node)) {
            Ok(Json::Object(fields)) => Some(Some(fields)),
            _ => None,
        }
    }

    fn print(value: &Option<Map<String, Json>>) -> Option<Printed> {
        let node = value.as_ref().map_or_else(|| CLIENT.into(), |fields| Json::Object(fields.clone()));
        Some(Printed::Value(node))
    }
}
