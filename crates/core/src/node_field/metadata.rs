//! Single values of a node's metadata, found without decoding the rest of it.
//!
//! Metadata is a `google.protobuf.Struct`, which a client can make to be dozens of times as large in memory as on the wire.
//! So it stays the bytes that came, and what a rule names is looked for in them: no recursion, no memory. Bytes that are
//! no such message say nothing.

use std::borrow::Cow;

use super::Missing;
use crate::resource::wire::{self, Value};

/// `Struct.fields`, and the parts of its entries.
const FIELDS: u32 = 1;
const ENTRY_KEY: u32 = 1;
const ENTRY_VALUE: u32 = 2;
/// The kinds of a `Value`.
const NULL: u32 = 1;
const NUMBER: u32 = 2;
const STRING: u32 = 3;
const BOOL: u32 = 4;
const STRUCT: u32 = 5;
const LIST: u32 = 6;

/// Value at a path: a text, or a number or a boolean as JSON writes it.
pub(super) fn text<'a>(metadata: &'a [u8], path: &[String]) -> Result<Cow<'a, str>, Missing> {
    let mut fields = Some(metadata);
    let mut found = None;
    for key in path {
        found = fields.and_then(|fields| lookup(fields, key)).and_then(kind);
        fields = match found {
            Some((STRUCT, Value::Bytes(inner), _)) => Some(inner),
            _ => None,
        };
    }
    let (number, value, raw) = found.ok_or(Missing::NotSaid)?;
    match (number, value) {
        (STRING, Value::Bytes(text)) => {
            std::str::from_utf8(text).map(Cow::Borrowed).map_err(|_| Missing::NoText)
        }
        (BOOL, Value::Varint(flag)) => Ok(Cow::Borrowed(if flag == 0 { "false" } else { "true" })),
        (NUMBER, Value::Fixed) => match raw.last_chunk().map(|bytes| f64::from_le_bytes(*bytes)) {
            Some(number) if number.is_finite() => Ok(Cow::Owned(canonical(number))),
            _ => Err(Missing::NoText),
        },
        _ => Err(Missing::NoText),
    }
}

/// The value of a key. Of several, as in any map of protobuf, the last counts.
fn lookup<'a>(fields: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut found = None;
    for field in wire::fields(fields) {
        let field = field.ok()?;
        let (FIELDS, Value::Bytes(entry)) = (field.number, field.value) else { continue };
        let (mut its_key, mut value) = (&[][..], &[][..]);
        for part in wire::fields(entry) {
            let part = part.ok()?;
            match (part.number, part.value) {
                (ENTRY_KEY, Value::Bytes(bytes)) => its_key = bytes,
                (ENTRY_VALUE, Value::Bytes(bytes)) => value = bytes,
                _ => {}
            }
        }
        if its_key == key.as_bytes() {
            found = Some(value);
        }
    }
    found
}

/// Which kind a `Value` is of, with that and its raw field. Of several the last counts.
fn kind(value: &[u8]) -> Option<(u32, Value<'_>, &[u8])> {
    let mut found = None;
    for field in wire::fields(value) {
        let field = field.ok()?;
        if (NULL..=LIST).contains(&field.number) {
            found = Some((field.number, field.value, field.raw));
        }
    }
    found
}

/// The shortest decimal that reads back as the same number, without an exponent: `1`, not `1.0` or `1e0`.
fn canonical(number: f64) -> String {
    // Zero has one spelling.
    if number == 0.0 { "0".to_owned() } else { number.to_string() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use serde_json::json;

    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn r_dp_17_a_value_is_found_among_many_that_are_not_decoded() {
        let metadata = json!({
            "env": "prod", "n": 1.5, "on": true, "off": false, "none": null, "list": [1, {"env": "no"}],
            "deep": {"env": {"name": "x"}, "list": []},
        });
        let encoded = crate::proto::structure(metadata.as_object().expect("an object")).encode_to_vec();
        for (at, expected) in [
            ("env", Ok("prod")),
            ("n", Ok("1.5")),
            ("on", Ok("true")),
            ("off", Ok("false")),
            ("none", Err(Missing::NoText)),
            ("list", Err(Missing::NoText)),
            ("list.env", Err(Missing::NotSaid)),
            ("deep", Err(Missing::NoText)),
            ("deep.env.name", Ok("x")),
            ("deep.env.other", Err(Missing::NotSaid)),
            ("env.name", Err(Missing::NotSaid)),
            ("", Err(Missing::NotSaid)),
        ] {
            assert_eq!(text(&encoded, &path(at)).as_deref(), expected.as_ref().copied(), "{at}");
        }
        // A map is sent in any order, and the last of a key counts.
        let twice = [
            &encoded[..],
            &crate::proto::structure(json!({"env": "last"}).as_object().expect("an object")).encode_to_vec(),
        ]
        .concat();
        assert_eq!(text(&twice, &path("env")).as_deref(), Ok("last"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, at in "[ab.]{0,4}") {
            _ = text(&bytes, &path(&at));
        }
    }
}
