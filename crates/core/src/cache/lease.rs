//! For how long what is cached is to be kept, and who was told so.
//!
//! Owns, per name and view, the time that the origin last gave and the one before it, each with the generation in which
//! clients had to learn of it. Knows no clock, and takes nothing away: what has ended is removed by the one who knows.
//!
//! Invariants:
//! - A lease begins with a word of the origin and with nothing else (R-TTL-09).
//! - What is told of it is never more than is left, but for the moment in which it began.
//! - A renewal is news to nobody but clients that are told TTLs.

use std::time::{Duration, Instant};

use super::entry::{Entry, Named, Seen};
use super::registry::Subscription;
use super::{Generation, View};
use crate::resource::Name;

/// What was made within this time of what it tells still counts as of then.
pub(super) const MOMENT: Duration = Duration::from_millis(100);

/// A time that the origin gave.
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

    /// When it ends.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// What a client is told of it at this moment: all of it at its beginning, else what is left (R-TTL-09).
    pub(super) fn told(&self, now: Instant) -> Duration {
        const LEAST: Duration = Duration::from_millis(1);
        let left = self.until.saturating_duration_since(now);
        if self.ttl.saturating_sub(left) <= MOMENT {
            return self.ttl.max(LEAST);
        }
        let millis = u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Duration::from_millis(millis).min(self.ttl).max(LEAST)
    }

    /// Whether who was told of it surely holds the resource when what is said now reaches it.
    fn outlasts(&self, now: Instant) -> bool {
        let margin = (self.ttl / 4).min(Duration::from_secs(1));
        now.checked_add(margin).is_some_and(|then| then < self.until)
    }
}

/// What was told from a generation on: this lease, or that there is none.
#[derive(Clone, Copy, Debug)]
struct Term {
    lease: Option<Lease>,
    /// Zero while it is not known yet.
    at: Generation,
}

/// The lease of a name in one view, and the one before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenure {
    current: Term,
    /// `None` where it cannot be said what clients were told before this, but with the body.
    before: Option<Term>,
}

impl Tenure {
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
        let is_sure = |term: &Term| doubt < term.at && term.at <= told;
        let before = self.before.filter(is_sure);
        before.is_some_and(|before| before.lease.is_none_or(|lease| lease.outlasts(now)))
    }
}

/// The leases of a name; most names have none.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    wild: Option<Tenure>,
    named: Option<Tenure>,
}

impl Leases {
    const fn of(&self, view: View) -> Option<&Tenure> {
        match view {
            View::Wildcard => self.wild.as_ref(),
            View::Named => self.named.as_ref(),
        }
    }

    const fn slot(&mut self, view: View) -> &mut Option<Tenure> {
        match view {
            View::Wildcard => &mut self.wild,
            View::Named => &mut self.named,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Tenure> {
        self.wild.iter().chain(&self.named)
    }

    fn is_new(&self, view: View) -> bool {
        self.of(view).is_some_and(|tenure| tenure.at() == Generation::ZERO)
    }

    /// When any of them was last renewed.
    fn newest(&self) -> Generation {
        self.all().map(Tenure::at).max().unwrap_or_default()
    }
}

/// To whom a lease was renewed, of those who are told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Renewed {
    pub(super) members: bool,
    pub(super) named: bool,
    /// Whether any was, be there nobody who sees it.
    pub(super) any: bool,
}

impl Entry {
    /// The origin spoke of what is held: with a body that is new, or with what was held before, which it may mean for
    /// the clients, or only of its time (R-TTL-01, R-TTL-02).
    pub(super) fn lend(&mut self, view: View, lease: Option<Lease>, is_new: bool, resent: bool) {
        if lease.is_none() && self.leases.is_none() {
            return;
        }
        let body_at = self.wild_changed.max(self.named_changed);
        let slot = self.leases.get_or_insert_default().slot(view);
        let current = Term { lease, at: Generation::ZERO };
        if is_new {
            *slot = lease.map(|_| Tenure { current, before: None });
        } else if resent {
            // That there was a time is remembered: who was away may have been told of it.
            *slot = (lease.is_some() || slot.is_some()).then_some(Tenure { current, before: None });
        } else {
            let before = slot.map_or(Term { lease: None, at: body_at }, |tenure| tenure.current);
            if lease.is_some() || before.lease.is_some() {
                *slot = Some(Tenure { current, before: Some(before) });
            }
        }
        self.drop_no_leases();
    }

    /// The lease in one view.
    pub(super) fn lease(&self, view: View) -> Option<Lease> {
        self.leases.as_ref()?.of(view)?.lease()
    }

    /// It is not held in this view any more.
    pub(super) fn end_lease(&mut self, view: View) {
        if let Some(leases) = &mut self.leases {
            *leases.slot(view) = None;
            self.drop_no_leases();
        }
    }

    fn drop_no_leases(&mut self) {
        self.leases.take_if(|leases| leases.all().next().is_none());
    }

    /// Who has another lease than before, beside the body: the origin said so, or what is seen by name is now the
    /// relay's other copy.
    pub(super) fn renewed_since(&mut self, old: &Self) -> Renewed {
        if self.leases.is_none() && old.leases.is_none() {
            return Renewed::default();
        }
        let (was, is) = (old.view_by_name(), self.view_by_name());
        let stays = old.wild.is_some() && self.wild.is_some();
        let is_xdstp = self.name().is_xdstp();
        if let (Some(was), Some(is)) = (was, is)
            && was != is
        {
            // Nothing that was told of the one copy is sure of the other.
            let slot = self.leases.get_or_insert_default().slot(is);
            let lease = slot.and_then(|tenure| tenure.lease());
            *slot = Some(Tenure { current: Term { lease, at: Generation::ZERO }, before: None });
        }
        let Some(leases) = &self.leases else { return Renewed::default() };
        let is_new = |view| leases.is_new(view);
        Renewed {
            members: stays && is_new(View::Wildcard),
            named: is.is_some_and(is_new) || (is_xdstp && is_new(View::Named)),
            any: is_new(View::Wildcard) || is_new(View::Named),
        }
    }

    /// What is new in its leases is so from this generation on.
    pub(super) fn stamp_leases(&mut self, stamp: Generation) {
        let Some(leases) = &mut self.leases else { return };
        for tenure in leases.wild.iter_mut().chain(&mut leases.named) {
            if tenure.current.at == Generation::ZERO {
                tenure.current.at = stamp;
            }
        }
    }

    /// When its lease was last renewed, if that is the latest that is to be told of it.
    pub(super) fn renewal(&self) -> Option<Generation> {
        let newest = self.leases.as_ref()?.newest();
        (newest > self.position()).then_some(newest)
    }

    /// Its place in the order of changes for who is told of renewals.
    pub(super) fn place(&self) -> Generation {
        self.renewal().unwrap_or_else(|| self.position())
    }

    pub(super) const fn is_leased(&self) -> bool {
        self.leases.is_some()
    }

    /// Through which view who asked by name sees it.
    const fn view_by_name(&self) -> Option<View> {
        match (&self.wild, &self.named) {
            (Some(_), _) => Some(View::Wildcard),
            (None, Named::Present(_)) => Some(View::Named),
            (None, _) => None,
        }
    }
}

impl Subscription {
    /// The lease of what a client with this subscription [sees](Self::look) of an entry.
    pub(super) fn tenure(&self, entry: &Entry) -> Option<Tenure> {
        let leases = entry.leases.as_deref()?;
        let name: &Name = entry.name();
        if self.contains(name.as_str()) {
            leases.of(entry.view_by_name()?).copied()
        } else if !matches!(entry.as_listed(), Seen::Unknown) && self.covers(name.as_str()) {
            // A client that asked for it by name before may have been told of the other copy.
            let is_sure = entry.wild.is_none();
            leases.named.map(|tenure| Tenure { before: tenure.before.filter(|_| is_sure), ..tenure })
        } else if self.wildcard {
            leases.wild
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_ttl_09_what_is_told_is_all_of_it_at_first_and_then_what_is_left() {
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
