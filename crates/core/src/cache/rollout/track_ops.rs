//! Effect of operations on the stable track, and operations that lead a name from one state to another.
//!
//! Owns the difference between a change and a first answer: only changes are tried.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use super::super::Generation;
use super::super::change::{Completeness, Op};
use super::super::entry::{Entry, Named, VisibleState};
use super::super::parameter_view::Track;
use super::super::snapshot::Snapshot;
use super::super::view_leases::View;
use crate::resource::{Form, Name, Parameters, Resource, TypeUrl};

/// Store of a type, by its parameters.
pub(in crate::cache) type StoreKey = (TypeUrl, Parameters);

/// Tracks of canaries, and the stable one, by their order.
pub(in crate::cache) type Tracks = RangeInclusive<Track>;

pub(super) const ALL_CANARIES: Tracks = Track::Canary(0)..=Track::Canary(u8::MAX);
pub(super) const ALL_TRACKS: Tracks = Track::Canary(0)..=Track::Stable;

/// Task of the writer: bring these names on some tracks to the content that they have in another state.
#[derive(Debug)]
pub(in crate::cache) struct Move {
    pub(in crate::cache) tracks: Tracks,
    pub(in crate::cache) key: StoreKey,
    pub(in crate::cache) names: Vec<Name>,
    pub(in crate::cache) to: Arc<Snapshot>,
}

/// The stores of a type.
pub(in crate::cache) struct Stores {
    pub(in crate::cache) origin: Arc<Snapshot>,
    /// By step.
    pub(in crate::cache) canaries: Vec<Arc<Snapshot>>,
    pub(in crate::cache) stable: Arc<Snapshot>,
}

/// Whether clients of these tracks ask for a name and see this difference.
pub(in crate::cache) type Asks<'a> = dyn Fn(&StoreKey, &Name, Reach, Tracks) -> bool + 'a;

/// The cache at the moment of a decision.
pub(in crate::cache) struct Moment<'a> {
    pub(in crate::cache) now: Instant,
    pub(in crate::cache) clock: Generation,
    pub(in crate::cache) stores: &'a dyn Fn(&StoreKey) -> Option<Stores>,
    pub(in crate::cache) asks: &'a Asks<'a>,
}

/// Whether an operation only confirms a member by its name, without content for clients.
pub(super) fn is_fact(op: &Op, of: &Snapshot) -> bool {
    let is_named = matches!(op, Op::Set { view: View::Named, .. } | Op::Remove { view: View::Named, .. });
    is_named && of.get(op.name().as_str()).is_some_and(|entry| entry.is_member())
}

/// Whether clients of the stable track have content of a name that the origin replaced, or lack a new member.
pub(super) fn is_change(name: &Name, stable: &Snapshot, origin: &Snapshot) -> bool {
    let reach = Reach::of(name, stable, origin);
    let seen = stable.get(name.as_str()).map(|held| [held.by_name(), held.as_listed()]);
    let is_held = seen.into_iter().flatten().any(|seen| seen.existing().is_some());
    reach.as_member || (reach.by_name && is_held)
}

/// Whether an operation must wait if its name does; the others concern held content.
pub(super) const fn waits_with_name(op: &Op) -> bool {
    matches!(
        op,
        Op::Set { .. } | Op::Alias { .. } | Op::Remove { .. } | Op::LeaveCollection { .. } | Op::Fail { .. }
    )
}

/// Whether the origin's content of a name is of no interest any more. Of a member only the answer by name is
/// forgotten when nobody asks by name.
pub(super) fn forgets_all(op: &Op, origin: &Snapshot) -> bool {
    let is_member = |name: &Name| origin.get(name.as_str()).is_some_and(Entry::is_member);
    matches!(op, Op::Forget { view, name } if *view == View::Wildcard || !is_member(name))
}

/// Whether it is the stable track's first answer for a name in this view. Clients have nothing better, and a
/// set without the member would take it from holders. A name unsubscribed while it waited counts too.
pub(super) fn is_first_answer(op: &Op, stable: &Snapshot) -> bool {
    let entry = stable.get(op.name().as_str());
    let is_member = entry.is_some_and(|entry| entry.is_member());
    let is_unheard = || match op.view() {
        View::Wildcard => stable.completeness() < Completeness::Presumed,
        View::Named => entry.is_none_or(|entry| matches!(entry.named(), Named::Unknown)),
    };
    !is_member && is_unheard() && last_good(op, stable).is_none()
}

/// Member for a track instead of this one, if clients hold other content by name: the first wildcard set must
/// have the member, and they must not see it change. A later member is a change itself.
pub(super) fn last_good(op: &Op, track: &Snapshot) -> Option<Op> {
    let Op::Set { view: View::Wildcard, resource, resend, lease } = op else { return None };
    if track.completeness() >= Completeness::Presumed {
        return None;
    }
    let entry = track.get(resource.name().as_str())?;
    let Named::Present(held) = entry.named() else { return None };
    let is_other = !entry.is_member() && held.form() == Form::Whole && !held.same_content(resource);
    is_other.then(|| Op::Set {
        view: View::Wildcard,
        resource: Arc::clone(held),
        resend: *resend,
        lease: *lease,
    })
}

/// Renews a track's content of a name with the TTL of content that it must not show yet: held content lives as
/// long as the origin keeps the newest.
pub(super) fn renewal(op: &Op, track: &Snapshot) -> Option<Op> {
    let Op::Set { view, resource, lease, .. } = op else { return None };
    let name = resource.name();
    let is_timed = lease.is_some() || track.lease(*view, name.as_str()).is_some();
    is_timed.then(|| Op::Renew { view: *view, name: name.clone(), lease: *lease })
}

/// Content of a name, by digest; `None` if there is none.
pub(super) fn digest(of: &Snapshot, name: &Name) -> Option<u128> {
    of.get(name.as_str())?.by_name().present().map(|resource| resource.digest())
}

/// Whether a name that exists in one state, or is a member of its wildcard set, does not in another.
pub(super) fn is_removed(name: &Name, held: &Snapshot, target: &Snapshot) -> bool {
    let is_member = |of: &Snapshot| of.get(name.as_str()).is_some_and(Entry::is_member);
    (digest(held, name).is_some() && digest(target, name).is_none())
        || (is_member(held) && !is_member(target))
}

/// Whether so many removals are more than this share of all. Of few resources each is a large share.
pub(super) fn is_too_much(removed: usize, of: &Snapshot, most: f64) -> bool {
    /// Fewest resources for which the share says something.
    const FEWEST: usize = 5;
    let all = || of.entries().filter(|entry| entry.by_name().present().is_some()).count();
    removed > 0
        && Some(all()).filter(|all| *all >= FEWEST).is_some_and(|all| removed as f64 > most * all as f64)
}

/// Whether a name differs between two states.
pub(super) fn differs(name: &Name, held: &Snapshot, target: &Snapshot) -> bool {
    let mut steps = Steps::default();
    steps.add_difference(name, held, target);
    !steps.is_empty()
}

/// Clients that see a difference.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Reach {
    /// Clients that ask for the name, or for its collection.
    pub(in crate::cache) by_name: bool,
    /// Clients of the wildcard.
    pub(in crate::cache) as_member: bool,
}

impl Reach {
    pub(in crate::cache) fn of(name: &Name, held: &Snapshot, target: &Snapshot) -> Self {
        let (was, is) = (held.get(name.as_str()), target.get(name.as_str()));
        let differ = |see: fn(&Entry) -> VisibleState<'_>| match (
            was.and_then(|was| see(was).existing()),
            is.and_then(|is| see(is).existing()),
        ) {
            (Some(was), Some(is)) => !was.same_content(is),
            (was, is) => was.is_some() != is.is_some(),
        };
        let by_name = differ(Entry::by_name) || differ(Entry::as_listed);
        Self { by_name, as_member: differ(Entry::as_member) }
    }
}

/// Operations that bring a name from one state to another.
#[derive(Debug, Default)]
pub(in crate::cache) struct Steps {
    pub(in crate::cache) additions: Vec<Op>,
    pub(in crate::cache) removals: Vec<Op>,
    /// The origin's version of the newest state that the names are brought to.
    pub(in crate::cache) system_version: Option<Arc<str>>,
}

impl Steps {
    /// Adds the operations that lead a name from `held` to `target`.
    pub(in crate::cache) fn add_difference(&mut self, name: &Name, held: &Snapshot, target: &Snapshot) {
        let (was, is) = (held.get(name.as_str()), target.get(name.as_str()));
        let member = |entry: Option<&'_ Entry>| -> Option<Arc<Resource>> {
            entry.and_then(|entry| entry.as_member().present()).cloned()
        };
        let (was_member, is_member) = (member(was).is_some(), member(is).is_some());
        match (member(was), member(is)) {
            (Some(_), None) => self.removals.push(Op::Remove { view: View::Wildcard, name: name.clone() }),
            (was, Some(is)) if was.as_ref().is_none_or(|was| !was.same_content(&is)) => {
                self.additions.push(target.op_for(View::Wildcard, &is));
            }
            _ => {}
        }
        let named = |entry: Option<&Entry>| entry.map(|entry| entry.named().clone());
        let (was, is) = (named(was).unwrap_or_default(), named(is).unwrap_or_default());
        let removal = match (&was, &is) {
            (Named::Unknown, Named::Unknown) | (Named::Unknown, Named::Gone) => None,
            (_, Named::Unknown) => Some(Op::Forget { view: View::Named, name: name.clone() }),
            (Named::Gone, Named::Gone) => None,
            (_, Named::Gone) => Some(Op::LeaveCollection { name: name.clone() }),
            (Named::Present(was), Named::Present(is)) if was.same_content(is) => None,
            // The body is the member's.
            (Named::Present(_) | Named::Superseded(_), Named::Present(_) | Named::Superseded(_))
                if is_member =>
            {
                None
            }
            _ => {
                for op in target.ops_of(name) {
                    match op {
                        // Goes after the end of the membership, which decides the content.
                        _ if was_member => self.removals.push(op),
                        Op::Remove { .. } | Op::Fail { .. } => self.removals.push(op),
                        _ => self.additions.push(op),
                    }
                }
                None
            }
        };
        self.removals.extend(removal);
    }

    /// Drops removals of members that came after `then`, if the wildcard set was unknown then.
    pub(in crate::cache) fn keep_later_members(&mut self, then: &Snapshot, origin: &Snapshot) {
        if then.completeness() >= Completeness::Presumed {
            return;
        }
        let came = |name: &Name| origin.get(name.as_str()).is_some_and(|entry| entry.is_member());
        self.removals.retain(|op| !matches!(op, Op::Remove { view: View::Wildcard, name } if came(name)));
    }

    /// Takes the newest TTLs of the origin, which may have renewed them since.
    pub(in crate::cache) fn copy_leases(&mut self, origin: &Snapshot) {
        for op in &mut self.additions {
            if let Op::Set { view, resource, lease, .. } = op {
                *lease = origin.lease(*view, resource.name().as_str());
            }
        }
    }

    pub(in crate::cache) const fn is_empty(&self) -> bool {
        self.additions.is_empty() && self.removals.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::change::{Change, Resend};
    use crate::cache::fixture::marked;
    use crate::cache::{Cache, Limits};
    use crate::resource::Kind;

    #[test]
    fn an_equal_version_of_another_server_is_no_change() {
        let type_url = TypeUrl::from(Kind::Cluster);
        let [first, second, other] =
            [("1", b"a", ""), ("1", b"a", "#s2"), ("2", b"b", "#s2")].map(|(version, body, mark)| {
                let (cache, mut writer) = Cache::new(Limits::default());
                let of = cache.of(&type_url).expect("room for a type");
                let resource = marked(&type_url, "a", version, body, mark);
                let ops =
                    vec![Op::Set { view: View::Wildcard, resource, resend: Resend::Answer, lease: None }];
                writer
                    .apply(&type_url, Change { ops, ..Change::default() }, Instant::now())
                    .expect("a good change");
                of.snapshot()
            });
        let name = Name::normal("a");
        for (origin, is_other) in [(&second, false), (&other, true)] {
            assert_eq!(is_change(&name, &first, origin), is_other);
            assert_eq!(Reach::of(&name, &first, origin).as_member, is_other);
        }
    }
}
