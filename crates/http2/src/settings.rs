//! Settings (RFC 9113, section 6.5): ours, and what the peer's mean to us.

use super::frame::{self, Kind, MAX_WINDOW};
use super::{ConnectionError, Limits, Reason};

/// The window of a stream or connection of which nothing was said.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// Appends ours, and the window of the connection.
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
    frame::put(out, Kind::Settings, 0, 0, &payload);
    if let Some(more @ 1..) = limits.connection_window.checked_sub(DEFAULT_WINDOW) {
        frame::put(out, Kind::WindowUpdate, 0, 0, &more.to_be_bytes());
    }
}

/// The peer opens a window further than the protocol allows.
pub(super) const fn window_too_large() -> ConnectionError {
    ConnectionError::new(Reason::FlowControl, "a window beyond the largest")
}

/// The peer's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// The window that a stream begins with.
    pub(super) window: u32,
    /// The largest payload that it takes.
    pub(super) max_payload: usize,
    /// Whether it wants a smaller header table than the default, which our encoder must then say that it keeps to.
    pub(super) small_table: bool,
}

impl Default for Peer {
    fn default() -> Self {
        Self { window: DEFAULT_WINDOW, max_payload: frame::MAX_PAYLOAD, small_table: false }
    }
}

impl Peer {
    /// Takes in a frame of them.
    pub(super) fn update(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        let wrong = ConnectionError::new(Reason::Protocol, "a setting with a value that it cannot have");
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
