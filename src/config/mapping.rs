//! One mapping of a file, for the readers of its keys.
//!
//! Owns the places of problems, and reports values of another shape than their key's. Notations judge values.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::path::Path;
use std::time::Duration;

use super::errors::{Report, quoted};
use super::yaml::{Entry, Tree, Value};
use crate::units;

/// A mapping, or the absent or wrong value in its place, which has no entries.
pub(super) struct Mapping<'t> {
    path: String,
    line: usize,
    entries: &'t [Entry],
    tree: Option<&'t Tree>,
    source: Source<'t>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'t> {
    pub(super) text: &'t str,
    /// Neither in quotes nor block text.
    pub(super) plain: bool,
    /// Where relative paths start.
    pub(super) base: &'t Path,
}

#[derive(Clone, Copy)]
struct Source<'t> {
    report: &'t Report,
    base: &'t Path,
}

impl<'t> Mapping<'t> {
    pub(super) fn root(tree: &'t Tree, report: &'t Report, base: &'t Path) -> Self {
        Self::over(tree, String::new(), tree.line, Source { report, base })
    }

    fn over(tree: &'t Tree, path: String, line: usize, source: Source<'t>) -> Self {
        let entries = if let Value::Map(entries) = &tree.value { entries.as_slice() } else { &[] };
        Self { path, line, entries, tree: Some(tree), source }
    }

    /// An absent mapping has its parent's line.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn report(&self) -> &'t Report {
        self.source.report
    }

    /// Whether it is a mapping or nothing. Reports other values.
    pub(super) fn is_mapping(&self, wanted: &str) -> bool {
        self.misfit().inspect(|tree| self.misshapen(&self.path, tree, wanted)).is_none()
    }

    /// Value in place of a mapping. None is nothing, as a section whose keys are all commented out.
    pub(super) fn misfit(&self) -> Option<&'t Tree> {
        self.tree.filter(|tree| !matches!(tree.value, Value::Map(_)) && !tree.is_null())
    }

    fn misshapen(&self, path: &str, tree: &Tree, wanted: &str) {
        if !matches!(tree.value, Value::Refused) {
            let subject = if path.is_empty() { "the file".to_owned() } else { format!("`{path}`") };
            self.report().at(tree.line, &format!("{subject} must be {wanted}, not {}", tree.describe()));
        }
    }

    /// An absent section reads as an empty one.
    pub(super) fn section(&self, name: &str) -> Self {
        let path = join(&self.path, name);
        match self.entry(name) {
            Some(entry) => Self::over(&entry.value, path, entry.line, self.source),
            None => Self { path, line: self.line, entries: &[], tree: None, source: self.source },
        }
    }

    /// Whether the key stands in the file, right or wrong.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    pub(super) fn line_of(&self, name: &str) -> usize {
        self.entry(name).map_or(self.line, |entry| entry.line)
    }

    /// Keys with their lines.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&'t str, usize)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), entry.line))
    }

    /// Judges a single value again, without a report.
    pub(super) fn again<T>(
        &self,
        name: &str,
        parse: impl FnOnce(Word<'_>) -> Result<T, String>,
    ) -> Option<T> {
        parse(self.word(self.value(name)?)?).ok()
    }

    pub(super) fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(Word<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.judge(name, name, self.value(name)?, parse)
    }

    /// Sections of a list, also those of another shape.
    pub(super) fn sections(&self, name: &str) -> Option<Vec<Self>> {
        let path = format!("{}[]", join(&self.path, name));
        let section = |item: &'t Tree| Self::over(item, path.clone(), item.line, self.source);
        self.items(name).map(|items| items.iter().map(section).collect())
    }

    /// Skips wrong entries.
    pub(super) fn words<T>(
        &self,
        name: &str,
        parse: impl Fn(Word<'_>) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        self.check_list(name);
        let (items, path) = (self.items(name)?, format!("{name}[]"));
        Some(items.iter().filter_map(|item| self.judge(name, &path, item, &parse)).collect())
    }

    /// Reports the value of a key if it is no list.
    pub(super) fn check_list(&self, name: &str) {
        let other = self.value(name).filter(|tree| !matches!(tree.value, Value::List(_)));
        other.inspect(|tree| self.misshapen(&join(&self.path, name), tree, "a list"));
    }

    pub(super) fn is_empty(&self, name: &str) -> bool {
        self.items(name).is_some_and(<[Tree]>::is_empty)
    }

    pub(super) fn free(&self, name: &str) -> Option<serde_json::Map<String, serde_json::Value>> {
        self.section(name).is_mapping("a mapping");
        let Value::Map(entries) = &self.value(name)?.value else { return None };
        Some(self.json_map(name, entries))
    }

    /// Reports a missing key. `remedy` ends the message.
    pub(super) fn require(&self, name: &str, remedy: &str) {
        if !self.has(name) {
            self.wrong(name, self.line, &format!("is missing; write {remedy}"));
        }
    }

    pub(super) fn wrong(&self, name: &str, line: usize, problem: &str) {
        self.source.report.wrong(line, &join(&self.path, name), problem);
    }

    pub(super) fn wrong_itself(&self, line: usize, problem: &str) {
        self.source.report.wrong(line, &self.path, problem);
    }

    pub(super) fn wrong_here(&self, name: &str, problem: &str) {
        self.wrong(name, self.line_of(name), problem);
    }

    /// Reports the value at these keys, or as far as they lead.
    pub(super) fn wrong_at(&self, path: &[String], problem: &str) {
        let (mut line, mut entries) = (self.line, self.entries);
        for key in path {
            let Some(entry) = entries.iter().find(|entry| entry.key == *key) else { break };
            line = entry.line;
            entries = if let Value::Map(entries) = &entry.value.value { entries } else { &[] };
        }
        self.wrong(&path.join("."), line, problem);
    }

    /// Reports a lower bound above its upper one, unless one cannot be read. Reports the lower key if the file sets
    /// it, else the upper: the other may be a default.
    pub(super) fn check_order(&self, lower: (&str, Duration), upper: (&str, Duration)) {
        let read = |word: Word<'_>| units::parse_duration(word.text).map_err(|_| String::new());
        let is_unread = |name| self.has(name) && self.again(name, read).is_none();
        if lower.1 <= upper.1 || is_unread(lower.0) || is_unread(upper.0) {
            return;
        }
        let line = self.line_of(if self.has(lower.0) { lower.0 } else { upper.0 });
        let [low, high] = [lower.1, upper.1].map(|bound| units::format_duration(units::millis(bound)));
        self.wrong(lower.0, line, &format!("`{low}` is above `{}`, which is `{high}`", upper.0));
    }

    fn entry(&self, name: &str) -> Option<&'t Entry> {
        self.entries.iter().find(|entry| entry.key == name)
    }

    fn value(&self, name: &str) -> Option<&'t Tree> {
        self.entry(name).map(|entry| &entry.value).filter(|tree| !matches!(tree.value, Value::Refused))
    }

    fn items(&self, name: &str) -> Option<&'t [Tree]> {
        match &self.value(name)?.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    fn word(&self, tree: &'t Tree) -> Option<Word<'t>> {
        let Value::Scalar { text, plain } = &tree.value else { return None };
        (!tree.is_null()).then_some(Word { text, plain: *plain, base: self.source.base })
    }

    fn judge<T>(
        &self,
        name: &str,
        place: &str,
        tree: &'t Tree,
        parse: impl FnOnce(Word<'_>) -> Result<T, String>,
    ) -> Option<T> {
        let Some(word) = self.word(tree) else {
            self.misshapen(&join(&self.path, place), tree, "a single value");
            return None;
        };
        parse(word).map_err(|problem| self.wrong(name, tree.line, &problem)).ok()
    }

    fn json_map(&self, name: &str, entries: &[Entry]) -> serde_json::Map<String, serde_json::Value> {
        entries.iter().map(|entry| (entry.key.clone(), self.json(name, &entry.value))).collect()
    }

    /// Recursion is bounded by the depth of the tree.
    fn json(&self, name: &str, tree: &Tree) -> serde_json::Value {
        match &tree.value {
            Value::Scalar { text, plain } => plain_json(text, *plain).unwrap_or_else(|| {
                self.wrong(name, tree.line, &format!("{} cannot be told as JSON; quote it", quoted(text)));
                serde_json::Value::Null
            }),
            Value::List(items) => items.iter().map(|item| self.json(name, item)).collect(),
            Value::Map(entries) => self.json_map(name, entries).into(),
            Value::Refused => serde_json::Value::Null,
        }
    }
}

/// Reports sections whose value of a key is that of an earlier one. `what` it does there is part of the message.
pub(super) fn check_unique<'m, T: Eq + Hash + Display>(
    sections: &[Mapping<'m>],
    key: &str,
    what: &str,
    value: impl Fn(&Mapping<'m>) -> Option<T>,
) {
    let mut lines = HashMap::new();
    for section in sections {
        let Some(value) = value(section) else { continue };
        let text = quoted(&value.to_string());
        if let Some(first) = lines.insert(value, section.line_of(key)) {
            section.wrong_here(key, &format!("{text} {what} on line {first} already"));
        }
    }
}

/// Core schema of YAML 1.2. `None` for infinity and NaN, which JSON lacks.
fn plain_json(text: &str, plain: bool) -> Option<serde_json::Value> {
    if !plain {
        return Some(text.into());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(serde_json::Value::Null),
        "true" | "True" | "TRUE" => return Some(true.into()),
        "false" | "False" | "FALSE" => return Some(false.into()),
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return None;
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) =
            text.strip_prefix(prefix).filter(|digits| digits.chars().all(|c| c.is_digit(radix)))
        {
            return Some(u64::from_str_radix(digits, radix).map_or_else(|_| text.into(), Into::into));
        }
    }
    // Rust also parses words (`inf`, `nan`, `infinity`), which YAML means as text.
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Some(text.into());
    }
    if let Ok(number) = text.parse::<u64>() {
        return Some(number.into());
    }
    if let Ok(number) = text.parse::<i64>() {
        return Some(number.into());
    }
    match text.parse::<f64>() {
        Ok(number) => serde_json::Number::from_f64(number).map(Into::into),
        Err(_) => Some(text.into()),
    }
}

/// Path of a key, with `[]` for each entry of a list: `downstream.listeners[].address`.
pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

pub(super) fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
