//! `deltafan check --node`: a node's group and dynamic parameters, and why.
//!
//! Owns the words. The code that serves clients works out groups and parameters.

use anyhow::Context as _;
use prost::Message as _;

use crate::config::{Config, DynamicParameter, Listener, Rollout};
use crate::descriptors::text_formats::{NODE, message_json};
use crate::directory;
use crate::node_field::Missing;
use crate::node_group::{GroupNode, Rule, RuleOutcome};
use crate::proto::Node;
use crate::relay;
use crate::resource::Pattern;
use crate::terminal::printable;

/// Prints the group, its node at the control plane, and per rule why it matches or not; then the parameters.
///
/// # Errors
///
/// Node that cannot be shown as JSON.
pub fn of_node(config: &Config, node: &Node, encoded: &[u8]) -> anyhow::Result<String> {
    Ok(groups(config, node, encoded)? + &parameters(config, node))
}

/// Likely mistakes that the relay can run with, each in one line.
pub fn warnings(config: &Config) -> impl Iterator<Item = String> {
    let proves = |listener: &Listener| listener.proves_clients();
    let takes_unproven = !config.downstream.listeners.iter().all(proves);
    let rules = config.groups.rules.iter().filter_map(|rule| rule.rule().ok());
    let claimed = rules.filter(move |rule| takes_unproven && rule.trusts_claims()).map(|rule| {
        format!(
            "groups.rules: `node: client` of {} trusts whatever clients without a certificate claim: one of them can choose what \
             the others are configured by; set `client_ca_file` on all listeners, or match `peer.spiffe_id` or `peer.san` too",
            rule.name()
        )
    });
    claimed.chain(rollout_warnings(&config.rollout))
}

fn rollout_warnings(rollout: &Rollout) -> impl Iterator<Item = String> + use<> {
    let is_on = !rollout.types.is_empty() && !rollout.window.is_zero();
    let share = (is_on && rollout.share.ratio() <= 0.0).then(|| {
        "rollout.share: `0%` is one client of each node group, which judges each change for all".to_owned()
    });
    let threshold = (is_on && rollout.threshold.ratio() >= 1.0)
        .then(|| "rollout.threshold: `100%` holds a change only if all canaries reject it: one that accepts it spreads it to all".to_owned());
    share.into_iter().chain(threshold)
}

/// Files of a directory source that cannot be used, each in one line.
///
/// # Errors
///
/// Directory that cannot be read.
pub fn directory_faults(config: &Config) -> anyhow::Result<Vec<String>> {
    let Some(path) = &config.upstream.directory else { return Ok(Vec::new()) };
    let scan = directory::scan(path);
    let scan = scan.with_context(|| format!("cannot read {} (upstream.directory)", path.display()))?;
    let failures = scan.failures.into_iter();
    Ok(failures.map(|of| printable(&format!("{}: {}", path.join(&of.file).display(), of.message))).collect())
}

/// Empty for a directory, which has no control plane.
fn groups(config: &Config, node: &Node, encoded: &[u8]) -> anyhow::Result<String> {
    let rules = relay::group_rules(config);
    if config.upstream.directory.is_some() {
        return Ok(String::new());
    }
    let own = if rules.is_trivial() {
        "group own  # the configuration has no `groups`"
    } else {
        "group own  # no rule matches"
    };
    let (group, seen) = match rules.place(node, None) {
        Ok(None) => (own.to_owned(), Some(("", relay::own_node(config).encode_to_vec()))),
        Ok(Some(place)) => {
            let key =
                if place.key.text().is_empty() { String::new() } else { format!(" {:?}", place.key.text()) };
            let seen = match rules.node(&place) {
                GroupNode::Made(node) => ("", node.encode_to_vec()),
                GroupNode::Client => ("  # of one client of the group, such as this one", encoded.to_vec()),
            };
            let each = if rules.rule(&place).is_by_identity() {
                ", with a group for each identity that clients prove"
            } else {
                ""
            };
            (format!("group {}{key}  # the first rule that matches{each}", place.key.rule()), Some(seen))
        }
        Err(refusal) => (format!("no group  # {refusal}"), None),
    };
    let outcomes: Vec<_> = rules.outcomes(node, None).collect();
    let undecided: Vec<&str> = outcomes
        .iter()
        .take_while(|(_, outcome)| !outcome.matches())
        .filter(|(_, outcome)| is_undecided(outcome))
        .map(|(rule, _)| &**rule.name())
        .collect();
    let unless = if undecided.is_empty() {
        String::new()
    } else {
        format!(", unless {} does, which depends on the client's certificate", undecided.join(" or "))
    };
    let mut lines = vec![group + &unless];
    if let Some((note, encoded)) = seen {
        lines.push(format!("the control plane sees this node:{note}"));
        let json = serde_json::to_string_pretty(&message_json(NODE, &encoded)?)?;
        lines.extend(json.lines().map(str::to_owned));
    }
    for (rule, outcome) in &outcomes {
        explain(rule, outcome, &mut lines);
    }
    let lines = lines.iter().map(|line| printable(line) + "\n");
    Ok(lines.collect())
}

/// Whether a client with this node may match a rule: a node file says nothing of certificates.
fn is_undecided(outcome: &RuleOutcome<'_>) -> bool {
    let mut failing = outcome.conditions.iter().filter(|(_, result)| result.is_err());
    !outcome.matches()
        && outcome.too_long.is_none()
        && failing.all(|(condition, _)| condition.key.is_proven())
}

fn explain(rule: &Rule, outcome: &RuleOutcome<'_>, lines: &mut Vec<String>) {
    let result = if outcome.matches() {
        "matches"
    } else if is_undecided(outcome) {
        "may match: that depends on the client's certificate"
    } else {
        "does not match"
    };
    lines.push(format!("rule {} {result}", rule.name()));
    for (condition, result) in &outcome.conditions {
        let (key, pattern) = (condition.key.to_string(), condition.pattern());
        lines.push(match result {
            Ok(value) => format!("  {key} = {value:?}  # matches {pattern}"),
            Err(missing) => format!("  {}", reason(&key, condition.key.is_proven(), pattern, *missing)),
        });
    }
    if let Some(value) = &outcome.too_long {
        lines.push(format!("  {} in `key`", reason(value, false, "", Missing::TooLong)));
    }
}

/// Per rule: key, value, and source or reason of absence.
fn parameters(config: &Config, node: &Node) -> String {
    if config.dynamic_parameters.is_empty() {
        return "no parameters: the configuration has no `dynamic_parameters`\n".to_owned();
    }
    let given = relay::given(config);
    let mut text = String::new();
    let why = |rule: &DynamicParameter, missing| {
        let pattern = rule.pattern.as_ref().map_or("", Pattern::text);
        reason(&rule.from.to_string(), rule.from.is_proven(), pattern, missing)
    };
    for (rule, (of, outcome)) in config.dynamic_parameters.iter().zip(given.outcomes(node, None)) {
        let (key, from) = (&rule.key, &rule.from);
        let line = match (outcome, &of.default) {
            (Ok(value), _) => {
                let by = rule.pattern.as_ref().map(|pattern| format!(", by {}", pattern.text()));
                format!("{key} = {value:?}  # {from}{}", by.unwrap_or_default())
            }
            (Err(missing), Some(value)) => {
                format!("{key} = {value:?}  # the default: {}", why(rule, missing))
            }
            (Err(missing), None) => format!("{key} is absent  # {}", why(rule, missing)),
        };
        text += &printable(&line);
        text.push('\n');
    }
    text
}

fn reason(from: &str, is_proven: bool, pattern: &str, missing: Missing) -> String {
    match missing {
        Missing::NotSet if is_proven => format!("{from} is known of a client only"),
        Missing::NotSet => format!("the node has no {from}"),
        Missing::NoText => format!("{from} is neither text, nor a number, nor true or false"),
        Missing::TooLong => format!("{from} is longer than `downstream.max_name_bytes`"),
        Missing::NoMatch => format!("{from} does not match {pattern}"),
    }
}
