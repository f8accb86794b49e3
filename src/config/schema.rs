//! Vocabulary of declared keys: key, form of its value, effect, section. The macro that declares them is in
//! `section`.

use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::place::{Place, join};

/// Fields for tests only serve pages, which tests write.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Markdown, as in the key's comment.
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

/// Form of the value of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    Section(&'static [Key]),
    Sections(&'static [Key]),
    /// Anything else. Its notation has the rules, its help describes them.
    Value,
    /// Least and largest number, and how one is written.
    Range(u64, u64, fn(u64) -> String),
}

impl Shape {
    /// Range, as messages and the reference write it.
    pub(super) fn range(self) -> Option<String> {
        let Self::Range(min, max, text) = self else { return None };
        Some(format!("{} to {}", text(min), text(max)))
    }

    pub(super) const fn keys(self) -> &'static [Key] {
        match self {
            Self::Section(keys) | Self::Sections(keys) => keys,
            _ => &[],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// For all, with the reload.
    AtOnce,
    /// For new connections; an open stream keeps its value.
    Connections,
    /// For new polls, on any connection.
    Polls,
    /// As for connections; affected open ones are closed, so that their clients reconnect.
    Rights,
    /// At the next start.
    Restart,
}

/// Mapping of declared keys. Made by `section!`, or by hand if keys exclude or need one another.
pub(super) trait Section: Sized {
    const KEYS: &'static [Key];

    /// `None` after a reported problem that leaves no usable value. [`Nested`](super::notation::Nested) checks
    /// the keys first.
    fn read(place: &Place<'_>) -> Option<Self>;

    fn print(&self) -> Entries;
}

/// Also keys below, with their paths, in declaration order.
pub(super) fn all(keys: &'static [Key]) -> Vec<(String, &'static Key)> {
    let mut all = Vec::new();
    collect(keys, "", &mut all);
    all
}

fn collect(keys: &'static [Key], section: &str, all: &mut Vec<(String, &'static Key)>) {
    for key in keys {
        let path = join(section, key.name);
        let entry = if matches!(key.shape, Shape::Sections(_)) { format!("{path}[]") } else { path.clone() };
        all.push((path, key));
        collect(key.shape.keys(), &entry, all);
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Printed {
    /// A single value, or a mapping of anything.
    Value(Json),
    List(Vec<Self>),
    Section(Entries),
}

/// Keys with a value, in declaration order.
pub(super) type Entries = Vec<(&'static str, Printed)>;

pub(super) fn entry<'e>(entries: &'e Entries, name: &str) -> Option<&'e Printed> {
    entries.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

impl Serialize for Printed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(serializer),
            Self::List(items) => items.serialize(serializer),
            Self::Section(entries) => serializer.collect_map(entries.iter().map(|(key, value)| (key, value))),
        }
    }
}
