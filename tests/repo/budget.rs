//! Budget of the repository: figures that `budget.txt` bounds, so that its size grows only on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::docs::{in_repository, read, sources};

/// Rooms of the core whose constants of time, count and number are counted.
const ROOMS: [&str; 3] = ["upstream", "subscription", "cache"];

/// Whether a Rust file is a test, or serves tests only.
fn is_test(path: &Path) -> bool {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let (name, folders) = parts.split_last().expect("a file");
    ["tests", "benches", "fuzz"].contains(&parts[0])
        || folders.iter().any(|folder| ["tests", "test-support"].contains(folder))
        || ["tests.rs", "fixture.rs"].contains(name)
}

/// Lines of code and of tests in a file, bytes of the code, and words of its comments.
#[derive(Default)]
struct Count {
    code: usize,
    bytes: usize,
    tests: usize,
    words: usize,
}

/// Counts a shipped file: what is below its module of tests is a test.
fn count(text: &str, tests_begin: &Regex) -> Count {
    let shipped = tests_begin.find(text).map_or(text, |found| &text[..found.start()]);
    let lines = |text: &'_ str| -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    let mut counted = Count::default();
    for line in lines(shipped) {
        if line.starts_with("//") {
            counted.words += line.split_whitespace().count() - 1;
        } else {
            counted.code += 1;
            counted.bytes += line.chars().count();
        }
    }
    counted.tests = lines(&text[shipped.len()..]).iter().filter(|line| !line.starts_with("//")).count();
    counted
}

fn bytes_of_documents() -> u64 {
    let mut folders = vec![in_repository("docs")];
    let mut files: Vec<PathBuf> = Vec::new();
    let is_document = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    files.extend(entries(&in_repository("")).into_iter().filter(is_document));
    while let Some(folder) = folders.pop() {
        let (inner, here): (Vec<_>, Vec<_>) = entries(&folder).into_iter().partition(|path| path.is_dir());
        folders.extend(inner);
        files.extend(here.into_iter().filter(is_document));
    }
    files.iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

fn figures() -> BTreeMap<&'static str, usize> {
    let tests_begin = Regex::new(r"(?m)^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*mod \w+ \{").unwrap();
    let constant = Regex::new(r"(?m)^\s*(?:pub(?:\([^)]*\))? )?const \w+: (?:Duration|u32|u64)\b").unwrap();
    let home = in_repository("");
    let rooms = ROOMS.map(|room| Path::new("crates/core/src").join(room));
    let (mut all, mut files, mut upstream, mut constants) = (Count::default(), 0, 0, 0);
    let mut found = Vec::new();
    ["src", "crates", "tests", "benches", "fuzz"]
        .iter()
        .for_each(|folder| sources(&home.join(folder), &mut found));
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(&home).unwrap();
        let counted = count(&text, &tests_begin);
        if is_test(path) {
            all.tests += counted.code + counted.tests;
            continue;
        }
        files += 1;
        all.code += counted.code;
        all.bytes += counted.bytes;
        all.words += counted.words;
        all.tests += counted.tests;
        if path.starts_with(&rooms[0]) {
            upstream += counted.code;
        }
        if rooms.iter().any(|room| path.starts_with(room)) {
            constants += constant.find_iter(&text).count();
        }
    }
    BTreeMap::from([
        ("shipped_lines", all.code),
        ("shipped_kb", all.bytes / 1024),
        ("shipped_files", files),
        ("core_upstream_lines", upstream),
        ("core_constants", constants),
        ("comment_words", all.words),
        ("test_lines", all.tests),
        ("document_kb", bytes_of_documents() as usize / 1024),
    ])
}

#[test]
fn figures_are_within_the_budget() {
    let text = read("tests/repo/budget.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let budget: BTreeMap<&str, usize> = lines
        .map(|line| {
            let (name, figure) = line.split_once(' ').expect("a name and a figure");
            (name, figure.trim().parse().expect("a figure"))
        })
        .collect();
    let figures = figures();
    assert!(budget.keys().eq(figures.keys()), "budget.txt has other names than {:?}", figures.keys());
    let above: Vec<String> = figures
        .iter()
        .filter(|(name, figure)| **figure > budget[**name])
        .map(|(name, figure)| format!("{name} is {figure}, the budget is {}", budget[*name]))
        .collect();
    assert!(
        above.is_empty(),
        "{}\nremove something, or raise the figure in tests/repo/budget.txt and say in the commit why",
        above.join("\n")
    );
}

#[test]
fn tests_and_comments_are_no_shipped_code() {
    let tests_begin = Regex::new(r"(?m)^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*mod \w+ \{").unwrap();
    let text = "//! A fact.\n\nfn f() {\n    // Why it is so.\n}\n\n#[cfg(test)]\nmod tests {\n    // A comment.\n    fn g() {}\n}\n";
    let Count { code, bytes, tests, words } = count(text, &tests_begin);
    assert_eq!((code, bytes, tests, words), (2, 9, 4, 6));
    let is_test = |path: &str| is_test(Path::new(path));
    assert!(is_test("tests/repo/main.rs") && is_test("crates/core/src/upstream/tests/ttl.rs"));
    assert!(is_test("src/config/tests.rs") && !is_test("src/config/mod.rs"));
}
