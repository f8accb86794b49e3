//! Reads the keys of one mapping over their defaults.
//!
//! Owns the judging of single values against their rows in `keys`. Every reader leaves the default in place where the
//! key is absent or wrong; what is wrong is reported.

use std::time::Duration;

use super::errors::{Report, quoted};
use super::keys::{self, Shape};
use super::tree::{Entry, Tree, Value};
use super::units;

/// A mapping that `check` has passed, or an absent one.
pub(super) struct Section<'t> {
    path: String,
    line: usize,
    entries: &'t [Entry],
    refused: bool,
    report: &'t Report,
}

impl<'t> Section<'t> {
    pub(super) fn root(tree: &'t Tree, report: &'t Report) -> Self {
        Self::over(tree, String::new(), tree.line, report)
    }

    fn over(tree: &'t Tree, path: String, line: usize, report: &'t Report) -> Self {
        let entries = if let Value::Map(entries) = &tree.value { entries.as_slice() } else { &[] };
        let refused = matches!(tree.value, Value::Refused);
        Self { path, line, entries, refused, report }
    }

    /// Where it stands, for what is wrong with it as a whole; an absent one stands where its parent does.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Whether it was reported as a whole: what it lacks is then no news.
    pub(super) fn was_refused(&self) -> bool {
        self.refused
    }

    /// An absent section reads as an empty one.
    pub(super) fn section(&self, name: &str) -> Self {
        let path = keys::join(&self.path, name);
        match self.entry(name) {
            Some(entry) => Self::over(&entry.value, path, entry.line, self.report),
            None => Self { path, line: self.line, entries: &[], refused: false, report: self.report },
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

    /// The line of a key, or of the section where it is absent.
    pub(super) fn line_of(&self, name: &str) -> usize {
        self.entry(name).map_or(self.line, |entry| entry.line)
    }

    /// The text of a single value, unjudged.
    pub(super) fn scalar(&self, name: &str) -> Option<&'t str> {
        match &self.value(name)?.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Text that a function of its own judges.
    pub(super) fn parsed<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        self.judge(name, self.value(name)?, parse)
    }

    /// The entries of a list of sections.
    pub(super) fn sections(&self, name: &str) -> Option<Vec<Self>> {
        let path = format!("{}[]", keys::join(&self.path, name));
        let section = |item: &'t Tree| Self::over(item, path.clone(), item.line, self.report);
        self.items(name).map(|items| items.iter().map(section).collect())
    }

    /// The entries of a list of texts; wrong ones are left out.
    pub(super) fn texts<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<Vec<T>> {
        let items = self.items(name)?;
        Some(items.iter().filter_map(|item| self.judge(name, item, &parse)).collect())
    }

    /// How many entries a list has, right or wrong.
    pub(super) fn count_of(&self, name: &str) -> usize {
        self.items(name).map_or(0, <[Tree]>::len)
    }

    pub(super) fn text(&self, name: &str, into: &mut String) {
        self.replace(name, into, |text| Ok(text.to_owned()));
    }

    pub(super) fn flag(&self, name: &str, into: &mut bool) {
        let Some(value) = self.value(name) else { return };
        match &value.value {
            Value::Scalar { text, plain: true } if text == "true" => *into = true,
            Value::Scalar { text, plain: true } if text == "false" => *into = false,
            Value::Scalar { text, plain: false } if matches!(text.as_str(), "true" | "false") => {
                self.wrong(name, value.line, &format!("{} is in quotes; write it without", quoted(text)));
            }
            _ => self.wrong(name, value.line, &format!("{} is neither true nor false", value.describe())),
        }
    }

    /// Says whether `into` now holds what the file means.
    pub(super) fn duration(&self, name: &str, into: &mut Duration) -> bool {
        let shape = self.shape(name);
        self.replace(name, into, |text| {
            let duration = units::parse_duration(text)?;
            let Shape::Duration(min, max) = shape else { return Err(misdeclared()) };
            in_range(text, shape, (min..=max).contains(&duration))?;
            Ok(duration)
        })
    }

    pub(super) fn size<T: TryFrom<u64>>(&self, name: &str, into: &mut T) {
        let shape = self.shape(name);
        self.replace(name, into, |text| {
            let bytes = units::parse_size(text)?;
            let Shape::Size(min, max) = shape else { return Err(misdeclared()) };
            in_range(text, shape, (min..=max).contains(&bytes))?;
            T::try_from(bytes).map_err(|_| format!("{} is too large for this machine", quoted(text)))
        });
    }

    pub(super) fn count<T: TryFrom<u64>>(&self, name: &str, into: &mut T) {
        let shape = self.shape(name);
        self.replace(name, into, |text| {
            let count = units::parse_count(text)?;
            let Shape::Count(min, max) = shape else { return Err(misdeclared()) };
            in_range(text, shape, (min..=max).contains(&count))?;
            T::try_from(count).map_err(|_| format!("{} is too large for this machine", quoted(text)))
        });
    }

    /// A mapping of anything, as JSON.
    pub(super) fn free(&self, name: &str, into: &mut serde_json::Map<String, serde_json::Value>) {
        let Some(Value::Map(entries)) = self.value(name).map(|tree| &tree.value) else { return };
        *into = self.json_map(name, entries);
    }

    pub(super) fn wrong(&self, name: &str, line: usize, problem: &str) {
        self.report.at(line, &format!("`{}`: {problem}", keys::join(&self.path, name)));
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

    fn shape(&self, name: &str) -> Shape {
        keys::shape(&keys::join(&self.path, name)).unwrap_or(Shape::Text)
    }

    fn replace<T>(&self, name: &str, into: &mut T, parse: impl FnOnce(&str) -> Result<T, String>) -> bool {
        match self.parsed(name, parse) {
            Some(value) => {
                *into = value;
                true
            }
            None => !self.has(name),
        }
    }

    fn judge<T>(&self, name: &str, tree: &Tree, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let Value::Scalar { text, .. } = &tree.value else { return None };
        parse(text).map_err(|problem| self.wrong(name, tree.line, &problem)).ok()
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

fn in_range(text: &str, shape: Shape, inside: bool) -> Result<(), String> {
    match shape.range() {
        Some(range) if !inside => Err(format!("{} is out of range; allowed is {range}", quoted(text))),
        _ => Ok(()),
    }
}

/// A slip between this code and the table; the test that sets every key shows it.
fn misdeclared() -> String {
    "is declared in another shape than it is read".to_owned()
}
