//! Bytes of an origin that are no constraints: refused in bounded time, and never taken for "matches everybody".

use std::time::{Duration, Instant};

use bytes::BytesMut;
use proptest::prelude::*;

use super::super::{
    ALL_OF, ANY_OF, ConstraintError, Constraints, EXISTS, KEY, LISTED, MAX_DEPTH, MAX_NODES, NOT, SINGLE,
    VALUE,
};
use super::{Raw, any_parameters, any_raw, exists, matches, not, value};
use crate::resource::{Parameters, wire};

/// Far above what any of these takes, far below what an attack would be after.
const BOUND: Duration = Duration::from_secs(5);

fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    wire::put_header(&mut out, number, payload.len());
    out.extend_from_slice(payload);
    out.to_vec()
}

fn refused(bytes: &[u8]) -> ConstraintError {
    let start = Instant::now();
    let result = Constraints::parse(bytes);
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    result.expect_err("refused")
}

/// `levels` of fields around a field, outermost first; the lengths are worked out from the inside, so that it takes no
/// longer than it has to.
fn nested(levels: usize, numbers: &[u8], innermost: &[u8]) -> Vec<u8> {
    let mut lengths = vec![innermost.len()];
    for _ in 1..levels {
        lengths.push(wire::field_len(lengths[lengths.len() - 1]));
    }
    let mut out = BytesMut::new();
    for (at, length) in lengths.iter().rev().enumerate() {
        wire::put_header(&mut out, numbers[at % numbers.len()], *length);
    }
    out.extend_from_slice(innermost);
    out.to_vec()
}

#[test]
fn r_dp_02_depth_is_bounded() {
    let leaf = exists("a").encode();
    for kinds in [&[NOT][..], &[ANY_OF, LISTED], &[ALL_OF, LISTED], &[NOT, ANY_OF, LISTED]] {
        for levels in [MAX_DEPTH * kinds.len(), 1000, 99_999] {
            assert_eq!(
                refused(&nested(levels, kinds, &leaf)),
                ConstraintError::TooDeep,
                "{kinds:?} {levels}"
            );
        }
    }
    let deepest = |levels| (1..levels).fold(exists("a"), |inner, _| not(inner));
    assert_eq!(deepest(MAX_DEPTH).parse(), not(exists("a")).parse());
    assert_eq!(refused(&deepest(MAX_DEPTH + 1).encode()), ConstraintError::TooDeep);
    let listed = |levels| (1..levels).fold(exists("a"), |inner, _| Raw::Or(vec![inner, exists("b")]));
    assert!(listed(MAX_DEPTH).parse().is_some());
    assert_eq!(refused(&listed(MAX_DEPTH + 1).encode()), ConstraintError::TooDeep);
}

#[test]
fn r_dp_02_the_number_of_constraints_is_bounded() {
    for part in [Raw::Unset, exists("a"), Raw::And(vec![]), not(Raw::Unset)] {
        let listed = field(LISTED, &part.encode());
        let megabyte = listed.repeat((1 << 20) / listed.len());
        for kind in [ANY_OF, ALL_OF] {
            assert_eq!(refused(&field(kind, &megabyte)), ConstraintError::TooMany, "{part:?}");
        }
    }
    let flat = |count| Raw::And(vec![exists("a"); count]);
    assert_eq!(flat(MAX_NODES - 1).parse(), exists("a").parse());
    assert_eq!(refused(&flat(MAX_NODES).encode()), ConstraintError::TooMany);
    // Counted over the whole tree, not for each list.
    let halves = Raw::Or(vec![flat(MAX_NODES / 2), flat(MAX_NODES / 2)]);
    assert_eq!(refused(&halves.encode()), ConstraintError::TooMany);
}

/// As many and as deep as is allowed, with keys that differ in their last byte only: sorting compares them in full.
#[test]
fn constraints_that_are_costly_to_bring_into_order_take_bounded_time() {
    let long = "k".repeat(2000);
    let mut raw = exists("a");
    for level in 2..MAX_DEPTH {
        let wide = (0..30).map(|number| value(&format!("{long}{number}"), &level.to_string()));
        let parts: Vec<Raw> = wide.chain([raw]).collect();
        raw = if level % 2 == 0 { Raw::Or(parts) } else { Raw::And(parts) };
    }
    let bytes = raw.encode();
    assert!(bytes.len() > 1 << 20);
    let start = Instant::now();
    let constraints = Constraints::parse(&bytes).unwrap().unwrap();
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    assert!(!constraints.matches(&Parameters::NONE));
}

#[test]
fn r_dp_02_a_constraint_without_a_kind_is_refused_at_any_depth() {
    let no_kind = [field(SINGLE, &[]), field(SINGLE, &field(KEY, b"env"))];
    for single in &no_kind {
        assert_eq!(refused(single), ConstraintError::NoKind);
        for around in [field(NOT, single), field(ANY_OF, &field(LISTED, single))] {
            assert_eq!(refused(&around), ConstraintError::NoKind);
        }
        // Next to what would decide the list alone.
        let everybody = field(LISTED, &[]);
        let list = [everybody, field(LISTED, single)].concat();
        assert_eq!(refused(&field(ANY_OF, &list)), ConstraintError::NoKind);
    }
}

/// A kind that a later version may know is no reason to match everybody.
#[test]
fn r_dp_02_constraints_that_are_not_understood_are_refused() {
    let [single, other] = [exists("a"), value("b", "x")].map(|raw| raw.encode());
    let key = field(KEY, b"a");
    let exists = field(EXISTS, &[]);
    let text = field(VALUE, b"x");
    for bytes in [
        // Unknown kinds, alone and beside a known one.
        field(5, &[]),
        field(15, &single),
        [&single[..], &field(5, &[])].concat(),
        [&field(5, &[]), &single[..]].concat(),
        b"\xfa\x7f\x00".to_vec(),
        // Two kinds at once, or one twice.
        [&single[..], &other].concat(),
        [&single[..], &single].concat(),
        [&single[..], &field(ANY_OF, &[])].concat(),
        [field(ANY_OF, &[]), field(ALL_OF, &[])].concat(),
        // Unknown or repeated kinds in a list and in a single constraint.
        field(ANY_OF, &field(2, &single)),
        field(ALL_OF, &[field(LISTED, &single), field(2, &[])].concat()),
        field(SINGLE, &[&key[..], &exists, &text].concat()),
        field(SINGLE, &[&key[..], &text, &text].concat()),
        field(SINGLE, &[&key[..], &key, &exists].concat()),
        field(SINGLE, &[&key[..], &exists, &field(4, &[])].concat()),
        field(SINGLE, &[&key[..], &field(EXISTS, &field(1, &[]))].concat()),
        // Other wire types, and what is no text.
        vec![NOT << 3, 1],
        vec![(NOT << 3) | 5, 0, 0, 0, 0],
        vec![(NOT << 3) | 3],
        vec![0x02, 0],
        field(SINGLE, &[&key[..], &[VALUE << 3, 1]].concat()),
        field(SINGLE, &[&field(KEY, b"\xff")[..], &exists].concat()),
        field(SINGLE, &[&key[..], &field(VALUE, b"\xc3")].concat()),
    ] {
        for bytes in [field(NOT, &field(NOT, &bytes)), field(ANY_OF, &field(LISTED, &bytes)), bytes] {
            assert_eq!(refused(&bytes), ConstraintError::Malformed, "{bytes:?}");
        }
    }
    let long = field(KEY, &[b'k'; 1 << 20]);
    assert_eq!(refused(&field(SINGLE, &long)), ConstraintError::NoKind);
    assert_eq!(refused(&field(SINGLE, &field(KEY, b"").repeat(1 << 19))), ConstraintError::Malformed);
}

/// If it is accepted, it means to us what it means by Envoy's descriptors.
fn is_refused_or_understood(bytes: &[u8], pairs: &[(String, String)]) -> Result<(), TestCaseError> {
    let Ok(parsed) = Constraints::parse(bytes) else { return Ok(()) };
    let Some(raw) = Raw::decode(bytes) else {
        return Err(TestCaseError::fail(format!("{bytes:?} was taken for {parsed:?}")));
    };
    prop_assert_eq!(matches(parsed.as_ref(), &pairs.iter().cloned().collect()), raw.matches(pairs));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn arbitrary_bytes_are_refused_or_understood(bytes: Vec<u8>, pairs in any_parameters()) {
        is_refused_or_understood(&bytes, &pairs)?;
        is_refused_or_understood(&field(NOT, &bytes), &pairs)?;
        is_refused_or_understood(&field(ANY_OF, &field(LISTED, &bytes)), &pairs)?;
    }

    #[test]
    fn damaged_bytes_are_refused_or_understood(
        raw in any_raw(), at: prop::sample::Index, byte: u8, pairs in any_parameters(),
    ) {
        let mut bytes = raw.encode();
        if bytes.is_empty() {
            return Ok(());
        }
        let at = at.index(bytes.len());
        // Cut anywhere but before the first byte, it is refused: only nothing at all constrains nothing.
        if at > 0 {
            prop_assert!(Constraints::parse(&bytes[..at]).is_err(), "{raw:?} cut at {at}");
        }
        bytes[at] = byte;
        is_refused_or_understood(&bytes, &pairs)?;
        bytes.remove(at);
        is_refused_or_understood(&bytes, &pairs)?;
    }
}
