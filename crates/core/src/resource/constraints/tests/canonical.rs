//! One value and one encoding for all spellings of the same constraints, and never one for two meanings.

use std::collections::HashSet;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::super::{ConstraintError, Constraints, MAX_NODES};
use super::{Raw, any_raw, exists, matches, not, value};
use crate::resource::Parameters;

/// An equivalent spelling: lists shuffled, repeated, nested in their like, a constraint put in a list of its own, or negated
/// twice.
fn respelled(raw: &Raw, rng: &mut StdRng) -> Raw {
    let list = |parts: &[Raw], of: fn(Vec<Raw>) -> Raw, rng: &mut StdRng| {
        let mut parts: Vec<Raw> = parts.iter().map(|part| respelled(part, rng)).collect();
        if let Some(again) = parts.get(rng.random_range(0..=parts.len())).cloned() {
            parts.push(again);
        }
        parts.shuffle(rng);
        if rng.random_bool(0.3) {
            let inner = parts.split_off(rng.random_range(0..=parts.len()));
            parts.insert(0, of(inner));
        }
        of(parts)
    };
    let same = match raw {
        Raw::Or(parts) => list(parts, Raw::Or, rng),
        Raw::And(parts) => list(parts, Raw::And, rng),
        Raw::Not(part) => not(respelled(part, rng)),
        single => single.clone(),
    };
    match rng.random_range(0..12_u8) {
        0 => not(not(same)),
        1 => Raw::Or(vec![same]),
        2 => Raw::And(vec![same]),
        _ => same,
    }
}

/// Something near to it that is likely to mean another thing.
fn altered(raw: &Raw, rng: &mut StdRng) -> Raw {
    let hit = rng.random_bool(0.2);
    let parts = |parts: &[Raw], rng: &mut StdRng| {
        let kept = if rng.random_bool(0.1) { parts.len().saturating_sub(1) } else { parts.len() };
        parts[..kept].iter().map(|part| altered(part, rng)).collect()
    };
    match raw {
        Raw::Unset if hit => not(Raw::Unset),
        Raw::Unset => Raw::Unset,
        Raw::Value(key, _) if hit => exists(key),
        Raw::Value(key, wanted) => value(key, wanted),
        Raw::Exists(key) if hit => value(key, ""),
        Raw::Exists(key) => exists(key),
        Raw::Or(list) if hit => Raw::And(parts(list, rng)),
        Raw::Or(list) => Raw::Or(parts(list, rng)),
        Raw::And(list) if hit => Raw::Or(parts(list, rng)),
        Raw::And(list) => Raw::And(parts(list, rng)),
        Raw::Not(part) if hit => altered(part, rng),
        Raw::Not(part) => not(altered(part, rng)),
    }
}

/// All clients that can be told apart by two keys and these values.
fn clients() -> Vec<Parameters> {
    let values = [None, Some(""), Some("x"), Some("X")];
    let pair = |key: &'static str, value: Option<&'static str>| value.map(|value| (key, value));
    values
        .iter()
        .flat_map(|a| values.iter().map(move |b| pair("a", *a).into_iter().chain(pair("", *b)).collect()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn r_dp_06_another_spelling_is_the_same_identity(raw in any_raw(), seed: u64) {
        let other = respelled(&raw, &mut StdRng::seed_from_u64(seed));
        let spelled = match Constraints::parse(&other.encode()) {
            // The additions of a spelling may be too much; that is for others to test.
            Err(ConstraintError::TooDeep | ConstraintError::TooMany) => return Ok(()),
            spelled => spelled.unwrap(),
        };
        let plain = raw.parse();
        prop_assert_eq!(&plain, &spelled, "{:?}", other);
        prop_assert_eq!(plain.map(|plain| plain.encoded().clone()), spelled.map(|other| other.encoded().clone()));
    }

    #[test]
    fn r_dp_06_the_encoding_reads_back_as_the_same_value(raw in any_raw()) {
        let Some(constraints) = raw.parse() else { return Ok(()) };
        let again = Constraints::parse(constraints.encoded()).unwrap().unwrap();
        prop_assert_eq!(&constraints, &again);
        prop_assert_eq!(constraints.encoded(), again.encoded());
        // And a reader that uses Envoy's descriptors takes it to mean the same.
        let decoded = Raw::decode(constraints.encoded()).unwrap();
        for client in clients() {
            let pairs: Vec<(String, String)> =
                client.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            prop_assert_eq!(decoded.matches(&pairs), raw.matches(&pairs));
        }
    }

    #[test]
    fn r_dp_06_constraints_that_match_differently_are_never_the_same(raw in any_raw(), seed: u64) {
        let other = altered(&raw, &mut StdRng::seed_from_u64(seed));
        let (a, b) = (raw.parse(), other.parse());
        let differ = clients().iter().any(|client| matches(a.as_ref(), client) != matches(b.as_ref(), client));
        prop_assert!(!(differ && a == b), "{a:?} and {b:?}");
    }
}

#[test]
fn r_dp_06_each_rule_of_the_canonical_form() {
    let [a, b, c] = ["a", "b", "c"].map(exists);
    let or = |parts: &[&Raw]| Raw::Or(parts.iter().map(|part| (*part).clone()).collect());
    let and = |parts: &[&Raw]| Raw::And(parts.iter().map(|part| (*part).clone()).collect());
    for (spelled, plain) in [
        (or(&[&b, &a]), or(&[&a, &b])),
        (and(&[&b, &a, &b, &b]), and(&[&a, &b])),
        (or(&[&or(&[&a, &b]), &c]), or(&[&a, &b, &c])),
        (and(&[&a, &and(&[&b, &and(&[&c])])]), and(&[&a, &b, &c])),
        (not(not(a.clone())), a.clone()),
        (not(not(not(a.clone()))), not(a.clone())),
        (or(&[&a]), a.clone()),
        (and(&[&or(&[&a, &a])]), a.clone()),
        // Lists that become alike only once what is in them is in order.
        (or(&[&and(&[&a, &b]), &and(&[&b, &a])]), and(&[&a, &b])),
        (and(&[&or(&[&and(&[&a, &b])]), &c]), and(&[&a, &b, &c])),
        (or(&[&a, &not(Raw::Unset)]), a.clone()),
        (and(&[&a, &Raw::Unset]), a.clone()),
        (or(&[&and(&[&a, &Raw::Or(vec![])]), &b]), b.clone()),
    ] {
        assert_eq!(spelled.parse(), plain.parse(), "{spelled:?}");
    }
    let different = [
        a.clone(),
        not(a.clone()),
        value("a", ""),
        value("a", "x"),
        or(&[&a, &b]),
        and(&[&a, &b]),
        or(&[&and(&[&a, &b]), &c]),
        and(&[&or(&[&a, &b]), &c]),
        not(or(&[&a, &b])),
        not(Raw::Unset),
    ];
    let found: HashSet<Constraints> = different.iter().filter_map(Raw::parse).collect();
    assert_eq!(found.len(), different.len());
}

/// R-DP-04: which of two variants counts is the same on every relay, so the order is that of the bytes.
#[test]
fn r_dp_04_constraints_are_ordered_by_their_encoding() {
    let mut all: Vec<Constraints> =
        [value("b", "x"), not(exists("a")), exists("a"), Raw::Or(vec![exists("a"), exists("b")])]
            .iter()
            .filter_map(Raw::parse)
            .collect();
    all.sort();
    let encodings: Vec<&[u8]> = all.iter().map(|constraints| &constraints.encoded()[..]).collect();
    assert!(encodings.is_sorted_by(|one, other| one < other), "{encodings:?}");
}

#[test]
fn the_largest_tree_reads_back() {
    let leaves = (0..MAX_NODES - 1).map(|number| value("key", &number.to_string())).collect();
    let constraints = Raw::Or(leaves).parse().unwrap();
    assert_eq!(Constraints::parse(constraints.encoded()), Ok(Some(constraints)));
}
