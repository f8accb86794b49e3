//! Patterns of texts, with `*` or as regular expressions, and the names that a client may see.
//!
//! Knows nothing of clients.
//!
//! Invariants: matching takes time in proportion to the text, whatever the pattern · the memory of a pattern is bounded · two
//! scopes of equal patterns are equal, however they were listed.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use super::name::SCHEME;
use super::{Collection, is_xdstp};

/// Memory of the automaton of one configured pattern, in bytes. Reading a text takes time in proportion to it.
pub const MAX_AUTOMATON: usize = 256 << 10;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("too large a pattern")]
    TooLarge,
    #[error("no regular expression: {0}")]
    Syntax(String),
}

/// Compiles a regular expression that matches whole texts, into an automaton of at most this many bytes.
///
/// # Errors
///
/// Expression that is wrong, or too large.
pub fn whole_match(expression: &str, bytes: usize) -> Result<Regex, PatternError> {
    // By itself first: its errors are about what was written, and no parenthesis in it can close ours.
    compile(expression, false, bytes)?;
    // In verbose mode it may end in a comment, which a line of its own keeps from swallowing the end.
    let with_comment = || compile(&format!("\\A(?:{expression}\n)\\z"), false, bytes);
    compile(&format!(r"\A(?:{expression})\z"), false, bytes).or_else(|_| with_comment())
}

fn compile(expression: &str, ignores_case: bool, bytes: usize) -> Result<Regex, PatternError> {
    let mut builder = RegexBuilder::new(expression);
    builder.case_insensitive(ignores_case).size_limit(bytes).dfa_size_limit(bytes);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => PatternError::TooLarge,
        error => {
            // The last line says what is wrong; those before it draw the place.
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default();
            PatternError::Syntax(reason.strip_prefix("error: ").unwrap_or(reason).to_owned())
        }
    })
}

/// Ends of segments of a text: `*` matches within one, `**` across them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// `/`.
    Path,
    /// `/`, and the `?` of the context parameters; these end at `&`.
    Xdstp,
    /// `.`. Case does not count.
    Dns,
    /// `,`, as in the subject of a certificate.
    Subject,
}

impl Segments {
    /// The expression for `*`.
    const fn within(self, in_context: bool) -> &'static str {
        match self {
            Self::Path => "[^/]*",
            // A context parameter selects another resource, and its value may look like the rest of a path.
            Self::Xdstp if in_context => "[^&]*",
            Self::Xdstp => "[^/?]*",
            // A name that is none, such as a URL, must not look like one of the domain.
            Self::Dns => "[^./]*",
            // An escaped comma ends no segment, so it must not look as if it did.
            Self::Subject => r"[^,\\]*",
        }
    }

    /// The expression for `**`. At the end of a pattern it is whatever follows.
    const fn across(self, in_context: bool, is_last: bool) -> &'static str {
        match self {
            Self::Xdstp if !in_context && !is_last => "[^?]*",
            Self::Dns => "[^/]*",
            _ => "(?s:.*)",
        }
    }

    fn whole(self, pattern: &str) -> Result<Regex, PatternError> {
        let mut whole = String::from(r"\A");
        let (mut rest, mut in_context) = (pattern, false);
        while let Some((literal, after)) = rest.split_once('*') {
            in_context |= literal.contains('?');
            whole += &regex::escape(literal);
            let (wild, after) = match after.strip_prefix('*') {
                Some(after) => (self.across(in_context, after.is_empty()), after),
                None => (self.within(in_context), after),
            };
            whole += wild;
            rest = after;
        }
        whole += &regex::escape(rest);
        whole += r"\z";
        compile(&whole, self == Self::Dns, MAX_AUTOMATON)
    }
}

/// One pattern: `*` stands for anything within a segment, `**` for anything, and all else for itself.
#[derive(Clone)]
pub struct Pattern {
    text: Box<str>,
    whole: Regex,
    /// Expression for xdstp names, if it may match any: wildcards before the `?` do not reach beyond it.
    xdstp: Option<Regex>,
}

/// Any of some patterns. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Patterns(Arc<[Pattern]>);

impl Pattern {
    /// `whole` is anchored at both ends and means the same as `text`.
    pub fn new(text: &str, whole: Regex) -> Self {
        Self { text: text.into(), whole, xdstp: None }
    }

    /// Reads a pattern that is written as `text`.
    ///
    /// # Errors
    ///
    /// Pattern that is too large.
    pub fn read(text: &str, pattern: &str, segments: Segments) -> Result<Self, PatternError> {
        Ok(Self::new(text, segments.whole(pattern)?))
    }

    /// Reads a pattern of names of resources.
    ///
    /// # Errors
    ///
    /// Pattern that is too large.
    pub fn of_names(text: &str) -> Result<Self, PatternError> {
        let pattern = Self::read(text, text, Segments::Path)?;
        let literal = pattern.literal();
        let may_be_xdstp = literal.starts_with(SCHEME) || SCHEME.starts_with(literal);
        let xdstp = may_be_xdstp.then(|| Segments::Xdstp.whole(text)).transpose()?;
        Ok(Self { xdstp, ..pattern })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// For a name of a resource in its normal form.
    fn matches_name(&self, name: &str) -> bool {
        let whole = if is_xdstp(name) { self.xdstp.as_ref() } else { Some(&self.whole) };
        whole.is_some_and(|whole| whole.is_match(name))
    }

    /// Whether names with context parameters may match.
    fn may_have_context(&self) -> bool {
        self.text.contains('?') || self.text.ends_with("**")
    }

    pub const fn regex(&self) -> &Regex {
        &self.whole
    }

    pub fn matches(&self, text: &str) -> bool {
        self.whole.is_match(text)
    }

    /// Text that every match begins with.
    fn literal(&self) -> &str {
        self.text.split('*').next().unwrap_or_default()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<T: IntoIterator<Item = Pattern>>(patterns: T) -> Self {
        let mut patterns: Vec<Pattern> = patterns.into_iter().collect();
        patterns.sort_unstable_by(|one, other| one.text.cmp(&other.text));
        patterns.dedup();
        Self(patterns.into())
    }
}

impl Patterns {
    pub fn matches(&self, text: &str) -> bool {
        self.iter().any(|pattern| pattern.matches(text))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.0.iter()
    }
}

/// The names of resources that a client may see. Cheap to clone; most clients may see all, which costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(Option<Patterns>);

/// Whether a segment of a name's path is `.` or `..`. A control plane that resolves these would answer with what is
/// elsewhere than the name says, and than a pattern allows.
fn has_dot_segments(name: &str) -> bool {
    let path = match name.split_once('?') {
        Some((path, _)) if is_xdstp(name) => path,
        _ => name,
    };
    let mut segments = path.split('/').flat_map(|segment| segment.split("%2F"));
    segments.any(|segment| matches!(segment, "." | ".."))
}

impl Scope {
    pub const ALL: Self = Self(None);

    pub const fn only(patterns: Patterns) -> Self {
        Self(Some(patterns))
    }

    pub const fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a resource of this name, in its normal form, may be seen.
    pub fn shows(&self, name: &str) -> bool {
        let Some(patterns) = &self.0 else { return true };
        if has_dot_segments(name) {
            // Only a pattern that is this very name means it.
            return patterns.iter().any(|pattern| pattern.text() == name);
        }
        patterns.iter().any(|pattern| pattern.matches_name(name))
    }

    /// Whether a name, in its normal form, may be asked for: it may be seen, or stands for a collection of which some
    /// members may be.
    pub fn allows(&self, name: &str) -> bool {
        let Some(patterns) = &self.0 else { return true };
        let Some(collection) = Collection::named(name) else { return self.shows(name) };
        let prefix = collection.prefix();
        let may_cover = |pattern: &Pattern| {
            let literal = pattern.literal();
            (literal.starts_with(prefix) || prefix.starts_with(literal))
                && (!collection.has_context() || pattern.may_have_context())
        };
        !has_dot_segments(name) && patterns.iter().any(may_cover)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_takes_much_memory_is_refused() {
        let stars = "*a".repeat(10_000);
        assert_eq!(Pattern::read(&stars, &stars, Segments::Path), Err(PatternError::TooLarge));
        assert_eq!(whole_match("(?:a{1000}){1000}", MAX_AUTOMATON).err(), Some(PatternError::TooLarge));
    }

    #[test]
    fn an_expression_matches_the_whole() {
        assert!(!whole_match("a|web", MAX_AUTOMATON).unwrap().is_match("web-1"));
        assert!(whole_match("(?x) web # comment", MAX_AUTOMATON).unwrap().is_match("web"));
        assert!(matches!(whole_match("a)|(b", MAX_AUTOMATON), Err(PatternError::Syntax(_))));
    }
}
