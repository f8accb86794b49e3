//! Which names somebody may see.
//!
//! Owns patterns of names and the answer to whether one matches. Knows nothing of who it is for.
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
    /// Of names of the form xdstp, if it may match any: wildcards before the `?` do not reach beyond it.
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

    /// What every text that matches begins with.
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

    /// What these patterns match.
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
            // Only who wrote just this meant it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The longer way round: what is left of the text after the pattern's first part.
    fn naive(pattern: &str, text: &str) -> bool {
        if let Some(rest) = pattern.strip_prefix("**") {
            return (0..=text.len())
                .filter(|at| text.is_char_boundary(*at))
                .any(|at| naive(rest, &text[at..]));
        }
        if let Some(rest) = pattern.strip_prefix('*') {
            let end = text.find('/').unwrap_or(text.len());
            return (0..=end).filter(|at| text.is_char_boundary(*at)).any(|at| naive(rest, &text[at..]));
        }
        match (pattern.chars().next(), text.chars().next()) {
            (None, None) => true,
            (Some(one), Some(other)) if one == other => {
                naive(&pattern[one.len_utf8()..], &text[one.len_utf8()..])
            }
            _ => false,
        }
    }

    fn pattern(text: &str) -> Pattern {
        let glob = crate::config::Glob::of_names(text).unwrap();
        Pattern::new(text, glob.whole().clone()).of_names(glob.xdstp().cloned())
    }

    fn scope(texts: &[&str]) -> Scope {
        Scope::only(texts.iter().map(|text| pattern(text)).collect())
    }

    proptest::proptest! {
        #[test]
        fn a_pattern_matches_what_its_parts_say(
            text in "[ab./é\\n\\[]{0,8}", wild in "([ab./é\\n\\[]|\\*|\\*\\*){0,6}",
        ) {
            proptest::prop_assert_eq!(pattern(&wild).matches(&text), naive(&wild, &text));
        }
    }

    #[test]
    fn scopes_are_equal_if_their_patterns_are() {
        assert_eq!(scope(&["b", "a", "b"]), scope(&["a", "b"]));
        assert_ne!(scope(&["a"]), Scope::ALL);
        assert!(!scope(&[]).shows("a"), "no pattern matches nothing");
    }

    #[test]
    fn a_collection_may_be_asked_for_if_a_member_may_be_seen() {
        let mine = scope(&["xdstp://mine/**", "xdstp://shared/t/foo/a*"]);
        assert!(mine.allows("xdstp://mine/t/foo/*") && mine.allows("xdstp://shared/t/foo/*"));
        assert!(!mine.allows("xdstp://other/t/foo/*") && !mine.allows("xdstp://shared/t/bar/*"));
        assert!(mine.shows("xdstp://shared/t/foo/ab") && !mine.shows("xdstp://shared/t/foo/b"));
        assert!(!mine.shows("xdstp://mined/t/foo/a"));
        assert!(mine.allows("xdstp://mine/t/foo/*?a=b") && !mine.allows("xdstp://shared/t/foo/*?a=b"));
        assert!(!mine.allows("xdstp://mine/t/foo/../*"));
    }

    #[test]
    fn wildcards_before_the_context_parameters_do_not_reach_them() {
        let star = scope(&["xdstp://a/t/foo/*", "xdstp://a/t/bar/*?env=*", "**/end"]);
        assert!(star.shows("xdstp://a/t/foo/x") && star.shows("xdstp://a/t/bar/x?env=prod/eu"));
        assert!(star.shows("xdstp://a/t/x/end") && star.shows("plain?x=/end"), "no parameters elsewhere");
        for hidden in [
            "xdstp://a/t/foo/x?env=prod",
            "xdstp://a/t/bar/x",
            "xdstp://a/t/bar/x?env=prod&k=v",
            "xdstp://a/t/bar/x?a=b&env=prod",
            "xdstp://a/t/x?k=/end",
            "xdstp://a/t/x/end?k=v",
        ] {
            assert!(!star.shows(hidden), "{hidden}");
        }
        let all = scope(&["xdstp://a/**"]);
        assert!(
            all.shows("xdstp://a/t/x?k=v") && all.allows("xdstp://a/t/*?k=v"),
            "an authority is all of it"
        );
        assert!(scope(&["**"]).shows("xdstp://a/t/x?k=v"));
    }

    #[test]
    fn names_with_dot_segments_are_as_no_wildcard_says() {
        let scope = scope(&["mine/**", "*", "xdstp://a/t/mine/**", "odd/../name"]);
        for hidden in [
            "mine/../theirs",
            "mine/./x",
            "mine/..",
            "..",
            "xdstp://a/t/mine/../theirs",
            "xdstp://a/t/mine/x%2F..%2F..%2Ftheirs",
            "xdstp://a/t/mine/..?k=v",
        ] {
            assert!(!scope.shows(hidden) && !scope.allows(hidden), "{hidden}");
        }
        for shown in ["mine/...", "mine/a..b", "mine/.x", "odd/../name", "xdstp://a/t/mine/x?k=/../y"] {
            assert!(scope.shows(shown) && scope.allows(shown), "{shown}");
        }
    }
}
