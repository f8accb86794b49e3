//! Next request for a topic on a stream, and the resources to fetch anew.
//!
//! At another server that is everything. Example: a and b came from server A. At B neither is
//! claimed. B sends a, whose version is claimed on the next stream to B.
//!
//! An operator may find a held resource wrong at its current version, after a lost change for
//! example. A new stream then does not claim that version, so that the resource is sent again.
//! Until then clients keep it; if a complete answer lacks it, it is gone.

use std::sync::Arc;

use super::super::target::Target;
use super::Topic;
use crate::cache::{Op, Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Name, Resource};

impl Topic {
    /// Returns the next request on a stream.
    pub(in crate::upstream) fn changes(
        &mut self,
        view: View,
        mut target: Target<'_>,
    ) -> Option<DeltaDiscoveryRequest> {
        target.outdated = std::mem::take(&mut self.outdated);
        let request = match view {
            View::Wildcard => self.members.changes(&target),
            View::Named => self.names.changes(&target),
        };
        if let Some(request) = &request {
            self.mark_unconfirmed(view, request, &target);
        }
        self.outdated = target.outdated;
        request
    }

    /// Notes which requested resources may have become another variant: all that were not claimed.
    fn mark_unconfirmed(&mut self, view: View, request: &DeltaDiscoveryRequest, target: &Target<'_>) {
        let located = request.resource_locators_subscribe.iter().map(|locator| &locator.name);
        let asked = || request.resource_names_subscribe.iter().chain(located.clone());
        let is_claimed =
            |held: &Arc<Resource>| request.initial_resource_versions.contains_key(held.name().as_str());
        // Hidden variants are not claimed either.
        if view == View::Named {
            // A name that is only subscribed to once more is no question, and makes nothing doubtful.
            let asked_for = asked().filter(|name| self.names.expects(name));
            let held: Vec<_> = asked_for.filter_map(|name| target.snapshot.held(view, name)).collect();
            for held in held {
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
                View::Named => self.names.is_wanted(name.as_str()) || self.is_listed(name.as_str()),
            };
            if is_asked_for {
                if let Some(held) = held {
                    self.outdated.entry((view, held.name().clone())).or_insert(false);
                }
                self.renews[view as usize] = true;
            }
        }
    }

    /// Notes a change of the server: another one gives its versions to other content.
    pub(in crate::upstream) fn switched(&mut self, snapshot: &Snapshot) {
        self.outdated.clear();
        for view in View::ALL {
            let held = snapshot.entries().filter_map(|entry| snapshot.held(view, entry.name().as_str()));
            self.outdated.extend(held.map(|held| ((view, held.name().clone()), true)));
        }
    }

    /// Whether another server sent a resource.
    pub(in crate::upstream) fn is_foreign(&self, view: View, name: &Name) -> bool {
        !self.outdated.is_empty() && self.outdated.get(&(view, name.clone())) == Some(&true)
    }

    pub(in crate::upstream) fn has_one_server(&self) -> bool {
        !self.outdated.values().any(|is_foreign| *is_foreign)
    }

    /// Notes which members shared by another topic are of another server.
    pub(in crate::upstream) fn share_foreign(&mut self, of: &Self, held: &[Op]) {
        let foreign = held.iter().map(Op::name).filter(|name| of.is_foreign(View::Wildcard, name));
        self.outdated.extend(foreign.map(|name| ((View::Wildcard, name.clone()), true)));
    }
}
