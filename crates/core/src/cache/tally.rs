//! Totals over the names of a cohort, kept as they change.
//!
//! Owns the counts and sums over all names of a subscription: whether any is unknown, and the digest of what is seen. They
//! follow from a snapshot and the subscription alone, and cost a look at each name once per cohort; after that each
//! change adds its difference.
//!
//! Invariant: a tally is that of a state which a reader has in hand, exactly. The writer notes a change before it
//! publishes it, so that a reader of the state from before it finds the tally from before it.

use super::Generation;
use super::entry::{Entry, Seen};
use super::profile::{Protocol, StreamProfile};
use super::snapshot::{Snapshot, Touch};
use super::subscription::Subscription;
use crate::resource::Name;

/// Totals over the names of a subscription in one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// How many of the names are unknown (R-Relay-04).
    pub(super) unknown: usize,
    /// Sum of the digests of what is seen by them (R-Relay-11), where that [is kept](Self::has_digest).
    pub(super) digest: u128,
}

impl Tally {
    /// Totals over all names of a subscription.
    pub(super) fn of(snapshot: &Snapshot, subscription: &Subscription, profile: StreamProfile) -> Self {
        Self::of_some(snapshot, subscription, profile, subscription.names().iter())
    }

    /// Totals over a few names of a subscription.
    pub(super) fn of_some<'a>(
        snapshot: &Snapshot,
        subscription: &Subscription,
        profile: StreamProfile,
        names: impl Iterator<Item = &'a Name>,
    ) -> Self {
        let one = |name: &Name| Self::of_one(subscription, profile, name, snapshot.get(name.as_str()));
        names.map(one).fold(Self::default(), Self::plus)
    }

    /// Whether the digest is kept: for delta nobody is told it, and what is seen through the wildcard or a collection follows
    /// from no name.
    pub(super) fn has_digest(subscription: &Subscription, profile: StreamProfile) -> bool {
        profile.protocol == Protocol::Sotw && !subscription.wildcard && !subscription.has_collections()
    }

    /// Share of one name, which may be one that the subscription sees only through a collection.
    fn of_one(
        subscription: &Subscription,
        profile: StreamProfile,
        name: &Name,
        entry: Option<&Entry>,
    ) -> Self {
        if subscription.has_collections() && !subscription.contains(name.as_str()) {
            return Self::default();
        }
        let seen = entry.map_or(Seen::Unknown, Entry::by_name);
        let present = seen.present().filter(|_| Self::has_digest(subscription, profile));
        Self {
            unknown: usize::from(matches!(seen, Seen::Unknown)),
            digest: present.map_or(0, |resource| resource.digest()),
        }
    }

    pub(super) const fn plus(self, more: Self) -> Self {
        Self { unknown: self.unknown + more.unknown, digest: self.digest.wrapping_add(more.digest) }
    }

    /// Without a part of it.
    pub(super) const fn minus(self, part: Self) -> Self {
        Self { unknown: self.unknown - part.unknown, digest: self.digest.wrapping_sub(part.digest) }
    }
}

/// The newest tally of a cohort and the one before it.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// The newest change that was noted. `now` is as of that, and of every later state.
    noted: Generation,
    now: Option<Tally>,
    /// As of this generation, and of every later state until `noted`.
    before: Option<(Generation, Tally)>,
}

impl Tallies {
    /// A cohort that takes its names from another: as of a state in which all that was noted is published.
    pub(super) const fn starting(now: Generation, tally: Option<Tally>) -> Self {
        Self { noted: now, now: tally, before: None }
    }

    /// Whatever was known, it is as of a state before this one.
    pub(super) const fn restart(&mut self, now: Generation) {
        *self = Self::starting(now, None);
    }

    /// A name changes, in the change that ends with this generation.
    pub(super) fn note(
        &mut self,
        generation: Generation,
        subscription: &Subscription,
        profile: StreamProfile,
        touch: &Touch,
    ) {
        if self.noted < generation {
            self.before = self.now.map(|tally| (self.noted, tally));
            self.noted = generation;
        }
        if let Some(now) = &mut self.now {
            let one = |entry| Tally::of_one(subscription, profile, &touch.name, entry);
            *now = now.plus(one(touch.is.as_deref())).minus(one(touch.was.as_deref()));
        }
    }

    /// The tally as of the state of this generation, if it is remembered.
    pub(super) fn at(&self, generation: Generation) -> Option<Tally> {
        if generation >= self.noted {
            return self.now;
        }
        self.before.filter(|(from, _)| *from <= generation).map(|(_, tally)| tally)
    }

    /// Keeps a tally that was made of the state of this generation, unless something was noted since.
    pub(super) fn set(&mut self, generation: Generation, tally: Tally) {
        if generation >= self.noted {
            self.now = Some(tally);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use proptest::prelude::*;

    use super::super::cohort::{Cohort, WakeHandle};
    use super::super::fixture::resource;
    use super::super::profile::TtlSupport;
    use super::super::type_store::Membership;
    use super::super::{Cache, Change, Limits, Op, Resend, View};
    use super::*;
    use crate::resource::{Kind, TypeUrl};

    const NAMES: [&str; 5] = ["a", "b", "xdstp://h/t/f/x", "xdstp://h/t/f/y", "xdstp://h/t/f/*"];

    /// Which names of [`NAMES`] a subscription has.
    fn subscription(bits: u8) -> Subscription {
        let names = NAMES.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
        Subscription::new(bits & 32 != 0, names.map(|(_, name)| Name::from(*name)))
    }

    fn op(type_url: &TypeUrl, (kind, at, version): (u8, usize, u8)) -> Op {
        let name = Name::from(NAMES[at]);
        let view = if kind % 2 == 0 { View::Named } else { View::Wildcard };
        match kind {
            0..=5 if at < 4 => {
                let resource = resource(type_url, NAMES[at], &version.to_string(), b"");
                Op::Set { view, resource, resend: Resend::Answer, lease: None }
            }
            0..=5 => Op::Complete { name },
            6 | 7 => Op::Remove { view, name },
            8 | 9 => Op::Forget { view, name },
            10 => Op::Drop { name },
            11 => Op::Withdraw { name },
            _ => Op::Repush { name },
        }
    }

    fn is_exact(cohort: &Cohort, snapshot: &Snapshot) -> bool {
        cohort.tally(snapshot) == Tally::of(snapshot, &cohort.subscription, cohort.profile)
    }

    proptest! {
        #[test]
        fn a_tally_is_that_of_the_state_in_hand_whatever_changed_and_was_noted(
            steps in proptest::collection::vec((0_u8..13, 0_usize..5, 0_u8..3, 0_u8..64, 0_usize..6), 1..60),
        ) {
            let (cache, mut writer) = Cache::new(Limits { tombstones: 2, ..Limits::default() });
            let (type_url, now, wake_handle) = (Kind::Endpoint.into(), Instant::now(), Arc::<WakeHandle>::default());
            let of = cache.of(&type_url).expect("a type of the protocol");
            let join = |at: u8| {
                let protocol = if at.is_multiple_of(2) { Protocol::Sotw } else { Protocol::Delta };
                of.join(subscription(7 * at + 1), StreamProfile { protocol, aggregated: true, ttl: TtlSupport::Untold }, &wake_handle)
            };
            let mut members: Vec<Membership> = (0..6).map(join).collect();
            for (kind, at, version, bits, who) in steps {
                let before = of.snapshot();
                if kind == 12 {
                    members[who].change(subscription(bits));
                } else {
                    let other = op(&type_url, (version, (at + 1) % 5, bits % 3));
                    let ops = [op(&type_url, (kind, at, version))].into_iter().chain((bits % 2 == 0).then_some(other));
                    let change = Change { ops: ops.collect(), ..Change::default() };
                    writer.apply(&type_url, change, now).expect("a type of the protocol");
                }
                for member in &members {
                    prop_assert!(is_exact(member.cohort(), &before), "{member:?}");
                    prop_assert!(is_exact(member.cohort(), &of.snapshot()), "{member:?}");
                }
            }
        }
    }
}
