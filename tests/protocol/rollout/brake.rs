//! Brake on removals: a change that removes too much reaches nobody, canaries included, until an operator decides or it comes back.

use deltafan::cache::HoldReason;

use super::*;

const ALL: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

fn removal(names: &[&str]) -> String {
    format!("cds{}", names.iter().map(|name| format!(" -{name}")).collect::<String>())
}

fn states(names: &[&str], version: u64) -> String {
    format!("cds{}", versions(names, version))
}

/// A fixture with these clusters, whose trials may remove two fifths of them, with a canary and another client.
fn world(names: &[&str], window: Duration, protocol: Protocol) -> (Fixture, [Client; 2]) {
    let mut fixture =
        Fixture::guarded(RolloutSettings { max_removed: Some(0.4), window, ..settings(&["cds"]) });
    begin(&mut fixture, &states(names, 1));
    let clients = with_all_clusters(&fixture, protocol);
    (fixture, clients)
}

fn quiet(fixture: &Fixture, clients: &mut [Client]) {
    clients.iter_mut().for_each(|client| assert_eq!(client.acked(fixture), [""; 0]));
}

#[test]
fn a_control_plane_that_empties_itself_empties_nobody() {
    for protocol in BOTH {
        for window in [WINDOW, Duration::ZERO] {
            let (mut fixture, mut clients) = world(&ALL, window, protocol);
            // Whatever else is in the trial waits, too.
            fixture.origin("cds new:1");
            try_change(&mut fixture, &removal(&ALL));
            fixture.roll_out(10 * TRIAL);
            quiet(&fixture, &mut clients);
            assert_eq!((status(&fixture).phase, status(&fixture).held.len()), (Phase::Held, 10));
            let mut late = fixture.client_named("late", protocol);
            late.ask_or_change(&fixture, "cds", "*");
            assert_eq!(late.acked(&fixture), [states(&ALL, 1)]);
            // All come back.
            fixture.origin(&states(&ALL, 1));
            fixture.roll_out(SECOND);
            let [canary, other] = &mut clients;
            let new =
                if protocol == Protocol::Delta { "cds new:1".to_owned() } else { states(&ALL, 1) + " new:1" };
            assert_eq!(canary.acked(&fixture), std::slice::from_ref(&new));
            fixture.roll_out(TRIAL);
            assert_eq!(other.acked(&fixture), [new]);
            assert_eq!(status(&fixture).phase, Phase::Idle);
        }
    }
}

#[test]
fn an_operator_lets_removals_through_or_discards_them() {
    for window in [WINDOW, Duration::ZERO] {
        for order in [Order::Release(None), Order::Discard(None, Note::default())] {
            let (mut fixture, mut clients) = world(&ALL, window, Protocol::Delta);
            try_change(&mut fixture, &removal(&ALL[..5]));
            quiet(&fixture, &mut clients);
            // Later removals are counted by themselves.
            fixture.origin(&removal(&ALL[5..9]));
            fixture.roll_out(SECOND);
            assert_eq!(status(&fixture).held.len(), 5);
            let is_release = matches!(order, Order::Release(_));
            assert!(fixture.order(order));
            fixture.roll_out(2 * SECOND);
            let [canary, other] = &mut clients;
            // Four of ten may go by themselves.
            let gone = if is_release { &ALL[..9] } else { &ALL[5..9] };
            assert_eq!(canary.acked(&fixture), [removal(gone)]);
            if window == WINDOW {
                assert_eq!(other.acked(&fixture), [""; 0], "canaries are sent it first");
            }
            fixture.roll_out(TRIAL);
            assert_eq!(other.acked(&fixture).len(), 1);
            assert_eq!(status(&fixture).phase, Phase::Idle);
            let mut late = fixture.client_named("late", Protocol::Delta);
            late.change(&fixture, "cds", "*");
            let left = if is_release { states(&["j"], 1) } else { states(&ALL[..5], 1) + " j:1" };
            assert_eq!(late.acked(&fixture), [left]);
        }
    }
}

#[test]
fn few_removals_are_tried_like_any_change() {
    for (all, removed) in [(&ALL[..], 4), (&ALL[..5], 2), (&ALL[..4], 4)] {
        let (mut fixture, [mut canary, mut other]) = world(all, WINDOW, Protocol::Delta);
        try_change(&mut fixture, &removal(&all[..removed]));
        assert_eq!(canary.acked(&fixture), [removal(&all[..removed])]);
        fixture.roll_out(TRIAL);
        assert_eq!(other.acked(&fixture), [removal(&all[..removed])]);
    }
    for (all, removed) in [(&ALL[..], 5), (&ALL[..5], 3)] {
        let (mut fixture, mut clients) = world(all, WINDOW, Protocol::Delta);
        try_change(&mut fixture, &removal(&all[..removed]));
        quiet(&fixture, &mut clients);
        // One comes back: the rest is few enough.
        fixture.origin(&states(&all[..1], 1));
        fixture.roll_out(SECOND);
        assert_eq!(clients[0].acked(&fixture), [removal(&all[1..removed])]);
        fixture.roll_out(TRIAL);
        assert_eq!(clients[1].acked(&fixture), [removal(&all[1..removed])]);
    }
}

/// A trial that begins again does not count what canaries have been sent already.
#[test]
fn a_repeated_trial_is_not_braked() {
    let (mut fixture, [canary, mut other]) = world(&ALL, WINDOW, Protocol::Delta);
    try_change(&mut fixture, &removal(&ALL[..4]));
    drop(canary);
    fixture.roll_out(TRIAL);
    fixture.origin(&removal(&ALL[4..8]));
    fixture.roll_out(3 * TRIAL);
    assert!(status(&fixture).unanswered > 1, "{:?}", status(&fixture));
    assert_eq!(other.acked(&fixture), [""; 0]);
    let mut canary = fixture.client_named("canary", Protocol::Delta);
    canary.change(&fixture, "cds", "*");
    assert_eq!(canary.acked(&fixture), [states(&ALL[8..], 1)]);
}

/// Canaries keep what they have, and their late answer counts.
#[test]
fn a_brake_keeps_what_is_on_trial() {
    let (mut fixture, [mut canary, mut other]) = world(&ALL, WINDOW, Protocol::Delta);
    try_change(&mut fixture, "cds a:2");
    let late = canary.poll(&fixture).unwrap();
    fixture.origin(&removal(&ALL[1..6]));
    fixture.roll_out(TRIAL);
    assert_eq!(status(&fixture).reason, Some(HoldReason::Removals));
    canary.ack(&fixture, &late, &[]);
    fixture.origin(&states(&ALL[1..6], 1));
    fixture.roll_out(2 * TRIAL);
    assert_eq!(other.acked(&fixture), ["cds a:2"]);
}
