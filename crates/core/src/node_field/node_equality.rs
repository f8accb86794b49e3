//! Equality of encoded nodes.
//!
//! Protobuf maps have no order: an Envoy writes the same metadata in another order on each stream.
//! So maps, and the fields of the node itself, are sorted. All else is compared as it came, with
//! unknown fields.

use bytes::{BufMut as _, BytesMut};

use super::metadata::{ENTRY_VALUE, FIELDS, LIST, STRUCT};
use crate::resource::wire::{self, Value};

/// `Node.metadata`
const METADATA: u32 = 3;
/// `Node.user_agent_build_version`, and `BuildVersion.metadata`
const BUILD: u32 = 8;
const BUILD_METADATA: u32 = 2;
/// `Node.dynamic_parameters`: a map to `ContextParams`, which are a map.
const PARAMETERS: u32 = 12;
/// Most levels of nested structs that are sorted. Deeper ones are compared as they came.
const DEPTH: u32 = 32;

/// Whether two encoded nodes are equal, in any order of their metadata.
pub fn are_same_nodes(one: &[u8], other: &[u8]) -> bool {
    one == other || canonical_node(one) == canonical_node(other)
}

fn canonical_node(node: &[u8]) -> BytesMut {
    let in_field = |number, other: &dyn Fn(&[u8]) -> BytesMut, message: &[u8]| {
        canonical(message, |field, value| (field == number).then(|| other(value)))
    };
    let structure = |value: &[u8]| canonical_struct(value, DEPTH);
    sorted(node, |field, value| match field {
        METADATA => Some(structure(value)),
        BUILD => Some(in_field(BUILD_METADATA, &structure, value)),
        PARAMETERS => Some(in_field(ENTRY_VALUE, &|params| sorted(params, |_, _| None), value)),
        _ => None,
    })
}

fn canonical_struct(fields: &[u8], depth: u32) -> BytesMut {
    sorted(fields, |field, entry| {
        let value = |field, value: &[u8]| (field == ENTRY_VALUE).then(|| canonical_value(value, depth));
        (field == FIELDS).then(|| canonical(entry, value))
    })
}

fn canonical_value(value: &[u8], depth: u32) -> BytesMut {
    let Some(depth) = depth.checked_sub(1) else { return value.into() };
    canonical(value, |kind, value| match kind {
        STRUCT => Some(canonical_struct(value, depth)),
        LIST => Some(canonical(value, |_, value| Some(canonical_value(value, depth)))),
        _ => None,
    })
}

/// Message with some fields replaced. Malformed bytes stay as they are.
fn canonical(message: &[u8], other: impl Fn(u32, &[u8]) -> Option<BytesMut>) -> BytesMut {
    parts(message, other).map_or_else(|| message.into(), |parts| put(parts.iter()))
}

/// Canonical form with sorted fields.
fn sorted(message: &[u8], other: impl Fn(u32, &[u8]) -> Option<BytesMut>) -> BytesMut {
    let Some(mut parts) = parts(message, other) else { return message.into() };
    parts.sort_unstable();
    put(parts.iter())
}

fn parts(message: &[u8], other: impl Fn(u32, &[u8]) -> Option<BytesMut>) -> Option<Vec<BytesMut>> {
    wire::fields(message)
        .map(|field| {
            let field = field.ok()?;
            let Value::Bytes(bytes) = field.value else { return Some(field.raw.into()) };
            Some(other(field.number, bytes).map_or_else(
                || field.raw.into(),
                |bytes| {
                    let mut out = BytesMut::new();
                    out.put_u32(field.number);
                    out.unsplit(put([bytes].iter()));
                    out
                },
            ))
        })
        .collect()
}

/// Joins parts with their lengths, so that none can be taken for another.
fn put<'p>(parts: impl Iterator<Item = &'p BytesMut>) -> BytesMut {
    let mut out = BytesMut::new();
    for part in parts {
        out.put_u64(part.len() as u64);
        out.extend_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::wire::field;

    fn entry(key: &str, value: &[u8]) -> Vec<u8> {
        field(1, &[field(1, key.as_bytes()), field(2, value)].concat())
    }

    fn text(text: &str) -> Vec<u8> {
        field(3, text.as_bytes())
    }

    fn node(id: &str, metadata: &[Vec<u8>]) -> Vec<u8> {
        [field(1, id.as_bytes()), field(3, &metadata.concat()), field(6, b"envoy")].concat()
    }

    #[test]
    fn metadata_has_no_order() {
        let nested = |first: &str, second: &str| {
            field(5, &[entry(first, &text("1")), entry(second, &text("2"))].concat())
        };
        let list = |one: &str, other: &str| {
            let item =
                |key: &str| field(1, &field(5, &[entry(key, &text("x")), entry("z", &text("y"))].concat()));
            field(6, &[item(one), item(other)].concat())
        };
        let (labels, swapped) = (
            field(5, &[entry("a", &text("1")), entry("b", &text("2"))].concat()),
            field(5, &[entry("b", &text("2")), entry("a", &text("1"))].concat()),
        );
        let one =
            node("n", &[entry("labels", &labels), entry("list", &list("p", "q")), entry("v", &text("1"))]);
        let same =
            node("n", &[entry("v", &text("1")), entry("list", &list("p", "q")), entry("labels", &swapped)]);
        assert!(one != same && are_same_nodes(&one, &same));
        let build = |metadata: &[Vec<u8>]| field(8, &field(2, &metadata.concat()));
        let parameters = |first: &str, second: &str| {
            let params = [entry(first, b"1"), entry(second, b"1")].concat();
            [entry("type", &params), entry("a type", b"")].map(|entry| field(12, &entry[2..]))
        };
        let (a, b) = (entry("a", &text("1")), entry("b", &text("2")));
        let [first, second] = parameters("p", "q");
        let more = [one.clone(), build(&[a.clone(), b.clone()]), first, second].concat();
        let [first, second] = parameters("q", "p");
        let same = [one.clone(), build(&[b, a]), second, first].concat();
        assert!(more != same && are_same_nodes(&more, &same) && !are_same_nodes(&one, &more));
        for other in [
            node("m", &[entry("labels", &labels), entry("list", &list("p", "q")), entry("v", &text("1"))]),
            node("n", &[entry("labels", &labels), entry("list", &list("q", "p")), entry("v", &text("1"))]),
            node("n", &[entry("labels", &labels), entry("list", &list("p", "q")), entry("v", &text("2"))]),
            node(
                "n",
                &[entry("labels", &nested("b", "a")), entry("list", &list("p", "q")), entry("v", &text("1"))],
            ),
            [
                node(
                    "n",
                    &[entry("labels", &labels), entry("list", &list("p", "q")), entry("v", &text("1"))],
                ),
                field(15, b"x"),
            ]
            .concat(),
        ] {
            assert!(!are_same_nodes(&one, &other));
        }
    }

    #[test]
    fn no_bytes_are_too_odd() {
        let mut deep = text("x");
        for _ in 0..10_000 {
            deep = field(5, &entry("a", &deep));
        }
        let odd = [node("n", &[entry("a", &deep)]), node("n", &[vec![0xff; 9]]), vec![0xff; 9], vec![]];
        for (at, one) in odd.iter().enumerate() {
            assert!(odd.iter().enumerate().all(|(other, node)| are_same_nodes(one, node) == (at == other)));
        }
    }
}
