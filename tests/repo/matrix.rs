//! Holds the tables in docs/rules.md against the source tree: every rule has one row; the row has the number of tests that
//! are named after the rule; every other test that it names exists; and a row without tests says why.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use super::docs::{in_repository, read, sources};

/// Each family of rules and how many it has; the rules of a family are numbered from 1 without gaps.
const FAMILIES: [(&str, u32); 12] = [
    ("R-EP", 6),
    ("R-SotW", 26),
    ("R-Delta", 23),
    ("R-REST", 15),
    ("R-DP", 18),
    ("R-XT", 9),
    ("R-TTL", 10),
    ("R-ADS", 7),
    ("R-Up", 23),
    ("R-Err", 10),
    ("R-Relay", 24),
    ("V", 6),
];

/// A `—` needs at least so many characters of reason behind it.
const REASON: usize = 10;

/// One rule: its family, as an index of `FAMILIES`, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    family: usize,
    number: u32,
}

impl Rule {
    fn all() -> impl Iterator<Item = Self> {
        let family = |(family, (_, last)): (usize, &(&str, u32))| {
            (1..=*last).map(move |number| Self { family, number })
        };
        FAMILIES.iter().enumerate().flat_map(family)
    }

    /// The rule that a test is named after, as in `r_sotw_05_…` or `v1_…`. A number that no rule has is still read, so
    /// that the test is reported as one without a row.
    fn of_test(name: &str) -> Option<Self> {
        FAMILIES.iter().enumerate().find_map(|(family, (prefix, _))| {
            let prefix = prefix.to_lowercase().replace('-', "_");
            let rest = name.strip_prefix(prefix.as_str())?;
            let rest = if prefix == "v" { rest } else { rest.strip_prefix('_')? };
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            let number = rest[..digits].parse().ok()?;
            rest[digits..].starts_with('_').then_some(Self { family, number })
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match FAMILIES[self.family].0 {
            "V" => write!(f, "V{}", self.number),
            prefix => write!(f, "{prefix}-{:02}", self.number),
        }
    }
}

/// Contents of a row.
#[derive(Debug, Default)]
struct Row {
    says: String,
    /// Number of tests that are named after the rule, by the row's own word.
    count: usize,
    /// Other tests that prove the rule.
    others: BTreeSet<String>,
    reason: Option<String>,
}

impl Row {
    fn parse(says: &str, proof: &str) -> Self {
        let digits = proof.find(|c: char| !c.is_ascii_digit()).unwrap_or(proof.len());
        let count = proof[..digits].parse().unwrap_or_default();
        // Text between backticks is at the odd places.
        let others = proof.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let reason = proof.split_once('—').map(|(_, reason)| reason.trim().to_owned());
        Self { says: says.to_owned(), count, others, reason }
    }
}

/// The rows whose first cell is the name of a rule, wherever in the document their table is.
fn rows(document: &str) -> (BTreeMap<Rule, Row>, Vec<String>) {
    let by_name: BTreeMap<String, Rule> = Rule::all().map(|rule| (rule.to_string(), rule)).collect();
    let (mut rows, mut faults) = (BTreeMap::new(), Vec::new());
    for line in document.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let looks_like_a_rule = cells[0].starts_with("R-") || cells[0].starts_with('V');
        let Some(rule) = by_name.get(cells[0]) else {
            if looks_like_a_rule {
                faults.push(format!("there is no rule {}", cells[0]));
            }
            continue;
        };
        let [_, says, proof] = cells[..] else {
            faults.push(format!("the row of {rule} has {} cells, not 3", cells.len()));
            continue;
        };
        if rows.insert(*rule, Row::parse(says, proof)).is_some() {
            faults.push(format!("{rule} has two rows"));
        }
    }
    (rows, faults)
}

/// The names of all functions in the Rust files below a folder.
fn functions(folder: &str, into: &mut BTreeSet<String>) {
    let mut files = Vec::new();
    sources(&in_repository(folder), &mut files);
    for text in files.iter().map(|file| fs::read_to_string(file).unwrap()) {
        let starts = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
        into.extend(starts.filter_map(function).map(str::to_owned));
    }
}

/// The function that a line declares.
fn function(line: &str) -> Option<&str> {
    let at = line.find("fn ").filter(|at| *at == 0 || line[..*at].ends_with(' '))?;
    let rest = &line[at + 3..];
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    (end > 0 && rest[end..].starts_with(['(', '<'])).then(|| &rest[..end])
}

/// Everything that is wrong with the tables.
fn faults(document: &str, functions: &BTreeSet<String>) -> Vec<String> {
    let (rows, mut faults) = rows(document);
    faults
        .extend(Rule::all().filter(|rule| !rows.contains_key(rule)).map(|rule| format!("{rule} has no row")));
    let mut named: BTreeMap<Rule, usize> = BTreeMap::new();
    for (name, rule) in functions.iter().filter_map(|name| Some((name, Rule::of_test(name)?))) {
        *named.entry(rule).or_default() += 1;
        if !rows.contains_key(&rule) {
            faults.push(format!("the test `{name}` is named after {rule}, which has no row"));
        }
    }
    for (rule, row) in &rows {
        if row.says.is_empty() {
            faults.push(format!("the row of {rule} does not say what the rule is"));
        }
        let there = named.get(rule).copied().unwrap_or_default();
        if row.count != there {
            faults.push(format!("the row of {rule} has to say {there}: so many tests are named after it"));
        }
        for test in &row.others {
            if Rule::of_test(test) == Some(*rule) {
                faults.push(format!("the row of {rule} names `{test}`, which its number counts"));
            } else if !functions.contains(test) {
                faults.push(format!("the row of {rule} names `{test}`, and there is no such function"));
            }
        }
        match &row.reason {
            Some(reason) if reason.chars().count() < REASON => {
                faults.push(format!("the row of {rule} has a — and no reason"));
            }
            None if row.count == 0 && row.others.is_empty() => {
                faults.push(format!("the row of {rule} has neither a test nor a — with a reason"));
            }
            _ => {}
        }
    }
    faults
}

#[test]
fn the_rules_agree_with_the_tests() {
    let document = read("docs/rules.md");
    let mut known = BTreeSet::new();
    ["src", "crates", "tests"].iter().for_each(|folder| functions(folder, &mut known));
    let faults = faults(&document, &known);
    assert!(faults.is_empty(), "docs/rules.md:\n  {}", faults.join("\n  "));
}

mod the_check {
    use super::*;

    /// Tables in which every rule has a reason, but for one row.
    fn tables_with(rule: &str, row: &str) -> String {
        let others = Rule::all().map(|rule| rule.to_string()).filter(|other| other != rule);
        let mut lines: Vec<String> =
            others.map(|other| format!("| {other} | says so | — asks nothing of us |")).collect();
        lines.push(row.to_owned());
        lines.join("\n")
    }

    fn faults_of(row: &str, functions: &[&str]) -> Vec<String> {
        let functions = functions.iter().map(|name| (*name).to_owned()).collect();
        faults(&tables_with("R-Up-07", row), &functions)
    }

    #[test]
    fn each_kind_of_gap_is_found() {
        let cases: [(&str, &[&str], &str); 13] = [
            ("", &[], "R-Up-07 has no row"),
            ("", &["r_up_07_x"], "named after R-Up-07, which has no row"),
            ("| R-Up-07 | a | — it is so |\n| R-Up-07 | a | — it is so |", &[], "two rows"),
            ("| R-Up-07 | a | — it is so |\n| R-Up-77 | a | — it is so |", &[], "no rule R-Up-77"),
            ("| R-Up-07 | a | `gone` |", &[], "no such function"),
            ("| R-Up-07 | a | `r_up_07_x` |", &["r_up_07_x"], "which its number counts"),
            ("| R-Up-07 | a | `other` |", &["r_up_07_x", "other"], "has to say 1"),
            ("| R-Up-07 | a | 2 |", &["r_up_07_x"], "has to say 1"),
            ("| R-Up-07 | a | 1 |", &["other"], "has to say 0"),
            ("| R-Up-07 | a |  |", &[], "neither a test"),
            ("| R-Up-07 | a | — |", &[], "no reason"),
            ("| R-Up-07 |  | — it is so |", &[], "does not say"),
            ("| R-Up-07 | a | b | — it is so |", &[], "4 cells"),
        ];
        for (row, functions, expected) in cases {
            let found = faults_of(row, functions);
            assert!(found.iter().any(|fault| fault.contains(expected)), "{row}: {found:?}");
        }
    }
}
