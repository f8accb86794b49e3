//! Equality of encoded nodes.
//!
//! Protobuf maps have no order: an Envoy writes the same metadata in another order on each stream.
//! So maps are decoded, and all other fields compared as they came, also unknown ones.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::Struct;

use crate::resource::wire;

/// Fields of a node with maps in them.
#[derive(Clone, PartialEq, prost::Message)]
struct Maps {
    #[prost(message, optional, tag = "3")]
    metadata: Option<Struct>,
    #[prost(message, optional, tag = "8")]
    build: Option<BuildVersion>,
    #[prost(btree_map = "string, message", tag = "12")]
    dynamic_parameters: BTreeMap<String, ContextParams>,
}

/// `envoy.config.core.v3.BuildVersion`
#[derive(Clone, PartialEq, prost::Message)]
struct BuildVersion {
    #[prost(bytes = "vec", tag = "1")]
    version: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    metadata: Option<Struct>,
}

/// `xds.core.v3.ContextParams`
#[derive(Clone, PartialEq, prost::Message)]
struct ContextParams {
    #[prost(btree_map = "string, string", tag = "1")]
    params: BTreeMap<String, String>,
}

/// Whether two encoded nodes are equal, in any order of their metadata. Nodes that cannot be decoded are equal
/// only as they came.
pub fn are_same_nodes(one: &[u8], other: &[u8]) -> bool {
    one == other || parts(one).is_some_and(|one| parts(other) == Some(one))
}

/// The maps of a node, and its other fields in one order.
fn parts(node: &[u8]) -> Option<(Maps, Vec<&[u8]>)> {
    let mut others = Vec::new();
    for field in wire::fields(node) {
        let field = field.ok()?;
        if !matches!(field.number, 3 | 8 | 12) {
            others.push(field.raw);
        }
    }
    others.sort_unstable();
    Some((Maps::decode(node).ok()?, others))
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
