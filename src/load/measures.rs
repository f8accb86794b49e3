//! Measures of a load. Time is an argument.
//!
//! A change is a version that no client had when the measuring began: of a resource over delta, of a response in state of the world, whose
//! resources have none of their own. Its spread at a client is the time since the first client of all had it. A client that
//! connected later than that is sent the version as a part of its first state, which is no spread.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Versions that are told apart. What comes beyond is not measured.
const MAX_VERSIONS: usize = 1 << 20;
/// Causes of lost streams that are told apart.
const MAX_CAUSES: usize = 16;

/// Hash of a type, a name and a version.
pub(super) type Key = u64;

/// Times to the microsecond, with three significant digits.
#[derive(Clone, Debug)]
pub(super) struct Times(Histogram<u64>);

impl Times {
    fn new() -> Self {
        /// Microseconds of an hour.
        const LONGEST: u64 = 3_600_000_000;
        // Fails for bounds in the wrong order, or too many digits.
        let bounded = Histogram::new_with_bounds(1, LONGEST, 3);
        Self(bounded.unwrap_or_else(|_| unreachable!("the bounds are in order")))
    }

    fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Time that this fraction does not exceed.
    pub(super) fn quantile(&self, fraction: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(fraction))
    }

    pub(super) fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }
}

/// Version on its way through the clients.
#[derive(Clone, Copy, Debug)]
struct Version {
    first: Instant,
    last: Instant,
    clients: usize,
}

/// Figures of a load so far.
#[derive(Debug)]
pub(super) struct Measures {
    /// From the start of a client's attempt to the server's first frame.
    pub(super) connect: Times,
    /// From that start to the client's first response.
    pub(super) first_answer: Times,
    /// Spread of changes, for each client but the first of each change.
    pub(super) spread: Times,
    versions: HashMap<Key, Version, foldhash::fast::RandomState>,
    /// Whether a version was left out.
    pub(super) is_full: bool,
    measured_since: Option<Instant>,
    /// Time that was measured so far.
    measured_until: Instant,
    last_response: Instant,
    pub(super) responses: u64,
    pub(super) bytes: u64,
    answered: usize,
    changes: usize,
    pub(super) failed: u64,
    pub(super) lost: u64,
    /// Ends of attempts and streams, by their cause.
    pub(super) causes: BTreeMap<String, u64>,
    last_failure: Option<String>,
}

impl Measures {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            connect: Times::new(),
            first_answer: Times::new(),
            spread: Times::new(),
            versions: HashMap::default(),
            is_full: false,
            measured_since: None,
            measured_until: now,
            last_response: now,
            responses: 0,
            bytes: 0,
            answered: 0,
            changes: 0,
            failed: 0,
            lost: 0,
            causes: BTreeMap::new(),
            last_failure: None,
        }
    }

    /// Versions that come from now on are changes.
    pub(super) fn begin(&mut self, now: Instant) {
        self.measured_since = Some(now);
    }

    /// Notes a connection after such a time.
    pub(super) fn connected(&mut self, after: Duration) {
        self.connect.record(after);
    }

    /// Notes the first response on a stream; of a client it may be the first one ever.
    pub(super) fn answered_after(&mut self, after: Duration, is_first: bool) {
        self.first_answer.record(after);
        self.answered += usize::from(is_first);
    }

    /// Notes a response at a client that has had its first response at `since`.
    pub(super) fn response(&mut self, keys: &[Key], bytes: usize, since: Instant, now: Instant) {
        self.responses += 1;
        self.bytes += bytes as u64;
        self.last_response = self.last_response.max(now);
        self.measured_until = self.measured_until.max(now);
        for key in keys {
            self.version(*key, since, now);
        }
    }

    fn version(&mut self, key: Key, since: Instant, now: Instant) {
        let is_measured = |first: Instant| self.measured_since.is_some_and(|begun| begun <= first);
        if let Some(version) = self.versions.get_mut(&key) {
            if is_measured(version.first) && since <= version.first {
                // Clients note what they read in any order.
                self.spread.record(now.saturating_duration_since(version.first));
                version.last = version.last.max(now);
                version.clients += 1;
            }
        } else if self.versions.len() < MAX_VERSIONS {
            self.changes += usize::from(is_measured(now));
            self.versions.insert(key, Version { first: now, last: now, clients: 1 });
        } else {
            self.is_full = true;
        }
    }

    /// Notes the end of an attempt, or of a stream that had a response.
    pub(super) fn ended(&mut self, had_response: bool, cause: String, explained: String) {
        if had_response {
            self.lost += 1;
        } else {
            self.failed += 1;
            self.last_failure = Some(explained);
        }
        if self.causes.len() < MAX_CAUSES || self.causes.contains_key(&cause) {
            *self.causes.entry(cause).or_default() += 1;
        } else {
            *self.causes.entry("other causes".to_owned()).or_default() += 1;
        }
    }

    /// Number of clients that have had a response.
    pub(super) const fn answered(&self) -> usize {
        self.answered
    }

    /// Whether so many clients have had a response, or as many attempts failed and none has had one.
    pub(super) const fn is_settled(&self, clients: usize) -> bool {
        self.answered >= clients || (self.answered == 0 && self.failed >= clients as u64)
    }

    /// Number of changes.
    pub(super) const fn changes(&self) -> usize {
        self.changes
    }

    /// Time of the last response.
    pub(super) const fn last_response(&self) -> Instant {
        self.last_response
    }

    /// Words about the last attempt without a response.
    pub(super) fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    /// Spread at the last client of each change that all clients have.
    pub(super) fn whole(&self) -> Times {
        let mut whole = Times::new();
        let begun = self.measured_since;
        let of_changes =
            self.versions.values().filter(|version| begun.is_some_and(|begun| begun <= version.first));
        for version in of_changes.filter(|version| version.clients >= self.answered) {
            whole.record(version.last.saturating_duration_since(version.first));
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(times: &Times, fraction: f64) -> u128 {
        (times.quantile(fraction).as_micros() + 500) / 1_000
    }

    #[test]
    fn a_spread_is_the_time_since_the_first_client() {
        let zero = Instant::now();
        let at = |millis| zero + Duration::from_millis(millis);
        let mut measures = Measures::new(zero);
        for client in 0..3 {
            measures.answered_after(Duration::from_millis(client), true);
            measures.response(&[1, 2], 10, at(0), at(client));
        }
        assert_eq!((measures.changes(), measures.spread.count()), (0, 0), "first states");
        measures.begin(at(100));
        measures.response(&[1], 10, at(0), at(150));
        assert_eq!(measures.changes(), 0, "a version from before");
        measures.response(&[3], 10, at(0), at(200));
        measures.response(&[3], 10, at(0), at(210));
        assert_eq!(measures.whole().count(), 0, "one client lacks it");
        measures.response(&[3], 10, at(0), at(250));
        assert_eq!((measures.changes(), measures.spread.count()), (1, 2));
        assert_eq!((millis(&measures.spread, 0.5), millis(&measures.spread, 1.0)), (10, 50));
        assert_eq!(millis(&measures.whole(), 1.0), 50);
        assert_eq!((measures.responses, measures.bytes), (7, 70));
    }

    #[test]
    fn a_client_that_connects_anew_is_sent_its_first_state() {
        let zero = Instant::now();
        let at = |millis| zero + Duration::from_millis(millis);
        let mut measures = Measures::new(zero);
        measures.begin(at(10));
        measures.response(&[1], 0, at(0), at(20));
        measures.response(&[1], 0, at(500), at(510));
        assert_eq!(measures.spread.count(), 0);
        measures.response(&[2], 0, at(0), at(600));
        measures.response(&[2], 0, at(500), at(601));
        assert_eq!((measures.spread.count(), measures.changes()), (1, 2));
    }

    #[test]
    fn causes_are_bounded() {
        let mut measures = Measures::new(Instant::now());
        for at in 0..100 {
            measures.ended(at % 2 == 0, format!("cause {at}"), String::new());
        }
        assert_eq!((measures.lost, measures.failed), (50, 50));
        assert_eq!(measures.causes.len(), MAX_CAUSES + 1);
        assert_eq!(measures.causes.values().sum::<u64>(), 100);
    }
}
