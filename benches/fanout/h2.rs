//! HTTP/2 by hand, as little as a load client needs: it must cost less than what it measures.
//!
//! Windows are opened as wide as the protocol allows once and for all, headers are literal, and messages are looked
//! at only as far as their nonce.

/// The largest window there is.
const WINDOW: u32 = 0x7fff_ffff;
const DEFAULT_WINDOW: u32 = 65_535;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// What a client says first.
pub(crate) fn preface(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let mut settings = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    settings.extend_from_slice(&WINDOW.to_be_bytes());
    frame(out, SETTINGS, 0, 0, &settings);
    frame(out, WINDOW_UPDATE, 0, 0, &(WINDOW - DEFAULT_WINDOW).to_be_bytes());
}

/// Opens a stream of a gRPC method.
pub(crate) fn open(out: &mut Vec<u8>, stream: u32, path: &str) {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "target"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        // Literal, not indexed, with a literal name; all are shorter than 127 bytes.
        block.extend_from_slice(&[0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    frame(out, HEADERS, END_HEADERS, stream, &block);
}

/// One gRPC message; in frames of the size that every peer takes.
pub(crate) fn message(out: &mut Vec<u8>, stream: u32, message: &[u8]) {
    let mut body = vec![0];
    body.extend_from_slice(&(message.len() as u32).to_be_bytes());
    body.extend_from_slice(message);
    for piece in body.chunks(16 << 10) {
        frame(out, DATA, 0, stream, piece);
    }
}

/// What came in on a connection.
pub(crate) enum Event<'a> {
    /// A whole gRPC message.
    Message { stream: u32, message: &'a [u8] },
    /// A stream ended that should not have.
    Ended { stream: u32 },
}

/// Takes in the bytes of one connection.
#[derive(Default)]
pub(crate) struct Reader {
    /// Bytes of an incomplete frame.
    partial: Vec<u8>,
    /// Bytes of incomplete messages, by stream.
    messages: Vec<(u32, Vec<u8>)>,
}

impl Reader {
    /// Takes in bytes; tells events; what has to be answered at once is appended to `out`.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut tell: impl FnMut(Event<'_>, &mut Vec<u8>),
    ) {
        let mut partial = std::mem::take(&mut self.partial);
        let rest = if partial.is_empty() {
            self.frames(bytes, out, &mut tell)
        } else {
            partial.extend_from_slice(bytes);
            self.frames(&partial, out, &mut tell)
        };
        self.partial = rest.to_vec();
    }

    fn frames<'a>(
        &mut self,
        mut bytes: &'a [u8],
        out: &mut Vec<u8>,
        tell: &mut impl FnMut(Event<'_>, &mut Vec<u8>),
    ) -> &'a [u8] {
        while let Some((&[a, b, c, kind, flags, s0, s1, s2, s3], after)) = bytes.split_first_chunk::<9>() {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, after)) = after.split_at_checked(len) else { break };
            let stream = u32::from_be_bytes([s0, s1, s2, s3]) & WINDOW;
            bytes = after;
            match kind {
                DATA => {
                    assert!(flags & PADDED == 0, "nobody pads here");
                    self.data(stream, payload, out, tell);
                }
                SETTINGS if flags & ACK == 0 => frame(out, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => frame(out, PING, ACK, 0, payload),
                RST_STREAM => tell(Event::Ended { stream }, out),
                GOAWAY => tell(Event::Ended { stream: 0 }, out),
                HEADERS if flags & 1 != 0 => tell(Event::Ended { stream }, out),
                _ => {}
            }
        }
        bytes
    }

    fn data(
        &mut self,
        stream: u32,
        payload: &[u8],
        out: &mut Vec<u8>,
        tell: &mut impl FnMut(Event<'_>, &mut Vec<u8>),
    ) {
        let at = self.messages.iter().position(|(of, _)| *of == stream);
        match at {
            // The common case: nothing is waiting and the frame holds whole messages.
            None => {
                let rest = whole(payload, stream, out, tell);
                if !rest.is_empty() {
                    self.messages.push((stream, rest.to_vec()));
                }
            }
            Some(at) => {
                let waiting = &mut self.messages[at].1;
                waiting.extend_from_slice(payload);
                let left = whole(waiting, stream, out, tell).len();
                let told = waiting.len() - left;
                waiting.drain(..told);
                if waiting.is_empty() {
                    self.messages.swap_remove(at);
                }
            }
        }
    }
}

/// Tells the messages that have arrived in full and returns the rest.
fn whole<'a>(
    mut bytes: &'a [u8],
    stream: u32,
    out: &mut Vec<u8>,
    tell: &mut impl FnMut(Event<'_>, &mut Vec<u8>),
) -> &'a [u8] {
    while let Some((prefix, after)) = bytes.split_first_chunk::<5>() {
        let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        let Some((message, after)) = after.split_at_checked(len) else { break };
        tell(Event::Message { stream, message }, out);
        bytes = after;
    }
    bytes
}

/// The payload of a length-delimited field at the top of a message.
pub(crate) fn field(message: &[u8], number: u64) -> Option<&[u8]> {
    let mut rest = message;
    let varint = |rest: &mut &[u8]| {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, after) = rest.split_first()?;
            *rest = after;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    };
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        assert_eq!(tag & 7, 2, "discovery responses hold nothing else");
        let len = varint(&mut rest)? as usize;
        let (payload, after) = rest.split_at_checked(len)?;
        if tag >> 3 == number {
            return Some(payload);
        }
        rest = after;
    }
    None
}
