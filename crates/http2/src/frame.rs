//! Frames (RFC 9113, sections 4 and 6): headers, checks that need no state, and writing.

use super::{ConnectionError, Reason};

/// Bytes of a frame header.
pub(super) const HEAD: usize = 9;
/// Largest payload accepted, in bytes: the protocol's default, which needs no SETTINGS.
pub(super) const MAX_PAYLOAD: usize = 16 << 10;
/// Largest window, and the mask that clears the reserved bit.
pub(super) const MAX_WINDOW: u32 = (1 << 31) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Headers,
    Priority,
    RstStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// Ignored (RFC 9113, section 4.1).
    Unknown,
}

const KINDS: [Kind; 10] = [
    Kind::Data,
    Kind::Headers,
    Kind::Priority,
    Kind::RstStream,
    Kind::Settings,
    Kind::PushPromise,
    Kind::Ping,
    Kind::GoAway,
    Kind::WindowUpdate,
    Kind::Continuation,
];

/// Flags, whose meaning depends on the type of the frame.
pub(super) mod flag {
    pub(in super::super) const ACK: u8 = 1;
    pub(in super::super) const END_STREAM: u8 = 1;
    pub(in super::super) const END_HEADERS: u8 = 4;
    pub(in super::super) const PADDED: u8 = 8;
    pub(in super::super) const PRIORITY: u8 = 0x20;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) len: usize,
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    pub(super) const fn new(kind: Kind, flags: u8, stream: u32, len: usize) -> Self {
        Self { len, kind, flags, stream }
    }

    pub(super) fn parse(bytes: [u8; HEAD]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Self {
            len: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind: KINDS.get(usize::from(kind)).copied().unwrap_or(Kind::Unknown),
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & MAX_WINDOW,
        }
    }

    pub(super) fn bytes(self) -> [u8; HEAD] {
        let [_, l0, l1, l2] = (self.len as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind as u8, self.flags, s0, s1, s2, s3]
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks length and stream id, as far as the type alone decides.
    pub(super) fn check(self) -> Result<(), ConnectionError> {
        // Whether the frame must be on a stream (`true`), on the connection (`false`) or may be on
        // either, and whether its length is valid.
        let (on_stream, size) = match self.kind {
            Kind::Data | Kind::Headers | Kind::Continuation => (Some(true), true),
            Kind::Priority => (Some(true), self.len == 5),
            Kind::RstStream => (Some(true), self.len == 4),
            Kind::Settings if self.has(flag::ACK) => (Some(false), self.len == 0),
            Kind::Settings => (Some(false), self.len.is_multiple_of(6)),
            Kind::PushPromise => {
                return Err(ConnectionError::new(Reason::Protocol, "PUSH_PROMISE from a client"));
            }
            Kind::Ping => (Some(false), self.len == 8),
            Kind::GoAway => (Some(false), self.len >= 8),
            Kind::WindowUpdate => (None, self.len == 4),
            Kind::Unknown => (None, true),
        };
        if on_stream.is_some_and(|wanted| wanted != (self.stream != 0)) {
            return Err(ConnectionError::new(
                Reason::Protocol,
                "a frame on a stream where its type is not allowed",
            ));
        }
        if !size || self.len > MAX_PAYLOAD {
            return Err(ConnectionError::new(Reason::FrameSize, "a frame of invalid length"));
        }
        Ok(())
    }
}

pub(super) fn put(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    out.reserve(HEAD + payload.len());
    out.extend_from_slice(&Head::new(kind, flags, stream, payload.len()).bytes());
    out.extend_from_slice(payload);
}

/// Payload of a frame without its padding (RFC 9113, section 6.1).
pub(super) fn without_padding(head: Head, payload: &[u8]) -> Result<&[u8], ConnectionError> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (&padding, rest) =
        payload.split_first().ok_or(ConnectionError::new(Reason::FrameSize, "no pad length"))?;
    let kept = rest.len().checked_sub(usize::from(padding));
    kept.and_then(|kept| rest.get(..kept))
        .ok_or(ConnectionError::new(Reason::Protocol, "more padding than payload"))
}

/// 31-bit number at the start of a payload of checked length.
pub(super) fn number(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) & MAX_WINDOW)
}
