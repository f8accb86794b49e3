//! Folders of examples/: their configurations are valid, and their READMEs name files that exist. `make examples` runs the
//! commands of the READMEs.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::docs::{documents, entries, in_repository, read};

/// Keys that a configuration of the relay has at its top.
const SECTIONS: [&str; 11] = [
    "node",
    "upstream",
    "downstream",
    "rest",
    "admin",
    "cache",
    "dynamic_parameters",
    "authorization",
    "groups",
    "snapshot",
    "rollout",
];

fn folders() -> Vec<String> {
    let folders = entries("examples").into_iter().filter(|(_, is_folder)| *is_folder);
    folders.map(|(name, _)| name).collect()
}

/// Configurations of relays in a folder: other YAML has resources.
fn configurations(folder: &str) -> Vec<String> {
    let files = entries(&format!("examples/{folder}")).into_iter().map(|(name, _)| name);
    files.filter(|name| Path::new(name).extension().is_some_and(|is| is == "yaml")).collect()
}

/// Commands of a README: lines `$ …` in its blocks of code.
fn commands(readme: &str) -> Vec<&str> {
    readme.lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

#[test]
fn configurations_of_examples_are_valid() {
    for folder in folders() {
        let found = configurations(&folder);
        assert!(!found.is_empty(), "examples/{folder} has no configuration");
        for file in found {
            let config = format!("examples/{folder}/{file}");
            assert!(read(&config).contains("\nupstream:"), "{config} is no configuration of a relay");
            check(&in_repository(&config), &config);
        }
    }
}

/// Has the relay read a configuration, without the files that it names.
fn check(file: &Path, named: &str) {
    let checked = Command::new(env!("CARGO_BIN_EXE_deltafan"))
        .args(["check", "--no-files", "--config"])
        .arg(file)
        .output()
        .unwrap();
    assert!(checked.status.success(), "{named}: {}", String::from_utf8_lossy(&checked.stderr));
}

/// Blocks of YAML in a document that are a configuration, or sections of one.
fn configurations_in(document: &str) -> Vec<&str> {
    let blocks = document.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let is_section = |line: &str| line.split_once(':').is_some_and(|(key, _)| SECTIONS.contains(&key));
    let is_configuration = |block: &&str| {
        let mut top = block.lines().filter(|line| !line.is_empty() && !line.starts_with([' ', '#', '-']));
        top.clone().count() > 0 && top.all(is_section) && !block.starts_with(' ')
    };
    blocks.filter(is_configuration).collect()
}

const PROVING: &str = "downstream: {listeners: [{tls: {cert_file: a, key_file: b, client_ca_file: c}}]}\n";

#[test]
fn configurations_in_documents_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let mut found = 0;
    for document in documents() {
        for block in configurations_in(&read(&document)) {
            let has = |key: &str| block.lines().any(|line| line.starts_with(key));
            let source = if has("upstream:") { "" } else { "upstream: {servers: [{uri: \"http://a:1\"}]}\n" };
            // Rules about certificates need a listener that learns them.
            let listener = if has("authorization:") && !has("downstream:") { PROVING } else { "" };
            let file = folder.path().join("relay.yaml");
            fs::write(&file, format!("{source}{listener}{block}")).unwrap();
            check(&file, &format!("{document}:\n{block}"));
            found += 1;
        }
    }
    assert!(found > 15, "{found} configurations in documents");
}

/// `envoy_grpc` of each entry of `grpc_services`; an error for a retry policy that stands beside it.
fn envoy_grpc<'a>(value: &'a Value, into: &mut Vec<&'a Value>) -> Result<(), String> {
    match value {
        Value::Array(values) => values.iter().try_for_each(|value| envoy_grpc(value, into)),
        Value::Object(fields) => {
            if let Some(service) = fields.get("envoy_grpc") {
                if fields.contains_key("retry_policy") {
                    return Err(
                        "`retry_policy` is beside `envoy_grpc`: xDS streams ignore it there".to_owned()
                    );
                }
                into.push(service);
            }
            fields.values().try_for_each(|value| envoy_grpc(value, into))
        }
        _ => Ok(()),
    }
}

/// Fault of an Envoy's way to the relay: without the policy Envoy waits for up to 30 s before it is back.
fn fault_of_bootstrap(text: &str) -> Option<String> {
    let bootstrap: Value = serde_saphyr::from_str(text).unwrap();
    let mut services = Vec::new();
    if let Err(fault) = envoy_grpc(&bootstrap, &mut services) {
        return Some(fault);
    }
    let lacking = services.iter().find(|service| {
        service["cluster_name"] == "deltafan"
            && service["retry_policy"]["retry_back_off"]["max_interval"] != "5s"
    });
    lacking.map(|service| format!("no `retry_policy` with 5 s in `envoy_grpc: {service}`"))
}

#[test]
fn envoys_come_back_to_a_relay_within_seconds() {
    let names: Vec<_> = entries("config").into_iter().map(|(name, _)| name).collect();
    let bootstraps: Vec<_> =
        names.iter().filter(|name| name.starts_with("envoy-") && name.ends_with(".yaml")).collect();
    assert!(bootstraps.len() > 5, "{bootstraps:?}");
    for name in bootstraps {
        assert_eq!(fault_of_bootstrap(&read(&format!("config/{name}"))), None, "config/{name}");
    }
}

#[test]
fn a_retry_policy_where_envoy_ignores_it_is_found() {
    let policy = "{retry_back_off: {max_interval: 5s}}";
    let right =
        format!("grpc_services: [{{envoy_grpc: {{cluster_name: deltafan, retry_policy: {policy}}}}}]");
    assert_eq!(fault_of_bootstrap(&right), None);
    for (wrong, fault) in [
        (format!("a: [{{envoy_grpc: {{cluster_name: deltafan}}, retry_policy: {policy}}}]"), "is beside"),
        ("a: [{envoy_grpc: {cluster_name: deltafan}}]".to_owned(), "no `retry_policy`"),
    ] {
        assert!(fault_of_bootstrap(&wrong).unwrap().contains(fault), "{wrong}");
    }
}

#[test]
fn readmes_of_examples_use_what_is_there() {
    let list = read("examples/README.md");
    for folder in folders() {
        assert!(
            list.contains(&format!("| [{folder}]({folder}/README.md) |")),
            "examples/README.md has no {folder}"
        );
        let readme = read(&format!("examples/{folder}/README.md"));
        for file in configurations(&folder) {
            assert!(readme.contains(&file), "examples/{folder}/README.md does not use {file}");
        }
        for command in commands(&readme) {
            let words = command.split([' ', '"', '\'', '(', ')']);
            for path in
                words.filter(|word| ["examples/", "config/", "tests/"].iter().any(|at| word.starts_with(at)))
            {
                assert!(in_repository(path).exists(), "examples/{folder}/README.md: {command}");
            }
        }
    }
}

#[test]
fn certificates_of_the_example_are_made_as_the_page_about_tls_says() {
    let page = read("docs/tls.md");
    let (_, block) = page.split_once("```sh\n").unwrap();
    let (made, _) = block.split_once("```").unwrap();
    let script = read("examples/envoy-mtls/certificates");
    assert!(script.ends_with(made), "examples/envoy-mtls/certificates and the first block of docs/tls.md");
}
