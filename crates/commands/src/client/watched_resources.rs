//! Resources of a watch, and their changes by a response.
//!
//! Invariant: a removal needs evidence: the server's word, or a complete response. That a resource does not
//! come on a new stream is none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use deltafan_core::resource::Constraints;
use xxhash_rust::xxh3::xxh3_128;

use super::client_response::{Found, Gone, Update};
use super::subscribed_names::Subscription;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Added,
    /// Its content or its own version changed.
    Changed,
    /// It existed, and no longer does.
    Removed,
    Absent,
}

impl Event {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Absent => "absent",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub event: Event,
    pub name: String,
    /// Of a removed resource the last one.
    pub version: String,
    pub found: Option<Found>,
}

#[derive(Clone, Debug)]
struct HeldResource {
    version: String,
    content: u128,
    constraints: Option<Constraints>,
    aliases: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    resources: BTreeMap<String, HeldResource>,
    /// Requested names without a resource, and empty collections.
    pub(super) absent: BTreeSet<String>,
}

impl Held {
    pub(super) fn apply(&mut self, update: Update, asked: &Subscription) -> Vec<Change> {
        let mut changes = Vec::new();
        let gone = if update.is_whole(asked) { self.left_out(&update) } else { self.emptied(&update, asked) };
        for (name, found) in update.found {
            for answered in asked.answered_by(&name, &found.aliases) {
                self.absent.remove(&answered);
            }
            let (version, content) = (found.version.clone(), xxh3_128(&found.body));
            let (constraints, aliases) = (found.constraints.clone(), found.aliases.clone());
            let held = HeldResource { version, content, constraints, aliases };
            let event = match self.resources.insert(name.clone(), held) {
                None => Event::Added,
                // In state of the world every resource has the response's version, whatever changed.
                Some(before)
                    if before.content != content || (update.is_delta && before.version != found.version) =>
                {
                    Event::Changed
                }
                Some(_) => continue,
            };
            changes.push(Change { event, name, version: found.version.clone(), found: Some(found) });
        }
        // An alias without a resource removes no resource of that name.
        let unresolved = update.unresolved.into_iter().filter(|alias| !self.resources.contains_key(alias));
        let unresolved: Vec<Gone> = unresolved.map(|name| Gone { name, constraints: None }).collect();
        for removed in gone.into_iter().chain(update.removed).chain(unresolved) {
            let held = self.resources.get(&removed.name);
            // Another variant may have replaced the removed one. The removal of a variant that is not held
            // proves nothing about others.
            if !removed.is(held.and_then(|held| held.constraints.as_ref())) {
                continue;
            }
            let name = removed.name;
            if let Some(HeldResource { version, aliases, .. }) = self.resources.remove(&name) {
                self.absent.extend(asked.names_of(&name, &aliases));
                changes.push(Change { event: Event::Removed, name, version, found: None });
                continue;
            }
            for name in asked.names_of(&name, &[]) {
                if self.absent.insert(name.clone()) {
                    changes.push(Change { event: Event::Absent, name, version: String::new(), found: None });
                }
            }
        }
        changes
    }

    /// Members of empty collections.
    fn emptied(&self, update: &Update, asked: &Subscription) -> Vec<Gone> {
        let members =
            update.removed.iter().flat_map(|gone| asked.members_of(&gone.name, self.resources.keys()));
        let is_back = |name: &String| update.found.iter().any(|(found, _)| found == name);
        members.filter(|name| !is_back(name)).filter_map(|name| self.gone(&name)).collect()
    }

    fn gone(&self, name: &str) -> Option<Gone> {
        let constraints = self.resources.get(name)?.constraints.clone();
        Some(Gone { name: name.to_owned(), constraints })
    }

    /// Resources missing from a complete response.
    fn left_out(&self, update: &Update) -> Vec<Gone> {
        let there: BTreeSet<&str> = update.found.iter().map(|(name, _)| name.as_str()).collect();
        let names = self.resources.keys().filter(|name| !there.contains(name.as_str()));
        names.filter_map(|name| self.gone(name)).collect()
    }

    /// For a new stream: a server that reads them sends only the difference.
    pub(super) fn versions(&self) -> HashMap<String, String> {
        self.resources.iter().map(|(name, held)| (name.clone(), held.version.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use deltafan_core::resource::Kind;

    fn words(changes: &[Change]) -> Vec<String> {
        changes.iter().map(|change| format!("{} {}", change.event.label(), change.name)).collect()
    }

    #[test]
    fn a_delta_stream_says_what_is_gone_and_a_new_one_that_is_silent_does_not() {
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::Cluster, &[]));
        let mut take = |found: &[_], removed: &[_]| {
            words(&held.apply(Update::of_test(Kind::Cluster, true, found, removed), &of))
        };
        assert_eq!(take(&[("a", "1", "x"), ("b", "1", "x")], &["c"]), ["added a", "added b"]);
        assert_eq!(take(&[("a", "1", "x"), ("b", "2", "x")], &[]), ["changed b"]);
        assert_eq!(take(&[("a", "1", "y")], &[]), ["changed a"], "the content of a version changed");
        // A stream that was opened anew, of a server that sends everything again.
        assert!(take(&[("a", "1", "y")], &[]).is_empty());
        assert_eq!(take(&[], &["b"]), ["removed b"]);
        assert!(take(&[], &["b"]).is_empty());
        assert_eq!(take(&[("b", "2", "x")], &[]), ["added b"]);
        assert_eq!(take(&[], &["a", "b"]), ["removed a", "removed b"]);
    }

    #[test]
    fn a_full_response_says_what_is_gone_and_another_one_does_not() {
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::Cluster, &[]));
        let mut take =
            |found: &[_]| words(&held.apply(Update::of_test(Kind::Cluster, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x"), ("b", "1", "x")]), ["added a", "added b"]);
        assert!(take(&[("a", "2", "x"), ("b", "2", "x")]).is_empty(), "the version is that of the response");
        assert_eq!(take(&[("a", "3", "z")]), ["changed a", "removed b"]);
        assert_eq!(take(&[("c", "4", "x")]), ["added c", "removed a"]);
        // A relay that has not heard of a name yet leaves it out.
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::Cluster, &["a", "b"]));
        let mut take =
            |found: &[_]| words(&held.apply(Update::of_test(Kind::Cluster, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x")]), ["added a"]);
        assert_eq!(take(&[("b", "2", "x")]), ["added b"]);
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::Endpoint, &["a", "b"]));
        let mut take =
            |found: &[_]| words(&held.apply(Update::of_test(Kind::Endpoint, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x")]), ["added a"]);
        assert_eq!(take(&[("b", "2", "x")]), ["added b"], "`a` is as it was");
    }

    #[test]
    fn a_variant_that_goes_leaves_the_one_in_its_place() {
        let constrained = |value: &str| {
            let single = [&[10, 1, b'k', 18, 1], value.as_bytes()].concat();
            Constraints::parse(&[&[10, 6], &single[..]].concat()).unwrap()
        };
        let gone = |value: &str| Gone { name: "a".to_owned(), constraints: constrained(value) };
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::Cluster, &["a"]));
        let mut take = |found: Option<(&str, Option<&str>)>, removed: Option<Gone>| {
            let mut news = Update::of_test(Kind::Cluster, true, &[], &[]);
            news.found.extend(found.map(|(version, value)| {
                let constraints = value.and_then(constrained);
                let (version, aliases) = (version.to_owned(), Vec::new());
                ("a".to_owned(), Found { version, body: Bytes::new(), constraints, aliases })
            }));
            news.removed.extend(removed);
            words(&held.apply(news, &of))
        };
        assert!(take(None, Some(gone("x"))).is_empty(), "another variant may be there");
        assert_eq!(take(Some(("1", Some("x"))), None), ["added a"]);
        assert_eq!(take(Some(("2", None)), Some(gone("x"))), ["changed a"]);
        assert_eq!(
            take(Some(("3", Some("y"))), Some(Gone { name: "a".to_owned(), constraints: None })),
            ["changed a"]
        );
        assert_eq!(take(None, Some(gone("y"))), ["removed a"]);
    }

    #[test]
    fn a_name_that_does_not_exist_is_told_once() {
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::Endpoint, &["a"]));
        let mut take = |found: &[_], removed: &[_]| {
            words(&held.apply(Update::of_test(Kind::Endpoint, true, found, removed), &of))
        };
        assert_eq!(take(&[], &["a"]), ["absent a"]);
        assert!(take(&[], &["a"]).is_empty());
        assert_eq!(take(&[("a", "1", "x")], &[]), ["added a"]);
        assert_eq!(take(&[], &["a"]), ["removed a"]);
        assert!(take(&[], &["a"]).is_empty());
    }

    const GLOB: &str = "xdstp://a/t/foo/*?k=v&l=w";
    const X: &str = "xdstp://a/t/foo/x?k=v&l=w";

    #[test]
    fn a_collection_that_becomes_empty_takes_its_members_along() {
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::Endpoint, &[GLOB]));
        let mut take = |found: &[_], removed: &[_]| {
            words(&held.apply(Update::of_test(Kind::Endpoint, true, found, removed), &of))
        };
        assert_eq!(take(&[], &[GLOB]), [format!("absent {GLOB}")]);
        assert!(take(&[], &[GLOB]).is_empty());
        assert_eq!(take(&[(X, "1", "x")], &[]), [format!("added {X}")]);
        // Some servers name the members too.
        assert_eq!(
            take(&[], &["xdstp://a/t/foo/*?l=w&k=v", X]),
            [format!("removed {X}"), format!("absent {GLOB}")]
        );
        assert_eq!(take(&[(X, "1", "x")], &[]), [format!("added {X}")]);
        assert_eq!(take(&[], &[X]), [format!("removed {X}")]);
    }

    #[test]
    fn a_name_does_not_exist_in_any_spelling() {
        let (mut held, of) =
            (Held::default(), Subscription::of_test(Kind::Endpoint, &["xdstp://a/t/foo/x?l=w&k=v"]));
        let mut take = |found: &[_], removed: &[_]| {
            words(&held.apply(Update::of_test(Kind::Endpoint, true, found, removed), &of))
        };
        assert_eq!(take(&[], &[X]), ["absent xdstp://a/t/foo/x?l=w&k=v"]);
        assert_eq!(take(&[(X, "1", "x")], &[]), [format!("added {X}")]);
        assert_eq!(take(&[], &[X]), [format!("removed {X}")]);
    }

    #[test]
    fn an_alias_of_nothing_does_not_exist_and_removes_nothing() {
        let (mut held, of) = (Held::default(), Subscription::of_test(Kind::VirtualHost, &["r/host"]));
        let mut take = |unresolved: &str, found: Option<&str>, removed: &[&str]| {
            let mut update = Update::of_test(Kind::VirtualHost, true, &[], removed);
            update.unresolved.extend((!unresolved.is_empty()).then(|| unresolved.to_owned()));
            update.found.extend(found.map(|name| {
                let aliases = vec!["r/host".to_owned()];
                let found = Found { version: "1".to_owned(), body: Bytes::new(), constraints: None, aliases };
                (name.to_owned(), found)
            }));
            words(&held.apply(update, &of))
        };
        assert_eq!(take("r/host", None, &[]), ["absent r/host"]);
        assert!(take("r/host", None, &[]).is_empty());
        assert_eq!(take("", Some("r/web"), &[]), ["added r/web"]);
        assert_eq!(take("", None, &["r/web"]), ["removed r/web"]);
        assert!(take("r/host", None, &[]).is_empty(), "it is known by the removal");
        assert_eq!(take("", Some("r/host"), &[]), ["added r/host"]);
        assert!(take("r/host", None, &[]).is_empty());
    }
}
