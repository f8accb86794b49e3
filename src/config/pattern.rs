//! Regular expressions for whole values.
//!
//! Owns their bound and the message for one that is wrong. The engine takes time in proportion to the value, whatever the
//! expression.

use regex::{Regex, RegexBuilder};

use super::errors::quoted;

/// Memory of the automaton of one pattern, in bytes. Reading a value takes time in proportion to it.
const MAX_PATTERN: usize = 256 * 1024;

/// The expression that matches where this one matches the whole of a value.
pub(super) fn whole(text: &str) -> Result<Regex, String> {
    // By itself first: its errors are about what was written, and no parenthesis in it can close ours.
    compile(text)?;
    // In verbose mode it may end in a comment, which a line of its own keeps from swallowing the end.
    compile(&format!(r"\A(?:{text})\z")).or_else(|_| compile(&format!("\\A(?:{text}\n)\\z")))
}

fn compile(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text).size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN).build().map_err(|error| {
        match error {
            regex::Error::CompiledTooBig(_) => format!("{} is too large a regular expression", quoted(text)),
            error => {
                // The last line says what is wrong; those before it draw the place.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default();
                let reason = reason.strip_prefix("error: ").unwrap_or(reason);
                format!("{} is no regular expression: {reason}", quoted(text))
            }
        }
    })
}
