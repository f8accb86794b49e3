//! Consequences of silence, and of a census of the set.

use std::time::{Duration, Instant};

use foldhash::HashSet;

use super::super::arrival::Evidence;
use super::super::quiet_clock::{Moment, QuietClock, QuietInstant};
use super::super::{Counters, Settings};
use super::{Topic, gone};
use crate::cache::{Change, Completeness, Op, Snapshot, View};
use crate::resource::Name;

impl Topic {
    /// Does what has become due on the streams.
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
        let degree = self.members.as_mut().and_then(|set| set.step(settings, asked, moment.quiet));
        let more = degree.filter(|known| *known > snapshot.completeness());
        change.wildcard_known = change.wildcard_known.or(more);
        self.answer_by_name(&mut change.ops, snapshot);
        self.note(&change.ops);
        change
    }

    /// Ends what has its time behind it: resources with a TTL, and bodies that may not be kept.
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
            // The origin may hold it still: by name it is asked for again (R-TTL-09).
            if view == View::Named {
                self.names.ask_again(&name);
            }
            counters.expired.add(1);
            change.ops.push(gone(&self.names, view, name));
        }
        let past = now.checked_sub(settings.settle_max).map(|before| self.uncacheable.take_due(before));
        for (_, name) in past.into_iter().flatten() {
            // A collection is served from memory, as the wildcard is.
            if !self.is_listed(name.as_str()) {
                change.ops.push(Op::Drop { name });
            }
        }
        change
    }

    /// Members have come to their end. Where that leaves nothing of a set that is not complete, the origin was silent for as
    /// long, and what has not come yet is as unknown as before. Where their versions were told and no answer has come, the
    /// origin takes them for held.
    fn note_lapse(&mut self, ended: &[(View, Name)], snapshot: &Snapshot) -> Option<Completeness> {
        let members = ended.iter().filter(|(view, _)| *view == View::Wildcard).count();
        let left = snapshot.member_count().saturating_sub(members);
        let leaves_nothing = left == 0 && snapshot.completeness() < Completeness::Complete;
        let is_claimed = || {
            let covering = self.members.as_ref().filter(|set| set.covers());
            covering.is_some_and(|set| ended.iter().any(|(_, name)| set.is_claimed(name)))
        };
        if members == 0 || !(leaves_nothing || is_claimed()) {
            return None;
        }
        self.lapse(left, snapshot)
    }

    /// Time that an origin has to answer for a name: a client that waits for evidence has others that are to be told, and many origins
    /// never say that a name does not exist (O2).
    const fn patience(&self, settings: &Settings) -> Duration {
        if self.needs_proof[View::Named as usize] { settings.settle } else { settings.answer_timeout }
    }

    /// No earlier than since when names are to be asked for on a stream of their own.
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

    /// When to look again though nothing happened.
    pub(in crate::upstream) fn deadline(
        &self,
        settings: &Settings,
        asked: Evidence,
        clock: &QuietClock,
    ) -> Option<Instant> {
        let set = self.members.as_ref().and_then(|set| set.deadline(settings, asked));
        let quiet = set.into_iter().chain(self.names.deadline(settings)).map(|at| clock.when(at));
        let uncacheable = self.uncacheable.next().map(|came| came + settings.settle_max);
        self.expiry.next().into_iter().chain(uncacheable).chain(quiet).min()
    }
}

impl Topic {
    /// The wildcard set is known to lack something, or may, that the origin takes for delivered: it is asked for anew. Returns
    /// how much of the set is known until then, if that is less than before, given how many members are left. Clients that were
    /// shown the set see what goes from it. Newcomers are shown no set of which nothing is left.
    pub(in crate::upstream) fn lapse(&mut self, left: usize, snapshot: &Snapshot) -> Option<Completeness> {
        if let Some(set) = self.members.as_mut().filter(|set| set.covers()) {
            set.lapse();
            self.renews[View::Wildcard as usize] = true;
        }
        let known = if left > 0 { Completeness::Presumed } else { Completeness::Settled };
        Some(known).filter(|known| *known < snapshot.completeness())
    }

    /// Takes in a census of the set.
    pub(in crate::upstream) fn learn_census(
        &mut self,
        names: &HashSet<String>,
        is_all_held: bool,
        snapshot: &Snapshot,
    ) -> Change {
        let Some(set) = &mut self.members else { return Change::default() };
        let absent = set.take_census(names, is_all_held);
        let known = is_all_held && set.is_whole() && snapshot.completeness() < Completeness::Complete;
        let view = View::Wildcard;
        self.needs_proof[view as usize] &= !known;
        let absent = absent.into_iter().filter(|name| snapshot.held(view, name.as_str()).is_some());
        let mut ops: Vec<Op> = absent.map(|name| gone(&self.names, view, name)).collect();
        self.answer_by_name(&mut ops, snapshot);
        self.note(&ops);
        Change { ops, wildcard_known: known.then_some(Completeness::Complete), ..Change::default() }
    }
}
