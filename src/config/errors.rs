//! Problems of a file, and their lines.
//!
//! Owns the collecting, ordering and wording frame (`FILE:LINE: ...`) of problems; the words are their finders'.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use crate::terminal::printable;

/// A broken file can be wrong in every line. Of problems beyond this many, the message has only the number.
const MAX_PROBLEMS: usize = 100;

/// Text with which a key or certificate begins.
pub(super) const PEM: &str = "-----BEGIN";

/// The longest piece of the file that a message repeats, in characters.
const MAX_QUOTED: usize = 60;

/// A file that was refused: at least one problem, in the order of the file. Prints one `FILE:LINE: ...` per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    origin: String,
    problems: Vec<Problem>,
    untold: usize,
}

/// Treatment of keys that this version does not know: those of a newer one, or slips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKeys {
    /// The file is refused.
    #[default]
    Refuse,
    /// They are told and ignored, but for slips of known keys, and for those that may say who is trusted with what: all in sections
    /// about listeners, servers, the admin address, authorization, node groups and dynamic parameters, and others by their names.
    Ignore,
}

/// Unknown keys of a file that were ignored. Prints one `FILE:LINE: ...` per line; nothing if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredKeys(Option<ConfigError>);

impl fmt::Display for IgnoredKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |keys| keys.fmt(f))
    }
}

/// One fault of a file, with the values that would be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Counted from 1; `None` where the file could not be read at all.
    pub line: Option<usize>,
    /// One line of text, without control characters.
    pub message: String,
}

impl ConfigError {
    pub(super) fn single(origin: &str, problem: Problem) -> Self {
        Self { origin: origin.to_owned(), problems: vec![problem], untold: 0 }
    }

    /// The problems, by line; at most 100 of them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
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
        if self.untold > 0 {
            write!(f, "\n{}: {} more problems are not listed", self.origin, self.untold)?;
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

/// Collects problems while a file is read. Shared by reference: readers of different sections hold it at once.
#[derive(Debug, Default)]
pub(super) struct Report {
    unknown_keys: UnknownKeys,
    problems: RefCell<Vec<Problem>>,
    /// Unknown keys that are ignored.
    ignored: RefCell<Vec<Problem>>,
    /// Paths of the keys that problems are about.
    wrong: RefCell<HashSet<String>>,
}

impl Report {
    pub(super) fn new(unknown_keys: UnknownKeys) -> Self {
        Self { unknown_keys, ..Self::default() }
    }

    /// Reports an unknown key, which is a problem unless such keys are ignored, and this one `may_be_ignored`.
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

    /// Reports the value of a key.
    pub(super) fn wrong(&self, line: usize, path: &str, problem: &str) {
        self.at(line, &format!("`{path}`: {problem}"));
        self.wrong.borrow_mut().insert(path.to_owned());
    }

    /// Whether the value of a key was reported.
    pub(super) fn is_wrong(&self, path: &str) -> bool {
        self.wrong.borrow().contains(path)
    }

    /// The keys that were ignored.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if any problem was reported.
    pub(super) fn finish(self, origin: &str) -> Result<IgnoredKeys, ConfigError> {
        match listed(self.problems.into_inner(), origin) {
            Some(errors) => Err(errors),
            None => Ok(IgnoredKeys(listed(self.ignored.into_inner(), origin))),
        }
    }
}

/// Problems in the order of the file, as far as they are told; `None` if there are none.
fn listed(mut problems: Vec<Problem>, origin: &str) -> Option<ConfigError> {
    if problems.is_empty() {
        return None;
    }
    problems.sort_by_key(|problem| problem.line);
    let untold = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    Some(ConfigError { origin: origin.to_owned(), problems, untold })
}

/// A piece of the file for a message: in backticks, not too long, and no key.
pub(super) fn quoted(text: &str) -> String {
    if text.contains(PEM) {
        return format!("`{PEM}...`");
    }
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("`{}...`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// Which of these a word was probably meant to be.
pub(crate) fn near<'k>(known: impl IntoIterator<Item = &'k str>, word: &str) -> Option<&'k str> {
    /// A longer word is no slip of the keyboard, and the distance of a huge one takes long to compute.
    const LONGEST: usize = 64;
    known
        .into_iter()
        .filter(|_| word.len() <= LONGEST)
        .map(|known| (strsim::osa_distance(known, word), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
