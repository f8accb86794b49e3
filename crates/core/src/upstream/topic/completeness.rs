//! How much of a set is known, and whether the origin could prove that it is all.

use std::time::Instant;

use super::super::stream_subscription::StreamSubscription;
use super::super::{Reconcile, Settings, StreamId};
use super::renewal::Unproven;
use super::{Renewal, Topic};
use crate::cache::{Completeness, Snapshot, View};

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
        self.needs_proof[View::Wildcard as usize] |= self.unproven.take().is_some();
        let known = if left > 0 { Completeness::Presumed } else { Completeness::Settled };
        Some(known).filter(|known| *known < snapshot.completeness())
    }

    /// How much of the wildcard set is known, given the degree that the answer has reached by its silence. Silence shows a set
    /// to newcomers, and proves nothing to clients that may hold something.
    pub(super) fn known_of_wildcard(
        &mut self,
        stream: StreamId,
        degree: Option<Completeness>,
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
    ) -> Option<Completeness> {
        if snapshot.completeness() == Completeness::Complete {
            self.unproven = None;
            self.needs_proof[View::Wildcard as usize] = false;
            return degree;
        }
        let subscription = self.subscription(stream)?;
        if subscription.has_lapsed() {
            return None;
        }
        if !subscription.has_settled() {
            return degree;
        }
        let (reached, misses_some) = (subscription.degree(), !subscription.misses_nothing());
        let is_told = misses_some || snapshot.completeness() >= Completeness::Presumed;
        if degree.is_none()
            && is_told
            && self.unproven.is_none()
            && !self.needs_proof[View::Wildcard as usize]
        {
            // Nothing has changed: whether it is provable takes a look at each member.
            return None;
        }
        if !self.is_provable(stream, settings, snapshot) {
            if self.unproven.take().is_some()
                && self.ignores_versions
                && settings.reconcile == Reconcile::Sweep
            {
                // A member whose version was told in vain may be gone, and is swept.
                self.renewals[stream as usize].insert(Renewal::Doubt);
            }
            // Members that have not come again may still come, and others with them.
            let least = if misses_some { Completeness::Settled } else { Completeness::Presumed };
            return Some(degree.unwrap_or(reached).max(least));
        }
        if std::mem::take(&mut self.needs_proof[View::Wildcard as usize]) {
            self.unproven.get_or_insert_with(|| Unproven::starting(now, snapshot.member_count()));
            self.renewals[stream as usize].insert(Renewal::Proof);
        }
        let Some(unproven) = &mut self.unproven else {
            let is_long = reached == Completeness::Complete;
            return Some(if is_long { Completeness::Presumed } else { Completeness::Settled });
        };
        if unproven.is_over(now, snapshot.member_count()) {
            self.unproven = None;
            return Some(Completeness::Complete);
        }
        Some(if unproven.is_shown(now) { Completeness::Presumed } else { Completeness::Settled })
    }

    /// Whether the origin could prove on a stream that is opened anew that its wildcard set has no more than what is held.
    fn is_provable(&self, stream: StreamId, settings: &Settings, snapshot: &Snapshot) -> bool {
        let trusts = settings.reconcile == Reconcile::Trust;
        // A sweep that is not over yet goes on.
        let can_ask = |subscription: &StreamSubscription| {
            subscription.is_only() && (trusts || subscription.misses_nothing())
        };
        self.reads_versions()
            && self.subscription(stream).is_some_and(can_ask)
            && self.would_fill(Some(View::Wildcard), snapshot)
            && snapshot.members().all(|held| self.provenance.may_claim(View::Wildcard, held))
            && StreamSubscription::fits_in_one_request(snapshot.members())
    }

    /// Whether the origin may say what is gone of what is claimed, as far as is known.
    pub(super) const fn reads_versions(&self) -> bool {
        !self.ignores_versions && !self.habits.speaks_sotw
    }

    /// Whether the origin would put the least of what is held and another like the largest into one response.
    pub(in crate::upstream) fn would_fill(&self, view: Option<View>, snapshot: &Snapshot) -> bool {
        let bounds = |bytes: &mut dyn Iterator<Item = usize>| {
            let first = bytes.next()?;
            Some(bytes.fold((first, first), |(least, most), bytes| (least.min(bytes), most.max(bytes))))
        };
        let bounds = if view == Some(View::Wildcard) {
            bounds(&mut snapshot.members().map(|held| held.body().len()))
        } else {
            let held = self.names.keys().filter_map(|name| snapshot.held(View::Named, name.as_str()));
            bounds(&mut held.map(|held| held.body().len()))
        };
        bounds.is_some_and(|(least, most)| least + most <= self.habits.fills())
    }
}
