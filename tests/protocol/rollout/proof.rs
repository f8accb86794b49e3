//! A change spreads only after a canary has accepted it: what a rejected response leaves open, and how the bad changes in it are found.

use std::collections::BTreeMap;

use deltafan::cache::Limits;
use deltafan_test_support::wire::Told;

use super::*;

const ALL: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Client that rejects odd versions and, like Envoy, names the first one of a response.
struct Judge {
    client: Client,
    held: BTreeMap<String, u64>,
}

impl Judge {
    fn new(fixture: &Fixture, id: &str, protocol: Protocol) -> Self {
        let mut client = fixture.client_named(id, protocol);
        client.ask_or_change(fixture, "cds", "*");
        let mut judge = Self { client, held: BTreeMap::new() };
        judge.judge(fixture);
        judge
    }

    fn judge(&mut self, fixture: &Fixture) -> Vec<Told> {
        let mut all = Vec::new();
        while let Some(told) = self.client.poll(fixture) {
            let version =
                |(name, version): &(String, String)| (name.clone(), version.parse::<u64>().unwrap());
            let sent: Vec<_> = told.resources.iter().map(version).collect();
            match sent.iter().find(|(_, version)| version % 2 == 1) {
                Some((bad, _)) => {
                    let text = format!("cluster {bad}: no such thing");
                    self.client.nack_saying(fixture, &told, &[], &text);
                }
                None => {
                    self.held.extend(sent);
                    self.held.retain(|name, _| !told.removed.contains(name));
                    self.client.ack(fixture, &told, &[]);
                }
            }
            all.push(told);
        }
        all
    }
}

/// A fixture that has sent all clusters at version 2, with a canary and another client.
fn world(protocol: Protocol) -> (Fixture, Judge, Judge) {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, &format!("cds{}", versions(&ALL, 2)));
    let canary = Judge::new(&fixture, "canary", protocol);
    let other = Judge::new(&fixture, "other", protocol);
    (fixture, canary, other)
}

/// Time goes by, and the canary answers whatever it is sent.
fn pass(fixture: &mut Fixture, canary: &mut Judge, time: Duration) {
    for _ in 0..time.as_secs() {
        fixture.roll_out(SECOND);
        canary.judge(fixture);
    }
}

#[test]
fn nothing_in_a_rejected_response_is_accepted_whatever_its_text_names() {
    for protocol in BOTH {
        for discards in [false, true] {
            let (mut fixture, mut canary, mut other) = world(protocol);
            fixture.origin(&format!("cds{}", versions(&ALL, 3)));
            pass(&mut fixture, &mut canary, TRIAL);
            if discards {
                fixture.order(Order::Discard(None, Note::default()));
            } else {
                fixture.origin("cds a:4");
            }
            pass(&mut fixture, &mut canary, 5 * TRIAL);
            assert!(
                other.judge(&fixture).is_empty(),
                "{protocol:?} {discards}: no canary has accepted any of it"
            );
            let late = Judge::new(&fixture, "late", protocol);
            assert_eq!(late.held.len(), ALL.len(), "a newcomer has the last good state");
        }
    }
}

/// Names on hold, once the search is over.
fn search(fixture: &mut Fixture, canary: &mut Judge) -> Vec<String> {
    for _ in 0..60 {
        pass(fixture, canary, SECOND);
    }
    held_changes(fixture)
}

#[test]
fn every_bad_change_is_found_and_the_good_ones_spread() {
    for protocol in BOTH {
        for bad in [&["a"][..], &["h"], &["c", "d"], &["a", "d", "h"], &ALL[1..], &ALL] {
            for discards in [false, true] {
                let (mut fixture, mut canary, mut other) = world(protocol);
                let versions = |version| {
                    let version = |name| if bad.contains(&name) { version } else { 4 };
                    ALL.iter().map(|name| format!(" {name}:{}", version(*name))).collect::<String>()
                };
                fixture.origin(&format!("cds{}", versions(3)));
                pass(&mut fixture, &mut canary, TRIAL);
                let found = search(&mut fixture, &mut canary);
                let expected: Vec<String> = bad.iter().map(|name| format!("{name}:3")).collect();
                assert_eq!(found, expected, "{protocol:?}");
                assert!(other.judge(&fixture).is_empty());
                if discards {
                    assert!(fixture.order(Order::Discard(None, Note::default())));
                } else {
                    let corrected: String = bad.iter().map(|name| format!(" {name}:6")).collect();
                    fixture.origin(&format!("cds{corrected}"));
                }
                pass(&mut fixture, &mut canary, TRIAL);
                other.judge(&fixture);
                let expected = |name: &&str| match bad.contains(name) {
                    true => {
                        if discards {
                            2
                        } else {
                            6
                        }
                    }
                    false => 4,
                };
                let expected: BTreeMap<String, u64> =
                    ALL.iter().map(|name| ((*name).to_owned(), expected(name))).collect();
                assert_eq!((&other.held, &canary.held), (&expected, &expected), "{protocol:?} {discards}");
                assert_eq!(status(&fixture).phase, Phase::Idle);
            }
        }
    }
}

/// The canary is gone while the relay looks for the bad ones: what is not proven stays held, and an operator decides.
#[test]
fn a_search_without_canaries_ends() {
    for order in [Order::Release(None), Order::Discard(None, Note::default())] {
        let (mut fixture, mut canary, mut other) = world(Protocol::Delta);
        fixture.origin(&format!("cds{}", versions(&ALL, 3)));
        pass(&mut fixture, &mut canary, TRIAL);
        drop(canary);
        fixture.roll_out(10 * TRIAL);
        assert_eq!(held_changes(&fixture).len(), ALL.len());
        assert!(other.judge(&fixture).is_empty());
        let is_release = matches!(order, Order::Release(_));
        assert!(fixture.order(order));
        fixture.roll_out(2 * SECOND);
        let sent = other.client.poll(&fixture).map_or(0, |told| told.resources.len());
        assert_eq!(sent, if is_release { ALL.len() } else { 0 });
        assert_eq!(status(&fixture).phase, Phase::Idle);
    }
}

/// A name that is asked for by wildcard and by name comes twice, and canaries ask in either way: it is one content.
#[test]
fn a_verdict_is_about_content_whichever_way_it_came() {
    for by_name in [false, true] {
        for bad in [false, true] {
            let mut fixture = sharing(&["cds"], 1.0);
            begin(&mut fixture, "cds a:2 b:2");
            fixture.named("cds a:2");
            let mut wildcards: Vec<Judge> =
                (0..3).map(|at| Judge::new(&fixture, &format!("all-{at}"), Protocol::Delta)).collect();
            let mut named = fixture.client_named("named", Protocol::Delta);
            named.change(&fixture, "cds", "a");
            named.acked(&fixture);
            let version = if bad { 3 } else { 4 };
            let views = if by_name { [View::Named, View::Wildcard] } else { [View::Wildcard, View::Named] };
            for view in views {
                fixture.resend(view, &format!("cds a:{version}"));
                fixture.roll_out(SECOND);
                wildcards.iter_mut().for_each(|client| drop(client.judge(&fixture)));
                if let Some(told) = named.poll(&fixture) {
                    match bad {
                        true => named.nack_saying(&fixture, &told, &[], "a is bad"),
                        false => named.ack(&fixture, &told, &[]),
                    };
                }
            }
            fixture.roll_out(TRIAL);
            let expected = if bad { vec!["a:3"] } else { vec![] };
            assert_eq!(held_changes(&fixture), expected, "{by_name}");
            assert_eq!(status(&fixture).phase, if bad { Phase::Held } else { Phase::Idle });
        }
    }
}

/// A client that does not know the key cannot compute a node ID that makes it a canary.
#[test]
fn the_key_chooses_the_canaries() {
    let chosen = |key: [u8; 16]| {
        let fixture = keyed(key, 0.2);
        let clients: Vec<_> = (0..200)
            .map(|at| {
                let before = status(&fixture).canaries;
                let mut client = fixture.client_named(&format!("envoy-{at}"), Protocol::Delta);
                client.change(&fixture, "cds", "*");
                (client, status(&fixture).canaries > before)
            })
            .collect();
        clients.iter().map(|(_, is_canary)| *is_canary).collect::<Vec<_>>()
    };
    let (one, other) = (chosen([1; 16]), chosen([2; 16]));
    assert_eq!(one, chosen([1; 16]), "replicas agree");
    let both = one.iter().zip(&other).filter(|(one, other)| **one && **other).count();
    assert!((20..70).contains(&one.iter().filter(|is| **is).count()), "{one:?}");
    assert!(both < 20, "another key chooses others: {both}");
}

/// The control plane forgets the answer for a name that nobody asks for by name any more; the member stays.
#[test]
fn a_client_by_name_that_leaves_erases_no_verdict() {
    let (mut fixture, mut canary, mut other) = world(Protocol::Delta);
    fixture.named("cds a:2");
    fixture.origin("cds a:3");
    fixture.roll_out(SECOND);
    canary.judge(&fixture);
    let forget = deltafan::cache::Op::Forget { view: View::Named, name: "a".into() };
    fixture.apply("cds", Change { ops: vec![forget], ..Change::default() });
    pass(&mut fixture, &mut canary, 3 * TRIAL);
    assert_eq!(held_changes(&fixture), ["a:3"]);
    assert!(other.judge(&fixture).is_empty());
}

/// One of three canaries is gone after its rejection, and the control plane corrects the bad change before an operator releases
/// the rest.
#[test]
fn a_canary_that_left_holds_nothing_and_a_release_gives_nothing_that_was_replaced() {
    let mut fixture = sharing(&["cds"], 1.0);
    begin(&mut fixture, &format!("cds{}", versions(&ALL, 2)));
    let mut canaries: Vec<Judge> =
        ["one", "two", "three"].map(|id| Judge::new(&fixture, id, Protocol::Delta)).into();
    fixture.origin(&format!("cds a:3{}", versions(&ALL[1..], 4)));
    fixture.roll_out(SECOND);
    canaries.iter_mut().for_each(|canary| drop(canary.judge(&fixture)));
    canaries.pop();
    for _ in 0..3 * TRIAL.as_secs() {
        fixture.roll_out(SECOND);
        canaries.iter_mut().for_each(|canary| drop(canary.judge(&fixture)));
    }
    assert_eq!(held_changes(&fixture), ["a:3"]);
    fixture.origin("cds a:5");
    assert!(fixture.order(Order::Release(None)));
    fixture.roll_out(SECOND);
    let view = deltafan::cache::ParameterView::uniform(deltafan::resource::Parameters::NONE);
    let stable =
        fixture.cache.find(&url("cds"), &view.on(deltafan::cache::Track::Stable)).unwrap().snapshot();
    let version = |name| stable.by_name(name).present().unwrap().version().to_owned();
    assert_eq!((version("a"), version("b")), ("2".to_owned(), "4".to_owned()));
}

/// The difference does not fit one response.
#[test]
fn the_answers_of_a_canary_that_resumed_in_parts_count() {
    let limits = Limits { response_bytes: 2_500, ..Limits::default() };
    let mut fixture = Fixture::guarded_within(limits, settings(&["cds"]));
    fixture.bulky(&format!("cds{}", versions(&ALL, 2)));
    fixture.known("cds");
    let mut canary = fixture.client_named("canary", Protocol::Delta);
    canary.change(&fixture, "cds", "*");
    canary.acked(&fixture);
    let mut other = fixture.client_named("other", Protocol::Delta);
    other.change(&fixture, "cds", "*");
    other.acked(&fixture);
    fixture.bulky(&format!("cds{}", versions(&ALL, 4)));
    fixture.roll_out(SECOND);
    drop(canary);
    let mut canary = fixture.client_named("canary", Protocol::Delta);
    let held = ALL.map(|name| (name, "2"));
    canary.resume(&fixture, "cds", &["*"], &held);
    assert!(canary.acked(&fixture).len() > 2);
    fixture.roll_out(TRIAL);
    assert_eq!(other.acked(&fixture).concat().matches(":4").count(), ALL.len(), "{:?}", status(&fixture));
}
