//! Measures of a load. Time is an argument.
//!
//! Over delta, a change is a resource's new version or removal. In state of the world, whose resources have
//! no versions, it is a response's new version. A version that returns is another change. A change's spread
//! at a client is the time since the first client received it. A client that connected later gets it in its
//! first state: no spread.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

const MAX_CAUSES: usize = 16;

/// Hash of a type and a name.
pub(super) type NameKey = u64;
/// Hash of a version; `None` for a removal.
pub(super) type Key = Option<u64>;

/// With three significant digits.
#[derive(Clone, Debug)]
pub(super) struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        /// Microseconds of an hour.
        const LONGEST: u64 = 3_600_000_000;
        // Fails only for wrong bounds or too many digits.
        let bounded = Histogram::new_with_bounds(1, LONGEST, 3);
        Self(bounded.unwrap_or_else(|_| unreachable!("the bounds are in order")))
    }
}

impl Times {
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

/// Change on its way to the clients.
#[derive(Clone, Copy, Debug)]
struct Version {
    key: Key,
    first: Instant,
    last: Instant,
    clients: usize,
}

#[derive(Debug, Default)]
pub(super) struct Measures {
    /// From an attempt's start to the server's first frame.
    pub(super) connect: Times,
    /// From an attempt's start to the first response.
    pub(super) first_answer: Times,
    /// At each client but the first.
    pub(super) spread: Times,
    names: HashMap<NameKey, Vec<Version>, foldhash::fast::RandomState>,
    measured_since: Option<Instant>,
    pub(super) last_response: Option<Instant>,
    pub(super) responses: u64,
    pub(super) bytes: u64,
    /// Clients with a response.
    pub(super) answered: usize,
    pub(super) changes: usize,
    pub(super) failed: u64,
    pub(super) lost: u64,
    /// Ends of attempts and streams, by cause.
    pub(super) causes: BTreeMap<String, u64>,
    /// Cause of the last failed attempt, with the remedy.
    pub(super) last_failure: Option<String>,
}

impl Measures {
    /// From now on, new versions count as changes.
    pub(super) fn begin(&mut self, now: Instant) {
        self.measured_since = Some(now);
    }

    pub(super) fn connected(&mut self, after: Duration) {
        self.connect.record(after);
    }

    /// First response on a stream. `is_first`: the client's first on any stream.
    pub(super) fn answered_after(&mut self, after: Duration, is_first: bool) {
        self.first_answer.record(after);
        self.answered += usize::from(is_first);
    }

    pub(super) fn response(&mut self, bytes: usize, now: Instant) {
        self.responses += 1;
        self.bytes += bytes as u64;
        self.last_response = self.last_response.max(Some(now));
    }

    /// Notes a version at a client whose first response on this stream came at `since`. `after` is its last
    /// change of this name; without one, the version is part of its first state. Returns the change's number.
    pub(super) fn version(
        &mut self,
        name: NameKey,
        key: Key,
        after: Option<usize>,
        since: Instant,
        now: Instant,
    ) -> usize {
        let measured_since = self.measured_since;
        let is_measured = |first: Instant| measured_since.is_some_and(|begun| begun <= first);
        let versions = self.names.entry(name).or_default();
        // The newest one: a server may skip versions for this client.
        let later = after.map_or(0, |after| after + 1)..versions.len();
        let Some(known) = later.rev().find(|number| versions[*number].key == key) else {
            self.changes += usize::from(is_measured(now));
            versions.push(Version { key, first: now, last: now, clients: 1 });
            return versions.len() - 1;
        };
        let version = &mut versions[known];
        if is_measured(version.first) && since <= version.first {
            // Clients may take the lock in another order than they read in.
            self.spread.record(now.saturating_duration_since(version.first));
            version.last = version.last.max(now);
            version.clients += 1;
        }
        known
    }

    /// Notes the end of an attempt, or of a stream with a response.
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

    /// Whether all clients had a response, or none had and failures reach the number of clients.
    pub(super) const fn is_settled(&self, clients: usize) -> bool {
        self.answered >= clients || (self.answered == 0 && self.failed >= clients as u64)
    }

    /// For changes that all clients have.
    pub(super) fn whole(&self) -> Times {
        let mut whole = Times::default();
        let begun = self.measured_since;
        let of_changes =
            self.names.values().flatten().filter(|version| begun.is_some_and(|begun| begun <= version.first));
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
        let mut measures = Measures::default();
        for client in 0..3 {
            measures.answered_after(Duration::from_millis(client), true);
            measures.response(10, at(client));
            assert_eq!(measures.version(7, Some(1), None, at(client), at(client)), 0);
        }
        assert_eq!((measures.changes, measures.spread.count()), (0, 0), "first states");
        measures.begin(at(100));
        assert_eq!(measures.version(7, Some(2), Some(0), at(0), at(200)), 1);
        assert_eq!(measures.version(7, Some(2), Some(0), at(0), at(210)), 1);
        assert_eq!(measures.whole().count(), 0, "one client lacks it");
        assert_eq!(measures.version(7, Some(2), Some(0), at(0), at(250)), 1);
        assert_eq!((measures.changes, measures.spread.count()), (1, 2));
        assert_eq!((millis(&measures.spread, 0.5), millis(&measures.spread, 1.0)), (10, 50));
        assert_eq!(millis(&measures.whole(), 1.0), 50);
        assert_eq!((measures.responses, measures.bytes), (3, 30));
    }

    #[test]
    fn a_version_that_comes_back_is_another_change() {
        let zero = Instant::now();
        let at = |millis| zero + Duration::from_millis(millis);
        let mut measures = Measures::default();
        let mut held = [None; 2];
        for (client, held) in held.iter_mut().enumerate() {
            measures.answered_after(Duration::ZERO, true);
            *held = Some(measures.version(7, Some(1), None, at(0), at(client as u64)));
        }
        measures.begin(at(100));
        for change in 0..40 {
            let (begun, key) = (1000 * (change + 1), Some(if change % 2 == 0 { 2 } else { 1 }));
            for (client, held) in held.iter_mut().enumerate() {
                // One of them misses every other pair, which leads back to what it has.
                if client == 0 || change % 4 < 2 {
                    *held = Some(measures.version(7, key, *held, at(0), at(begun + 5 * client as u64)));
                }
            }
        }
        assert_eq!((measures.changes, measures.spread.count()), (40, 20));
        assert_eq!((millis(&measures.spread, 1.0), measures.whole().count()), (5, 20));
    }

    #[test]
    fn a_client_that_connects_anew_is_sent_its_first_state() {
        let zero = Instant::now();
        let at = |millis| zero + Duration::from_millis(millis);
        let mut measures = Measures::default();
        measures.begin(at(10));
        let held = measures.version(7, Some(1), None, at(0), at(20));
        assert_eq!(measures.version(7, Some(1), None, at(500), at(510)), held);
        assert_eq!(measures.spread.count(), 0);
        measures.version(7, Some(2), Some(held), at(0), at(600));
        measures.version(7, Some(2), Some(held), at(500), at(601));
        assert_eq!((measures.spread.count(), measures.changes), (1, 2));
    }

    #[test]
    fn causes_are_bounded() {
        let mut measures = Measures::default();
        for at in 0..100 {
            measures.ended(at % 2 == 0, format!("cause {at}"), String::new());
        }
        assert_eq!((measures.lost, measures.failed), (50, 50));
        assert_eq!(measures.causes.len(), MAX_CAUSES + 1);
        assert_eq!(measures.causes.values().sum::<u64>(), 100);
    }
}
