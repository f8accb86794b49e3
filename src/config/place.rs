//! One place of a file, for the reader of its value.
//!
//! Owns the paths of problems, and reports values of another shape than their place's. Notations judge values.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;

use serde_json::{Map, Value as Json};

use super::errors::{Report, quoted};
use super::yaml::{Entry, Tree, Value};

/// Place of a value, which may be absent.
#[derive(Clone)]
pub(super) struct Place<'t> {
    path: String,
    /// An absent value has the line of the mapping that lacks it.
    line: usize,
    tree: Option<&'t Tree>,
    report: &'t Report,
}

impl<'t> Place<'t> {
    pub(super) fn root(tree: &'t Tree, report: &'t Report) -> Self {
        Self { path: String::new(), line: tree.line, tree: Some(tree), report }
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn report(&self) -> &'t Report {
        self.report
    }

    /// Whether the value stands in the file, right or wrong.
    pub(super) fn is_there(&self) -> bool {
        self.tree.is_some()
    }

    /// Place of a key.
    pub(super) fn at(&self, name: &str) -> Self {
        match self.entries().iter().find(|entry| entry.key == name) {
            Some(entry) => self.below(entry),
            None => Self { path: join(&self.path, name), tree: None, ..*self },
        }
    }

    /// Places of all keys.
    pub(super) fn children(&self) -> impl Iterator<Item = (&'t str, Self)> {
        self.entries().iter().map(|entry| (entry.key.as_str(), self.below(entry)))
    }

    /// Places of the entries of a list. `None` without one; another value is reported.
    pub(super) fn items(&self) -> Option<Vec<Self>> {
        let Value::List(items) = &self.tree?.value else {
            self.misshapen("a list");
            return None;
        };
        let path = format!("{}[]", self.path);
        let place = |item: &'t Tree| Self { path: path.clone(), line: item.line, tree: Some(item), ..*self };
        Some(items.iter().map(place).collect())
    }

    /// Whether it is a mapping, or nothing, as where all keys are commented out. Reports other values.
    pub(super) fn is_mapping(&self, wanted: &str) -> bool {
        let is_other = self.tree.is_some_and(|tree| !matches!(tree.value, Value::Map(_)) && !tree.is_null());
        if is_other {
            self.misshapen(wanted);
        }
        !is_other
    }

    /// Any mapping as JSON.
    pub(super) fn json(&self) -> Option<Map<String, Json>> {
        self.is_mapping("a mapping");
        let Value::Map(entries) = &self.tree?.value else { return None };
        Some(json_map(entries))
    }

    /// A single value, without quotes.
    pub(super) fn text(&self) -> Option<&'t str> {
        match &self.tree?.value {
            Value::Scalar { text, .. } if !self.tree?.is_null() => Some(text),
            _ => None,
        }
    }

    /// A single value, judged by `parse`. `None` if it is absent, or wrong and reported.
    pub(super) fn parsed<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let tree = self.tree?;
        let Some(text) = self.text() else {
            self.misshapen("a single value");
            return None;
        };
        parse(text).map_err(|problem| self.wrong_on(tree.line, &problem)).ok()
    }

    /// Reports a missing value. `remedy` ends the message.
    pub(super) fn require(&self, remedy: &str) {
        if !self.is_there() {
            self.wrong(&format!("is missing; write {remedy}"));
        }
    }

    pub(super) fn wrong(&self, problem: &str) {
        self.wrong_on(self.line, problem);
    }

    pub(super) fn wrong_on(&self, line: usize, problem: &str) {
        self.report.at(line, &format!("`{}`: {problem}", self.path));
    }

    fn misshapen(&self, wanted: &str) {
        if let Some(tree) = self.tree {
            let subject =
                if self.path.is_empty() { "the file".to_owned() } else { format!("`{}`", self.path) };
            self.report.at(tree.line, &format!("{subject} must be {wanted}, not {}", tree.describe()));
        }
    }

    fn entries(&self) -> &'t [Entry] {
        match self.tree.map(|tree| &tree.value) {
            Some(Value::Map(entries)) => entries,
            _ => &[],
        }
    }

    fn below(&self, entry: &'t Entry) -> Self {
        Self { path: join(&self.path, &entry.key), line: entry.line, tree: Some(&entry.value), ..*self }
    }
}

/// Reports places whose value is that of an earlier one. `what` it does there is part of the message.
pub(super) fn check_unique<'t, T: Eq + Hash + Display>(
    values: impl Iterator<Item = (Place<'t>, T)>,
    what: &str,
) {
    let mut lines = HashMap::new();
    for (place, value) in values {
        let text = quoted(&value.to_string());
        if let Some(first) = lines.insert(value, place.line) {
            place.wrong(&format!("{text} {what} on line {first} already"));
        }
    }
}

fn json_map(entries: &[Entry]) -> Map<String, Json> {
    entries.iter().map(|entry| (entry.key.clone(), json(&entry.value))).collect()
}

/// Recursion is bounded by the depth of the tree.
fn json(tree: &Tree) -> Json {
    match &tree.value {
        _ if tree.is_null() => Json::Null,
        // Numbers and flags are as JSON writes them; anything else is text.
        Value::Scalar { text, plain: true } => match serde_json::from_str(text) {
            // The parser of JSON may round; the standard library's is exact.
            Ok(Json::Number(number)) if number.is_f64() => text.parse::<f64>().unwrap_or_default().into(),
            Ok(value) => value,
            Err(_) => text.as_str().into(),
        },
        Value::Scalar { text, plain: false } => text.as_str().into(),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => json_map(entries).into(),
    }
}

/// Path of a key, with `[]` for each entry of a list: `downstream.listeners[].address`.
pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

pub(super) fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
