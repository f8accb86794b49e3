//! Incomplete input of a connection: the start of a frame, or of a header block.

use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Arriving {
    pub(super) phase: Phase,
    /// Start of the preface or of a frame.
    pub(super) partial: Vec<u8>,
    pub(super) block: Option<Block>,
}

/// Phase of a connection's input, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Preface,
    Settings,
    Open,
}

/// Incomplete header block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) end_stream: bool,
    pub(super) depends_on_itself: bool,
    pub(super) fragment: Vec<u8>,
    pub(super) continuations: u32,
    pub(super) since: Instant,
}

impl Arriving {
    /// Bytes of an incomplete frame or header block.
    pub(super) fn len(&self) -> usize {
        self.partial.len() + self.block.as_ref().map_or(0, |block| block.fragment.len())
    }

    /// Start of the wait for incomplete input that must not take long.
    pub(super) fn incomplete_since(&self, opened: Instant) -> Option<Instant> {
        if self.phase == Phase::Open { self.block.as_ref().map(|block| block.since) } else { Some(opened) }
    }
}
