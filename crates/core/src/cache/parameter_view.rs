//! Parameters through which a client sees the resources of a type.
//!
//! Owns the answer to "with which parameters does this client ask for that name?". Knows nothing of resources.
//!
//! Invariant: views with equal answers for all names of their clients are equal, however spelled, so their
//! clients share a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::resource::{Collection, Name, Parameters, Scope};

/// Parameters and scope that the operator's rules give a client.
#[derive(Clone, Debug, Default)]
pub struct ClientScope {
    /// Parameters for requests that have none (R-DP-17).
    pub given: Parameters,
    /// Parameters that complete those of a request.
    pub imposed: Parameters,
    pub scope: Scope,
}

impl ClientScope {
    /// Effective parameters of a request. A locator without any is a plain name (R-DP-10).
    fn effective(&self, sent: &Parameters) -> Parameters {
        if sent.is_empty() { self.given.clone() } else { sent.completed_with(&self.imposed) }
    }
}

/// Content that a client is sent, if changes of the type are [guarded](super::Rollout).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Track {
    /// The newest from the origin. Unguarded types have only this.
    #[default]
    Origin,
    /// The state that canaries of a step try, from 0 on.
    Canary(u8),
    /// The newest that canaries did not reject.
    Stable,
}

/// A client's parameters by name (R-DP-10, R-DP-12), nearly always the same for all, and its track.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ParameterView {
    common: Parameters,
    others: Option<Arc<Overrides>>,
    scope: Scope,
    track: Track,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Overrides {
    /// Also `*` and names of collections.
    names: BTreeMap<Name, Parameters>,
    /// Each set once, including the common one.
    distinct: Vec<Parameters>,
}

impl Overrides {
    fn new(common: &Parameters, names: BTreeMap<Name, Parameters>) -> Arc<Self> {
        let mut distinct: Vec<Parameters> = std::iter::once(common).chain(names.values()).cloned().collect();
        distinct.sort_unstable();
        distinct.dedup();
        Arc::new(Self { names, distinct })
    }
}

impl ParameterView {
    pub const fn uniform(parameters: Parameters) -> Self {
        Self { common: parameters, others: None, scope: Scope::ALL, track: Track::Origin }
    }

    /// Copy on another track.
    #[must_use]
    pub const fn on(mut self, track: Track) -> Self {
        self.track = track;
        self
    }

    pub const fn track(&self) -> Track {
        self.track
    }

    /// View of a client with plain names, which get given parameters (R-DP-17), and locators.
    pub fn new(allotted: &ClientScope, asks_plainly: bool, located: &BTreeMap<Name, Parameters>) -> Self {
        let effective = |sent: &Parameters| allotted.effective(sent);
        let first = || located.values().next().map(effective);
        // Without plain names, given parameters have no use.
        let common = if asks_plainly { None } else { first() }.unwrap_or_else(|| allotted.given.clone());
        let uniform = Self { common, others: None, scope: allotted.scope.clone(), track: Track::Origin };
        let common = &uniform.common;
        let differs = |(_, parameters): &(&Name, Parameters)| parameters != common;
        let pairs = || located.iter().map(|(name, sent)| (name, effective(sent)));
        if !pairs().any(|pair| differs(&pair)) {
            return uniform;
        }
        // A name may have the common parameters inside a collection that has others.
        let collections = located.keys().any(|name| Collection::named(name.as_str()).is_some());
        let others = pairs().filter(|pair| collections || differs(pair));
        let others = others.map(|(name, parameters)| (name.clone(), parameters)).collect();
        Self { others: Some(Overrides::new(common, others)), ..uniform }
    }

    /// View of a client with the wildcard and these names. Names with other parameters are not seen through the
    /// wildcard: the client sees one variant of a name.
    #[must_use]
    pub fn beside_wildcard(self, names: &[Name]) -> Self {
        let Some(others) = &self.others else { return self };
        let differs = |name: &&Name| self.of(name.as_str()) != self.wildcard();
        let apart = names.iter().filter(differs).map(|name| (name.clone(), self.of(name.as_str()).clone()));
        let mut all = others.names.clone();
        all.extend(apart);
        Self { others: Some(Overrides::new(&self.common, all)), ..self }
    }

    /// Whether a name has other parameters than the wildcard.
    pub fn is_beside_wildcard(&self, name: &str) -> bool {
        self.own(name).is_some_and(|own| own != self.wildcard())
    }

    /// The parameters, if all names have the same and are visible, and the origin fills the store.
    pub const fn as_uniform(&self) -> Option<&Parameters> {
        match self.track {
            Track::Origin => self.as_whole(),
            Track::Canary(_) | Track::Stable => None,
        }
    }

    /// The parameters, if all names have the same and are visible, on any track.
    pub const fn as_whole(&self) -> Option<&Parameters> {
        match self.others {
            None if self.scope.is_all() => Some(&self.common),
            _ => None,
        }
    }

    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Parameters of a name, directly or through its collection.
    pub fn of(&self, name: &str) -> &Parameters {
        self.own(name).unwrap_or(&self.common)
    }

    fn own(&self, name: &str) -> Option<&Parameters> {
        let others = &self.others.as_ref()?.names;
        others.get(name).or_else(|| others.get(Collection::covering(name)?.as_str()))
    }

    pub fn wildcard(&self) -> &Parameters {
        self.of(Name::WILDCARD)
    }

    /// All sets of parameters, each once.
    pub fn parameters(&self) -> &[Parameters] {
        self.others.as_ref().map_or_else(|| std::slice::from_ref(&self.common), |others| &others.distinct)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Parameters {
        text.split_whitespace().filter_map(|pair| pair.split_once('=')).collect()
    }

    fn given(text: &str) -> ClientScope {
        ClientScope { given: set(text), ..ClientScope::default() }
    }

    fn located(names: &[(&str, &str)]) -> BTreeMap<Name, Parameters> {
        names.iter().map(|(name, parameters)| ((*name).into(), set(parameters))).collect()
    }

    #[test]
    fn r_dp_10_a_plain_name_is_one_without_parameters_and_may_be_given_some() {
        let none = ClientScope::default();
        assert_eq!(ParameterView::new(&none, true, &located(&[("a", "")])), ParameterView::default());
        let same = ParameterView::new(&given("env=prod"), true, &located(&[("a", ""), ("b", "env=prod")]));
        assert_eq!(same, ParameterView::uniform(set("env=prod")));
        let mixed = ParameterView::new(&given("env=prod"), true, &located(&[("b", "env=dev")]));
        assert_eq!((mixed.of("a"), mixed.of("b")), (&set("env=prod"), &set("env=dev")));
        assert_eq!(mixed.wildcard(), &set("env=prod"));
        assert_eq!(mixed.as_uniform(), None);
    }

    #[test]
    fn imposed_parameters_complete_those_sent_and_never_overrule_them() {
        let allotted = ClientScope { imposed: set("env=prod"), ..given("env=prod v=9") };
        let parameter_view =
            ParameterView::new(&allotted, true, &located(&[("a", "v=1"), ("b", "env=dev"), ("c", "")]));
        assert_eq!(parameter_view.of("a"), &set("env=prod v=1"));
        assert_eq!(parameter_view.of("b"), &set("env=dev"), "for its own rule to refuse");
        assert_eq!(
            (parameter_view.of("c"), parameter_view.of("d")),
            (&set("env=prod v=9"), &set("env=prod v=9"))
        );
    }

    #[test]
    fn a_client_that_asks_by_locators_alone_shares_with_all_of_the_same_parameters() {
        let one = ParameterView::new(&given("env=prod"), false, &located(&[("a", "v=1"), ("b", "v=1")]));
        assert_eq!(one, ParameterView::uniform(set("v=1")));
        assert_eq!(one, ParameterView::new(&ClientScope::default(), false, &located(&[("*", "v=1")])));
    }

    #[test]
    fn names_that_are_asked_for_beside_the_wildcard_with_other_parameters_are_kept_apart() {
        let star = located(&[("*", "v=1")]);
        let parameter_view = |name: &str| {
            ParameterView::new(&ClientScope::default(), true, &star).beside_wildcard(&[name.into()])
        };
        assert_ne!(
            parameter_view("a"),
            parameter_view("b"),
            "the one sees through the wildcard what the other asks for by name"
        );
        assert!(parameter_view("a").is_beside_wildcard("a") && !parameter_view("a").is_beside_wildcard("b"));
        let same = ParameterView::new(&given("v=1"), true, &star).beside_wildcard(&["a".into()]);
        assert_eq!(same, ParameterView::uniform(set("v=1")));
    }

    #[test]
    fn members_of_a_collection_are_seen_with_its_parameters() {
        let glob = "xdstp://a/t/foo/*";
        let parameter_view =
            ParameterView::new(&given("v=1"), true, &located(&[(glob, "v=2"), ("xdstp://a/t/foo/x", "v=1")]));
        assert_eq!(parameter_view.of("xdstp://a/t/foo/y"), &set("v=2"));
        assert_eq!(parameter_view.of("xdstp://a/t/foo/x"), &set("v=1"));
        assert_eq!(parameter_view.of("xdstp://a/t/bar/y"), &set("v=1"));
        assert_eq!(parameter_view.parameters().len(), 2);
    }
}
