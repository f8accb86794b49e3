use std::time::Duration;

use proptest::prelude::*;

use super::super::fixture::resource;
use super::super::{Budget, Cache, Change, Completeness, Limits, Op, Resend, View, Writer};
use super::*;
use crate::resource::Kind;

/// A cache whose history has a limit.
struct Fixture {
    writer: Writer,
    history: Arc<History>,
    start: Instant,
    seconds: u64,
}

impl Fixture {
    fn new(budget: &Budget) -> Self {
        let (cache, writer) = Cache::guarded(Limits::default(), budget, None);
        let history = Arc::clone(cache.history().expect("a limit above 0"));
        Self { writer, history, start: Instant::now(), seconds: 0 }
    }

    fn of_bytes(limit: u64) -> Self {
        Self::new(&Budget::new(1 << 20).with_history(limit))
    }

    /// Applies operations a second later.
    fn apply(&mut self, kind: Kind, ops: Vec<Op>) {
        self.seconds += 1;
        let now = self.start + Duration::from_secs(self.seconds);
        self.writer.apply(&kind.into(), Change { ops, ..Change::default() }, now).expect("a known type");
    }

    /// The wildcard set is known from here on.
    fn know(&mut self, kind: Kind) {
        let change = Change { wildcard_known: Some(Completeness::Complete), ..Change::default() };
        self.writer.apply(&kind.into(), change, self.start).expect("a known type");
    }

    fn set(&mut self, kind: Kind, view: View, name: &str, version: &str, body: &[u8]) {
        let resource = resource(&kind.into(), name, version, body);
        self.apply(kind, vec![Op::Set { view, resource, resend: Resend::Unsolicited, lease: None }]);
    }

    fn changes(&self, kind: Kind, name: &str) -> Vec<ResourceChange> {
        let mut found = self.history.of(self.writer.cache().number(), &kind.into(), Track::Origin, name);
        assert!(found.len() <= 1, "one set of parameters: {found:?}");
        found.pop().map(|(_, changes)| changes).unwrap_or_default()
    }

    /// Versions before and after each change.
    fn versions(&self, kind: Kind, name: &str) -> Vec<(Option<String>, Option<String>)> {
        let before =
            |change: &ResourceChange| change.before.as_ref().map(|before| before.version().to_owned());
        let after = |change: &ResourceChange| change.after.as_ref().map(|after| after.version.to_string());
        self.changes(kind, name).iter().map(|change| (before(change), after(change))).collect()
    }
}

fn pair(before: &str, after: &str) -> (Option<String>, Option<String>) {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    (text(before), text(after))
}

const CDS: Kind = Kind::Cluster;

#[test]
fn a_change_has_its_time_and_the_body_that_it_replaced() {
    let mut of = Fixture::of_bytes(1 << 20);
    of.set(CDS, View::Wildcard, "a", "1", b"one");
    of.set(CDS, View::Wildcard, "b", "1", b"other");
    of.set(CDS, View::Wildcard, "a", "1", b"one");
    of.set(CDS, View::Wildcard, "a", "2", b"twelve");
    assert_eq!(of.versions(CDS, "a"), [pair("", "1"), pair("1", "2")]);
    let changes = of.changes(CDS, "a");
    assert!(changes.iter().all(|change| change.is_member && !change.is_first));
    let at = of.start + Duration::from_secs(4);
    assert_eq!(changes.iter().map(|change| change.at).collect::<Vec<_>>(), [None, Some(at)]);
    assert!(changes[0].generation < changes[1].generation);
    let held = of.writer.cache().of(&CDS.into()).unwrap().snapshot();
    let held = held.get("a").and_then(|entry| entry.as_member().present()).unwrap();
    assert_eq!(changes[1].after.as_ref(), Some(&ResourceFacts::of(held)));
    assert_eq!(Arc::strong_count(changes[1].before.as_ref().unwrap()), 2, "the record's and this one");
    assert!(of.changes(CDS, "b").is_empty(), "it has not changed");
}

#[test]
fn what_is_heard_first_is_no_change_and_what_comes_into_a_known_set_is() {
    let mut of = Fixture::of_bytes(1 << 20);
    of.set(CDS, View::Wildcard, "a", "1", b"one");
    of.set(CDS, View::Named, "b", "1", b"one");
    assert_eq!(of.history.bytes(), 0);
    of.know(CDS);
    of.set(CDS, View::Wildcard, "c", "1", b"one");
    of.set(CDS, View::Named, "d", "1", b"one");
    assert_eq!((of.versions(CDS, "c"), of.changes(CDS, "c")[0].is_first), (vec![pair("", "1")], true));
    let newest = of.history.newest(9, |_, _, _| true, |_| true);
    assert_eq!(newest.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["c"]);
    of.set(CDS, View::Wildcard, "a", "2", b"two");
    assert_eq!(of.history.newest(9, |_, _, _| true, |_| true).len(), 2, "what was there before is no change");
    let present =
        |name| of.writer.cache().present(&CDS.into(), Track::Origin, name).pop().map(|(_, present)| present);
    let held = present("b").expect("it is held");
    assert_eq!(
        (held.at, held.is_member, held.after.map(|after| after.version.to_string())),
        (None, false, Some("1".to_owned()))
    );
    assert!(present("nobody").is_none());
    // It comes after the origin has said that it does not exist.
    of.apply(CDS, vec![Op::Remove { view: View::Named, name: "e".into() }]);
    of.set(CDS, View::Named, "e", "1", b"one");
    assert!(of.changes(CDS, "e")[0].is_first);
}

#[test]
fn a_removal_and_a_return_are_changes_and_a_pause_of_the_subscription_is_none() {
    let mut of = Fixture::of_bytes(1 << 20);
    let (view, name) = (View::Named, Name::from("a"));
    of.set(Kind::Endpoint, view, "a", "1", b"one");
    of.apply(Kind::Endpoint, vec![Op::Remove { view, name: name.clone() }]);
    assert_eq!(of.versions(Kind::Endpoint, "a"), [pair("", "1"), pair("1", "")]);
    of.apply(Kind::Endpoint, vec![Op::Remove { view, name: "made-up".into() }]);
    assert!(of.changes(Kind::Endpoint, "made-up").is_empty(), "clients choose names");
    of.set(Kind::Endpoint, view, "a", "2", b"two");
    // Nobody asks for a while, and it is the same after that; then it is not.
    of.apply(Kind::Endpoint, vec![Op::Forget { view, name: name.clone() }]);
    of.set(Kind::Endpoint, view, "a", "2", b"two");
    let before = [pair("", "1"), pair("1", ""), pair("", "2")];
    assert_eq!(of.versions(Kind::Endpoint, "a"), before);
    of.apply(Kind::Endpoint, vec![Op::Forget { view, name: name.clone() }]);
    of.set(Kind::Endpoint, view, "a", "3", b"three");
    assert_eq!(of.versions(Kind::Endpoint, "a")[3..], [pair("", "3")]);
    assert!(!of.changes(Kind::Endpoint, "a")[3].is_first);
    // It is let go in one view, and removed in the other.
    of.set(Kind::Endpoint, View::Wildcard, "b", "1", b"one");
    of.set(Kind::Endpoint, view, "b", "1", b"one");
    let forget = Op::Forget { view: View::Wildcard, name: "b".into() };
    of.apply(Kind::Endpoint, vec![forget, Op::Remove { view, name: "b".into() }]);
    assert_eq!(of.versions(Kind::Endpoint, "b"), [pair("", "1"), pair("1", "")]);
    // It went while nobody asked.
    of.apply(Kind::Endpoint, vec![Op::Forget { view, name: name.clone() }]);
    of.apply(Kind::Endpoint, vec![Op::Remove { view, name }]);
    assert_eq!(of.versions(Kind::Endpoint, "a")[4..], [pair("", "")]);
}

#[test]
fn members_of_the_wildcard_set_may_be_asked_for_by_name_too() {
    let mut of = Fixture::of_bytes(1 << 20);
    of.set(CDS, View::Named, "a", "1", b"one");
    of.set(CDS, View::Named, "a", "2", b"two");
    assert!(!of.changes(CDS, "a")[1].is_member);
    of.set(CDS, View::Wildcard, "a", "2", b"two");
    assert_eq!(of.versions(CDS, "a"), [pair("", "1"), pair("1", "2")]);
    assert!(of.changes(CDS, "a")[1].is_member);
    of.apply(CDS, vec![Op::Remove { view: View::Wildcard, name: "a".into() }]);
    assert_eq!(of.versions(CDS, "a").len(), 2, "it is there by its name");
    of.apply(CDS, vec![Op::Remove { view: View::Named, name: "a".into() }]);
    assert_eq!(of.versions(CDS, "a")[2..], [pair("2", "")]);
}

#[test]
fn bodies_of_secrets_and_large_ones_are_not_held() {
    let mut of = Fixture::of_bytes(64 << 10);
    for version in ["1", "2"] {
        of.set(Kind::Secret, View::Named, "key", version, version.as_bytes());
        of.set(CDS, View::Named, "large", version, &[0; 5_000]);
    }
    assert_eq!(of.versions(Kind::Secret, "key"), [pair("", "1"), pair("", "2")]);
    assert_eq!(of.versions(CDS, "large"), [pair("", "1"), pair("", "2")]);
    let after = of.changes(CDS, "large")[1].after.clone().unwrap();
    assert!(after.bytes > 5_000, "{after:?}");
}

#[test]
fn a_resource_that_changes_all_the_time_leaves_others_their_changes() {
    let mut of = Fixture::of_bytes(40 * (RECORD + RESOURCE + 200));
    for name in ["a", "b"] {
        of.set(CDS, View::Wildcard, name, "1", &[b'1'; 100]);
        of.set(CDS, View::Wildcard, name, "2", &[b'2'; 100]);
    }
    for version in 0..1_000 {
        of.set(CDS, View::Wildcard, "busy", &version.to_string(), &[b'x'; 100]);
    }
    for name in ["a", "b"] {
        assert_eq!(of.versions(CDS, name), [pair("", "1"), pair("1", "2")]);
    }
    let busy = of.versions(CDS, "busy");
    assert_eq!((busy.len(), busy.last()), (CHANGES, Some(&pair("998", "999"))));
    // Many that are busy leave the others the last one.
    for version in 0..20 {
        for name in 0..10 {
            of.set(CDS, View::Wildcard, &format!("busy-{name}"), &version.to_string(), &[b'x'; 100]);
        }
    }
    for name in ["a", "b"] {
        assert_eq!(of.versions(CDS, name), [pair("1", "2")]);
    }
}

#[test]
fn newest_changes_of_all_resources_come_first() {
    let mut of = Fixture::of_bytes(1 << 20);
    [CDS, Kind::Listener].into_iter().for_each(|kind| of.know(kind));
    of.set(CDS, View::Wildcard, "a", "1", b"");
    of.set(CDS, View::Wildcard, "b", "1", b"");
    of.set(Kind::Listener, View::Wildcard, "l", "1", b"");
    of.set(CDS, View::Wildcard, "a", "2", b"");
    let newest = |max, kinds: &[Kind]| -> Vec<String> {
        let found = of.history.newest(max, |_, type_url, _| kinds.contains(&type_url.kind()), |_| true);
        let version = |of: &PlacedChange| of.change.after.as_ref().map(|after| after.version.to_string());
        found.iter().map(|of| format!("{} {}", of.name, version(of).unwrap_or_default())).collect()
    };
    assert_eq!(newest(9, &[CDS, Kind::Listener]), ["a 2", "l 1", "b 1", "a 1"]);
    assert_eq!(newest(2, &[CDS]), ["a 2", "b 1"]);
    assert!(newest(0, &[CDS]).is_empty() && newest(9, &[Kind::Secret]).is_empty());
}

#[test]
fn a_group_that_ends_leaves_nothing() {
    let budget = Budget::new(1 << 20).with_history(1 << 20);
    let (mut one, mut other) = (Fixture::new(&budget), Fixture::new(&budget));
    for of in [&mut one, &mut other] {
        for version in ["1", "2"] {
            of.set(CDS, View::Wildcard, "a", version, version.as_bytes());
        }
    }
    assert_eq!((one.changes(CDS, "a").len(), other.changes(CDS, "a").len()), (2, 2));
    let both = other.history.bytes();
    drop(one);
    assert_eq!((other.history.bytes(), other.changes(CDS, "a").len()), (both / 2, 2));
    let history = Arc::clone(&other.history);
    drop(other);
    let table = history.table.lock();
    assert_eq!((table.bytes, table.stores.len(), table.places.len(), table.superseded.len()), (0, 0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The bytes stay within the limit, the tables agree, and no resource loses its last change while those of all have fitted.
    #[test]
    fn bounds_hold_and_last_changes_stay(
        limit in 1_u64..60,
        steps in prop::collection::vec((0..12_usize, 0..6_u8, 0..400_usize), 1..300),
    ) {
        let mut of = Fixture::of_bytes(limit * 500);
        let mut last: HashMap<usize, (Option<Arc<str>>, u64)> = HashMap::default();
        let mut fits = true;
        for (name, version, length) in steps {
            let text = name.to_string();
            if version == 0 {
                of.apply(CDS, vec![Op::Remove { view: View::Wildcard, name: text.as_str().into() }]);
            } else {
                of.set(CDS, View::Wildcard, &text, &version.to_string(), &vec![version; length]);
            }
            let newest = of.changes(CDS, &text).last().cloned();
            if let Some(newest) = &newest {
                let version = newest.after.as_ref().map(|after| Arc::clone(&after.version));
                last.insert(name, (version, cost(&text.as_str().into(), newest)));
            }
            let all: u64 = last.values().map(|(_, cost)| cost).sum();
            prop_assert!(of.history.bytes() <= of.history.limit);
            fits &= all <= of.history.limit;
            if fits {
                for (name, (version, _)) in &last {
                    let changes = of.changes(CDS, &name.to_string());
                    let newest = changes.last().and_then(|change| change.after.as_ref());
                    prop_assert!(!changes.is_empty() && changes.len() <= CHANGES);
                    prop_assert_eq!(newest.map(|after| &after.version), version.as_ref());
                }
            }
            let table = of.history.table.lock();
            let records: Vec<&Record> = table.stores.values().flat_map(|of| of.lines.values()).flat_map(|line| &line.records).collect();
            prop_assert_eq!(records.iter().map(|record| record.cost).sum::<u64>(), table.bytes);
            prop_assert_eq!(records.len(), table.places.len());
            let lines = table.stores.values().map(|of| of.lines.len()).sum::<usize>();
            prop_assert_eq!(records.len() - lines, table.superseded.len());
        }
    }
}
