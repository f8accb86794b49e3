//! Folders of examples/: their configurations are valid, and their READMEs name files that exist. `make examples` runs the
//! commands of the READMEs.

use std::fs;
use std::path::Path;
use std::process::Command;

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

#[test]
fn configurations_in_documents_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let mut found = 0;
    for document in documents() {
        for block in configurations_in(&read(&document)) {
            let has_source = block.lines().any(|line| line.starts_with("upstream:"));
            let source = if has_source { "" } else { "upstream: {directory: resources}\n" };
            let file = folder.path().join("relay.yaml");
            fs::write(&file, format!("{source}{block}")).unwrap();
            check(&file, &format!("{document}:\n{block}"));
            found += 1;
        }
    }
    assert!(found > 15, "{found} configurations in documents");
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
