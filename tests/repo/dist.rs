//! Cheap facts of a release: licences that are collected are those that deny.toml allows, and versions are of one kind. `make dist`
//! has the checks of what it builds.

use std::collections::BTreeMap;

use crate::docs::read;

const ABOUT: &str = "deploy/licenses/about.toml";

/// Licences allowed for all crates (under the empty name), and for each crate that has an exception.
type Licences = BTreeMap<String, Vec<String>>;

/// Texts between quotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn allowed_by_deny() -> Licences {
    let deny = read("deny.toml");
    let line = |start: &str| deny.lines().find(|line| line.starts_with(start)).unwrap();
    let exceptions = deny.split("exceptions = [\n").nth(1).and_then(|rest| rest.split("\n]").next()).unwrap();
    let of_crate = exceptions.lines().filter(|line| !line.trim_start().starts_with('#')).map(|line| {
        let mut words = quoted(line);
        (words.remove(0), words)
    });
    of_crate.chain([(String::new(), quoted(line("allow = [")))]).collect()
}

fn accepted_by_about() -> Licences {
    let mut name = String::new();
    let mut licences = Licences::new();
    for line in read(ABOUT).lines() {
        if let Some(section) = line.strip_prefix('[') {
            name = section.trim_end_matches(']').to_owned();
        } else if line.starts_with("accepted = ") {
            licences.insert(name.clone(), quoted(line));
        }
    }
    licences
}

#[test]
fn the_licences_of_a_package_are_those_of_deny() {
    let allowed = allowed_by_deny();
    assert!(allowed.len() > 1 && allowed[""].len() > 4, "{allowed:?}");
    assert_eq!(accepted_by_about(), allowed, "{ABOUT}, and deny.toml");
    // The shipped ones of deny.toml, that is those for musl.
    let deny = read("deny.toml");
    for target in quoted(read(ABOUT).lines().find(|line| line.starts_with("targets = ")).unwrap()) {
        assert!(deny.contains(&format!("\"{target}\"")), "deny.toml does not look at {target}");
    }
}

#[test]
fn chart_and_program_have_one_version() {
    let chart = read("deploy/helm/deltafan/Chart.yaml");
    assert!(chart.contains(&format!("\nappVersion: \"{}\"\n", env!("CARGO_PKG_VERSION"))), "{chart}");
}

#[test]
fn make_says_what_each_target_does() {
    let makefile = read("Makefile");
    let phony = makefile.lines().find_map(|line| line.strip_prefix(".PHONY: ")).unwrap();
    for target in phony.split(' ') {
        let said =
            makefile.lines().any(|line| line.starts_with(&format!("{target}: ")) && line.contains(" ## "));
        assert!(said, "`make help` does not say what {target} does");
    }
}
