//! Draft: the next snapshot, before it is published.
//!
//! Owns the effect of each change on the entries, and whom it concerns.

use std::sync::Arc;
use std::time::Instant;

use super::super::Generation;
use super::super::change::{Change, Op, Resend};
use super::super::entry::{Entry, Ghost, Named, VisibleState};
use super::super::origin_error::OriginError;
use super::super::view_leases::Lease;
use super::super::view_leases::View;
use super::{HeldTotals, Snapshot, Touch};
use crate::resource::{Collection, Form, Name, Resource, TypeUrl};

pub(in crate::cache) struct Draft<'a> {
    pub(in crate::cache) snapshot: Snapshot,
    from: Generation,
    type_url: &'a TypeUrl,
    clock: &'a mut Generation,
    pub(in crate::cache) touched: Vec<Touch>,
    pub(in crate::cache) completeness_changed: bool,
    /// Endpoints of changed EDS clusters (R-ADS-05).
    pub(in crate::cache) endpoints: Vec<Name>,
    /// Whether more changed than TTLs.
    has_news: bool,
}

impl<'a> Draft<'a> {
    pub(in crate::cache) fn new(from: &Snapshot, type_url: &'a TypeUrl, clock: &'a mut Generation) -> Self {
        Self {
            snapshot: from.clone(),
            from: from.generation,
            type_url,
            clock,
            touched: Vec::new(),
            completeness_changed: false,
            endpoints: Vec::new(),
            has_news: false,
        }
    }

    pub(in crate::cache) fn apply(&mut self, change: Change) {
        for op in change.ops {
            self.step(op);
        }
        if let Some(version) = change.system_version {
            self.snapshot.system_version = version;
        }
        if let Some(identifier) = change.control_plane {
            self.snapshot.control_plane = identifier;
        }
        if let Some(known) = change.wildcard_known {
            self.completeness_changed = known != self.snapshot.completeness;
            self.snapshot.completeness = known;
            if self.completeness_changed {
                self.has_news = true;
                self.tick();
            }
        }
    }

    /// Names the relay in responses unless a change named a chain of servers.
    pub(in crate::cache) fn identify(&mut self, own: &Arc<str>) {
        if self.snapshot.control_plane.is_empty() {
            self.snapshot.control_plane = Arc::clone(own);
        }
    }

    pub(in crate::cache) fn finish(mut self, tombstones: usize, at: Instant) -> Self {
        if self.snapshot.tombstones > tombstones {
            self.drop_tombstones(tombstones / 4 * 3);
        }
        if self.has_news {
            self.snapshot.at = Some(at);
        }
        self
    }

    fn tick(&mut self) -> Generation {
        *self.clock = self.clock.next();
        self.snapshot.generation = *self.clock;
        self.snapshot.generation
    }

    fn step(&mut self, op: Op) {
        let name = op.name().clone();
        let old = self.snapshot.table.get(name.as_str()).cloned();
        let mut new = old.as_deref().cloned().unwrap_or_else(|| Entry::new(name.clone()));
        let ended = match &op {
            Op::Remove { view, .. } | Op::Forget { view, .. } => Some(*view),
            Op::LeaveCollection { .. } => Some(View::Named),
            Op::Fail { failure, .. } if failure.is_not_found() => Some(View::Named),
            _ => None,
        };
        let (resent, resend_endpoints) = self.edit(&mut new, op);
        if let Some(view) = ended {
            new.end_lease(view);
        }
        let is_listed = |entry: &Entry| entry.as_listed().existing().is_some();
        let (was_listed, is_listed) = (old.as_deref().is_some_and(is_listed), is_listed(&new));
        self.replace(old, new, resent, resend_endpoints);
        if was_listed != is_listed {
            self.recount(&name, is_listed);
        }
    }

    /// Changes an entry. Returns whether to resend its body unchanged, and its endpoints.
    fn edit(&self, entry: &mut Entry, op: Op) -> (bool, bool) {
        let mut resent = false;
        let mut resend_endpoints = false;
        match op {
            Op::Set { view, resource, resend, lease } => {
                resent = Self::set(entry, view, resource, resend, lease);
            }
            Op::Alias { resource, resend, .. } => {
                // Under an alias a resource is sent without its TTL. The end of a TTL that was sent is news.
                resent = Self::set(entry, View::Named, resource, resend, None);
            }
            Op::Drop { .. } => {
                // A member keeps its body as long as it is one.
                let held = entry.named_resource().filter(|held| held.form() == Form::Whole);
                if let Some(dropped) =
                    held.filter(|_| !entry.is_member()).map(|held| Arc::new(held.dropped()))
                {
                    entry.set_named(Some(dropped));
                }
            }
            Op::Renew { view, lease, .. } => {
                if self.snapshot.held(view, entry.name().as_str()).is_some() {
                    entry.set_lease(view, lease, false, false);
                }
            }
            Op::Remove { view: View::Named, .. } => {
                entry.recover();
                entry.set_named(None);
            }
            Op::Forget { view: View::Named, .. } => {
                entry.set_failed(None);
                entry.named = Named::Unknown;
            }
            Op::Remove { view: View::Wildcard, .. } | Op::Forget { view: View::Wildcard, .. } => {
                entry.end_membership();
            }
            Op::LeaveCollection { .. } => {
                entry.recover();
                if matches!(entry.named, Named::Present(_) | Named::Superseded(_)) {
                    entry.named = Named::Gone;
                }
            }
            Op::Complete { .. } if matches!(entry.named, Named::Collection { .. }) => {}
            Op::Complete { .. } => {
                let members = self.snapshot.members_of(entry.name()).count();
                let members = u32::try_from(members).unwrap_or(u32::MAX);
                entry.set_failed(None);
                entry.named = Named::Collection { members, horizon: Generation::ZERO };
            }
            Op::Fail { failure, listed, .. } => entry.fail(failure, listed),
            Op::ResendEndpoints { .. } => resend_endpoints = entry.by_name().present().is_some(),
        }
        (resent, resend_endpoints)
    }

    /// Takes a resource that came. Returns whether to resend it to clients.
    fn set(
        entry: &mut Entry,
        view: View,
        resource: Arc<Resource>,
        resend: Resend,
        lease: Option<Lease>,
    ) -> bool {
        entry.set_failed(None);
        if view == View::Named && entry.confirm_member(&resource) {
            entry.set_lease(view, lease, !matches!(entry.named, Named::Present(_)), false);
            return false;
        }
        let held = held_in(entry, view).filter(|held| held.same_content(&resource));
        let is_new = held.is_none();
        // A resend that answers no request of ours is meant for the clients (R-Relay-21).
        let resent = !is_new && resend == Resend::Unsolicited;
        let body = match held.or_else(|| entry.held().filter(|held| held.same_content(&resource))) {
            Some(held) if held.form() != Form::Dropped => Arc::clone(held),
            _ if is_new => Self::tell_apart(entry, resource),
            _ => resource,
        };
        match view {
            View::Wildcard => entry.set_member(body),
            View::Named => entry.set_named(Some(body)),
        }
        entry.set_lease(view, lease, is_new, resent);
        resent
    }

    /// Updates the member count of the collection that covers a name.
    fn recount(&mut self, name: &Name, came: bool) {
        let covering = Collection::covering(name.as_str());
        let Some(old) = covering.and_then(|covering| self.snapshot.table.get(&covering)).cloned() else {
            return;
        };
        let mut new = Entry::clone(&old);
        if let Named::Collection { members, .. } = &mut new.named {
            *members = if came { members.saturating_add(1) } else { members.saturating_sub(1) };
            if came {
                new.set_failed(None);
            }
            self.replace(Some(old), new, false, false);
        }
    }

    /// Distinguishes a resource from held content of an equal version (R-XT-06).
    fn tell_apart(entry: &Entry, resource: Arc<Resource>) -> Arc<Resource> {
        let held = entry.held().or_else(|| entry.named_resource());
        held.and_then(|held| resource.marked_if_reused(held)).map_or(resource, Arc::new)
    }

    fn replace(&mut self, old: Option<Arc<Entry>>, mut new: Entry, resent: bool, resend_endpoints: bool) {
        let mut failed = new.failed().is_some_and(|failed| failed.at == Generation::ZERO);
        let (members, named, body, quiet, renewed) = {
            let blank = Entry::new(new.name().clone());
            let old = old.as_deref().unwrap_or(&blank);
            let members = resent && new.wild.is_some() || differ(old.as_member(), new.as_member());
            // A collection may have its own resource behind a member of the wildcard set.
            let listed = || new.name().is_xdstp() && differ(old.as_listed(), new.as_listed());
            // A resource ends an error, even unchanged (R-Err-01). "Does not exist" is sent as a removal too.
            let recovered = old.failed().is_some() && new.failed().is_none();
            let body = differ(old.by_name(), new.by_name());
            let is_missing = matches!(new.by_name(), VisibleState::Absent)
                && new.failure().is_some_and(OriginError::is_not_found);
            // A member of the wildcard set may have hidden it.
            failed |= body && is_missing;
            let named = resent || recovered || body || (failed && is_missing) || listed();
            new.record_past_variants(old);
            // Its body was dropped, or fetched again for clients that asked meanwhile: no news to others
            // (R-XT-09).
            let is_dropped = |entry: &Entry| matches!(entry.by_name(), VisibleState::Dropped(_));
            let quiet = !named && is_dropped(old) != is_dropped(&new);
            let ghost = |gone: &Arc<Resource>, changed| Some(Ghost { resource: Arc::clone(gone), changed });
            if !self.type_url.kind().full_state() || new.wild.is_some() {
                new.set_ghost(None);
            } else if let Some(gone) = &old.wild {
                new.set_ghost(ghost(gone, old.wild_changed));
            } else if let VisibleState::Present(gone) = old.by_name()
                && (matches!(new.by_name(), VisibleState::Absent) || matches!(new.named, Named::Gone))
            {
                new.set_ghost(ghost(gone, old.named_changed));
            }
            if let Some(resource) = &old.wild {
                self.snapshot.members -= 1;
                self.snapshot.wildcard_digest = self.snapshot.wildcard_digest.wrapping_sub(resource.digest());
            }
            (members, named, body, quiet, new.renewed_since(old))
        };
        if quiet {
            self.tick();
        }
        if let Some(resource) = &new.wild {
            self.snapshot.members += 1;
            self.snapshot.wildcard_digest = self.snapshot.wildcard_digest.wrapping_add(resource.digest());
        }
        let is_news = members || named || resend_endpoints || failed || renewed.any;
        if is_news {
            let stamp = self.tick();
            self.has_news |= members || named || resend_endpoints || failed;
            new.stamp_leases(stamp);
            if members {
                new.wild_changed = stamp;
                if new.wild_since == Generation::ZERO {
                    new.wild_since = stamp;
                }
            }
            if named {
                new.named_changed = stamp;
                let horizon = new.remember(old.as_deref(), stamp);
                self.snapshot.names_horizon = self.snapshot.names_horizon.max(horizon);
            }
            if resend_endpoints {
                new.set_resent(stamp);
            }
            if failed {
                new.stamp_failed(stamp);
            }
            // Members only: each session knows the other clusters that its client was sent.
            if body && members {
                let member = new.as_member().present();
                self.endpoints.extend(member.and_then(|resource| resource.eds_service()).cloned());
            }
        }
        let (name, is_member) = (new.name().clone(), new.wild.is_some());
        let is = self.store(old.clone(), new);
        if is_news || quiet {
            let (members, named) =
                (members || (resend_endpoints && is_member), named || resend_endpoints || failed || quiet);
            self.touched.push(Touch { name, members, named, renewed, was: old, is });
        }
    }

    /// Replaces an entry. Returns the new one, unless nothing of it needs to be kept.
    fn store(&mut self, old: Option<Arc<Entry>>, new: Entry) -> Option<Arc<Entry>> {
        let (was, is) = (old.as_deref().and_then(Entry::listing), new.listing());
        if was != is {
            was.into_iter().for_each(|was| drop(self.snapshot.aliases.remove(&was)));
            self.snapshot.aliases.extend(is);
        }
        if let Some(old) = old {
            self.snapshot.log.remove(old.position());
            self.snapshot.held.subtract(&old, self.type_url);
            self.snapshot.tombstones -= usize::from(old.is_tombstone());
            self.snapshot.leased -= usize::from(old.is_leased());
            old.renewal().inspect(|place| _ = self.snapshot.renewals.remove(place));
        }
        // A store filled from others also forgets requested names that clients may hold (R-DP-13).
        let is_unsent =
            matches!(new.named, Named::Unknown) && new.wild_changed == Generation::ZERO && !new.has_past();
        if new.position() == Generation::ZERO || (new.is_tombstone() && is_unsent) {
            // No client was ever sent it, or none that may still ask.
            self.snapshot.table.remove(new.name().as_str());
            return None;
        }
        self.snapshot.tombstones += usize::from(new.is_tombstone());
        self.snapshot.held = self.snapshot.held.plus(HeldTotals::of(&new, self.type_url));
        let new = Arc::new(new);
        self.snapshot.log.insert(Arc::clone(&new));
        self.snapshot.leased += usize::from(new.is_leased());
        if let Some(place) = new.renewal() {
            self.snapshot.renewals.insert(place, Arc::clone(&new));
        }
        self.snapshot.table.insert(Arc::clone(&new));
        Some(new)
    }

    /// Drops the oldest tombstones down to `keep`, none of this change: clients that are up to date can be sent
    /// it, however large.
    fn drop_tombstones(&mut self, keep: usize) {
        let surplus = self.snapshot.tombstones - keep;
        let before = self.snapshot.log.between(Generation::ZERO, self.from);
        let oldest: Vec<_> = before.filter(|entry| entry.is_tombstone()).take(surplus).cloned().collect();
        for entry in oldest {
            // Forgetting a name moves its place, but wildcard clients need no update for it.
            self.snapshot.horizon = self.snapshot.horizon.max(entry.wild_changed);
            if matches!(entry.named, Named::Gone) {
                self.raise_collection_horizon(&entry);
            }
            self.snapshot.log.remove(entry.position());
            self.snapshot.table.remove(entry.name().as_str());
            self.snapshot.tombstones -= 1;
        }
    }

    /// Removals of members up to this one are forgotten by its collection.
    fn raise_collection_horizon(&mut self, gone: &Entry) {
        let covering = Collection::covering(gone.name().as_str());
        let Some(old) = covering.and_then(|covering| self.snapshot.table.get(&covering)).cloned() else {
            return;
        };
        let mut new = Entry::clone(&old);
        if let Named::Collection { horizon, .. } = &mut new.named {
            *horizon = gone.named_changed.max(*horizon);
            self.snapshot.names_horizon = self.snapshot.names_horizon.max(*horizon);
            self.store(Some(old), new);
        }
    }
}

fn differ(old: VisibleState<'_>, new: VisibleState<'_>) -> bool {
    if let (VisibleState::Unresolved(old), VisibleState::Unresolved(new)) = (old, new) {
        return !Arc::ptr_eq(old, new) && !old.same_content(new);
    }
    if let (Some(old), Some(new)) = (old.existing(), new.existing()) {
        return !Arc::ptr_eq(old, new) && !old.same_content(new);
    }
    std::mem::discriminant(&old) != std::mem::discriminant(&new)
}

/// Resource held under a name in one view, in any form.
const fn held_in(entry: &Entry, view: View) -> Option<&Arc<Resource>> {
    match view {
        View::Wildcard => entry.wild.as_ref(),
        View::Named => entry.named_resource(),
    }
}
