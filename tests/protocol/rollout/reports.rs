//! Reports under the guard: which clients are kept on an earlier state, and when most resources of a type go.

use deltafan::cache::Withheld;
use deltafan::subscription::{ClientState, TypeProgress};

use super::*;

const NAMES: [&str; 20] =
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"];

/// State of a client that has accepted everything that it was sent.
fn state(fixture: &Fixture, client: &mut Client) -> ClientState {
    client.acked(fixture);
    let withheld = Withheld::of([&*fixture.cache]);
    TypeProgress::new(&client.session.types()[0]).state(&withheld)
}

/// Whether the canary, the other client, and clients that ask for `a` or for `b` are held back.
fn held_back(fixture: &Fixture, clients: &mut [Client]) -> Vec<bool> {
    let mut states = Vec::new();
    for client in clients {
        let state = state(fixture, client);
        assert!([ClientState::HeldBack, ClientState::Synced].contains(&state), "{state:?}");
        states.push(state == ClientState::HeldBack);
    }
    states
}

#[test]
fn a_client_is_held_back_while_it_runs_an_earlier_state_of_what_it_asks_for() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds"]);
        begin(&mut fixture, "cds a:1 b:1");
        let [mut canary, mut other] = canary_and_other(&fixture, protocol);
        canary.ask_or_change(&fixture, "cds", "*");
        other.ask_or_change(&fixture, "cds", "*");
        let [of_a, of_b] = ["a", "b"].map(|name| fixture.delta_of("cds", name));
        let mut clients = [canary, other, of_a, of_b];
        fixture.named("cds a:1 b:1");
        assert_eq!(held_back(&fixture, &mut clients), [false; 4]);
        // It waits for its trial, then only the canary has it.
        fixture.origin("cds a:2");
        assert_eq!(held_back(&fixture, &mut clients), [true, true, true, false]);
        fixture.roll_out(SECOND);
        let told = clients[0].poll(&fixture).unwrap();
        clients[0].nack_saying(&fixture, &told, &[], "Error adding/updating cluster(s) a: no such thing");
        assert_eq!(held_back(&fixture, &mut clients)[1..], [true, true, false]);
        // Taken back, the canary runs the last good state.
        fixture.roll_out(TRIAL);
        assert_eq!(held_back(&fixture, &mut clients), [true, true, true, false]);
        // A further change waits for the end of the hold.
        fixture.origin("cds b:2");
        assert_eq!(held_back(&fixture, &mut clients), [true; 4]);
        // Given up, `a` is still not what the control plane has; the other change goes its way.
        assert!(fixture.order(Order::Discard(None, Note::default())));
        fixture.roll_out(SECOND);
        assert_eq!(held_back(&fixture, &mut clients), [true; 4]);
        fixture.roll_out(TRIAL);
        assert_eq!(held_back(&fixture, &mut clients), [true, true, true, false]);
        fixture.origin("cds a:1");
        fixture.roll_out(TRIAL);
        assert_eq!(held_back(&fixture, &mut clients), [false; 4]);
    }
}

#[test]
fn removals_and_new_members_that_wait_hold_back_those_who_would_see_them() {
    let mut fixture = Fixture::guarded(RolloutSettings { max_removed: Some(0.4), ..settings(&["cds"]) });
    begin(&mut fixture, &format!("cds{}", versions(&NAMES, 1)));
    let [mut canary, mut other] = canary_and_other(&fixture, Protocol::Delta);
    let mut of_a = fixture.client_named("of-a", Protocol::Delta);
    canary.change(&fixture, "cds", "*");
    other.change(&fixture, "cds", "*");
    of_a.change(&fixture, "cds", "a");
    let mut clients = [canary, other, of_a];
    try_change(&mut fixture, "cds new:1");
    assert_eq!(held_back(&fixture, &mut clients), [false, true, false]);
    fixture.roll_out(TRIAL);
    assert_eq!(held_back(&fixture, &mut clients), [false; 3]);
    // The brake holds it before canaries get it.
    let gone: String = NAMES[1..].iter().map(|name| format!(" -{name}")).collect();
    try_change(&mut fixture, &format!("cds{gone}"));
    assert_eq!(held_back(&fixture, &mut clients), [true, true, false]);
}

/// A name of the wildcard set is another variant than the one that a client asks for by name.
#[test]
fn a_client_of_another_variant_is_not_held_back() {
    let mut fixture = guarded(&["cds"]);
    fixture.seen("env=prod", View::Wildcard, "cds a:1");
    fixture.known_to("env=prod", "cds");
    begin(&mut fixture, "cds a:1");
    let mut plain = fixture.client_named("plain", Protocol::Delta);
    plain.change(&fixture, "cds", "*");
    let mut prod = fixture.client_named("prod", Protocol::Delta);
    locate(&mut prod, &fixture, "cds", &[], &[("*", "env=prod")]);
    fixture.fill();
    let mut clients = [plain, prod];
    assert_eq!(held_back(&fixture, &mut clients), [false; 2]);
    fixture.seen("env=prod", View::Wildcard, "cds a:2");
    assert_eq!(held_back(&fixture, &mut clients), [false, true]);
}

fn removal(names: &[&str]) -> String {
    format!("cds{}", names.iter().map(|name| format!(" -{name}")).collect::<String>())
}

/// Lost clusters, as the fleet sees them.
fn lost(fixture: &Fixture) -> usize {
    fixture.cache.types().iter().map(|of| of.lost(fixture.now)).sum()
}

#[test]
fn a_mass_removal_is_reported_once_clients_are_told() {
    let all = format!("cds{}", versions(&NAMES, 1));
    let mut fixture = Fixture::new();
    begin(&mut fixture, &all);
    fixture.origin(&removal(&NAMES[..10]));
    assert_eq!(lost(&fixture), 0, "half");
    fixture.after(59 * SECOND);
    fixture.origin(&removal(&NAMES[10..11]));
    assert_eq!(lost(&fixture), 11);
    fixture.origin(&all);
    fixture.after(10 * 60 * SECOND);
    assert_eq!(lost(&fixture), 0, "they are back");
    // Of names that nobody asks for any more the relay knows nothing.
    let forget = |name: &&str| Op::Forget { view: View::Wildcard, name: (*name).into() };
    fixture.ops("cds", NAMES[..15].iter().map(forget).collect());
    assert_eq!(lost(&fixture), 0);

    for max_removed in [None, Some(0.9), Some(0.4)] {
        let mut fixture = Fixture::guarded(RolloutSettings { max_removed, ..settings(&["cds"]) });
        begin(&mut fixture, &all);
        let [mut canary, _] = canary_and_other(&fixture, Protocol::Delta);
        canary.change(&fixture, "cds", "*");
        canary.acked(&fixture);
        try_change(&mut fixture, &removal(&NAMES[..12]));
        canary.acked(&fixture);
        assert_eq!(lost(&fixture), 0, "only the canary was told");
        fixture.roll_out(TRIAL);
        assert_eq!(lost(&fixture), if max_removed == Some(0.4) { 0 } else { 12 });
    }
}
