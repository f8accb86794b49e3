//! Parts of a response that the relay takes, and those that it refuses.

use super::super::ProtocolError;
use super::*;
use crate::RelayIdentity;
use crate::proto::ControlPlane;

fn fixture() -> Fixture {
    Fixture::asking("a", EDS, &["e1", "e2"])
}

/// The message of the NACK that a response earns.
fn nack(fixture: &mut Fixture, answer: &Answer) -> String {
    let before = fixture.snapshot(EDS).generation();
    fixture.deliver(Primary, answer);
    let request = fixture.request(Primary);
    assert_eq!(request.response_nonce, answer.0.nonce);
    assert_eq!(fixture.snapshot(EDS).generation(), before, "nothing of it is applied");
    let detail = request.error_detail.expect("a NACK");
    assert_eq!(detail.code, 3);
    detail.message
}

#[test]
fn r_up_11_a_type_never_asked_for_is_dropped_without_an_ack() {
    let mut fixture = fixture();
    fixture.deliver(Primary, &Answer::of(CDS, "1").set("c", "v"));
    assert_eq!(fixture.requests(Primary), []);
    assert_eq!(fixture.members(CDS), set(&[]));
    assert_eq!(fixture.mux.counters().unrequested_responses.get(), 1);
}

#[test]
fn r_up_11_a_type_asked_for_before_is_acked_still() {
    let mut fixture = fixture();
    fixture.leave_for("a", 60_000);
    assert_eq!(fixture.request(Primary).resource_names_unsubscribe.len(), 2);
    fixture.pass(60_000);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v"));
    assert_eq!(fixture.seen(EDS, "e1"), "unknown");
}

#[test]
fn r_up_12_a_response_is_applied_as_one_change() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").remove("e2"));
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "absent"]);
}

#[test]
fn r_up_13_a_fault_is_refused_and_named() {
    let of_another_type =
        [field(3, b"e1"), field(1, b"v"), field(2, &any(&CDS.into(), "secret-body"))].concat();
    let two_kinds_of_name = [field(3, b"e1"), field(8, &field(1, b"e1"))].concat();
    let answer = || Answer::of(EDS, "1");
    for (answer, named) in [
        (answer().set("e2", "v").raw(of_another_type), ["e1", "Cluster"]),
        (answer().set("e1", "v").set("e1", "w"), ["`e1`", "twice"]),
        (answer().set("e1", "v").remove("e1"), ["`e1`", "removed"]),
        (answer().raw(two_kinds_of_name), ["resource_name", ""]),
        (answer().raw(vec![0xff; 8]), ["", ""]),
    ] {
        let message = nack(&mut fixture(), &answer);
        assert!(named.iter().all(|named| message.contains(named)), "{message}");
        assert!(!message.contains("secret-body"));
    }
    let long = "n".repeat(1 << 20);
    assert!(nack(&mut fixture(), &answer().set(&long, "v").set(&long, "v")).len() < 1000);
    assert_eq!(fixture().mux.counters().nacks_sent.get(), 0);
}

#[test]
fn r_up_13_a_refused_response_leaves_the_stream_usable() {
    let mut fixture = fixture();
    nack(&mut fixture, &Answer::of(EDS, "1").set("e1", "v").set("e1", "w"));
    assert_eq!(fixture.mux.counters().nacks_sent.get(), 1);
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e1", "w"));
    assert_eq!(fixture.seen(EDS, "e1"), "w");
}

#[test]
fn an_undecodable_message_ends_the_stream() {
    let mut fixture = fixture();
    let error =
        fixture.mux.on_message(Primary, Bytes::from_static(&[0xff; 9]), fixture.now).expect_err("garbage");
    assert!(error.to_string().contains("control plane"), "{error}");
    assert_eq!(fixture.requests(Primary), []);
}

#[test]
fn an_origin_that_does_not_read_acks_is_left() {
    let mut fixture = fixture();
    let answer = Answer::of(EDS, &"n".repeat(1000)).bytes();
    let outcome = (0..2000).find_map(|_| fixture.mux.on_message(Primary, answer.clone(), fixture.now).err());
    assert!(outcome.is_some(), "ACKs pile up without bound");
}

#[test]
fn r_up_14_the_bytes_of_a_resource_are_kept() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").set_body("e1", "v", "\u{1}not a message"));
    let snapshot = fixture.snapshot(EDS);
    let resource = snapshot.by_name("e1").present().expect("present");
    assert_eq!(resource.body(), any(&EDS.into(), "\u{1}not a message"));
}

#[test]
fn r_up_15_a_resource_that_no_subscription_covers_is_ignored_and_takes_no_memory() {
    let mut fixture = fixture();
    let flood = (0..100).fold(Answer::of(EDS, "1"), |answer, n| answer.set(&format!("x{n}"), "v"));
    fixture.hear(Primary, &flood.set("e1", "v").remove("y"));
    assert_eq!(fixture.seen(EDS, "e1"), "v");
    assert_eq!(fixture.snapshot(EDS).entries().count(), 1);
    assert_eq!(fixture.mux.counters().unrequested_resources.get(), 101);
}

#[test]
fn removals_of_names_that_are_no_members_take_no_memory() {
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "v").remove("x").remove("y"));
    assert_eq!(fixture.snapshot(CDS).entries().count(), 1);
}

#[test]
fn r_up_16_an_unset_body_is_a_removal() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "2").raw(field(3, b"e2")));
    assert_eq!(fixture.seen(EDS, "e2"), "absent");
    fixture.hear(Primary, &Answer::of(EDS, "3").raw([field(3, b"e1"), field(1, b"v2")].concat()));
    assert_eq!(fixture.seen(EDS, "e1"), "absent");
}

#[test]
fn r_up_16_but_not_of_a_heartbeat_or_an_unresolved_alias() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "2").raw([field(3, b"e1"), field(1, b"v1")].concat()));
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
    fixture.hear(Primary, &Answer::of(EDS, "3").raw([field(3, b"e1"), field(4, b"alias")].concat()));
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
}

#[test]
fn r_up_17_a_resource_without_a_version_gets_one_of_ours() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", ""));
    assert!(fixture.seen(EDS, "e1").starts_with("h:"));
}

#[test]
fn a_variant_is_refused_and_the_old_resource_kept() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    let named = [field(1, b"e1"), field(2, &field(1, b"x"))].concat();
    let variant = [field(8, &named), field(1, b"v2"), field(2, &any(&EDS.into(), "b"))].concat();
    fixture.hear(Primary, &Answer::of(EDS, "2").raw(variant.clone()).raw(variant).set("e2", "v2"));
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "v2"]);
    assert_eq!(fixture.mux.counters().refused_resources.get(), 2);
}

fn through(identifier: &str, answer: Answer) -> Answer {
    let control_plane = Some(ControlPlane { identifier: identifier.to_owned() });
    Answer(DeltaDiscoveryResponse { control_plane, ..answer.0 }, answer.1)
}

fn named_relay() -> Fixture {
    let identity = RelayIdentity::new("edge", 1);
    let mut fixture = Fixture::connected_with(Settings { identity, ..Settings::default() });
    fixture.client("a", EDS, &["e1"]);
    fixture.requests(Primary);
    fixture
}

#[test]
fn r_relay_19_clients_are_told_the_servers_of_the_newest_response() {
    let mut fixture = named_relay();
    let says = |fixture: &Fixture, identifier: &str| {
        assert!(format!("{:?}", fixture.snapshot(EDS)).contains(&format!("control_plane: {identifier:?}")));
    };
    fixture.hear(Primary, &through("hub/7 via cp", Answer::of(EDS, "1").set("e1", "v1")));
    says(&fixture, "edge/00000001 via hub/7 via cp");
    let generation = fixture.snapshot(EDS).generation();
    // Another replica answers, with no news: nothing of that reaches a client.
    fixture.hear(Primary, &through("cp-2", Answer::of(EDS, "2")));
    assert_eq!(fixture.snapshot(EDS).generation(), generation);
    fixture.hear(Primary, &Answer::of(EDS, "3").set("e1", "v2"));
    says(&fixture, "edge/00000001");
}

#[test]
fn r_relay_24_a_response_of_this_relay_itself_changes_nothing() {
    let mut fixture = named_relay();
    fixture.hear(Primary, &through("hub/7", Answer::of(EDS, "1").set("e1", "v1")));
    let looped = through("hub/7 via edge/00000001", Answer::of(EDS, "2").set("e1", "v0"));
    let fault = fixture.mux.on_message(Primary, looped.bytes(), fixture.now).unwrap_err();
    assert_eq!(fault, ProtocolError::Loop("hub/7 via edge/00000001".to_owned()));
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
    // Another process with the same `node.id` is a sibling, not this one.
    fixture.hear(Primary, &through("edge/00000002", Answer::of(EDS, "3").set("e1", "v3")));
    assert_eq!(fixture.seen(EDS, "e1"), "v3");
}

#[test]
fn the_system_version_goes_along() {
    let mut fixture = fixture();
    let mut answer = Answer::of(EDS, "1").set("e1", "v1");
    answer.0.system_version_info = "sys".to_owned();
    fixture.hear(Primary, &answer);
    assert!(format!("{:?}", fixture.snapshot(EDS)).contains("\"sys\""));
}
