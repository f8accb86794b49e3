use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::*;
use crate::proto::Locality;

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn structure(fields: &[(&str, Value)]) -> Struct {
    let fields: BTreeMap<String, Value> =
        fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Struct { fields }
}

fn with_metadata(fields: &[(&str, Value)]) -> Node {
    Node { metadata: structure(fields).encode_to_vec().into(), ..Node::default() }
}

fn metadata(path: &str) -> NodeField {
    NodeField::Metadata(path.split('.').map(str::to_owned).collect())
}

fn rule(from: NodeField, pattern: Option<&str>, default: Option<&str>) -> Rule {
    let pattern = pattern.map(|pattern| Regex::new(&format!(r"\A(?:{pattern})\z")).expect("a pattern"));
    Rule { key: "k".into(), from, pattern, default: default.map(Into::into) }
}

/// Value that one rule gives.
fn given(rule: Rule, node: &Node) -> Option<String> {
    NodeParameterRules::new(vec![rule], 20).parameters(node, None).get("k").map(str::to_owned)
}

#[test]
fn r_dp_17_every_part_of_a_node_can_be_a_parameter() {
    let node = Node {
        id: "i".to_owned(),
        cluster: "c".to_owned(),
        metadata: structure(&[("env", text("m"))]).encode_to_vec().into(),
        locality: Some(Locality { region: "r".to_owned(), zone: "z".to_owned(), sub_zone: "s".to_owned() }),
        user_agent_name: "u".to_owned(),
        ..Node::default()
    };
    let fields = [
        (NodeField::Id, "i"),
        (NodeField::Cluster, "c"),
        (NodeField::Region, "r"),
        (NodeField::Zone, "z"),
        (NodeField::SubZone, "s"),
        (NodeField::UserAgentName, "u"),
        (metadata("env"), "m"),
    ];
    for (from, expected) in &fields {
        assert_eq!(given(rule(from.clone(), None, None), &node).as_deref(), Some(*expected), "{from:?}");
        // A field that is not told is absent, or the default.
        for silent in [Node::default(), Node { locality: Some(Locality::default()), ..Node::default() }] {
            assert_eq!(given(rule(from.clone(), None, None), &silent), None, "{from:?}");
            assert_eq!(given(rule(from.clone(), None, Some("d")), &silent).as_deref(), Some("d"), "{from:?}");
        }
    }
    let rules =
        fields.iter().map(|(from, value)| Rule { key: (*value).into(), ..rule(from.clone(), None, None) });
    let all = NodeParameterRules::new(rules.collect(), 20).parameters(&node, None);
    assert_eq!(all, fields.iter().map(|(_, value)| (*value, *value)).collect());
}

#[test]
fn r_dp_17_metadata_is_text_or_a_word_of_json() {
    let number = |number| value(Kind::NumberValue(number));
    for (said, expected) in [
        (text("prod"), Some("prod")),
        // Present, and empty (R-DP-01).
        (text(""), Some("")),
        (text(" A\u{e9}"), Some(" A\u{e9}")),
        (value(Kind::BoolValue(true)), Some("true")),
        (value(Kind::BoolValue(false)), Some("false")),
        (number(1.0), Some("1")),
        (number(-3.0), Some("-3")),
        (number(0.1), Some("0.1")),
        (number(0.0), Some("0")),
        (number(-0.0), Some("0")),
        (number(1e15), Some("1000000000000000")),
        (number(1e-7), Some("0.0000001")),
        (number(f64::NAN), None),
        (number(f64::INFINITY), None),
        // Three hundred digits are too long here.
        (number(f64::MAX), None),
        (value(Kind::NullValue(0)), None),
        (value(Kind::ListValue(ListValue { values: vec![text("prod")] })), None),
        (value(Kind::StructValue(structure(&[("env", text("prod"))]))), None),
        (Value { kind: None }, None),
    ] {
        let node = with_metadata(&[("env", said.clone())]);
        assert_eq!(given(rule(metadata("env"), None, None), &node).as_deref(), expected, "{said:?}");
    }
}

#[test]
fn r_dp_17_a_path_leads_through_structures() {
    let inner = structure(&[("env", text("prod")), ("x", text("y"))]);
    let node =
        with_metadata(&[("deploy", value(Kind::StructValue(inner))), ("a.b", text("dot")), ("t", text("u"))]);
    for (path, expected) in [
        ("deploy.env", Some("prod")),
        ("deploy.x", Some("y")),
        ("deploy", None),
        ("deploy.none", None),
        ("deploy.env.more", None),
        ("t.t", None),
        ("env", None),
        // A dot leads into a value; it is no part of a key.
        ("a.b", None),
    ] {
        assert_eq!(given(rule(metadata(path), None, None), &node).as_deref(), expected, "{path}");
    }
}

#[test]
fn r_dp_17_the_first_group_of_a_pattern_is_the_value() {
    let env = |id: &str, pattern: &str| {
        let node = Node { id: id.to_owned(), ..Node::default() };
        given(rule(NodeField::Id, Some(pattern), Some("default")), &node)
    };
    let pattern = "(prod|canary)-.*";
    for (id, expected) in [
        ("prod-1", "prod"),
        ("canary-", "canary"),
        // All of it has to match.
        ("a-prod-1", "default"),
        ("prod", "default"),
        ("prod-1\nx", "default"),
        ("Prod-1", "default"),
        ("", "default"),
        ("prod-1234567890123456", "default"),
    ] {
        assert_eq!(env(id, pattern).as_deref(), Some(expected), "{id:?}");
    }
    assert_eq!(env("prod", "pro|(prod)").as_deref(), Some("prod"));
    assert_eq!(env("prod-1", "prod-.*").as_deref(), Some("prod-1"), "without a group, all of it");
    // A group that takes no part is no value; one that matches nothing is an empty one.
    assert_eq!(env("b", "(a)|b").as_deref(), Some("default"));
    assert_eq!(env("b", "(a*)b").as_deref(), Some(""));
    // A number is matched as the text that it would be.
    let node = with_metadata(&[("n", value(Kind::NumberValue(12.0)))]);
    assert_eq!(given(rule(metadata("n"), Some("(.).*"), None), &node).as_deref(), Some("1"));
}

#[test]
fn people_are_told_why_a_key_is_absent() {
    let node = Node {
        id: "x".repeat(21),
        cluster: "edge".to_owned(),
        ..with_metadata(&[("n", value(Kind::NullValue(0)))])
    };
    let rules = vec![
        rule(NodeField::Id, None, None),
        rule(NodeField::Cluster, None, None),
        rule(NodeField::Cluster, Some("(x)"), Some("d")),
        rule(NodeField::Zone, None, None),
        rule(metadata("n"), None, None),
    ];
    let given = NodeParameterRules::new(rules, 20);
    let outcomes: Vec<_> = given.outcomes(&node, None).map(|(_, outcome)| outcome).collect();
    assert_eq!(
        outcomes,
        [
            Err(Missing::TooLong),
            Ok("edge".into()),
            Err(Missing::NoMatch),
            Err(Missing::NotSet),
            Err(Missing::NoText),
        ]
    );
}

#[test]
fn without_rules_there_are_no_parameters() {
    assert_eq!(
        NodeParameterRules::default().parameters(&with_metadata(&[("env", text("prod"))]), None),
        Parameters::NONE
    );
    // And with rules that give nothing neither.
    assert_eq!(
        NodeParameterRules::new(vec![rule(NodeField::Id, None, None)], 20).parameters(&Node::default(), None),
        Parameters::NONE
    );
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value { kind: None }),
        Just(value(Kind::NullValue(0))),
        any::<bool>().prop_map(|flag| value(Kind::BoolValue(flag))),
        any::<f64>().prop_map(|number| value(Kind::NumberValue(number))),
        "\\PC{0,30}".prop_map(|said| text(&said)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3)
                .prop_map(|values| value(Kind::ListValue(ListValue { values }))),
            prop::collection::btree_map("[ab]", inner, 0..3)
                .prop_map(|fields| value(Kind::StructValue(Struct { fields }))),
        ]
    })
}

proptest! {
    /// Nothing a client says is too much, and no value is longer than the bound.
    #[test]
    fn whatever_a_node_says_it_is_given_bounded_values(
        id in "\\PC{0,30}",
        fields in prop::collection::btree_map("[ab]", any_value(), 0..3),
        pattern in prop::option::of(prop::sample::select(vec!["(.*)", "(?s)(.*).", "(\\w+)-(\\d+)?.*", "()"])),
    ) {
        let metadata_bytes = Struct { fields }.encode_to_vec().into();
        let node = Node { id, metadata: metadata_bytes, ..Node::default() };
        for from in [NodeField::Id, metadata("a"), metadata("b.a"), metadata("a.b.a")] {
            if let Some(value) = given(rule(from, pattern, None), &node) {
                prop_assert!(value.len() <= 20, "{value}");
            }
        }
    }
}
