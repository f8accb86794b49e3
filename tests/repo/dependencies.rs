//! Holds the dependencies against `deny.toml`: crates and versions that are banned, licences, sources, and crates that are
//! there in two versions; and, in `circles`, the source files against circles of imports. Advisories are left to cargo-deny, which takes minutes to compile and needs a network.

mod circles;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::docs::read;

type Version = [u64; 3];

fn version(text: &str) -> Version {
    let mut numbers = text.split(['-', '+']).next().unwrap().split('.').map(|number| number.parse().unwrap());
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

/// The text between the quotes behind `key = "`.
fn quoted<'t>(line: &'t str, key: &str) -> Option<&'t str> {
    line.split_once(&format!("{key} = \""))?.1.split('"').next()
}

/// Lines of a list in `deny.toml`, one entry each.
fn list<'t>(text: &'t str, key: &str) -> impl Iterator<Item = &'t str> {
    let (_, rest) = text.split_once(&format!("\n{key} = [")).unwrap_or_else(|| panic!("no list {key}"));
    let entries = rest.split_once("\n]").unwrap().0.lines().map(str::trim);
    entries.filter(|line| line.starts_with('{'))
}

/// Crates that `deny.toml` bans, each with the version from which on it is allowed, or none.
fn bans() -> BTreeMap<String, Option<Version>> {
    let entry = |line: &str| {
        assert!(quoted(line, "reason").is_some_and(|reason| reason.len() > 10), "no reason: {line}");
        let named = quoted(line, "crate").unwrap();
        match named.split_once('@') {
            Some((name, below)) => (name.to_owned(), Some(version(below.strip_prefix('<').unwrap()))),
            None => (named.to_owned(), None),
        }
    };
    list(&read("deny.toml"), "deny").map(entry).collect()
}

/// Output of cargo, asked in the repository and without a network.
fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .args(["--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// A licence expression holds if licences that are allowed satisfy it.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let is_allowed = any(&mut words, allowed);
    assert_eq!(words.next(), None, "{expression}");
    is_allowed
}

type Words<'t> = std::iter::Peekable<std::str::SplitWhitespace<'t>>;

fn any(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut is_allowed = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        is_allowed |= all(words, allowed);
    }
    is_allowed
}

fn all(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut is_allowed = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        is_allowed &= one(words, allowed);
    }
    is_allowed
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let is_allowed = any(words, allowed);
        assert_eq!(words.next(), Some(")"));
        return is_allowed;
    }
    let licence = words.next().unwrap_or_default().trim_end_matches('+');
    // An exception to a licence only adds permissions.
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    allowed.contains(licence)
}

/// All packages of a lock file.
fn locked(path: &str) -> Vec<(String, Version)> {
    let text = read(path);
    let package =
        |part: &str| (quoted(part, "name").unwrap().to_owned(), version(quoted(part, "version").unwrap()));
    text.split("[[package]]").skip(1).map(package).collect()
}

#[test]
fn nothing_banned_is_locked() {
    let bans = bans();
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let packages = locked(lock);
        assert!(packages.len() > 100, "{} packages in {lock}", packages.len());
        for (name, version) in packages {
            match bans.get(&name) {
                None => {}
                Some(Some(floor)) => {
                    assert!(version >= *floor, "{lock}: {name} {version:?} is below {floor:?}")
                }
                Some(None) => panic!("{lock}: {name} is banned"),
            }
        }
    }
}

#[test]
fn every_licence_and_source_is_allowed() {
    let deny = read("deny.toml");
    let line = deny.lines().find(|line| line.starts_with("allow = [")).unwrap();
    // Text between quotes is at the odd places.
    let everywhere: BTreeSet<&str> = line.split('"').skip(1).step_by(2).collect();
    let exceptions: BTreeMap<&str, &str> = list(&deny, "exceptions")
        .map(|line| (quoted(line, "crate").unwrap(), line.rsplit('"').nth(1).unwrap()))
        .collect();
    let platform = "x86_64-unknown-linux-gnu";
    let metadata = cargo(&["metadata", "--format-version", "1", "--filter-platform", platform]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        let mut allowed = everywhere.clone();
        allowed.extend(exceptions.get(name));
        assert!(is_allowed(licence, &allowed), "deny.toml does not allow the licence of {name}: {licence:?}");
        // A crate of this repository has no source.
        let source = &package["source"];
        let is_ours = source.is_null() && name.starts_with("deltafan");
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        assert!(is_ours || source == registry, "{name} comes from {source}");
    }
}

#[test]
fn a_licence_expression_is_read_as_it_is_meant() {
    let allowed = BTreeSet::from(["MIT", "Apache-2.0"]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("", false),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND GPL-3.0 OR Apache-2.0", true),
        ("(GPL-3.0 OR MIT) AND Apache-2.0+", true),
        ("(GPL-3.0 OR MIT) AND ISC", false),
        ("ISC OR Apache-2.0 WITH LLVM-exception", true),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

#[test]
fn a_crate_is_there_twice_only_with_a_reason() {
    // Crates of tests alone are not shipped.
    let tree = cargo(&["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in tree.lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            versions.entry(name).or_default().insert(version.trim_start_matches('v'));
        }
    }
    assert!(versions.len() > 100, "{versions:?}");
    let deny = read("deny.toml");
    let skipped: Vec<(&str, &str)> =
        list(&deny, "skip").map(|line| quoted(line, "crate").unwrap().split_once('@').unwrap()).collect();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let is_skipped = |version: &&&str| {
            skipped.iter().any(|(skip, prefix)| skip == name && version.starts_with(&format!("{prefix}.")))
        };
        let without_reason: Vec<_> = versions.iter().filter(|version| !is_skipped(version)).collect();
        assert!(without_reason.len() < 2, "{name} is there as {versions:?}, see `skip` in deny.toml");
    }
}

#[test]
fn the_fuzz_targets_are_built_of_the_same_versions() {
    let ours: BTreeSet<_> = locked("Cargo.lock").into_iter().collect();
    let names: BTreeSet<_> = ours.iter().map(|(name, _)| name).collect();
    let others = locked("fuzz/Cargo.lock").into_iter();
    let stale: Vec<_> =
        others.filter(|package| names.contains(&package.0) && !ours.contains(package)).collect();
    assert!(stale.is_empty(), "fuzz/Cargo.lock has other versions than Cargo.lock: {stale:?}");
}
