//! Changes of a subscription by requests.
//!
//! Owns the reading of names and locators into a [`Subscription`] (R-XT-01, R-DP-08 to R-DP-12).
//! Knows nothing of resources.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::cache::{Snapshot, Subscription};
use crate::proto::ResourceLocator;
use crate::resource::{Name, Parameters, normal_form, without_directives};

/// Builder that records only the difference, so that a request costs its own length, not that of
/// all before it.
#[derive(Debug)]
pub(super) struct SubscriptionEdit {
    pub(super) wildcard: bool,
    before: Subscription,
    /// Names that are not in `before`.
    added: BTreeSet<Name>,
    /// Names of `before`.
    dropped: BTreeSet<Name>,
    /// Spellings, if changed.
    spelled: Option<BTreeMap<Name, Name>>,
    /// Locators, if changed.
    located: Option<BTreeMap<Name, Parameters>>,
}

impl SubscriptionEdit {
    /// `legacy_wildcard`: the client need not name it.
    pub(super) fn new(legacy_wildcard: bool) -> Self {
        Self { wildcard: legacy_wildcard, ..Self::of(&Subscription::none()) }
    }

    pub(super) fn of(subscription: &Subscription) -> Self {
        Self {
            wildcard: subscription.wildcard,
            before: subscription.clone(),
            added: BTreeSet::new(),
            dropped: BTreeSet::new(),
            spelled: None,
            located: None,
        }
    }

    /// Subscribes to a name or `*`, with the parameters of a locator. New parameters replace the old
    /// ones (R-DP-12). Returns the name to answer.
    pub(super) fn subscribe(&mut self, text: &str, parameters: Option<Parameters>) -> Option<Name> {
        let name = if text == Name::WILDCARD { None } else { Some(self.add_name(text)?) };
        self.wildcard |= name.is_none();
        let key = name.as_ref().map_or(Name::WILDCARD, Name::as_str);
        if self.parameters(key) != parameters.as_ref() {
            let key = name.clone().unwrap_or_else(|| Name::WILDCARD.into());
            match parameters {
                Some(parameters) => self.locators().insert(key, parameters),
                None => self.locators().remove(&key),
            };
        }
        name
    }

    /// Adds a name. Answers use the client's spelling: not every client compares names by
    /// components.
    fn add_name(&mut self, text: &str) -> Option<Name> {
        if text.is_empty() {
            return None;
        }
        let normal = normal_form(text);
        let name = match self.before.position(normal.as_bytes()) {
            Some(at) => self.before.names()[at].clone(),
            None => Name::normal(text),
        };
        let spelling = without_directives(text);
        let spelled = self.spelled.as_ref().or_else(|| self.before.spellings());
        let earlier = spelled.and_then(|spelled| spelled.get(&name)).unwrap_or(&name);
        if earlier.as_str() != spelling {
            let spelled =
                self.spelled.get_or_insert_with(|| self.before.spellings().cloned().unwrap_or_default());
            match spelling == name.as_str() {
                true => spelled.remove(&name),
                false => spelled.insert(name.clone(), spelling.into()),
            };
        }
        if !self.before.contains(name.as_str()) {
            self.added.insert(name.clone());
        } else if !self.dropped.is_empty() {
            self.dropped.remove(&name);
        }
        Some(name)
    }

    fn parameters(&self, name: &str) -> Option<&Parameters> {
        self.located.as_ref().or_else(|| self.before.locators())?.get(name)
    }

    fn locators(&mut self) -> &mut BTreeMap<Name, Parameters> {
        self.located.get_or_insert_with(|| self.before.locators().cloned().unwrap_or_default())
    }

    /// Ends a subscription with exactly the parameters of a locator (R-DP-12), a plain one, or any
    /// wildcard. Returns the name if it was subscribed.
    pub(super) fn unsubscribe(&mut self, text: &str, parameters: Option<&Parameters>) -> Option<Name> {
        let (name, none) = (normal_form(text), Parameters::NONE);
        let (is_wildcard, held) = (text == Name::WILDCARD, self.parameters(&name));
        let is_meant = match is_wildcard {
            true => parameters.is_none() || held == parameters,
            false => held.unwrap_or(&none) == parameters.unwrap_or(&none),
        };
        if !is_meant {
            return None;
        }
        if held.is_some() {
            self.locators().remove(&*name);
        }
        if is_wildcard {
            self.wildcard = false;
            return None;
        }
        self.remove_name(&name)
    }

    /// Ends subscriptions to other names of unsubscribed resources (R-Delta-21).
    pub(super) fn unsubscribe_others(
        &mut self,
        snapshot: &Snapshot,
        let_go: &HashSet<Cow<'_, str>>,
    ) -> Vec<Name> {
        let is_let_go = |name: &Name| {
            snapshot.by_name(name.as_str()).existing().is_some_and(|resource| {
                let_go.contains(resource.name().as_str())
                    || resource.aliases().any(|alias| let_go.contains(&*normal_form(alias)))
            })
        };
        let kept = self.before.names().iter().filter(|name| !self.dropped.contains(*name));
        let all = kept.chain(&self.added).filter(|name| self.parameters(name.as_str()).is_none());
        let ended: Vec<Name> = all.filter(|name| is_let_go(name)).cloned().collect();
        ended.iter().for_each(|name| drop(self.remove_name(name.as_str())));
        ended
    }

    /// Returns the name if it was subscribed.
    fn remove_name(&mut self, name: &str) -> Option<Name> {
        if let Some(name) = self.added.take(name) {
            return Some(name);
        }
        let name = self.before.names()[self.before.position(name.as_bytes())?].clone();
        self.dropped.insert(name.clone()).then_some(name)
    }

    pub(super) fn into_subscription(mut self) -> Subscription {
        match self.spelled.take() {
            None => self.into_plain_subscription(),
            Some(spelled) => self.into_plain_subscription().spelled(spelled),
        }
    }

    /// Without spellings: names are inside of the resources.
    pub(super) fn into_plain_subscription(self) -> Subscription {
        let subscription = self.before.edited(self.wildcard, self.added, &self.dropped);
        match self.located {
            None => subscription,
            Some(located) => subscription.located(located),
        }
    }
}

/// Reading of SotW lists of names, which depends on earlier lists (R-SotW-13).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SotwNames {
    /// Whether a name, or `*`, was sent on this stream. Then an empty list means nothing.
    explicit: bool,
}

impl SotwNames {
    pub(super) const fn is_explicit(self) -> bool {
        self.explicit
    }

    pub(super) fn read(
        &mut self,
        names: &[String],
        locators: Vec<ResourceLocator>,
        legacy_wildcard: bool,
    ) -> Subscription {
        self.explicit |= !names.is_empty() || !locators.is_empty();
        let mut asks = SubscriptionEdit::new(!self.explicit && legacy_wildcard);
        names.iter().for_each(|name| drop(asks.subscribe(name, None)));
        for ResourceLocator { name, dynamic_parameters } in locators {
            asks.subscribe(&name, Some(dynamic_parameters.into_iter().collect()));
        }
        asks.into_plain_subscription()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wants: &mut SotwNames, names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        format!("{:?}", wants.read(&names, Vec::new(), true))
    }

    #[test]
    fn r_sotw_13_wildcard_vector_of_the_protocol() {
        let mut wants = SotwNames::default();
        assert_eq!(read(&mut wants, &[]), r#"{"*"}"#);
        assert_eq!(read(&mut wants, &["*", "A"]), r#"{"*", "A"}"#);
        assert_eq!(read(&mut wants, &["A"]), r#"{"A"}"#);
        assert_eq!(read(&mut wants, &[]), "{}");
    }

    #[test]
    fn r_sotw_14_without_legacy_only_the_star_is_a_wildcard() {
        let mut wants = SotwNames::default();
        assert!(wants.read(&[], Vec::new(), false).is_empty());
        assert!(wants.read(&["*".to_owned()], Vec::new(), false).wildcard);
    }
}
