//! What a client asks for, as its requests change it.
//!
//! Owns the reading of names and locators into a [`Subscription`] (R-XT-01, R-DP-08 to R-DP-12). Knows nothing of what they
//! stand for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::bounds::Bound;
use super::session::{Refusal, Rules};
use crate::cache::{Snapshot, Subscription};
use crate::proto::ResourceLocator;
use crate::resource::{Name, Parameters, normal_form, without_directives};

/// A subscription in the making.
#[derive(Debug, Default)]
pub(super) struct Asks {
    pub(super) wildcard: bool,
    names: BTreeSet<Name>,
    spelled: BTreeMap<Name, Name>,
    located: BTreeMap<Name, Parameters>,
}

impl Asks {
    /// Nothing, or the wildcard of a client that need not name it.
    pub(super) fn new(legacy_wildcard: bool) -> Self {
        Self { wildcard: legacy_wildcard, ..Self::default() }
    }

    /// What is asked for so far.
    pub(super) fn of(subscription: &Subscription) -> Self {
        Self {
            wildcard: subscription.wildcard,
            names: subscription.names().iter().cloned().collect(),
            spelled: subscription.spellings().cloned().unwrap_or_default(),
            located: subscription.locators().cloned().unwrap_or_default(),
        }
    }

    /// A name, as the client spells it; `*` is the wildcard. Returns what is to be answered for it.
    pub(super) fn subscribe(&mut self, text: &str) -> Option<Name> {
        if text == Name::WILDCARD {
            self.wildcard = true;
            self.located.remove(Name::WILDCARD);
            return None;
        }
        let name = self.take_in(text)?;
        self.located.remove(&name);
        Some(name)
    }

    /// The same by locator. With other parameters than before it is a change of those (R-DP-12).
    pub(super) fn locate(&mut self, locator: ResourceLocator) -> Option<Name> {
        let parameters: Parameters = locator.dynamic_parameters.into_iter().collect();
        if locator.name == Name::WILDCARD {
            self.wildcard = true;
            self.located.insert(locator.name.into(), parameters);
            return None;
        }
        let name = self.take_in(&locator.name)?;
        self.located.insert(name.clone(), parameters);
        Some(name)
    }

    /// Takes in a name as a client spells it. Where that is not the normal form, it is answered by its own spelling: not
    /// every client compares names by their components.
    fn take_in(&mut self, text: &str) -> Option<Name> {
        if text.is_empty() {
            return None;
        }
        let name = Name::normal(text);
        match without_directives(text) {
            own if own == name.as_str() => self.spelled.remove(&name),
            own => self.spelled.insert(name.clone(), own.into()),
        };
        self.names.insert(name.clone());
        Some(name)
    }

    /// Lets a name go that was asked for plainly, or any wildcard. Returns it if it was asked for.
    pub(super) fn unsubscribe(&mut self, text: &str) -> Option<Name> {
        if text == Name::WILDCARD {
            self.wildcard = false;
            self.located.remove(Name::WILDCARD);
            return None;
        }
        self.let_go(&normal_form(text), &Parameters::NONE)
    }

    /// Lets go what is asked for by another name of its resource than the one by which it is let go (R-Delta-21).
    pub(super) fn unsubscribe_others(
        &mut self,
        snapshot: &Snapshot,
        let_go: &HashSet<Cow<'_, str>>,
    ) -> BTreeSet<Name> {
        let is_let_go = |name: &Name| {
            snapshot.by_name(name.as_str()).existing().is_some_and(|resource| {
                let_go.contains(resource.name().as_str())
                    || resource.aliases().any(|alias| let_go.contains(&*normal_form(alias)))
            })
        };
        let located = &self.located;
        let (ended, kept) = std::mem::take(&mut self.names)
            .into_iter()
            .partition(|name| !located.contains_key(name) && is_let_go(name));
        self.names = kept;
        ended
    }

    /// Lets a name go that was asked for with exactly these parameters (R-DP-12).
    pub(super) fn unlocate(&mut self, locator: &ResourceLocator) -> Option<Name> {
        let pairs = locator.dynamic_parameters.iter();
        let parameters: Parameters = pairs.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if locator.name == Name::WILDCARD {
            if self.located.get(Name::WILDCARD) == Some(&parameters) {
                self.wildcard = false;
                self.located.remove(Name::WILDCARD);
            }
            return None;
        }
        self.let_go(&normal_form(&locator.name), &parameters)
    }

    fn let_go(&mut self, name: &str, parameters: &Parameters) -> Option<Name> {
        if *self.located.get(name).unwrap_or(&Parameters::NONE) != *parameters {
            return None;
        }
        self.located.remove(name);
        self.names.take(name)
    }

    pub(super) fn into_subscription(mut self) -> Subscription {
        let spelled = std::mem::take(&mut self.spelled);
        self.into_plain_subscription().spelled(spelled)
    }

    /// The same for a protocol in which names are inside of resources, however the client spells them.
    pub(super) fn into_plain_subscription(self) -> Subscription {
        Subscription::new(self.wildcard, self.names).located(self.located)
    }
}

impl Rules {
    /// Whether a whole list of names and locators stays within bounds.
    pub(super) fn check_list(&self, names: &[String], locators: &[ResourceLocator]) -> Result<(), Refusal> {
        self.check_names(names.iter(), names.len() + locators.len())?;
        self.check_locators(locators.iter())
    }

    /// Whether locators stay within bounds.
    pub(super) fn check_locators<'a>(
        &self,
        locators: impl Iterator<Item = &'a ResourceLocator> + Clone,
    ) -> Result<(), Refusal> {
        self.check_names(locators.clone().map(|locator| &locator.name), 0)?;
        for parameters in locators.map(|locator| &locator.dynamic_parameters) {
            if parameters.len() > self.max_parameters {
                let max = self.max_parameters;
                let refusal =
                    Refusal::exhausted(format!("more than {max} dynamic parameters in one locator"));
                return Err(refusal.over(Bound::Parameters));
            }
            self.check_names(parameters.iter().flat_map(|(key, value)| [key, value]), 0)?;
        }
        Ok(())
    }
}
