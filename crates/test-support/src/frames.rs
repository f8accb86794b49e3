//! Frames of HTTP/2 made by hand, as a client without manners sends them.

use std::io::Read;

use crate::client::DELTA_ADS;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    [&[a, b, c, kind, flags, d, e, f, g], payload].concat()
}

pub fn setting(id: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// First bytes of a client: it takes so much on each stream, and the most there is on all of them.
pub fn preface(window: u32) -> Vec<u8> {
    let more = (0x7fff_ffff_u32 - 65_535).to_be_bytes();
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &setting(4, window), &frame(WINDOW_UPDATE, 0, 0, &more)]
        .concat()
}

/// A field of a header block, literal and kept in no table.
pub fn field(name: &str, value: &str) -> Vec<u8> {
    let short = |text: &str| u8::try_from(text.len()).unwrap().min(126);
    [&[0, short(name)], name.as_bytes(), &[short(value)], value.as_bytes()].concat()
}

/// The block of a gRPC call.
pub fn call_block(path: &str) -> Vec<u8> {
    // POST, http, and a literal path.
    let start = [0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    let fields = [(":authority", "relay"), ("content-type", "application/grpc"), ("te", "trailers")];
    let fields = fields.map(|(name, value)| field(name, value)).concat();
    [&start[..], path.as_bytes(), &fields].concat()
}

/// Opens a call of delta ADS.
pub fn call(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, &call_block(DELTA_ADS))
}

/// A call of one message on a connection that begins with it.
pub fn only_call(path: &str, flags: u8, bytes: &[u8]) -> Vec<u8> {
    [preface(65_535), frame(HEADERS, END_HEADERS, 1, &call_block(path)), message(1, flags, bytes)].concat()
}

/// A gRPC message that fits into a window.
pub fn message(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let whole = [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let mut out = Vec::new();
    let mut pieces = whole.chunks(16 << 10).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { flags } else { 0 };
        out.extend(frame(DATA, flags, stream, piece));
    }
    out
}

/// Kind, flags, stream and payload of the next frame; `None` at the end.
pub fn read_frame(from: &mut impl Read) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    from.read_exact(&mut head).ok()?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    from.read_exact(&mut payload).ok()?;
    Some((kind, flags, u32::from_be_bytes(stream), payload))
}

/// The n-th stream of a client.
pub const fn stream(n: u32) -> u32 {
    n * 2 + 1
}
