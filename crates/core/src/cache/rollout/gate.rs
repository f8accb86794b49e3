//! Operations that change what clients on the stable track hold, and operations that bring a name there.
//!
//! Owns the difference between a change and a first answer: only changes are tried on canaries first.

use std::sync::Arc;

use super::super::change::{Completeness, Op};
use super::super::entry::Named;
use super::super::snapshot::Snapshot;
use super::super::view::View;
use crate::resource::{Form, Name, Resource};

/// Whether an operation says of a member what came by its name: a fact, and no content for anybody.
pub(super) fn is_fact(op: &Op, of: &Snapshot) -> bool {
    let is_named = matches!(op, Op::Set { view: View::Named, .. } | Op::Remove { view: View::Named, .. });
    is_named && of.get(op.name().as_str()).is_some_and(|entry| entry.is_member())
}

/// Whether an operation changes or removes what the stable track shows, or adds a member to its wildcard set. A name of which it
/// knows nothing is answered at once: clients that ask for it have nothing better. So is one that did not exist.
pub(super) fn is_change(op: &Op, stable: &Snapshot) -> bool {
    let entry = stable.get(op.name().as_str());
    let member = entry.and_then(|entry| entry.as_member().present());
    let named = entry.and_then(|entry| match entry.named() {
        Named::Present(held) => Some(held),
        Named::Alias(alias) => alias.now(),
        Named::Unknown | Named::Superseded(_) | Named::Absent | Named::Gone | Named::Collection { .. } => {
            None
        }
    });
    match op {
        Op::Set { view: View::Wildcard, resource, .. } => match member {
            Some(held) => !held.same_content(resource),
            // Until then it may be a part of the first answer.
            None => stable.completeness() >= Completeness::Presumed || last_good(op, stable).is_some(),
        },
        Op::Set { view: View::Named, resource, .. } | Op::Alias { resource, .. } => {
            named.is_some_and(|held| !held.same_content(resource))
        }
        Op::Remove { view: View::Wildcard, .. } => member.is_some(),
        Op::Remove { view: View::Named, .. } | Op::Withdraw { .. } => named.is_some(),
        Op::Fail { failure, .. } => failure.is_not_found() && named.is_some(),
        Op::Renew { .. } | Op::Forget { .. } | Op::Complete { .. } | Op::Drop { .. } | Op::Repush { .. } => {
            false
        }
    }
}

/// Whether an operation of a name that waits has to wait too: the others concern what is held already.
pub(super) const fn waits_with_name(op: &Op) -> bool {
    match op {
        Op::Set { .. } | Op::Alias { .. } | Op::Remove { .. } | Op::Withdraw { .. } | Op::Fail { .. } => true,
        Op::Renew { .. } | Op::Forget { .. } | Op::Complete { .. } | Op::Drop { .. } | Op::Repush { .. } => {
            false
        }
    }
}

/// Whether it is the first that the stable track hears of a name in the view of those who ask for it: such clients have nothing better,
/// and a set that is complete without a member would take it from those that hold it. A name that was let go while it waits is one.
pub(super) fn is_first_answer(op: &Op, stable: &Snapshot) -> bool {
    let entry = stable.get(op.name().as_str());
    let is_member = entry.is_some_and(|entry| entry.is_member());
    let is_unheard = || match op.view() {
        View::Wildcard => stable.completeness() < Completeness::Presumed,
        View::Named => entry.is_none_or(|entry| matches!(entry.named(), Named::Unknown)),
    };
    !is_member && is_unheard()
}

/// Member that the stable track is told of in place of this one, where the first answer for a wildcard has other content than those who
/// ask for the name hold: the set must not lack it, and they must not see it change.
pub(super) fn last_good(op: &Op, stable: &Snapshot) -> Option<Op> {
    let Op::Set { view: View::Wildcard, resource, resend, lease } = op else { return None };
    let entry = stable.get(resource.name().as_str())?;
    let Named::Present(held) = entry.named() else { return None };
    let is_other = !entry.is_member() && held.form() == Form::Whole && !held.same_content(resource);
    is_other.then(|| Op::Set {
        view: View::Wildcard,
        resource: Arc::clone(held),
        resend: *resend,
        lease: *lease,
    })
}

/// Whether a member comes that those who ask for its name have been sent already.
pub(super) fn is_known_by_name(op: &Op, origin: &Snapshot) -> bool {
    let Op::Set { view: View::Wildcard, resource, .. } = op else { return false };
    let Some(entry) = origin.get(resource.name().as_str()) else { return false };
    !entry.is_member() && matches!(entry.named(), Named::Present(held) if held.same_content(resource))
}

/// Whether an operation says of a name what the store of the origin has already: it comes again, after a reconnect say.
pub(super) fn repeats(op: &Op, origin: &Snapshot) -> bool {
    let Some(entry) = origin.get(op.name().as_str()) else { return false };
    let is_held = |held: Option<&Arc<Resource>>, resource: &Arc<Resource>| {
        held.is_some_and(|held| held.same_content(resource))
    };
    match op {
        Op::Set { view: View::Wildcard, resource, .. } => is_held(entry.as_member().present(), resource),
        Op::Set { view: View::Named, resource, .. } => match entry.named() {
            Named::Present(held) => held.same_content(resource),
            _ => false,
        },
        Op::Alias { resource, .. } => match entry.named() {
            Named::Alias(alias) => is_held(alias.now(), resource),
            _ => false,
        },
        Op::Remove { view: View::Wildcard, .. } => !entry.is_member(),
        Op::Remove { view: View::Named, .. } => matches!(entry.named(), Named::Absent),
        _ => false,
    }
}

/// Operation that keeps what the stable track holds of a name for the time that comes with other content of it.
pub(super) fn renewal(op: &Op, stable: &Snapshot) -> Option<Op> {
    let Op::Set { view, resource, lease, .. } = op else { return None };
    let name = resource.name();
    let is_timed = lease.is_some() || stable.lease(*view, name.as_str()).is_some();
    is_timed.then(|| Op::Renew { view: *view, name: name.clone(), lease: *lease })
}

/// Operations that bring a name from one state to another.
#[derive(Debug, Default)]
pub(in crate::cache) struct Steps {
    pub(in crate::cache) additions: Vec<Op>,
    pub(in crate::cache) removals: Vec<Op>,
}

impl Steps {
    /// Adds the operations that make `held` show of a name what `target` does.
    pub(in crate::cache) fn bring(&mut self, name: &Name, held: &Snapshot, target: &Snapshot) {
        let (was, is) = (held.get(name.as_str()), target.get(name.as_str()));
        let member = |entry: Option<&'_ super::super::entry::Entry>| -> Option<Arc<Resource>> {
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
        let nothing = Named::Unknown;
        let named = |entry: Option<&super::super::entry::Entry>| entry.map(|entry| entry.named().clone());
        let (was, is) = (named(was).unwrap_or_default(), named(is).unwrap_or(nothing));
        let removal = match (&was, &is) {
            (Named::Unknown, Named::Unknown) | (Named::Unknown, Named::Gone) => None,
            (_, Named::Unknown) => Some(Op::Forget { view: View::Named, name: name.clone() }),
            (Named::Gone, Named::Gone) => None,
            (_, Named::Gone) => Some(Op::Withdraw { name: name.clone() }),
            (Named::Present(was), Named::Present(is)) if was.same_content(is) => None,
            // The body is the member's.
            (Named::Present(_) | Named::Superseded(_), Named::Present(_) | Named::Superseded(_))
                if is_member =>
            {
                None
            }
            _ => {
                for op in target.said_of(name) {
                    match op {
                        // After the end of a membership, which decides the content.
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

    /// Takes out removals of members that came after a moment at which the wildcard set was not known: nothing says that they were none.
    pub(in crate::cache) fn keep_later_members(&mut self, then: &Snapshot, origin: &Snapshot) {
        if then.completeness() >= Completeness::Presumed {
            return;
        }
        let came = |name: &Name| origin.get(name.as_str()).is_some_and(|entry| entry.is_member());
        self.removals.retain(|op| !matches!(op, Op::Remove { view: View::Wildcard, name } if came(name)));
    }

    /// Has resources be kept for as long as the origin said last: it may have renewed them since.
    pub(in crate::cache) fn lend_as(&mut self, origin: &Snapshot) {
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
