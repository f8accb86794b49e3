//! Deadlines of resources with a TTL.
//!
//! Owns the deadlines of one type. Knows no clock, and nothing of what follows from a deadline.

use std::collections::BTreeSet;
use std::time::Instant;

use foldhash::HashMap;

use crate::cache::{Op, View};
use crate::resource::Name;

/// Deadlines by view and name.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    deadlines: HashMap<(View, Name), Instant>,
    order: BTreeSet<(Instant, View, Name)>,
}

impl Expiry {
    /// Sets or removes the deadline of a resource that the control plane sent or renewed (R-TTL-01,
    /// R-TTL-02).
    pub(super) fn set(&mut self, view: View, name: &Name, deadline: Option<Instant>) {
        if deadline.is_none() && self.deadlines.is_empty() {
            return;
        }
        let key = (view, name.clone());
        let before = match deadline {
            Some(at) => self.deadlines.insert(key, at),
            None => self.deadlines.remove(&key),
        };
        if let Some(before) = before {
            self.order.remove(&(before, view, name.clone()));
        }
        self.order.extend(deadline.map(|at| (at, view, name.clone())));
    }

    pub(super) fn has(&self, view: View, name: &Name) -> bool {
        !self.deadlines.is_empty() && self.deadlines.contains_key(&(view, name.clone()))
    }

    /// Drops the deadlines of resources that these operations remove.
    pub(super) fn note(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Remove { view, name } | Op::Forget { view, name } => self.set(*view, name, None),
                Op::LeaveCollection { name } => self.set(View::Named, name, None),
                Op::Fail { name, failure, .. } if failure.is_not_found() => self.set(View::Named, name, None),
                Op::Set { .. }
                | Op::Alias { .. }
                | Op::Drop { .. }
                | Op::Renew { .. }
                | Op::Complete { .. }
                | Op::Fail { .. }
                | Op::ResendEndpoints { .. } => {}
            }
        }
    }

    /// Takes the names whose TTL ended by now; each is returned once.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(View, Name)> {
        let mut due = Vec::new();
        while self.order.first().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, view, name)) = self.order.pop_first() else { break };
            self.deadlines.remove(&(view, name.clone()));
            due.push((view, name));
        }
        due
    }

    /// Time of the next one.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, ..)| *at)
    }
}
