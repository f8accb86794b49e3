//! Clients that come back after clusters and routes have moved: R-ADS-03.

use std::time::Duration;

use deltafan::cache::Protocol;
use deltafan::proto;
use deltafan::subscription::NextStep;
use deltafan_test_support::fixture::{Client, Fixture, show, strings, url};

use crate::ads::{NAMES, knowing_x, move_from_x_to_y};

/// A client that has come back and asked for clusters, of which it accepted `newest` last.
fn asks_for_clusters(fixture: &Fixture, protocol: Protocol, newest: &str) -> Client {
    let mut client = fixture.client(protocol, None);
    match protocol {
        Protocol::Delta => client.resume(fixture, "cds", &["*"], &[("keep", "1"), ("x", "1")]),
        Protocol::Sotw => {
            client.come_back(fixture, "cds", &[], newest);
        }
    }
    client
}

/// A client that has asked for a route too.
fn comes_back(fixture: &Fixture, protocol: Protocol, newest: &str) -> Client {
    let mut client = asks_for_clusters(fixture, protocol, newest);
    client.ask_or_change(fixture, "rds", "r");
    client
}

/// Its routes, which it has from before, lead to what is gone.
#[test]
fn r_ads_03_clusters_that_went_while_a_client_was_away_leave_after_its_routes() {
    for (protocol, is_doubted) in [(Protocol::Sotw, false), (Protocol::Sotw, true), (Protocol::Delta, false)]
    {
        let mut fixture = knowing_x();
        let mut other = fixture.sotw_of("cds", &[]);
        let first = other.poll(&fixture).unwrap();
        let before = first.version.clone();
        if is_doubted {
            // Another client rejects what it is sent, and names an earlier state as this one does.
            other.nack(&fixture, &first, &[]);
        }
        drop(other);
        move_from_x_to_y(&mut fixture);
        fixture.after(Duration::from_secs(60));
        let mut client = comes_back(&fixture, protocol, &before);
        let clusters = client.poll(&fixture).unwrap();
        let all = if protocol == Protocol::Sotw { "cds keep:1 x:1 y:1" } else { "cds y:1" };
        assert_eq!(show(&clusters), all);
        assert!(client.told(&fixture).is_empty(), "the route waits");
        client.ack(&fixture, &clusters, &[]);
        let route = client.poll(&fixture).unwrap();
        assert_eq!(show(&route), "rds r:y");
        client.ack(&fixture, &route, &["r"]);
        assert!(client.told(&fixture).is_empty(), "the removal waits");
        fixture.after(Duration::from_secs(2));
        let end = if protocol == Protocol::Sotw { "cds keep:1 y:1" } else { "cds -x" };
        assert_eq!(client.acked_with(&fixture, NAMES), [end]);
        assert!(client.overdue.is_empty());
    }
}

/// A version that was never the relay's, or is forgotten, says nothing: the client is sent what there is.
#[test]
fn r_ads_03_a_client_that_brings_an_unknown_version_is_sent_the_state_in_force() {
    let mut fixture = knowing_x();
    let before = fixture.sotw_of("cds", &[]).poll(&fixture).unwrap().version;
    fixture.origin("cds -x");
    for unknown in ["7", "", "no number", &"f".repeat(32), &"f".repeat(33)] {
        let mut client = comes_back(&fixture, Protocol::Sotw, unknown);
        assert_eq!(client.acked_with(&fixture, NAMES)[0], "cds keep:1", "{unknown}");
    }
    for number in 0..200 {
        fixture.origin(&format!("cds keep:{}", number + 2));
    }
    let mut client = comes_back(&fixture, Protocol::Sotw, &before);
    assert_eq!(client.acked_with(&fixture, NAMES)[0], "cds keep:201");
}

#[test]
fn r_ads_03_clusters_of_a_client_that_may_hold_more_wait_for_routes_that_are_unknown() {
    for names in [&["r"][..], &["known", "r"]] {
        let mut fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds keep:1");
        fixture.named("rds known:keep");
        let mut client = comes_back(&fixture, Protocol::Sotw, "of an earlier relay");
        client.ask(&fixture, "rds", names);
        fixture.after(Duration::from_millis(900));
        assert!(client.told(&fixture).is_empty(), "{names:?}");
        fixture.named("rds r:keep");
        let told = client.acked_with(&fixture, &[("rds", names)]);
        assert_eq!((told.len(), told[0].as_str()), (2, "cds keep:1"), "{told:?}");
    }
}

#[test]
fn r_ads_03_clusters_of_a_client_that_may_hold_more_wait_for_a_time_only() {
    for (user_agent, wait, longest) in [("envoy", 5, 5), ("envoy", 2, 2), ("envoy", 0, 0), ("gRPC Go", 5, 0)]
    {
        let mut fixture = Fixture::knowing(&["lds"]);
        fixture.rules.warm_wait = Duration::from_secs(wait);
        fixture.origin("cds keep:1");
        fixture.known("cds");
        let mut client = fixture.client_as(user_agent, Protocol::Sotw, None);
        client.come_back(&fixture, "cds", &["*"], "of an earlier relay");
        client.ask(&fixture, "rds", &["never answered"]);
        let begun = fixture.now;
        while client.told(&fixture).is_empty() {
            fixture.after(Duration::from_secs(1));
        }
        assert_eq!(fixture.now - begun, Duration::from_secs(longest), "{user_agent}, {wait} s");
    }
}

/// The time for which it was away is no delay of what it is told.
#[test]
fn a_client_that_comes_back_has_waited_for_no_change() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut fixture = knowing_x();
        let before = fixture.sotw_of("cds", &[]).poll(&fixture).unwrap().version;
        move_from_x_to_y(&mut fixture);
        let mut client = comes_back(&fixture, protocol, &before);
        let NextStep::Send(clusters) = client.next(&fixture) else { panic!("the clusters") };
        assert_eq!(clusters.changed_at, None, "{protocol:?}");
    }
}

/// Envoy takes no two listeners of one address.
#[test]
fn listeners_that_went_while_a_client_was_away_are_gone_at_once() {
    let mut fixture = Fixture::knowing(&["lds"]).with_members("lds a:1");
    let before = fixture.sotw_of("lds", &[]).poll(&fixture).unwrap().version;
    fixture.origin("lds b:1");
    fixture.origin("lds -a");
    fixture.named("rds r:x");
    let mut client = fixture.sotw();
    client.come_back(&fixture, "lds", &[], &before);
    client.ask(&fixture, "rds", &["r"]);
    assert_eq!(client.acked_with(&fixture, NAMES), ["lds b:1", "rds r:x"]);
}

/// gRPC lists the clusters of the routes that it has from before. They may have gone with its routes.
#[test]
fn r_ads_03_a_client_whose_listed_clusters_are_all_gone_gets_its_routes_first() {
    for lists_others in [true, false] {
        let mut fixture = Fixture::knowing(&["cds"]);
        fixture.rules.warm_wait = Duration::from_secs(5);
        fixture.named("cds -old");
        fixture.named("rds r:new");
        let mut client = fixture.client_as("gRPC C-core", Protocol::Sotw, None);
        let list = |names: &[&str], nonce: String| proto::DiscoveryRequest {
            type_url: url("cds").as_str().to_owned(),
            resource_names: strings(names),
            version_info: "of an earlier relay".to_owned(),
            response_nonce: nonce,
            ..proto::DiscoveryRequest::default()
        };
        client.on_sotw_request(&fixture, list(&["old"], String::new())).unwrap();
        client.ask(&fixture, "rds", &["r"]);
        assert_eq!(client.acked_with(&fixture, &[("rds", &["r"])]), ["rds r:new"], "without a wait");
        fixture.after(Duration::from_secs(4));
        assert_eq!(client.told(&fixture), [""; 0], "its old routes still work");
        if lists_others {
            client.on_sotw_request(&fixture, list(&["new"], String::new())).unwrap();
            fixture.after(Duration::from_secs(10));
            assert_eq!(client.told(&fixture), [""; 0], "not known yet");
            fixture.named("cds new:1");
            assert_eq!(client.told(&fixture), ["cds new:1"]);
        } else {
            fixture.after(Duration::from_secs(1));
            assert_eq!(client.told(&fixture), ["cds"], "not for ever");
        }
    }
}
