//! Limit on log lines about many peers.

use std::time::Instant;

use super::LogThrottle;

/// Limits log lines about many peers to a few per interval, whichever peers they are about.
#[derive(Debug, Default)]
pub struct LogBudget {
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl LogBudget {
    const LINES: u32 = 50;

    /// Returns the number of lines suppressed since the last one if the line may be logged now, else `None`.
    pub fn say(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now >= since + LogThrottle::INTERVAL) {
            self.since = Some(now);
            self.said = 0;
        }
        if self.said == Self::LINES {
            self.unsaid += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_budget_is_spent_and_comes_back() {
        let (mut budget, start) = (LogBudget::default(), Instant::now());
        let said = (0..1000).filter(|_| budget.say(start).is_some()).count();
        assert_eq!(said, LogBudget::LINES as usize);
        assert_eq!(budget.say(start + LogThrottle::INTERVAL), Some(950));
        assert_eq!(budget.say(start + LogThrottle::INTERVAL), Some(0));
    }

    #[test]
    fn trouble_is_told_at_once_then_seldom_and_its_end_is_told() {
        let (mut complaints, start) = (LogThrottle::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(complaints.over(), None, "no trouble, no recovery");
        assert_eq!(complaints.say(start), Some(0));
        let told: Vec<u64> = (1..=90).filter_map(|second| complaints.say(after(second))).collect();
        assert_eq!(told, [29, 29, 29]);
        assert_eq!(complaints.say(after(91)), None);
        assert_eq!(complaints.over(), Some(1));
        assert_eq!(complaints.say(after(91) + LogThrottle::INTERVAL), Some(0), "new trouble");
    }

    #[test]
    fn trouble_that_comes_and_goes_is_told_once_per_interval() {
        let (mut complaints, start) = (LogThrottle::default(), Instant::now());
        let mut lines = [Vec::new(), Vec::new()];
        for tenth in 0..900_u32 {
            lines[0].extend(complaints.say(start + Duration::from_millis(100) * tenth));
            lines[1].extend(complaints.over());
        }
        assert_eq!(
            lines,
            [vec![0, 299, 299], vec![0, 0, 0]],
            "complaints, and ends of what was complained of"
        );
    }
}
