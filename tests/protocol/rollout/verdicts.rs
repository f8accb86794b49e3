//! Answers of canaries: which change each is about, and for how much it counts.

use deltafan::cache::RolloutStatus;

use super::*;

/// A guard of clusters, with all clients for canaries.
fn all_canaries() -> Fixture {
    let types = [url("cds")].into_iter().collect();
    let rollout =
        RolloutSettings { types, share: 1.0, window: WINDOW, threshold: 0.1, counts: Arc::default() };
    Fixture::guarded(rollout)
}

fn status(fixture: &Fixture) -> RolloutStatus {
    fixture.cache.rollout().unwrap().status(fixture.now)
}

/// Names and versions that are held.
fn held_changes(fixture: &Fixture) -> Vec<String> {
    let show = |version: Option<&str>| version.unwrap_or("gone").to_owned();
    status(fixture)
        .held
        .iter()
        .map(|held| format!("{}:{}", held.name, show(held.version.as_deref())))
        .collect()
}

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
    fixture.origin("cds a:2");
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
    fixture.origin("cds a:2");
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

/// A response that is answered late, when the next one has been sent because its time was over.
#[test]
fn a_late_rejection_counts() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds"]);
        begin(&mut fixture, "cds a:1 b:1");
        let mut canary = fixture.client_named("canary", protocol);
        canary.ask_or_change(&fixture, "cds", "*");
        canary.acked(&fixture);
        fixture.origin("cds a:2");
        let first = canary.poll(&fixture).unwrap();
        fixture.roll_out(6 * SECOND);
        fixture.origin("cds b:2");
        let second = canary.poll(&fixture).expect("the time to answer is over");
        canary.nack_saying(&fixture, &first, &[], "a: bad");
        if protocol == Protocol::Delta {
            canary.ack(&fixture, &second, &[]);
        }
        fixture.roll_out(TRIAL);
        assert_eq!(held_changes(&fixture), ["a:2"]);
    }
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
    canary.poll(&fixture).unwrap();
    canary.change(&fixture, "cds", "-b");
    fixture.roll_out(TRIAL);
    assert_eq!(other.acked(&fixture), ["cds b:3"]);
}
