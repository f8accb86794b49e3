//! Log output in which each event is one line, whatever peers put into names.
//!
//! A line break could forge a line, and control characters could steer the operator's terminal. Writers of
//! events escape those below U+0020; ESC may be there for colours.

use std::io::{self, Write};

use crate::terminal;

#[derive(Debug)]
pub struct Lines<W>(pub W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event)?;
        Ok(event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if text.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\x1b')) {
            return self.0.write_all(event);
        }
        let mut line = String::with_capacity(event.len() + 16);
        for c in String::from_utf8_lossy(text).chars() {
            match c {
                '\n' => line.push_str("\\n"),
                '\r' => line.push_str("\\r"),
                '\t' | '\x1b' => line.push(c),
                other => terminal::push_json(&mut line, other),
            }
        }
        if text.len() < event.len() {
            line.push('\n');
        }
        self.0.write_all(line.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let mut lines = Lines(Vec::new());
        for event in [
            "plain \u{1b}[2mgr\u{e9}y\n",
            "type a\r\n2026-11-22 ERROR forged\n",
            "no end\nof it",
            "\u{9b}31m\u{7f}\u{202e}\n",
        ] {
            lines.write_all(event.as_bytes()).expect("memory");
        }
        let written = String::from_utf8(lines.0).expect("text");
        let expected = [
            "plain \u{1b}[2mgr\u{e9}y",
            "type a\\r\\n2026-11-22 ERROR forged",
            "no end\\nof it\\u009b31m\\u007f\\u202e",
        ];
        assert_eq!(written.lines().collect::<Vec<_>>(), expected);
    }
}
