//! Folders of examples/: their configurations are valid, and their READMEs name files that exist. `make examples` runs the
//! commands of the READMEs.

use std::path::Path;
use std::process::Command;

use super::docs::{entries, in_repository, read};

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
            let checked = Command::new(env!("CARGO_BIN_EXE_deltafan"))
                .args(["check", "--no-files", "--config"])
                .arg(in_repository(&config))
                .output()
                .unwrap();
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        }
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
