//! Constraints against the descriptors of Envoy's API and an evaluator that only does what the rules say.

mod canonical;
mod hostile;

use std::io::Read as _;
use std::sync::LazyLock;

use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Value as Json, json};

use super::*;

/// A tree as an origin writes it, before anything is brought into order.
#[derive(Clone, Debug, PartialEq)]
enum Raw {
    Unset,
    Value(String, String),
    Exists(String),
    Or(Vec<Self>),
    And(Vec<Self>),
    Not(Box<Self>),
}

impl Raw {
    /// Evaluates the rules word by word (R-DP-01, R-DP-02).
    fn matches(&self, parameters: &[(String, String)]) -> bool {
        let find = |key: &String| parameters.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        match self {
            Self::Unset => true,
            Self::Value(key, wanted) => find(key).is_some_and(|value| value == wanted),
            Self::Exists(key) => find(key).is_some(),
            Self::Or(parts) => parts.iter().any(|part| part.matches(parameters)),
            Self::And(parts) => parts.iter().all(|part| part.matches(parameters)),
            Self::Not(part) => !part.matches(parameters),
        }
    }

    fn json(&self) -> Json {
        let list = |parts: &[Self]| json!({"constraints": parts.iter().map(Self::json).collect::<Vec<_>>()});
        match self {
            Self::Unset => json!({}),
            Self::Value(key, value) => json!({"constraint": {"key": key, "value": value}}),
            Self::Exists(key) => json!({"constraint": {"key": key, "exists": {}}}),
            Self::Or(parts) => json!({"orConstraints": list(parts)}),
            Self::And(parts) => json!({"andConstraints": list(parts)}),
            Self::Not(part) => json!({"notConstraints": part.json()}),
        }
    }

    /// Encoded by Envoy's descriptors, not by the code under test.
    fn encode(&self) -> Vec<u8> {
        DynamicMessage::deserialize(descriptor(), self.json()).unwrap().encode_to_vec()
    }

    /// Read by Envoy's descriptors, as far as they can; `None` where the bytes or what they say are not allowed.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let message = DynamicMessage::decode(descriptor(), bytes).ok().filter(is_known)?;
        Self::from_json(&serde_json::to_value(&message).unwrap())
    }

    fn from_json(json: &Json) -> Option<Self> {
        let list = |list: &Json| -> Option<Vec<Self>> {
            list["constraints"].as_array().into_iter().flatten().map(Self::from_json).collect()
        };
        let Some((kind, inner)) = json.as_object()?.iter().next() else { return Some(Self::Unset) };
        let key = || inner["key"].as_str().unwrap_or_default().to_owned();
        Some(match kind.as_str() {
            "constraint" if inner["value"].is_string() => {
                Self::Value(key(), inner["value"].as_str()?.to_owned())
            }
            "constraint" if inner["exists"].is_object() => Self::Exists(key()),
            "orConstraints" => Self::Or(list(inner)?),
            "andConstraints" => Self::And(list(inner)?),
            "notConstraints" => Self::Not(Box::new(Self::from_json(inner)?)),
            _ => return None,
        })
    }

    fn parse(&self) -> Option<Constraints> {
        Constraints::parse(&self.encode()).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Whether there is nothing in it that its descriptor does not know, at any depth.
fn is_known(message: &DynamicMessage) -> bool {
    let inner = |value: &prost_reflect::Value| match value {
        prost_reflect::Value::Message(message) => is_known(message),
        prost_reflect::Value::List(items) => items.iter().filter_map(|item| item.as_message()).all(is_known),
        _ => true,
    };
    message.unknown_fields().next().is_none() && message.fields().all(|(_, value)| inner(value))
}

fn descriptor() -> MessageDescriptor {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let packed = &include_bytes!("../../../../../proto/descriptors.binpb.gz")[..];
        let mut descriptors = Vec::new();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut descriptors).unwrap();
        DescriptorPool::decode(descriptors.as_slice()).unwrap()
    });
    POOL.get_message_by_name("envoy.service.discovery.v3.DynamicParameterConstraints").unwrap()
}

fn value(key: &str, value: &str) -> Raw {
    Raw::Value(key.to_owned(), value.to_owned())
}

fn exists(key: &str) -> Raw {
    Raw::Exists(key.to_owned())
}

fn not(part: Raw) -> Raw {
    Raw::Not(Box::new(part))
}

/// A resource without constraints matches everybody.
fn matches(constraints: Option<&Constraints>, parameters: &Parameters) -> bool {
    constraints.is_none_or(|constraints| constraints.matches(parameters))
}

/// Whether a client with these parameters is served what an origin has constrained so.
fn serves(raw: &Raw, parameters: &[(&str, &str)]) -> bool {
    matches(raw.parse().as_ref(), &parameters.iter().copied().collect())
}

/// Few keys and values, so that they meet: the empty ones and such as differ in case or length only.
const KEYS: [&str; 4] = ["", "a", "A", "ab"];
const VALUES: [&str; 4] = ["", "x", "X", "xy"];

fn any_raw() -> impl Strategy<Value = Raw> {
    let key = || prop::sample::select(KEYS.as_slice());
    let leaf = prop_oneof![
        1 => Just(Raw::Unset),
        4 => (key(), prop::sample::select(VALUES.as_slice())).prop_map(|(key, wanted)| value(key, wanted)),
        3 => key().prop_map(exists),
    ];
    leaf.prop_recursive(8, 60, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Raw::Or),
            prop::collection::vec(inner.clone(), 0..5).prop_map(Raw::And),
            inner.prop_map(not),
        ]
    })
}

/// A tree at the end of a chain of negations and lists, up to the deepest that is allowed.
fn any_deep_raw() -> impl Strategy<Value = Raw> {
    let single = prop_oneof![Just(exists("a")), Just(value("a", "x")), Just(Raw::Unset)];
    (single, prop::collection::vec(0..4_u8, 0..MAX_DEPTH)).prop_map(|(single, chain)| {
        chain.into_iter().fold(single, |inner, kind| match kind {
            0 => Raw::Or(vec![inner]),
            1 => Raw::Or(vec![inner, value("ab", "xy")]),
            2 => Raw::And(vec![exists("A"), inner]),
            _ => not(inner),
        })
    })
}

fn any_parameters() -> impl Strategy<Value = Vec<(String, String)>> {
    let pairs = prop::collection::btree_map(
        prop::sample::select(KEYS.as_slice()),
        prop::sample::select(VALUES.as_slice()),
        0..5,
    );
    pairs.prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn r_dp_02_matching_agrees_with_a_naive_evaluator(
        raw in prop_oneof![4 => any_raw(), 1 => any_deep_raw()],
        sets in prop::collection::vec(any_parameters(), 1..8),
    ) {
        let parsed = raw.parse();
        for pairs in sets {
            let parameters: Parameters = pairs.iter().cloned().collect();
            prop_assert_eq!(
                matches(parsed.as_ref(), &parameters), raw.matches(&pairs), "{:?} for {:?}", parsed, pairs
            );
        }
    }

    #[test]
    fn r_dp_03_parameters_that_are_not_mentioned_do_not_matter(
        raw in any_raw(), pairs in any_parameters(), other in "[b-z]{1,3}", text in "\\PC{0,4}",
    ) {
        let parsed = raw.parse();
        let plain: Parameters = pairs.iter().cloned().collect();
        let more: Parameters = pairs.iter().cloned().chain([(other, text)]).collect();
        prop_assert_eq!(matches(parsed.as_ref(), &plain), matches(parsed.as_ref(), &more));
    }
}

#[test]
fn r_dp_01_a_value_is_compared_byte_by_byte_and_an_empty_one_is_a_value() {
    let prod = value("env", "prod");
    assert!(serves(&prod, &[("env", "prod")]));
    for parameters in [
        &[][..],
        &[("env", "")],
        &[("env", "Prod")],
        &[("env", "prod ")],
        &[("env", "pro")],
        &[("Env", "prod")],
    ] {
        assert!(!serves(&prod, parameters), "{parameters:?}");
    }
    let empty = value("env", "");
    assert!(serves(&empty, &[("env", "")]));
    assert!(!serves(&empty, &[]));
    assert!(!serves(&empty, &[("env", "x")]));
    // Composed and decomposed are different bytes.
    assert!(!serves(&value("k", "\u{e9}"), &[("k", "e\u{301}")]));
    assert!(serves(&value("", "x"), &[("", "x")]));
}

#[test]
fn r_dp_01_a_key_exists_with_any_value() {
    for text in ["", "x", "prod"] {
        assert!(serves(&exists("env"), &[("env", text)]), "{text:?}");
    }
    assert!(!serves(&exists("env"), &[]));
    assert!(!serves(&exists("env"), &[("en", "x"), ("ENV", "x")]));
}

#[test]
fn r_dp_02_nothing_at_all_is_for_everybody_and_its_negation_for_nobody() {
    assert_eq!(Raw::Unset.parse(), None);
    assert_eq!(Constraints::parse(&[]), Ok(None));
    for (raw, everybody) in [
        (Raw::Unset, true),
        (not(Raw::Unset), false),
        (Raw::Or(vec![]), false),
        (Raw::And(vec![]), true),
        (not(Raw::Or(vec![])), true),
        (not(Raw::And(vec![])), false),
        (Raw::Or(vec![exists("a"), Raw::Unset]), true),
        (Raw::And(vec![exists("a"), Raw::Or(vec![])]), false),
    ] {
        for parameters in [&[][..], &[("a", "")], &[("a", "x"), ("b", "y")]] {
            assert_eq!(serves(&raw, parameters), everybody, "{raw:?} for {parameters:?}");
        }
        assert_eq!(raw.parse().is_none(), everybody, "{raw:?}");
    }
}

#[test]
fn r_dp_03_no_constraints_match_any_parameters_and_none() {
    assert!(serves(&Raw::Unset, &[]));
    assert!(serves(&Raw::Unset, &[("env", "prod"), ("", "")]));
    assert!(serves(&value("env", "prod"), &[("env", "prod"), ("version", "2")]));
}

/// Best practice of the proposal: a variant for those that do not send the key yet.
#[test]
fn r_dp_02_a_default_for_clients_that_do_not_send_the_key() {
    let prod = value("env", "prod");
    let canary = Raw::And(vec![exists("env"), not(value("env", "prod"))]);
    let default = not(exists("env"));
    for (parameters, served) in [
        (&[][..], [false, false, true]),
        (&[("env", "prod")], [true, false, false]),
        (&[("env", "canary")], [false, true, false]),
        (&[("env", "")], [false, true, false]),
    ] {
        let found = [&prod, &canary, &default].map(|raw| serves(raw, parameters));
        assert_eq!(found, served, "{parameters:?}");
    }
}

#[test]
fn constraints_are_written_out_for_people() {
    let raw = Raw::And(vec![value("env", "prod"), not(Raw::Or(vec![exists("canary"), value("v", "1")]))]);
    let text = raw.parse().unwrap().to_string();
    assert_eq!(text, r#"(env = "prod" and not (v = "1" or exists(canary)))"#);
    assert_eq!(not(Raw::Unset).parse().unwrap().to_string(), "never");
    // Text of an origin can neither steer a terminal nor begin a line of a log.
    let hostile = Raw::Or(vec![exists("a\n\u{1b}[2J"), value("b\r", "\u{7}")]).parse().unwrap().to_string();
    assert_eq!(hostile, r#"(b\r = "\u{7}" or exists(a\n\u{1b}[2J))"#);
}
