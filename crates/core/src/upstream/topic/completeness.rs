//! How much of a wildcard set is known.

use foldhash::HashSet;

use super::{Topic, gone};
use crate::cache::{Change, Completeness, Op, Snapshot, View};

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
