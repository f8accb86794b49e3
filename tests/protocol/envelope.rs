//! Envelopes of resources: redirects (R-XT-07) and resources that may not be kept (R-XT-09).

use std::time::Duration;

use deltafan::cache::Protocol;
use deltafan::proto::{DeltaDiscoveryResponse, DiscoveryRequest};
use deltafan::resource::{Envelope, EnvelopeError};
use deltafan::subscription::{Poll, PollHistory, PollVerdict};
use deltafan_test_support::bell::Bell;
use deltafan_test_support::fixture::Client;
use deltafan_test_support::whole::{Primary, Whole};
use deltafan_test_support::wire::{self, put, type_url};
use prost::Message as _;

/// Nothing said.
const NONE: [&str; 0] = [];
const REDIRECTED: &str = "xdstp://auth/t/web";

fn told(client: &mut Client, whole: &Whole) -> Vec<String> {
    client.acked(&whole.fixture)
}

fn redirect(name: &str) -> bytes::BytesMut {
    let (mut any, mut sent) = Default::default();
    put(&mut any, 1, wire::REDIRECT.as_bytes());
    put(&mut any, 2, b"\x0a\x04name");
    put(&mut sent, 1, b"1");
    put(&mut sent, 2, &any);
    put(&mut sent, 3, name.as_bytes());
    sent
}

#[test]
fn r_xt_07_a_redirect_is_passed_on_and_a_body_of_any_other_type_is_not() {
    let mut whole = Whole::new();
    let mut client = whole.asking("eds", REDIRECTED);
    let mut sotw = whole.fixture.client(Protocol::Sotw, None);
    sotw.ask(&whole.fixture, "eds", &[REDIRECTED]);
    whole.asked(Primary);
    let response = DeltaDiscoveryResponse {
        type_url: type_url("eds").as_str().to_owned(),
        nonce: "1".to_owned(),
        resources: vec![redirect(REDIRECTED).freeze()],
        ..DeltaDiscoveryResponse::default()
    };
    whole.mux.on_message(Primary, response.encode_to_vec().into(), whole.fixture.now).unwrap();
    assert_eq!(told(&mut client, &whole), [format!("eds {REDIRECTED}:redirect")]);
    let of_sotw = sotw.poll(&whole.fixture).map(|told| told.resources);
    assert!(of_sotw.is_none_or(|resources| resources.is_empty()), "it would be of another type (R-SotW-22)");

    let plain = redirect("web");
    let refused = Envelope::parse(&plain, &type_url("eds")).unwrap_err();
    assert!(matches!(refused, EnvelopeError::WrongType { .. }), "{refused:?}");
}

/// A relay that has heard of `e`, which may not be kept, and the client that it was for.
fn uncacheable() -> (Whole, Client) {
    let mut whole = Whole::new();
    let mut client = whole.asking("eds", "e");
    assert_eq!(whole.asked(Primary), "e");
    whole.says(Primary, "eds e:1!");
    assert_eq!(told(&mut client, &whole), ["eds e:1"]);
    (whole, client)
}

#[test]
fn r_xt_09_a_body_that_may_not_be_kept_is_dropped_and_nobody_is_told() {
    let (mut whole, mut client) = uncacheable();
    assert_eq!(whole.seen("eds", "e"), "e:1", "for who is a little slow");
    whole.pass(1_000);
    assert_eq!(whole.seen("eds", "e"), "dropped");
    assert_eq!(told(&mut client, &whole), NONE);
    whole.says(Primary, "eds e:2!");
    assert_eq!(told(&mut client, &whole), ["eds e:2"]);
    whole.pass(1_000);
    whole.says(Primary, "eds -e");
    assert_eq!(told(&mut client, &whole), ["eds -e"]);
}

#[test]
fn r_xt_09_a_newcomer_makes_the_relay_ask_again_and_is_served_by_the_answer() {
    let (mut whole, mut first) = uncacheable();
    whole.pass(1_000);
    let mut newcomers = [whole.asking("eds", "e"), whole.asking("eds", "e")];
    let mut sotw = whole.fixture.client(Protocol::Sotw, None);
    sotw.ask(&whole.fixture, "eds", &["e"]);
    newcomers.iter_mut().for_each(|client| assert_eq!(told(client, &whole), NONE));
    assert_eq!(sotw.told(&whole.fixture), NONE);
    let requests = whole.requests(Primary);
    assert_eq!(requests.len(), 1, "one request for all of them: {requests:?}");
    assert_eq!(requests[0].resource_names_subscribe, ["e"]);
    newcomers.iter_mut().for_each(|client| assert_eq!(told(client, &whole), NONE));
    assert_eq!(whole.asked(Primary), "", "the answer is on its way");

    whole.says(Primary, "eds e:1!");
    newcomers.iter_mut().for_each(|client| assert_eq!(told(client, &whole), ["eds e:1"]));
    assert_eq!(sotw.acked_with(&whole.fixture, &[("eds", &["e"])]), ["eds e:1"]);
    assert_eq!(told(&mut first, &whole), NONE, "it is the version that it holds");

    // To subscribe again is to ask again.
    whole.pass(1_000);
    first.change(&whole.fixture, "eds", "e");
    assert_eq!(told(&mut first, &whole), NONE);
    assert_eq!(whole.asked(Primary), "e");
    whole.says(Primary, "eds e:2!");
    assert_eq!(told(&mut first, &whole), ["eds e:2"]);
    assert_eq!(told(&mut newcomers[0], &whole), ["eds e:2"], "and what is new is for all");
}

#[test]
fn r_xt_09_a_client_that_could_not_be_told_in_time_is_told_by_another_copy() {
    let mut whole = Whole::new();
    let mut client = whole.asking("eds", "d e");
    whole.asked(Primary);
    whole.says(Primary, "eds d:1");
    let first = client.poll(&whole.fixture).unwrap();
    whole.says(Primary, "eds e:1!");
    whole.pass(2_000);
    client.ack(&whole.fixture, &first, &[]);
    assert_eq!(told(&mut client, &whole), NONE);
    assert_eq!(whole.asked(Primary), "e");
    whole.says(Primary, "eds e:1!");
    assert_eq!(told(&mut client, &whole), ["eds e:1"]);
    assert_eq!(whole.asked(Primary), "");
}

#[test]
fn r_xt_09_a_change_of_something_else_does_not_ask_for_it() {
    let (mut whole, mut client) = uncacheable();
    client.change(&whole.fixture, "eds", "d");
    whole.asked(Primary);
    whole.pass(1_000);
    whole.says(Primary, "eds d:1");
    assert_eq!(told(&mut client, &whole), ["eds d:1"]);
    whole.says(Primary, "eds d:2");
    assert_eq!(told(&mut client, &whole), ["eds d:2"]);
    assert_eq!(whole.asked(Primary), "");
}

#[test]
fn r_up_03_no_version_is_claimed_of_a_resource_that_was_not_kept() {
    let (mut whole, mut client) = uncacheable();
    whole.pass(1_000);
    whole.reconnect();
    let requests = whole.requests(Primary);
    assert_eq!(requests[0].resource_names_subscribe, ["e"]);
    assert!(requests[0].initial_resource_versions.is_empty());
    whole.says(Primary, "eds e:1!");
    assert_eq!(told(&mut client, &whole), NONE);
}

#[test]
fn r_xt_09_it_is_held_under_an_alias_as_under_its_own_name() {
    let mut whole = Whole::new();
    let mut client = whole.asking("vhds", "r/a");
    whole.asked(Primary);
    whole.says(Primary, "vhds r/v:1!=r/a");
    assert_eq!(told(&mut client, &whole), ["vhds r/v:1"]);
    whole.pass(1_000);
    assert_eq!(whole.seen("vhds", "r/a"), "dropped");
    assert_eq!(told(&mut client, &whole), NONE, "nothing is lost by it");
    let mut late = whole.asking("vhds", "r/a");
    assert_eq!(told(&mut late, &whole), NONE);
    assert_eq!(whole.asked(Primary), "r/a");
    whole.says(Primary, "vhds r/v:1!=r/a");
    assert_eq!(told(&mut late, &whole), ["vhds r/v:1"]);
    whole.pass(1_000);
    whole.says(Primary, "vhds -r/v");
    assert_eq!(told(&mut late, &whole), ["vhds -r/v"]);
    assert_eq!(told(&mut client, &whole), ["vhds -r/v"]);
}

#[test]
fn r_xt_09_members_and_full_states_are_served_from_memory() {
    let mut whole = Whole::new();
    let mut wildcard = whole.asking("eds", "*");
    let mut named = whole.asking("cds", "c");
    whole.asked(Primary);
    whole.says(Primary, "eds e:1!");
    whole.says(Primary, "cds c:1!");
    whole.pass(5_000);
    assert_eq!(told(&mut wildcard, &whole), ["eds e:1"]);
    assert_eq!(told(&mut named, &whole), ["cds c:1"]);
    let mut late = whole.asking("eds", "*");
    assert_eq!(told(&mut late, &whole), ["eds e:1"]);
    assert_eq!(whole.asked(Primary), "");
}

#[test]
fn r_xt_09_a_client_that_waits_for_a_resource_not_kept_is_woken_when_it_comes() {
    let (mut whole, first) = uncacheable();
    whole.pass(1_000);
    let mut late = whole.asking("eds", "e");
    assert_eq!(told(&mut late, &whole), NONE);
    let bell = Bell::new();
    late.session.wake_handle().register(&bell.waker());
    whole.asked(Primary);
    whole.says(Primary, "eds e:1!");
    assert_eq!(bell.take(), 1);
    assert_eq!(told(&mut late, &whole), ["eds e:1"]);
    drop(first);
}

#[test]
fn r_xt_09_a_poll_waits_for_a_resource_that_was_not_kept() {
    let (mut whole, first) = uncacheable();
    whole.pass(1_000);
    let memory = PollHistory::default();
    let poll = |whole: &Whole, version: &str| {
        let request = DiscoveryRequest {
            resource_names: vec!["e".to_owned()],
            version_info: version.to_owned(),
            ..DiscoveryRequest::default()
        };
        whole.fixture.poll(&memory, "eds", request, Duration::from_secs(5)).unwrap()
    };
    let newcomer = poll(&whole, "");
    let verdict = |poll: &Poll, whole: &Whole| poll.next(whole.fixture.now, whole.fixture.upstream);
    assert!(matches!(verdict(&newcomer, &whole), PollVerdict::Wait(_)));
    assert_eq!(whole.asked(Primary), "e");
    whole.says(Primary, "eds e:1!");
    let PollVerdict::Answer(version) = verdict(&newcomer, &whole) else { panic!("an answer") };
    assert_eq!((newcomer.found().version, newcomer.found().resources.len()), (version, 1));

    // A client that holds it is told nothing when it is dropped, and does not ask for it.
    let holder = poll(&whole, &version.to_string());
    whole.pass(1_000);
    assert_eq!(whole.seen("eds", "e"), "dropped");
    assert!(matches!(verdict(&holder, &whole), PollVerdict::Wait(_)));
    assert_eq!(whole.asked(Primary), "");
    drop((first, newcomer));
}
