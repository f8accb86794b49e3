//! Bounds of a JSON text, checked before it is parsed.
//!
//! All nesting in JSON needs a bracket. So one count of brackets covers messages, `Struct`,
//! `Value`, `ListValue` and `Any` in any mixture, without a second count inside (CVE-2026-0994).
//! One pass, no recursion, no memory. Invalid JSON may pass; the parser finds it.

use crate::descriptors::MAX_DEPTH;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("it has more than {0} values")]
    TooMany(usize),
}

pub(super) fn check(text: &[u8], max_values: usize) -> Result<(), BoundsError> {
    let (mut depth, mut values) = (0_usize, 0_usize);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(inner) = bytes.next().filter(|inner| **inner != b'"') {
                    if *inner == b'\\' {
                        bytes.next();
                    }
                }
            }
            b'{' | b'[' => {
                depth += 1;
                values += 1;
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(BoundsError::TooDeep);
        }
        if values > max_values {
            return Err(BoundsError::TooMany(max_values));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_across_everything_and_not_within_strings() {
        let nested = |open: &str, close: &str, levels: usize| {
            [open.repeat(levels), "1".to_owned(), close.repeat(levels)].concat()
        };
        assert_eq!(check(nested("[", "]", MAX_DEPTH).as_bytes(), 1000), Ok(()));
        assert_eq!(check(nested("[", "]", MAX_DEPTH + 1).as_bytes(), 1000), Err(BoundsError::TooDeep));
        let mixed = nested("{\"value\":[", "]}", MAX_DEPTH / 2 + 1);
        assert_eq!(check(mixed.as_bytes(), 1000), Err(BoundsError::TooDeep));
        let quoted = format!("[\"{}\\\"{}\"]", "[".repeat(500), "{".repeat(500));
        assert_eq!(check(quoted.as_bytes(), 1000), Ok(()));
        // Closing too often does not make room for more.
        assert_eq!(check(format!("]]]]{}", "[".repeat(101)).as_bytes(), 1000), Err(BoundsError::TooDeep));
    }

    #[test]
    fn values_are_counted() {
        let list = format!("[{}]", vec!["0"; 100].join(","));
        assert_eq!(check(list.as_bytes(), 100), Ok(()));
        assert_eq!(check(list.as_bytes(), 99), Err(BoundsError::TooMany(99)));
    }
}
