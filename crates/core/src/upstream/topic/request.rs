//! Next request for a topic on a stream, with its inputs: servers of the held resources, and
//! resources to fetch anew.
//!
//! An operator may find a held resource wrong at its current version, after a lost change for
//! example. A new stream then does not claim that version, so that the resource is sent again.
//! Until then clients keep it; if a complete answer lacks it, it is gone.

use std::sync::Arc;

use foldhash::HashSet;

use super::super::ServerId;
use super::super::server::Provenance;
use super::super::target::Target;
use super::Topic;
use crate::cache::{Op, Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Name, Resource};

type Lent = (Provenance, HashSet<(View, Name)>);

impl Topic {
    /// Lends out the inputs of a request, until they are taken back.
    pub(in crate::upstream) fn lend(&mut self) -> Lent {
        (std::mem::take(&mut self.provenance), std::mem::take(&mut self.refreshed))
    }

    pub(in crate::upstream) fn take_back(&mut self, lent: Lent) {
        (self.provenance, self.refreshed) = lent;
    }

    /// Returns the next request on a stream, and whether another has to follow.
    pub(in crate::upstream) fn changes(
        &mut self,
        view: View,
        target: &Target<'_>,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        let (request, more) = match view {
            View::Wildcard => self.members.as_mut().map_or((None, false), |set| set.changes(target)),
            View::Named => self.names.changes(target),
        };
        if let Some(request) = &request {
            self.mark_unconfirmed(view, request, target);
        }
        (request, more)
    }

    /// Notes which requested resources may have become another variant: all that were not claimed.
    fn mark_unconfirmed(&mut self, view: View, request: &DeltaDiscoveryRequest, target: &Target<'_>) {
        let located = request.resource_locators_subscribe.iter().map(|locator| &locator.name);
        let asked = || request.resource_names_subscribe.iter().chain(located.clone());
        let is_claimed = |held: &Arc<Resource>| {
            let name = held.name().as_str();
            target.is_claimed(held) || request.initial_resource_versions.contains_key(name)
        };
        // Hidden variants are not claimed either.
        if view == View::Named {
            for held in asked().filter_map(|name| target.snapshot.held(view, name)) {
                self.names.set_unconfirmed(held.name().as_str(), !is_claimed(held));
            }
            if !self.rivals.is_empty() {
                asked().for_each(|name| drop(self.rivals.remove(&(view, name.as_str().into()))));
            }
        } else if asked().next().is_some() || request.resource_names_unsubscribe.is_empty() {
            let doubted = target.snapshot.members().filter(|held| !is_claimed(held));
            self.unconfirmed.extend(doubted.map(|held| held.name().clone()));
            self.rivals.retain(|(other, _), _| *other != view);
        }
    }
}

impl Topic {
    /// Has a name fetched anew, in all views that request it.
    pub(in crate::upstream) fn refresh(&mut self, name: &Name, snapshot: &Snapshot) {
        for view in View::ALL {
            let held = snapshot.held(view, name.as_str());
            let is_asked_for = match view {
                View::Wildcard => self.wildcard.is_live() && held.is_some(),
                View::Named => self.names.asks_for(name.as_str()) || self.is_listed(name.as_str()),
            };
            if is_asked_for {
                self.refreshed.extend(held.map(|held| (view, held.name().clone())));
                self.renews[view as usize] = true;
            }
        }
    }

    /// Has everything of a view fetched anew, on the next stream.
    pub(in crate::upstream) fn refresh_all(&mut self, view: View, snapshot: &Snapshot) {
        let held = snapshot.entries().filter_map(|entry| snapshot.held(view, entry.name().as_str()));
        self.refreshed.extend(held.map(|held| (view, held.name().clone())));
    }
}

impl Topic {
    /// Notes a change of the server. `servers` is `None` if versions are offered across servers.
    pub(in crate::upstream) fn switched(
        &mut self,
        servers: Option<(&ServerId, &ServerId)>,
        snapshot: &Snapshot,
    ) {
        self.rivals.clear();
        if let Some((from, to)) = servers {
            let own = |view, held: &Arc<Resource>| (view, held.name().clone());
            let named = snapshot.entries().filter_map(|entry| {
                snapshot.held(View::Named, entry.name().as_str()).map(|held| own(View::Named, held))
            });
            let members = snapshot.members().map(|held| own(View::Wildcard, held));
            self.provenance.switch(from, to, members.chain(named));
        }
    }

    /// Server of a resource, if that is not the present one.
    pub(in crate::upstream) fn server_of(&self, view: View, name: &Name) -> Option<ServerId> {
        self.provenance.of(view, name)
    }

    pub(in crate::upstream) fn has_one_server(&self) -> bool {
        self.provenance.is_empty()
    }

    /// Notes the servers of members shared by another topic.
    pub(in crate::upstream) fn share_provenance(&mut self, of: &Self, held: &[Op]) {
        for name in held.iter().map(Op::name) {
            self.provenance.share(View::Wildcard, name, of.server_of(View::Wildcard, name));
        }
    }
}
