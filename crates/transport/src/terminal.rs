//! Text of peers for operators: on terminals, which control characters steer, and in errors.
//!
//! Owns which characters are escaped: control characters, those that reorder or end a line, and some
//! invisible ones.

use std::time::Duration;

/// Beginning of a key or certificate.
pub const PEM: &str = "-----BEGIN";
/// Longest quote from a file, in characters.
const MAX_QUOTED: usize = 60;
/// Characters of a line.
const LONGEST: usize = 400;
/// Searched bytes: a page's title stands at its beginning.
const LOOKED_AT: usize = 16 << 10;

/// Whether terminals show a character unchanged in its place, and YAML readers accept it unescaped.
fn is_plain(c: char) -> bool {
    let reorders =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let ends_a_line = matches!(c, '\u{2028}' | '\u{2029}');
    let is_unseen = matches!(
        c,
        '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    );
    !(c.is_control() || reorders || ends_a_line || is_unseen)
}

/// Whether a terminal shows a text unchanged, with its lines and tabs.
pub fn is_printable(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\n' | '\t') || is_plain(c))
}

pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) { safe.push(c) } else { safe.extend(c.escape_default()) }
    }
    safe
}

/// A time in one unit: `59s`, `3m`, `47h`, `12d`.
pub fn age(of: Duration) -> String {
    let whole = of.as_secs();
    match whole {
        0..120 => format!("{whole}s"),
        120..7_200 => format!("{}m", whole / 60),
        7_200..172_800 => format!("{}h", whole / 3_600),
        _ => format!("{}d", whole / 86_400),
    }
}

/// Quotes a piece of a file for a message: in backticks, clipped, never a key.
pub fn quoted(text: &str) -> String {
    if text.contains(PEM) {
        return format!("`{PEM}...`");
    }
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("`{}...`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// Escapes within JSON what a terminal would not show unchanged; the document stays the same. Writers of JSON
/// escape only below U+0020, but U+009B begins an escape sequence too.
pub fn printable_json(document: String) -> String {
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

/// Appends a character, with a JSON escape if a terminal would not show it unchanged.
pub fn push_json(text: &mut String, c: char) {
    // None of these is beyond U+FFFF.
    if is_plain(c) { text.push(c) } else { text.push_str(&format!("\\u{:04x}", u32::from(c))) }
}

/// An HTML page becomes its title.
pub fn in_one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(LOOKED_AT)]);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let page = is_page(text).then(|| title(text));
    let mut line = page.as_deref().unwrap_or(text).split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Whether a text is HTML. Messages may begin with `<` too, as in `<nil>`.
fn is_page(text: &str) -> bool {
    let begins = |with: &str| text.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    ["<!doctype html", "<html", "<head", "<title"].into_iter().any(begins)
}

fn title(page: &str) -> String {
    // Every character keeps its place.
    let lowercase = page.to_ascii_lowercase();
    let inside = |tag: &str| {
        let opens = lowercase.find(tag)?;
        let begins = opens + lowercase[opens..].find('>')? + 1;
        let ends = begins + lowercase[begins..].find('<')?;
        Some(unescaped(page[begins..ends].trim())).filter(|text| !text.is_empty())
    };
    match inside("<title").or_else(|| inside("<h1")) {
        Some(title) => format!("a page with the title `{title}`"),
        None => "a page without a title".to_owned(),
    }
}

fn unescaped(text: &str) -> String {
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")];
    entities.into_iter().fold(text.to_owned(), |text, (entity, character)| text.replace(entity, character))
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

    #[test]
    fn a_text_becomes_one_line() {
        assert_eq!(in_one_line(b" no such\r\n\tpage \n"), "no such page");
        assert_eq!(in_one_line(b""), "");
        for words in ["<nil> resource for node", "<?xml version=\"1.0\"?><Error>denied</Error>"] {
            assert_eq!(in_one_line(words.as_bytes()), words);
        }
        assert_eq!(in_one_line(b"\xff is no UTF-8"), "\u{fffd} is no UTF-8");
    }

    #[test]
    fn a_page_becomes_its_title() {
        let nginx = "\u{feff}<!DOCTYPE html>\n<HTML><head><TITLE lang=\"en\">404\n Not &amp; Found</TITLE>\n<style>b {}</style></head>\n\
                     <body><center><h1>none</h1></center></body></html>";
        assert_eq!(in_one_line(nginx.as_bytes()), "a page with the title `404 Not & Found`");
        assert_eq!(in_one_line(b"<html><title> </title><h1>502</h1></html>"), "a page with the title `502`");
        for page in ["<html>", "<html><title", "<title>cut"] {
            assert_eq!(in_one_line(page.as_bytes()), "a page without a title", "{page}");
        }
    }

    #[test]
    fn a_line_is_bounded() {
        let line = in_one_line("\u{e9} ".repeat(1 << 20).as_bytes());
        assert_eq!(line.chars().count(), LONGEST + 1);
        assert!(line.ends_with('…'));
        let title = format!("<title>{}</title>", "x".repeat(1 << 10));
        assert!(in_one_line(title.as_bytes()).chars().count() <= LONGEST + 1);
        // A character may be cut where the look ends.
        assert!(
            in_one_line(&b"x".repeat(LOOKED_AT - 1).into_iter().chain("\u{e9}".bytes()).collect::<Vec<_>>())
                .ends_with('…')
        );
    }
}
