//! The configuration in effect, as an ordered tree: printed as YAML, compared key by key, shown in the reference.

use serde::{Serialize, Serializer};
use serde_json::Value as Json;

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
