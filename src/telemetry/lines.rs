//! Log output in which each event is one line, whatever peers put into their names.
//!
//! Events contain parts of requests and responses. A line break in one could forge a line of the relay.

use std::io::{self, Write};

/// Writer of events, each of which comes in one call.
#[derive(Debug)]
pub struct Lines<W>(pub W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event)?;
        Ok(event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return self.0.write_all(event);
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for byte in text {
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                other => line.push(*other),
            }
        }
        line.extend_from_slice(&event[text.len()..]);
        self.0.write_all(&line)
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
        for event in ["plain\n", "type a\r\n2026-11-22 ERROR forged\n", "no end\nof it", "\n"] {
            lines.write_all(event.as_bytes()).expect("memory");
        }
        let written = String::from_utf8(lines.0).expect("text");
        assert_eq!(written, "plain\ntype a\\r\\n2026-11-22 ERROR forged\nno end\\nof it\n");
    }
}
