//! Frames (RFC 9113, section 4), and SETTINGS: ours, and those of the peer that concern us.

use crate::{ConnectionError, Limits, Reason};

/// Bytes of a frame header.
pub(super) const HEAD: usize = 9;
/// Largest payload accepted, in bytes: the protocol's default, which needs no SETTINGS.
const MAX_PAYLOAD: usize = 16 << 10;
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

/// Initial window of streams and connections, in bytes.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// Appends our SETTINGS, and the WINDOW_UPDATE for the connection.
pub(super) fn put_ours(limits: &Limits, out: &mut Vec<u8>) {
    let settings = [
        (MAX_CONCURRENT_STREAMS, limits.max_streams),
        (INITIAL_WINDOW_SIZE, limits.stream_window),
        (MAX_HEADER_LIST_SIZE, limits.max_head_bytes as u32),
    ];
    let mut payload = Vec::with_capacity(settings.len() * 6);
    for (id, value) in settings {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    put(out, Kind::Settings, 0, 0, &payload);
    if let Some(more @ 1..) = limits.connection_window.checked_sub(DEFAULT_WINDOW) {
        put(out, Kind::WindowUpdate, 0, 0, &more.to_be_bytes());
    }
}

/// The peer opens a window beyond the protocol's maximum.
pub(super) const fn window_too_large() -> ConnectionError {
    ConnectionError::new(Reason::FlowControl, "a window beyond the maximum")
}

/// Settings of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) window: u32,
    pub(super) max_payload: usize,
    /// Whether the peer wants a smaller header table than the default. Our encoder must then
    /// announce that it keeps none.
    pub(super) small_table: bool,
}

impl Default for Peer {
    fn default() -> Self {
        Self { window: DEFAULT_WINDOW, max_payload: MAX_PAYLOAD, small_table: false }
    }
}

impl Peer {
    pub(super) fn update(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        let wrong = ConnectionError::new(Reason::Protocol, "a setting with an invalid value");
        for &[i0, i1, v0, v1, v2, v3] in payload.as_chunks().0 {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([i0, i1]) {
                HEADER_TABLE_SIZE => self.small_table |= value < 4096,
                ENABLE_PUSH if value > 1 => return Err(wrong),
                INITIAL_WINDOW_SIZE if value > MAX_WINDOW => return Err(window_too_large()),
                INITIAL_WINDOW_SIZE => self.window = value,
                MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => return Err(wrong),
                MAX_FRAME_SIZE => self.max_payload = value as usize,
                _ => {}
            }
        }
        Ok(())
    }
}
