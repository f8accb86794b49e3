//! Patterns of names as operators write them, and what a scope of them shows.

use crate::resource::{Pattern, Scope};

/// The longer way round: what is left of the text after the pattern's first part.
fn naive(pattern: &str, text: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix("**") {
        return (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| naive(rest, &text[at..]));
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
    Pattern::of_names(text).unwrap()
}

fn scope(texts: &[&str]) -> Scope {
    Scope::only(texts.iter().map(|text| pattern(text)).collect())
}

proptest::proptest! {
    #[test]
    fn a_pattern_matches_as_its_parts_say(
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
    assert!(all.shows("xdstp://a/t/x?k=v") && all.allows("xdstp://a/t/*?k=v"), "an authority is all of it");
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
