//! Variants that the origin has said to be gone, held by views whose own question it has not answered yet.
//!
//! An identity (a name with its constraints, R-DP-06) is gone for all as soon as the origin says so to one: by a removal,
//! or by another variant in its place. A view that was asked for other parameters keeps it for a while, since its own
//! answer may be on the way (R-DP-16). Many origins say nothing of what does not exist (O2): for these the view would keep
//! it forever. Owns which views these are, and since when. Knows neither streams nor the origin's words.

use std::time::Duration;

use foldhash::HashMap;

use super::quiet_clock::QuietInstant;
use crate::cache::{Op, View};
use crate::resource::Name;

/// Views that hold a variant said to be gone, and since when.
#[derive(Debug, Default)]
pub(super) struct Disproved {
    since: HashMap<(View, Name), QuietInstant>,
    /// Nothing is due before the timeout after then.
    not_before: Option<QuietInstant>,
}

impl Disproved {
    pub(super) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    pub(super) fn has(&self, view: View, name: &Name) -> bool {
        !self.since.is_empty() && self.since.contains_key(&(view, name.clone()))
    }

    pub(super) fn insert(&mut self, view: View, name: Name, now: QuietInstant) {
        self.since.entry((view, name)).or_insert(now);
        self.not_before.get_or_insert(now);
    }

    pub(super) fn remove(&mut self, view: View, name: &Name) {
        if !self.since.is_empty() {
            self.since.remove(&(view, name.clone()));
        }
    }

    /// The wildcard is let go. Members that were shown to clients which asked for their names, and which the origin has not
    /// answered (`is_open`), are in question there.
    pub(super) fn drop_wildcard(&mut self, is_open: impl Fn(&Name) -> bool, now: QuietInstant) {
        let members = self.since.keys().filter(|(view, _)| *view == View::Wildcard);
        let open: Vec<Name> = members.map(|(_, name)| name).filter(|name| is_open(name)).cloned().collect();
        self.since.retain(|(view, _), _| *view != View::Wildcard);
        open.into_iter().for_each(|name| self.insert(View::Named, name, now));
    }

    /// Drops names that were answered or are no longer held: they are not in question any more.
    pub(super) fn note(&mut self, ops: &[Op]) {
        if !self.since.is_empty() {
            for op in ops {
                self.since.remove(&(op.view(), op.name().clone()));
            }
        }
    }

    /// When to look at [`take_due`](Self::take_due), but for the timeout.
    pub(super) const fn not_before(&self) -> Option<QuietInstant> {
        self.not_before
    }

    /// The names that were disproved, and asked for, a timeout ago. `asked` tells when a name was asked for.
    pub(super) fn take_due(
        &mut self,
        timeout: Duration,
        now: QuietInstant,
        asked: impl Fn(&Name) -> Option<QuietInstant>,
    ) -> Vec<Name> {
        if self.not_before.is_none_or(|at| at + timeout > now) {
            return Vec::new();
        }
        let mut due = Vec::new();
        self.not_before = None;
        for ((view, name), since) in &self.since {
            // A member is gone once it is missing from a complete answer.
            if *view == View::Wildcard {
                continue;
            }
            // Names that are still to be asked are looked at again.
            let from = asked(name).map_or(now, |at| at.max(*since));
            if from + timeout <= now {
                due.push(name.clone());
            } else {
                self.not_before = Some(self.not_before.map_or(from, |at| at.min(from)));
            }
        }
        due.sort_unstable();
        due.iter().for_each(|name| self.remove(View::Named, name));
        due
    }
}
