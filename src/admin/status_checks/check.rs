//! A check of the relay, and its findings.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum State {
    #[serde(rename = "ok")]
    Ok,
    /// Worth knowing; all can be well.
    #[serde(rename = "note")]
    Note,
    #[serde(rename = "FAULT")]
    Fault,
}

pub(super) type Found = Vec<(State, String)>;

#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) check: &'static str,
    pub(super) state: State,
    /// For people, with the remedy of a fault.
    pub(super) finding: String,
}

impl Check {
    /// The worst finding counts, and faults come first. `well` is the finding if there is none.
    pub(super) fn of(check: &'static str, mut found: Found, well: &str) -> Self {
        if found.is_empty() {
            found.push((State::Ok, well.to_owned()));
        }
        found.sort_by_key(|(state, _)| *state != State::Fault);
        let state = found.iter().map(|(state, _)| *state).max().unwrap_or(State::Ok);
        Self { check, state, finding: joined(found.into_iter().map(|(_, finding)| finding), "; ") }
    }
}

pub(super) fn joined(words: impl IntoIterator<Item = String>, between: &str) -> String {
    words.into_iter().collect::<Vec<_>>().join(between)
}
