use std::io::Write as _;

use proptest::prelude::*;
use serde_json::json;

use super::{UPSTREAM, load, refused, refused_part};
use crate::config::Config;

#[test]
fn nothing_at_all() {
    for text in ["", "\n\n", "# nothing but a comment\n"] {
        assert_eq!(refused(text), "f:1: is empty; at least `upstream` is needed", "{text:?}");
    }
    let missing = "`upstream`: has no source; write `servers` or `directory`";
    assert_eq!(refused("{}"), format!("f:1: {missing}"));
    assert_eq!(refused("---\n"), format!("f:1: {missing}"));
}

#[test]
fn something_else_at_the_top() {
    assert_eq!(refused("\n- upstream\n"), "f:2: the file must be a mapping, not a list");
    assert_eq!(refused("upstream"), "f:1: the file must be a mapping, not `upstream`");
    assert_eq!(refused("upstream: []"), "f:1: `upstream` must be a mapping, not a list");
}

#[test]
fn aliases_are_refused_before_they_can_grow() {
    let mut bomb = "node:\n  metadata:\n    a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, of) in "bcdefghi".chars().zip("abcdefgh".chars()) {
        bomb.push_str(&format!("    {name}: &{name} [{}]\n", vec![format!("*{of}"); 9].join(", ")));
    }
    assert_eq!(refused_part(&bomb), "f:5: aliases (`*name`) are not allowed; write the value out");
    let text = refused_part("cache: *nowhere\n");
    assert_eq!(text, "f:2: aliases (`*name`) are not allowed; write the value out");
}

#[test]
fn an_alias_to_a_node_that_holds_it_is_refused() {
    let text = refused_part("node: {metadata: &a {b: *a}}\n");
    assert_eq!(text, "f:2: aliases (`*name`) are not allowed; write the value out");
}

#[test]
fn deep_nesting_is_refused() {
    let flow = |depth: usize| refused(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    assert_eq!(flow(33), "f:1: is nested deeper than 32 levels");
    for depth in [33, 300, 100_000] {
        for message in [flow(depth), refused(&"{a: ".repeat(depth))] {
            assert!(message.starts_with("f:1: is "), "{depth}: {message}");
        }
    }
    let block: String = (0..200).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    assert_eq!(refused(&block), "f:33: is nested deeper than 32 levels");
    assert_eq!(refused(&"- ".repeat(1000)), "f:1: is nested deeper than 32 levels");
    let start = block.lines().take(20).collect::<Vec<_>>().join("\n");
    let mixed = format!("{start} {}{}", "[".repeat(20), "]".repeat(20));
    assert_eq!(refused(&mixed), "f:20: is nested deeper than 32 levels");
}

#[test]
fn huge_texts_are_refused() {
    assert_eq!(refused(&" ".repeat((1 << 20) + 1)), "f:1: is larger than 1048576 bytes");

    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![b'#'; (1 << 20) + 1]).unwrap();
    let name = file.path().display();
    let errors = load(file.path()).unwrap_err();
    assert_eq!(errors.to_string(), format!("{name}: is larger than 1048576 bytes"));
}

#[test]
fn a_file_without_an_end_is_not_read_to_the_end() {
    let errors = load(std::path::Path::new("/dev/zero")).unwrap_err();
    assert_eq!(errors.to_string(), "/dev/zero: is larger than 1048576 bytes");
}

#[test]
fn a_file_of_the_largest_size_is_read() {
    let text = format!("{UPSTREAM}#{}", "x".repeat((1 << 20) - UPSTREAM.len() - 1));
    assert_eq!(text.len(), 1 << 20);
    assert!(Config::parse(&text, "f").is_ok());
}

#[test]
fn binary_garbage_is_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"node: {}\n\xff\xfe\x00\x01").unwrap();
    let name = file.path().display();
    let errors = load(file.path()).unwrap_err();
    assert_eq!(errors.to_string(), format!("{name}:2: is not UTF-8 text"));

    assert!(refused("\0\0\0").starts_with("f:1: "));
    assert!(refused("\u{7f}ELF\u{1}\u{2}").starts_with("f:1: "));
}

#[test]
fn a_path_that_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().display();
    let errors = load(folder.path()).unwrap_err().to_string();
    assert!(errors.starts_with(&format!("{name}: cannot be read: ")), "{errors}");
    let errors = load(&folder.path().join("none.yaml")).unwrap_err().to_string();
    assert!(errors.starts_with(&format!("{name}/none.yaml: cannot be read: ")), "{errors}");
}

#[test]
fn patterns_that_would_cost_much_are_refused() {
    let nested = |levels: usize| format!("{}a{}", "(".repeat(levels), ")".repeat(levels));
    for pattern in [
        "(".repeat(10_000),
        nested(10_000),
        "((((a{100}){100}){100}){100})".to_owned(),
        "(\\pL{1000})".to_owned(),
        format!("({})", "x".repeat(500_000)),
        format!("({})", "\\w".repeat(10_000)),
    ] {
        let rule = json!([{"key": "k", "from": "node.id", "pattern": pattern}]);
        let start = std::time::Instant::now();
        let text = refused_part(&format!("dynamic_parameters: {rule}\n"));
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(text.starts_with("f:2: `dynamic_parameters[].pattern`: `"), "{text}");
        assert_eq!((text.lines().count(), text.len() < 300), (1, true), "{text}");
        let rule = json!([{"name": "a", "match": {"node.id": pattern}, "node": "client"}]);
        let text = refused_part(&format!("groups: {{rules: {rule}}}\n"));
        assert!(text.starts_with("f:2: `groups.rules[].match.node.id`: `"), "{text}");
        assert_eq!((text.lines().count(), text.len() < 300), (1, true), "{text}");
    }
}

#[test]
fn text_of_a_file_cannot_steer_a_terminal() {
    let text = refused_part("\"\\e[2J\\n\\u009b\": 1\n");
    assert!(text.starts_with("f:2: unknown key `\\u{1b}[2J\\n\\u{9b}` at the top level; "), "{text}");
}

#[test]
fn long_texts_are_not_repeated_at_length() {
    let text = refused_part(&format!("{}: 1\n", "ä".repeat(1000)));
    assert!(
        text.starts_with(&format!("f:2: unknown key `{}...` at the top level; known are", "ä".repeat(60)))
    );
}

/// Never a panic; and what is refused says where, in one line for each problem.
fn is_read_or_refused(text: &str) -> Result<(), TestCaseError> {
    let errors = Config::parse(text, "f").err().map(|errors| errors.to_string());
    for line in errors.iter().flat_map(|errors| errors.lines()) {
        let number = line.strip_prefix("f:").and_then(|rest| rest.split(':').next());
        let has_line = number.is_some_and(|number| number.parse::<usize>().is_ok_and(|line| line > 0));
        prop_assert!(has_line, "{}", line);
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}:,&*!|>'\"%@`# \\-?a-c\\n\\t]{0,80}|\\PC{0,40}") {
        is_read_or_refused(&text)?;
        is_read_or_refused(&format!("{UPSTREAM}node:\n  metadata:\n   {text}"))?;
        let rule = "name: a\n    match:\n      node.id: (?P<a>.*)\n    node: client\n    key:";
        is_read_or_refused(&format!("{UPSTREAM}groups:\n  rules:\n  - {rule} ${{a}}{text}"))?;
    }

    #[test]
    fn no_cut_makes_it_panic(end in 0..include_str!("../../../config/reference.yaml").len()) {
        let text = include_str!("../../../config/reference.yaml");
        if let Some(start) = text.get(..end) {
            is_read_or_refused(start)?;
        }
    }
}
