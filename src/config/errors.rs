//! Problems of a file, and their lines.
//!
//! Owns their collection, order and frame (`FILE:LINE: ...`); the words are their finders'.

use std::cell::RefCell;
use std::path::PathBuf;

use crate::terminal::printable;

pub(super) use crate::descriptors::near;
pub(super) use crate::terminal::{PEM, quoted};

/// Rejected file: one `FILE:LINE: ...` for each problem, in file order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Unknown keys are those of a newer version, or slips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKeys {
    #[default]
    Refuse,
    /// Reports and ignores them, except slips of known keys and keys that may decide who is trusted with
    /// what. The latter are all keys about listeners, servers, the admin address, authorization, node groups
    /// and dynamic parameters, and others by name.
    Ignore,
}

/// Line, from 1, and message.
type Problem = (usize, String);

/// Collects problems while a file is read. Shared by reference, as several readers hold it.
#[derive(Debug, Default)]
pub(super) struct Report {
    unknown_keys: UnknownKeys,
    /// Paths of all declared keys.
    pub(super) known: Vec<String>,
    /// Where relative paths start.
    pub(super) base: PathBuf,
    problems: RefCell<Vec<Problem>>,
    ignored: RefCell<Vec<Problem>>,
}

impl Report {
    pub(super) fn new(unknown_keys: UnknownKeys, known: Vec<String>, base: PathBuf) -> Self {
        Self { unknown_keys, known, base, ..Self::default() }
    }

    /// Reports an unknown key: a problem, unless such keys are ignored and this one `may_be_ignored`.
    pub(super) fn unknown_key(&self, line: usize, may_be_ignored: bool, message: &str) {
        match self.unknown_keys {
            UnknownKeys::Ignore if may_be_ignored => {
                self.ignored.borrow_mut().push((line, message.to_owned()));
            }
            UnknownKeys::Ignore | UnknownKeys::Refuse => self.at(line, message),
        }
    }

    pub(super) fn at(&self, line: usize, message: &str) {
        self.problems.borrow_mut().push((line, message.to_owned()));
    }

    pub(super) fn count(&self) -> usize {
        self.problems.borrow().len()
    }

    /// Returns what was read, with the ignored keys as lines.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if any problem was reported.
    pub(super) fn finish<T>(self, origin: &str, read: Option<T>) -> Result<(T, Vec<String>), ConfigError> {
        let problems = lines(self.problems.into_inner(), origin);
        match read.filter(|_| problems.is_empty()) {
            Some(read) => Ok((read, lines(self.ignored.into_inner(), origin))),
            None => Err(ConfigError(problems.join("\n"))),
        }
    }
}

/// Problems in file order.
fn lines(mut problems: Vec<Problem>, origin: &str) -> Vec<String> {
    problems.sort_by_key(|(line, _)| *line);
    let line = |(line, message): Problem| format!("{origin}:{line}: {}", printable(&message));
    problems.into_iter().map(line).collect()
}
