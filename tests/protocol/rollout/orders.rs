//! Holds by order, and earlier states: clients stay where an operator wants them, until a release or something newer.

use deltafan::cache::{EarlierState, ParameterView, StandingOrder};
use deltafan::resource::{Parameters, Resource};

use super::verdicts::status;
use super::*;

fn note() -> Note {
    Note { at: 1_700_000_000, by: "alice".into() }
}

fn hold(fixture: &mut Fixture, kind: &str) {
    assert!(fixture.order(Order::Hold(url(kind), note())));
    fixture.roll_out(Duration::ZERO);
}

fn release(fixture: &mut Fixture) {
    assert!(fixture.order(Order::Release(None)));
    fixture.roll_out(Duration::ZERO);
}

fn discard(fixture: &mut Fixture) {
    assert!(fixture.order(Order::Discard(note())));
    fixture.roll_out(Duration::ZERO);
}

/// The newest of the origin.
fn present(fixture: &Fixture, kind: &str, name: &str) -> Arc<Resource> {
    let of = fixture.cache.find(&url(kind), &ParameterView::uniform(Parameters::NONE)).unwrap();
    of.snapshot().by_name(name).present().cloned().unwrap()
}

fn restore(fixture: &mut Fixture, name: &str, resource: Option<Arc<Resource>>) {
    let state = EarlierState {
        type_url: url("cds"),
        parameters: Parameters::NONE,
        name: name.into(),
        resource,
        is_member: true,
    };
    assert!(fixture.order(Order::Restore(vec![state], note())));
    fixture.roll_out(Duration::ZERO);
}

fn orders(fixture: &Fixture) -> Vec<StandingOrder> {
    fixture.cache.rollout().unwrap().standing_orders()
}

fn acked(client: &mut Client, fixture: &Fixture) -> Vec<String> {
    client.acked_with(fixture, &[("rds", &["r"])])
}

/// A fixture with two clusters, a canary and another client that have them.
fn world(protocol: Protocol) -> (Fixture, [Client; 2]) {
    let mut fixture = guarded(&["cds", "rds"]);
    begin(&mut fixture, "cds a:1 b:1");
    fixture.named("rds r:1");
    let mut clients = canary_and_other(&fixture, protocol);
    for client in &mut clients {
        client.ask_or_change(&fixture, "cds", "*");
        client.ask_or_change(&fixture, "rds", "r");
        acked(client, &fixture);
    }
    (fixture, clients)
}

fn ends_idle(fixture: &Fixture) {
    assert_eq!((status(fixture).phase, orders(fixture)), (Phase::Idle, vec![]));
}

#[test]
fn a_hold_keeps_a_change_from_all_clients_until_it_is_released() {
    for protocol in BOTH {
        let (mut fixture, [mut canary, mut other]) = world(protocol);
        hold(&mut fixture, "cds");
        assert_eq!(status(&fixture).phase, Phase::Held);
        try_change(&mut fixture, "cds a:2");
        fixture.roll_out(TRIAL);
        let mut late = fixture.client_named("late", protocol);
        late.ask_or_change(&fixture, "cds", "*");
        assert_eq!(acked(&mut late, &fixture), ["cds a:1 b:1"]);
        assert_eq!((acked(&mut canary, &fixture), acked(&mut other, &fixture)), (vec![], vec![]));
        // Other types go on.
        fixture.named("rds r:2");
        fixture.roll_out(3 * SECOND);
        assert_eq!(
            (acked(&mut canary, &fixture), acked(&mut other, &fixture)),
            (vec!["rds r:2".into()], vec![])
        );
        fixture.roll_out(TRIAL);
        assert_eq!(acked(&mut other, &fixture), ["rds r:2"]);

        release(&mut fixture);
        let change = if protocol == Protocol::Delta { "cds a:2" } else { "cds a:2 b:1" };
        assert_eq!(
            (acked(&mut canary, &fixture), acked(&mut other, &fixture)),
            (vec![change.to_owned()], vec![])
        );
        fixture.roll_out(TRIAL);
        assert_eq!(acked(&mut other, &fixture), [change]);
        ends_idle(&fixture);
    }
}

/// Canaries get the earlier content back, and what else is on trial goes on.
#[test]
fn a_hold_during_a_trial_takes_the_type_back_from_canaries() {
    let (mut fixture, [mut canary, mut other]) = world(Protocol::Delta);
    fixture.origin("cds a:2 c:2");
    fixture.named("rds r:2");
    fixture.roll_out(SECOND);
    assert_eq!(acked(&mut canary, &fixture), ["cds a:2 c:2", "rds r:2"]);
    hold(&mut fixture, "cds");
    assert_eq!(acked(&mut canary, &fixture), ["cds a:1"]);
    fixture.roll_out(3 * SECOND);
    assert_eq!(acked(&mut canary, &fixture), ["cds -c"], "routes leave it first");
    fixture.roll_out(TRIAL);
    assert_eq!(acked(&mut other, &fixture), ["rds r:2"]);
    release(&mut fixture);
    assert_eq!(acked(&mut canary, &fixture), ["cds a:2 c:2"]);
    fixture.roll_out(TRIAL);
    assert_eq!(acked(&mut other, &fixture), ["cds a:2 c:2"]);
    ends_idle(&fixture);
}

#[test]
fn what_waits_for_a_hold_is_discarded_and_the_next_change_is_tried() {
    let (mut fixture, [mut canary, mut other]) = world(Protocol::Delta);
    hold(&mut fixture, "cds");
    try_change(&mut fixture, "cds a:2 -b");
    discard(&mut fixture);
    fixture.roll_out(TRIAL);
    assert_eq!(status(&fixture).phase, Phase::Idle);
    assert_eq!(orders(&fixture).len(), 2, "{:?}", orders(&fixture));
    assert_eq!((acked(&mut canary, &fixture), acked(&mut other, &fixture)), (vec![], vec![]));
    try_change(&mut fixture, "cds a:3");
    assert_eq!(acked(&mut canary, &fixture), ["cds a:3"]);
    fixture.roll_out(TRIAL);
    assert_eq!(acked(&mut other, &fixture), ["cds a:3"]);
    assert_eq!(orders(&fixture).len(), 1, "the removal stays discarded");
}

#[test]
fn an_earlier_state_stays_until_the_origin_sends_something_newer() {
    for protocol in BOTH {
        let (mut fixture, [mut canary, mut other]) = world(protocol);
        let first = present(&fixture, "cds", "a");
        try_change(&mut fixture, "cds a:2");
        acked(&mut canary, &fixture);
        fixture.roll_out(TRIAL);
        acked(&mut other, &fixture);
        restore(&mut fixture, "a", Some(first));
        let all = |version: u64| match protocol {
            Protocol::Delta => format!("cds a:{version}"),
            Protocol::Sotw => format!("cds a:{version} b:1"),
        };
        assert_eq!((acked(&mut canary, &fixture), acked(&mut other, &fixture)), (vec![all(1)], vec![all(1)]));
        assert_eq!(orders(&fixture)[0].note, note());
        // The control plane repeats itself, as after a reconnect.
        fixture.answer(View::Wildcard, "cds a:2 b:1");
        fixture.roll_out(TRIAL);
        let mut late = fixture.client_named("late", protocol);
        late.ask_or_change(&fixture, "cds", "*");
        assert_eq!(acked(&mut late, &fixture), ["cds a:1 b:1"]);
        assert_eq!((acked(&mut canary, &fixture), acked(&mut other, &fixture)), (vec![], vec![]));
        assert_eq!(status(&fixture).phase, Phase::Idle);
        try_change(&mut fixture, "cds a:3");
        assert_eq!((acked(&mut canary, &fixture), acked(&mut other, &fixture)), (vec![all(3)], vec![]));
        fixture.roll_out(TRIAL);
        assert_eq!(acked(&mut other, &fixture), [all(3)]);
        ends_idle(&fixture);
    }
}

/// Without a newer one, a release tries the control plane's.
#[test]
fn an_earlier_state_that_is_released_gives_way_to_the_newest() {
    let (mut fixture, [mut canary, mut other]) = world(Protocol::Delta);
    let [first, second] = ["a", "b"].map(|name| present(&fixture, "cds", name));
    fixture.origin("cds a:2 -b c:2");
    fixture.roll_out(2 * SECOND);
    acked(&mut canary, &fixture);
    // During the trial, too.
    restore(&mut fixture, "a", Some(first));
    restore(&mut fixture, "b", Some(second));
    restore(&mut fixture, "c", None);
    assert_eq!(acked(&mut canary, &fixture), ["cds a:1 b:1"]);
    fixture.roll_out(3 * SECOND);
    assert_eq!(acked(&mut canary, &fixture), ["cds -c"]);
    fixture.roll_out(TRIAL);
    assert_eq!(acked(&mut other, &fixture), [""; 0]);
    assert_eq!(orders(&fixture).len(), 3);
    release(&mut fixture);
    assert_eq!(
        (acked(&mut canary, &fixture), acked(&mut other, &fixture)),
        (vec!["cds a:2 c:2".into()], vec![])
    );
    fixture.roll_out(3 * SECOND);
    assert_eq!(acked(&mut canary, &fixture), ["cds -b"]);
    fixture.roll_out(TRIAL);
    assert_eq!(acked(&mut other, &fixture), ["cds a:2 c:2"]);
    fixture.roll_out(3 * SECOND);
    assert_eq!(acked(&mut other, &fixture), ["cds -b"]);
    ends_idle(&fixture);
}

/// The operator gives up a failed trial by restoring what it replaced.
#[test]
fn a_restored_name_leaves_a_failed_trial() {
    let (mut fixture, [mut canary, mut other]) = world(Protocol::Delta);
    let first = present(&fixture, "cds", "a");
    try_change(&mut fixture, "cds a:2");
    let told = canary.poll(&fixture).unwrap();
    canary.nack_saying(&fixture, &told, &[], "no such thing");
    fixture.roll_out(TRIAL);
    acked(&mut canary, &fixture);
    restore(&mut fixture, "a", Some(first));
    fixture.roll_out(2 * SECOND);
    assert_eq!(status(&fixture).phase, Phase::Idle);
    assert_eq!((acked(&mut canary, &fixture), acked(&mut other, &fixture)), (vec![], vec![]));
    try_change(&mut fixture, "cds b:2");
    assert_eq!(acked(&mut canary, &fixture), ["cds b:2"]);
}

#[test]
fn two_operators_at_once_are_followed_in_turn() {
    let (mut fixture, [mut canary, mut other]) = world(Protocol::Delta);
    try_change(&mut fixture, "cds a:2");
    acked(&mut canary, &fixture);
    let first = present(&fixture, "cds", "b");
    let state = |resource| EarlierState {
        type_url: url("cds"),
        parameters: Parameters::NONE,
        name: "b".into(),
        resource,
        is_member: true,
    };
    assert!(fixture.order(Order::Hold(url("cds"), note())));
    assert!(fixture.order(Order::Restore(vec![state(None)], note())));
    assert!(fixture.order(Order::Restore(vec![state(Some(first))], note())));
    assert!(!fixture.order(Order::Release(Some(url("lds")))), "nothing of the type is held");
    fixture.roll_out(Duration::ZERO);
    assert_eq!(acked(&mut canary, &fixture), ["cds a:1 b:1"]);
    assert_eq!(acked(&mut other, &fixture), ["cds b:1"], "it was gone for a moment");
    assert!(!fixture.order(Order::Hold(url("eds"), note())), "the type is not guarded");
    release(&mut fixture);
    assert_eq!(acked(&mut canary, &fixture), ["cds a:2"]);
    ends_in(&mut fixture, &mut other, "cds a:2");
}

fn ends_in(fixture: &mut Fixture, other: &mut Client, change: &str) {
    fixture.roll_out(TRIAL);
    assert_eq!(acked(other, fixture), [change]);
    ends_idle(fixture);
}

#[test]
fn a_release_ends_all_that_holds() {
    let (mut fixture, [mut canary, mut other]) = world(Protocol::Delta);
    try_change(&mut fixture, "cds a:2");
    let told = canary.poll(&fixture).unwrap();
    canary.nack_saying(&fixture, &told, &[], "no such thing");
    fixture.roll_out(TRIAL);
    hold(&mut fixture, "rds");
    fixture.named("rds r:2");
    fixture.roll_out(TRIAL);
    acked(&mut canary, &fixture);
    release(&mut fixture);
    assert_eq!(acked(&mut other, &fixture), ["cds a:2"], "it was on trial");
    fixture.roll_out(SECOND);
    assert_eq!(acked(&mut canary, &fixture), ["cds a:2", "rds r:2"]);
    ends_in(&mut fixture, &mut other, "rds r:2");
}

/// The snapshot has the stable content, and the orders.
#[test]
fn orders_stand_after_a_restart() {
    let (mut fixture, _) = world(Protocol::Delta);
    let first = present(&fixture, "cds", "a");
    try_change(&mut fixture, "cds a:2");
    restore(&mut fixture, "a", Some(first));
    hold(&mut fixture, "rds");
    let stood = orders(&fixture);
    assert_eq!(stood.len(), 2);

    let mut fixture = guarded(&["cds", "rds"]);
    begin(&mut fixture, "cds a:1 b:1");
    fixture.named("rds r:1");
    fixture.cache.rollout().unwrap().restore_orders(stood.clone());
    let mut clients = canary_and_other(&fixture, Protocol::Delta);
    for client in &mut clients {
        client.change(&fixture, "cds", "*");
        client.change(&fixture, "rds", "r");
        acked(client, &fixture);
    }
    fixture.answer(View::Wildcard, "cds a:2 b:1");
    fixture.named("rds r:2");
    fixture.roll_out(TRIAL);
    clients.iter_mut().for_each(|client| assert_eq!(acked(client, &fixture), [""; 0]));
    assert_eq!(orders(&fixture), stood);
    release(&mut fixture);
    assert_eq!(acked(&mut clients[0], &fixture), ["cds a:2", "rds r:2"]);
}
