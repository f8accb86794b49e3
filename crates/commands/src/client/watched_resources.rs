//! Resources of a watch, and their changes by a response.
//!
//! Invariant: a removal needs evidence: the server's word, or a complete response. That a resource does not
//! come on a new stream is none.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;

use super::client_response::{Found, Update};
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
    /// `None` without a resource.
    pub body: Option<Bytes>,
}

/// Part of a subscription that the server has answered so far.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// Existing resources, by the names under which they came.
    pub found: BTreeMap<String, Found>,
    /// Requested names without a resource, and empty collections.
    pub absent: BTreeSet<String>,
    pub unanswered: BTreeSet<String>,
}

impl Held {
    pub(super) fn new(asked: &Subscription) -> Self {
        Self { found: BTreeMap::new(), absent: BTreeSet::new(), unanswered: asked.names.clone() }
    }

    pub(super) fn apply(&mut self, update: Update, asked: &Subscription) -> Vec<Change> {
        let names: HashSet<&str> = update.found.iter().map(|(name, _)| name.as_str()).collect();
        // All missing resources, or the members of empty collections.
        let mut gone: Vec<String> = if update.is_whole(asked) {
            self.found.keys().cloned().collect()
        } else {
            update.removed.iter().flat_map(|name| asked.members_of(name, self.found.keys())).collect()
        };
        gone.retain(|name| !names.contains(name.as_str()));
        let mut changes = Vec::new();
        for (name, found) in update.found {
            for answered in asked.answered_by(&name, &found.aliases) {
                self.absent.remove(&answered);
                self.unanswered.remove(&answered);
            }
            let (version, body) = (found.version.clone(), found.body.clone());
            let event = match self.found.insert(name.clone(), found) {
                None => Event::Added,
                // In state of the world every resource has the response's version, whatever changed.
                Some(before) if before.body != body || (update.is_delta && before.version != version) => {
                    Event::Changed
                }
                Some(_) => continue,
            };
            changes.push(Change { event, name, version, body: Some(body) });
        }
        for name in gone.into_iter().chain(update.removed) {
            if let Some(Found { version, aliases, .. }) = self.found.remove(&name) {
                self.absent.extend(asked.names_of(&name, &aliases));
                changes.push(Change { event: Event::Removed, name, version, body: None });
                continue;
            }
            for name in asked.names_of(&name, &[]) {
                if self.absent.insert(name.clone()) {
                    changes.push(Change { event: Event::Absent, name, version: String::new(), body: None });
                }
            }
        }
        self.unanswered.retain(|name| !self.absent.contains(name));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafan_core::resource::Kind;

    fn holding(kind: Kind, names: &[&str]) -> (Held, Subscription) {
        let of = Subscription::of_test(kind, names);
        (Held::new(&of), of)
    }

    fn words(changes: &[Change]) -> Vec<String> {
        changes.iter().map(|change| format!("{} {}", change.event.label(), change.name)).collect()
    }

    #[test]
    fn a_delta_stream_says_what_is_gone_and_a_new_one_that_is_silent_does_not() {
        let (mut held, of) = holding(Kind::Cluster, &[]);
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
        let (mut held, of) = holding(Kind::Cluster, &[]);
        let mut take =
            |found: &[_]| words(&held.apply(Update::of_test(Kind::Cluster, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x"), ("b", "1", "x")]), ["added a", "added b"]);
        assert!(take(&[("a", "2", "x"), ("b", "2", "x")]).is_empty(), "the version is that of the response");
        assert_eq!(take(&[("a", "3", "z")]), ["changed a", "removed b"]);
        assert_eq!(take(&[("c", "4", "x")]), ["added c", "removed a"]);
        // A relay that has not heard of a name yet leaves it out.
        let (mut held, of) = holding(Kind::Cluster, &["a", "b"]);
        let mut take =
            |found: &[_]| words(&held.apply(Update::of_test(Kind::Cluster, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x")]), ["added a"]);
        assert_eq!(take(&[("b", "2", "x")]), ["added b"]);
        let (mut held, of) = holding(Kind::Endpoint, &["a", "b"]);
        let mut take =
            |found: &[_]| words(&held.apply(Update::of_test(Kind::Endpoint, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x")]), ["added a"]);
        assert_eq!(take(&[("b", "2", "x")]), ["added b"], "`a` is as it was");
    }

    #[test]
    fn a_name_that_does_not_exist_is_told_once() {
        let (mut held, of) = holding(Kind::Endpoint, &["a"]);
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
        let (mut held, of) = holding(Kind::Endpoint, &[GLOB]);
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
        let (mut held, of) = holding(Kind::Endpoint, &["xdstp://a/t/foo/x?l=w&k=v"]);
        let mut take = |found: &[_], removed: &[_]| {
            words(&held.apply(Update::of_test(Kind::Endpoint, true, found, removed), &of))
        };
        assert_eq!(take(&[], &[X]), ["absent xdstp://a/t/foo/x?l=w&k=v"]);
        assert_eq!(take(&[(X, "1", "x")], &[]), [format!("added {X}")]);
        assert_eq!(take(&[], &[X]), [format!("removed {X}")]);
    }

    #[test]
    fn an_alias_of_nothing_is_told_once() {
        let (mut held, of) = holding(Kind::VirtualHost, &["r/host"]);
        let mut take = |found: Option<&str>, removed: &[&str]| {
            let mut update = Update::of_test(Kind::VirtualHost, true, &[], removed);
            update.found.extend(found.map(|name| {
                let aliases = vec!["r/host".to_owned()];
                (name.to_owned(), Found { version: "1".to_owned(), body: Bytes::new(), aliases })
            }));
            words(&held.apply(update, &of))
        };
        assert_eq!(take(None, &["r/host"]), ["absent r/host"]);
        assert!(take(None, &["r/host"]).is_empty());
        assert_eq!(take(Some("r/web"), &[]), ["added r/web"]);
        assert_eq!(take(None, &["r/web"]), ["removed r/web"]);
        assert!(take(None, &["r/host"]).is_empty(), "it is known by the removal");
    }
}
