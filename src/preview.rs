//! `deltafan check --node`: which dynamic parameters a node would be given, and why.
//!
//! Owns the reading of the file that the node is in, and the words. What a node is given is worked out by the code that
//! serves clients.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use prost::Message as _;

use crate::config::{self, Config, DynamicParameter, Pattern};
use crate::directory;
use crate::node_field::{Missing, NodeField};
use crate::proto::Node;
use crate::relay;
use crate::subscription::Outcome;

/// A bootstrap with everything in it is far smaller.
const MAX_BYTES: u64 = 16 << 20;

/// The node in a file. An error names the file.
///
/// # Errors
///
/// File that cannot be read, is larger than 16 MiB, or holds no node.
pub fn read_node(path: &Path) -> anyhow::Result<Node> {
    let read = || {
        let mut bytes = Vec::new();
        let file = File::open(path).context("cannot be read")?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).context("cannot be read")?;
        if bytes.len() as u64 > MAX_BYTES {
            bail!("is larger than {MAX_BYTES} bytes");
        }
        let encoded = directory::read_node(path, &bytes)?;
        Node::decode(&encoded[..]).context("is a node that no request could carry")
    };
    read().map_err(|error: anyhow::Error| {
        let problem = config::printable(&format!("{}: {error:#}", path.display()));
        anyhow::Error::msg(problem)
    })
}

/// One line for each rule: the key, what it is given, and where that comes from or why it is not there.
pub fn parameters(config: &Config, node: &Node) -> String {
    if config.dynamic_parameters.is_empty() {
        return "no parameters: the configuration has no `dynamic_parameters`\n".to_owned();
    }
    let given = relay::given(config);
    let mut text = String::new();
    for (rule, (_, outcome)) in config.dynamic_parameters.iter().zip(given.outcomes(node, None)) {
        let (key, from) = (&rule.key, rule.source());
        let line = match (outcome, &rule.pattern) {
            (Outcome::Found(value), None) => format!("{key} = {value:?}  # {from}"),
            (Outcome::Found(value), Some(pattern)) => format!("{key} = {value:?}  # {from}, by {pattern}"),
            (Outcome::Default(value, missing), _) => {
                format!("{key} = {value:?}  # the default: {}", reason(rule, missing))
            }
            (Outcome::Absent(missing), _) => format!("{key} is absent  # {}", reason(rule, missing)),
        };
        text += &config::printable(&line);
        text.push('\n');
    }
    text
}

fn reason(rule: &DynamicParameter, missing: Missing) -> String {
    let from = rule.source();
    match missing {
        Missing::NotSaid if rule.from == NodeField::SpiffeId => format!("{from} is known of a client only"),
        Missing::NotSaid => format!("the node has no {from}"),
        Missing::NoText => format!("{from} is neither text, nor a number, nor true or false"),
        Missing::TooLong => format!("{from} is longer than `downstream.max_name_bytes`"),
        Missing::NoMatch => {
            let pattern = rule.pattern.as_ref().map(Pattern::to_string).unwrap_or_default();
            format!("{from} does not match {pattern}")
        }
    }
}
