//! SETTINGS (RFC 9113, section 6.5): ours, and those of the peer that concern us.

use super::frame::{self, Kind, MAX_WINDOW};
use super::{ConnectionError, Limits, Reason};

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
    frame::put(out, Kind::Settings, 0, 0, &payload);
    if let Some(more @ 1..) = limits.connection_window.checked_sub(DEFAULT_WINDOW) {
        frame::put(out, Kind::WindowUpdate, 0, 0, &more.to_be_bytes());
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
        Self { window: DEFAULT_WINDOW, max_payload: frame::MAX_PAYLOAD, small_table: false }
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
