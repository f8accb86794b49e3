//! Text of peers where operators read it: on terminals, which control characters steer.
//!
//! Owns which characters are escaped. Beside control characters these are the ones that reorder or end a line, and some that nobody
//! sees.

/// Whether a terminal shows a character as it is, in its place, and a reader of YAML takes it as it is.
fn is_plain(c: char) -> bool {
    let reorders =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let ends_a_line = matches!(c, '\u{2028}' | '\u{2029}');
    let is_unseen = matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    !(c.is_control() || reorders || ends_a_line || is_unseen)
}

/// Whether a terminal shows a text as it is, with its lines and tabs.
pub(crate) fn is_printable(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\n' | '\t') || is_plain(c))
}

/// Escapes what a terminal would not show as it is.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) { safe.push(c) } else { safe.extend(c.escape_default()) }
    }
    safe
}

/// Escapes what a terminal would not show as it is in a document in JSON, which stays the same document. Writers of JSON escape control
/// characters below U+0020 only, and one that they leave alone, U+009B, begins an escape sequence too.
pub(crate) fn printable_json(document: String) -> String {
    // A page may have megabytes, and names are seldom anything else.
    if document.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')) {
        return document;
    }
    let mut safe = String::with_capacity(document.len() + 64);
    for c in document.chars() {
        if c == '\n' { safe.push(c) } else { push_json(&mut safe, c) }
    }
    safe
}

/// Appends a character, as JSON escapes it in a string if a terminal would not show it as it is.
pub(crate) fn push_json(text: &mut String, c: char) {
    // None of these is beyond U+FFFF.
    if is_plain(c) { text.push(c) } else { text.push_str(&format!("\\u{:04x}", u32::from(c))) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RAW: &str = "a\u{1b}[31m\u{9b}2J\u{7f}\u{202e}\r\n\u{e9}\u{10348}";

    #[test]
    fn nothing_of_a_text_steers_a_terminal() {
        assert_eq!(printable(RAW), "a\\u{1b}[31m\\u{9b}2J\\u{7f}\\u{202e}\\r\\n\u{e9}\u{10348}");
    }

    #[test]
    fn nothing_of_a_document_steers_a_terminal_and_it_says_the_same() {
        let document = json!({ RAW: [RAW, "\\u009b", "\u{2069}"] });
        for text in [format!("{document:#}\n"), document.to_string()] {
            let safe = printable_json(text);
            assert!(safe.chars().all(|c| is_plain(c) || c == '\n'), "{safe:?}");
            assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), document);
        }
    }
}
