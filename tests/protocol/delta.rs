//! Delta streams: R-Delta.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use deltafan::cache::{Change, Protocol};
use deltafan::proto;
use deltafan::subscription::{ByteCharge, RequestKind, Versions};
use deltafan_test_support::fixture::{Fixture, is_acked, strings, url};

#[test]
fn r_delta_10_a_wildcard_that_is_asked_for_again_counts_resources_in_flight_as_held() {
    for let_go in ["-* -h2", "-*"] {
        let mut fixture = Fixture::knowing(&["cds"]).with_members("cds h1:1 h2:1 h3:1");
        let mut client = fixture.delta_of("cds", if let_go.contains("h2") { "* h2" } else { "*" });
        let in_flight = client.poll(&fixture).unwrap();
        assert_eq!(in_flight.resources.len(), 3);
        // It reads that after it has asked for everything again, and holds it.
        client.change(&fixture, "cds", let_go);
        fixture.origin("cds -h2");
        client.change(&fixture, "cds", "*");
        fixture.origin("cds -h3");
        client.ack(&fixture, &in_flight, &[]);
        assert_eq!(client.acked(&fixture), ["cds h1:1 -h2 -h3"]);
        fixture.origin("cds h2:2");
        assert_eq!(client.acked(&fixture), ["cds h2:2"]);
    }
}

#[test]
fn r_delta_01_a_nonce_makes_an_answer_and_error_detail_a_nack() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut client = fixture.delta();
    assert!(matches!(client.change(&fixture, "cds", ""), RequestKind::Subscribed { .. }));
    let told = client.poll(&fixture).unwrap();
    assert!(matches!(client.change(&fixture, "cds", "x"), RequestKind::Subscribed { .. }), "spontaneous");
    assert!(is_acked(&client.ack(&fixture, &told, &[])));
    fixture.origin("cds a:2");
    let told = client.poll(&fixture).unwrap();
    assert!(matches!(client.nack(&fixture, &told, &[]), RequestKind::Nack { .. }));
    assert!(matches!(client.ack(&fixture, &told, &[]), RequestKind::Subscribed { .. }), "it was rejected");
}

#[test]
fn r_delta_02_subscriptions_count_whatever_the_nonce() {
    let fixture = Fixture::knowing(&["eds"]).with_named("eds a:1");
    let mut client = fixture.delta_of("eds", "x");
    let request = proto::DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        response_nonce: "nobody sent this".to_owned(),
        resource_names_subscribe: strings(&["a"]),
        ..proto::DeltaDiscoveryRequest::default()
    };
    assert!(matches!(client.on_delta_request(&fixture, request).unwrap(), RequestKind::Stale { .. }));
    assert_eq!(client.told(&fixture), ["eds a:1"]);
}

#[test]
fn r_delta_03_a_subscription_may_ride_on_a_nack() {
    let fixture = Fixture::knowing(&["eds"]).with_named("eds a:1 b:1");
    let mut client = fixture.delta_of("eds", "a");
    let told = client.poll(&fixture).unwrap();
    let request = proto::DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        response_nonce: told.nonce,
        resource_names_subscribe: strings(&["b"]),
        error_detail: Some(proto::Status::default()),
        ..proto::DeltaDiscoveryRequest::default()
    };
    assert!(matches!(client.on_delta_request(&fixture, request).unwrap(), RequestKind::Nack { .. }));
    assert_eq!(client.told(&fixture), ["eds b:1"]);
}

#[test]
fn r_delta_04_resubscribe_is_answered() {
    let fixture = Fixture::knowing(&["eds"]).with_named("eds a:1 b:1 -c");
    let mut client = fixture.delta_of("eds", "a b c");
    assert_eq!(client.acked(&fixture), ["eds a:1 b:1 -c"]);
    client.change(&fixture, "eds", "a c");
    assert_eq!(client.acked(&fixture), ["eds a:1 -c"]);
    client.change(&fixture, "eds", "-a");
    client.change(&fixture, "eds", "a");
    assert_eq!(client.acked(&fixture), ["eds a:1"]);
}

#[test]
fn r_delta_05_versions_in_a_later_request_are_not_looked_at() {
    let fixture = Fixture::knowing(&["eds"]).with_named("eds a:1");
    let mut client = fixture.delta_of("eds", "x");
    client.resume(&fixture, "eds", &["a"], &[("a", "1"), ("gone", "1")]);
    assert_eq!(client.told(&fixture), ["eds a:1"]);
}

#[test]
fn r_delta_06_a_reconnect_skips_members_but_resends_names() {
    let fixture = Fixture::knowing(&["cds", "eds"]).with_members("cds a:1 b:2").with_named("eds a:1");
    let mut client = fixture.delta();
    client.resume(&fixture, "cds", &[], &[("a", "1"), ("b", "1")]);
    client.resume(&fixture, "eds", &["a"], &[("a", "1")]);
    assert_eq!(client.told(&fixture), ["cds b:2", "eds a:1"]);
}

/// Its version is current by its text alone.
#[test]
fn r_xt_06_a_body_that_changed_under_its_version_is_sent_to_those_who_come_back() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1 b:1");
    // It waits: of what it holds, `x` is not known.
    let mut waits = fixture.delta();
    waits.resume(&fixture, "cds", &["*", "x"], &[("a", "1"), ("b", "1"), ("x", "1")]);
    assert!(waits.told(&fixture).is_empty());
    fixture.origin("cds a:1/changed");
    fixture.named("cds -x");
    let mut away = fixture.delta();
    away.resume(&fixture, "cds", &[], &[("a", "1"), ("b", "1")]);
    for client in [&mut waits, &mut away] {
        let told = client.told(&fixture).join(" ");
        assert!(told.contains("a:1/changed") && !told.contains("b:"), "{told}");
    }
}

#[test]
fn r_delta_06_versions_of_names_are_trusted_where_configured() {
    let mut fixture = Fixture::knowing(&["eds"]);
    fixture.rules.trust_initial_versions = true;
    fixture.named("eds a:1 b:2");
    let mut client = fixture.delta();
    client.resume(&fixture, "eds", &["a", "b"], &[("a", "1"), ("b", "1")]);
    assert_eq!(client.told(&fixture), ["eds b:2"]);
    let mut current = fixture.delta();
    current.resume(&fixture, "eds", &["a", "b"], &[("a", "1"), ("b", "2")]);
    assert!(current.told(&fixture).is_empty(), "nor is it told that there is nothing to say");
}

/// It has not forgotten what it claims. Sent all of it again, it would tell it to its own clients once more.
#[test]
fn r_delta_06_a_relay_is_not_sent_held_resources_again() {
    let fixture = Fixture::knowing(&["eds"]).with_named("eds a:1 b:2");
    let mut relay = fixture.client_as("deltafan", Protocol::Delta, None);
    relay.resume(&fixture, "eds", &["a", "b"], &[("a", "1"), ("b", "1")]);
    assert_eq!(relay.told(&fixture), ["eds b:2"]);
}

/// Up to so many bytes, and what of them is charged.
#[derive(Debug)]
struct Purse(usize, Arc<AtomicUsize>);

impl ByteCharge for Purse {
    fn charge(&mut self, bytes: usize) -> bool {
        self.1.store(bytes, Ordering::Relaxed);
        bytes <= self.0
    }
}

impl Drop for Purse {
    fn drop(&mut self) {
        self.1.store(0, Ordering::Relaxed);
    }
}

#[test]
fn names_that_are_gone_are_charged_until_they_are_told() {
    // The versions fit into either, and the names into the larger one.
    for (room, fits) in [(100_000, true), (10_000, false)] {
        let mut fixture = Fixture::knowing(&["eds"]).with_named("eds a:1");
        let mut client = fixture.delta_of("cds", "*");
        let charged = Arc::new(AtomicUsize::new(0));
        let mut versions = Versions::within(Box::new(Purse(room, Arc::clone(&charged))));
        (0..500).for_each(|n| versions.add(&format!("{n:03}"), ""));
        assert!(!versions.is_over());
        let request = proto::DeltaDiscoveryRequest {
            type_url: url("eds").as_str().to_owned(),
            resource_names_subscribe: strings(&["a"]),
            ..Default::default()
        };
        client.session.on_delta_request(request, versions, fixture.now).unwrap();
        assert_eq!(client.acked(&fixture), ["eds a:1"], "removals wait for the clusters");
        let paid = charged.load(Ordering::Relaxed);
        assert_eq!(paid >= 500 * 50, fits, "{paid} bytes of {room}");
        fixture.known("cds");
        let rest = client.acked(&fixture);
        let removed: usize = rest.iter().map(|told| told.matches(" -").count()).sum();
        assert_eq!(removed, if fits { 500 } else { 0 }, "{rest:?}");
        assert_eq!(charged.load(Ordering::Relaxed), 0, "given back");
    }
}

#[test]
fn a_wildcard_client_of_which_too_much_is_gone_is_told_all_as_if_it_had_brought_nothing() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1 b:1");
    let mut client = fixture.delta();
    let mut versions = Versions::within(Box::new(Purse(10_000, Arc::default())));
    versions.extend([("a", "1")]);
    (0..400).for_each(|n| versions.add(&format!("{n:03}"), ""));
    let request = proto::DeltaDiscoveryRequest {
        node: client.node.take(),
        type_url: url("cds").as_str().to_owned(),
        resource_names_subscribe: strings(&["*"]),
        ..Default::default()
    };
    client.session.on_delta_request(request, versions, fixture.now).unwrap();
    assert_eq!(client.acked(&fixture), ["cds a:1 b:1"]);
    fixture.origin("cds b:2 -a");
    assert_eq!(client.acked(&fixture), ["cds b:2 -a"]);
}

#[test]
fn r_delta_07_a_name_subscribed_meanwhile_and_unknown_is_not_said_to_be_gone() {
    let mut fixture = Fixture::knowing(&["eds"]).with_named("eds a:1");
    let mut client = fixture.delta_of("cds", "*");
    client.resume(&fixture, "eds", &["a"], &[("b", "1")]);
    assert_eq!(client.acked(&fixture), ["eds a:1"], "removals wait for the clusters");
    client.change(&fixture, "eds", "b");
    fixture.known("cds");
    assert_eq!(client.acked(&fixture), ["cds"]);
}

#[test]
fn r_delta_08_the_vector_of_the_protocol() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1").with_named("cds A:1");
    let mut client = fixture.delta_of("cds", "");
    assert_eq!(client.acked(&fixture), ["cds a:1"]);
    client.change(&fixture, "cds", "A");
    assert_eq!(client.acked(&fixture), ["cds A:1"]);
    fixture.origin("cds a:2");
    assert_eq!(client.acked(&fixture), ["cds a:2"], "the wildcard goes on");
    client.change(&fixture, "cds", "-*");
    fixture.origin("cds a:3");
    fixture.named("cds A:2");
    assert_eq!(client.acked(&fixture), ["cds A:2"]);
    client.change(&fixture, "cds", "-A");
    fixture.named("cds A:3");
    assert!(client.acked(&fixture).is_empty());
}

#[test]
fn r_delta_11_a_first_wildcard_is_answered_though_it_is_empty_or_current() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]);
    let mut client = fixture.delta_of("cds", "*");
    assert_eq!(client.acked(&fixture), ["cds"]);
    fixture.origin("lds a:1");
    client.resume(&fixture, "lds", &[], &[("a", "1")]);
    assert_eq!(client.acked(&fixture), ["lds"]);
}

#[test]
fn r_delta_13_absent_is_said_once_and_the_subscription_stays() {
    let mut fixture = Fixture::knowing(&["eds"]);
    let mut client = fixture.delta_of("eds", "a");
    assert!(client.acked(&fixture).is_empty(), "not yet known");
    fixture.named("eds -a");
    assert_eq!(client.acked(&fixture), ["eds -a"]);
    fixture.named("eds -a");
    assert!(client.acked(&fixture).is_empty());
    fixture.named("eds a:1");
    assert_eq!(client.acked(&fixture), ["eds a:1"]);
}

#[test]
fn r_delta_20_the_system_version_is_the_newest_of_the_origin() {
    let mut fixture = Fixture::knowing(&["cds"]);
    fixture.apply("cds", Change { system_version: Some("v7".into()), ..Change::default() });
    fixture.origin("cds a:1");
    let mut client = fixture.delta_of("cds", "*");
    assert_eq!(client.poll(&fixture).unwrap().version, "v7");
}
