//! Lifetimes of cached resources, and when clients had to learn of them.
//!
//! Owns, per name and view, the time that the origin last gave and the one before it, each with the generation in which
//! clients had to learn of it. Knows no clock, and takes nothing away: a caller that knows the time removes what has ended.
//!
//! Invariants:
//! - A lease begins with a word of the origin and with nothing else (R-TTL-09).
//! - What is told of it is never more than is left, but for the moment in which it began.
//! - A renewal is news to nobody but clients that are told TTLs.

use std::time::{Duration, Instant};

use super::Generation;
use super::view::View;

/// Tolerance for times: one that was told at most this long ago counts as told now.
pub(super) const MOMENT: Duration = Duration::from_millis(100);

/// TTL that the origin gave, with the moment at which it ends.
///
/// Example: the origin gives 60 s at 10:00:00. A client that is told at once is told 60 s; one that comes at 10:00:20 is
/// told 40 s. Both hold the resource until 10:01:00 (R-TTL-09).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ttl: Duration,
    until: Instant,
}

impl Lease {
    /// A lease that begins now. What is farther than clients can count (292 years) is no limit.
    pub fn new(ttl: Duration, now: Instant) -> Option<Self> {
        i64::try_from(ttl.as_nanos()).ok()?;
        Some(Self { ttl, until: now.checked_add(ttl)? })
    }

    /// A lease of which a part is left.
    pub(crate) fn ending(ttl: Duration, until: Instant) -> Option<Self> {
        i64::try_from(ttl.as_nanos()).ok()?;
        Some(Self { ttl, until })
    }

    /// The TTL, of which a part may have passed.
    pub(crate) const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// When it ends.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Time that a client is told at this moment: all of it at its beginning, else the time left (R-TTL-09).
    pub(super) fn told(&self, now: Instant) -> Duration {
        const LEAST: Duration = Duration::from_millis(1);
        let left = self.until.saturating_duration_since(now);
        if self.ttl.saturating_sub(left) <= MOMENT {
            return self.ttl.max(LEAST);
        }
        let millis = u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Duration::from_millis(millis).min(self.ttl).max(LEAST)
    }

    /// Whether a client that received this TTL will surely still hold the resource when our next message arrives.
    fn outlasts(&self, now: Instant) -> bool {
        let margin = (self.ttl / 4).min(Duration::from_secs(1));
        now.checked_add(margin).is_some_and(|then| then < self.until)
    }
}

/// Lease that clients are told of from a generation on, or that there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRecord {
    pub(super) lease: Option<Lease>,
    /// Zero while it is not known yet.
    pub(super) at: Generation,
}

/// The lease of a name in one view, and the one before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseHistory {
    pub(super) current: LeaseRecord,
    /// `None` where it cannot be said what clients were told before this, but with the body.
    pub(super) before: Option<LeaseRecord>,
}

impl LeaseHistory {
    pub(super) const fn lease(&self) -> Option<Lease> {
        self.current.lease
    }

    /// When it was last renewed.
    pub(super) const fn at(&self) -> Generation {
        self.current.at
    }

    /// Whether a client that was told everything up to `told`, and may have refused what it was told up to `doubt`, has
    /// the body and has had it without a break, so that a heartbeat is understood (R-TTL-03).
    pub(super) fn is_held(&self, told: Generation, doubt: Generation, now: Instant) -> bool {
        let is_sure = |term: &LeaseRecord| doubt < term.at && term.at <= told;
        let before = self.before.filter(is_sure);
        before.is_some_and(|before| before.lease.is_none_or(|lease| lease.outlasts(now)))
    }
}

/// The leases of a name; most names have none.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    pub(super) wild: Option<LeaseHistory>,
    pub(super) named: Option<LeaseHistory>,
}

impl Leases {
    pub(super) const fn of(&self, view: View) -> Option<&LeaseHistory> {
        match view {
            View::Wildcard => self.wild.as_ref(),
            View::Named => self.named.as_ref(),
        }
    }

    pub(super) const fn slot(&mut self, view: View) -> &mut Option<LeaseHistory> {
        match view {
            View::Wildcard => &mut self.wild,
            View::Named => &mut self.named,
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &LeaseHistory> {
        self.wild.iter().chain(&self.named)
    }

    pub(super) fn is_new(&self, view: View) -> bool {
        self.of(view).is_some_and(|history| history.at() == Generation::ZERO)
    }

    /// When any of them was last renewed.
    pub(super) fn newest(&self) -> Generation {
        self.all().map(LeaseHistory::at).max().unwrap_or_default()
    }
}

/// Audiences of a renewed lease, among clients that are told TTLs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseRenewal {
    pub(super) members: bool,
    pub(super) named: bool,
    /// Whether any was, even one that no client sees.
    pub(super) any: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_ttl_09_a_ttl_is_told_whole_at_first_and_then_as_the_rest_of_it() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let ttl = Duration::new(10, 500);
        let lease = Lease::new(ttl, start).expect("ten seconds from now");
        assert_eq!(lease.told(start), ttl);
        assert_eq!(lease.told(at(100)), ttl);
        assert_eq!(lease.told(at(101)), Duration::from_millis(9_900), "rounded up");
        assert_eq!(lease.told(at(9_999)), Duration::from_millis(2), "rounded up");
        assert_eq!(lease.told(at(20_000)), Duration::from_millis(1), "never nothing");
        let none = Lease::new(Duration::ZERO, start).expect("it ends at once");
        assert_eq!(none.told(start), Duration::from_millis(1));
        assert_eq!(Lease::new(Duration::from_secs(u64::MAX), start), None);
    }
}
