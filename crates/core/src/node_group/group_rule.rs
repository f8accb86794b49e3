//! One rule of `groups.rules`: parsed once, with all of its faults.
//!
//! In its templates `${name}` stands for a value, and `$$` for a dollar. They are checked once, and filled in by name.
//!
//! Invariants: a node is built only from values in the key, not from other claims of a client · if
//! a group shows the node of a client, clients with different certificates are in different groups,
//! unless the operator's key uses a part of the certificate.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use prost::Message as _;
use serde_json::{Map, Value as Json};

use super::match_condition::Condition;
use super::{GroupKey, GroupNode, RuleOutcome};
use crate::identity::Certificate;
use crate::node_field::{FieldReader, Missing, NodeField};
use crate::proto::{self, Locality, Node};

/// Last value of a key, if groups differ by certificate.
const CERTIFICATE: &str = "the names in the certificate";

/// Rule as written, with templates.
#[derive(Clone, Debug)]
pub struct RuleSpec<'a> {
    /// Unique name.
    pub name: &'a str,
    pub conditions: Vec<Condition>,
    /// Without a template the rule has one group.
    pub key: Option<&'a str>,
    /// Fields of the node as JSON, with templates as texts: `id`, `cluster`, `locality` and `metadata`. Missing ones are
    /// those of the relay's own node. `None`: the node of one of the group's clients, verbatim.
    pub node: Option<Map<String, Json>>,
}

#[derive(Clone, Debug)]
pub struct Rule {
    name: Arc<str>,
    conditions: Vec<Condition>,
    /// Template.
    key: Box<str>,
    /// Values in the key, with their names there.
    values: Vec<(String, ValueSource)>,
    /// As of [`RuleSpec`].
    node: Option<Json>,
    by_identity: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValueSource {
    /// Named group in the pattern of a condition, both by index.
    Capture { condition: usize, group: usize },
    /// A missing field is empty text.
    Field(NodeField),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Keys such as `node`, `metadata`, `role`.
    pub path: Vec<String>,
    /// End of a message, after the name of the place.
    pub problem: String,
}

impl Rule {
    /// Parses a rule.
    ///
    /// # Errors
    ///
    /// Faults: repeated or invalid names of captures; texts that are no templates; unknown names of
    /// values; a value in `node` that is not in `key`, so that the node would depend on which client
    /// came first. The first one of each text.
    pub fn new(spec: RuleSpec<'_>) -> Result<Self, Vec<Fault>> {
        let RuleSpec { name, conditions, key, node } = spec;
        let (key, mut node) = (key.unwrap_or_default(), node.map(Json::Object));
        let (mut values, mut faults) = (Vec::<(String, ValueSource)>::new(), Vec::new());
        let mut fault = |path: &[String], problem| faults.push(Fault { path: path.to_vec(), problem });
        let captures = captures(&conditions, &mut fault);
        let read = fill(key, |name| {
            if values.iter().all(|(known, _)| known != name) {
                values.push((name.to_owned(), source(&captures, name)?));
            }
            Ok("")
        });
        if let Err(problem) = read {
            fault(&["key".to_owned()], problem);
        }
        let in_key = |name: &str| {
            match values.iter().find(|(known, _)| known == name) {
            Some(_) => Ok(""),
            None => source(&captures, name).and_then(|_| {
                Err(format!(
                    "`${{{name}}}` is not in `key`: clients of one group would differ in it; write it into `key` too"
                ))
            }),
        }
        };
        if let Some(node) = &mut node {
            each_text(node, &["node".to_owned()], &mut |path, text| {
                if let Err(problem) = fill(text, in_key) {
                    fault(path, problem);
                }
            });
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        // A node is a claim that configures the whole group. The operator may widen the group to a
        // part of the certificate.
        let is_proven = |(_, source): &(String, ValueSource)| match source {
            ValueSource::Capture { condition, .. } => conditions[*condition].key.is_proven(),
            ValueSource::Field(_) => false,
        };
        let by_identity = node.is_none() && !values.iter().any(is_proven);
        Ok(Self { name: name.into(), conditions, key: key.into(), values, node, by_identity })
    }

    /// Whether a client may join a group by its claims alone: the rule shows the node of a client,
    /// and no condition needs a certificate.
    pub fn trusts_claims(&self) -> bool {
        self.lends() && !self.conditions.iter().any(|condition| condition.key.is_proven())
    }

    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &NodeField> {
        let matched = self.conditions.iter().map(|condition| &condition.key);
        let valued = self.values.iter().filter_map(|(_, source)| match source {
            ValueSource::Field(field) => Some(field),
            ValueSource::Capture { .. } => None,
        });
        matched.chain(valued)
    }

    /// Whether its groups show the node of a client.
    pub const fn lends(&self) -> bool {
        self.node.is_none()
    }

    /// Whether its groups differ by certificate.
    pub const fn is_by_identity(&self) -> bool {
        self.by_identity
    }

    /// `None` if the rule does not match.
    pub(super) fn key<'a>(&self, node: &FieldReader<'a>, proof: Option<&'a Certificate>) -> Option<GroupKey> {
        let matching = |condition: &Condition| condition.value(node, proof).ok();
        let matched = self.conditions.iter().map(matching).collect::<Option<Vec<_>>>()?;
        if self.too_long(node, proof).is_some() {
            return None;
        }
        let value = |(_, source): &(String, ValueSource)| match source {
            ValueSource::Capture { condition, group } => {
                self.conditions[*condition].capture(&matched[*condition], *group)
            }
            ValueSource::Field(field) => node.read(field).unwrap_or_default().into(),
        };
        let identity = self.identity(proof);
        let values = self.values.iter().map(value).chain(identity.as_deref().map(Into::into));
        let values: Arc<[Box<str>]> = values.collect();
        let text = self.fill(&self.key, &values);
        let text = match identity {
            Some(identity) if text.is_empty() => format!("({identity})"),
            Some(identity) => format!("{text} ({identity})"),
            None => text,
        };
        Some(GroupKey { rule: Arc::clone(&self.name), text: text.into(), values })
    }

    /// Last value of the key, if groups differ by certificate.
    fn identity<'a>(&self, proof: Option<&'a Certificate>) -> Option<Cow<'a, str>> {
        proof.filter(|_| self.by_identity).map(Certificate::names)
    }

    /// Value in the key that is too long to match.
    fn too_long(&self, node: &FieldReader<'_>, proof: Option<&Certificate>) -> Option<String> {
        let is_long = |source: &ValueSource| match source {
            ValueSource::Field(field) => node.read(field) == Err(Missing::TooLong),
            ValueSource::Capture { .. } => false,
        };
        let identity = self.identity(proof).filter(|identity| identity.len() > node.limit());
        let value = self.values.iter().find(|(_, source)| is_long(source)).map(|(name, _)| name.clone());
        value.or_else(|| identity.map(|_| CERTIFICATE.to_owned()))
    }

    /// Fills in a template that [`new`](Self::new) has read.
    fn fill(&self, template: &str, values: &[Box<str>]) -> String {
        let named = |name: &str| self.values.iter().zip(values).find(|((known, _), _)| known == name);
        fill(template, |name| Ok(named(name).map_or("", |(_, value)| value))).unwrap_or_default()
    }

    pub(super) fn node(&self, key: &GroupKey, own: &Node) -> GroupNode {
        let Some(mut made) = self.node.clone() else { return GroupNode::Client };
        each_text(&mut made, &[], &mut |_, text| *text = self.fill(text, &key.values));
        let text = |of: &Map<String, Json>, field| of.get(field).and_then(Json::as_str).map(str::to_owned);
        let object = |field| made.get(field).and_then(Json::as_object);
        let own = own.clone();
        let locality = object("locality").map(|of| {
            let [region, zone, sub_zone] =
                ["region", "zone", "sub_zone"].map(|part| text(of, part).unwrap_or_default());
            Locality { region, zone, sub_zone }
        });
        let metadata = object("metadata").map(|fields| proto::structure(fields).encode_to_vec().into());
        GroupNode::Made(Box::new(Node {
            id: made["id"].as_str().map_or(own.id, str::to_owned),
            cluster: made["cluster"].as_str().map_or(own.cluster, str::to_owned),
            locality: locality.or(own.locality),
            metadata: metadata.unwrap_or(own.metadata),
            ..own
        }))
    }

    pub(super) fn outcome<'a>(
        &'a self,
        node: &FieldReader<'a>,
        proof: Option<&'a Certificate>,
    ) -> RuleOutcome<'a> {
        let result = |condition: &'a Condition| (condition, condition.value(node, proof));
        RuleOutcome {
            conditions: self.conditions.iter().map(result).collect(),
            too_long: self.too_long(node, proof),
        }
    }
}

/// Named groups of all patterns, in one namespace.
fn captures<'c>(
    conditions: &'c [Condition],
    fault: &mut impl FnMut(&[String], String),
) -> HashMap<&'c str, ValueSource> {
    let mut captures = HashMap::new();
    for (condition, of) in conditions.iter().enumerate() {
        let path = ["match".to_owned(), of.key.to_string()];
        for (group, name) in of.captures() {
            if !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                let problem = format!("the name `{name}` of a group has more than letters, digits and `_`");
                fault(&path, problem);
            } else if captures.insert(name, ValueSource::Capture { condition, group }).is_some() {
                fault(&path, format!("another pattern has a group `{name}` too; give each its own name"));
            }
        }
    }
    captures
}

/// Source of a value by its name.
fn source(captures: &HashMap<&str, ValueSource>, name: &str) -> Result<ValueSource, String> {
    if let Some(source) = captures.get(name) {
        return Ok(source.clone());
    }
    match name.parse() {
        Ok(NodeField::San) => Err(format!(
            "`${{{name}}}` has several values; name a group in its pattern in `match`, as in (?P<name>.*)"
        )),
        Ok(field) => Ok(ValueSource::Field(field)),
        Err(_) if captures.is_empty() => Err(format!(
            "`${{{name}}}` is no value: no pattern in `match` has a named group, as in (?P<name>.*); fields are \
             written as in ${{node.id}}"
        )),
        Err(_) => {
            let mut names: Vec<&str> = captures.keys().copied().collect();
            names.sort_unstable();
            Err(format!(
                "`${{{name}}}` is no value; groups in `match` are {}; fields are written as in ${{node.id}}",
                names.join(", ")
            ))
        }
    }
}

/// Fills in a template: `value` gives a value by its name.
///
/// # Errors
///
/// The text is no template, or `value` fails.
fn fill<'v>(
    mut rest: &str,
    mut value: impl FnMut(&str) -> Result<&'v str, String>,
) -> Result<String, String> {
    let mut filled = String::new();
    while let Some((before, after)) = rest.split_once('$') {
        filled += before;
        if let Some(after) = after.strip_prefix('$') {
            filled.push('$');
            rest = after;
            continue;
        }
        let after = after
            .strip_prefix('{')
            .ok_or("has a `$` that stands for nothing; write ${NAME} for a value, $$ for a dollar")?;
        let (name, after) = after.split_once('}').ok_or("has a `${` without its `}`")?;
        filled += value(name)?;
        rest = after;
    }
    Ok(filled + rest)
}

/// Visits each text of a JSON value, with its path. Recursion is bounded by the parser's depth.
fn each_text(json: &mut Json, path: &[String], visit: &mut dyn FnMut(&[String], &mut String)) {
    match json {
        Json::String(text) => visit(path, text),
        Json::Array(items) => items.iter_mut().for_each(|item| each_text(item, path, visit)),
        Json::Object(fields) => {
            for (key, field) in fields {
                each_text(field, &[path, std::slice::from_ref(key)].concat(), visit);
            }
        }
        _ => {}
    }
}
