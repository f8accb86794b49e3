//! Which names somebody may see.
//!
//! Owns patterns of names and the answer to whether one matches. Knows nothing of the clients that it is for.
//!
//! Invariants: matching takes time in proportion to the name, whatever a peer chose it to be · two scopes of equal
//! patterns are equal, however they were listed.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use regex::Regex;

use super::{Collection, is_xdstp};

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

/// The names of resources that a client may see. Cheap to clone; most clients may see all, which costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(Option<Patterns>);

impl Pattern {
    /// A pattern as it is written, and the expression that is anchored at both ends and means the same.
    pub fn new(text: &str, whole: Regex) -> Self {
        Self { text: text.into(), whole, xdstp: None }
    }

    /// This pattern for names of resources, with the expression for those of the form xdstp.
    pub fn of_names(self, xdstp: Option<Regex>) -> Self {
        Self { xdstp, ..self }
    }

    /// The pattern as it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a name of a resource, in its normal form, is as the pattern says.
    fn matches_name(&self, name: &str) -> bool {
        let whole = if is_xdstp(name) { self.xdstp.as_ref() } else { Some(&self.whole) };
        whole.is_some_and(|whole| whole.is_match(name))
    }

    /// Whether names with context parameters may match.
    fn may_have_context(&self) -> bool {
        self.text.contains('?') || self.text.ends_with("**")
    }

    /// Whether a text is as the pattern says.
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
    /// Whether a text is as one of them says.
    pub fn matches(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(text))
    }
}

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
    /// Everything.
    pub const ALL: Self = Self(None);

    /// Everything that these patterns match.
    pub const fn only(patterns: Patterns) -> Self {
        Self(Some(patterns))
    }

    /// Whether nothing is left out.
    pub const fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a resource of this name, in its normal form, may be seen.
    pub fn shows(&self, name: &str) -> bool {
        let Some(Patterns(patterns)) = &self.0 else { return true };
        if has_dot_segments(name) {
            // Only a pattern that is this very name means it.
            return patterns.iter().any(|pattern| &*pattern.text == name);
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
        !has_dot_segments(name) && patterns.0.iter().any(may_cover)
    }
}
