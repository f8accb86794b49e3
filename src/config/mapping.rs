//! One mapping of a file, for the readers of its keys.
//!
//! Owns the places that problems are reported at. Judges no value: notations do. Whatever `check` has struck out reads as
//! absent.

use std::path::Path;
use std::time::Duration;

use super::errors::{Report, quoted};
use super::units;
use super::yaml::{Entry, Tree, Value};

/// A mapping that `check` has passed, or an absent one.
pub(super) struct Mapping<'t> {
    path: String,
    line: usize,
    entries: &'t [Entry],
    standing: Standing,
    source: Source<'t>,
}

/// A single value in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'t> {
    pub(super) text: &'t str,
    /// Neither in quotes nor block text.
    pub(super) plain: bool,
    /// Where relative paths start.
    pub(super) base: &'t Path,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Absent,
    /// Reported as a whole.
    Refused,
    There,
}

/// The file that a mapping is in.
#[derive(Clone, Copy)]
struct Source<'t> {
    report: &'t Report,
    /// Where relative paths start.
    base: &'t Path,
}

impl<'t> Mapping<'t> {
    pub(super) fn root(tree: &'t Tree, report: &'t Report, base: &'t Path) -> Self {
        Self::over(tree, String::new(), tree.line, Source { report, base })
    }

    fn over(tree: &'t Tree, path: String, line: usize, source: Source<'t>) -> Self {
        let entries = if let Value::Map(entries) = &tree.value { entries.as_slice() } else { &[] };
        let standing = if matches!(tree.value, Value::Refused) { Standing::Refused } else { Standing::There };
        Self { path, line, entries, standing, source }
    }

    /// Line for problems with the mapping as a whole; an absent one has that of its parent.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Whether it was reported as a whole: missing keys are then no news.
    pub(super) fn was_refused(&self) -> bool {
        self.standing == Standing::Refused
    }

    pub(super) fn is_absent(&self) -> bool {
        self.standing == Standing::Absent
    }

    /// An absent section reads as an empty one.
    pub(super) fn section(&self, name: &str) -> Self {
        let path = join(&self.path, name);
        match self.entry(name) {
            Some(entry) => Self::over(&entry.value, path, entry.line, self.source),
            None => {
                Self { path, line: self.line, entries: &[], standing: Standing::Absent, source: self.source }
            }
        }
    }

    /// Whether the key stands in the file, right or wrong.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Whether the key stands in the file and was reported as a whole.
    pub(super) fn is_refused(&self, name: &str) -> bool {
        self.has(name) && self.value(name).is_none()
    }

    /// Whether the key is absent, or its value is right.
    pub(super) fn is_right(&self, name: &str) -> bool {
        !self.is_refused(name) && !self.source.report.is_wrong(&join(&self.path, name))
    }

    /// The line of a key, or of the mapping where it is absent.
    pub(super) fn line_of(&self, name: &str) -> usize {
        self.entry(name).map_or(self.line, |entry| entry.line)
    }

    /// The keys that stand in it, in their order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'t str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// A single value, judged again without a report.
    pub(super) fn again<T>(
        &self,
        name: &str,
        parse: impl FnOnce(Word<'_>) -> Result<T, String>,
    ) -> Option<T> {
        parse(self.word(self.value(name)?)?).ok()
    }

    /// A single value that a function judges.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(Word<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.judge(name, self.value(name)?, parse)
    }

    /// The entries of a list of sections.
    pub(super) fn sections(&self, name: &str) -> Option<Vec<Self>> {
        let path = format!("{}[]", join(&self.path, name));
        let section = |item: &'t Tree| Self::over(item, path.clone(), item.line, self.source);
        self.items(name).map(|items| items.iter().map(section).collect())
    }

    /// The entries of a list of single values; wrong ones are left out.
    pub(super) fn words<T>(
        &self,
        name: &str,
        parse: impl Fn(Word<'_>) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let items = self.items(name)?;
        Some(items.iter().filter_map(|item| self.judge(name, item, &parse)).collect())
    }

    /// Whether a list has no entries, or the key is absent.
    pub(super) fn is_empty(&self, name: &str) -> bool {
        self.items(name).is_none_or(<[Tree]>::is_empty)
    }

    /// A mapping of anything, as JSON.
    pub(super) fn free(&self, name: &str) -> Option<serde_json::Map<String, serde_json::Value>> {
        let Value::Map(entries) = &self.value(name)?.value else { return None };
        Some(self.json_map(name, entries))
    }

    /// Reports a key that must be there and is not. `remedy` is the end of the message.
    pub(super) fn require(&self, name: &str, remedy: &str) {
        if !self.has(name) && !self.was_refused() {
            self.wrong(name, self.line, &format!("is missing; write {remedy}"));
        }
    }

    pub(super) fn wrong(&self, name: &str, line: usize, problem: &str) {
        self.source.report.wrong(line, &join(&self.path, name), problem);
    }

    /// Reports the mapping as a whole.
    pub(super) fn wrong_itself(&self, line: usize, problem: &str) {
        self.source.report.wrong(line, &self.path, problem);
    }

    /// Reports a key where it stands.
    pub(super) fn wrong_here(&self, name: &str, problem: &str) {
        self.wrong(name, self.line_of(name), problem);
    }

    /// Reports the value that these keys lead to, or as far as they lead.
    pub(super) fn wrong_at(&self, path: &[String], problem: &str) {
        let (mut line, mut entries) = (self.line, self.entries);
        for key in path {
            let Some(entry) = entries.iter().find(|entry| entry.key == *key) else { break };
            line = entry.line;
            entries = if let Value::Map(entries) = &entry.value.value { entries } else { &[] };
        }
        self.wrong(&path.join("."), line, problem);
    }

    /// Reports a lower bound above its upper one, unless one of them is wrong by itself: where the file sets the lower one,
    /// else where it sets the upper one, since the other may be a default.
    pub(super) fn check_order(&self, lower: (&str, Duration), upper: (&str, Duration)) {
        if lower.1 <= upper.1 || !self.is_right(lower.0) || !self.is_right(upper.0) {
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
        Some(Word { text, plain: *plain, base: self.source.base })
    }

    fn judge<T>(
        &self,
        name: &str,
        tree: &'t Tree,
        parse: impl FnOnce(Word<'_>) -> Result<T, String>,
    ) -> Option<T> {
        parse(self.word(tree)?).map_err(|problem| self.wrong(name, tree.line, &problem)).ok()
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

/// The core schema of YAML 1.2. `None` for what JSON has no word for: infinity, and what is not a number.
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
    // Rust's own reader also takes words (`inf`, `nan`, `infinity`), which YAML means as text.
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

/// Path of a key: segments joined by `.`, with `[]` for each entry of a list, as in `downstream.listeners[].address`.
pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Whether a path is this one or below it.
pub(super) fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
