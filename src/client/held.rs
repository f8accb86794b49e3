//! Resources that a watcher has seen, and the changes that follow from a response.
//!
//! Invariant: a removal needs evidence. It is the server's word, or a response that holds everything; a new stream that leaves a
//! resource out is none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use xxhash_rust::xxh3::xxh3_128;

use super::request::Subscription;
use super::response::{Found, Gone, Update};
use crate::resource::Constraints;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The resource was not known before.
    Added,
    /// Its content, or a version of its own, is another one.
    Changed,
    /// It existed, and does not any more.
    Removed,
    /// The name was asked for, and does not exist.
    Absent,
}

impl Event {
    /// Word for it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Absent => "absent",
        }
    }
}

/// Change of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its kind.
    pub event: Event,
    /// Name of the resource.
    pub name: String,
    /// Its version; the last one that it had where it does not exist any more.
    pub version: String,
    /// The resource, if it exists.
    pub found: Option<Found>,
}

#[derive(Clone, Debug)]
struct HeldResource {
    version: String,
    /// Hash of the content.
    content: u128,
    constraints: Option<Constraints>,
}

/// State of a watcher.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    resources: BTreeMap<String, HeldResource>,
    absent: BTreeSet<String>,
}

impl Held {
    /// Takes a response in.
    pub(super) fn apply(&mut self, update: Update, asked: &Subscription) -> Vec<Change> {
        let mut changes = Vec::new();
        let gone = if update.is_whole(asked) { self.left_out(&update) } else { Vec::new() };
        for (name, found) in update.found {
            self.absent.remove(&name);
            let (version, content) = (found.version.clone(), xxh3_128(&found.body));
            let held = HeldResource { version, content, constraints: found.constraints.clone() };
            let event = match self.resources.insert(name.clone(), held) {
                None => Event::Added,
                // In state of the world all have the version of the response, whatever changed.
                Some(before)
                    if before.content != content || (update.is_delta && before.version != found.version) =>
                {
                    Event::Changed
                }
                Some(_) => continue,
            };
            changes.push(Change { event, name, version: found.version.clone(), found: Some(found) });
        }
        for removed in update.removed.into_iter().chain(gone) {
            let held = self.resources.get(&removed.name);
            // A variant may have taken the place of the one that goes; and one that was never here says nothing of the others.
            if !removed.is(held.and_then(|held| held.constraints.as_ref())) {
                continue;
            }
            let name = removed.name;
            if let Some(HeldResource { version, .. }) = self.resources.remove(&name) {
                changes.push(Change { event: Event::Removed, name: name.clone(), version, found: None });
            } else if asked.names.contains(&name) && !self.absent.contains(&name) {
                let version = String::new();
                changes.push(Change { event: Event::Absent, name: name.clone(), version, found: None });
            }
            if asked.names.contains(&name) {
                self.absent.insert(name);
            }
        }
        changes
    }

    /// Resources that a full response says do not exist.
    fn left_out(&self, update: &Update) -> Vec<Gone> {
        let there: BTreeSet<&str> = update.found.iter().map(|(name, _)| name.as_str()).collect();
        let gone = self.resources.iter().filter(|(name, _)| !there.contains(name.as_str()));
        gone.map(|(name, held)| Gone { name: name.clone(), constraints: held.constraints.clone() }).collect()
    }

    /// Versions for a new stream; a server that looks at them sends the difference only.
    pub(super) fn versions(&self) -> HashMap<String, String> {
        self.resources.iter().map(|(name, held)| (name.clone(), held.version.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::resource::{Kind, Parameters, TypeUrl};

    fn asked(kind: Kind, names: &[&str]) -> Subscription {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Subscription::new(kind.into(), names, Parameters::NONE)
    }

    fn update(kind: Kind, is_delta: bool, found: &[(&str, &str, &str)], removed: &[&str]) -> Update {
        let found = found.iter().map(|(name, version, body)| {
            let body = body.as_bytes().to_vec().into();
            ((*name).to_owned(), Found { version: (*version).to_owned(), body, constraints: None })
        });
        Update {
            found: found.collect(),
            removed: removed
                .iter()
                .map(|name| Gone { name: (*name).to_owned(), constraints: None })
                .collect(),
            is_full: !is_delta && kind.full_state(),
            is_delta,
            version: String::new(),
            nonce: String::new(),
            type_url: TypeUrl::from(kind),
        }
    }

    fn words(changes: &[Change]) -> Vec<String> {
        changes.iter().map(|change| format!("{} {}", change.event.label(), change.name)).collect()
    }

    #[test]
    fn a_delta_stream_says_what_is_gone_and_a_new_one_that_is_silent_does_not() {
        let (mut held, of) = (Held::default(), asked(Kind::Cluster, &[]));
        let mut take =
            |found: &[_], removed: &[_]| words(&held.apply(update(Kind::Cluster, true, found, removed), &of));
        assert_eq!(take(&[("a", "1", "x"), ("b", "1", "x")], &["c"]), ["added a", "added b"]);
        assert_eq!(take(&[("a", "1", "x"), ("b", "2", "x")], &[]), ["changed b"]);
        assert_eq!(take(&[("a", "1", "y")], &[]), ["changed a"], "the content of a version changed");
        // A stream that was opened anew, of a server that sends everything again.
        assert!(take(&[("a", "1", "y")], &[]).is_empty());
        assert_eq!(take(&[], &["b"]), ["removed b"]);
        assert!(take(&[], &["b"]).is_empty());
        assert_eq!(take(&[("b", "2", "x")], &[]), ["added b"]);
    }

    #[test]
    fn a_full_response_says_what_is_gone_and_another_one_does_not() {
        let (mut held, of) = (Held::default(), asked(Kind::Cluster, &[]));
        let mut take = |found: &[_]| words(&held.apply(update(Kind::Cluster, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x"), ("b", "1", "x")]), ["added a", "added b"]);
        assert!(take(&[("a", "2", "x"), ("b", "2", "x")]).is_empty(), "the version is that of the response");
        assert_eq!(take(&[("a", "3", "z")]), ["changed a", "removed b"]);
        assert_eq!(take(&[("c", "4", "x")]), ["added c", "removed a"]);
        // A relay that has not heard of a name yet leaves it out.
        let (mut held, of) = (Held::default(), asked(Kind::Cluster, &["a", "b"]));
        let mut take = |found: &[_]| words(&held.apply(update(Kind::Cluster, false, found, &[]), &of));
        assert_eq!(take(&[("a", "1", "x")]), ["added a"]);
        assert_eq!(take(&[("b", "2", "x")]), ["added b"]);
        let (mut held, of) = (Held::default(), asked(Kind::Endpoint, &["a", "b"]));
        let mut take = |found: &[_]| words(&held.apply(update(Kind::Endpoint, false, found, &[]), &of));
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
        let (mut held, of) = (Held::default(), asked(Kind::Cluster, &["a"]));
        let mut take = |found: Option<(&str, Option<&str>)>, removed: Option<Gone>| {
            let mut news = update(Kind::Cluster, true, &[], &[]);
            news.found.extend(found.map(|(version, value)| {
                let constraints = value.and_then(constrained);
                ("a".to_owned(), Found { version: version.to_owned(), body: Bytes::new(), constraints })
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
        let (mut held, of) = (Held::default(), asked(Kind::Endpoint, &["a"]));
        let mut take = |found: &[_], removed: &[_]| {
            words(&held.apply(update(Kind::Endpoint, true, found, removed), &of))
        };
        assert_eq!(take(&[], &["a"]), ["absent a"]);
        assert!(take(&[], &["a"]).is_empty());
        assert_eq!(take(&[("a", "1", "x")], &[]), ["added a"]);
        assert_eq!(take(&[], &["a"]), ["removed a"]);
        assert!(take(&[], &["a"]).is_empty());
    }
}
