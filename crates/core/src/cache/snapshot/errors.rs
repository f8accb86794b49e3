//! The errors in a snapshot: names that have one, and bodies that are kept from newcomers because of one (R-Err-06).

use std::sync::Arc;

use super::super::Generation;
use super::super::entry::{Entry, Seen};
use super::super::subscription::Subscription;
use super::Snapshot;
use crate::resource::{Collection, Name};
impl Snapshot {
    /// Names to report to a subscriber of this collection: its members, and names with an error.
    pub fn answers_of<'s>(&'s self, name: &'s Name) -> impl Iterator<Item = &'s Name> {
        let collection = Collection::named(name.as_str());
        let entries = collection.into_iter().flat_map(|collection| self.table.covered(collection));
        let is_told = |entry: &&Arc<Entry>| {
            let seen = entry.as_listed();
            seen.present().is_some() || matches!(seen, Seen::Failed)
        };
        entries.filter(is_told).map(|entry| entry.name())
    }

    /// Since when the body of this name is kept from newcomers, where it is.
    pub fn denied(&self, name: &str) -> Option<Generation> {
        if self.denials == 0 {
            return None;
        }
        let entry = self.get(name)?;
        matches!(entry.by_name(), Seen::Denied(_)).then_some(entry.failed()?.denied)
    }

    /// The names in a subscription whose bodies are kept from newcomers, and since when.
    pub fn denied_of<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = (&'s Name, Generation)> {
        let listed = self.listed(subscription).map(|entry| entry.name());
        let names = subscription.names().iter().chain(listed).filter(|_| self.denials > 0);
        names.filter_map(|name| Some((name, self.denied(name.as_str())?)))
    }
}
