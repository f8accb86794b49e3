//! Consequences of silence, and of a census.

use std::time::{Duration, Instant};

use foldhash::HashSet;

use super::super::answer::Evidence;
use super::super::quiet_clock::{Moment, QuietClock, QuietInstant};
use super::super::{Counters, Settings};
use super::{Topic, gone};
use crate::cache::{Change, Completeness, Op, Snapshot, View};
use crate::resource::Name;

impl Topic {
    /// Runs everything that is due.
    pub(in crate::upstream) fn advance(
        &mut self,
        settings: &Settings,
        asked: Evidence,
        moment: Moment,
        snapshot: &Snapshot,
        counters: &Counters,
    ) -> Change {
        let mut change = self.end_times(settings, moment.now, snapshot, counters);
        let complete = self.names.complete(settings, moment.quiet);
        change.ops.extend(complete.into_iter().map(|name| Op::Complete { name }));
        let degree = self.members.step(settings, asked, moment.quiet);
        let more = degree.filter(|known| *known > snapshot.completeness());
        change.wildcard_known = change.wildcard_known.or(more);
        self.answer_by_name(&mut change.ops, snapshot);
        self.note(&change.ops);
        change
    }

    /// Ends resources with an expired TTL, and drops uncacheable bodies.
    fn end_times(
        &mut self,
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
        counters: &Counters,
    ) -> Change {
        let mut change = Change::default();
        let ended = self.expiry.take_due(now);
        change.wildcard_known = self.note_lapse(&ended, snapshot);
        for (view, name) in ended {
            // The control plane may still have it: the name is requested again (R-TTL-09).
            if view == View::Named {
                self.names.ask_again(&name);
            }
            counters.expired.add(1);
            change.ops.push(gone(&self.names, view, name));
        }
        let past =
            now.checked_sub(settings.tuning.settle_max).map(|before| self.uncacheable.take_due(before));
        for (_, name) in past.into_iter().flatten() {
            // A collection is served from memory, as the wildcard is.
            if !self.is_listed(name.as_str()) {
                change.ops.push(Op::Drop { name });
            }
        }
        change
    }

    /// Notes members that expired. If none is left of an incomplete set, the rest is as unknown as
    /// before. If one was claimed and is unanswered, the control plane believes it held.
    fn note_lapse(&mut self, ended: &[(View, Name)], snapshot: &Snapshot) -> Option<Completeness> {
        let members = ended.iter().filter(|(view, _)| *view == View::Wildcard).count();
        let left = snapshot.member_count().saturating_sub(members);
        let leaves_nothing = left == 0 && snapshot.completeness() < Completeness::Complete;
        let is_claimed =
            || self.members.covers() && ended.iter().any(|(_, name)| self.members.is_claimed(name));
        if members == 0 || !(leaves_nothing || is_claimed()) {
            return None;
        }
        self.lapse(left, snapshot)
    }

    /// Time for the answer of a name. It is short while a client waits for evidence, as many
    /// control planes never report absent names (O2).
    const fn patience(&self, settings: &Settings) -> Duration {
        if self.needs_proof[View::Named as usize] { settings.tuning.settle } else { settings.answer_timeout }
    }

    /// Lower bound of the time at which names are due for an inquiry.
    pub(in crate::upstream) fn names_overdue(&self, settings: &Settings) -> Option<QuietInstant> {
        Some(self.names.unanswered_from()? + self.patience(settings))
    }

    /// Takes such names, while there is room in a request.
    pub(in crate::upstream) fn take_overdue(
        &mut self,
        settings: &Settings,
        room: &mut usize,
        now: QuietInstant,
    ) -> Vec<Name> {
        let patience = self.patience(settings);
        let names = self.names.take_unanswered(patience, room, now);
        self.needs_proof[View::Named as usize] &= names.is_empty();
        names
    }

    pub(in crate::upstream) fn deadline(
        &self,
        settings: &Settings,
        asked: Evidence,
        clock: &QuietClock,
    ) -> Option<Instant> {
        let set = self.members.deadline(settings, asked);
        let quiet = set.into_iter().chain(self.names.deadline(settings)).map(|at| clock.when(at));
        let uncacheable = self.uncacheable.next().map(|came| came + settings.tuning.settle_max);
        self.expiry.next().into_iter().chain(uncacheable).chain(quiet).min()
    }
}

impl Topic {
    /// Has the wildcard requested anew, as the set may lack a member that the control plane
    /// believes delivered. `left` members remain. Returns the lower completeness until then: new
    /// clients are not shown an empty set.
    pub(in crate::upstream) fn lapse(&mut self, left: usize, snapshot: &Snapshot) -> Option<Completeness> {
        if self.members.covers() {
            self.members.lapse();
            self.renews[View::Wildcard as usize] = true;
        }
        let known = if left > 0 { Completeness::Presumed } else { Completeness::Settled };
        Some(known).filter(|known| *known < snapshot.completeness())
    }

    /// Applies a census of the set.
    pub(in crate::upstream) fn apply_census(
        &mut self,
        names: &HashSet<String>,
        is_all_held: bool,
        snapshot: &Snapshot,
    ) -> Change {
        let absent = self.members.take_census(names, is_all_held);
        let known =
            is_all_held && self.members.is_whole() && snapshot.completeness() < Completeness::Complete;
        let view = View::Wildcard;
        self.needs_proof[view as usize] &= !known;
        let absent = absent.into_iter().filter(|name| snapshot.held(view, name.as_str()).is_some());
        let mut ops: Vec<Op> = absent.map(|name| gone(&self.names, view, name)).collect();
        self.answer_by_name(&mut ops, snapshot);
        self.note(&ops);
        Change { ops, wildcard_known: known.then_some(Completeness::Complete), ..Change::default() }
    }
}
