//! Answers of canaries: which change each is about, and for how much it counts.

use deltafan::cache::{Change, Completeness, Op, View};

use super::*;

/// Clients that are not sent a name do not outvote those that are.
#[test]
fn only_clients_that_see_a_change_accept_it() {
    let mut fixture = all_canaries();
    begin(&mut fixture, "cds a:1");
    fixture.named("cds x:1");
    let mut clients: Vec<Client> =
        (0..12).map(|at| fixture.client_named(&format!("envoy-{at}"), Protocol::Delta)).collect();
    let mut on_demand = fixture.client_named("on-demand", Protocol::Delta);
    clients.iter_mut().for_each(|client| drop(client.change(&fixture, "cds", "*")));
    on_demand.change(&fixture, "cds", "x");
    clients.iter_mut().chain([&mut on_demand]).for_each(|client| drop(client.acked(&fixture)));
    fixture.named("cds x:2");
    try_change(&mut fixture, "cds a:2");
    clients.iter_mut().for_each(|client| drop(client.acked(&fixture)));
    let told = on_demand.poll(&fixture).unwrap();
    on_demand.nack(&fixture, &told, &[]);
    fixture.roll_out(TRIAL);
    assert_eq!(held_changes(&fixture), ["x:2"]);
    assert_eq!(status(&fixture).held[0].accepted, 0);
}

/// A client that accepts again and again, on stream after stream, counts once.
#[test]
fn a_client_that_accepts_is_counted_once() {
    let mut fixture = all_canaries();
    begin(&mut fixture, "cds a:1");
    let mut clients = ["good", "bad"].map(|id| fixture.client_named(id, Protocol::Delta));
    for client in &mut clients {
        client.change(&fixture, "cds", "*");
        client.acked(&fixture);
    }
    try_change(&mut fixture, "cds a:2");
    let told = clients[1].poll(&fixture).unwrap();
    clients[1].nack(&fixture, &told, &[]);
    for _ in 0..20 {
        let mut good = fixture.client_named("good", Protocol::Delta);
        good.change(&fixture, "cds", "*");
        good.acked(&fixture);
    }
    fixture.roll_out(TRIAL);
    assert_eq!(held_changes(&fixture), ["a:2"]);
    assert_eq!((status(&fixture).held[0].accepted, status(&fixture).held[0].rejected), (1, 1));
}

/// A control plane repeats what it has, after a reconnect say: a canary is not sent that again, and does not answer again.
#[test]
fn a_change_that_the_origin_repeats_keeps_its_verdict() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds"]);
        begin(&mut fixture, "cds a:1 b:1");
        let mut canary = fixture.client_named("canary", protocol);
        canary.ask_or_change(&fixture, "cds", "*");
        canary.acked(&fixture);
        try_change(&mut fixture, "cds a:2");
        let told = canary.poll(&fixture).unwrap();
        canary.nack_saying(&fixture, &told, &[], "a: bad");
        fixture.answer(View::Wildcard, "cds a:2 b:1");
        canary.acked(&fixture);
        fixture.roll_out(2 * TRIAL);
        assert_eq!(held_changes(&fixture), ["a:2"]);
    }
}

/// A response that is answered late, when the next one has been sent because its time was over.
#[test]
fn a_late_rejection_counts() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds"]);
        fixture.named("cds a:1 b:1");
        let names: &[&str] = &["a", "b", "x"];
        let mut canary = fixture.client_named("canary", protocol);
        match protocol {
            Protocol::Delta => canary.change(&fixture, "cds", &names.join(" ")),
            Protocol::Sotw => canary.ask(&fixture, "cds", names),
        };
        canary.acked_with(&fixture, &[("cds", names)]);
        try_change(&mut fixture, "cds a:2");
        let first = canary.poll(&fixture).unwrap();
        fixture.roll_out(6 * SECOND);
        // A first answer is sent at once.
        fixture.named("cds x:1");
        let second = canary.poll(&fixture).expect("the time to answer is over");
        canary.nack_saying(&fixture, &first, names, "a: bad");
        if protocol == Protocol::Delta {
            canary.ack(&fixture, &second, &[]);
        }
        fixture.roll_out(TRIAL);
        assert_eq!(held_changes(&fixture), ["a:2"]);
    }
}

/// A canary that hangs, or died of the change, accepts nothing: the trial is repeated until one answers.
#[test]
fn a_change_that_no_canary_answers_does_not_spread() {
    for dies in [false, true] {
        let mut fixture = guarded(&["cds"]);
        begin(&mut fixture, "cds a:1");
        let clients = with_all_clusters(&fixture, Protocol::Delta);
        let [mut canary, mut other] = clients;
        try_change(&mut fixture, "cds a:2");
        canary.poll(&fixture).unwrap();
        if dies {
            drop(canary);
            canary = fixture.client_named("unrelated", Protocol::Delta);
        }
        fixture.roll_out(5 * TRIAL);
        assert_eq!(other.acked(&fixture), [""; 0]);
        assert!(status(&fixture).unanswered > 2, "{:?}", status(&fixture));
        if dies {
            canary = fixture.client_named("canary", Protocol::Delta);
            canary.change(&fixture, "cds", "*");
            canary.acked(&fixture);
        } else {
            let told = canary.newest("cds").clone();
            canary.ack(&fixture, &told, &[]);
        }
        fixture.roll_out(TRIAL);
        assert_eq!(other.acked(&fixture), ["cds a:2"]);
        assert_eq!(status(&fixture).unanswered, 0);
    }
}

#[test]
fn an_operator_releases_a_change_that_no_canary_answers() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1");
    let mut clients = with_all_clusters(&fixture, Protocol::Delta);
    let [canary, other] = &mut clients;
    try_change(&mut fixture, "cds a:2");
    canary.poll(&fixture).unwrap();
    assert!(!fixture.order(Order::Release(None)), "the canary may still answer");
    fixture.roll_out(TRIAL);
    assert!(!fixture.order(Order::Discard(None, Note::default())), "nothing is held");
    assert!(fixture.order(Order::Release(None)));
    fixture.roll_out(2 * SECOND);
    assert_eq!(other.acked(&fixture), ["cds a:2"]);
}

/// Names that no canary asks for have nobody to answer for them.
#[test]
fn a_change_that_no_canary_asks_for_spreads() {
    let mut fixture = guarded(&["cds"]);
    fixture.named("cds a:1 b:1");
    let mut clients = canary_and_other(&fixture, Protocol::Delta);
    for (client, name) in clients.iter_mut().zip(["a", "b"]) {
        client.change(&fixture, "cds", name);
        client.acked(&fixture);
    }
    let [canary, other] = &mut clients;
    fixture.named("cds b:2");
    fixture.roll_out(TRIAL);
    assert_eq!(other.acked(&fixture), ["cds b:2"]);
    // Nor does one that the canary lets go.
    canary.change(&fixture, "cds", "b");
    canary.acked(&fixture);
    fixture.named("cds b:3");
    fixture.roll_out(SECOND);
    let told = canary.poll(&fixture).unwrap();
    canary.change(&fixture, "cds", "-b");
    canary.ack(&fixture, &told, &[]);
    fixture.roll_out(TRIAL);
    assert_eq!(other.acked(&fixture), ["cds b:3"]);
}

/// The type is asked for as wildcard and by name, so the origin sends each change twice, in either order. It is one change.
#[test]
fn the_second_copy_of_a_change_discards_no_verdict() {
    for (first, second) in [(View::Wildcard, View::Named), (View::Named, View::Wildcard)] {
        let mut fixture = guarded(&["cds"]);
        begin(&mut fixture, "cds a:1 b:1");
        fixture.named("cds a:1");
        let [mut canary, mut other] = with_all_clusters(&fixture, Protocol::Delta);
        fixture.resend(first, "cds a:2");
        fixture.roll_out(SECOND);
        let mut nack = |fixture: &Fixture| {
            let told = canary.poll(fixture);
            told.map(|told| canary.nack_saying(fixture, &told, &[], "a is bad")).is_some()
        };
        let was_sent = nack(&fixture);
        fixture.resend(second, "cds a:2");
        fixture.roll_out(SECOND);
        assert_ne!(nack(&fixture), was_sent, "canaries are sent it once");
        fixture.roll_out(TRIAL);
        assert_eq!(held_changes(&fixture), ["a:2"]);
        assert!(other.acked(&fixture).is_empty(), "every canary rejected it");
    }
}

/// A name leaves the wildcard set while its answer by name is newer, as some control planes never take that back by name.
#[test]
fn a_client_that_accepts_a_removal_accepts_no_content_by_name() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1 b:1");
    fixture.named("cds a:1");
    let [mut canary, mut other] = canary_and_other(&fixture, Protocol::Delta);
    for (client, names) in [(&mut canary, "*"), (&mut other, "a")] {
        client.change(&fixture, "cds", names);
        client.acked(&fixture);
    }
    fixture.origin("cds a:2");
    fixture.resend(View::Named, "cds a:2");
    fixture.origin("cds -a");
    for _ in 0..3 {
        fixture.roll_out(SECOND);
        canary.acked(&fixture);
        fixture.roll_out(TRIAL);
        assert!(other.acked(&fixture).is_empty(), "no canary accepted it");
    }
    fixture.named("cds -a");
    for _ in 0..3 {
        fixture.roll_out(TRIAL);
        canary.acked(&fixture);
    }
    assert_eq!(other.acked(&fixture), ["cds -a"]);
}

/// All clients leave while changes are tried, the relay lets go of what they asked for, and they come back: the set that is complete
/// has all members, and a name that is asked for is answered.
#[test]
fn a_set_that_is_let_go_during_a_trial_comes_back_whole() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1 b:1");
    fixture.named("cds x:1");
    let mut canary = fixture.client_named("canary", Protocol::Delta);
    canary.change(&fixture, "cds", "* x");
    canary.acked(&fixture);
    fixture.origin("cds a:2");
    fixture.named("cds x:2");
    fixture.roll_out(SECOND);
    let told = canary.poll(&fixture).unwrap();
    canary.nack(&fixture, &told, &[]);
    drop(canary);
    fixture.roll_out(TRIAL);
    assert_eq!(held_changes(&fixture), ["a:2", "x:2"]);
    let forget = |view, name: &str| Op::Forget { view, name: name.into() };
    let ops = vec![forget(View::Wildcard, "a"), forget(View::Wildcard, "b"), forget(View::Named, "x")];
    let wildcard_known = Some(Completeness::Unknown);
    fixture.apply("cds", Change { ops, wildcard_known, ..Change::default() });
    let mut clients = canary_and_other(&fixture, Protocol::Sotw);
    let on_demand = &mut fixture.client_named("on-demand", Protocol::Delta);
    on_demand.change(&fixture, "cds", "x");
    for client in &mut clients {
        client.ask(&fixture, "cds", &[]);
    }
    fixture.answer(View::Wildcard, "cds a:2 b:1");
    fixture.known("cds");
    fixture.named("cds x:2");
    for client in &mut clients {
        assert_eq!(client.acked(&fixture), ["cds a:2 b:1"]);
    }
    assert_eq!(on_demand.acked(&fixture), ["cds x:2"]);
}

/// The first wildcard comes to a set of which names are held, or change with it: they are in it as the others have them.
#[test]
fn a_wildcard_that_comes_later_shows_the_last_good_version_of_a_name() {
    for (is_tried, is_held) in [(true, true), (true, false), (false, false)] {
        let mut fixture = guarded(&["cds"]);
        fixture.named("cds a:1");
        let mut clients = canary_and_other(&fixture, Protocol::Delta);
        for client in &mut clients {
            client.change(&fixture, "cds", "a");
            client.acked(&fixture);
        }
        let [canary, other] = &mut clients;
        if is_tried {
            fixture.named("cds a:2");
            fixture.roll_out(2 * SECOND);
        }
        if is_held {
            let told = canary.poll(&fixture).unwrap();
            canary.nack(&fixture, &told, &[]);
            fixture.roll_out(TRIAL);
            assert_eq!(held_changes(&fixture), ["a:2"]);
        }
        let mut late = fixture.client_named("late", Protocol::Sotw);
        late.ask(&fixture, "cds", &[]);
        fixture.answer(View::Wildcard, "cds a:2 b:1");
        fixture.known("cds");
        assert_eq!(late.acked(&fixture), ["cds a:1 b:1"]);
        assert_eq!(other.acked(&fixture), [""; 0]);
        fixture.roll_out(SECOND);
        canary.acked(&fixture);
        if is_held {
            assert!(fixture.order(Order::Release(None)));
        }
        fixture.roll_out(2 * TRIAL);
        canary.acked(&fixture);
        assert_eq!(late.acked(&fixture), ["cds a:2 b:1"]);
        assert_eq!(other.acked(&fixture), ["cds a:2"]);
    }
}

/// The newest version has no time any more: neither has the last good one, which the origin keeps with it.
#[test]
fn the_last_good_version_loses_its_time_with_the_newest() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1@5000");
    let mut canary = fixture.client_named("canary", Protocol::Delta);
    canary.change(&fixture, "cds", "*");
    canary.acked(&fixture);
    let mut other = fixture.client_with(&["xds.config.supports-resource-ttl"], Protocol::Delta);
    other.change(&fixture, "cds", "*");
    assert_eq!(other.acked(&fixture), ["cds a:1@5000"]);
    fixture.roll_out(SECOND);
    fixture.origin("cds a:2");
    canary.acked(&fixture);
    assert_eq!(other.acked(&fixture), ["cds a:~1"], "a heartbeat without a time");
}
