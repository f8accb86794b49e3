//! Errors of the transport as text.

use std::error::Error;
use std::fmt::Write as _;

use tonic::Status;

/// Formats a status as `UNAVAILABLE: message`, with its causes.
pub(crate) fn status_text(status: &Status) -> String {
    let mut code = String::new();
    for (at, letter) in format!("{:?}", status.code()).char_indices() {
        if letter.is_uppercase() && at > 0 {
            code.push('_');
        }
        code.push(letter.to_ascii_uppercase());
    }
    let mut text = match status.message() {
        "" => code,
        message => format!("{code}: {message}"),
    };
    add_causes(&mut text, status);
    text
}

/// Formats an error with its causes: tonic's own text is often just "transport error".
pub(super) fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    add_causes(&mut text, error);
    text
}

fn add_causes(text: &mut String, error: &dyn Error) {
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            write!(text, ": {reason}").ok();
        }
        cause = error.source();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_in_words() {
        let status = Status::deadline_exceeded("too late");
        assert_eq!(status_text(&status), "DEADLINE_EXCEEDED: too late");
        let cause = std::io::Error::other("connection reset by peer");
        let mut status = Status::unknown("h2 protocol error");
        status.set_source(std::sync::Arc::new(cause));
        assert_eq!(status_text(&status), "UNKNOWN: h2 protocol error: connection reset by peer");
        assert_eq!(status_text(&Status::unavailable("")), "UNAVAILABLE");
    }
}
