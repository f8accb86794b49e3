//! One rule of `groups.rules`: parsed once, with all of its faults.
//!
//! In its templates `${name}` stands for a value, and `$$` for a dollar. They are parsed once, with names resolved to indexes
//! of values.
//!
//! Invariants: a node is built only from values in the key, not from other claims of a client · if
//! a group shows the node of a client, clients with different certificates are in different groups,
//! unless the operator's key uses a part of the certificate.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use prost::Message as _;
use serde_json::{Map, Value as Json};

use super::match_condition::{Condition, MatchKey};
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
    key: Template,
    values: Vec<ValueSource>,
    /// As of [`RuleSpec`].
    node: Option<Vec<(String, Tree)>>,
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
    /// Every fault: repeated or invalid names of captures; texts that are no
    /// templates; unknown names of values; a value in `node` that is not in `key`,
    /// so that the node would depend on which client came first.
    pub fn new(spec: RuleSpec<'_>) -> Result<Self, Vec<Fault>> {
        let mut reader = Reader::of(&spec.conditions);
        let key = spec.key.map(|text| reader.key(text)).unwrap_or_default();
        let node = spec.node.map(|fields| reader.object(&path(&["node"]), &fields));
        let Reader { values, faults, .. } = reader;
        if !faults.is_empty() {
            return Err(faults);
        }
        let values: Vec<ValueSource> = values.into_iter().map(|(_, source)| source).collect();
        let conditions = spec.conditions;
        // A node is a claim that configures the whole group. The operator may widen the group to a
        // part of the certificate.
        let is_proven = |source: &ValueSource| match source {
            ValueSource::Capture { condition, .. } => conditions[*condition].key.is_proven(),
            ValueSource::Field(_) => false,
        };
        let by_identity = node.is_none() && !values.iter().any(is_proven);
        Ok(Self { name: spec.name.into(), conditions, key, values, node, by_identity })
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
        let matched = self.conditions.iter().filter_map(|condition| match &condition.key {
            MatchKey::Field(field) => Some(field),
            MatchKey::San => None,
        });
        let valued = self.values.iter().filter_map(|source| match source {
            ValueSource::Field(field) => Some(field),
            ValueSource::Capture { .. } => None,
        });
        matched.chain(valued)
    }

    /// Whether its groups show the node of a client.
    pub(super) const fn lends(&self) -> bool {
        self.node.is_none()
    }

    pub(super) const fn is_by_identity(&self) -> bool {
        self.by_identity
    }

    /// `None` if the rule does not match.
    pub(super) fn key<'a>(&self, node: &FieldReader<'a>, proof: Option<&'a Certificate>) -> Option<GroupKey> {
        let matching = |condition: &Condition| condition.value(node, proof).ok();
        let matched = self.conditions.iter().map(matching).collect::<Option<Vec<_>>>()?;
        let values = self.values.iter().map(|source| match source {
            ValueSource::Capture { condition, group } => {
                let of = self.conditions.get(*condition)?;
                Some(of.capture(matched.get(*condition)?, *group))
            }
            ValueSource::Field(field) => match node.read(field) {
                Ok(value) => Some(value.into()),
                Err(Missing::TooLong) => None,
                Err(_) => Some(Box::default()),
            },
        });
        let identity = self.identity(proof);
        if identity.as_ref().is_some_and(|identity| identity.len() > node.limit) {
            return None;
        }
        let values = values.chain(identity.as_deref().map(|identity| Some(identity.into())));
        let values = values.collect::<Option<Arc<[Box<str>]>>>()?;
        let text = self.key.fill(&values);
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

    pub(super) fn node(&self, key: &GroupKey, own: &Node) -> GroupNode {
        let Some(node) = &self.node else { return GroupNode::Client };
        let made = Tree::object(node, &key.values);
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
            id: text(&made, "id").unwrap_or(own.id),
            cluster: text(&made, "cluster").unwrap_or(own.cluster),
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
        let too_long = |source: &'a ValueSource| match source {
            ValueSource::Field(field) => {
                (node.read(field) == Err(Missing::TooLong)).then(|| field.to_string())
            }
            ValueSource::Capture { .. } => None,
        };
        let identity = self.identity(proof).filter(|identity| identity.len() > node.limit);
        RuleOutcome {
            conditions: self.conditions.iter().map(result).collect(),
            too_long: self
                .values
                .iter()
                .find_map(too_long)
                .or_else(|| identity.map(|_| CERTIFICATE.to_owned())),
        }
    }
}

fn path(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

struct Reader {
    /// In one namespace for all conditions.
    captures: HashMap<String, ValueSource>,
    values: Vec<(String, ValueSource)>,
    faults: Vec<Fault>,
}

impl Reader {
    fn of(conditions: &[Condition]) -> Self {
        let mut reader = Self { captures: HashMap::new(), values: Vec::new(), faults: Vec::new() };
        for (at, condition) in conditions.iter().enumerate() {
            let path = path(&["match", &condition.key.to_string()]);
            for (group, name) in condition.captures() {
                let source = ValueSource::Capture { condition: at, group };
                if !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                    reader.fault(
                        &path,
                        format!("the name `{name}` of a group has more than letters, digits and `_`"),
                    );
                } else if reader.captures.insert(name.to_owned(), source).is_some() {
                    reader.fault(
                        &path,
                        format!("another pattern has a group `{name}` too; give each its own name"),
                    );
                }
            }
        }
        reader
    }

    fn fault(&mut self, path: &[String], problem: String) {
        self.faults.push(Fault { path: path.to_vec(), problem });
    }

    fn key(&mut self, text: &str) -> Template {
        self.template(&path(&["key"]), text, |reader, path, name| {
            if let Some(at) = reader.values.iter().position(|(known, _)| known == name) {
                return Some(at);
            }
            let source = reader.source(path, name)?;
            reader.values.push((name.to_owned(), source));
            Some(reader.values.len() - 1)
        })
    }

    /// All values must be in the key.
    fn node(&mut self, path: &[String], text: &str) -> Template {
        self.template(path, text, |reader, path, name| {
            let at = reader.values.iter().position(|(known, _)| known == name);
            if at.is_none() && reader.source(path, name).is_some() {
                let problem = format!(
                    "`${{{name}}}` is not in `key`: clients of one group would differ in it; write it into `key` too"
                );
                reader.fault(path, problem);
            }
            at
        })
    }

    fn object(&mut self, path: &[String], fields: &Map<String, Json>) -> Vec<(String, Tree)> {
        let field = |(key, json): (&String, &Json)| {
            let path = [path, std::slice::from_ref(key)].concat();
            (key.clone(), self.tree(&path, json))
        };
        fields.iter().map(field).collect()
    }

    /// Recursion is bounded by the parser's depth.
    fn tree(&mut self, path: &[String], json: &Json) -> Tree {
        match json {
            Json::String(text) => Tree::Text(self.node(path, text)),
            Json::Array(items) => Tree::List(items.iter().map(|item| self.tree(path, item)).collect()),
            Json::Object(fields) => Tree::Object(self.object(path, fields)),
            other => Tree::Other(other.clone()),
        }
    }

    fn template(
        &mut self,
        path: &[String],
        text: &str,
        resolve: impl Fn(&mut Self, &[String], &str) -> Option<usize>,
    ) -> Template {
        let result = Template::parse(text, |name| resolve(self, path, name));
        result.unwrap_or_else(|error| {
            self.fault(path, error.to_owned());
            Template::default()
        })
    }

    fn source(&mut self, path: &[String], name: &str) -> Option<ValueSource> {
        if let Some(source) = self.captures.get(name) {
            return Some(source.clone());
        }
        if let Ok(field) = name.parse() {
            return Some(ValueSource::Field(field));
        }
        let problem = if name == MatchKey::SAN {
            format!(
                "`${{{name}}}` has several values; name a group in its pattern in `match`, as in (?P<name>.*)"
            )
        } else if self.captures.is_empty() {
            format!(
                "`${{{name}}}` is no value: no pattern in `match` has a named group, as in (?P<name>.*); fields are \
                 written as in ${{node.id}}"
            )
        } else {
            let mut names: Vec<&str> = self.captures.keys().map(String::as_str).collect();
            names.sort_unstable();
            format!(
                "`${{{name}}}` is no value; groups in `match` are {}; fields are written as in ${{node.id}}",
                names.join(", ")
            )
        };
        self.fault(path, problem);
        None
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Value(usize),
}

#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Text(Template),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
    /// Number, boolean or null.
    Other(Json),
}

impl Template {
    /// `resolve` returns the index of a named value, or records an error.
    fn parse(mut rest: &str, mut resolve: impl FnMut(&str) -> Option<usize>) -> Result<Self, &'static str> {
        let (mut pieces, mut text) = (Vec::new(), String::new());
        while let Some((before, after)) = rest.split_once('$') {
            text += before;
            if let Some(after) = after.strip_prefix('$') {
                text.push('$');
                rest = after;
                continue;
            }
            let after = after
                .strip_prefix('{')
                .ok_or("has a `$` that stands for nothing; write ${NAME} for a value, $$ for a dollar")?;
            let (name, after) = after.split_once('}').ok_or("has a `${` without its `}`")?;
            pieces.push(Piece::Text(std::mem::take(&mut text).into()));
            pieces.extend(resolve(name).map(Piece::Value));
            rest = after;
        }
        pieces.push(Piece::Text((text + rest).into()));
        Ok(Self(pieces))
    }

    fn fill(&self, values: &[Box<str>]) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Value(at) => values.get(*at).cloned().unwrap_or_default(),
        };
        self.0.iter().map(piece).collect()
    }
}

impl Tree {
    /// Fills in the values. Recursion is bounded by the parser's depth.
    fn fill(&self, values: &[Box<str>]) -> Json {
        match self {
            Self::Text(template) => template.fill(values).into(),
            Self::List(items) => items.iter().map(|item| item.fill(values)).collect(),
            Self::Object(fields) => Self::object(fields, values).into(),
            Self::Other(json) => json.clone(),
        }
    }

    pub(super) fn object(fields: &[(String, Self)], values: &[Box<str>]) -> Map<String, Json> {
        fields.iter().map(|(key, tree)| (key.clone(), tree.fill(values))).collect()
    }
}
