//! What a peer may cost that brings nothing (rapid resets, floods of pings, settings, priorities, empty frames).

use std::time::{Duration, Instant};

/// How much may come at once. A proxy in front of a thousand clients resets a thousand streams when it goes.
const BURST: u32 = 2000;
/// How much of it comes back.
const PER_SECOND: u32 = 500;
/// So many bytes of a head that is refused cost as much as a frame.
const HEAD_BYTES: usize = 256;
/// How much of it a frame earns that the peer was sent: two windows are opened for it, a ping measures its way, and one
/// more.
const EARNED: u32 = 4;

/// Runs out for who sends more frames without use than it is given over time, or earns by what it is sent: clients
/// that measure the path answer data with pings.
#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    /// Up to when it was given over time.
    at: Instant,
}

impl Budget {
    pub(super) const fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    /// Whether a frame without use can still be borne.
    pub(super) fn spend(&mut self, now: Instant) -> bool {
        if self.left == 0 {
            let since = now.saturating_duration_since(self.at).min(Duration::from_secs(60));
            self.left = (since.as_millis() as u32 * PER_SECOND / 1000).min(BURST);
            self.at = now;
        }
        let borne = self.left > 0;
        self.left = self.left.saturating_sub(1);
        borne
    }

    /// Whether a head that is refused can still be borne: it was read to its end, since later ones build upon it.
    pub(super) fn spend_on_head(&mut self, now: Instant, bytes: usize) -> bool {
        let more = u32::try_from(bytes / HEAD_BYTES).unwrap_or(u32::MAX);
        let borne = self.spend(now);
        self.left = self.left.saturating_sub(more);
        borne
    }

    /// A frame went out, which may be answered.
    pub(super) fn earn(&mut self) {
        self.left = (self.left + EARNED).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_out_and_comes_back() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        assert_eq!((0..BURST * 2).filter(|_| budget.spend(start)).count(), BURST as usize);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..BURST * 2).filter(|_| budget.spend(later)).count(), PER_SECOND as usize);
        budget.earn();
        assert_eq!((0..BURST * 2).filter(|_| budget.spend(later)).count(), EARNED as usize);
        let full = later + Duration::from_secs(60);
        let heads = (0..BURST).filter(|_| budget.spend_on_head(full, 16 << 10)).count();
        assert_eq!(heads, (BURST as usize).div_ceil(1 + (16 << 10) / HEAD_BYTES), "large heads are dear");
        let much_later = start + Duration::from_secs(100_000);
        assert_eq!((0..BURST * 2).filter(|_| budget.spend(much_later)).count(), BURST as usize);
    }
}
