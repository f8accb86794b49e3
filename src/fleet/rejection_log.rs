//! Log lines about rejections: one for the first of a version, then one for all clients that reject it.
//!
//! Owns which line is due. Time is an argument.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::nacks::Nack;
use crate::telemetry::LogThrottle;

const VERSIONS: usize = 64;
/// Time without rejections after which a version is dropped.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// From the first rejection of a version to its summary line.
const FIRST_SUMMARY: Duration = Duration::from_secs(1);

/// Rejections of one version, or of one text if the control plane gives no versions.
#[derive(Debug)]
struct Rejected {
    first: Arc<Nack>,
    clients: u64,
    nacks: u64,
    suppressed: u64,
    newest: Instant,
    due: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct Summary {
    pub(super) first: Arc<Nack>,
    pub(super) clients: u64,
    /// More than clients if some asked again.
    pub(super) nacks: u64,
}

#[derive(Debug)]
pub(super) struct RejectionLog {
    /// Few at any time: a scan costs less than a table.
    rejected: Vec<Rejected>,
    throttle: LogThrottle<Line>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    First,
    Summary,
}

impl Default for RejectionLog {
    fn default() -> Self {
        Self { rejected: Vec::new(), throttle: LogThrottle::burst() }
    }
}

impl RejectionLog {
    /// Notes a rejection. If it has a line of its own, returns the number of lines suppressed before.
    /// `is_new`: its client had not rejected this version.
    pub(super) fn note(&mut self, nack: &Arc<Nack>, is_new: bool, now: Instant) -> Option<u64> {
        if let Some(known) = self.rejected.iter_mut().find(|rejected| rejected.first.is_of_version_of(nack)) {
            known.clients += u64::from(is_new);
            known.nacks += 1;
            known.suppressed += 1;
            known.newest = now;
            return None;
        }
        if self.rejected.len() == VERSIONS {
            let oldest = (0..VERSIONS).min_by_key(|at| self.rejected[*at].newest);
            oldest.into_iter().for_each(|at| drop(self.rejected.swap_remove(at)));
        }
        let (first, due, line) = (Arc::clone(nack), now + FIRST_SUMMARY, self.throttle.say(Line::First, now));
        // Without its own line, it counts in the summary.
        let suppressed = u64::from(line.is_none());
        self.rejected.push(Rejected { first, clients: 1, nacks: 1, suppressed, newest: now, due });
        line
    }

    pub(super) fn due(&mut self, now: Instant) -> Vec<Summary> {
        self.rejected.retain(|rejected| rejected.suppressed > 0 || now < rejected.newest + FORGOTTEN);
        let is_due = |rejected: &&mut Rejected| rejected.suppressed > 0 && now >= rejected.due;
        let due = self
            .rejected
            .iter_mut()
            .filter(is_due)
            .take_while(|_| self.throttle.say(Line::Summary, now).is_some());
        due.map(|rejected| {
            rejected.suppressed = 0;
            rejected.due = now + LogThrottle::INTERVAL;
            let Rejected { first, clients, nacks, .. } = rejected;
            Summary { first: Arc::clone(first), clients: *clients, nacks: *nacks }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Generation;
    use crate::identity::{Peer, Source};
    use crate::resource::{Kind, TypeUrl};
    use crate::subscription::{Client, Delivery};

    fn nack(version: &str, text: &str) -> Arc<Nack> {
        let delivery =
            Delivery { version: version.into(), generation: Generation::from(7), at: Instant::now() };
        Arc::new(Nack {
            id: 1,
            client: Arc::new(Client::default()),
            peer: Arc::new(Peer::unproven(Source::Unix)),
            type_url: TypeUrl::from(Kind::Cluster),
            delivery,
            code: 13,
            text: text.into(),
            changed: None,
        })
    }

    #[test]
    fn a_fleet_that_rejects_a_version_has_two_lines() {
        let (mut log, start) = (RejectionLog::default(), Instant::now());
        let own = (0..2_000).filter(|at| log.note(&nack("17", "no"), *at < 1_987, start).is_some()).count();
        assert_eq!(own, 1);
        assert_eq!(log.due(start).len(), 0, "it is given a moment to come together");
        let lines = log.due(start + FIRST_SUMMARY);
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].clients, lines[0].nacks), (1_988 - 1, 2_000));
        // Stragglers are counted in the next line, which is not due at once.
        let late = start + Duration::from_secs(5);
        assert_eq!(log.note(&nack("17", "no"), true, late), None);
        assert!(log.due(late).is_empty());
        let lines = log.due(late + LogThrottle::INTERVAL);
        assert_eq!(lines.iter().map(|line| line.clients).collect::<Vec<_>>(), [1_988]);
        assert!(log.due(late + 10 * LogThrottle::INTERVAL).is_empty(), "nothing new");
    }

    #[test]
    fn versions_and_texts_are_told_apart() {
        let (mut log, start) = (RejectionLog::default(), Instant::now());
        let is_told = |log: &mut RejectionLog, version: &str, text: &str| {
            log.note(&nack(version, text), true, start).is_some()
        };
        assert!(is_told(&mut log, "17", "no"));
        assert!(!is_told(&mut log, "17", "neither"), "the version says what was rejected");
        assert!(is_told(&mut log, "18", "no"));
        assert!(is_told(&mut log, "", "no"), "a control plane without versions");
        assert!(is_told(&mut log, "", "neither"));
        assert!(!is_told(&mut log, "", "no"));
    }

    #[test]
    fn a_client_that_makes_up_texts_spends_a_budget_and_little_memory() {
        let (mut log, start) = (RejectionLog::default(), Instant::now());
        let at = |number| start + Duration::from_micros(number);
        let told = (0..10_000).filter(|n| log.note(&nack("", &n.to_string()), true, at(*n)).is_some());
        assert_eq!(told.count(), 50);
        assert_eq!(log.rejected.len(), VERSIONS);
        // Rejections without a line are in one later, and these have a budget too.
        let due = |log: &mut RejectionLog, seconds| log.due(start + Duration::from_secs(seconds)).len();
        assert_eq!([2, 3, 40, 41].map(|seconds| due(&mut log, seconds)), [50, 0, 14, 0]);
        assert!(log.due(at(9_999) + FORGOTTEN).is_empty() && log.rejected.is_empty(), "they are forgotten");
    }
}
