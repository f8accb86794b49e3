//! The relay's two views of a name, and the TTLs in each with the time when clients got them.
//!
//! Owns the last two TTLs of a name per view, each with its generation. Knows no clock and removes nothing.
//!
//! Invariants:
//! - Only the origin starts a lease (R-TTL-09).
//! - Clients are sent at most the time left, except within the first moment.
//! - A renewal is news only to clients that receive TTLs.

use std::time::{Duration, Instant};

use super::Generation;

/// Subscription through which the relay holds a resource (R-Relay-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// As a member of the wildcard set.
    Wildcard,
    Named,
}

impl View {
    pub const ALL: [Self; 2] = [Self::Wildcard, Self::Named];
}

/// Tolerance: a TTL sent at most this long ago counts as sent now.
pub(super) const MOMENT: Duration = Duration::from_millis(100);

/// TTL of the origin, with the moment at which it ends.
///
/// Example: the origin gives 60 s at 10:00:00. A client that comes at once is sent 60 s; one that comes at
/// 10:00:20 is sent 40 s. Both hold the resource until 10:01:00 (R-TTL-09).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ttl: Duration,
    until: Instant,
}

impl Lease {
    /// A lease that begins now; `None` for times beyond those that clients can count (292 years).
    pub fn new(ttl: Duration, now: Instant) -> Option<Self> {
        Self::ending(ttl, now.checked_add(ttl)?)
    }

    /// A lease of which a part is left.
    pub(crate) fn ending(ttl: Duration, until: Instant) -> Option<Self> {
        i64::try_from(ttl.as_nanos()).ok()?;
        Some(Self { ttl, until })
    }

    /// The whole TTL, of which a part may have passed.
    pub(crate) const fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// TTL to send now: all of it at the beginning, then the time left (R-TTL-09).
    pub(super) fn remaining_ttl(&self, now: Instant) -> Duration {
        const LEAST: Duration = Duration::from_millis(1);
        let left = self.until.saturating_duration_since(now);
        if self.ttl.saturating_sub(left) <= MOMENT {
            return self.ttl.max(LEAST);
        }
        let millis = u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Duration::from_millis(millis).min(self.ttl).max(LEAST)
    }

    /// Whether a client that received this TTL will surely hold the resource when our next message arrives.
    fn outlasts(&self, now: Instant) -> bool {
        let margin = (self.ttl / 4).min(Duration::from_secs(1));
        now.checked_add(margin).is_some_and(|then| then < self.until)
    }
}

/// Lease, or none, that clients get from a generation on.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRecord {
    pub(super) lease: Option<Lease>,
    /// Zero until the change is stamped.
    pub(super) at: Generation,
}

/// Current and previous lease of a name in one view.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseHistory {
    pub(super) current: LeaseRecord,
    /// `None` if it is unknown what clients got before, other than with the body.
    pub(super) before: Option<LeaseRecord>,
}

impl LeaseHistory {
    /// Whether a client surely held the body without a break, so that it understands a heartbeat (R-TTL-03). It
    /// was sent everything up to `sent`, and may have rejected up to `doubt`.
    pub(super) fn is_held(&self, sent: Generation, doubt: Generation, now: Instant) -> bool {
        let is_sure = |term: &LeaseRecord| doubt < term.at && term.at <= sent;
        let before = self.before.filter(is_sure);
        before.is_some_and(|before| before.lease.is_none_or(|lease| lease.outlasts(now)))
    }
}

/// Leases by [`View`].
#[derive(Clone, Debug, Default)]
pub(super) struct Leases(pub(super) [Option<LeaseHistory>; 2]);

impl Leases {
    pub(super) const fn of(&self, view: View) -> Option<LeaseHistory> {
        self.0[view as usize]
    }

    pub(super) fn is_new(&self, view: View) -> bool {
        self.of(view).is_some_and(|history| history.current.at == Generation::ZERO)
    }

    pub(super) fn newest(&self) -> Generation {
        self.0.iter().flatten().map(|history| history.current.at).max().unwrap_or_default()
    }
}

/// Audiences of a renewed lease, among clients that receive TTLs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseRenewal {
    pub(super) members: bool,
    pub(super) named: bool,
    /// Any view, even one that no client sees.
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
        assert_eq!(lease.remaining_ttl(start), ttl);
        assert_eq!(lease.remaining_ttl(at(100)), ttl);
        assert_eq!(lease.remaining_ttl(at(101)), Duration::from_millis(9_900), "rounded up");
        assert_eq!(lease.remaining_ttl(at(9_999)), Duration::from_millis(2), "rounded up");
        assert_eq!(lease.remaining_ttl(at(20_000)), Duration::from_millis(1), "never nothing");
        let none = Lease::new(Duration::ZERO, start).expect("it ends at once");
        assert_eq!(none.remaining_ttl(start), Duration::from_millis(1));
        assert_eq!(Lease::new(Duration::from_secs(u64::MAX), start), None);
    }
}
