//! Holds the documents against the code: metrics, modules and links that they name, and modules that they should. Also the
//! style of both, as far as a program can tell.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use deltafan::telemetry::all_metrics;

const METRIC: &str = "deltafan_";

/// Beginnings of a comment, or of a paragraph of a document, that name no thing: a noun or a verb comes first.
const RIDDLES: [&str; 9] = [
    "What ",
    "Who ",
    "Whoever ",
    "Whom ",
    "The same",
    "See the module",
    "Whether who ",
    "Of what ",
    "Of those ",
];

/// Folders whose comments are held to that.
const FOLDERS: [&str; 5] = ["src", "crates", "benches", "fuzz", "tests"];

/// Longest cell of a table in a document, in characters. More is a paragraph.
const LONGEST_CELL: usize = 300;

pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn read(path: &str) -> String {
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
pub(crate) fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Numbers of the lines in which a comment, or a paragraph of one, begins with one of `RIDDLES`.
fn riddles(text: &str) -> Vec<usize> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let comment =
            line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim());
        if comment.is_some_and(|text| !is_inside && RIDDLES.iter().any(|riddle| text.starts_with(riddle))) {
            found.push(number);
        }
        is_inside = comment.is_some_and(|text| !text.is_empty());
    }
    found
}

/// Numbers of the lines in which a paragraph of a document, or an item of a list, begins with one of `RIDDLES`. Tables,
/// headings and code are none.
fn riddles_of_document(text: &str) -> Vec<usize> {
    let (mut is_inside, mut is_code) = (false, false);
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let text = line.trim_start();
        is_code ^= text.starts_with("```");
        let numbered = text.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok());
        let numbered = numbered.map(|(_, rest)| rest);
        let item = text.strip_prefix("- ").or(numbered);
        let is_prose = !is_code && !line.starts_with("    ") && !text.starts_with(['|', '#']);
        let begins = item.unwrap_or(text).trim_start_matches('*');
        if is_prose
            && (!is_inside || item.is_some())
            && RIDDLES.iter().any(|riddle| begins.starts_with(riddle))
        {
            found.push(number);
        }
        is_inside = is_prose && !text.is_empty();
    }
    found
}

/// All documents that people read.
pub(crate) fn documents() -> Vec<String> {
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
    let pages = entries("docs").into_iter().filter(|(_, is_folder)| !is_folder);
    documents.extend(pages.map(|(name, _)| format!("docs/{name}")));
    documents.push("examples/README.md".to_owned());
    let examples = entries("examples").into_iter().filter(|(_, is_folder)| *is_folder);
    documents.extend(examples.map(|(name, _)| format!("examples/{name}/README.md")));
    documents
}

/// The names of files and folders in a folder.
pub(crate) fn entries(folder: &str) -> Vec<(String, bool)> {
    let entries = fs::read_dir(in_repository(folder)).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path().is_dir())).collect()
}

/// A test in src/telemetry compares docs/metrics.md with the catalog.
#[test]
fn documents_name_metrics_that_there_are() {
    let declared: BTreeSet<&str> = all_metrics().map(|metric| metric.name).collect();
    assert!(declared.len() > 10, "{declared:?}");
    for document in documents().iter().filter(|document| *document != "CHANGELOG.md") {
        let text = read(document);
        for name in ['`', '(', ' '].into_iter().flat_map(|before| metrics(&text, before)) {
            let parts = ["_bucket", "_sum", "_count"];
            let stem = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
            assert!(
                declared.contains(name) || declared.contains(stem),
                "{document} names {name}, which is not in src/telemetry/catalog.rs"
            );
        }
    }
}

#[test]
fn the_map_has_every_crate_and_a_module_says_what_it_owns() {
    let map = read("docs/architecture.md");
    for (name, _) in entries("crates") {
        let row = format!("| `crates/{name}/` |");
        assert!(map.contains(&row), "docs/architecture.md has no row {row}");
    }
    // Modules: see `dependencies::circles`. What one owns is said in it.
    for root in ["src", "crates/commands/src", "crates/core/src"] {
        for (name, is_folder) in entries(root) {
            let places = if is_folder {
                vec![format!("{root}/{name}/mod.rs"), format!("{root}/{name}.rs")]
            } else {
                vec![format!("{root}/{name}")]
            };
            let file = places.iter().find(|place| in_repository(place).exists());
            let file = file.unwrap_or_else(|| panic!("{root}/{name} has no mod.rs"));
            assert!(read(file).starts_with("//! "), "{file} does not begin with what it owns");
        }
    }
}

#[test]
fn places_where_a_change_begins_exist() {
    let document = read("docs/architecture.md");
    let (_, section) = document.split_once("\n## Where a change begins\n").unwrap();
    let rows =
        section.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with('|'));
    // Text between backticks is at the odd places.
    let places: Vec<&str> = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .filter(|place| place.ends_with(".rs") || place.ends_with('/'))
        .collect();
    assert!(places.len() > 20, "{places:?}");
    for place in places {
        let is_of_core = !["src/", "crates/"].iter().any(|root| place.starts_with(root));
        let path = if is_of_core { format!("crates/core/src/{place}") } else { place.to_owned() };
        assert!(in_repository(&path).exists(), "docs/architecture.md names {place}, which does not exist");
    }
}

#[test]
fn comments_begin_with_a_noun_or_a_verb() {
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&in_repository(folder), &mut files);
    }
    files.sort();
    assert!(files.len() > 200, "{files:?}");
    let mut found = Vec::new();
    for file in &files {
        let lines = riddles(&fs::read_to_string(file).unwrap());
        found.extend(lines.into_iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(found.is_empty(), "comments begin with one of {RIDDLES:?}:\n{}", found.join("\n"));
}

#[test]
fn a_riddle_is_found_where_a_comment_begins() {
    let text = [
        "//! What it is.\n//! What more.\n\n/// Who asks.\nfn a() {}\n",
        "  /// A name.\n  /// The same again.\n",
        "  fn b() {}\n// The same.\n//\n// See the module.\n",
    ]
    .concat();
    assert_eq!(riddles(&text), [1, 4, 9, 11]);
}

#[test]
fn paragraphs_of_documents_begin_with_a_noun_or_a_verb() {
    let mut found = Vec::new();
    for document in documents() {
        let lines = riddles_of_document(&read(&document));
        found.extend(lines.into_iter().map(|line| format!("{document}:{line}")));
    }
    assert!(found.is_empty(), "paragraphs begin with one of {RIDDLES:?}:\n{}", found.join("\n"));
}

#[test]
fn a_riddle_is_found_where_a_paragraph_or_an_item_begins() {
    let text = [
        "# What it is\n\nWhat it does.\nWho asks.\n\n    What code prints.\n\n",
        "- **Who asks** is told.\n  The same again.\n1. Whoever asks.\n\n",
        "```\nWhat code prints.\n```\n\n| What | Who |\n\nA name.\n\nThe same.\n",
    ]
    .concat();
    assert_eq!(riddles_of_document(&text), [3, 8, 10, 20]);
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

#[test]
fn facts_about_control_planes_that_the_code_cites_are_defined() {
    let defined = read("docs/origins.md");
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&in_repository(folder), &mut files);
    }
    let mut cited = BTreeSet::new();
    for text in files.iter().map(|file| fs::read_to_string(file).unwrap()) {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let is_fact = |word: &&str| {
            word.strip_prefix('O').is_some_and(|number| !number.is_empty() && number.parse::<u8>().is_ok())
        };
        cited.extend(words.filter(is_fact).map(str::to_owned));
    }
    assert!(cited.len() >= 4, "{cited:?}");
    for fact in cited {
        assert!(defined.contains(&format!("\n| {fact} | ")), "docs/origins.md does not define {fact}");
    }
}
