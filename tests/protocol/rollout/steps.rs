//! Named canaries, and steps: each share of the clients is sent a change after the one before has accepted it.

use deltafan::cache::{ParameterView, Track};
use deltafan::node_group::{Condition, NodeMatch};
use deltafan::resource::Parameters;

use super::*;

/// Named canaries have IDs such as `canary-1`. Of the others half are in the second step.
fn world(shares: &[f64]) -> Fixture {
    let whole = regex::Regex::new("^(?:canary-.*)$").unwrap();
    let condition = Condition::new("node.id".parse().unwrap(), "canary-.*", whole);
    let named = Some(NodeMatch::new(vec![condition], 100));
    let mut fixture =
        Fixture::guarded(RolloutSettings { named, shares: shares.to_vec(), ..settings(&["cds"]) });
    begin(&mut fixture, "cds a:1");
    fixture
}

fn client(fixture: &Fixture, id: &str, protocol: Protocol) -> Client {
    let mut client = fixture.client_named(id, protocol);
    client.ask_or_change(fixture, "cds", "*");
    client.acked(fixture);
    client
}

/// A client of the second step, and one of none.
fn of_second_step_and_none(fixture: &Fixture, protocol: Protocol) -> [Client; 2] {
    let (mut found, mut none) = (None, None);
    for at in 0..100 {
        let before = status(fixture).canaries;
        let client = client(fixture, &format!("node-{at}"), protocol);
        let place = if status(fixture).canaries > before { &mut found } else { &mut none };
        place.get_or_insert(client);
    }
    [found.unwrap(), none.unwrap()]
}

/// Rejects responses with this resource, as `a:2`, and accepts the others.
fn answer(client: &mut Client, fixture: &Fixture, bad: &str) {
    while let Some(told) = client.poll(fixture) {
        if told.resources.iter().any(|(name, version)| format!("{name}:{version}") == bad) {
            client.nack_saying(fixture, &told, &[], "a: no such thing");
        } else {
            client.ack(fixture, &told, &[]);
        }
    }
}

#[test]
fn a_change_goes_from_step_to_step() {
    for protocol in BOTH {
        let mut fixture = world(&[0.5]);
        let mut canary = client(&fixture, "canary-1", protocol);
        let [mut second, mut other] = of_second_step_and_none(&fixture, protocol);
        try_change(&mut fixture, "cds a:2");
        for step in 0..3 {
            let clients = [&mut canary, &mut second, &mut other];
            for (at, client) in clients.into_iter().enumerate() {
                let expected: &[&str] = if at == step { &["cds a:2"] } else { &[] };
                assert_eq!(client.acked(&fixture), expected, "{at} in step {step}");
            }
            fixture.roll_out(WINDOW);
        }
        assert_eq!(status(&fixture).phase, Phase::Idle);
    }
}

/// The first step has accepted it, which runs another Envoy. All get the earlier content back, and the search asks both steps.
#[test]
fn a_change_that_a_later_step_rejects_is_taken_back_from_all() {
    let mut fixture = world(&[0.5]);
    let mut canary = client(&fixture, "canary-1", Protocol::Delta);
    let [mut second, mut other] = of_second_step_and_none(&fixture, Protocol::Delta);
    fixture.origin("cds a:2");
    try_change(&mut fixture, "cds b:2");
    canary.acked(&fixture);
    fixture.roll_out(WINDOW);
    let told = second.poll(&fixture).unwrap();
    second.nack_saying(&fixture, &told, &[], "a: no such thing");
    fixture.roll_out(WINDOW);
    assert_eq!(status(&fixture).phase, Phase::Held);
    for _ in 0..5 {
        fixture.roll_out(SECOND);
        canary.acked(&fixture);
        answer(&mut second, &fixture, "a:2");
    }
    let held: Vec<String> = status(&fixture).held.iter().map(|held| held.name.to_string()).collect();
    assert_eq!(held, ["a"]);
    assert_eq!(other.acked(&fixture), [""; 0]);
    try_change(&mut fixture, "cds a:3");
    for client in [&mut canary, &mut second] {
        assert_eq!(client.acked(&fixture), ["cds a:3"]);
        fixture.roll_out(WINDOW);
    }
    assert_eq!(other.acked(&fixture), ["cds a:3 b:2"]);
    assert_eq!(status(&fixture).phase, Phase::Idle);
}

/// It is gone, and the second step judges alone. When both are gone the trial waits.
#[test]
fn a_step_without_a_canary_is_skipped() {
    let mut fixture = world(&[0.5]);
    let canary = client(&fixture, "canary-1", Protocol::Delta);
    let [mut second, mut other] = of_second_step_and_none(&fixture, Protocol::Delta);
    drop(canary);
    try_change(&mut fixture, "cds a:2");
    assert_eq!((second.acked(&fixture), other.acked(&fixture)), (vec!["cds a:2".into()], vec![]));
    fixture.roll_out(WINDOW);
    assert_eq!(other.acked(&fixture), ["cds a:2"]);
    drop(second);
    try_change(&mut fixture, "cds a:3");
    fixture.roll_out(10 * WINDOW);
    assert_eq!(other.acked(&fixture), [""; 0]);
    let mut canary = client(&fixture, "canary-1", Protocol::Delta);
    assert_eq!(canary.acked(&fixture), [""; 0], "it got it with its first answer");
}

/// A relay that has just started, or a name that no client has.
#[test]
fn a_trial_waits_for_named_canaries_that_have_not_come_yet() {
    let mut fixture = world(&[0.0]);
    let mut other = client(&fixture, "other", Protocol::Delta);
    try_change(&mut fixture, "cds a:2");
    fixture.roll_out(10 * WINDOW);
    assert_eq!(other.acked(&fixture), [""; 0]);
    let mut canary = client(&fixture, "canary-1", Protocol::Delta);
    assert_eq!(canary.acked(&fixture), [""; 0], "its first answer has it");
    try_change(&mut fixture, "cds a:3");
    fixture.roll_out(WINDOW);
    assert_eq!(canary.acked(&fixture), ["cds a:3"]);
    fixture.roll_out(WINDOW);
    assert_eq!(other.acked(&fixture), ["cds a:3"]);
}

/// The first step ACKs whatever it is sent, as it has no traffic. The second one is silent, or rejects and is silent then.
#[test]
fn each_step_has_to_accept_a_change() {
    for rejects in [false, true] {
        let mut fixture = world(&[0.5]);
        let mut canary = client(&fixture, "canary-1", Protocol::Delta);
        let [mut second, mut other] = of_second_step_and_none(&fixture, Protocol::Delta);
        fixture.origin("cds a:2");
        try_change(&mut fixture, "cds b:2");
        canary.acked(&fixture);
        fixture.roll_out(WINDOW);
        let told = second.poll(&fixture).unwrap();
        if rejects {
            second.nack_saying(&fixture, &told, &[], "no such thing");
        }
        for _ in 0..200 {
            fixture.roll_out(SECOND);
            canary.acked(&fixture);
        }
        assert_eq!(other.acked(&fixture), [""; 0]);
        let status = status(&fixture);
        assert_eq!((status.held.len(), status.unanswered > 0), (if rejects { 2 } else { 0 }, !rejects));
    }
}

/// A change that the second step has accepted is given up in the next trial, which begins with the first.
#[test]
fn what_is_given_up_is_taken_back_from_all_steps() {
    let mut fixture = world(&[0.5]);
    let mut canary = client(&fixture, "canary-1", Protocol::Delta);
    let [mut second, _other] = of_second_step_and_none(&fixture, Protocol::Delta);
    fixture.origin("cds a:2");
    try_change(&mut fixture, "cds b:2");
    for _ in 0..100 {
        canary.acked(&fixture);
        answer(&mut second, &fixture, "b:2");
        fixture.roll_out(SECOND);
    }
    assert_eq!(status(&fixture).held.len(), 1);
    let mut late = client(&fixture, "canary-2", Protocol::Delta);
    try_change(&mut fixture, "cds b:3");
    answer(&mut late, &fixture, "b:3");
    answer(&mut canary, &fixture, "b:3");
    fixture.roll_out(TRIAL);
    assert!(fixture.order(Order::Discard(None, Note::default())));
    fixture.roll_out(10 * TRIAL);
    answer(&mut second, &fixture, "");
    let held = |track| {
        let view = ParameterView::uniform(Parameters::NONE).on(track);
        let snapshot = fixture.cache.find(&url("cds"), &view).unwrap().snapshot();
        ["a", "b"].map(|name| snapshot.by_name(name).present().map(|of| of.version().to_owned()))
    };
    assert_eq!(held(Track::Canary(1)), held(Track::Stable));
}
