//! What a connection speaks, by what comes first.

use std::io;
use std::time::Duration;

use super::transport::Peek;

/// What a connection speaks, by what comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireProtocol {
    Http1,
    Http2,
    /// The handshake of TLS, where there is none.
    Tls,
    /// Nothing that is served here.
    Unknown,
}

impl WireProtocol {
    /// Enough to tell HTTP/2 from every method of HTTP/1.
    const SNIFFED_BYTES: usize = 3;

    fn of(start: [u8; Self::SNIFFED_BYTES]) -> Self {
        match &start {
            b"PRI" => Self::Http2,
            // Not every word of capitals: a faulty preface of HTTP/2 ends the connection (RFC 9113, section 3.4).
            b"GET" | b"HEA" | b"POS" | b"PUT" | b"DEL" | b"CON" | b"OPT" | b"TRA" | b"PAT" => Self::Http1,
            // A record of a handshake, of any version (RFC 8446, section 5.1).
            [22, 3, _] => Self::Tls,
            _ => Self::Unknown,
        }
    }

    /// Looks at what comes first. It stays where it is.
    pub(super) async fn sniff(socket: &impl Peek) -> io::Result<Self> {
        let mut start = [0; Self::SNIFFED_BYTES];
        let mut pause = Duration::from_millis(5);
        loop {
            match socket.peek(&mut start).await? {
                0 => return Ok(Self::Unknown),
                Self::SNIFFED_BYTES => return Ok(Self::of(start)),
                // What was peeked at stays readable, so that there is nothing to wait for but time; ever longer, because
                // it costs nothing to send one byte and wait.
                _ => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(320));
                }
            }
        }
    }
}
