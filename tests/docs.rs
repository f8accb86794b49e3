//! Holds the documents against the code: metrics, modules and links that they name, and those that they should. Also the
//! style of both, as far as a program can tell.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const METRIC: &str = "deltafan_";

/// Beginnings of a comment that names no thing: a noun or a verb comes first.
const RIDDLES: [&str; 3] = ["What ", "Who ", "The same"];

/// Longest cell of a table in a document, in characters. More is a paragraph.
const LONGEST_CELL: usize = 300;

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

/// All Rust files below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Text of a line that is a doc comment.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
}

/// Numbers of the lines in which a doc comment begins with one of `RIDDLES`.
fn riddles(text: &str) -> Vec<usize> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let doc = doc(line);
        if doc.is_some_and(|doc| !is_inside && RIDDLES.iter().any(|riddle| doc.starts_with(riddle))) {
            found.push(number);
        }
        is_inside = doc.is_some();
    }
    found
}

/// All documents that people read.
fn documents() -> Vec<String> {
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
    documents
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
    for document in documents() {
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

/// Folders whose comments lead with a noun or a verb. Others are added, and none is taken out.
const PLAIN: [&str; 6] =
    ["src/admin", "src/downstream", "src/file_watch", "src/relay", "src/telemetry", "src/upstream"];

#[test]
fn comments_lead_with_a_noun_or_a_verb() {
    const BAD: [&str; 7] =
        ["What ", "Who ", "Whoever ", "Whom ", "The same ", "See the module", "Whether who "];
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    PLAIN.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    assert!(files.len() > 40, "{files:?}");
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut is_first = true;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                is_first = true;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            if is_first && BAD.iter().any(|bad| comment.starts_with(bad)) {
                found.push(format!("{}:{}: {comment}", file.display(), number + 1));
            }
            is_first = comment.is_empty();
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let mut files = Vec::new();
    for folder in ["src", "crates"] {
        sources(&in_repository(folder), &mut files);
    }
    files.sort();
    let mut found = Vec::new();
    for file in &files {
        let lines = riddles(&fs::read_to_string(file).unwrap());
        found.extend(lines.into_iter().map(|line| format!("{}:{line}", file.display())));
    }
    println!("{} doc comments begin with one of {RIDDLES:?}", found.len());
    assert!(found.is_empty(), "doc comments begin with one of {RIDDLES:?}:\n{}", found.join("\n"));
}

#[test]
fn a_riddle_is_found_where_a_comment_begins() {
    let text = "//! What it is.\n//! What more.\n\n/// Who asks.\nfn a() {}\n  /// A name.\n  /// The same again.\n  fn b() {}\n\
                /// The same.\n// What is no doc.\n";
    assert_eq!(riddles(text), [1, 4, 9]);
}

#[test]
fn no_cell_of_a_table_holds_a_paragraph() {
    for document in documents() {
        for (line, number) in read(&document).lines().zip(1..).filter(|(line, _)| line.starts_with('|')) {
            let longest = line.split(" | ").map(|cell| cell.chars().count()).max().unwrap_or_default();
            assert!(longest <= LONGEST_CELL, "{document}:{number} has a cell of {longest} characters");
        }
    }
}
