//! Full states: everything that a client may see, in one answer.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::super::entry::VisibleState;
use super::super::update::Update;
use super::{Diff, ErrorEntries};
use crate::resource::{Name, Resource};

impl Diff<'_> {
    /// Fills in everything that the client may see, and whether any is news.
    pub(super) fn full_state(&self, update: &mut Update) {
        let mut has_news = false;
        let mut failing = ErrorEntries::new();
        self.for_each_candidate(self.order(), |entry, visible| {
            let (changed, _) = self.stamps(entry, &visible);
            let is_news = changed > self.position.added;
            if visible.failed.is_some() {
                let body = visible.changed > self.position.added && self.shown(visible.state).is_some();
                failing.extend(self.error_timing(entry, &visible, body).map(|timing| (entry, timing, false)));
            }
            match visible.state {
                VisibleState::Present(resource) | VisibleState::Denied(resource)
                    if is_news && self.shown(visible.state).is_some() =>
                {
                    update.additions = true;
                    has_news |= visible.changed > self.position.added;
                    let is_changed = !self.position.is_start() && !self.is_only_renewed(entry, &visible);
                    update.endpoints.extend(resource.eds_service().filter(|_| is_changed).cloned());
                }
                VisibleState::Absent
                    if visible.changed > self.position.removed
                        && visible.since <= self.position.newest_state =>
                {
                    update.removals = true;
                    has_news = true;
                    let is_seen = |name| self.snapshot.has_aliases() && self.is_seen(name);
                    if let Some(ghost) = entry.ghost().filter(|ghost| !is_seen(ghost.resource.name())) {
                        update.ghosts.push(Arc::clone(&ghost.resource));
                        // Clients that were not sent it warm it (V1).
                        let is_changed = !self.position.is_start() && ghost.changed > self.position.added;
                        let service = ghost.resource.eds_service().filter(|_| is_changed);
                        update.endpoints.extend(service.cloned());
                    }
                }
                _ => return ControlFlow::Continue(()),
            }
            update.to = update.to.max(changed);
            ControlFlow::Continue(())
        });
        if self.is_timed && !has_news {
            // Renewed TTLs are no change.
            update.changed_at = None;
        }
        if self.position.is_start() {
            update.ghosts.clear();
            update.removals = false;
            // An empty subscription gets no answer at all.
            update.additions = !self.subscription.is_empty();
        }
        if self.is_whole_set() {
            let segments = self.snapshot.table.after(None);
            if self.is_timed || self.subscription.locates(Name::WILDCARD) {
                let (own, shared): (Vec<_>, Vec<_>) =
                    segments.iter().partition(|segment| self.has_own_form(segment));
                update.segments = shared.into_iter().cloned().collect();
                update.resources.extend(own.into_iter().flat_map(|segment| segment.members()).cloned());
            } else {
                update.segments = segments.to_vec();
            }
        } else {
            if self.subscription.wildcard {
                update.resources.extend(self.snapshot.members().cloned());
            }
            update.resources.extend(self.explicit().cloned());
        }
        update.digest = self.effective_digest();
        self.add_errors(update, failing);
    }

    /// Resource in a full state; a denied one only for clients that had it before.
    pub(super) fn shown<'s>(&self, seen: VisibleState<'s>) -> Option<&'s Arc<Resource>> {
        match seen {
            VisibleState::Denied(resource) if self.owed.refused.contains_key(resource.name()) => None,
            _ => seen.present(),
        }
    }

    /// Existing resources of names and collections that the wildcard does not show anyway.
    fn explicit(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.snapshot.beside_wildcard(self.subscription).filter_map(|seen| self.shown(seen))
    }

    pub(super) fn effective_digest(&self) -> u128 {
        // A resource with several names counts once, one withheld from this client not at all.
        if self.cohort.has_digest() && !self.snapshot.has_aliases() && self.owed.refused.is_empty() {
            return self.cohort.tally(&self.snapshot).digest;
        }
        let members = if self.subscription.wildcard { self.snapshot.wildcard_digest } else { 0 };
        self.explicit().fold(members, |sum, resource| sum.wrapping_add(resource.digest()))
    }
}
