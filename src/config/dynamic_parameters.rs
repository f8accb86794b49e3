//! `dynamic_parameters`: parameters for clients that send none.
//!
//! Owns the notation of the node field that a rule reads, and of its pattern; knows no client. Every rule
//! that parses can be followed.

use std::path::Path;

use super::Config;
use super::errors::quoted;
use super::notation::{Expression, Filled, Optional, Text, Written};
use super::place::{Place, check_unique};
use super::section::section;
use super::values::no_field;
use crate::node_field::{NodeField, NodeFieldError};
use crate::resource::Pattern;

section! {
    /// One rule: where the value of one key comes from.
    #[derive(Eq)]
    pub struct DynamicParameter {
        /// Name of the parameter; must be unique.
        #[key(Filled, required = "the parameter that is given", example = "env")]
        pub key: String,
        /// node.id, node.cluster, node.user_agent_name, node.locality.region, .zone or .sub_zone, or
        /// node.metadata.PATH, a path of keys joined by dots. Text is used as is, a number or a boolean in JSON form
        /// (1, 0.5, true). An empty field, null, lists, mappings, and values longer than `downstream.max_name_bytes`
        /// count as absent. Or peer.spiffe_id: the SPIFFE ID of the client's certificate. A client cannot override a
        /// parameter from it: its locators have the same value, or are refused (PERMISSION_DENIED).
        #[key(Text, required = "what it is taken from", example = "node.metadata.env")]
        pub from: NodeField,
        /// Regular expression that the whole value must match; the parameter is its first capture group, or the whole
        /// value if it has none. Default: any value.
        #[key(Optional<Expression>, example = "\"(prod|canary)-.*\"")]
        pub pattern: Option<Pattern>,
        /// Parameter if the value is absent or does not match. Default: none.
        #[key(Optional<Text>, example = "prod")]
        pub default: Option<String>,
    }
}

/// Reports keys with several rules.
pub(super) fn check(config: &Config, root: &Place<'_>) {
    let places = root.at("dynamic_parameters").items().into_iter().flatten();
    let rules = places.zip(&config.dynamic_parameters);
    check_unique(rules.map(|(place, rule)| (place.at("key"), &rule.key)), "has a rule");
}

impl Written for NodeField {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        // It has several values.
        let field = text.parse().and_then(|field| match field {
            Self::San => Err(NodeFieldError::Unknown),
            field => Ok(field),
        });
        field.map_err(|error| format!("{} {}", quoted(text), no_field(error, &[Self::San], text)))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}
