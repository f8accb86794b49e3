//! How much of a wildcard set is known.

use foldhash::HashSet;

use super::super::quiet_clock::QuietInstant;
use super::super::{Settings, StreamId};
use super::{Renewal, Topic, gone};
use crate::cache::{Change, Completeness, Op, Snapshot, View};

impl Topic {
    /// The wildcard set is known to lack something, or may, that the origin takes for delivered: it is asked for anew. Returns
    /// how much of the set is known until then, if that is less than before, given how many members are left. Clients that were
    /// shown the set see what goes from it. Newcomers are shown no set of which nothing is left.
    pub(in crate::upstream) fn lapse(&mut self, left: usize, snapshot: &Snapshot) -> Option<Completeness> {
        for (subscription, renewal) in self.subscriptions.iter_mut().zip(&mut self.renewals) {
            if let Some(subscription) =
                subscription.as_mut().filter(|subscription| subscription.covers_wildcard())
            {
                subscription.lapse();
                renewal.insert(Renewal::Doubt);
            }
        }
        let known = if left > 0 { Completeness::Presumed } else { Completeness::Settled };
        Some(known).filter(|known| *known < snapshot.completeness())
    }

    /// Since when a census of the set is due.
    pub(in crate::upstream) fn census_since(
        &self,
        stream: StreamId,
        settings: &Settings,
        opened: QuietInstant,
    ) -> Option<QuietInstant> {
        self.subscription(stream)?.census_since(self.needs_proof[View::Wildcard as usize], settings, opened)
    }

    /// Takes in a census of the set.
    pub(in crate::upstream) fn learn_census(
        &mut self,
        stream: StreamId,
        names: &HashSet<String>,
        is_all_held: bool,
        snapshot: &Snapshot,
    ) -> Change {
        let Some(subscription) = &mut self.subscriptions[stream as usize] else { return Change::default() };
        let absent = subscription.take_census(names, is_all_held);
        let known =
            is_all_held && subscription.is_whole() && snapshot.completeness() < Completeness::Complete;
        let view = View::Wildcard;
        self.needs_proof[view as usize] &= !known;
        let absent = absent.into_iter().filter(|name| snapshot.held(view, name.as_str()).is_some());
        let mut ops: Vec<Op> = absent.map(|name| gone(&self.names, view, name)).collect();
        self.answer_by_name(&mut ops, snapshot);
        self.note(&ops);
        Change { ops, wildcard_known: known.then_some(Completeness::Complete), ..Change::default() }
    }

    /// How much of the wildcard set is known, given the degree that the answer has reached by its silence, where the origin does not
    /// answer the end mark.
    pub(super) fn known_of_wildcard(
        &self,
        stream: StreamId,
        degree: Option<Completeness>,
    ) -> Option<Completeness> {
        let subscription = self.subscription(stream)?;
        if subscription.has_lapsed() {
            return None;
        }
        if !subscription.has_settled() {
            return degree;
        }
        let known = degree.unwrap_or_else(|| subscription.degree());
        // Members that have not come again may still come, and others with them.
        let is_askable = subscription.awaits_end() && !self.habits.refuses_census;
        let is_presumed = !is_askable && subscription.misses_nothing();
        Some(if is_presumed { known.max(Completeness::Presumed) } else { known })
    }
}
