//! Input of a connection that is not whole yet: the start of a frame, or a header block of which more is to come.

use std::time::Instant;

/// Input that is not whole yet.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    pub(super) phase: Phase,
    /// Start of the preface or of a frame.
    pub(super) partial: Vec<u8>,
    pub(super) block: Option<Block>,
}

/// Part of a connection's input: each begins with the end of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Preface,
    Settings,
    Open,
}

/// Header block of which more is to come.
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

    /// Time since which something incomplete is awaited that must not take long.
    pub(super) fn incomplete_since(&self, opened: Instant) -> Option<Instant> {
        if self.phase == Phase::Open { self.block.as_ref().map(|block| block.since) } else { Some(opened) }
    }
}
