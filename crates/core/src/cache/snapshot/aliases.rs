//! The ways from the own name of a resource to the aliases under which it was asked for (R-Relay-20).

use super::super::Generation;
use super::super::entry::{Entry, Named};
use super::super::subscription::Subscription;
use super::Snapshot;
use crate::resource::Name;
impl Snapshot {
    /// Whether any name that was asked for is an alias.
    pub fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    /// The names that were asked for and are aliases of this resource.
    pub fn aliases_of<'s>(&'s self, own: &'s str) -> impl Iterator<Item = &'s Name> {
        let from = self.has_aliases().then(|| (Name::from(own), Name::from("")));
        let listed = from.into_iter().flat_map(|from| self.aliases.range(from..));
        listed.take_while(move |(name, _)| name.as_str() == own).map(|(_, alias)| alias)
    }

    /// Whether a client with this subscription sees the resource of this name through an alias.
    pub fn is_seen_by_alias(&self, subscription: &Subscription, own: &str) -> bool {
        if !self.has_aliases() {
            return false;
        }
        let stands_for = |name: &Name| {
            let entry = self.get(name.as_str());
            entry.and_then(Entry::stands_for).is_some_and(|resource| resource.name().as_str() == own)
        };
        let (mut aliases, mut names) = (self.aliases_of(own), subscription.names().iter());
        // Each list alone can tell: the shorter one ends the search.
        while let (Some(alias), Some(name)) = (aliases.next(), names.next()) {
            if stands_for(name) || (subscription.contains(alias.as_str()) && stands_for(alias)) {
                return true;
            }
        }
        false
    }

    /// Whether a client with this subscription sees the resource of this name by that name, or as a member.
    pub(in crate::cache) fn is_seen_by_itself(&self, subscription: &Subscription, own: &str) -> bool {
        let look = self.get(own).and_then(|entry| Some(subscription.look_at(entry)?.existing()?.name()));
        look.is_some_and(|name| name.as_str() == own)
    }

    /// Up to where it is not remembered what the aliases of a subscription stood for.
    pub(in crate::cache) fn aliases_buried_for(&self, subscription: &Subscription) -> Generation {
        let buried = |name: &Name| match self.get(name.as_str())?.named() {
            Named::Alias(alias) => Some(alias.buried),
            _ => None,
        };
        subscription.names().iter().filter_map(buried).max().unwrap_or_default()
    }
}
