//! Token bucket for frames that do no work: rapid resets, floods of PING, SETTINGS, PRIORITY, empty DATA.

use std::time::{Duration, Instant};

/// Capacity in frames. A proxy in front of a thousand clients resets a thousand streams when it
/// goes.
const BURST: u32 = 2000;
/// Refill, in frames per second.
const PER_SECOND: u32 = 500;
/// Bytes of a refused header block that cost as much as one frame.
const HEAD_BYTES: usize = 256;
/// Frames that a peer earns with each frame it is sent: two WINDOW_UPDATEs, a PING that measures
/// the path, and one more.
const EARNED: u32 = 4;

/// Token bucket of one connection. Refills over time and with each frame sent to the peer, since clients that measure
/// the path answer data with PING.
///
/// Example: a peer may reset 2000 streams at once, then 500 per second.
#[derive(Debug)]
pub(super) struct WorkBudget {
    left: u32,
    at: Instant,
}

impl WorkBudget {
    pub(super) const fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    /// Charges one frame. Returns false if the budget is used up.
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

    /// Charges a refused header block. It was decoded to its end, since later blocks build upon it.
    pub(super) fn spend_on_head(&mut self, now: Instant, bytes: usize) -> bool {
        let more = u32::try_from(bytes / HEAD_BYTES).unwrap_or(u32::MAX);
        let borne = self.spend(now);
        self.left = self.left.saturating_sub(more);
        borne
    }

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
        let mut work_budget = WorkBudget::new(start);
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(start)).count(), BURST as usize);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(later)).count(), PER_SECOND as usize);
        work_budget.earn();
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(later)).count(), EARNED as usize);
        let full = later + Duration::from_secs(60);
        let heads = (0..BURST).filter(|_| work_budget.spend_on_head(full, 16 << 10)).count();
        assert_eq!(heads, (BURST as usize).div_ceil(1 + (16 << 10) / HEAD_BYTES), "large heads are dear");
        let much_later = start + Duration::from_secs(100_000);
        assert_eq!((0..BURST * 2).filter(|_| work_budget.spend(much_later)).count(), BURST as usize);
    }
}
