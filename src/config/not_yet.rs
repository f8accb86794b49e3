//! Keys that this version refuses though users may expect them.

use super::yaml::{Tree, Value};

/// A key that users may expect and that this version cannot do. Deleting the row lifts the refusal.
pub(super) struct NotYet {
    pub(super) path: &'static str,
    /// The subject of the message.
    pub(super) subject: &'static str,
    /// The remedy.
    pub(super) instead: &'static str,
}

const fn not_yet(path: &'static str, subject: &'static str, instead: &'static str) -> NotYet {
    NotYet { path, subject, instead }
}

pub(super) const NOT_YET: &[NotYet] = &[not_yet("rollout", "`rollout`", "leave it out")];

impl NotYet {
    pub(super) fn message(&self) -> String {
        format!("{} is not supported yet by this version; {}", self.subject, self.instead)
    }

    pub(super) fn refuses(&self, tree: &Tree) -> bool {
        !matches!(tree.value, Value::Refused)
    }
}
