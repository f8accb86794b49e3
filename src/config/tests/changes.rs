//! Comparison of configurations, as for a reload.

use super::UPSTREAM;
use crate::config::changes::diff;
use crate::config::{Changes, Config};

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
fn a_difference_is_named_by_its_key_whatever_the_notation() {
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
fn listeners_are_known_by_their_place() {
    let listeners = |list: &str| format!("downstream: {{listeners: [{list}]}}\n");
    let [a, b] = ["{address: \"127.0.0.1:1\"}", "{address: \"127.0.0.1:2\"}"];
    let both = listeners(&format!("{a}, {b}"));
    let moved = told(&[], &["downstream.listeners[].address"]);
    assert_eq!(changes(&both, &listeners(&format!("{b}, {a}"))), moved);
    assert_eq!(changes(&both, &listeners(a)), told(&[], &["downstream.listeners"]));
    assert_eq!(changes(&listeners(a), &listeners(b)), moved);
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

#[test]
fn groups_change_with_the_next_start() {
    let rule =
        |node: &str| format!("groups: {{rules: [{{name: a, match: {{node.id: b}}, node: {node}}}]}}\n");
    assert_eq!(changes("", &rule("client")), told(&[], &["groups.rules"]));
    assert_eq!(changes(&rule("{id: c}"), &rule("{id: d}")), told(&[], &["groups.rules[].node"]));
    assert_eq!(changes(&rule("{id: c}"), &rule("client")), told(&[], &["groups.rules[].node"]));
    assert_eq!(changes("", "groups: {default: refuse}\n"), told(&[], &["groups.default"]));
}
