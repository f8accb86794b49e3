//! Everything that a client may see, in one answer.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::super::entry::Seen;
use super::super::tally::Tally;
use super::super::update::{OwedItems, Update};
use super::{Diff, ErrorEntries};
use crate::resource::{Name, Resource};

impl Diff<'_> {
    /// Everything that the client may see, and whether any of it is news.
    pub(super) fn full_state(&self, update: &mut Update, owed: &OwedItems) {
        let mut has_news = false;
        let mut failing = ErrorEntries::new();
        self.for_each_candidate(self.order(), |entry, look| {
            let (changed, _) = self.stamps(entry, &look);
            let is_news = changed > self.position.added;
            if look.failed.is_some() {
                let body = look.changed > self.position.added && self.given(look.seen).is_some();
                failing.extend(self.telling(entry, &look, body).map(|telling| (entry, telling, false)));
            }
            match look.seen {
                Seen::Present(resource) | Seen::Denied(resource)
                    if is_news && self.given(look.seen).is_some() =>
                {
                    update.additions = true;
                    has_news |= look.changed > self.position.added;
                    let is_changed = !self.position.is_start() && !self.is_only_renewed(entry, &look, owed);
                    if let Some(service) = resource.eds_service().filter(|_| is_changed) {
                        update.endpoints.push(service.clone());
                    }
                }
                Seen::Absent if look.changed > self.position.removed && look.since <= self.position.seen => {
                    update.removals = true;
                    has_news = true;
                    let is_seen = |name| self.snapshot.has_aliases() && self.is_seen(name);
                    if let Some(ghost) = entry.ghost().filter(|ghost| !is_seen(ghost.resource.name())) {
                        update.ghosts.push(Arc::clone(&ghost.resource));
                        // A client that was not told of it warms it (V1).
                        let is_changed = !self.position.is_start() && ghost.changed > self.position.added;
                        let service = ghost.resource.eds_service().filter(|_| is_changed);
                        update.endpoints.extend(service.cloned());
                    }
                }
                Seen::Present(_)
                | Seen::Denied(_)
                | Seen::Absent
                | Seen::Unknown
                | Seen::Failed
                | Seen::Dropped(_)
                | Seen::Unresolved(_)
                | Seen::Collection => return ControlFlow::Continue(()),
            }
            update.to = update.to.max(changed);
            ControlFlow::Continue(())
        });
        if self.is_timed && !has_news {
            // That times were renewed is no change.
            update.at = None;
        }
        if self.position.is_start() {
            update.ghosts.clear();
            update.removals = false;
            // A client that asks for nothing is told nothing, not even that nothing is there.
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
        self.tell_errors(update, failing, owed);
    }

    /// Resource that a full state includes for what is seen. A denied one is included only for clients that already had it.
    pub(super) fn given<'s>(&self, seen: Seen<'s>) -> Option<&'s Arc<Resource>> {
        let is_refused = |resource: &Name| self.refused.is_some_and(|refused| refused.contains_key(resource));
        match seen {
            Seen::Denied(resource) if is_refused(resource.name()) => None,
            _ => seen.present(),
        }
    }

    /// Resources that were asked for by name or through a collection, exist, and are not seen through the wildcard anyway.
    fn explicit(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.snapshot.beside_wildcard(self.subscription).filter_map(|seen| self.given(seen))
    }

    pub(super) fn effective_digest(&self) -> u128 {
        // A resource with several names counts once, and one that is kept from this client does not.
        let is_kept = Tally::has_digest(self.subscription, self.profile);
        if is_kept && !self.snapshot.has_aliases() && self.refused.is_none() {
            return self.cohort.tally(&self.snapshot).digest;
        }
        let members = if self.subscription.wildcard { self.snapshot.wildcard_digest } else { 0 };
        self.explicit().fold(members, |sum, resource| sum.wrapping_add(resource.digest()))
    }
}
