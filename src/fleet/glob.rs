//! Patterns of names with `*`.

/// Pattern of a text, in which `*` stands for any number of characters and everything else for itself.
///
/// Matching takes time in proportion to the text, whatever the pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    first: Box<str>,
    /// Parts behind each `*`.
    rest: Vec<Box<str>>,
}

impl Glob {
    pub(super) fn new(pattern: &str) -> Self {
        let mut parts = pattern.split('*').map(Box::from);
        let first = parts.next().unwrap_or_default();
        Self { first, rest: parts.collect() }
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        let Some(text) = text.strip_prefix(&*self.first) else { return false };
        let Some((last, between)) = self.rest.split_last() else { return text.is_empty() };
        // The leftmost place of each part leaves most for those after it.
        let mut left = text;
        for part in between.iter().filter(|part| !part.is_empty()) {
            let Some(at) = left.find(&**part) else { return false };
            left = &left[at + part.len()..];
        }
        left.ends_with(&**last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text, matches) in [
            ("web", "web", true),
            ("web", "web-1", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("web-*", "web-1", true),
            ("web-*", "web", false),
            ("*-1", "web-1", true),
            ("w*b*1", "web-1", true),
            ("a*a", "a", false),
            ("*é*", "caf\u{e9}!", true),
            ("a**b", "ab", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), matches, "{pattern} {text}");
        }
    }

    /// As a glob is defined.
    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| matches(rest, &text[at..])),
            Some((byte, rest)) => {
                text.split_first().is_some_and(|(first, others)| first == byte && matches(rest, others))
            }
        }
    }

    proptest! {
        #[test]
        fn it_matches_as_the_definition_says(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(&pattern).matches(&text), matches(pattern.as_bytes(), text.as_bytes()));
        }
    }

    #[test]
    fn no_pattern_explodes() {
        let (pattern, text) = ("*a".repeat(2_000) + "*b", "a".repeat(100_000));
        // Quadratic work would be 200,000,000 steps, exponential work would not end.
        assert!(!Glob::new(&pattern).matches(&text));
    }
}
