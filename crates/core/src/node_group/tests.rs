use proptest::prelude::*;
use prost::Message as _;
use regex::Regex;
use serde_json::{Map, Value as Json, json};

use super::*;
use crate::proto::{self, Locality};

const LIMIT: usize = 40;

fn condition(key: &str, pattern: &str) -> Condition {
    let whole = Regex::new(&format!(r"\A(?:{pattern})\z")).expect("a pattern");
    Condition::new(key.parse().expect("a key"), pattern, whole)
}

fn spec<'a>(matches: &[(&str, &str)], key: Option<&'a str>, node: Option<Map<String, Json>>) -> RuleSpec<'a> {
    let conditions = matches.iter().map(|(key, pattern)| condition(key, pattern)).collect();
    RuleSpec { name: "edge", conditions, key, node }
}

fn with_id(id: &str) -> Option<Map<String, Json>> {
    json!({"id": id}).as_object().cloned()
}

fn own() -> Node {
    Node {
        id: "relay-1".to_owned(),
        cluster: "relays".to_owned(),
        locality: Some(Locality { region: "eu".to_owned(), ..Locality::default() }),
        metadata: metadata(json!({"own": true})),
        user_agent_name: "deltafan".to_owned(),
        user_agent_version: "1".to_owned(),
        client_features: vec!["ttl".to_owned()],
    }
}

fn metadata(json: Json) -> bytes::Bytes {
    proto::structure(json.as_object().expect("an object")).encode_to_vec().into()
}

fn node(id: &str) -> Node {
    Node { id: id.to_owned(), ..Node::default() }
}

fn rules(specs: Vec<RuleSpec<'_>>, unmatched: Unmatched) -> GroupRules {
    let rules = specs.into_iter().map(|spec| Rule::new(spec).expect("a rule")).collect();
    GroupRules::new(rules, unmatched, own(), LIMIT)
}

fn one(spec: RuleSpec<'_>) -> GroupRules {
    rules(vec![spec], Unmatched::Own)
}

fn group(rules: &GroupRules, node: &Node, proof: Option<&Certificate>) -> Option<GroupPlace> {
    match rules.place(node, proof) {
        Ok(Some(place)) => Some(place),
        _ => None,
    }
}

fn made(rules: &GroupRules, place: Option<GroupPlace>) -> Node {
    match rules.node(&place.expect("a group")) {
        GroupNode::Made(node) => *node,
        GroupNode::Client => panic!("the node of a client"),
    }
}

#[test]
fn r_relay_01_the_first_rule_that_matches_decides() {
    let named = |name, pattern| RuleSpec { name, ..spec(&[("node.id", pattern)], None, None) };
    let specs = || vec![named("a", "a.*"), named("ab", "ab.*"), named("b", "b")];
    let placed = rules(specs(), Unmatched::Own);
    for (id, expected) in [("ab", Some((0, "a"))), ("b", Some((2, "b"))), ("bb", None), ("", None)] {
        let place = group(&placed, &node(id), None);
        let found = place.as_ref().map(|place| (place.rule, place.key.rule()));
        assert_eq!(found, expected, "{id}");
    }
    let refusing = rules(specs(), Unmatched::Refuse);
    let error = refusing.place(&node("c"), None).expect_err("a refusal");
    assert_eq!(error.to_string(), "no node group takes this client: it matches none of the rules a, ab, b");
    let none = rules(vec![], Unmatched::Refuse).place(&node("c"), None).expect_err("a refusal");
    assert_eq!(none.to_string(), "no node group takes this client: `groups.rules` is empty");
    assert!(GroupRules::default().is_trivial() && !refusing.is_trivial());
    assert_eq!(GroupRules::default().place(&node("c"), None), Ok(None));
}

#[test]
fn a_refusal_is_short_however_many_rules_there_are() {
    let tried = (0..1000).map(|at| format!("rule-{at}").into()).collect();
    let error = NoGroupError { tried }.to_string();
    assert!(error.ends_with("rule-19 and 980 more") && error.len() < 300, "{error}");
}

#[test]
fn r_relay_01_all_conditions_have_to_match_the_whole_of_their_values() {
    let matches =
        [("node.id", "edge-[a-z]+"), ("node.metadata.role", "gateway"), ("node.locality.zone", "a|b")];
    let rules = one(spec(&matches, None, None));
    let good = Node {
        metadata: metadata(json!({"role": "gateway"})),
        locality: Some(Locality { zone: "a".to_owned(), ..Locality::default() }),
        ..node("edge-x")
    };
    assert!(group(&rules, &good, None).is_some());
    for other in [
        Node { id: "edge-1".to_owned(), ..good.clone() },
        Node { id: "edge-x\n".to_owned(), ..good.clone() },
        Node { metadata: metadata(json!({"role": "gateways"})), ..good.clone() },
        Node { metadata: metadata(json!({"role": ["gateway"]})), ..good.clone() },
        Node { metadata: vec![0xff; 9].into(), ..good.clone() },
        Node { locality: None, ..good.clone() },
        Node { id: format!("edge-{}", "x".repeat(LIMIT)), ..good },
    ] {
        assert_eq!(rules.place(&other, None), Ok(None), "{other:?}");
    }
}

#[test]
fn r_relay_02_a_node_is_made_from_the_values_of_the_key() {
    let tree = json!({"role": "${role}", "cost": "$$5", "n": 1.5, "on": true, "none": null,
                      "deep": {"list": ["a-${region}", {"b": "${role}${role}"}, 7]}});
    let node_of_group = json!({
        "id": "edge-${region}", "cluster": "${node.cluster}", "locality": {"region": "${region}", "zone": "z"}, "metadata": tree,
    });
    let spec = spec(
        &[("node.id", "edge-(?P<region>[a-z]+)-.*"), ("node.metadata.role", "(?<role>.*)")],
        Some("${region}/${role}/${node.cluster}"),
        node_of_group.as_object().cloned(),
    );
    let rules = one(spec);
    let client = Node {
        cluster: "c".to_owned(),
        metadata: metadata(json!({"role": "gw", "secret": "s"})),
        user_agent_name: "envoy".to_owned(),
        client_features: vec!["x".to_owned()],
        ..node("edge-eu-1")
    };
    let place = group(&rules, &client, None).expect("a group");
    assert_eq!((place.key.rule(), place.key.text()), ("edge", "eu/gw/c"));
    assert_eq!(place.key.to_string(), "edge:eu/gw/c");
    let expected = Node {
        id: "edge-eu".to_owned(),
        cluster: "c".to_owned(),
        locality: Some(Locality { region: "eu".to_owned(), zone: "z".to_owned(), sub_zone: String::new() }),
        metadata: metadata(json!({"role": "gw", "cost": "$5", "n": 1.5, "on": true, "none": null,
                                  "deep": {"list": ["a-eu", {"b": "gwgw"}, 7]}})),
        ..own()
    };
    assert_eq!(made(&rules, Some(place.clone())), expected);
    // Another client of the group, of which all else differs.
    let other = Node { user_agent_name: "grpc".to_owned(), ..Node { id: "edge-eu-2".to_owned(), ..client } };
    assert_eq!(group(&rules, &other, None), Some(place));
}

#[test]
fn r_relay_02_fields_that_a_rule_does_not_mention_are_those_of_the_relay() {
    let rules = one(spec(&[("node.id", ".*")], None, with_id("edge")));
    assert_eq!(made(&rules, group(&rules, &node("x"), None)), Node { id: "edge".to_owned(), ..own() });
}

#[test]
fn r_relay_01_keys_are_equal_only_if_their_values_are() {
    let rules = one(spec(&[("node.id", "(?P<a>.*)/(?P<b>.*)")], Some("${a}-${b}"), with_id("${a}+${b}")));
    let of = |id| group(&rules, &node(id), None).expect("a group");
    let (one, other) = (of("x-y/z"), of("x/y-z"));
    assert_eq!(one.key.text(), other.key.text());
    assert_ne!(one.key, other.key);
    assert_ne!(rules.node(&one), rules.node(&other));
}

#[test]
fn a_capture_without_part_in_the_match_and_an_absent_field_are_empty_text() {
    let key = Some("[${a}][${node.cluster}][${node.metadata.list}]");
    let rules = one(spec(&[("node.id", "x(?P<a>y)?")], key, None));
    let client = Node { metadata: metadata(json!({"list": []})), ..node("x") };
    assert_eq!(group(&rules, &client, None).expect("a group").key.text(), "[][][]");
    // A value that is longer than the bound is no part of a key.
    let long = Node { cluster: "c".repeat(LIMIT + 1), ..client };
    assert_eq!(rules.place(&long, None), Ok(None));
    let (_, outcome) = rules.outcomes(&long, None).next().expect("a rule");
    assert_eq!((outcome.too_long.as_deref(), outcome.matches()), (Some("node.cluster"), false));
}

#[test]
fn r_relay_01_a_proven_identity_is_not_taken_from_the_node() {
    let proof = |id: Option<&str>, dns: &[&str]| Certificate {
        spiffe_id: id.map(Into::into),
        dns_names: dns.iter().map(|name| (*name).into()).collect(),
        ..Certificate::default()
    };
    let rules = one(spec(&[("peer.spiffe_id", "spiffe://mesh/(?P<ns>.*)")], Some("${ns}"), None));
    let key = |rules: &GroupRules, proof: Option<&Certificate>| {
        let liar =
            Node { metadata: metadata(json!({"spiffe_id": "spiffe://mesh/a"})), ..node("spiffe://mesh/a") };
        group(rules, &liar, proof).map(|place| place.key.text().to_owned())
    };
    assert_eq!(key(&rules, None), None);
    assert_eq!(key(&rules, Some(&proof(None, &["a"]))), None);
    assert_eq!(key(&rules, Some(&proof(Some("spiffe://mesh/b"), &[]))).as_deref(), Some("b"));
    let rules = one(spec(&[("peer.san", "(?P<n>.*)\\.edge|(?P<id>spiffe:.*)")], Some("${n}${id}"), None));
    assert_eq!(key(&rules, None), None);
    assert_eq!(key(&rules, Some(&proof(None, &["other", "A.Edge", "b.edge"]))).as_deref(), Some("a"));
    assert_eq!(key(&rules, Some(&proof(Some("spiffe://a/b"), &["a.edge"]))).as_deref(), Some("spiffe://a/b"));
    assert_eq!(key(&rules, Some(&proof(None, &["other"]))), None);
}

/// A node is the client's word: one that claims the key of another must not lend that its own node.
#[test]
fn r_relay_01_clients_that_prove_different_things_are_in_different_groups_of_clients_nodes() {
    let proof = |id: Option<&str>, subject: &str, dns: &[&str]| Certificate {
        spiffe_id: id.map(Into::into),
        dns_names: dns.iter().map(|name| (*name).into()).collect(),
        subject: subject.into(),
    };
    let victim = node("sidecar~v");
    let proofs = [
        None,
        Some(proof(Some("spiffe://m/a"), "CN=a", &["a"])),
        Some(proof(Some("spiffe://m/b"), "CN=a", &["a"])),
        Some(proof(None, "CN=a", &[])),
        Some(proof(None, "CN=b", &[])),
        Some(proof(None, "", &["a"])),
        Some(proof(None, "", &["b"])),
    ];
    let matches = [("node.id", "sidecar~.*")];
    let rules = one(spec(&matches, Some("${node.id}"), None));
    let texts: Vec<String> = proofs
        .iter()
        .map(|proof| group(&rules, &victim, proof.as_ref()).expect("a group").key.text().to_owned())
        .collect();
    let expected = [
        "sidecar~v",
        "sidecar~v (spiffe://m/a)",
        "sidecar~v (spiffe://m/b)",
        "sidecar~v (CN=a)",
        "sidecar~v (CN=b)",
        "sidecar~v (a)",
        "sidecar~v (b)",
    ];
    assert_eq!(texts, expected);
    // Text of the key that looks like an identity makes no group of one that has it.
    let key = |id: &str, proof: Option<&Certificate>| group(&rules, &node(id), proof).expect("a group").key;
    let claimed = key("sidecar~v (spiffe://m/a)", None);
    assert_eq!(claimed.text(), expected[1]);
    assert_ne!(claimed, key("sidecar~v", proofs[1].as_ref()));
    // Identities have the bound of all values.
    let long = proof(None, &"C".repeat(LIMIT + 1), &[]);
    assert_eq!(rules.place(&victim, Some(&long)), Ok(None));
    let (_, outcome) = rules.outcomes(&victim, Some(&long)).next().expect("a rule");
    assert!(!outcome.matches());
    // A node that the relay makes is nobody's word.
    let made = one(spec(&matches, Some("${node.id}"), with_id("${node.id}")));
    let made_for = |proof| group(&made, &victim, proof).expect("a group");
    assert_eq!(made_for(None), made_for(proofs[1].as_ref()));
}

#[test]
fn r_relay_01_a_key_may_say_which_part_of_what_clients_prove_counts() {
    let proof = |id: &str| Certificate { spiffe_id: Some(id.into()), ..Certificate::default() };
    let (a, b, other) =
        (proof("spiffe://m/ns/edge/a"), proof("spiffe://m/ns/edge/b"), proof("spiffe://m/ns/x/a"));
    let text = |matches: &[(&str, &str)], key, proof| {
        let rules = one(spec(matches, Some(key), None));
        group(&rules, &node("n"), Some(proof)).expect("a group").key.text().to_owned()
    };
    let named = [("node.id", "n"), ("peer.spiffe_id", "spiffe://m/ns/(?P<ns>[^/]+)/.*")];
    assert_eq!(text(&named, "${ns}", &a), "edge");
    assert_eq!(text(&named, "${ns}", &b), "edge");
    assert_eq!(text(&named, "${ns}", &other), "x");
    // A pattern alone tells none of those apart that match it.
    assert_eq!(text(&named, "${node.id}", &a), "n (spiffe://m/ns/edge/a)");
    assert_eq!(text(&named, "", &b), "(spiffe://m/ns/edge/b)");
}

#[test]
fn people_are_told_why_a_rule_does_not_match() {
    let matches = [("node.id", "a"), ("node.cluster", "b"), ("peer.san", "c"), ("node.metadata.n", "1")];
    let rules = one(spec(&matches, None, None));
    let client = Node { metadata: metadata(json!({"n": null})), cluster: "b".to_owned(), ..node("x") };
    let (rule, outcome) = rules.outcomes(&client, None).next().expect("a rule");
    assert_eq!(&**rule.name(), "edge");
    assert!(!outcome.matches());
    let told: Vec<_> = outcome
        .conditions
        .iter()
        .map(|(condition, result)| {
            (condition.key.to_string(), condition.pattern(), result.as_deref().map_err(|why| *why))
        })
        .collect();
    let expected = [
        ("node.id".to_owned(), "a", Err(Missing::NoMatch)),
        ("node.cluster".to_owned(), "b", Ok("b")),
        ("peer.san".to_owned(), "c", Err(Missing::NotSet)),
        ("node.metadata.n".to_owned(), "1", Err(Missing::NoText)),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_rule_is_refused_with_all_of_its_faults() {
    let fault = |spec: RuleSpec<'_>| {
        let faults = Rule::new(spec).expect_err("a fault").into_iter();
        let texts = faults.map(|fault| format!("`{}`: {}", fault.path.join("."), fault.problem));
        texts.collect::<Vec<_>>().join("; ")
    };
    let id = [("node.id", "(?P<a>.)(?P<b>.)")];
    for (matches, key, node, expected) in [
        (
            &id[..],
            Some("${c}"),
            "x",
            "`key`: `${c}` is no value; groups in `match` are a, b; fields are written as in ${node.id}",
        ),
        (
            &[("node.id", "(.*)")],
            Some("${1}"),
            "x",
            "`key`: `${1}` is no value: no pattern in `match` has a named group, as in (?P<name>.*); fields are written as in ${node.id}",
        ),
        (
            &id,
            Some("${peer.san}"),
            "x",
            "`key`: `${peer.san}` has several values; name a group in its pattern in `match`, as in (?P<name>.*)",
        ),
        (
            &id,
            Some("${a}"),
            "${b}",
            "`node.id`: `${b}` is not in `key`: clients of one group would differ in it; write it into `key` too",
        ),
        (
            &id,
            None,
            "${node.cluster}",
            "`node.id`: `${node.cluster}` is not in `key`: clients of one group would differ in it; write it into `key` too",
        ),
        (
            &id,
            Some("$a"),
            "${a",
            "`key`: has a `$` that stands for nothing; write ${NAME} for a value, $$ for a dollar; `node.id`: has a `${` without its `}`",
        ),
        (
            &id,
            Some("a$"),
            "x",
            "`key`: has a `$` that stands for nothing; write ${NAME} for a value, $$ for a dollar",
        ),
        (
            &[("node.id", "(?P<a>.)"), ("node.cluster", "(?P<a>.)")],
            None,
            "x",
            "`match.node.cluster`: another pattern has a group `a` too; give each its own name",
        ),
        (
            &[("node.id", "(?P<a.b>.)")],
            None,
            "x",
            "`match.node.id`: the name `a.b` of a group has more than letters, digits and `_`",
        ),
    ] {
        assert_eq!(fault(spec(matches, key, with_id(node))), expected);
    }
    let made = json!({"id": "x", "cluster": "$", "locality": {"sub_zone": "$"}, "metadata": {"a": {"b": [{"c": "${x}"}]}}});
    let made = made.as_object().cloned();
    let faults = Rule::new(spec(&id, None, made)).expect_err("faults");
    let paths: Vec<String> = faults.into_iter().map(|fault| fault.path.join(".")).collect();
    assert_eq!(paths, ["node.cluster", "node.locality.sub_zone", "node.metadata.a.b.c"]);
}

/// Keys of `match` whose patterns are single letters, so that a naive reader can compare them.
const FIELDS: [&str; 4] = ["node.id", "node.cluster", "node.metadata.m", "peer.spiffe_id"];

proptest! {
    #[test]
    fn no_bytes_of_a_node_make_placing_panic(bytes: Vec<u8>, id in "\\PC{0,60}") {
        let rules = one(spec(
            &[("node.id", "(?P<a>.)?.*")],
            Some("${a}${node.metadata.a.b}${node.locality.zone}"),
            with_id("${a}"),
        ));
        _ = rules.place(&Node { id: id.clone(), metadata: bytes.clone().into(), ..Node::default() }, None);
        if let Ok(node) = Node::decode(&bytes[..]) {
            _ = rules.place(&node, None);
        }
        if let Some(place) = group(&rules, &Node { id, metadata: bytes.into(), ..Node::default() }, None) {
            prop_assert!(place.key.text().len() <= 3 * LIMIT);
        }
    }

    #[test]
    fn the_first_matching_rule_decides_as_a_naive_reader_finds(
        table in prop::collection::vec(prop::collection::vec((0..4_usize, "[ab]"), 1..3), 0..5),
        told in prop::array::uniform4(prop::option::of("[abc]")),
    ) {
        let names: Vec<String> = (0..table.len()).map(|at| format!("r{at}")).collect();
        let specs = names.iter().zip(&table).map(|(name, conditions)| RuleSpec {
            name,
            conditions: conditions.iter().map(|(field, text)| condition(FIELDS[*field], text)).collect(),
            key: None,
            node: None,
        });
        let rules = rules(specs.collect(), Unmatched::Own);
        let [id, cluster, m, spiffe] = told.clone();
        let json = m.map_or_else(|| json!({}), |m| json!({"m": m}));
        let client = Node {
            cluster: cluster.unwrap_or_default(),
            metadata: metadata(json),
            ..node(&id.unwrap_or_default())
        };
        let proof = spiffe.map(|id| Certificate { spiffe_id: Some(id.into()), ..Certificate::default() });
        let naive = table.iter().position(|conditions| {
            conditions.iter().all(|(field, text)| told[*field].as_ref() == Some(text))
        });
        let place = group(&rules, &client, proof.as_ref());
        prop_assert_eq!(place.map(|place| place.rule), naive);
        let outcomes = rules.outcomes(&client, proof.as_ref());
        prop_assert_eq!(outcomes.map(|(_, outcome)| outcome.matches()).position(|matches| matches), naive);
    }

    /// Also through the wire, and whatever else differs.
    #[test]
    fn equal_nodes_give_equal_keys_and_a_key_gives_one_node(
        id in "[ab]{1,3}-[ab]{1,3}",
        other in "[ab]{1,3}-[ab]{1,3}",
        agent in "[ab]",
    ) {
        let rules = one(spec(
            &[("node.id", "(?P<x>.*)-(?P<y>.*)")],
            Some("${x}-${y}"),
            with_id("${y}:${x}"),
        ));
        let first = group(&rules, &node(&id), None).expect("a group");
        let again = Node::decode(&node(&id).encode_to_vec()[..]).expect("a node");
        prop_assert_eq!(&group(&rules, &again, None).expect("a group"), &first);
        let second = Node { user_agent_name: agent, ..node(&other) };
        let second = group(&rules, &second, None).expect("a group");
        prop_assert_eq!(second.key == first.key, other == id);
        prop_assert_eq!(rules.node(&second) == rules.node(&first), second.key == first.key);
    }
}
