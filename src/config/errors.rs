//! Problems of a file, and their lines.
//!
//! Owns their collection, order and frame (`FILE:LINE: ...`); the words are their finders'.

use std::cell::RefCell;
use std::fmt;

use crate::terminal::printable;

pub(super) use crate::descriptors::near;
pub(super) use crate::terminal::{PEM, quoted};

/// Rejected file, or ignored keys: at least one problem, in file order. Prints one `FILE:LINE: ...` per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    origin: String,
    problems: Vec<Problem>,
}

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// From 1; `None` if the file could not be read.
    pub line: Option<usize>,
    /// One line, without control characters.
    pub message: String,
}

impl ConfigError {
    pub(super) fn single(origin: &str, problem: Problem) -> Self {
        Self { origin: origin.to_owned(), problems: vec![problem] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Problem { line, message }) in self.problems.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            match line {
                Some(line) => write!(f, "{newline}{}:{line}: {message}", self.origin)?,
                None => write!(f, "{newline}{}: {message}", self.origin)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl Problem {
    pub(super) fn new(line: Option<usize>, message: &str) -> Self {
        Self { line, message: printable(message) }
    }
}

/// Collects problems while a file is read. Shared by reference, as several readers hold it.
#[derive(Debug, Default)]
pub(super) struct Report {
    unknown_keys: UnknownKeys,
    /// Paths of all declared keys.
    pub(super) known: Vec<String>,
    problems: RefCell<Vec<Problem>>,
    ignored: RefCell<Vec<Problem>>,
}

impl Report {
    pub(super) fn new(unknown_keys: UnknownKeys, known: Vec<String>) -> Self {
        Self { unknown_keys, known, ..Self::default() }
    }

    /// Reports an unknown key: a problem, unless such keys are ignored and this one `may_be_ignored`.
    pub(super) fn unknown_key(&self, line: usize, may_be_ignored: bool, message: &str) {
        match self.unknown_keys {
            UnknownKeys::Ignore if may_be_ignored => {
                self.ignored.borrow_mut().push(Problem::new(Some(line), message));
            }
            UnknownKeys::Ignore | UnknownKeys::Refuse => self.at(line, message),
        }
    }

    pub(super) fn at(&self, line: usize, message: &str) {
        self.problems.borrow_mut().push(Problem::new(Some(line), message));
    }

    pub(super) fn count(&self) -> usize {
        self.problems.borrow().len()
    }

    /// Returns the ignored keys, if there are any.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if any problem was reported.
    pub(super) fn finish(self, origin: &str) -> Result<Option<ConfigError>, ConfigError> {
        match listed(self.problems.into_inner(), origin) {
            Some(errors) => Err(errors),
            None => Ok(listed(self.ignored.into_inner(), origin)),
        }
    }
}

/// Problems in file order; `None` if there are none.
fn listed(mut problems: Vec<Problem>, origin: &str) -> Option<ConfigError> {
    if problems.is_empty() {
        return None;
    }
    problems.sort_by_key(|problem| problem.line);
    Some(ConfigError { origin: origin.to_owned(), problems })
}
