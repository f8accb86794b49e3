//! Order across the types of an aggregated stream: R-ADS.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use deltafan::cache::{Change, Op, Protocol, Resend, View};
use deltafan::resource::Resource;
use deltafan::subscription::NextStep;

use crate::support::{Bed, Client, show, url};
use crate::wire;

const NAMES: &[(&str, &[&str])] = &[("rds", &["r"]), ("eds", &["eds-a"]), ("vhds", &["v"]), ("sds", &["s"])];

/// A stream of each protocol that is subscribed to clusters, listeners, and by name to the rest.
fn both(bed: &Bed, named: &[&str]) -> [Client; 2] {
    let (mut sotw, mut delta) = (bed.sotw(), bed.delta());
    for short in ["cds", "lds"] {
        sotw.ask(bed, short, &[]);
        delta.change(bed, short, "");
    }
    for (short, names) in NAMES.iter().filter(|(short, _)| named.contains(short)) {
        sotw.ask(bed, short, names);
        delta.change(bed, short, &names.join(" "));
    }
    [sotw, delta]
}

#[test]
fn r_ads_01_what_waits_is_said_in_the_order_of_dependence() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    let [mut sotw, mut delta] = both(&bed, &["sds", "vhds", "rds", "eds"]);
    bed.named("sds s:1");
    bed.named("vhds v:1");
    bed.named("rds r:1");
    bed.origin("lds l:1");
    bed.named("eds eds-a:1");
    bed.origin("cds eds-a:1");
    let order = ["cds eds-a:1", "eds eds-a:1", "lds l:1", "rds r:1", "vhds v:1", "sds s:1"];
    assert_eq!(sotw.acked_with(&bed, NAMES), order);
    assert_eq!(delta.acked(&bed), order);
}

#[test]
fn r_ads_02_a_type_that_follows_clusters_waits_for_a_gated_cds() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds x:1");
    bed.named("rds r:x");
    for mut client in both(&bed, &["rds"]) {
        let clusters = client.poll(&bed).unwrap();
        assert_eq!(client.told(&bed), ["lds", "rds r:x"]);
        let (lds, rds) = (client.newest("lds").clone(), client.newest("rds").clone());
        client.ack(&bed, &lds, &[]);
        client.ack(&bed, &rds, &["r"]);
        // The cluster that the route needs cannot be said yet: the response before it is not answered.
        bed.origin("cds y:1");
        bed.named("rds r:y");
        assert!(client.told(&bed).is_empty());
        client.ack(&bed, &clusters, &[]);
        let told = client.acked_with(&bed, NAMES);
        assert!(told[0].starts_with("cds ") && told[0].contains("y:1"), "{told:?}");
        assert_eq!(told[1..], ["rds r:y"]);
        bed.origin("cds -y");
        bed.named("rds r:x");
    }
}

#[test]
fn r_ads_02_a_cds_that_is_never_acked_holds_routes_back_for_a_time_only() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds x:1");
    let [_, mut client] = both(&bed, &["rds"]);
    assert_eq!(client.told(&bed), ["cds x:1", "lds"]);
    bed.origin("cds y:1");
    bed.named("rds r:y");
    assert!(client.told(&bed).is_empty());
    bed.after(bed.rules.ack_timeout);
    assert_eq!(client.told(&bed), ["cds y:1", "rds r:y"]);
}

#[test]
fn r_ads_03_of_very_many_names_removals_that_wait_for_an_answer_hold_routes_back_too() {
    let all: Vec<String> = (0..1100).map(|n| format!("e{n}")).collect();
    for (names, is_many) in [(&all[..2], false), (&all[..], true)] {
        let mut bed = Bed::knowing(&["cds", "lds"]);
        let [_, mut client] = both(&bed, &["rds"]);
        bed.named("rds r:0");
        client.acked(&bed);
        bed.named(&format!("eds {}:1", names.join(":1 ")));
        client.change(&bed, "eds", &names.join(" "));
        let endpoints = client.poll(&bed).unwrap();
        bed.named("eds -e0");
        assert!(client.told(&bed).is_empty(), "the answer is awaited");
        bed.named("rds r:1");
        let route: &[&str] = if is_many { &[] } else { &["rds r:1"] };
        assert_eq!(client.told(&bed), route, "{} names", names.len());
        client.ack(&bed, &endpoints, &[]);
        let told = client.acked(&bed);
        assert_eq!(told.last().map(String::as_str), Some("eds -e0"), "removals come last");
        assert_eq!(told.contains(&"rds r:1".to_owned()), is_many);
    }
}

/// `[CDS+Y][RDS X→Y][CDS−X]` for clients that fell behind.
fn move_from_x_to_y(bed: &mut Bed) {
    bed.origin("cds y:1");
    bed.named("rds r:y");
    bed.origin("cds -x");
}

#[test]
fn r_ads_03_coalescing_keeps_make_before_break() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds keep:1 x:1");
    bed.named("rds r:x");
    let [mut sotw, mut delta] = both(&bed, &["rds"]);
    sotw.acked_with(&bed, NAMES);
    delta.acked(&bed);
    move_from_x_to_y(&mut bed);
    assert_eq!(sotw.acked_with(&bed, NAMES), ["cds keep:1 x:1 y:1", "rds r:y", "cds keep:1 y:1"]);
    assert_eq!(delta.acked(&bed), ["cds y:1", "rds r:y", "cds -x"]);
    bed.after(Duration::from_secs(60));
    assert!(sotw.told(&bed).is_empty() && delta.told(&bed).is_empty());
}

#[test]
fn r_ads_03_removals_wait_for_a_route_that_is_gated() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds keep:1 x:1");
    bed.named("rds r:x");
    for mut client in both(&bed, &["rds"]) {
        while let Some(told) = client.poll(&bed) {
            // The route is not answered.
            if told.type_url.kind().short() != "rds" {
                client.ack(&bed, &told, &[]);
            }
        }
        let route = client.newest("rds").clone();
        move_from_x_to_y(&mut bed);
        let clusters = client.poll(&bed).unwrap();
        assert!(!clusters.removed.contains(&"x".to_owned()));
        client.ack(&bed, &clusters, &[]);
        assert!(client.told(&bed).is_empty(), "the removal waits with the route");
        client.ack(&bed, &route, &["r"]);
        let told = client.acked_with(&bed, NAMES);
        assert_eq!(told[0], "rds r:y");
        assert!(told[1].starts_with("cds ") && told.len() == 2, "{told:?}");
        bed.origin("cds x:1");
        bed.named("rds r:x");
        bed.origin("cds -y");
    }
}

#[test]
fn r_ads_03_removals_go_in_reverse_order() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds eds-a:1");
    bed.origin("lds l:1");
    bed.named("eds eds-a:1");
    bed.named("rds r:1");
    let [mut sotw, mut delta] = both(&bed, &["rds", "eds"]);
    sotw.acked_with(&bed, NAMES);
    delta.acked(&bed);
    bed.origin("cds -eds-a");
    bed.named("eds -eds-a");
    bed.origin("lds -l");
    bed.named("rds -r");
    assert_eq!(delta.acked(&bed), ["rds -r", "lds -l", "eds -eds-a", "cds -eds-a"]);
    assert_eq!(sotw.acked_with(&bed, NAMES), ["lds", "cds"]);
}

#[test]
fn r_ads_03_a_removal_that_was_taken_back_while_it_waited_is_not_said() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds x:1");
    bed.named("rds r:x");
    for mut client in both(&bed, &["rds"]) {
        client.acked_with(&bed, NAMES);
        move_from_x_to_y(&mut bed);
        let clusters = client.poll(&bed).unwrap();
        client.ack(&bed, &clusters, &[]);
        bed.origin("cds x:2");
        let told = client.acked_with(&bed, NAMES);
        assert!(told[0].contains("x:2"), "{told:?}");
        assert_eq!(told[1..], ["rds r:y"]);
        bed.origin("cds x:1 -y");
        bed.named("rds r:x");
    }
}

#[test]
fn r_ads_04_per_type_streams_do_not_wait_for_each_other() {
    let mut bed = Bed::new();
    bed.named("rds r:1");
    let mut client = bed.client(Protocol::Delta, Some("rds"));
    client.change(&bed, "rds", "r");
    assert_eq!(client.told(&bed), ["rds r:1"], "clusters are not known, and no matter");
}

#[test]
fn r_ads_05_v1_endpoints_follow_a_changed_cluster_unchanged() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds eds-a:1 plain:1");
    bed.named("eds eds-a:1");
    let [mut sotw, mut delta] = both(&bed, &["eds"]);
    sotw.acked_with(&bed, NAMES);
    delta.acked(&bed);
    bed.origin("cds eds-a:2");
    assert_eq!(sotw.acked_with(&bed, NAMES), ["cds eds-a:2 plain:1", "eds eds-a:1"]);
    assert_eq!(delta.acked(&bed), ["cds eds-a:2", "eds eds-a:1"]);
    bed.origin("cds plain:2");
    assert_eq!(delta.acked(&bed), ["cds plain:2"], "no cluster of EDS");
    assert_eq!(sotw.acked_with(&bed, NAMES), ["cds eds-a:2 plain:2"]);
}

#[test]
fn r_ads_05_v1_endpoints_are_repeated_to_those_that_were_sent_the_cluster_alone() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds plain:1 eds-m:1");
    bed.named("cds eds-a:1 eds-b:1");
    bed.named("eds eds-a:1 eds-b:1 eds-m:1");
    let endpoints: [(&str, &[&str]); 2] = [("eds", &["eds-a", "eds-b", "eds-m"]), ("cds", &["eds-a"])];
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        // Of which clusters a client is told, then whether it is sent the endpoints of `eds-a` and of the member again.
        for (clusters, of_a, of_member) in
            [("", false, false), ("eds-b", false, false), ("eds-a", true, false), ("*", false, true)]
        {
            let mut client = bed.client(protocol, None);
            match protocol {
                _ if clusters.is_empty() => {}
                Protocol::Sotw if clusters == "*" => drop(client.ask(&bed, "cds", &[])),
                Protocol::Sotw => drop(client.ask(&bed, "cds", &[clusters])),
                Protocol::Delta => drop(client.change(&bed, "cds", clusters)),
            }
            match protocol {
                Protocol::Sotw => client.ask(&bed, "eds", endpoints[0].1),
                Protocol::Delta => client.change(&bed, "eds", "eds-a eds-b eds-m"),
            };
            let asked = if clusters == "*" { Vec::new() } else { vec![clusters] };
            let names = [endpoints[0], ("cds", &asked[..])];
            client.acked_with(&bed, &names);
            let again = |told: &[String], name: &str| told.contains(&format!("eds {name}:1"));
            bed.named("cds eds-a:2");
            let told = client.acked_with(&bed, &names);
            assert_eq!(again(&told, "eds-a"), of_a, "{protocol:?} of {clusters}: {told:?}");
            bed.origin("cds eds-m:2");
            let told = client.acked_with(&bed, &names);
            assert_eq!(again(&told, "eds-m"), of_member, "{protocol:?} of {clusters}: {told:?}");
            bed.named("cds eds-a:1");
            bed.origin("cds eds-m:1");
        }
    }
}

/// A client may ask for its clusters after their endpoints, and let them go.
#[test]
fn r_ads_05_v1_whether_endpoints_are_repeated_follows_what_is_asked_for() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds eds-a:1");
    bed.named("eds eds-a:1");
    let mut client = bed.delta();
    client.change(&bed, "eds", "eds-a");
    client.change(&bed, "cds", "*");
    client.acked(&bed);
    bed.origin("cds eds-a:2");
    assert_eq!(client.acked(&bed), ["cds eds-a:2", "eds eds-a:1"]);
    client.change(&bed, "cds", "-*");
    bed.origin("cds eds-a:3");
    assert!(client.acked(&bed).is_empty());
    client.change(&bed, "cds", "eds-a");
    assert_eq!(client.acked(&bed), ["cds eds-a:3", "eds eds-a:1"]);
    bed.origin("cds eds-a:4");
    assert_eq!(client.acked(&bed), ["cds eds-a:4", "eds eds-a:1"]);
}

/// The client is sent the cluster as a member, and lets the wildcard go before it could be sent the endpoints.
#[test]
fn r_ads_05_v1_endpoints_that_were_to_be_repeated_come_though_the_wildcard_is_let_go() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds eds-a:1 eds-b:1");
    bed.named("eds eds-a:1 eds-b:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "* eds-a");
    client.change(&bed, "eds", "eds-a eds-b");
    let told = client.poll(&bed).unwrap();
    client.ack(&bed, &told, &[]);
    let endpoints = client.poll(&bed).unwrap();
    bed.origin("cds eds-a:2");
    let told = client.poll(&bed).unwrap();
    assert_eq!(show(&told), "cds eds-a:2");
    client.ack(&bed, &told, &[]);
    assert!(client.poll(&bed).is_none(), "the ACK of EDS is awaited");
    client.change(&bed, "cds", "-*");
    client.ack(&bed, &endpoints, &[]);
    assert_eq!(client.acked(&bed), ["eds eds-a:1"]);
    assert!(client.acked(&bed).is_empty());
}

#[test]
fn r_ads_05_v1_endpoints_come_though_the_cds_is_not_acked() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds eds-a:1");
    bed.named("eds eds-a:1");
    for mut client in both(&bed, &["eds"]) {
        client.acked_with(&bed, NAMES);
        bed.origin("cds eds-a:2");
        // A client that warms the cluster answers neither before the endpoints came.
        assert_eq!(client.told(&bed), ["cds eds-a:2", "eds eds-a:1"]);
        bed.origin("cds eds-a:1");
    }
}

#[test]
fn r_ads_05_v1_endpoints_follow_the_second_cds_when_the_first_is_gated() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds eds-a:1");
    bed.named("eds eds-a:1");
    for mut client in both(&bed, &["eds"]) {
        client.acked_with(&bed, NAMES);
        bed.origin("cds eds-a:2");
        let first = client.poll(&bed).unwrap();
        let endpoints = client.poll(&bed).unwrap();
        client.ack(&bed, &endpoints, &["eds-a"]);
        // The cluster changes again, and what is said of it is gated by the response before.
        bed.origin("cds eds-a:3");
        while let Some(early) = client.poll(&bed) {
            client.ack(&bed, &early, &["eds-a"]);
        }
        client.ack(&bed, &first, &[]);
        let told = client.acked_with(&bed, NAMES);
        let cds = told.iter().position(|told| told == "cds eds-a:3").expect("the second CDS");
        assert_eq!(told[cds + 1..], ["eds eds-a:1"], "endpoints after the second CDS");
        bed.origin("cds eds-a:1");
    }
}

#[test]
fn r_ads_05_v1_endpoints_follow_a_cluster_that_changed_between_two_streams() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds eds-a:2");
    bed.named("eds eds-a:1");
    // The endpoints are asked for and answered first; then the client shows which clusters it holds.
    let mut client = bed.delta();
    client.change(&bed, "eds", "eds-a");
    assert_eq!(client.acked(&bed), ["eds eds-a:1"]);
    client.resume(&bed, "cds", &[], &[("eds-a", "1")]);
    assert_eq!(client.acked(&bed), ["cds eds-a:2", "eds eds-a:1"]);
}

/// What it is told, with clusters and endpoints answered and the route not.
fn told_and_acked(client: &mut Client, bed: &Bed, clusters: &str) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(told) = client.poll(bed) {
        all.push(show(&told));
        match told.type_url.kind().short() {
            "cds" => drop(client.ack(bed, &told, &[clusters])),
            "eds" => drop(client.ack(bed, &told, &["eds-a"])),
            _ => {}
        }
    }
    all
}

#[test]
fn r_ads_05_v1_endpoints_follow_a_cluster_that_is_newly_asked_for_by_name() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds eds-a:1");
    bed.named("eds eds-a:1");
    bed.named("rds r:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &["*"]);
    client.ask(&bed, "eds", &["eds-a"]);
    client.ask(&bed, "rds", &["r"]);
    assert_eq!(told_and_acked(&mut client, &bed, "*"), ["cds eds-a:1", "eds eds-a:1", "rds r:1"]);
    // By its name there is another version than the member, whose end waits for the route: it is held until then.
    bed.named("cds eds-a:2");
    bed.named("rds r:2");
    bed.origin("cds -eds-a other:1");
    assert_eq!(told_and_acked(&mut client, &bed, "*"), ["cds eds-a:1 other:1"]);
    client.ask(&bed, "cds", &["eds-a"]);
    assert_eq!(told_and_acked(&mut client, &bed, "eds-a"), ["cds eds-a:2", "eds eds-a:1"]);
}

#[test]
fn r_ads_05_v1_per_type_streams_are_not_sent_endpoints_again() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds eds-a:1");
    bed.named("eds eds-a:1");
    let mut sotw = bed.client(Protocol::Sotw, Some("eds"));
    sotw.ask(&bed, "eds", &["eds-a"]);
    let mut delta = bed.client(Protocol::Delta, Some("eds"));
    delta.change(&bed, "eds", "eds-a");
    sotw.acked_with(&bed, NAMES);
    delta.acked(&bed);
    bed.origin("cds eds-a:2");
    assert!(sotw.told(&bed).is_empty() && delta.told(&bed).is_empty());
}

#[test]
fn r_ads_05_v1_a_name_is_not_shown_to_the_wildcard_by_being_sent_again() {
    let mut bed = Bed::knowing(&["cds", "eds"]);
    bed.origin("cds eds-a:1");
    bed.named("eds eds-a:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    client.change(&bed, "eds", "*");
    assert_eq!(client.acked(&bed), ["cds eds-a:1", "eds"]);
    bed.origin("cds eds-a:2");
    assert_eq!(client.acked(&bed), ["cds eds-a:2"], "R-Relay-03");
}

#[test]
fn r_ads_05_an_unsolicited_resend_is_fanned_out() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.named("eds eds-a:1");
    let [mut sotw, mut delta] = both(&bed, &["eds"]);
    sotw.acked_with(&bed, NAMES);
    delta.acked(&bed);
    bed.resend(View::Named, "eds eds-a:1");
    assert_eq!(sotw.acked_with(&bed, NAMES), ["eds eds-a:1"]);
    assert_eq!(delta.acked(&bed), ["eds eds-a:1"]);
    bed.named("eds eds-a:1");
    assert!(sotw.told(&bed).is_empty() && delta.told(&bed).is_empty(), "an answer to our own question");
}

#[test]
fn r_ads_07_types_that_do_not_depend_on_each_other_do_not_wait() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds eds-a:1");
    for mut client in both(&bed, &["eds", "sds"]) {
        // The answer of neither CDS nor EDS comes.
        assert_eq!(show(&client.poll(&bed).unwrap()), "cds eds-a:1");
        bed.origin("cds b:1");
        bed.named("eds eds-a:1");
        bed.named("sds s:1");
        assert_eq!(client.told(&bed)[..2], ["eds eds-a:1", "sds s:1"]);
        bed.origin("cds -b");
        bed.named("eds -eds-a");
        bed.named("sds -s");
    }
}

#[test]
fn r_ads_03_names_that_are_never_answered_hold_routes_back_for_a_time_only() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    bed.named("rds r:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    client.change(&bed, "rds", "r");
    assert_eq!(client.acked(&bed), ["cds a:1", "rds r:1"]);
    // On demand: a cluster after the other is asked for, and the origin says of none that it does not exist.
    client.change(&bed, "cds", "n0");
    bed.named("rds r:2");
    let asked = bed.now;
    let mut told = Vec::new();
    for number in 1..20 {
        bed.after(Duration::from_secs(1));
        told.extend(client.acked(&bed));
        if !told.is_empty() {
            break;
        }
        client.change(&bed, "cds", &format!("n{number}"));
    }
    assert_eq!(told, ["rds r:2"], "nothing within {:?}", bed.now - asked);
    assert!(bed.now - asked <= bed.rules.ack_timeout);
    // Even if there is a new name whenever the stream is looked at.
    for number in 100..130 {
        bed.named(&format!("rds r:{number}"));
        let asked = bed.now;
        while client.acked(&bed).is_empty() {
            bed.after(Duration::from_millis(100));
            client.change(&bed, "cds", &format!("n{number}-{:?}", bed.now - asked));
            assert!(bed.now - asked <= bed.rules.ack_timeout + Duration::from_secs(1));
        }
        bed.after(Duration::from_millis(700));
    }
}

/// A cluster that asks for endpoints by this name.
fn cluster(name: &str, service: &str) -> Arc<Resource> {
    let (mut message, mut config) = (wire::message(name, "1"), BytesMut::new());
    wire::put(&mut config, 2, service.as_bytes());
    message.extend_from_slice(&[0x10, 3]);
    wire::put(&mut message, 3, &config);
    wire::envelope(&url("cds"), name, "1", &message)
}

/// A client that came back to a relay that knows everything but the endpoints of `name`.
fn comes_back(bed: &Bed, protocol: Protocol, name: &str) -> Client {
    let mut client = bed.client(protocol, None);
    match protocol {
        Protocol::Delta => {
            client.change(bed, "cds", "*");
            client.change(bed, "eds", &format!("eds-a {name}"));
            client.change(bed, "lds", "*");
        }
        Protocol::Sotw => {
            client.ask(bed, "cds", &[]);
            client.ask(bed, "eds", &["eds-a", name]);
            client.ask(bed, "lds", &[]);
        }
    }
    client
}

#[test]
fn r_ads_03_a_name_that_no_cluster_asks_for_holds_nothing_back() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut bed = Bed::knowing(&["cds", "lds"]);
        bed.origin("cds eds-a:1 b:1");
        bed.origin("lds l:1");
        bed.named("eds eds-a:1");
        // Of a cluster that is gone, and of one that has no endpoints of its own.
        for name in ["eds-gone", "b"] {
            let mut client = comes_back(&bed, protocol, name);
            let told = client.acked_with(&bed, &[("eds", &["eds-a", name])]);
            assert_eq!(told, ["cds b:1 eds-a:1", "eds eds-a:1", "lds l:1"], "{protocol:?} {name}");
        }
    }
}

#[test]
fn r_ads_03_endpoints_that_a_cluster_asks_for_hold_routes_back() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut bed = Bed::knowing(&["cds", "lds"]);
        bed.origin("cds eds-a:1 eds-c:1");
        bed.origin("lds l:1");
        bed.named("eds eds-a:1");
        let names: &[(&str, &[&str])] = &[("eds", &["eds-a", "eds-c"])];
        let mut client = comes_back(&bed, protocol, "eds-c");
        assert_eq!(client.acked_with(&bed, names), ["cds eds-a:1 eds-c:1", "eds eds-a:1"], "{protocol:?}");
        // It goes: nobody asks for them any more.
        bed.origin("cds -eds-c");
        assert_eq!(
            client.acked_with(&bed, names),
            ["lds l:1", "cds eds-a:1"].map(|told| match protocol {
                Protocol::Delta if told.starts_with("cds") => "cds -eds-c",
                _ => told,
            })
        );
        // Another cluster asks for them by their name.
        let mut client = comes_back(&bed, protocol, "eds-c");
        bed.after(Duration::from_secs(1));
        let (view, resend, resource) = (View::Wildcard, Resend::Unsolicited, cluster("other", "eds-c"));
        let op = Op::Set { view, resource, resend, lease: None };
        bed.apply("cds", Change { ops: vec![op], ..Change::default() });
        assert_eq!(client.acked_with(&bed, names), ["cds eds-a:1 other:1", "eds eds-a:1"], "{protocol:?}");
        bed.named("eds eds-c:1");
        assert_eq!(client.acked_with(&bed, names), ["eds eds-c:1", "lds l:1"]);
    }
}

#[test]
fn r_ads_03_endpoints_hold_routes_back_from_when_a_cluster_asks_for_them() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds eds-a:1");
    bed.origin("lds l:1");
    bed.named("eds eds-a:1");
    let mut client = comes_back(&bed, Protocol::Delta, "eds-c");
    assert_eq!(client.acked(&bed), ["cds eds-a:1", "eds eds-a:1", "lds l:1"]);
    bed.origin("cds eds-c:1");
    bed.origin("lds l:2");
    assert_eq!(client.acked(&bed), ["cds eds-c:1"]);
    // Nor does another of its own names make a difference.
    client.change(&bed, "eds", "eds-b");
    assert!(client.acked(&bed).is_empty());
    client.change(&bed, "eds", "-eds-c");
    assert_eq!(client.acked(&bed), ["lds l:2"]);
    client.change(&bed, "eds", "eds-c");
    client.change(&bed, "cds", "eds-a");
    client.change(&bed, "cds", "-*");
    bed.origin("lds l:3");
    assert_eq!(client.acked(&bed), ["cds eds-a:1", "eds eds-a:1", "lds l:3"], "it has let go of the cluster");
}

#[test]
fn r_ads_03_endpoints_on_a_stream_without_clusters_hold_routes_back() {
    let mut bed = Bed::knowing(&["lds"]);
    bed.origin("lds l:1");
    let mut client = bed.delta();
    client.change(&bed, "eds", "static");
    client.change(&bed, "lds", "*");
    assert!(client.acked(&bed).is_empty(), "its clusters may be of its own configuration");
    let due = bed.now + Duration::from_secs(1);
    while bed.now < due {
        assert!(client.session.take_delays().is_empty());
        let NextStep::Wait(Some(until)) = client.next(&bed) else { panic!("it waits") };
        bed.now = until;
    }
    assert_eq!(bed.now, due);
    for delays in [1, 0] {
        assert!(client.acked(&bed).is_empty());
        assert_eq!(client.session.take_delays().len(), delays, "counted once");
    }
    bed.after(bed.rules.ack_timeout);
    assert_eq!(client.acked(&bed), ["lds l:1"]);
}
