//! Matchers of nodes in CSDS requests.

use std::fmt::Display;

use super::admin_query::LookError;
use crate::proto::status::string_matcher::MatchPattern;
use crate::proto::status::{NodeMatcher, StringMatcher};
use crate::resource::whole_match;

/// Matchers of a request.
const MATCHERS: usize = 100;
/// Memory of the automaton of a regular expression, in bytes: peers choose these.
const AUTOMATON: usize = 64 << 10;

/// Matcher of a node ID.
#[derive(Debug)]
enum Matcher {
    Any,
    Exact(String),
    Prefix(String),
    Suffix(String),
    Contains(String),
    /// Matches the whole.
    Pattern(regex::Regex),
}

/// One of them has to match. Without any, every node matches.
#[derive(Debug)]
pub(super) struct NodeMatchers {
    /// Each with whether case counts.
    any: Vec<(Matcher, bool)>,
}

impl NodeMatchers {
    /// Reads the matchers of a request.
    ///
    /// # Errors
    ///
    /// [`LookError`] if there are too many, or one looks at anything but the node ID or cannot be read.
    pub(super) fn new(matchers: &[NodeMatcher]) -> Result<Self, LookError> {
        if matchers.len() > MATCHERS {
            return Err(fault(format!("more than {MATCHERS} matchers")));
        }
        let read = |matcher: &NodeMatcher| {
            if !matcher.node_metadatas.is_empty() {
                let reason = "the relay does not keep the metadata of its clients; match `node_id`";
                return Err(fault(reason));
            }
            match &matcher.node_id {
                Some(node_id) => read(node_id),
                None => Ok((Matcher::Any, false)),
            }
        };
        Ok(Self { any: matchers.iter().map(read).collect::<Result<_, _>>()? })
    }

    pub(super) fn matches(&self, node_id: &str) -> bool {
        if self.any.is_empty() {
            return true;
        }
        let lower = std::cell::OnceCell::new();
        self.any.iter().any(|(matcher, ignores_case)| {
            let text = if *ignores_case { lower.get_or_init(|| node_id.to_lowercase()) } else { node_id };
            match matcher {
                Matcher::Any => true,
                Matcher::Exact(exact) => text == exact,
                Matcher::Prefix(prefix) => text.starts_with(prefix),
                Matcher::Suffix(suffix) => text.ends_with(suffix),
                Matcher::Contains(part) => text.contains(part),
                Matcher::Pattern(pattern) => pattern.is_match(text),
            }
        })
    }
}

fn fault(reason: impl Display) -> LookError {
    LookError::Wrong(format!("node_matchers: {reason}"))
}

fn read(matcher: &StringMatcher) -> Result<(Matcher, bool), LookError> {
    let ignores_case = matcher.ignore_case;
    let text = |text: &String| if ignores_case { text.to_lowercase() } else { text.clone() };
    let read = match &matcher.match_pattern {
        Some(MatchPattern::Exact(exact)) => Matcher::Exact(text(exact)),
        Some(MatchPattern::Prefix(prefix)) => Matcher::Prefix(text(prefix)),
        Some(MatchPattern::Suffix(suffix)) => Matcher::Suffix(text(suffix)),
        Some(MatchPattern::Contains(part)) => Matcher::Contains(text(part)),
        // `ignore_case` does not apply.
        Some(MatchPattern::SafeRegex(pattern)) => {
            let pattern = whole_match(&pattern.regex, AUTOMATON);
            let pattern = pattern.map_err(|error| fault(format!("`safe_regex` is {error}")))?;
            return Ok((Matcher::Pattern(pattern), false));
        }
        None => {
            let known = "exact, prefix, suffix, contains or safe_regex";
            return Err(fault(format!("`node_id` needs one of {known}")));
        }
    };
    Ok((read, ignores_case))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::status::RegexMatcher;

    fn matcher(pattern: MatchPattern, ignore_case: bool) -> NodeMatcher {
        let node_id = StringMatcher { ignore_case, match_pattern: Some(pattern) };
        NodeMatcher { node_id: Some(node_id), node_metadatas: Vec::new() }
    }

    fn regex(pattern: &str) -> NodeMatcher {
        matcher(MatchPattern::SafeRegex(RegexMatcher { regex: pattern.to_owned() }), false)
    }

    fn fault(matchers: &[NodeMatcher]) -> String {
        NodeMatchers::new(matchers).unwrap_err().to_string()
    }

    #[test]
    fn one_of_several_matchers_is_enough() {
        assert!(NodeMatchers::new(&[]).unwrap().matches("anything"));
        let matches = |one: NodeMatcher, node_id: &str| {
            NodeMatchers::new(&[matcher(MatchPattern::Exact("other".to_owned()), false), one])
                .unwrap()
                .matches(node_id)
        };
        for (pattern, is_one, is_none) in [
            (MatchPattern::Exact("Web-1".to_owned()), "Web-1", "Web-10"),
            (MatchPattern::Prefix("Web".to_owned()), "Web-1", "A-Web"),
            (MatchPattern::Suffix("-1".to_owned()), "Web-1", "Web-1a"),
            (MatchPattern::Contains("b-".to_owned()), "Web-1", "Web1"),
        ] {
            assert!(matches(matcher(pattern.clone(), false), is_one), "{pattern:?}");
            assert!(!matches(matcher(pattern.clone(), false), is_none), "{pattern:?}");
            assert!(matches(matcher(pattern.clone(), true), &is_one.to_uppercase()), "{pattern:?}");
        }
        assert!(matches(regex("web-[0-9]+"), "web-12") && !matches(regex("web-[0-9]+"), "web-12a"));
        assert!(!matches(regex("a|web"), "web-1"), "the whole of it");
        assert!(matches(matcher(MatchPattern::Exact(String::new()), false), "other"));
    }

    #[test]
    fn a_matcher_that_cannot_be_used_is_told() {
        assert!(fault(&vec![NodeMatcher::default(); 1_000_000]).contains("more than 100 matchers"));
        let metadata = NodeMatcher { node_metadatas: vec![bytes::Bytes::new()], ..NodeMatcher::default() };
        assert!(fault(&[metadata]).contains("does not keep the metadata"));
        let empty = NodeMatcher { node_id: Some(StringMatcher::default()), ..NodeMatcher::default() };
        assert!(fault(&[empty]).contains("needs one of exact"));
        assert!(fault(&[regex("(")]).contains("safe_regex"));
        assert!(fault(&[regex("a)|(b")]).contains("safe_regex"));
        assert!(fault(&[regex("(?:a{1000}){1000}")]).contains("safe_regex"));
        assert!(fault(&[regex("a{4000}")]).contains("too large"), "less than a configured one may take");
    }
}
