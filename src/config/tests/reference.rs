//! `config/reference.yaml` and the printed configuration against the tables of the schema.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use crate::config::errors::Report;
use crate::config::keys::{KEYS, NOT_YET, Shape, When, join};
use crate::config::tree::{self, Tree, Value};
use crate::config::{Config, ListenAddress, NodeField, NonEmpty, PeerMatch, Server, Source};

const REFERENCE: &str = include_str!("../../../config/reference.yaml");

/// Shown in a comment, since the reference cannot set them: the first ones depend on the host, `upstream.directory` excludes
/// `servers`, of the others there are none by default.
const COMMENTED: [&str; 29] = [
    "node.id",
    "downstream.max_connections",
    "downstream.max_connections_per_address",
    "downstream.max_connections_per_identity",
    "downstream.memory.refuse_above",
    "downstream.memory.close_above",
    "downstream.max_buffered_request_bytes",
    "downstream.max_initial_version_bytes",
    "downstream.max_unsent_bytes",
    "rest.json_bytes",
    "cache.encoded_bytes",
    "upstream.servers[].tls",
    "upstream.servers[].tls.ca_file",
    "upstream.servers[].tls.cert_file",
    "upstream.servers[].tls.key_file",
    "upstream.servers[].tls.crl_file",
    "upstream.servers[].tls.server_name",
    "upstream.directory",
    "downstream.listeners[].tls",
    "downstream.listeners[].tls.cert_file",
    "downstream.listeners[].tls.key_file",
    "downstream.listeners[].tls.client_ca_file",
    "downstream.listeners[].tls.crl_file",
    "rest.descriptor_sets[]",
    "dynamic_parameters[]",
    "dynamic_parameters[].key",
    "dynamic_parameters[].from",
    "dynamic_parameters[].pattern",
    "dynamic_parameters[].default",
];

fn server(uri: &str) -> Source {
    Source::Servers(NonEmpty::one(Server { uri: uri.parse().unwrap(), tls: None }))
}

fn in_config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

/// The line of every key that a text sets.
fn lines(text: &str) -> BTreeMap<String, usize> {
    fn collect(tree: &Tree, path: &str, lines: &mut BTreeMap<String, usize>) {
        lines.entry(path.to_owned()).or_insert(tree.line);
        match &tree.value {
            Value::Map(entries) => {
                for entry in entries {
                    let path = join(path, &entry.key);
                    lines.insert(path.clone(), entry.line);
                    collect(&entry.value, &path, lines);
                }
            }
            Value::List(items) => items.iter().for_each(|item| collect(item, &format!("{path}[]"), lines)),
            Value::Scalar { .. } | Value::Refused => {}
        }
    }
    let mut lines = BTreeMap::new();
    collect(&tree::read(text, &Report::default()).unwrap(), "", &mut lines);
    lines
}

#[test]
fn the_reference_says_the_defaults() {
    let config = Config::load(&in_config("reference.yaml")).unwrap();
    assert_eq!(config, Config::new(server("http://control-plane:18000")));
}

#[test]
fn the_reference_has_every_key() {
    let lines = lines(REFERENCE);
    for key in KEYS {
        if COMMENTED.contains(&key.path) || key.path.starts_with("authorization.rules[]") {
            assert!(is_commented(key.path), "{} is not in a comment of the reference", key.path);
        } else {
            assert!(lines.contains_key(key.path), "{} is not in the reference", key.path);
        }
    }
    for row in NOT_YET.iter().filter(|row| matches!(row.when, When::Present | When::NotEmpty)) {
        assert!(is_commented(row.path), "{} is not in a comment of the reference", row.path);
    }
}

fn is_commented(path: &str) -> bool {
    let key = format!("{}:", path.trim_end_matches("[]").rsplit('.').next().unwrap());
    let comments = REFERENCE.lines().filter_map(|line| line.trim_start().strip_prefix('#'));
    comments.map(|comment| comment.trim_start_matches([' ', '-'])).any(|comment| comment.starts_with(&key))
}

#[test]
fn the_reference_says_what_every_key_means_and_its_range() {
    let lines = lines(REFERENCE);
    for key in KEYS.iter().filter(|key| key.shape.range().is_some()) {
        let name = key.path.rsplit('.').next().unwrap();
        let commented =
            || REFERENCE.lines().position(|line| line.trim_start().starts_with(&format!("# {name}:")));
        let at = lines.get(key.path).map(|line| line - 1).or_else(commented).unwrap();
        let above = REFERENCE.lines().take(at).collect::<Vec<_>>();
        let comment: Vec<&str> =
            above.into_iter().rev().map_while(|line| line.trim_start().strip_prefix('#')).collect();
        let range = format!("{}.", key.shape.range().unwrap());
        let says_it = comment.first().is_some_and(|line| line.ends_with(&range));
        assert!(says_it, "the comment above {} does not end with its range, {range}", key.path);
    }
}

#[test]
fn the_printed_configuration_has_every_key() {
    let servers = "upstream:\n  servers:\n  - uri: https://cp:1\n    tls: {ca_file: a, cert_file: b, key_file: c, \
        crl_file: d, server_name: e}";
    let mut config = Config::parse(servers, "f").unwrap();
    config.rest.descriptor_sets.push("/d".into());
    let tls = "upstream: {directory: d}\ndownstream: {listeners: [{tls: {cert_file: c, key_file: k, client_ca_file: a, crl_file: r}}]}";
    config.downstream.listeners = Config::parse(tls, "f").unwrap().downstream.listeners;
    config.dynamic_parameters = Config::parse(&example(), "f").unwrap().dynamic_parameters;
    config.authorization = Config::parse(&example_of_rules(), "f").unwrap().authorization;
    let printed = lines(&config.to_string());
    for key in KEYS.iter().filter(|key| key.path != "upstream.directory") {
        assert!(printed.contains_key(key.path), "{} is not printed", key.path);
    }
    assert!(
        lines(&Config::new(Source::Directory("/d".into())).to_string()).contains_key("upstream.directory")
    );
}

/// A file with the example of dynamic parameters in the reference.
fn example() -> String {
    let lines = REFERENCE.lines().skip_while(|line| *line != "# dynamic_parameters:");
    let example: Vec<&str> = lines.map_while(|line| line.strip_prefix("# ")).collect();
    format!("upstream: {{servers: [{{uri: \"http://cp:1\"}}]}}\n{}\n", example.join("\n"))
}

/// A file with the example of rules in the reference.
fn example_of_rules() -> String {
    let lines = REFERENCE.lines().skip_while(|line| *line != "  # rules:");
    let example: Vec<String> =
        lines.map_while(|line| line.strip_prefix("  # ")).map(|line| format!("  {line}")).collect();
    format!("upstream: {{servers: [{{uri: \"http://cp:1\"}}]}}\nauthorization:\n{}\n", example.join("\n"))
}

#[test]
fn the_example_of_authorization_is_what_the_comments_say() {
    let config = Config::parse(&example_of_rules(), "f").unwrap();
    let [rule] = &config.authorization.rules[..] else { panic!("{config:?}") };
    assert_eq!((rule.peers.len(), rule.peers[4].clone()), (5, PeerMatch::Unix));
    assert_eq!(rule.types.as_ref().unwrap().len(), 4);
    assert!(rule.names.as_ref().unwrap()[0].whole().is_match("prod/a"));
    assert_eq!(rule.parameters["env"].iter().collect::<Vec<_>>(), ["prod"]);
}

#[test]
fn the_example_of_dynamic_parameters_is_what_the_comments_say() {
    let config = Config::parse(&example(), "f").unwrap();
    let [rule] = &config.dynamic_parameters[..] else { panic!("{config:?}") };
    assert_eq!((rule.key.as_str(), rule.default.as_deref()), ("env", Some("prod")));
    assert_eq!(rule.from, NodeField::Metadata(vec!["env".to_owned()]));
    assert_eq!(rule.pattern.as_ref().unwrap().to_string(), "(prod|canary)-.*");
}

/// A key that is in the table but not read would be accepted and do nothing.
#[test]
fn every_key_has_an_effect() {
    for key in KEYS.iter().filter(|key| !matches!(key.shape, Shape::Section | Shape::List)) {
        let bounds: Vec<Json> = match key.shape.range() {
            Some(range) => range.split(" to ").map(Json::from).collect(),
            None => Vec::new(),
        };
        let others = [
            json!(true),
            json!(false),
            json!({"a": 1}),
            json!("http://b:2"),
            json!("127.0.0.1:9"),
            json!("sweep"),
            json!("cds"),
            json!("plain"),
            json!("node.cluster"),
            json!("(a)"),
            json!("deny"),
            json!("10.0.0.0/8"),
            json!({"a": [1]}),
        ];
        let plain = Config::parse(&with(key.path, None), "f").unwrap();
        let changes = |value: &Json| match Config::parse(&with(key.path, Some(value)), "f") {
            Ok(changed) => changed != plain,
            Err(_) => false,
        };
        assert!(bounds.iter().chain(&others).any(changes), "{} is not read", key.path);
    }
}

/// A valid file, in JSON, which is YAML; with a value at a path if one is given.
fn with(path: &str, value: Option<&Json>) -> String {
    let mut document = json!({"upstream": {"servers": [{"uri": "http://a:1"}]}});
    // A rule is nothing without these two.
    if path.starts_with("dynamic_parameters[]") {
        document["dynamic_parameters"] = json!([{"key": "a", "from": "node.id"}]);
    }
    if path.starts_with("authorization.rules[]") {
        document["authorization"] = json!({"rules": [{"peers": ["unix"]}]});
    }
    if path.starts_with("upstream.servers[].tls.") {
        // Each of the two is nothing without the other.
        document["upstream"]["servers"][0] =
            json!({"uri": "https://a:1", "tls": {"cert_file": "c", "key_file": "k"}});
    }
    if path.starts_with("downstream.listeners[].tls.") {
        let tls = json!({"cert_file": "c", "key_file": "k", "client_ca_file": "a"});
        document["downstream"] = json!({"listeners": [{"tls": tls}]});
    }
    let Some(value) = value else { return document.to_string() };
    if path == "upstream.directory" {
        document["upstream"] = json!({});
    }
    let mut place = &mut document;
    for segment in path.split('.') {
        place = match segment.strip_suffix("[]") {
            Some(list) => {
                place = &mut place[list];
                if !place.is_array() {
                    *place = json!([null]);
                }
                &mut place[0]
            }
            None => &mut place[segment],
        };
    }
    *place = value.clone();
    document.to_string()
}

#[test]
fn the_quick_start_serves_its_directory_on_loopback() {
    let mut expected = Config::new(Source::Directory(in_config("resources")));
    expected.downstream.listeners = NonEmpty::one(crate::config::Listener {
        address: ListenAddress::Tcp("127.0.0.1:15010".parse().unwrap()),
        tls: None,
    });
    expected.admin.address = "127.0.0.1:15000".parse().unwrap();
    assert_eq!(Config::load(&in_config("quickstart.yaml")).unwrap(), expected);
}
