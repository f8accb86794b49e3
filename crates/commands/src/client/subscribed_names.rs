//! Requested names, and which of them a resource answers.

use std::collections::BTreeSet;

use deltafan_core::resource::{Collection, Name, Parameters, TypeUrl, normal_form};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub type_url: TypeUrl,
    /// Empty for all resources.
    pub names: BTreeSet<String>,
    /// Dynamic parameters. With any of them, requests use locators (TP2).
    pub parameters: Parameters,
}

/// Whether a name is a collection: `xdstp://AUTHORITY/TYPE/…/*` (R-XT-03).
pub(super) fn is_collection(name: &str) -> bool {
    Collection::named(&normal_form(name)).is_some()
}

impl Subscription {
    /// Subscribes to names; to all resources if there is no name, or `*` is among them.
    pub(crate) fn new(type_url: TypeUrl, names: Vec<String>, parameters: Parameters) -> Self {
        let mut names: BTreeSet<String> = names.into_iter().collect();
        // The wildcard covers every name.
        if names.contains(Name::WILDCARD) {
            names.clear();
        }
        Self { type_url, names, parameters }
    }

    /// Whether the number of resources is unknown: wildcard or collection.
    pub(super) fn is_open_ended(&self) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| is_collection(name))
    }

    /// Requested spellings of a resource's own name (R-XT-01).
    fn spellings(&self, name: &str) -> impl Iterator<Item = &String> {
        let normal = normal_form(name).into_owned();
        self.names.iter().filter(move |asked| normal_form(asked) == normal)
    }

    /// Requested names of a resource: its own in any spelling, and its aliases (R-Delta-21).
    pub(super) fn names_of(&self, name: &str, aliases: &[String]) -> BTreeSet<String> {
        let own = std::iter::once(name).chain(aliases.iter().map(String::as_str));
        own.flat_map(|name| self.spellings(name)).cloned().collect()
    }

    /// Requested names that a resource answers, and the collection that contains it.
    pub(super) fn answered_by(&self, name: &str, aliases: &[String]) -> BTreeSet<String> {
        let mut answered = self.names_of(name, aliases);
        if let Some(collection) = Collection::covering(&normal_form(name)) {
            answered.extend(self.spellings(&collection).cloned());
        }
        answered
    }

    /// Members of a collection among these names, if `removed` is a collection: the server says that it is
    /// empty (R-XT-04). That proves nothing about members also requested by name.
    pub(super) fn members_of<'n>(
        &self,
        removed: &str,
        names: impl Iterator<Item = &'n String>,
    ) -> Vec<String> {
        let removed = normal_form(removed);
        let Some(collection) = Collection::named(&removed) else { return Vec::new() };
        let is_member =
            |name: &&String| collection.covers(&normal_form(name)) && self.spellings(name).next().is_none();
        names.filter(is_member).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafan_core::resource::Kind;

    impl Subscription {
        pub(crate) fn of_test(kind: Kind, names: &[&str]) -> Self {
            Self::new(kind.into(), names.iter().map(|name| (*name).to_owned()).collect(), Parameters::NONE)
        }
    }

    const GLOB: &str = "xdstp://a/t/foo/*?k=v&l=w";
    const MEMBER: &str = "xdstp://a/t/foo/x?l=w&k=v";

    #[test]
    fn a_resource_answers_its_name_in_each_spelling() {
        let spellings = ["xdstp://a/t/x?b=1&a=2", "xdstp://a/t/x?a=2&b=1", "xdstp://a/t/%78?b=1&a=2"];
        let of = Subscription::of_test(Kind::Endpoint, &[spellings[0], spellings[2], "plain"]);
        for name in spellings {
            let answered = of.answered_by(name, &[]);
            assert_eq!(answered.iter().collect::<Vec<_>>(), [spellings[2], spellings[0]], "{name}");
        }
        assert!(of.answered_by("xdstp://a/t/x?a=2", &[]).is_empty());
        assert_eq!(of.answered_by("plain", &[]).len(), 1);
    }

    #[test]
    fn a_resource_answers_its_aliases() {
        let of = Subscription::of_test(Kind::Endpoint, &["routes/host", "other"]);
        let aliases = ["routes/host".to_owned(), "routes/host:80".to_owned()];
        assert_eq!(of.answered_by("routes/web", &aliases).iter().collect::<Vec<_>>(), ["routes/host"]);
    }

    #[test]
    fn a_member_answers_its_collection() {
        let of = Subscription::of_test(Kind::Endpoint, &[GLOB, "plain"]);
        assert!(of.is_open_ended());
        assert_eq!(of.answered_by(MEMBER, &[]).iter().collect::<Vec<_>>(), [GLOB]);
        assert!(of.answered_by("xdstp://a/t/foo/x", &[]).is_empty(), "another context");
        assert!(!Subscription::of_test(Kind::Endpoint, &["plain", MEMBER]).is_open_ended());
        assert!(Subscription::of_test(Kind::Endpoint, &["plain", "*"]).is_open_ended());
    }

    #[test]
    fn an_empty_collection_has_no_member_left_but_those_that_were_asked_for() {
        let named = "xdstp://a/t/foo/y?k=v&l=w";
        let of = Subscription::of_test(Kind::Endpoint, &[GLOB, named]);
        let held = [MEMBER, named, "xdstp://a/t/bar/x?k=v&l=w"].map(str::to_owned);
        assert_eq!(of.members_of("xdstp://a/t/foo/*?l=w&k=v", held.iter()), [MEMBER]);
        assert!(of.members_of(named, held.iter()).is_empty());
    }
}
