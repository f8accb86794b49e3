//! Vocabulary of declared keys: a key, the form of its value, when a change of it takes effect, and the section that has it.
//!
//! `section` has the macro that declares them.

use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::mapping::Mapping;
use super::mapping::join;
use super::units::{format_duration, format_size};

/// One declared key. Fields for tests only are for pages, which tests write.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// In Markdown, as its comment stands in the code.
    #[cfg(test)]
    pub(super) help: &'static str,
    pub(super) shape: Shape,
    /// As YAML on one line.
    #[cfg(test)]
    pub(super) example: Option<&'static str>,
    pub(super) effect: Option<Effect>,
    /// End of the sentence of the effect.
    #[cfg(test)]
    pub(super) note: Option<&'static str>,
}

/// Form of the value of a key. Ranges are inclusive.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// A mapping of these keys.
    Section(&'static [Key]),
    /// No mapping of its own: these keys stand beside those of the section that has them.
    Part(&'static [Key]),
    /// A list of sections with these keys.
    Sections(&'static [Key]),
    /// A list of texts.
    Texts,
    /// A mapping of anything.
    Free,
    /// A mapping of texts, by keys with rules of their own.
    TextsByKey,
    /// This word, or a mapping of these keys. Pages and paths show it as one value: its help describes the keys.
    WordOr(&'static str, &'static [Key]),
    /// A text, with rules of its own.
    Text,
    /// In milliseconds.
    Duration(u64, u64),
    /// In bytes.
    Size(u64, u64),
    Count(u64, u64),
}

impl Shape {
    /// Lowest and highest value.
    pub(super) const fn range(self) -> Option<(u64, u64)> {
        match self {
            Self::Duration(min, max) | Self::Size(min, max) | Self::Count(min, max) => Some((min, max)),
            _ => None,
        }
    }

    /// The range, as messages and the reference write it; empty where there is none.
    pub(super) fn words(self) -> String {
        match self {
            Self::Duration(min, max) => format!("{} to {}", format_duration(min), format_duration(max)),
            Self::Size(min, max) => format!("{} to {}", format_size(min), format_size(max)),
            Self::Count(min, max) => format!("{min} to {max}"),
            _ => String::new(),
        }
    }

    /// The keys below this one.
    pub(super) const fn keys(self) -> &'static [Key] {
        match self {
            Self::Section(keys) | Self::Part(keys) | Self::Sections(keys) => keys,
            _ => &[],
        }
    }
}

/// When a changed key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// For all, with the reload.
    AtOnce,
    /// For connections from then on; a stream keeps to what it began with.
    Connections,
    /// For each poll from then on, on whichever connection.
    Polls,
    /// As for connections, and those that are open and concerned are closed, so that their clients come again.
    Rights,
    /// Not before the next start.
    Restart,
}

/// A mapping of declared keys. Made by `section!`, or by hand where keys exclude or need one another.
pub(super) trait Section: Sized {
    const KEYS: &'static [Key];

    /// Reads all keys. `None` where a problem was reported that leaves nothing to go on with.
    fn read(mapping: &Mapping<'_>) -> Option<Self>;

    /// Writes all keys, in the order of their declaration.
    fn print(&self, into: &mut Entries);
}

/// The keys that stand in one mapping, those of parts included.
pub(super) fn children(keys: &'static [Key]) -> Vec<&'static Key> {
    let of = |key: &'static Key| match key.shape {
        Shape::Part(keys) => children(keys),
        _ => vec![key],
    };
    keys.iter().flat_map(of).collect()
}

/// A section's keys and those below them, each with its path, in the order of the declarations.
pub(super) fn all(keys: &'static [Key]) -> Vec<(String, &'static Key)> {
    let mut all = Vec::new();
    collect(keys, "", &mut all);
    all
}

fn collect(keys: &'static [Key], section: &str, all: &mut Vec<(String, &'static Key)>) {
    for key in children(keys) {
        let path = join(section, key.name);
        let entry = if matches!(key.shape, Shape::Sections(_)) { format!("{path}[]") } else { path.clone() };
        all.push((path, key));
        collect(key.shape.keys(), &entry, all);
    }
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Printed {
    /// A single value, a list of such, or a mapping of anything.
    Value(Json),
    /// A list of sections.
    Sections(Vec<Entries>),
    Section(Entries),
}

/// The keys of a section that have a value, in the order of their declaration.
pub(super) type Entries = Vec<(&'static str, Printed)>;

/// The value of a key, if it has one.
pub(super) fn entry<'e>(entries: &'e Entries, name: &str) -> Option<&'e Printed> {
    entries.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

impl Serialize for Printed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(serializer),
            Self::Sections(sections) => serializer.collect_seq(sections.iter().cloned().map(Self::Section)),
            Self::Section(entries) => serializer.collect_map(entries.iter().map(|(key, value)| (key, value))),
        }
    }
}
