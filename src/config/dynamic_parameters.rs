//! Which dynamic parameters a client is given that sends none: the rules of `dynamic_parameters`.
//!
//! Owns the notation of what a rule looks at and of its pattern. Knows no client; a rule that exists can be followed.

use std::fmt;
use std::str::FromStr;

use regex::{Regex, RegexBuilder};
use serde::{Serialize, Serializer};

use super::errors::quoted;
use super::keys;

/// What the automaton of one pattern may take, in bytes. Reading a value takes time in proportion to it.
const MAX_PATTERN: usize = 256 * 1024;

/// One rule: where the value of one key comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DynamicParameter {
    /// Never empty; no two rules have the same.
    pub key: String,
    /// What of the client is looked at.
    pub from: NodeField,
    /// What it has to look like, and which part of it is the value; without one it is the value as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// The value where there is none, or one that does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// A part of the node that a client says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeField {
    /// `node.id`
    Id,
    /// `node.cluster`
    Cluster,
    /// `node.locality.region`
    Region,
    /// `node.locality.zone`
    Zone,
    /// `node.locality.sub_zone`
    SubZone,
    /// `node.user_agent_name`
    UserAgentName,
    /// `peer.spiffe_id`: what the client has proven to be, not what it says
    SpiffeId,
    /// `node.metadata.PATH`: the keys on the way to the value, outermost first. At least one, none of them empty.
    Metadata(Vec<String>),
}

/// Those that are not in the metadata.
const FIELDS: [(&str, NodeField); 7] = [
    ("node.id", NodeField::Id),
    ("node.cluster", NodeField::Cluster),
    ("node.locality.region", NodeField::Region),
    ("node.locality.zone", NodeField::Zone),
    ("node.locality.sub_zone", NodeField::SubZone),
    ("node.user_agent_name", NodeField::UserAgentName),
    ("peer.spiffe_id", NodeField::SpiffeId),
];
const METADATA: &str = "node.metadata.";

impl FromStr for NodeField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, field)) = FIELDS.iter().find(|(name, _)| *name == text) {
            return Ok(field.clone());
        }
        if let Some(path) = text.strip_prefix(METADATA) {
            let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
            if keys.iter().any(String::is_empty) {
                return Err(format!("{} has an empty key in its path", quoted(text)));
            }
            return Ok(Self::Metadata(keys));
        }
        Err(match keys::near(FIELDS.iter().map(|(name, _)| *name), text) {
            Some(name) => format!("{} is no part of a node; did you mean `{name}`?", quoted(text)),
            None => {
                let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
                format!(
                    "{} is no part of a node; write {METADATA}PATH or one of {}",
                    quoted(text),
                    names.join(", ")
                )
            }
        })
    }
}

impl fmt::Display for NodeField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata(keys) => write!(f, "{METADATA}{}", keys.join(".")),
            field => {
                f.write_str(FIELDS.iter().find(|(_, known)| known == field).map_or("", |(name, _)| name))
            }
        }
    }
}

impl Serialize for NodeField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A regular expression that is matched against the whole of a value, and whose first group is what counts.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    whole: Regex,
}

impl Pattern {
    /// Anchored at both ends, with at least one group.
    pub fn whole(&self) -> &Regex {
        &self.whole
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // By itself first: its errors are about what was written, and no parenthesis in it can close ours.
        let plain = compile(text)?;
        if plain.captures_len() < 2 {
            let text = quoted(text);
            return Err(format!(
                "{text} has no group; put what is the value in parentheses, as in `(prod|canary)-.*`"
            ));
        }
        // In verbose mode it may end in a comment, which a line of its own keeps from swallowing the end.
        let whole = compile(&format!(r"\A(?:{text})\z"));
        let whole = whole.or_else(|_| compile(&format!("\\A(?:{text}\n)\\z")))?;
        Ok(Self { text: text.to_owned(), whole })
    }
}

fn compile(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text).size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN).build().map_err(|error| {
        match error {
            regex::Error::CompiledTooBig(_) => format!("{} is too large a regular expression", quoted(text)),
            error => {
                // The last line says what is wrong; those before it draw the place.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default();
                let reason = reason.strip_prefix("error: ").unwrap_or(reason);
                format!("{} is no regular expression: {reason}", quoted(text))
            }
        }
    })
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}
