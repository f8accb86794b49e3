//! Estimate of the memory of a message as a tree, from its bytes.
//!
//! The library decodes a message into a tree before it writes JSON. An empty message of two bytes
//! takes some 130 there: 12 MB of these took 790 MB. The estimate takes no memory, so that such a
//! message is refused before it is decoded.

use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};

use super::{ANY, MAX_DEPTH, message_in, message_name};
use crate::resource::wire;

/// With its place in a list or map.
const VALUE: usize = 130;

/// Size with all nested ones. Malformed or too deep parts are refused anyway.
pub(super) fn of_any(pool: &DescriptorPool, any: &[u8]) -> usize {
    inside_any(pool, any, 0)
}

fn inside_any(pool: &DescriptorPool, any: &[u8], depth: usize) -> usize {
    let (mut inner, mut value) = (None, &[][..]);
    for field in wire::fields(any).map_while(Result::ok) {
        match (field.number, field.text(), field.bytes()) {
            (1, Ok(type_url), _) => {
                inner = message_name(type_url).and_then(|name| message_in(pool, name)).ok()
            }
            (2, _, Ok(bytes)) => value = bytes,
            _ => {}
        }
    }
    any.len() + VALUE + inner.map_or(0, |inner| of_message(&inner, value, depth + 1))
}

fn of_message(message: &MessageDescriptor, bytes: &[u8], depth: usize) -> usize {
    if depth > MAX_DEPTH {
        return 0;
    }
    if message.full_name() == ANY {
        return inside_any(message.parent_pool(), bytes, depth);
    }
    let mut size = bytes.len();
    for field in wire::fields(bytes).map_while(Result::ok) {
        size += VALUE;
        let (Some(known), Ok(inner)) = (message.get_field(field.number), field.bytes()) else { continue };
        size += match known.kind() {
            Kind::Message(of) => of_message(&of, inner, depth + 1),
            Kind::String | Kind::Bytes => 0,
            // Packed: each byte may be a number.
            _ => inner.len() * VALUE,
        };
    }
    size
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::Any;

    use super::super::{DescriptorError, Descriptors, pool};
    use super::*;

    fn cluster(value: Vec<u8>) -> Vec<u8> {
        let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
        Any { type_url, value }.encode_to_vec()
    }

    #[test]
    fn empty_messages_count_as_what_they_take_and_are_refused_before_they_do() {
        // Field 8: health checks, of two bytes each.
        let any = cluster([0x42, 0].repeat(100_000));
        let size = of_any(pool(), &any);
        assert!((60 * any.len()..80 * any.len()).contains(&size), "{size} for {}", any.len());
        let mut out = Vec::new();
        let written = Descriptors::default().write_json(&any, size - 1, &mut out);
        assert_eq!((written, out.len()), (Err(DescriptorError::TooLarge), 0));
        assert_eq!(Descriptors::default().write_json(&any, size, &mut out), Ok(()));
    }

    #[test]
    fn long_texts_count_once() {
        // Field 1: the name.
        let name = "n".repeat(100_000);
        let any = cluster([&[10, 0xa0, 0x8d, 0x06], name.as_bytes()].concat());
        let size = of_any(pool(), &any);
        assert!((any.len()..4 * any.len()).contains(&size), "{size}");
    }
}
