//! Next request for a topic on a stream.

use std::sync::Arc;

use foldhash::HashSet;

use super::super::server::Provenance;
use super::super::target::Target;
use super::Topic;
use crate::cache::View;
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Name, Resource};

/// Servers of what is held, and what is to come anew.
type Lent = (Provenance, HashSet<(View, Name)>);

impl Topic {
    /// Lends out what a request depends on, until it is taken back.
    pub(in crate::upstream) fn lend(&mut self) -> Lent {
        (std::mem::take(&mut self.provenance), std::mem::take(&mut self.refreshed))
    }

    pub(in crate::upstream) fn take_back(&mut self, lent: Lent) {
        (self.provenance, self.refreshed) = lent;
    }

    /// The next request for this type on a stream, and whether another has to follow.
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
            self.orphan(view, request, target);
        }
        (request, more)
    }

    /// Notes which held resources, of those asked for now, may have become another variant: all but the claimed ones.
    fn orphan(&mut self, view: View, request: &DeltaDiscoveryRequest, target: &Target<'_>) {
        let located = request.resource_locators_subscribe.iter().map(|locator| &locator.name);
        let asked = || request.resource_names_subscribe.iter().chain(located.clone());
        let is_claimed = |held: &Arc<Resource>| {
            let name = held.name().as_str();
            target.is_claimed(held) || request.initial_resource_versions.contains_key(name)
        };
        // Those that are not seen are not claimed either.
        if view == View::Named {
            for held in asked().filter_map(|name| target.snapshot.held(view, name)) {
                if !is_claimed(held) {
                    self.names.orphan(held.name().as_str());
                }
            }
            if !self.rivals.is_empty() {
                asked().for_each(|name| drop(self.rivals.remove(&(view, name.as_str().into()))));
            }
        } else if asked().next().is_some() || request.resource_names_unsubscribe.is_empty() {
            let doubted = target.snapshot.members().filter(|held| !is_claimed(held));
            self.orphans.extend(doubted.map(|held| held.name().clone()));
            self.rivals.retain(|(other, _), _| *other != view);
        }
    }
}
