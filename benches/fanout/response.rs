//! Discovery responses, read piece by piece as they come, and their ACKs.
//!
//! A load client has to read thousands of responses a second and to take states of tens of megabytes from a thousand
//! streams at once. So nothing is put together: a response is followed field by field, and all that is kept of it is
//! what its ACK repeats.

use super::h2;
use super::shape::Transport;

/// Enough for the type URLs and nonces of every server.
const TEXT: usize = 96;
/// The gRPC prefix of a message.
const PREFIX: usize = 5;

const RESOURCES: u64 = 2;
const TYPE_URL: u64 = 4;
const NONCE: u64 = 5;
const VERSION_INFO: u64 = 1;
/// The version within a Resource of a delta response.
const VERSION: u64 = 1;

/// A short text that is kept without an allocation.
#[derive(Clone, Copy)]
struct Text {
    bytes: [u8; TEXT],
    len: u8,
}

impl Text {
    const EMPTY: Self = Self { bytes: [0; TEXT], len: 0 };

    fn push(&mut self, piece: &[u8]) {
        let end = self.len as usize + piece.len();
        assert!(end <= TEXT, "a nonce, version or type of more than {TEXT} bytes: make TEXT larger");
        self.bytes[self.len as usize..end].copy_from_slice(piece);
        self.len = end as u8;
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// Contents of a response.
pub(crate) struct Summary {
    pub(crate) resources: usize,
    type_url: Text,
    nonce: Text,
    version_info: Text,
}

impl Summary {
    const EMPTY: Self =
        Self { resources: 0, type_url: Text::EMPTY, nonce: Text::EMPTY, version_info: Text::EMPTY };

    /// The ACK of a response, as a gRPC message on its stream.
    pub(crate) fn ack(&self, transport: Transport, stream: u32, out: &mut Vec<u8>) {
        let (version, type_number, nonce_number) = match transport {
            Transport::Delta => (&[][..], 2, 6),
            Transport::Sotw => (self.version_info.as_bytes(), 4, 5),
        };
        let fields =
            [(1, version), (type_number, self.type_url.as_bytes()), (nonce_number, self.nonce.as_bytes())];
        let fields = fields.iter().filter(|(_, text)| !text.is_empty());
        h2::message_head(out, stream, fields.clone().map(|(_, text)| 2 + text.len()).sum());
        for (number, text) in fields {
            // No text here has more than 127 bytes, so its length is one.
            out.extend_from_slice(&[(number << 3) | 2, text.len() as u8]);
            out.extend_from_slice(text);
        }
    }
}

/// Listener that is told of what was read.
pub(crate) trait Hear {
    /// A resource of a delta response has this version, where that is a number.
    fn version(&mut self, version: u64);
    /// A response was read to its end; its answer goes to `out`.
    fn message(&mut self, stream: u32, summary: &Summary, out: &mut Vec<u8>);
}

/// Where in a response the next byte lies.
#[derive(Clone, Copy)]
enum At {
    Prefix { have: usize, len: u32 },
    Tag(Varint),
    Length { number: u64, varint: Varint },
    Value { number: u64, left: usize },
}

const BEGIN: At = At::Prefix { have: 0, len: 0 };

#[derive(Clone, Copy, Default)]
struct Varint {
    value: u64,
    shift: u32,
}

impl Varint {
    fn push(&mut self, byte: u8) -> Option<u64> {
        self.value |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        (byte < 0x80).then_some(self.value)
    }
}

/// The responses of one stream.
pub(crate) struct Responses {
    transport: Transport,
    at: At,
    /// Bytes missing of the message.
    left: usize,
    /// Bytes missing of the resource that is being read; 0: between resources.
    resource_left: usize,
    /// A resource's version as far as it is read.
    version: Option<u64>,
    summary: Summary,
}

impl Responses {
    pub(crate) const fn new(transport: Transport) -> Self {
        let summary = Summary::EMPTY;
        Self { transport, at: BEGIN, left: 0, resource_left: 0, version: None, summary }
    }

    /// Takes the next piece of the stream's body.
    pub(crate) fn take(&mut self, mut piece: &[u8], stream: u32, out: &mut Vec<u8>, hear: &mut impl Hear) {
        while let Some((&byte, rest)) = piece.split_first() {
            match &mut self.at {
                At::Prefix { have, len } => {
                    // The first byte tells that nothing is compressed, which nobody asked for.
                    *len = *len << 8 | u32::from(byte);
                    *have += 1;
                    if *have == PREFIX {
                        self.left = *len as usize;
                        self.summary = Summary::EMPTY;
                        self.at = At::Tag(Varint::default());
                    }
                    piece = rest;
                }
                At::Value { number, left } => {
                    let (value, after) = piece.split_at(piece.len().min(*left));
                    let number = *number;
                    *left -= value.len();
                    if *left == 0 {
                        self.at = At::Tag(Varint::default());
                    }
                    self.read(value.len());
                    self.value(number, value);
                    piece = after;
                }
                At::Tag(varint) => {
                    if let Some(tag) = varint.push(byte) {
                        assert_eq!(tag & 7, 2, "discovery responses hold nothing but lengths and bytes");
                        self.at = At::Length { number: tag >> 3, varint: Varint::default() };
                    }
                    self.read(1);
                    piece = rest;
                }
                At::Length { number, varint } => {
                    let number = *number;
                    let length = varint.push(byte);
                    self.read(1);
                    piece = rest;
                    if let Some(length) = length {
                        self.field(number, length as usize);
                    }
                }
            }
            let between = matches!(self.at, At::Tag(Varint { shift: 0, .. }));
            if between
                && self.resource_left == 0
                && let Some(version) = self.version.take()
            {
                hear.version(version);
            }
            if between && self.left == 0 {
                self.at = BEGIN;
                hear.message(stream, &self.summary, out);
            }
        }
    }

    const fn read(&mut self, count: usize) {
        self.left -= count;
        self.resource_left = self.resource_left.saturating_sub(count);
    }

    /// A field begins.
    fn field(&mut self, number: u64, length: usize) {
        let descend = self.resource_left == 0 && number == RESOURCES;
        if descend {
            self.summary.resources += 1;
        }
        self.at = if descend && self.transport == Transport::Delta {
            self.resource_left = length;
            At::Tag(Varint::default())
        } else if length == 0 {
            At::Tag(Varint::default())
        } else {
            At::Value { number: if self.resource_left > 0 { number << 32 } else { number }, left: length }
        };
    }

    /// A piece of a field's value. The numbers of a resource's fields are shifted out of the way of the response's.
    fn value(&mut self, number: u64, piece: &[u8]) {
        const OF_RESOURCE: u64 = VERSION << 32;
        match number {
            OF_RESOURCE if piece.iter().all(u8::is_ascii_digit) => {
                let digits = piece.iter().fold(self.version.unwrap_or(0), |version, digit| {
                    version.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
                });
                self.version = Some(digits);
            }
            VERSION_INFO => self.summary.version_info.push(piece),
            TYPE_URL => self.summary.type_url.push(piece),
            NONCE => self.summary.nonce.push(piece),
            _ => {}
        }
    }
}
