//! Holds by order, and earlier states: clients stay where an operator wants them, until a release or something newer.

use deltafan::cache::{EarlierState, Op, ParameterView, StandingOrder};
use deltafan::resource::{Parameters, Resource};

use super::*;

fn note() -> Note {
    Note { at: 1_700_000_000, by: "alice".into() }
}

fn hold(fixture: &mut Fixture, kind: &str) {
    assert!(fixture.order(Order::Hold(Some(url(kind)), note())));
    fixture.roll_out(Duration::ZERO);
}

fn release(fixture: &mut Fixture) {
    assert!(fixture.order(Order::Release(None)));
    fixture.roll_out(Duration::ZERO);
}

fn discard(fixture: &mut Fixture) {
    assert!(fixture.order(Order::Discard(None, note())));
    fixture.roll_out(Duration::ZERO);
}

/// The newest of the origin.
fn present(fixture: &Fixture, kind: &str, name: &str) -> Arc<Resource> {
    let of = fixture.cache.find(&url(kind), &ParameterView::uniform(Parameters::NONE)).unwrap();
    of.snapshot().by_name(name).present().cloned().unwrap()
}

fn earlier(kind: &str, name: &str, resource: Option<Arc<Resource>>, is_member: bool) -> EarlierState {
    EarlierState { type_url: url(kind), parameters: Parameters::NONE, name: name.into(), resource, is_member }
}

fn restore(fixture: &mut Fixture, name: &str, resource: Option<Arc<Resource>>) {
    let state = earlier("cds", name, resource, true);
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
    let state = |resource| earlier("cds", "b", resource, true);
    assert!(fixture.order(Order::Hold(Some(url("cds")), note())));
    assert!(fixture.order(Order::Restore(vec![state(None)], note())));
    assert!(fixture.order(Order::Restore(vec![state(Some(first))], note())));
    assert!(fixture.order(Order::Release(Some(url("lds")))), "an order before it may hold something");
    fixture.roll_out(Duration::ZERO);
    assert!(!fixture.order(Order::Release(Some(url("lds")))), "nothing of the type is held");
    assert_eq!(acked(&mut canary, &fixture), ["cds a:1 b:1"]);
    assert_eq!(acked(&mut other, &fixture), ["cds b:1"], "it was gone for a moment");
    assert!(!fixture.order(Order::Hold(Some(url("eds")), note())), "the type is not guarded");
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

/// Clients by name and by wildcard: a resource that did not exist goes for all of them, and a member that was none stays one.
#[test]
fn an_earlier_state_is_that_of_all_ways_to_ask() {
    let (mut fixture, [mut canary, mut other]) = world(Protocol::Delta);
    let mut by_name = fixture.client_named("by-name", Protocol::Delta);
    by_name.change(&fixture, "cds", "a");
    fixture.named("cds a:1");
    assert_eq!(acked(&mut by_name, &fixture), ["cds a:1"]);
    let first = present(&fixture, "cds", "a");
    fixture.named("cds a:2");
    try_change(&mut fixture, "cds a:2");
    acked(&mut canary, &fixture);
    fixture.roll_out(TRIAL);
    for client in [&mut other, &mut by_name] {
        assert_eq!(acked(client, &fixture), ["cds a:2"]);
    }
    let state = |resource| earlier("cds", "a", resource, false);
    for (resource, change) in [(Some(first), "cds a:1"), (None, "cds -a")] {
        assert!(fixture.order(Order::Restore(vec![state(resource)], note())));
        fixture.roll_out(Duration::ZERO);
        let mut told = [&mut canary, &mut other, &mut by_name].map(|client| acked(client, &fixture));
        fixture.roll_out(3 * SECOND);
        let clients = [&mut canary, &mut other, &mut by_name];
        told.iter_mut().zip(clients).for_each(|(told, client)| told.extend(acked(client, &fixture)));
        assert_eq!(told, [[change]; 3]);
    }
}

/// All clients leave, and the relay unsubscribes: the order is not over.
#[test]
fn an_order_outlives_the_clients_that_asked() {
    let mut fixture = guarded(&["rds"]);
    let clients = |fixture: &Fixture| {
        let mut clients = canary_and_other(fixture, Protocol::Delta);
        clients.iter_mut().for_each(|client| _ = client.change(fixture, "rds", "r"));
        clients
    };
    let mut asking = clients(&fixture);
    fixture.named("rds r:1");
    asking.iter_mut().for_each(|client| assert_eq!(acked(client, &fixture), ["rds r:1"]));
    let first = present(&fixture, "rds", "r");
    fixture.named("rds r:2");
    fixture.roll_out(SECOND);
    let state = earlier("rds", "r", Some(first), false);
    assert!(fixture.order(Order::Restore(vec![state], note())));
    fixture.roll_out(SECOND);
    drop(asking);
    fixture.ops("rds", vec![Op::Forget { view: View::Named, name: "r".into() }]);
    let mut asking = clients(&fixture);
    fixture.named("rds r:2");
    asking.iter_mut().for_each(|client| assert_eq!(acked(client, &fixture), ["rds r:1"]));
    assert_eq!(orders(&fixture).len(), 1);
}

/// Two operators: one gives up a failed change of a type, the other holds another type.
#[test]
fn a_discard_of_a_type_leaves_the_others_on_hold() {
    let (mut fixture, [mut canary, _other]) = world(Protocol::Delta);
    hold(&mut fixture, "rds");
    fixture.named("rds r:2");
    try_change(&mut fixture, "cds a:2");
    let told = canary.poll(&fixture).unwrap();
    canary.nack_saying(&fixture, &told, &[], "no such thing");
    fixture.roll_out(TRIAL);
    assert!(fixture.order(Order::Discard(Some(url("cds")), note())));
    fixture.roll_out(SECOND);
    let kinds: Vec<_> = orders(&fixture).iter().map(|order| order.kind.label()).collect();
    assert_eq!((kinds, status(&fixture).on_hold), (vec!["hold", "discard"], 1));
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
