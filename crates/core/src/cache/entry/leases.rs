//! TTLs of an entry in both of its views.

use super::super::Generation;
use super::super::view_leases::{Lease, LeaseHistory, LeaseRecord, LeaseRenewal, Leases, View};
use super::{Entry, Named};

impl Entry {
    /// Records the TTL of a new body, of a resend for the clients, or alone (R-TTL-01, R-TTL-02).
    pub(in crate::cache) fn set_lease(
        &mut self,
        view: View,
        lease: Option<Lease>,
        is_new: bool,
        resent: bool,
    ) {
        if lease.is_none() && self.leases().is_none() {
            return;
        }
        let body_at = self.wild_changed.max(self.named_changed);
        let current = LeaseRecord { lease, at: Generation::ZERO };
        self.edit_leases(|leases| {
            let slot = &mut leases.0[view as usize];
            if is_new {
                *slot = lease.map(|_| LeaseHistory { current, before: None });
            } else if resent {
                // Keeps the record of an earlier TTL: a client that was away may have it.
                *slot = (lease.is_some() || slot.is_some()).then_some(LeaseHistory { current, before: None });
            } else {
                let before = slot.map_or(LeaseRecord { lease: None, at: body_at }, |history| history.current);
                if lease.is_some() || before.lease.is_some() {
                    *slot = Some(LeaseHistory { current, before: Some(before) });
                }
            }
        });
    }

    pub(in crate::cache) fn lease(&self, view: View) -> Option<Lease> {
        self.leases()?.of(view)?.current.lease
    }

    pub(in crate::cache) fn end_lease(&mut self, view: View) {
        if self.leases().is_some() {
            self.edit_leases(|leases| leases.0[view as usize] = None);
        }
    }

    fn edit_leases(&mut self, edit: impl FnOnce(&mut Leases)) {
        self.edit_rare(|rare| {
            let mut leases = rare.leases.take().unwrap_or_default();
            edit(&mut leases);
            rare.leases = Some(leases).filter(|leases| leases.0.iter().any(Option::is_some));
        });
    }

    /// Audiences whose lease changed without the body: the origin renewed it, or the name now shows the relay's
    /// other copy.
    pub(in crate::cache) fn renewed_since(&mut self, old: &Self) -> LeaseRenewal {
        if self.leases().is_none() && old.leases().is_none() {
            return LeaseRenewal::default();
        }
        let (was, is) = (old.view_by_name(), self.view_by_name());
        let stays = old.wild.is_some() && self.wild.is_some();
        let is_xdstp = self.name().is_xdstp();
        if let (Some(was), Some(is)) = (was, is)
            && was != is
        {
            // The lease history of one copy says nothing about the other.
            self.edit_leases(|leases| {
                let slot = &mut leases.0[is as usize];
                let lease = slot.and_then(|history| history.current.lease);
                let current = LeaseRecord { lease, at: Generation::ZERO };
                *slot = Some(LeaseHistory { current, before: None });
            });
        }
        let Some(leases) = self.leases() else { return LeaseRenewal::default() };
        let is_new = |view| leases.is_new(view);
        LeaseRenewal {
            members: stays && is_new(View::Wildcard),
            named: is.is_some_and(is_new) || (is_xdstp && is_new(View::Named)),
            any: is_new(View::Wildcard) || is_new(View::Named),
        }
    }

    pub(in crate::cache) fn stamp_leases(&mut self, stamp: Generation) {
        if self.leases().is_none() {
            return;
        }
        self.edit_leases(|leases| {
            for history in leases.0.iter_mut().flatten() {
                if history.current.at == Generation::ZERO {
                    history.current.at = stamp;
                }
            }
        });
    }

    /// When its lease was renewed, if nothing else changed since.
    pub(in crate::cache) fn renewal(&self) -> Option<Generation> {
        let newest = self.leases()?.newest();
        (newest > self.position()).then_some(newest)
    }

    /// Place in the order of changes for clients that receive TTLs.
    pub(in crate::cache) fn place(&self) -> Generation {
        self.renewal().unwrap_or_else(|| self.position())
    }

    pub(in crate::cache) fn is_leased(&self) -> bool {
        self.leases().is_some()
    }

    /// View through which clients that asked by name see it.
    pub(in crate::cache) const fn view_by_name(&self) -> Option<View> {
        match (&self.wild, &self.named) {
            (Some(_), _) => Some(View::Wildcard),
            (None, Named::Present(_)) => Some(View::Named),
            (None, _) => None,
        }
    }
}
