//! Effect of resource errors on one stream.
//!
//! Owns which errors a client is owed, and which names it may not see because they were denied when
//! it asked.

use std::collections::BTreeSet;

use super::StreamType;
use crate::cache::{OwedItems, Update};
use crate::resource::Name;

impl StreamType {
    /// Notes which names of a full state this client may not see (R-Err-06). Positions do not tell
    /// which clients held a resource that became denied.
    pub(in crate::subscription) fn note_denied(&mut self) {
        let own = self.own();
        if !self.position.is_start() && own.answering.is_empty() && own.owed.refused.is_empty() {
            return;
        }
        let snapshot = self.membership.of().snapshot();
        let mut refused = self.own().owed.refused.clone();
        refused.retain(|name, since| snapshot.denied(name.as_str()) == Some(*since));
        let subscription = self.subscription();
        if self.position.is_start() {
            refused.extend(snapshot.denied_of(subscription).map(|(name, since)| (name.clone(), since)));
        } else {
            let asked = self.own().answering.iter();
            refused.extend(asked.filter_map(|name| Some((name.clone(), snapshot.denied(name.as_str())?))));
        }
        refused.retain(|name, _| subscription.contains(name.as_str()) || subscription.covers(name.as_str()));
        if refused != self.own().owed.refused {
            self.own_mut().owed.refused = refused;
            self.trim();
        }
    }

    /// The errors of these names follow the full state that answered them.
    pub(in crate::subscription) fn owe_errors(&mut self, answered: &BTreeSet<Name>, update: &Update) {
        if answered.is_empty() {
            return;
        }
        let snapshot = self.membership.of().snapshot();
        let fails = |name: &Name| snapshot.get(name.as_str()).is_some_and(|entry| entry.failure().is_some());
        let owed = answered.iter().filter(|name| fails(name) && !update.has_error_of(name));
        let owed: Vec<Name> = owed.cloned().collect();
        if !owed.is_empty() {
            self.own_mut().owed.errors.extend(owed);
        }
    }

    pub(in crate::subscription) fn consume_errors(owed: &mut OwedItems, update: &Update) {
        owed.errors.retain(|name| !update.owed().errors.contains(name));
        owed.errors.extend(update.errors_later().iter().cloned());
    }
}
