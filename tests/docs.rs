//! Holds the documents against the code: metrics, modules and links that they name, and those that they should.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const METRIC: &str = "deltafan_";

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(in_repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words that begin with the prefix of metrics, where a given character stands before them.
fn metrics(text: &str, before: char) -> BTreeSet<&str> {
    let starts = text.match_indices(METRIC).filter(|(at, _)| text[..*at].ends_with(before));
    let word = |at: usize| {
        let rest = &text[at..];
        &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())]
    };
    starts.map(|(at, _)| word(at)).collect()
}

/// The names of files and folders in a folder.
fn entries(folder: &str) -> Vec<(String, bool)> {
    let entries = fs::read_dir(in_repository(folder)).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path().is_dir())).collect()
}

#[test]
fn operations_lists_every_metric_and_no_other() {
    let telemetry = read("src/telemetry/mod.rs");
    let operations = read("docs/operations.md");
    let declared = metrics(&telemetry, '"');
    assert!(declared.len() > 10, "{declared:?}");
    let rows: String = operations.lines().filter(|line| line.starts_with("| `deltafan_")).collect();
    assert_eq!(
        metrics(&rows, '`'),
        declared,
        "the table of metrics in docs/operations.md, and src/telemetry"
    );
}

#[test]
fn the_map_of_the_code_has_every_module() {
    let map = read("docs/architecture.md");
    for (name, is_folder) in entries("src").into_iter().chain(entries("crates/core/src")) {
        let row = if is_folder { format!("| `{name}/` |") } else { format!("| `{name}` |") };
        assert!(map.contains(&row), "docs/architecture.md has no row {row}");
    }
    for (name, _) in entries("crates") {
        let row = format!("| `crates/{name}/` |");
        assert!(map.contains(&row), "docs/architecture.md has no row {row}");
    }
}

#[test]
fn links_within_the_repository_lead_somewhere() {
    let mut documents = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "benches/README.md",
        "crates/http2/README.md",
    ]
    .map(str::to_owned)
    .to_vec();
    documents.extend(entries("docs").into_iter().map(|(name, _)| format!("docs/{name}")));
    for document in documents {
        let text = read(&document);
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            if target.starts_with("http") || target.starts_with('#') {
                continue;
            }
            let file = target.split('#').next().unwrap_or_default();
            let path = in_repository(&document).parent().unwrap().join(file);
            assert!(path.exists(), "{document} links to {target}, which does not exist");
        }
    }
}
