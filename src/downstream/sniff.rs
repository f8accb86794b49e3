//! Detection of the protocol of a connection by its first bytes.

use std::io;
use std::time::Duration;

use super::transport::Peek;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireProtocol {
    Http1,
    Http2,
    /// TLS handshake on a cleartext listener.
    Tls,
    /// No protocol that is served here.
    Unknown,
}

impl WireProtocol {
    /// Bytes that distinguish HTTP/2 from every method of HTTP/1.
    const SNIFFED_BYTES: usize = 3;

    fn of(start: [u8; Self::SNIFFED_BYTES]) -> Self {
        match &start {
            b"PRI" => Self::Http2,
            // Not every word in capitals: a faulty HTTP/2 preface ends the connection (RFC 9113, section
            // 3.4).
            b"GET" | b"HEA" | b"POS" | b"PUT" | b"DEL" | b"CON" | b"OPT" | b"TRA" | b"PAT" => Self::Http1,
            // Handshake record of any version (RFC 8446, section 5.1).
            [22, 3, _] => Self::Tls,
            _ => Self::Unknown,
        }
    }

    /// Detects the protocol. The bytes stay in the socket.
    pub(crate) async fn sniff(socket: &impl Peek) -> io::Result<Self> {
        let mut start = [0; Self::SNIFFED_BYTES];
        let mut pause = Duration::from_millis(5);
        loop {
            match socket.peek(&mut start).await? {
                0 => return Ok(Self::Unknown),
                Self::SNIFFED_BYTES => return Ok(Self::of(start)),
                // Peeked bytes stay readable, so only time can pass. The pause grows, because one byte costs
                // a client nothing.
                _ => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(320));
                }
            }
        }
    }
}
