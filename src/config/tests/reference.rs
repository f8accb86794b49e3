//! Everything that follows from the declaration of a key: its reader, the printed configuration, `config/reference.yaml`,
//! the list of reloads in `docs/configure.md`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::load;
use super::pages::{reference, reload_list, write_keys};
use crate::config::errors::Report;
use crate::config::notation::{Count, Nested, Notation as _, Optional, Text};
use crate::config::place::{Place, is_within};
use crate::config::schema::{self, Effect, Key, Printed, Section, Shape};
use crate::config::section::section;
use crate::config::{Config, ListenAddress, yaml};
use crate::limit::Limit;

/// Writes the pages again instead of comparing them.
const UPDATE: &str = "UPDATE_DOCS";

fn in_config(name: &str) -> PathBuf {
    in_repository("config").join(name)
}

fn in_repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// All keys, with their paths.
fn all() -> Vec<(String, &'static Key)> {
    schema::all(Config::KEYS)
}

/// The keys that hold values themselves, with their paths.
fn leaves() -> impl Iterator<Item = (String, &'static Key)> {
    all().into_iter().filter(|(_, key)| !matches!(key.shape, Shape::Section(_) | Shape::Sections(_)))
}

/// The defaults, with the source that the reference shows.
fn defaults() -> Config {
    Config::parse("upstream: {servers: [{uri: \"http://control-plane:18000\"}]}", "f").unwrap()
}

/// Holds a page against the code, and names the lines that differ.
fn assert_page(path: &Path, is: &str, should_be: &str, page: impl Fn(&str) -> String) {
    if is == should_be {
        return;
    }
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path, page(should_be)).unwrap();
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (is, should_be) = (lines(is), lines(should_be));
    let without = |lines: &[String], others: &[String], mark: char| {
        let others: BTreeSet<&String> = others.iter().collect();
        let lines = lines.iter().filter(|line| !others.contains(line));
        lines.map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    panic!(
        "{} differs from the declarations in src/config; {UPDATE}=1 writes it again\n{}{}",
        path.display(),
        without(&is, &should_be, '-'),
        without(&should_be, &is, '+'),
    );
}

#[test]
fn the_reference_follows_from_the_declarations() {
    let path = in_config("reference.yaml");
    let is = std::fs::read_to_string(&path).unwrap();
    assert_page(&path, &is, &reference(&defaults()), str::to_owned);
}

#[test]
fn the_list_of_reloads_follows_from_the_declarations() {
    let path = in_repository("docs/configure.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let should_be = reload_list();
    let start = page.find("- **at once**: ").unwrap();
    let items = page[start..].lines().take_while(|line| line.starts_with("- "));
    let end = start + items.map(|item| item.len() + 1).sum::<usize>();
    let with = |list: &str| format!("{}{list}{}", &page[..start], &page[end..]);
    assert_page(&path, &page[start..end], &should_be, with);
}

#[test]
fn the_reference_says_the_defaults() {
    assert_eq!(load(&in_config("reference.yaml")).unwrap(), defaults());
}

/// The table of docs/tuning.md has words after a default, so that it is not written but compared.
#[test]
fn the_table_of_limits_says_the_defaults() {
    let page = std::fs::read_to_string(in_repository("docs/tuning.md")).unwrap();
    let (_, page) = page.split_once("\n## Limits\n").unwrap();
    let (page, _) = page.split_once("\n## ").unwrap();
    let mut rows = 0;
    for (path, key) in leaves().filter(|(_, key)| key.example.is_none()) {
        let Some(row) = page.lines().find(|line| line.starts_with(&format!("| `{path}` |"))) else {
            continue;
        };
        let cell = row.split('|').nth(2).unwrap().trim().replace(',', "");
        let mut words = cell.split(' ');
        let number = words.next().unwrap();
        let is_unit = |c: char| c.is_ascii_alphabetic() && !"to".contains(c);
        let unit = match words.next() {
            _ if !key.shape.range().is_some_and(|range| range.contains(is_unit)) => "",
            Some("min") => "m",
            unit => unit.unwrap_or_default(),
        };
        let said = Config::parse(&with(&path, Some(&json!(format!("{number}{unit}")))), "f").unwrap();
        assert_eq!(said, Config::parse(&with(&path, None), "f").unwrap(), "docs/tuning.md: {row}");
        rows += 1;
    }
    assert!(rows > 10, "{rows}");
}

/// Examples are accepted, each alone in its place.
#[test]
fn examples_are_right() {
    for (path, key) in leaves() {
        let Some(example) = key.example else { continue };
        let text = format!("f: {example}\n");
        let tree = yaml::read(&text, &Report::default()).unwrap();
        let yaml::Value::Map(entries) = tree.value else { panic!("{path}") };
        let mut file = with(&path, Some(&json_of(&entries[0].value)));
        if path.starts_with("authorization") {
            let proves = r#"{"downstream":{"listeners":[{"tls":{"cert_file":"a","key_file":"b","client_ca_file":"c"}}]},"#;
            file = file.replacen('{', proves, 1);
        }
        assert!(Config::parse(&file, "f").is_ok(), "{path}: {file}: {:?}", Config::parse(&file, "f"));
    }
    let commented = all().into_iter().filter(|(path, _)| {
        path.contains("tls.") || path.contains("parameters[]") || path.contains("rules[]")
    });
    for (path, key) in commented {
        assert!(key.example.is_some(), "{path} is shown in a comment, without a value");
    }
}

fn json_of(tree: &yaml::Tree) -> Json {
    match &tree.value {
        yaml::Value::Scalar { text, .. } => json!(text),
        yaml::Value::List(items) => items.iter().map(json_of).collect(),
        yaml::Value::Map(entries) => {
            Json::Object(entries.iter().map(|entry| (entry.key.clone(), json_of(&entry.value))).collect())
        }
    }
}

/// A key without a declared effect would wait for a start, which is seldom meant.
#[test]
fn every_key_says_when_it_takes_effect() {
    for (path, _) in leaves() {
        let declared = all().iter().any(|(of, key)| is_within(&path, of) && key.effect.is_some());
        assert!(declared, "neither {path} nor its section has an `effect`");
    }
}

section! {
    /// A section with everything that a key may have.
    struct Sample {
        /// Help of a number.
        #[key(Count<1, 9>, default = 7, effect = AtOnce, note = "for the sample")]
        number: usize,

        /// Help of a text.
        #[key(Text, required = "a text", example = "word")]
        text: String,

        /// Help of a section.
        #[key(Optional<Nested>)]
        inner: Option<Inner>,
    }
}

section! {
    /// A section in a section.
    struct Inner {
        /// Help of a number that depends on the machine.
        #[key(Count<0, 1>, default = 1, example = "1")]
        number: usize,
    }
}

/// A new key needs its declaration and nothing else.
#[test]
fn one_declaration_is_all_that_a_key_needs() {
    let read = |text: &str| {
        let report = Report::default();
        let tree = yaml::read(text, &report).unwrap();
        let sample = Nested::read(&Place::root(&tree, &report));
        let errors = report.finish("f", Some(())).err().map(|errors| errors.to_string());
        (sample, errors.unwrap_or_default())
    };
    let (sample, errors) = read("{text: a, inner: {}}");
    let sample: Sample = sample.unwrap();
    assert_eq!((errors.as_str(), sample.number, sample.text.as_str()), ("", 7, "a"));
    assert_eq!(sample.inner, Some(Inner { number: 1 }));
    let Some(Printed::Section(printed)) = Nested::print(&sample) else { panic!("{sample:?}") };
    let json = serde_json::to_value(Nested::print(&sample)).unwrap();
    assert_eq!(json, json!({"number": 7, "text": "a", "inner": {"number": 1}}));

    let (_, errors) = read("{number: 10, txet: b, inner: []}");
    let expected = [
        "f:1: unknown key `txet` at the top level; did you mean `text`?",
        "f:1: `number`: `10` is out of range; allowed is 1 to 9",
        "f:1: `text`: is missing; write a text",
        "f:1: `inner` must be a mapping, not a list",
    ];
    assert_eq!(errors, expected.join("\n"));

    let [number, ..] = Sample::KEYS else { panic!("{:?}", Sample::KEYS) };
    assert_eq!((number.effect, number.note), (Some(Effect::AtOnce), Some("for the sample")));
    let mut page = String::new();
    write_keys(&mut page, Sample::KEYS, &printed);
    let expected = "\
# Help of a number. 1 to 9.
number: 7
# Help of a text.
# text: word
# Help of a section.
inner:
  # Help of a number that depends on the machine. 0 to 1.
  # number: 1
";
    assert_eq!(page, expected);
}

#[test]
fn the_printed_configuration_has_every_key() {
    let text = "\
upstream:
  servers:
  - {uri: \"https://cp:1\", tls: {ca_file: a, cert_file: b, key_file: c, crl_file: d, server_name: e}}
downstream:
  listeners:
  - tls: {cert_file: c, key_file: k, client_ca_file: a, crl_file: r}
dynamic_parameters:
- {key: env, from: node.id, pattern: (a), default: b}
authorization:
  rules:
  - {peers: [unix], node_ids: [a], clusters: [b], types: [cds], names: [c], parameters: {env: [prod]}}
groups:
  rules:
  - {name: a, match: {node.id: b}, key: c, node: client}
snapshot: {path: a}
rollout: {types: [cds], canaries: {match: {node.id: a}}, key_file: a, max_removed: 40%}
";
    let printed = serde_json::to_value(Nested::print(&Config::parse(text, "f").unwrap())).unwrap();
    let directory = printed_of("upstream: {directory: d}");
    for (path, _) in leaves() {
        let pointer = format!("/{}", path.replace("[]", "/0").replace('.', "/"));
        let of = if path == "upstream.directory" { &directory } else { &printed };
        assert!(of.pointer(&pointer).is_some(), "{path} is not printed");
    }
}

fn printed_of(text: &str) -> Json {
    serde_json::to_value(Nested::print(&Config::parse(text, "f").unwrap())).unwrap()
}

/// A key whose notation accepts no value, or drops it, would do nothing.
#[test]
fn every_key_has_an_effect() {
    for (path, key) in leaves() {
        let range = key.shape.range().unwrap_or_default();
        let bounds: Vec<Json> = range.split(" to ").map(Json::from).collect();
        let others = [
            json!(true),
            json!(false),
            json!({"a": 1}),
            json!("http://b:2"),
            json!("127.0.0.1:9"),
            json!("sweep"),
            json!("cds"),
            json!("plain"),
            json!("sotw"),
            json!("node.cluster"),
            json!("(a)"),
            json!("deny"),
            json!("10.0.0.0/8"),
            json!({"a": [1]}),
            json!("refuse"),
            json!("nack"),
            json!("client"),
            json!({"node.cluster": "(?P<region>b)"}),
            json!(["cds"]),
            json!(["10.0.0.0/8"]),
            json!("7%"),
            json!(["7%"]),
        ];
        let plain = Config::parse(&with(&path, None), "f").unwrap();
        let changes = |value: &Json| match Config::parse(&with(&path, Some(value)), "f") {
            Ok(changed) => changed != plain,
            Err(_) => false,
        };
        assert!(bounds.iter().chain(&others).any(changes), "{path} is not read");
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
    if path.starts_with("groups.rules[]") {
        let rule = json!({
            "name": "a", "match": {"node.id": "(?P<region>.*)"}, "key": "${region}", "node": {"id": "b"},
        });
        document["groups"] = json!({"rules": [rule]});
    }
    if path.starts_with("downstream.memory.") {
        // Above the example of the other, on most machines.
        document["downstream"] = json!({"memory": {"refuse_above": 1}});
    }
    if path == "upstream.directory" {
        document["upstream"] = json!({"directory": "d"});
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
    let mut expected = Config::parse("upstream: {directory: d}", "f").unwrap();
    expected.upstream.directory = Some(in_config("resources"));
    expected.downstream.listeners = vec![crate::config::Listener {
        address: ListenAddress::Tcp("127.0.0.1:15010".parse().unwrap()),
        tls: None,
    }];
    expected.admin.address = "127.0.0.1:15000".parse().unwrap();
    assert_eq!(load(&in_config("quickstart.yaml")).unwrap(), expected);
}

/// Log lines and metrics name the key that raises a limit.
#[test]
fn each_limit_names_a_key() {
    for limit in Limit::ALL {
        let is_a_key = all().iter().any(|(path, _)| *path == limit.key());
        assert!(is_a_key || limit.key() == "none: it is fixed", "{limit:?}: {}", limit.key());
    }
}
