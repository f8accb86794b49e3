//! Single values of a node's metadata, read without decoding the rest.
//!
//! Metadata is a `google.protobuf.Struct`, which can take dozens of times its size on the wire once
//! decoded. So it stays bytes, and one pass finds the values of all paths. The cost depends on the
//! size of the metadata, not on the number of rules. Recursion is as deep as the longest path.
//! Malformed bytes have no values.

use std::borrow::Cow;

use foldhash::{HashMap, HashMapExt as _};

use crate::resource::wire::{self, Value};

/// `Struct.fields`, and the parts of its entries.
const FIELDS: u32 = 1;
const ENTRY_KEY: u32 = 1;
const ENTRY_VALUE: u32 = 2;
/// Kinds of a `Value`.
const NULL: u32 = 1;
const NUMBER: u32 = 2;
const STRING: u32 = 3;
const BOOL: u32 = 4;
const STRUCT: u32 = 5;
const LIST: u32 = 6;

/// Values of paths, in the order of the paths.
pub(super) type Values<'a> = Vec<Result<Cow<'a, str>, Missing>>;

/// Values at sorted paths, of at most `limit` bytes each.
pub(super) fn values<'a>(paths: &[Vec<String>], metadata: &'a [u8], limit: usize) -> Values<'a> {
    let mut values = vec![Err(Missing::NotSet); paths.len()];
    if !paths.is_empty() {
        read(paths, 0, metadata, limit, &mut values);
    }
    values
}

/// Reads the values in the fields of a `Struct`. The first `depth` keys of the paths lead to it. The last value of a repeated
/// key counts, as in any protobuf map.
fn read<'a>(
    paths: &[Vec<String>],
    depth: usize,
    fields: &'a [u8],
    limit: usize,
    values: &mut [Result<Cow<'a, str>, Missing>],
) {
    let key_of = |at: usize| paths[at].get(depth).map(String::as_bytes);
    // By the first path with the key.
    let mut found = HashMap::<usize, &'a [u8]>::new();
    for field in wire::fields(fields) {
        let Ok(field) = field else { return };
        let (FIELDS, Value::Bytes(entry)) = (field.number, field.value) else { continue };
        let (mut key, mut value) = (&[][..], &[][..]);
        for part in wire::fields(entry) {
            let Ok(part) = part else { return };
            match (part.number, part.value) {
                (ENTRY_KEY, Value::Bytes(bytes)) => key = bytes,
                (ENTRY_VALUE, Value::Bytes(bytes)) => value = bytes,
                _ => {}
            }
        }
        let is_before = |path: &Vec<String>| path.get(depth).is_none_or(|known| known.as_bytes() < key);
        let first = paths.partition_point(is_before);
        if first < paths.len() && key_of(first) == Some(key) {
            found.insert(first, value);
        }
    }
    for (first, value) in found {
        let Some(value) = kind(value) else { continue };
        let end = (first..paths.len()).find(|at| key_of(*at) != key_of(first)).unwrap_or(paths.len());
        let (paths, values) = (&paths[first..end], &mut values[first..end]);
        if paths[0].len() == depth + 1 {
            values[0] = text(value).and_then(|text| bounded(text, limit));
        }
        if let (STRUCT, Value::Bytes(inner), _) = value
            && paths.iter().any(|path| path.len() > depth + 1)
        {
            read(paths, depth + 1, inner, limit, values);
        }
    }
}

/// Value as text: a string, or a number or boolean as in JSON.
fn text<'a>((number, value, raw): (u32, Value<'a>, &[u8])) -> Result<Cow<'a, str>, Missing> {
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

/// Kind of a `Value`, with its value and raw field. The last field counts.
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

/// Shortest decimal that reads back as the same number, without an exponent: `1`, not `1.0` or
/// `1e0`.
fn canonical(number: f64) -> String {
    // Zero has one spelling.
    if number == 0.0 { "0".to_owned() } else { number.to_string() }
}

/// Reason why a node has no value for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Missing or empty.
    NotSet,
    /// Null, a list, an object, or a number that is not finite.
    NoText,
    TooLong,
    /// The pattern does not match, or its value group takes no part in the match.
    NoMatch,
}

/// Checks the length of a value.
pub(super) fn bounded(value: Cow<'_, str>, limit: usize) -> Result<Cow<'_, str>, Missing> {
    if value.len() > limit { Err(Missing::TooLong) } else { Ok(value) }
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

    /// Value at the last of these paths, when all are looked for.
    fn value<'a>(metadata: &'a [u8], at: &[&str]) -> Result<Cow<'a, str>, Missing> {
        let paths: std::collections::BTreeSet<_> = at.iter().map(|at| path(at)).collect();
        let paths: Vec<_> = paths.into_iter().collect();
        let index = paths.binary_search(&path(at.last().expect("a path"))).expect("it is there");
        values(&paths, metadata, usize::MAX)[index].clone()
    }

    #[test]
    fn r_dp_17_a_value_is_found_among_many_that_are_not_decoded() {
        let metadata = json!({
            "env": "prod", "n": 1.5, "on": true, "off": false, "none": null, "list": [1, {"env": "no"}],
            "deep": {"env": {"name": "x"}, "list": []},
        });
        let encoded = crate::proto::structure(metadata.as_object().expect("an object")).encode_to_vec();
        let paths = [
            ("env", Ok("prod")),
            ("n", Ok("1.5")),
            ("on", Ok("true")),
            ("off", Ok("false")),
            ("none", Err(Missing::NoText)),
            ("list", Err(Missing::NoText)),
            ("list.env", Err(Missing::NotSet)),
            ("deep", Err(Missing::NoText)),
            ("deep.env.name", Ok("x")),
            ("deep.env.other", Err(Missing::NotSet)),
            ("env.name", Err(Missing::NotSet)),
            ("", Err(Missing::NotSet)),
        ];
        for (at, expected) in paths {
            assert_eq!(value(&encoded, &[at]).as_deref(), expected.as_ref().copied(), "{at}");
            let all: Vec<&str> = paths.iter().map(|(other, _)| *other).chain([at]).collect();
            assert_eq!(value(&encoded, &all).as_deref(), expected.as_ref().copied(), "{at} among all");
        }
        // A map is sent in any order, and the last of a key counts.
        let twice = [
            &encoded[..],
            &crate::proto::structure(json!({"env": "last"}).as_object().expect("an object")).encode_to_vec(),
        ]
        .concat();
        assert_eq!(value(&twice, &["deep.env.name", "env"]).as_deref(), Ok("last"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, at in "[ab.]{0,4}") {
            _ = value(&bytes, &["a", "a.b", &at]);
        }
    }
}
