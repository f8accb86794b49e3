//! What a reload changes: the comparison, and its table against the schema and docs/operations.md.

use std::collections::BTreeMap;

use super::UPSTREAM;
use crate::config::changes::{EFFECTS, Effect, diff, is_within};
use crate::config::keys::{KEYS, Shape};
use crate::config::{Changes, Config};

const OPERATIONS: &str = include_str!("../../../docs/operations.md");

fn config(text: &str) -> Config {
    Config::parse(&format!("{UPSTREAM}{text}"), "f").unwrap()
}

fn changes(old: &str, new: &str) -> Changes {
    diff(&config(old), &config(new))
}

fn told(live: &[&str], restart: &[&str]) -> Changes {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    Changes { live: owned(live), restart: owned(restart) }
}

#[test]
fn what_differs_is_named_by_its_key_whatever_the_notation() {
    assert_eq!(changes("", ""), Changes::default());
    assert_eq!(changes("downstream: {drain: 20s}\n", "downstream: {drain: 20000ms}\n"), Changes::default());
    assert_eq!(
        changes("", "node: {id: other, locality: {zone: z}}\ndownstream: {drain: 1s}\nrest: {hold: 1s}\n"),
        told(&["downstream.drain", "rest.hold"], &["node.id", "node.locality.zone"])
    );
    let metadata = changes("node: {metadata: {a: 1}}\n", "node: {metadata: {a: {b: 2}}}\n");
    assert_eq!(metadata, told(&[], &["node.metadata"]), "what stands in it are no keys");
}

#[test]
fn another_source_is_another_upstream() {
    let one = config("");
    let other = Config::parse("upstream: {directory: d}\n", "f").unwrap();
    assert_eq!(diff(&one, &other), told(&[], &["upstream.directory", "upstream.servers"]));
    let moved = Config::parse("upstream: {servers: [{uri: \"http://other:1\"}]}\n", "f").unwrap();
    assert_eq!(diff(&one, &moved), told(&[], &["upstream.servers[].uri"]));
}

#[test]
fn listeners_are_known_by_their_addresses() {
    let listeners = |list: &str| format!("downstream: {{listeners: [{list}]}}\n");
    let [a, b] = ["{address: \"127.0.0.1:1\"}", "{address: \"127.0.0.1:2\"}"];
    let both = listeners(&format!("{a}, {b}"));
    assert_eq!(changes(&both, &listeners(&format!("{b}, {a}"))), Changes::default());
    assert_eq!(changes(&both, &listeners(a)), told(&[], &["downstream.listeners"]));
    assert_eq!(changes(&listeners(a), &listeners(b)), told(&[], &["downstream.listeners"]));
}

#[test]
fn rules_of_parameters_are_compared_entry_by_entry() {
    let rule = |from: &str| format!("dynamic_parameters: [{{key: env, from: {from}}}]\n");
    let changed = changes(&rule("node.id"), &rule("node.cluster"));
    assert_eq!(changed, told(&["dynamic_parameters[].from"], &[]));
    assert!(changed.concerns("dynamic_parameters") && !changed.concerns("dynamic"));
    assert_eq!(changes("", &rule("node.id")), told(&["dynamic_parameters"], &[]));
    let types = changes("", "downstream: {no_legacy_wildcard: [eds]}\n");
    assert_eq!(types, told(&["downstream.no_legacy_wildcard"], &[]));
}

/// A new key fails here until somebody has decided what a reload does to it.
#[test]
fn every_key_takes_effect_at_a_time_that_is_declared() {
    for key in KEYS.iter().filter(|key| !matches!(key.shape, Shape::Section | Shape::List)) {
        let rows = EFFECTS.iter().filter(|(path, _)| is_within(key.path, path)).count();
        assert!(rows > 0, "{} has no row in config::changes", key.path);
    }
    for (path, _) in EFFECTS {
        assert!(KEYS.iter().any(|key| key.path == *path), "{path} is no key");
        assert_eq!(EFFECTS.iter().filter(|(other, _)| other == path).count(), 1, "{path}");
    }
}

/// The rows of the table `| Keys | A reload changes |`, by key.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let lines = OPERATIONS.lines().skip_while(|line| !line.starts_with("| Key | A change takes effect |"));
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let keys = cells[0].split('`').skip(1).step_by(2);
        keys.map(move |key| (key, cells[1]))
    })
    .collect()
}

#[test]
fn operations_says_when_each_key_takes_effect() {
    let documented = documented();
    for (path, effect) in EFFECTS {
        let words =
            documented.get(path).unwrap_or_else(|| panic!("docs/operations.md has no row of `{path}`"));
        let begins = match effect {
            Effect::AtOnce => "at once",
            Effect::Connections => "new connections",
            Effect::Polls => "new polls",
            Effect::Rights => "new connections; others are closed",
            Effect::Restart => "**at the next start**",
        };
        let is_exact = *effect != Effect::Connections || !words.starts_with("new connections;");
        assert!(
            words.starts_with(begins) && is_exact,
            "`{path}` takes effect {begins}, the table says: {words}"
        );
    }
    let known = |key: &&str| EFFECTS.iter().any(|(path, _)| path == key);
    assert!(documented.keys().all(known), "{documented:?}");
}
