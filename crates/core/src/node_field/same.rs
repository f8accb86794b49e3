//! Whether two encoded nodes say the same.
//!
//! Maps of protobuf have no order: an Envoy that is restarted writes the same metadata in another one. All else is compared as it came,
//! with fields that nobody here knows.

use bytes::{BufMut as _, BytesMut};

use super::metadata::{ENTRY_VALUE, FIELDS, LIST, STRUCT};
use crate::resource::wire::{self, Value};

/// `Node.metadata`
const METADATA: u32 = 3;
/// Structs within structs that are looked into. Those deeper are compared as they came.
const DEPTH: u32 = 32;

/// Whether two encoded nodes say the same, in whatever order their metadata is.
pub fn are_same_nodes(one: &[u8], other: &[u8]) -> bool {
    one == other || canonical_node(one) == canonical_node(other)
}

fn canonical_node(node: &[u8]) -> BytesMut {
    canonical(node, |field, value| (field == METADATA).then(|| canonical_struct(value, DEPTH)))
}

/// Its entries in the order of their bytes.
fn canonical_struct(fields: &[u8], depth: u32) -> BytesMut {
    let mut entries: Vec<BytesMut> = wire::fields(fields)
        .map_while(Result::ok)
        .map(|entry| match entry.value {
            Value::Bytes(bytes) if entry.number == FIELDS => {
                canonical(bytes, |field, value| (field == ENTRY_VALUE).then(|| canonical_value(value, depth)))
            }
            _ => entry.raw.into(),
        })
        .collect();
    entries.sort_unstable();
    put(entries.iter())
}

fn canonical_value(value: &[u8], depth: u32) -> BytesMut {
    let Some(depth) = depth.checked_sub(1) else { return value.into() };
    canonical(value, |kind, value| match kind {
        STRUCT => Some(canonical_struct(value, depth)),
        LIST => Some(canonical(value, |_, value| Some(canonical_value(value, depth)))),
        _ => None,
    })
}

/// A message with other contents in some of its fields; bytes that are none stay as they are.
fn canonical(message: &[u8], other: impl Fn(u32, &[u8]) -> Option<BytesMut>) -> BytesMut {
    let fields: Result<Vec<BytesMut>, _> = wire::fields(message)
        .map(|field| {
            let field = field?;
            let Value::Bytes(bytes) = field.value else { return Ok(field.raw.into()) };
            Ok(other(field.number, bytes).map_or_else(
                || field.raw.into(),
                |bytes| {
                    let mut out = BytesMut::new();
                    out.put_u32(field.number);
                    out.unsplit(put([bytes].iter()));
                    out
                },
            ))
        })
        .collect();
    fields.map_or_else(|wire::MalformedError| message.into(), |fields| put(fields.iter()))
}

/// Parts with their lengths, so that none can be taken for another.
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
