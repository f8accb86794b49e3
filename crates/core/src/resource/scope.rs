//! Names that a client may see.
//!
//! Knows nothing of the clients that it is for. Invariant: two scopes of equal patterns are equal, however they were listed.

use super::pattern::{Pattern, Patterns};
use super::{Collection, is_xdstp};

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
