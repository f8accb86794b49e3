//! gRPC frames spliced from shared bytes, and the nonces that identify them.
//!
//! A frame is a length-prefixed message in chunks. The first chunk is owned: prefix, small fields and the first
//! few KiB of resources. The rest is shared. Only whole messages are smaller than [`MIN_CHUNK`]: HTTP/2 peers
//! disconnect senders of many tiny DATA frames (h2, RUSTSEC-2026-0258).

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

use super::Generation;
use crate::resource::{Name, wire};

/// Smallest chunk in bytes, except for smaller messages.
const MIN_CHUNK: usize = 256;
/// Bytes of resources that are copied behind the small fields.
const HEAD: usize = 4 << 10;
/// Messages up to this size are one chunk.
const INLINE: usize = 16 << 10;
/// Payload of a full HTTP/2 DATA frame with default settings.
const DATA_FRAME: usize = 16 << 10;

/// A complete gRPC message with its prefix. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Frame {
    pieces: Pieces,
    pub nonce: Nonce,
}

#[derive(Clone)]
enum Pieces {
    One(Bytes),
    Many(Arc<[Bytes]>),
}

impl fmt::Debug for Pieces {
    /// Without the bytes: there may be a Secret in them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = match self {
            Self::One(piece) => std::slice::from_ref(piece),
            Self::Many(pieces) => pieces,
        };
        f.debug_list().entries(pieces.iter().map(Bytes::len)).finish()
    }
}

impl Frame {
    fn new(mut pieces: SmallVec<[Bytes; 1]>, nonce: Nonce) -> Self {
        let one = if pieces.len() == 1 { pieces.pop() } else { None };
        Self { pieces: one.map_or_else(|| Pieces::Many(pieces.as_slice().into()), Pieces::One), nonce }
    }

    pub fn chunks(&self) -> &[Bytes] {
        match &self.pieces {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }

    /// Bytes on the wire.
    pub fn size(&self) -> usize {
        self.chunks().iter().map(Bytes::len).sum()
    }
}

/// Small fields of a response. Field numbers are equal in both protocols except for `control_plane`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    /// `version_info` or `system_version_info`.
    pub(super) version: &'a str,
    pub(super) type_url: &'a str,
    /// Field number of `control_plane`, and its `identifier`; empty leaves the field out.
    pub(super) control_plane: (u8, &'a str),
    /// `removed_resources`, delta only. Two lists, so that no join is needed.
    pub(super) removed: [&'a [Name]; 2],
    /// `removed_resource_names`, encoded, delta only.
    pub(super) removed_variants: &'a [Bytes],
    /// `resource_errors`, encoded.
    pub(super) errors: &'a [u8],
}

/// Encoded elements of another owner, from this byte on. Large ones are shared, not copied.
pub(super) type Piece<'a> = (&'a Bytes, usize);

pub(super) fn splice<'a>(
    fields: Fields<'_>,
    nonce: Nonce,
    pieces: impl Iterator<Item = Piece<'a>> + Clone,
) -> Frame {
    /// Field of `ControlPlane`.
    const IDENTIFIER: u8 = 1;
    const VERSION: u8 = 1;
    const TYPE_URL: u8 = 4;
    const NONCE: u8 = 5;
    const REMOVED: u8 = 6;
    const REMOVED_VARIANTS: u8 = 8;

    let nonce_text = nonce.text();
    let optional = |text: &str| if text.is_empty() { 0 } else { wire::field_len(text.len()) };
    let (control_plane, identifier) = fields.control_plane;
    let control_plane_len = optional(identifier);
    let optional_control_plane = if identifier.is_empty() { 0 } else { wire::field_len(control_plane_len) };
    let removed: usize =
        fields.removed.iter().copied().flatten().map(|name| wire::field_len(name.as_str().len())).sum();
    let variants: usize = fields.removed_variants.iter().map(|variant| wire::field_len(variant.len())).sum();
    let small = optional(fields.version)
        + optional(fields.type_url)
        + wire::field_len(nonce_text.len())
        + optional_control_plane
        + removed
        + variants
        + fields.errors.len();
    let body: usize = pieces.clone().map(|(bytes, at)| bytes.len() - at).sum();
    let message = small + body;

    let mut out = Chunks::new(5 + small + body);
    out.open.put_u8(0);
    // A message over 4 GiB exceeds every peer's limit; the wrong prefix makes it fail.
    out.open.put_u32(u32::try_from(message).unwrap_or(u32::MAX));
    wire::put_field(&mut out.open, VERSION, fields.version.as_bytes());
    wire::put_field(&mut out.open, TYPE_URL, fields.type_url.as_bytes());
    wire::put_field(&mut out.open, NONCE, &nonce_text);
    if !identifier.is_empty() {
        wire::put_header(&mut out.open, control_plane, control_plane_len);
        wire::put_field(&mut out.open, IDENTIFIER, identifier.as_bytes());
    }
    for name in fields.removed.into_iter().flatten() {
        put_element(&mut out.open, REMOVED, name.as_str().as_bytes());
    }
    for variant in fields.removed_variants {
        put_element(&mut out.open, REMOVED_VARIANTS, variant);
    }
    out.open.put_slice(fields.errors);
    for (bytes, at) in pieces {
        out.share(bytes, at);
    }
    Frame::new(out.close(), nonce)
}

/// Writes an element of a list, even an empty one.
fn put_element(out: &mut BytesMut, number: u8, element: &[u8]) {
    wire::put_header(out, number, element.len());
    out.put_slice(element);
}

/// Chunks in the making: `closed`, then `open`.
struct Chunks {
    closed: SmallVec<[Bytes; 1]>,
    open: BytesMut,
    inline: bool,
}

impl Chunks {
    fn new(total: usize) -> Self {
        let inline = total <= INLINE;
        let capacity = if inline { total } else { 0 };
        Self { closed: SmallVec::new(), open: BytesMut::with_capacity(capacity), inline }
    }

    /// Adds bytes from `at` on.
    fn share(&mut self, bytes: &Bytes, at: usize) {
        let head = if self.closed.is_empty() { HEAD.saturating_sub(self.open.len()) } else { 0 };
        let head = head.max(MIN_CHUNK.saturating_sub(self.open.len()));
        if self.inline || bytes.len() - at < head + 4 * MIN_CHUNK {
            self.open.put_slice(&bytes[at..]);
            return;
        }
        let rest = if self.open.is_empty() {
            bytes.slice(at..)
        } else {
            self.open.put_slice(&bytes[at..at + head]);
            self.closed.push(self.open.split().freeze());
            bytes.slice(at + head..)
        };
        // The transport cuts chunks into full DATA frames; the last must not be tiny either.
        let tail = rest.len() % DATA_FRAME;
        if rest.len() > DATA_FRAME && (1..MIN_CHUNK).contains(&tail) {
            let cut = rest.len() - DATA_FRAME / 2;
            self.closed.push(rest.slice(..cut));
            self.closed.push(rest.slice(cut..));
        } else {
            self.closed.push(rest);
        }
    }

    fn close(mut self) -> SmallVec<[Bytes; 1]> {
        if self.open.is_empty() {
            return self.closed;
        }
        if self.open.len() < MIN_CHUNK
            && let Some(last) = self.closed.pop()
        {
            // Borrow the end of the large shared chunk before it.
            let cut = last.len().saturating_sub(MIN_CHUNK);
            let mut tail = BytesMut::with_capacity(last.len() - cut + self.open.len());
            tail.put_slice(&last[cut..]);
            tail.put_slice(&self.open);
            if cut > 0 {
                self.closed.push(last.slice(..cut));
            }
            self.closed.push(tail.freeze());
        } else {
            self.closed.push(self.open.freeze());
        }
        self.closed
    }
}

/// Identifier of a response, by which its ACK is recognised (R-SotW-03).
///
/// The shared form follows from the generation, so cohorts share whole frames. It has the type, as nonces are
/// unique in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce {
    /// Number of the type in the cache.
    pub type_index: u32,
    /// Position of the receiver after this response.
    pub generation: Generation,
    pub suffix: Suffix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suffix {
    /// The only or first response of its generation.
    None,
    /// Additions, before removals of the same generation.
    Additions,
    /// A number of this stream's own.
    Own(u32),
    /// As [`Own`](Self::Own), with more of the answer to follow (R-Up-23). Other relays recognise it.
    Part(u32),
}

impl Nonce {
    /// Last byte of such a nonce.
    pub const MORE: u8 = b'>';

    pub const fn announces_more(&self) -> bool {
        matches!(self.suffix, Suffix::Part(_))
    }

    /// Text on the wire. Written by hand: every ACK is compared with one.
    pub fn text(&self) -> NonceText {
        let mut text = NonceText::new();
        put_hex(&mut text, self.type_index.into());
        text.push(b'.');
        put_hex(&mut text, self.generation.get());
        match self.suffix {
            Suffix::None => {}
            // Not a hexadecimal digit.
            Suffix::Additions => text.push(b'+'),
            Suffix::Own(number) | Suffix::Part(number) => {
                text.push(b'~');
                put_hex(&mut text, number.into());
            }
        }
        if self.announces_more() {
            text.push(Self::MORE);
        }
        text
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().iter().try_for_each(|byte| fmt::Write::write_char(f, char::from(*byte)))
    }
}

/// Text of a nonce, without allocation: numbers of 32, 64 and 32 bits in hex, two separators and one byte behind.
pub type NonceText = SmallVec<[u8; 36]>;

fn put_hex(text: &mut NonceText, number: u64) {
    let digits = (64 - (number | 1).leading_zeros()).div_ceil(4);
    let digit = |at: u32| b"0123456789abcdef"[(number >> (4 * at) & 0xf) as usize];
    text.extend((0..digits).rev().map(digit));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::super::Suffix;
    use super::*;
    use crate::proto::DeltaDiscoveryResponse;

    fn element(size: usize) -> Bytes {
        let mut out = BytesMut::new();
        wire::put_header(&mut out, 2, size);
        out.put_bytes(b'x', size);
        out.freeze()
    }

    proptest! {
        #[test]
        fn a_spliced_frame_is_the_message_and_has_no_tiny_chunk(
            sizes in proptest::collection::vec(0_usize..40_000, 0..12),
            removed in proptest::collection::vec("[a-z]{0,40}", 0..20),
            identifier in "[a-z ]{0,300}",
        ) {
            let elements: Vec<_> = sizes.iter().map(|size| element(*size)).collect();
            let removed: Vec<Name> = removed.into_iter().map(Name::from).collect();
            let fields = Fields { version: "7", type_url: "t/x", control_plane: (7, &identifier), removed: [&removed, &[]], removed_variants: &[], errors: &[] };
            let nonce = Nonce { type_index: 3, generation: 255.into(), suffix: Suffix::None };
            let frame = splice(fields, nonce, elements.iter().map(|bytes| (bytes, 0)));

            let whole: Vec<u8> = frame.chunks().concat();
            prop_assert_eq!(whole[0], 0);
            prop_assert_eq!(u32::from_be_bytes([whole[1], whole[2], whole[3], whole[4]]) as usize, whole.len() - 5);
            let decoded = DeltaDiscoveryResponse::decode(&whole[5..]).expect("our own message");
            prop_assert_eq!(&decoded.nonce, "3.ff");
            prop_assert_eq!(&decoded.system_version_info, "7");
            let control_plane = decoded.control_plane.map(|control_plane| control_plane.identifier);
            prop_assert_eq!(control_plane.unwrap_or_default(), identifier);
            prop_assert_eq!(decoded.resources.len(), sizes.len());
            for (resource, size) in decoded.resources.iter().zip(&sizes) {
                prop_assert_eq!(resource.len(), *size);
            }
            prop_assert_eq!(decoded.removed_resources.len(), removed.len());

            if frame.chunks().len() > 1 {
                for chunk in frame.chunks() {
                    prop_assert!(chunk.len() >= MIN_CHUNK, "{} of {}", chunk.len(), whole.len());
                }
            }
        }
    }

    #[test]
    fn a_large_shared_element_is_not_copied() {
        let big = element(1 << 20);
        let nonce = Nonce { type_index: 1, generation: 1.into(), suffix: Suffix::Own(2) };
        let fields = Fields {
            version: "",
            type_url: "t/x",
            control_plane: (7, ""),
            removed: [&[], &[]],
            removed_variants: &[],
            errors: &[],
        };
        let frame = splice(fields, nonce, std::iter::once((&big, 0)));
        let range = big.as_ptr_range();
        let shared: usize =
            frame.chunks().iter().filter(|c| range.contains(&c.as_ptr())).map(Bytes::len).sum();
        assert!(shared >= big.len() - HEAD, "{shared} of {}", big.len());
    }

    proptest! {
        #[test]
        fn a_nonce_is_its_numbers_in_hex(type_index: u32, generation: u64, number: u32) {
            let nonce = |suffix| Nonce { type_index, generation: generation.into(), suffix }.to_string();
            prop_assert_eq!(nonce(Suffix::None), format!("{type_index:x}.{generation:x}"));
            prop_assert_eq!(nonce(Suffix::Additions), format!("{type_index:x}.{generation:x}+"));
            prop_assert_eq!(nonce(Suffix::Own(number)), format!("{type_index:x}.{generation:x}~{number:x}"));
            prop_assert_eq!(nonce(Suffix::Part(number)), format!("{type_index:x}.{generation:x}~{number:x}>"));
        }
    }

    #[test]
    fn r_sotw_03_the_additions_of_one_generation_are_not_called_as_another_generation() {
        let nonce = |generation: u64, suffix| Nonce { type_index: 1, generation: generation.into(), suffix };
        let (additions, later) = (nonce(0x3c, Suffix::Additions), nonce(0x3ca, Suffix::None));
        assert_ne!(additions.to_string(), later.to_string());
    }
}
