//! YAML as nodes that remember their line.
//!
//! Owns the limits on size and depth, and the allowed YAML: one document, text keys set once, no tags,
//! no aliases. Knows no key of the schema. Built from parser events: serde stops at the first problem and
//! loses the line before a value is judged.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span};

use super::errors::{ConfigError, Report, quoted};

/// In bytes.
const MAX_BYTES: usize = 1024 * 1024;

/// The schema needs five.
const MAX_DEPTH: usize = 32;

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    /// `plain` is false in quotes and block text, which are never null, a number or a boolean.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Tree>),
    Map(Vec<Entry>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Tree,
}

impl Tree {
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    pub(super) fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, .. } => quoted(text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Reads at most [`MAX_BYTES`], whatever is at the path.
pub(super) fn read_file(path: &Path) -> Result<String, ConfigError> {
    let origin = path.display();
    let unreadable = |error: std::io::Error| ConfigError(format!("{origin}: cannot be read: {error}"));
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > MAX_BYTES {
        return Err(ConfigError(format!("{origin}: {}", too_large())));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        ConfigError(format!("{origin}:{line}: is not UTF-8 text"))
    })
}

fn too_large() -> String {
    format!("is larger than {MAX_BYTES} bytes")
}

/// Root of the one document; `None` without one, or if a reported problem ends the reading.
pub(super) fn read(text: &str, report: &Report) -> Option<Tree> {
    if text.len() > MAX_BYTES {
        report.at(1, &too_large());
        return None;
    }
    let options = granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
    };
    let mut builder = Builder { report, open: Vec::new(), root: None };
    for event in Parser::new_from_str_with_options(text, options) {
        let step = match event {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => Err((error.marker().line(), format!("is not YAML: {}", error.kind()))),
        };
        if let Err((line, message)) = step {
            report.at(line, &message);
            return None;
        }
    }
    builder.root.or_else(|| {
        report.at(1, "is empty; at least `upstream` is needed");
        None
    })
}

type Fatal = (usize, String);

enum Open {
    List { line: usize, items: Vec<Tree> },
    Map { line: usize, entries: Vec<Entry>, lines: HashMap<String, usize>, key: Option<(String, usize)> },
}

struct Builder<'a> {
    report: &'a Report,
    open: Vec<Open>,
    root: Option<Tree>,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Fatal> {
        let line = span.start.line();
        if event.tag().is_some() {
            return Err((line, "tags (`!name`) are not allowed; quote what is meant as text".to_owned()));
        }
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                return Err((line, "a second document starts here; only one is allowed".to_owned()));
            }
            Event::Scalar(text, style, ..) => self.scalar(text, style == ScalarStyle::Plain, line),
            Event::SequenceStart(..) => self.start(Open::List { line, items: Vec::new() }, line)?,
            Event::MappingStart(..) => {
                let map = Open::Map { line, entries: Vec::new(), lines: HashMap::new(), key: None };
                self.start(map, line)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                return Err((line, "aliases (`*name`) are not allowed; write the value out".to_owned()));
            }
            _ => {}
        }
        Ok(())
    }

    fn scalar(&mut self, text: Cow<'_, str>, plain: bool, line: usize) {
        if let Some(Open::Map { key: key @ None, lines, .. }) = self.open.last_mut() {
            if let Some(first) = lines.insert(text.to_string(), line) {
                let name = quoted(&text);
                self.report.at(line, &format!("{name} is set twice, first on line {first}; set it once"));
            }
            *key = Some((text.into_owned(), line));
            return;
        }
        self.add(Tree { line, value: Value::Scalar { text: text.into_owned(), plain } });
    }

    fn start(&mut self, collection: Open, line: usize) -> Result<(), Fatal> {
        if matches!(self.open.last(), Some(Open::Map { key: None, .. })) {
            return Err((line, "a key must be text, not a list or a mapping".to_owned()));
        }
        if self.open.len() == MAX_DEPTH {
            return Err((line, format!("is nested deeper than {MAX_DEPTH} levels")));
        }
        self.open.push(collection);
        Ok(())
    }

    fn end(&mut self) {
        match self.open.pop() {
            Some(Open::List { line, items }) => self.add(Tree { line, value: Value::List(items) }),
            Some(Open::Map { line, entries, .. }) => self.add(Tree { line, value: Value::Map(entries) }),
            None => {}
        }
    }

    fn add(&mut self, mut value: Tree) {
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open::List { items, .. }) => items.push(value),
            Some(Open::Map { entries, key, .. }) => {
                if let Some((key, line)) = key.take() {
                    // The parser places a missing value where the next token is.
                    if value.is_null() {
                        value.line = line;
                    }
                    entries.push(Entry { key, line, value });
                }
            }
        }
    }
}
