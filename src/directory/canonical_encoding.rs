//! Canonical encoding of a message read from text: equal texts give equal bytes, in every run and on every
//! machine. The library's maps are in hash order, which differs between runs. Versions made from such bytes
//! would change after every restart.
//!
//! Maps are written in key order. The content of an `Any` is decoded and written anew.

use prost::Message as _;
use prost_reflect::{DynamicMessage, MapKey, ReflectMessage as _, Value};

use crate::descriptors::{ANY, DescriptorError, MAX_DEPTH, any_type_url, unpack_any};
use crate::resource::wire::put_bytes;

/// Canonical bytes of the message. Fails when it nests too deep, or holds an `Any` of an unknown type.
pub(super) fn encode(message: &DynamicMessage) -> Result<Vec<u8>, DescriptorError> {
    encode_at(message, 0)
}

fn encode_at(message: &DynamicMessage, depth: usize) -> Result<Vec<u8>, DescriptorError> {
    if depth > MAX_DEPTH {
        return Err(DescriptorError::TooDeep);
    }
    if message.descriptor().full_name() == ANY {
        return encode_any(message, depth);
    }
    let mut out = Vec::new();
    for (field, value) in message.fields() {
        let number = field.number();
        match value {
            Value::Message(inner) if !field.is_group() => {
                put_bytes(&mut out, number, &encode_at(inner, depth + 1)?);
            }
            Value::List(items) if matches!(items.first(), Some(Value::Message(_))) && !field.is_group() => {
                for inner in items.iter().filter_map(Value::as_message) {
                    put_bytes(&mut out, number, &encode_at(inner, depth + 1)?);
                }
            }
            Value::Map(entries) => {
                let mut entries: Vec<(&MapKey, &Value)> = entries.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                for (key, value) in entries {
                    let Some(mut entry) = field.kind().as_message().cloned().map(DynamicMessage::new) else {
                        continue; // never: the kind of a map field is the message of its entries
                    };
                    entry.set_field_by_number(1, key.clone().into());
                    entry.set_field_by_number(2, value.clone());
                    put_bytes(&mut out, number, &encode_at(&entry, depth + 1)?);
                }
            }
            // Numbers, strings and lists of them have only one encoding.
            _ => {
                let mut single = DynamicMessage::new(message.descriptor());
                single.set_field(&field, value.clone());
                out.extend(single.encode_to_vec());
            }
        }
    }
    for (extension, value) in message.extensions() {
        let mut single = DynamicMessage::new(message.descriptor());
        single.set_extension(&extension, value.clone());
        out.extend(single.encode_to_vec());
    }
    message.unknown_fields().for_each(|field| field.encode(&mut out));
    Ok(out)
}

fn encode_any(any: &DynamicMessage, depth: usize) -> Result<Vec<u8>, DescriptorError> {
    let mut out = Vec::new();
    let type_url = any_type_url(any);
    if type_url.is_empty() && any.fields().next().is_none() {
        return Ok(out);
    }
    let value = encode_at(&unpack_any(any)?, depth + 1)?;
    put_bytes(&mut out, 1, type_url.as_bytes());
    if !value.is_empty() {
        put_bytes(&mut out, 2, &value);
    }
    Ok(out)
}
