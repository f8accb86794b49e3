//! HTTP/2 by hand, as little as a load client needs: it must cost less than what it measures.
//!
//! Windows are opened once and for all, for who reads as wide as the protocol allows, and headers are literal. A client that opens
//! them again, as gRPC does, does so because the server has to read that. DATA is handed on in
//! the pieces it comes in, so nothing of it is kept or copied here.

use deltafan_test_support::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, call_block,
    frame,
};

use super::response::{Hear, Responses};
use super::shape::Client;

/// The largest window there is.
pub(crate) const WINDOW: u32 = 0x7fff_ffff;
/// Bytes that a server takes before it says more, which nobody here listens to.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;

/// Bytes of a PING and of its answer.
pub(crate) const PING_BYTES: usize = HEAD + 8;

const ACK: u8 = 1;
const PADDED: u8 = 8;

/// The length of a frame's header.
const HEAD: usize = 9;

/// Opens a stream of a gRPC method.
pub(crate) fn open(out: &mut Vec<u8>, stream: u32, path: &str) {
    out.extend(frame(HEADERS, END_HEADERS, stream, &call_block(path)));
}

/// The beginning of a short gRPC message, of which `len` bytes follow: for what is written without being allocated.
pub(crate) fn message_head(out: &mut Vec<u8>, stream: u32, len: usize) {
    let [_, a, b, c] = (5 + len as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, DATA, 0, d, e, f, g, 0]);
    out.extend_from_slice(&(len as u32).to_be_bytes());
}

/// A stream or its connection ended that should not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) stream: u32,
}

/// Takes in the bytes of one connection.
pub(crate) struct Reader {
    client: Client,
    /// A PING of this client is unanswered.
    pinged: bool,
    head: [u8; HEAD],
    have: usize,
    /// Bytes of the frame's payload that are missing.
    left: usize,
    /// The payload of a PING, which may come in pieces.
    ping: Vec<u8>,
    streams: Vec<Responses>,
}

impl Reader {
    pub(crate) fn new(client: Client, streams: impl Iterator<Item = Responses>) -> Self {
        let streams = streams.collect();
        Self { client, pinged: false, head: [0; HEAD], have: 0, left: 0, ping: Vec::new(), streams }
    }

    /// Takes in bytes and tells what was in them; what has to be answered at once is appended to `out`.
    pub(crate) fn read(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
        hear: &mut impl Hear,
    ) -> Result<(), Ended> {
        while !bytes.is_empty() {
            if self.have < HEAD {
                let piece = bytes.len().min(HEAD - self.have);
                self.head[self.have..self.have + piece].copy_from_slice(&bytes[..piece]);
                self.have += piece;
                bytes = &bytes[piece..];
                if self.have < HEAD {
                    return Ok(());
                }
                let [a, b, c, ..] = self.head;
                self.left = u32::from_be_bytes([0, a, b, c]) as usize;
                self.notice(out);
            }
            let (piece, rest) = bytes.split_at(self.left.min(bytes.len()));
            bytes = rest;
            self.left -= piece.len();
            self.payload(piece, out, hear)?;
            if self.left == 0 {
                self.have = 0;
            }
        }
        Ok(())
    }

    /// Sends what the client sends beside an ACK, at the beginning of a frame.
    fn notice(&mut self, out: &mut Vec<u8>) {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        match kind {
            PING if flags & ACK != 0 => self.pinged = false,
            DATA if !self.pinged && self.client != Client::Envoy => {
                self.pinged = true;
                if self.client == Client::CCore {
                    out.extend(frame(WINDOW_UPDATE, 0, u32::from_be_bytes(stream), &[0, a, b, c]));
                }
                out.extend(frame(WINDOW_UPDATE, 0, 0, &[0, a, b, c]));
                out.extend(frame(PING, 0, 0, &[0; 8]));
            }
            _ => {}
        }
    }

    fn payload(&mut self, piece: &[u8], out: &mut Vec<u8>, hear: &mut impl Hear) -> Result<(), Ended> {
        let [_, _, _, kind, flags, s0, s1, s2, s3] = self.head;
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & WINDOW;
        match kind {
            DATA => {
                assert!(flags & PADDED == 0, "nobody pads here");
                if let Some(responses) = self.streams.get_mut(stream as usize / 2) {
                    responses.take(piece, stream, out, hear);
                }
            }
            SETTINGS if flags & ACK == 0 && self.left == 0 => out.extend(frame(SETTINGS, ACK, 0, &[])),
            PING if flags & ACK == 0 => {
                self.ping.extend_from_slice(piece);
                if self.left == 0 {
                    out.extend(frame(PING, ACK, 0, &std::mem::take(&mut self.ping)));
                }
            }
            RST_STREAM => return Err(Ended { stream }),
            GOAWAY => return Err(Ended { stream: 0 }),
            HEADERS if flags & END_STREAM != 0 => return Err(Ended { stream }),
            _ => {}
        }
        Ok(())
    }
}
