//! Values that a node does not have for a rule, and why.

use std::borrow::Cow;

/// Reason for which a node has no value for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is not there, or empty.
    NotSaid,
    /// It is null, a list, an object, or a number that is none.
    NoText,
    /// Its text is longer than a value may be.
    TooLong,
    /// It does not match the pattern, or the group that is the value takes no part in the match.
    NoMatch,
}

/// A value of at most `limit` bytes.
pub(super) fn bounded(value: Cow<'_, str>, limit: usize) -> Result<Cow<'_, str>, Missing> {
    if value.len() > limit { Err(Missing::TooLong) } else { Ok(value) }
}
