//! Through which parameters a client sees the resources of a type.
//!
//! Owns the answer to "with which parameters does this client ask for that name?". Knows nothing of resources.
//!
//! Invariant: two parameter views that answer the same for every name that their clients ask for are equal, however the requests
//! that led to them were spelled, so that their clients share a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::resource::{Collection, Name, Parameters, Scope};

/// Parameters and scope that a client has by the operator's rules, whatever it asks for.
#[derive(Clone, Debug, Default)]
pub struct ClientScope {
    /// The parameters of what it asks for without any of its own (R-DP-17).
    pub given: Parameters,
    /// Parameters that complete its own, where they lack them.
    pub imposed: Parameters,
    /// The names that it may see.
    pub scope: Scope,
}

impl ClientScope {
    /// The parameters that are meant by those that were sent. A locator without any is a plain name (R-DP-10).
    fn effective(&self, sent: &Parameters) -> Parameters {
        if sent.is_empty() { self.given.clone() } else { sent.completed_with(&self.imposed) }
    }
}

/// Which content of a type a client is sent, where the [rollout](super::Rollout) of changes to it is guarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Track {
    /// The newest, as it came from the origin: the only one of a type that is not guarded.
    #[default]
    Origin,
    /// The newest, but for changes that an operator discarded.
    Canary,
    /// The newest that canaries did not reject.
    Stable,
}

/// Parameters by name, as one client asks (R-DP-10, R-DP-12), and its track. Nearly all clients have the same for all names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ParameterView {
    common: Parameters,
    /// Names that are asked for with other parameters.
    others: Option<Arc<Overrides>>,
    /// Names that may be seen.
    scope: Scope,
    track: Track,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Overrides {
    /// Names, also `*` and those of collections.
    names: BTreeMap<Name, Parameters>,
    /// Each set of parameters once, the common ones too.
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
    /// One set of parameters for every name.
    pub const fn uniform(parameters: Parameters) -> Self {
        Self { common: parameters, others: None, scope: Scope::ALL, track: Track::Origin }
    }

    /// View with the parameters and scope of this one, of the content of another track.
    #[must_use]
    pub const fn on(mut self, track: Track) -> Self {
        self.track = track;
        self
    }

    /// Its track.
    pub const fn track(&self) -> Track {
        self.track
    }

    /// View of a client that asks for some names plainly, with the parameters that it is given (R-DP-17), and for others by
    /// locators.
    pub fn new(allotted: &ClientScope, asks_plainly: bool, located: &BTreeMap<Name, Parameters>) -> Self {
        let effective = |sent: &Parameters| allotted.effective(sent);
        let first = || located.values().next().map(effective);
        // A client that asks for nothing plainly has no use for what it would be given.
        let common = if asks_plainly { None } else { first() }.unwrap_or_else(|| allotted.given.clone());
        let uniform = Self { common, others: None, scope: allotted.scope.clone(), track: Track::Origin };
        let common = &uniform.common;
        let differs = |(_, parameters): &(&Name, Parameters)| parameters != common;
        let pairs = || located.iter().map(|(name, sent)| (name, effective(sent)));
        if !pairs().any(|pair| differs(&pair)) {
            return uniform;
        }
        // A name may have the common ones and yet be a member of a collection that has others.
        let collections = located.keys().any(|name| Collection::named(name.as_str()).is_some());
        let others = pairs().filter(|pair| collections || differs(pair));
        let others = others.map(|(name, parameters)| (name.clone(), parameters)).collect();
        Self { others: Some(Overrides::new(common, others)), ..uniform }
    }

    /// View of a client that asks for the wildcard and for these names. A name that it asks for with other parameters than
    /// the wildcard is not seen through the wildcard: of a name it sees one variant.
    #[must_use]
    pub fn beside_wildcard(self, names: &[Name]) -> Self {
        let Some(others) = &self.others else { return self };
        let differs = |name: &&Name| self.of(name.as_str()) != self.wildcard();
        let apart = names.iter().filter(differs).map(|name| (name.clone(), self.of(name.as_str()).clone()));
        let mut all = others.names.clone();
        all.extend(apart);
        Self { others: Some(Overrides::new(&self.common, all)), ..self }
    }

    /// Whether a name is asked for with other parameters than the wildcard.
    pub fn is_beside_wildcard(&self, name: &str) -> bool {
        self.own(name).is_some_and(|own| own != self.wildcard())
    }

    /// The parameters of every name, if they are the same, every name may be seen, and the origin fills the store itself.
    pub const fn as_uniform(&self) -> Option<&Parameters> {
        match self.track {
            Track::Origin => self.as_whole(),
            Track::Canary | Track::Stable => None,
        }
    }

    /// The parameters of every name, if they are the same and every name may be seen, on whatever track.
    pub const fn as_whole(&self) -> Option<&Parameters> {
        match self.others {
            None if self.scope.is_all() => Some(&self.common),
            _ => None,
        }
    }

    /// Names of a type that may be seen.
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The parameters with which a name is asked for, be it through its collection.
    pub fn of(&self, name: &str) -> &Parameters {
        self.own(name).unwrap_or(&self.common)
    }

    fn own(&self, name: &str) -> Option<&Parameters> {
        let others = &self.others.as_ref()?.names;
        others.get(name).or_else(|| others.get(Collection::covering(name)?.as_str()))
    }

    /// The parameters with which the wildcard is asked for.
    pub fn wildcard(&self) -> &Parameters {
        self.of(Name::WILDCARD)
    }

    /// Each set of parameters that some name is asked for with.
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
