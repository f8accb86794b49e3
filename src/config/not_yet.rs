//! Keys that this version refuses though users may expect them.

use super::yaml::{Tree, Value};

/// A key that users may expect and that this version cannot do. Deleting the row lifts the refusal.
pub(super) struct NotYet {
    pub(super) path: &'static str,
    pub(super) when: When,
    /// The subject of the message.
    pub(super) subject: &'static str,
    /// The remedy.
    pub(super) instead: &'static str,
}

/// Which values of a key are refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    Present,
    /// From the second entry of a list on.
    Several,
}

const fn not_yet(path: &'static str, when: When, subject: &'static str, instead: &'static str) -> NotYet {
    NotYet { path, when, subject, instead }
}

pub(super) const NOT_YET: &[NotYet] = &[
    not_yet("snapshot", When::Present, "`snapshot`", "leave it out"),
    not_yet("upstream.servers", When::Several, "a second entry in `upstream.servers`", "list one server"),
];

impl NotYet {
    pub(super) fn message(&self) -> String {
        format!("{} is not supported yet by this version; {}", self.subject, self.instead)
    }

    pub(super) fn refuses(&self, tree: &Tree) -> bool {
        match (self.when, &tree.value) {
            (_, Value::Refused) => false,
            (When::Present, _) => true,
            (When::Several, Value::List(items)) => items.len() > 1,
            (When::Several, _) => false,
        }
    }
}
