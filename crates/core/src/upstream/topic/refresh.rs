//! Resources that an operator wants from the origin anew.
//!
//! A resource that is held may be wrong though its version is current: the origin lost a change, or changed a body and not its version.
//! The stream is opened anew without a claim of that version, so that an origin that has the resource sends it. If an answer that is
//! known to be whole lacks it, it is gone. Until then it stays as it is, for clients too.

use super::Topic;
use crate::cache::{Snapshot, View};
use crate::resource::Name;

impl Topic {
    /// Has a name asked for anew, on the streams that carry the views.
    pub(in crate::upstream) fn refresh(&mut self, name: &Name, snapshot: &Snapshot) {
        for view in View::ALL {
            let held = snapshot.held(view, name.as_str());
            let is_asked_for = match view {
                View::Wildcard => self.wildcard.is_live() && held.is_some(),
                View::Named => self.names.asks_for(name.as_str()) || self.is_listed(name),
            };
            if is_asked_for {
                self.refreshed.extend(held.map(|held| (view, held.name().clone())));
                self.renews[view as usize] = true;
            }
        }
    }

    /// Everything that is held in a view is to come anew, on the stream that is opened next.
    pub(in crate::upstream) fn refresh_all(&mut self, view: View, snapshot: &Snapshot) {
        let held = snapshot.entries().filter_map(|entry| snapshot.held(view, entry.name().as_str()));
        self.refreshed.extend(held.map(|held| (view, held.name().clone())));
    }
}
