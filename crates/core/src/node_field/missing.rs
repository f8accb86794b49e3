//! Reasons for missing values.

use std::borrow::Cow;

/// Reason why a node has no value for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Missing or empty.
    NotSaid,
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
