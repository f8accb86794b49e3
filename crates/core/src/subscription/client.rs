//! Node of a client: the features that it supports, and the dynamic parameters that follow from it (R-DP-17).
//!
//! Owns the names of features, and the operator's rules for parameters. Knows nothing of requests or variants.
//!
//! Invariants: parameters depend only on the node, the SPIFFE ID and the rules · the bound on
//! values bounds the input of patterns · without rules nothing is read or allocated.

use std::borrow::Cow;

use regex::Regex;
use serde::Serialize;

use crate::cache::{Protocol, TtlSupport};
use crate::node_field::{FieldReader, Missing, NodeField, NodeFields};
use crate::proto::Node;
use crate::resource::Parameters;

/// Node of the client, from its first request (R-EP-05).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Client {
    /// `node.id`
    #[serde(rename = "id")]
    pub node_id: String,
    /// `node.cluster`
    pub cluster: String,
    /// `node.user_agent_name`
    pub user_agent: String,
}

/// `user_agent_name` of a relay.
pub const USER_AGENT: &str = "deltafan";

pub(super) fn is_grpc(user_agent: &str) -> bool {
    user_agent.starts_with("gRPC")
}

/// Features after this many are ignored.
const LISTED: usize = 1024;

/// The client observes what the relay holds, without requests to the control plane. Other servers
/// ignore this.
pub const OBSERVER: &str = "deltafan.observer";
const RESOURCE_TTL: [&str; 2] = ["xds.config.supports-resource-ttl", "envoy.config.supports-resource-ttl"];
/// Documents and implementations spell this differently.
const RESOURCE_IN_SOTW: [&str; 3] =
    ["xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "envoy.config.resource-in-sotw"];

fn has_feature(node: &Node, names: &[&str]) -> bool {
    node.client_features.iter().take(LISTED).any(|feature| names.contains(&feature.as_str()))
}

pub fn observes(node: &Node) -> bool {
    has_feature(node, &[OBSERVER])
}

/// TTLs on a stream of this protocol (R-TTL-06, R-TTL-07, R-SotW-23).
pub(super) fn ttl_support(node: &Node, protocol: Protocol) -> TtlSupport {
    match protocol {
        _ if !has_feature(node, &RESOURCE_TTL) => TtlSupport::Unsupported,
        Protocol::Sotw if has_feature(node, &RESOURCE_IN_SOTW) => TtlSupport::WithResources,
        Protocol::Sotw => TtlSupport::Unsupported,
        Protocol::Delta if is_grpc(&node.user_agent_name) => TtlSupport::WithResources,
        Protocol::Delta => TtlSupport::Heartbeats,
    }
}

/// Rules for the parameters of clients that send none.
#[derive(Clone, Debug, Default)]
pub struct NodeParameterRules {
    rules: Vec<Rule>,
    fields: NodeFields,
}

/// Source of the value of one key.
#[derive(Clone, Debug)]
pub struct Rule {
    pub key: Box<str>,
    pub from: NodeField,
    /// Form of the text. The first group of a match is the value; without a pattern, the whole
    /// text.
    pub pattern: Option<Regex>,
    /// Value if there is none, or none matches.
    pub default: Option<Box<str>>,
}

impl NodeParameterRules {
    /// Of several rules for a key the last counts.
    pub fn new(rules: Vec<Rule>, max_value_bytes: usize) -> Self {
        let fields = NodeFields::new(rules.iter().map(|rule| &rule.from), max_value_bytes);
        Self { rules, fields }
    }

    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Parameters of a client with this claimed node and proven SPIFFE ID.
    pub fn parameters(&self, node: &Node, spiffe_id: Option<&str>) -> Parameters {
        if self.is_empty() {
            return Parameters::NONE;
        }
        let value = |(rule, found): (&Rule, Result<Cow<'_, str>, _>)| {
            let value = found.ok().map(Box::from).or_else(|| rule.default.clone())?;
            Some((rule.key.clone(), value))
        };
        self.outcomes(node, spiffe_id).filter_map(value).collect()
    }

    /// Parameters from the proven SPIFFE ID alone.
    pub(super) fn proven(&self, spiffe_id: Option<&str>) -> Parameters {
        if spiffe_id.is_none() {
            return Parameters::NONE;
        }
        let nobody = Node::default();
        let proven = |(rule, found): (&Rule, Result<Cow<'_, str>, _>)| {
            let value = found.ok().filter(|_| rule.from == NodeField::SpiffeId)?;
            Some((rule.key.clone(), Box::<str>::from(value)))
        };
        self.outcomes(&nobody, spiffe_id).filter_map(proven).collect()
    }

    /// Value that each rule finds, without defaults.
    pub fn outcomes<'a>(
        &'a self,
        node: &'a Node,
        spiffe_id: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Rule, Result<Cow<'a, str>, Missing>)> {
        let node = self.fields.of(node, spiffe_id);
        self.rules.iter().map(move |rule| (rule, rule.value(&node)))
    }
}

impl Rule {
    fn value<'a>(&self, node: &FieldReader<'a>) -> Result<Cow<'a, str>, Missing> {
        let value = node.read(&self.from)?;
        let Some(pattern) = &self.pattern else { return Ok(value) };
        // Group 0 is the whole value.
        let first = usize::from(pattern.captures_len() > 1);
        let group =
            pattern.captures(&value).and_then(|groups| groups.get(first)).ok_or(Missing::NoMatch)?.range();
        Ok(match value {
            Cow::Borrowed(text) => Cow::Borrowed(&text[group]),
            Cow::Owned(text) => Cow::Owned(text[group].to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
