//! Totals over the names of a cohort, kept up to date.
//!
//! Owns the number of unknown names of a subscription, and the digest of visible resources. The first tally
//! visits each name of a cohort; each change adds its difference.
//!
//! Invariant: a tally belongs exactly to its reader's snapshot. The writer records a change before publication,
//! so readers of the older snapshot find the older tally.

use super::Generation;
use super::entry::{Entry, VisibleState};
use super::snapshot::{Snapshot, Touch};
use super::stream_profile::{Protocol, StreamProfile};
use super::subscription::Subscription;
use crate::resource::Name;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Unknown names (R-Relay-04).
    pub(super) unknown: usize,
    /// Sum of the digests seen by name (R-Relay-11), if that [is kept](Self::has_digest).
    pub(super) digest: u128,
}

impl Tally {
    pub(super) fn of(snapshot: &Snapshot, subscription: &Subscription, profile: StreamProfile) -> Self {
        Self::of_some(snapshot, subscription, profile, subscription.names().iter())
    }

    pub(super) fn of_some<'a>(
        snapshot: &Snapshot,
        subscription: &Subscription,
        profile: StreamProfile,
        names: impl Iterator<Item = &'a Name>,
    ) -> Self {
        let one = |name: &Name| Self::of_one(subscription, profile, name, snapshot.get(name.as_str()));
        names.map(one).fold(Self::default(), Self::plus)
    }

    /// Whether a digest is kept. Delta sends none, and for wildcards and collections names do not determine it.
    pub(super) fn has_digest(subscription: &Subscription, profile: StreamProfile) -> bool {
        profile.protocol == Protocol::Sotw && !subscription.wildcard && !subscription.has_collections()
    }

    /// Share of one name, which may be seen only through a collection.
    fn of_one(
        subscription: &Subscription,
        profile: StreamProfile,
        name: &Name,
        entry: Option<&Entry>,
    ) -> Self {
        if subscription.has_collections() && !subscription.contains(name.as_str()) {
            return Self::default();
        }
        let seen = entry.map_or(VisibleState::Unknown, Entry::by_name);
        let present = seen.present().filter(|_| Self::has_digest(subscription, profile));
        Self {
            unknown: usize::from(matches!(seen, VisibleState::Unknown)),
            digest: present.map_or(0, |resource| resource.digest()),
        }
    }

    pub(super) const fn plus(self, more: Self) -> Self {
        Self { unknown: self.unknown + more.unknown, digest: self.digest.wrapping_add(more.digest) }
    }

    pub(super) const fn minus(self, part: Self) -> Self {
        Self { unknown: self.unknown - part.unknown, digest: self.digest.wrapping_sub(part.digest) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// Newest recorded change. `now` is valid from there on.
    recorded: Generation,
    now: Option<Tally>,
    /// Valid from this generation until `recorded`.
    before: Option<(Generation, Tally)>,
}

impl Tallies {
    /// Tallies of a cohort derived from another, at a state with all recorded changes.
    pub(super) const fn starting(now: Generation, tally: Option<Tally>) -> Self {
        Self { recorded: now, now: tally, before: None }
    }

    /// Drops all tallies, which belong to earlier states.
    pub(super) const fn restart(&mut self, now: Generation) {
        *self = Self::starting(now, None);
    }

    pub(super) fn record(
        &mut self,
        generation: Generation,
        subscription: &Subscription,
        profile: StreamProfile,
        touch: &Touch,
    ) {
        if self.recorded < generation {
            self.before = self.now.map(|tally| (self.recorded, tally));
            self.recorded = generation;
        }
        if let Some(now) = &mut self.now {
            let one = |entry| Tally::of_one(subscription, profile, &touch.name, entry);
            *now = now.plus(one(touch.is.as_deref())).minus(one(touch.was.as_deref()));
        }
    }

    pub(super) fn at(&self, generation: Generation) -> Option<Tally> {
        if generation >= self.recorded {
            return self.now;
        }
        self.before.filter(|(from, _)| *from <= generation).map(|(_, tally)| tally)
    }

    /// Keeps a tally of this generation unless a change came since.
    pub(super) fn set(&mut self, generation: Generation, tally: Tally) {
        if generation >= self.recorded {
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
    use super::super::stream_profile::TtlSupport;
    use super::super::type_cache::Membership;
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
            11 => Op::LeaveCollection { name },
            _ => Op::ResendEndpoints { name },
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
                of.join(subscription(7 * at + 1), StreamProfile { protocol, aggregated: true, ttl: TtlSupport::Unsupported }, &wake_handle)
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
