//! Order across the types of an aggregated stream: R-ADS.

use std::time::Duration;

use deltafan::cache::{Protocol, View};
use deltafan::subscription::{NextStep, Overdue};
use deltafan_test_support::fixture::{Client, Fixture, show};

pub(crate) const NAMES: &[(&str, &[&str])] =
    &[("rds", &["r"]), ("eds", &["eds-a"]), ("vhds", &["v"]), ("sds", &["s"])];

/// A stream of each protocol that is subscribed to clusters, listeners, and by name to the rest.
fn both(fixture: &Fixture, named: &[&str]) -> [Client; 2] {
    let (mut sotw, mut delta) = (fixture.sotw(), fixture.delta());
    for short in ["cds", "lds"] {
        sotw.ask(fixture, short, &[]);
        delta.change(fixture, short, "");
    }
    for (short, names) in NAMES.iter().filter(|(short, _)| named.contains(short)) {
        sotw.ask(fixture, short, names);
        delta.change(fixture, short, &names.join(" "));
    }
    [sotw, delta]
}

/// A relay whose clients' routes do not wait until clusters are warm.
fn without_wait() -> Fixture {
    let mut fixture = Fixture::knowing(&["cds", "lds"]);
    fixture.rules.warm_wait = Duration::ZERO;
    fixture
}

#[test]
fn r_ads_01_waiting_types_are_said_in_the_order_of_dependence() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]);
    let [mut sotw, mut delta] = both(&fixture, &["sds", "vhds", "rds", "eds"]);
    fixture.named("sds s:1");
    fixture.named("vhds v:1");
    fixture.named("rds r:1");
    fixture.origin("lds l:1");
    fixture.named("eds eds-a:1");
    fixture.origin("cds eds-a:1");
    let order = ["cds eds-a:1", "eds eds-a:1", "lds l:1", "rds r:1", "vhds v:1", "sds s:1"];
    assert_eq!(sotw.acked_with(&fixture, NAMES), order);
    assert_eq!(delta.acked(&fixture), order);
}

#[test]
fn r_ads_02_a_cds_that_is_never_acked_holds_routes_back_for_a_time_only() {
    let mut fixture = without_wait().with_members("cds x:1");
    let [_, mut client] = both(&fixture, &["rds"]);
    assert_eq!(client.told(&fixture), ["cds x:1", "lds"]);
    fixture.origin("cds y:1");
    fixture.named("rds r:y");
    assert!(client.told(&fixture).is_empty());
    fixture.after(fixture.rules.ack_timeout);
    assert_eq!(client.told(&fixture), ["cds y:1", "rds r:y"]);
}

#[test]
fn r_ads_03_of_very_many_names_removals_that_wait_for_an_answer_hold_routes_back_too() {
    let all: Vec<String> = (0..1100).map(|n| format!("e{n}")).collect();
    for (names, is_many) in [(&all[..2], false), (&all[..], true)] {
        let mut fixture = without_wait();
        let [_, mut client] = both(&fixture, &["rds"]);
        fixture.named("rds r:0");
        client.acked(&fixture);
        fixture.named(&format!("eds {}:1", names.join(":1 ")));
        client.change(&fixture, "eds", &names.join(" "));
        let endpoints = client.poll(&fixture).unwrap();
        fixture.named("eds -e0");
        assert!(client.told(&fixture).is_empty(), "the answer is awaited");
        fixture.named("rds r:1");
        let route: &[&str] = if is_many { &[] } else { &["rds r:1"] };
        assert_eq!(client.told(&fixture), route, "{} names", names.len());
        client.ack(&fixture, &endpoints, &[]);
        let told = client.acked(&fixture);
        assert_eq!(told.last().map(String::as_str), Some("eds -e0"), "removals come last");
        assert_eq!(told.contains(&"rds r:1".to_owned()), is_many);
    }
}

/// `[CDS+Y][RDS X→Y][CDS−X]` for clients that fell behind.
pub(crate) fn move_from_x_to_y(fixture: &mut Fixture) {
    fixture.origin("cds y:1");
    fixture.named("rds r:y");
    fixture.origin("cds -x");
}

#[test]
fn r_ads_03_removals_go_in_reverse_order() {
    let mut fixture = without_wait().with_members("cds eds-a:1").with_members("lds l:1");
    fixture.named("eds eds-a:1");
    fixture.named("rds r:1");
    let [mut sotw, mut delta] = both(&fixture, &["rds", "eds"]);
    sotw.acked_with(&fixture, NAMES);
    delta.acked(&fixture);
    fixture.origin("cds -eds-a");
    fixture.named("eds -eds-a");
    fixture.origin("lds -l");
    fixture.named("rds -r");
    assert_eq!(delta.acked(&fixture), ["rds -r", "lds -l", "eds -eds-a", "cds -eds-a"]);
    assert_eq!(sotw.acked_with(&fixture, NAMES), ["lds", "cds"]);
}

#[test]
fn r_ads_04_per_type_streams_do_not_wait_for_each_other() {
    let fixture = Fixture::new().with_named("rds r:1");
    let mut client = fixture.client(Protocol::Delta, Some("rds"));
    client.change(&fixture, "rds", "r");
    assert_eq!(client.told(&fixture), ["rds r:1"], "clusters are not known, and no matter");
}

#[test]
fn r_ads_05_v1_endpoints_follow_a_changed_cluster_unchanged() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds eds-a:1 plain:1");
    fixture.named("eds eds-a:1");
    let [mut sotw, mut delta] = both(&fixture, &["eds"]);
    sotw.acked_with(&fixture, NAMES);
    delta.acked(&fixture);
    fixture.origin("cds eds-a:2");
    assert_eq!(sotw.acked_with(&fixture, NAMES), ["cds eds-a:2 plain:1", "eds eds-a:1"]);
    assert_eq!(delta.acked(&fixture), ["cds eds-a:2", "eds eds-a:1"]);
    fixture.origin("cds plain:2");
    assert_eq!(delta.acked(&fixture), ["cds plain:2"], "no cluster of EDS");
    assert_eq!(sotw.acked_with(&fixture, NAMES), ["cds eds-a:2 plain:2"]);
}

#[test]
fn r_ads_05_v1_endpoints_follow_a_cluster_that_changed_between_two_streams() {
    let fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds eds-a:2").with_named("eds eds-a:1");
    // The endpoints are asked for and answered first; then the client shows which clusters it holds.
    let mut client = fixture.delta_of("eds", "eds-a");
    assert_eq!(client.acked(&fixture), ["eds eds-a:1"]);
    client.resume(&fixture, "cds", &[], &[("eds-a", "1")]);
    assert_eq!(client.acked(&fixture), ["cds eds-a:2", "eds eds-a:1"]);
}

#[test]
fn r_ads_05_an_unsolicited_resend_is_fanned_out() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]).with_named("eds eds-a:1");
    let [mut sotw, mut delta] = both(&fixture, &["eds"]);
    sotw.acked_with(&fixture, NAMES);
    delta.acked(&fixture);
    fixture.resend(View::Named, "eds eds-a:1");
    assert_eq!(sotw.acked_with(&fixture, NAMES), ["eds eds-a:1"]);
    assert_eq!(delta.acked(&fixture), ["eds eds-a:1"]);
    fixture.named("eds eds-a:1");
    assert!(
        sotw.told(&fixture).is_empty() && delta.told(&fixture).is_empty(),
        "an answer to our own question"
    );
}

#[test]
fn r_ads_07_types_that_do_not_depend_on_each_other_do_not_wait() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds eds-a:1");
    for mut client in both(&fixture, &["eds", "sds"]) {
        // The answer of neither CDS nor EDS comes.
        assert_eq!(show(&client.poll(&fixture).unwrap()), "cds eds-a:1");
        fixture.origin("cds b:1");
        fixture.named("eds eds-a:1");
        fixture.named("sds s:1");
        assert_eq!(client.told(&fixture)[..2], ["eds eds-a:1", "sds s:1"]);
        fixture.origin("cds -b");
        fixture.named("eds -eds-a");
        fixture.named("sds -s");
    }
}

#[test]
fn r_ads_03_names_that_are_never_answered_hold_routes_back_for_a_time_only() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1").with_named("rds r:1");
    let mut client = fixture.delta_of("cds", "*");
    client.change(&fixture, "rds", "r");
    assert_eq!(client.acked(&fixture), ["cds a:1", "rds r:1"]);
    // On demand: a cluster after the other is asked for, and the origin says of none that it does not exist.
    client.change(&fixture, "cds", "n0");
    fixture.named("rds r:2");
    let asked = fixture.now;
    let mut told = Vec::new();
    for number in 1..20 {
        fixture.after(Duration::from_secs(1));
        told.extend(client.acked(&fixture));
        if !told.is_empty() {
            break;
        }
        client.change(&fixture, "cds", &format!("n{number}"));
    }
    assert_eq!(told, ["rds r:2"], "nothing within {:?}", fixture.now - asked);
    assert!(fixture.now - asked <= fixture.rules.ack_timeout);
    // Even if there is a new name whenever the stream is looked at.
    for number in 100..130 {
        fixture.named(&format!("rds r:{number}"));
        let asked = fixture.now;
        while client.acked(&fixture).is_empty() {
            fixture.after(Duration::from_millis(100));
            client.change(&fixture, "cds", &format!("n{number}-{:?}", fixture.now - asked));
            assert!(fixture.now - asked <= fixture.rules.ack_timeout + Duration::from_secs(1));
        }
        fixture.after(Duration::from_millis(700));
    }
}

/// A client that came back to a relay that knows everything but the endpoints of `name`.
fn comes_back(fixture: &Fixture, protocol: Protocol, name: &str) -> Client {
    let mut client = fixture.client(protocol, None);
    match protocol {
        Protocol::Delta => {
            client.change(fixture, "cds", "*");
            client.change(fixture, "eds", &format!("eds-a {name}"));
            client.change(fixture, "lds", "*");
        }
        Protocol::Sotw => {
            client.ask(fixture, "cds", &[]);
            client.ask(fixture, "eds", &["eds-a", name]);
            client.ask(fixture, "lds", &[]);
        }
    }
    client
}

#[test]
fn r_ads_03_a_name_that_no_cluster_asks_for_holds_nothing_back() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds eds-a:1 b:1");
        fixture.origin("lds l:1");
        fixture.named("eds eds-a:1");
        // Endpoints of a cluster that is gone, and of one that has no endpoints of its own.
        for name in ["eds-gone", "b"] {
            let mut client = comes_back(&fixture, protocol, name);
            let told = client.acked_with(&fixture, &[("eds", &["eds-a", name])]);
            assert_eq!(told, ["cds b:1 eds-a:1", "eds eds-a:1", "lds l:1"], "{protocol:?} {name}");
        }
    }
}

#[test]
fn r_ads_03_endpoints_on_a_stream_without_clusters_hold_routes_back() {
    let mut fixture = Fixture::knowing(&["lds"]).with_members("lds l:1");
    let mut client = fixture.delta_of("eds", "static");
    client.change(&fixture, "lds", "*");
    assert!(client.acked(&fixture).is_empty(), "its clusters may be of its own configuration");
    let due = fixture.now + Duration::from_secs(1);
    while fixture.now < due {
        assert!(client.session.take_delays().is_empty());
        let NextStep::Wait(Some(until)) = client.next(&fixture) else { panic!("it waits") };
        fixture.now = until;
    }
    assert_eq!(fixture.now, due);
    for delays in [1, 0] {
        assert!(client.acked(&fixture).is_empty());
        assert_eq!(client.session.take_delays().len(), delays, "counted once");
    }
    fixture.after(fixture.rules.ack_timeout);
    assert_eq!(client.acked(&fixture), ["lds l:1"]);
}

/// Sends everything, and then a change to a cluster `y` and a route to it, with `x` gone.
fn moves(fixture: &mut Fixture, client: &mut Client) {
    client.acked_with(fixture, NAMES);
    move_from_x_to_y(fixture);
}

fn back(fixture: &mut Fixture) {
    fixture.origin("cds x:1");
    fixture.named("rds r:x");
    fixture.origin("cds -y");
}

pub(crate) fn knowing_x() -> Fixture {
    let mut fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds keep:1 x:1").with_named("rds r:x");
    fixture.named("eds eds-a:1");
    fixture
}

#[test]
fn r_ads_03_routes_and_removals_wait_for_a_time_only() {
    let mut fixture = knowing_x();
    for mut client in both(&fixture, &["rds"]) {
        moves(&mut fixture, &mut client);
        client.poll(&fixture).unwrap();
        assert!(client.told(&fixture).is_empty());
        fixture.after(fixture.rules.warm_wait - Duration::from_millis(1));
        assert!(client.told(&fixture).is_empty());
        fixture.after(Duration::from_millis(1));
        assert!(client.overdue.is_empty(), "all has waited for what it depends on");
        assert_eq!(client.told(&fixture), ["rds r:y"]);
        fixture.after(fixture.rules.warm_wait);
        assert_eq!(client.told(&fixture).len(), 1, "the removal");
        assert_eq!(client.overdue, [Overdue::Clusters, Overdue::Routes]);
        // It may answer what it is sent now.
        fixture.origin("cds z:1");
        fixture.named("rds r:z");
        fixture.after(fixture.rules.ack_timeout);
        assert_eq!(client.told(&fixture).len(), 1, "the cluster");
        fixture.after(fixture.rules.warm_wait - Duration::from_millis(1));
        assert!(client.told(&fixture).is_empty(), "the route does not come right behind it");
        fixture.after(Duration::from_millis(1));
        assert_eq!(client.told(&fixture), ["rds r:z"]);
        fixture.origin("cds -z");
        back(&mut fixture);
    }
}

/// A name that a client asked for by name, it may have been told before the name was a member of the wildcard set.
#[test]
fn r_ads_03_a_union_has_all_that_was_told_by_name() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]).with_named("cds n:1 k:1").with_named("rds r:n");
    let mut client = fixture.sotw_of("cds", &["n", "k"]);
    client.ask(&fixture, "rds", &["r"]);
    client.acked_with(&fixture, &[("cds", &["n", "k"]), ("rds", &["r"])]);
    fixture.origin("cds n:1 k:1");
    client.acked_with(&fixture, &[("cds", &["n", "k"]), ("rds", &["r"])]);
    fixture.named("rds r:0");
    client.poll(&fixture).unwrap();
    fixture.named("rds r:k");
    fixture.answer(View::Named, "cds -n k:2");
    fixture.origin("cds -n k:2");
    assert_eq!(client.told(&fixture), ["cds k:2 n:1"], "the route that leads to n is not replaced yet");
}

/// A cluster to which a route was sent before it was there may be in use before it is accepted.
#[test]
fn r_ads_03_a_cluster_whose_route_came_first_is_removed_like_any_other() {
    let mut fixture = knowing_x();
    for (mut client, w) in both(&fixture, &["rds"]).into_iter().zip(["eds-w1", "eds-w2"]) {
        client.acked_with(&fixture, NAMES);
        fixture.after(Duration::from_secs(60));
        fixture.named(&format!("rds r:{w}"));
        assert_eq!(client.acked_with(&fixture, NAMES), [format!("rds r:{w}")], "its cluster is late");
        fixture.after(Duration::from_secs(2));
        fixture.origin(&format!("cds {w}:1 cold-{w}:1"));
        client.poll(&fixture).unwrap();
        fixture.named("rds r:x");
        fixture.origin(&format!("cds -{w}"));
        fixture.after(Duration::from_millis(200));
        assert!(client.told(&fixture).is_empty(), "r leads to {w} until it is sent the other route");
        fixture.origin(&format!("cds -cold-{w}"));
        fixture.after(Duration::from_secs(60));
    }
}

/// Nothing of a response that was rejected will be warm.
#[test]
fn r_ads_03_a_client_that_rejects_clusters_is_sent_its_routes() {
    let mut fixture = knowing_x();
    for mut client in both(&fixture, &["rds"]) {
        moves(&mut fixture, &mut client);
        let clusters = client.poll(&fixture).unwrap();
        client.nack(&fixture, &clusters, &[]);
        assert_eq!(client.poll(&fixture).map(|told| show(&told)), Some("rds r:y".to_owned()));
        assert_eq!(client.overdue, [Overdue::Clusters]);
        back(&mut fixture);
    }
}

/// gRPC asks for clusters because of its routes. A client that asks for single clusters has its own order as well.
#[test]
fn r_ads_03_routes_of_clients_that_ask_for_clusters_afterwards_do_not_wait() {
    let mut fixture = knowing_x();
    fixture.named("cds x:1");
    let mut grpc = fixture.client_as("gRPC Go", Protocol::Delta, None);
    let mut named = fixture.delta();
    let mut wildcard = fixture.client_as("gRPC Go", Protocol::Delta, None);
    for (client, clusters) in [(&mut grpc, "x"), (&mut named, "x"), (&mut wildcard, "*")] {
        client.change(&fixture, "rds", "r");
        client.change(&fixture, "cds", clusters);
        client.acked(&fixture);
    }
    fixture.named("cds x:2");
    fixture.origin("cds x:2");
    fixture.named("rds r:y");
    for client in [&mut grpc, &mut named, &mut wildcard] {
        assert_eq!(client.told(&fixture), ["cds x:2", "rds r:y"]);
    }
}

/// Clusters that change faster than a client answers are no reason to keep its routes from it.
#[test]
fn r_ads_03_routes_wait_for_a_time_only_while_clusters_change_without_end() {
    let mut fixture = knowing_x();
    for mut client in both(&fixture, &["rds"]) {
        client.acked_with(&fixture, NAMES);
        fixture.origin("cds z:0");
        fixture.named("rds r:y");
        let (step, mut told) = (Duration::from_millis(500), client.poll(&fixture).unwrap());
        assert!(client.told(&fixture).is_empty());
        let begun = fixture.now;
        for round in 1.. {
            fixture.origin(&format!("cds z:{round}"));
            fixture.after(step);
            client.ack(&fixture, &told, &[]);
            told = client.poll(&fixture).unwrap();
            let route = client.poll(&fixture).map(|told| show(&told));
            assert!(
                route.is_some() || fixture.now < begun + fixture.rules.warm_wait + step,
                "it waits for ever"
            );
            if route.is_some() {
                assert_eq!(
                    (route.as_deref(), fixture.now),
                    (Some("rds r:y"), begun + fixture.rules.warm_wait)
                );
                break;
            }
        }
        fixture.origin("cds -z");
        fixture.named("rds r:x");
    }
}

#[test]
fn r_ads_03_removals_wait_for_a_time_only_while_routes_change_without_end() {
    let mut fixture = knowing_x();
    for mut client in both(&fixture, &["rds"]) {
        client.acked_with(&fixture, NAMES);
        fixture.named("rds r:0");
        fixture.origin("cds -x");
        let (step, mut told) = (Duration::from_millis(500), client.poll(&fixture).unwrap());
        let longest = fixture.rules.ack_timeout + 2 * fixture.rules.warm_wait;
        let begun = fixture.now;
        for round in 1.. {
            fixture.named(&format!("rds r:{round}"));
            fixture.after(step);
            client.ack(&fixture, &told, &["r"]);
            told = client.poll(&fixture).unwrap();
            assert_eq!(show(&told), format!("rds r:{round}"));
            let removal = client.poll(&fixture);
            assert!(removal.is_some() || fixture.now < begun + longest, "it waits for ever");
            if removal.is_some() {
                break;
            }
        }
        back(&mut fixture);
    }
}

/// Word that a name does not exist is an answer, for which a client waits.
#[test]
fn r_ads_03_answers_that_names_do_not_exist_do_not_wait() {
    let mut fixture = knowing_x();
    fixture.named("eds -nope");
    fixture.named("cds -nope");
    let mut client = fixture.delta();
    for (short, names) in [("cds", "*"), ("eds", "eds-a"), ("rds", "r")] {
        client.change(&fixture, short, names);
    }
    client.acked(&fixture);
    client.change(&fixture, "eds", "nope");
    assert_eq!(client.acked(&fixture), ["eds -nope"]);
    client.change(&fixture, "cds", "nope");
    assert_eq!(client.acked(&fixture), ["cds -nope"]);
}

/// A relay has no traffic: it keeps clusters, and has routes wait, at its own clients. It may show the node of one of these.
#[test]
fn r_ads_03_a_relay_that_is_a_client_does_not_wait() {
    for (user_agent, says_so) in [("deltafan", false), ("envoy", true)] {
        let mut fixture = knowing_x();
        let mut relay = fixture.client_as(user_agent, Protocol::Delta, None);
        relay.session = relay.session.of_relay(says_so);
        for (short, names) in [("cds", "*"), ("lds", "*"), ("rds", "r")] {
            relay.change(&fixture, short, names);
        }
        relay.acked(&fixture);
        move_from_x_to_y(&mut fixture);
        assert_eq!(relay.poll(&fixture).map(|told| show(&told)), Some("cds y:1".to_owned()));
        assert_eq!(relay.poll(&fixture).map(|told| show(&told)), Some("rds r:y".to_owned()));
        let clusters = relay.newest("cds").clone();
        relay.ack(&fixture, &clusters, &[]);
        assert_eq!(relay.acked(&fixture), ["cds -x"]);
    }
}

/// An Envoy that comes back works on with its clusters. gRPC has routes before them, and the wait may be off.
#[test]
fn r_ads_03_only_routes_to_all_clusters_wait_long_for_these() {
    for (user_agent, wait, waits_long) in [("envoy", 5, true), ("envoy", 0, false), ("gRPC Go", 5, false)] {
        let mut fixture = Fixture::knowing(&["lds"]);
        fixture.rules.warm_wait = Duration::from_secs(wait);
        fixture.named("rds r:x");
        let mut client = fixture.client_as(user_agent, Protocol::Delta, None);
        client.resume(&fixture, "cds", if user_agent == "envoy" { &["*"] } else { &["x"] }, &[("x", "1")]);
        client.change(&fixture, "rds", "r");
        assert!(client.told(&fixture).is_empty());
        fixture.after(fixture.rules.ack_timeout);
        assert_eq!(client.told(&fixture).is_empty(), waits_long, "{user_agent} {wait}");
        fixture.after(fixture.rules.longest_silence());
        assert_eq!(client.told(&fixture).is_empty(), !waits_long);
    }
}

#[test]
fn r_ads_03_clusters_asked_for_meanwhile_do_not_prolong_the_wait_of_a_client_that_comes_back() {
    let mut fixture = Fixture::knowing(&["lds"]).with_named("rds r:x");
    let mut client = fixture.delta();
    client.resume(&fixture, "cds", &["*"], &[("x", "1")]);
    client.change(&fixture, "rds", "r");
    let end = fixture.now + fixture.rules.longest_silence();
    for round in 0.. {
        assert!(client.told(&fixture).is_empty());
        client.change(&fixture, "cds", &format!("on-demand-{round}"));
        fixture.after(2 * fixture.rules.ack_timeout + Duration::from_secs(1));
        if fixture.now >= end {
            break;
        }
    }
    assert_eq!(client.told(&fixture), ["rds r:x"]);
}
