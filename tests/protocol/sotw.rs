//! State-of-the-world streams: R-SotW.

use std::time::Duration;

use deltafan::cache::{Protocol, View};
use deltafan::proto;
use deltafan::subscription::{NextStep, RequestKind};
use deltafan_test_support::fixture::{Client, Fixture, is_acked, show, strings, url};

#[test]
fn r_sotw_01_a_nack_is_told_by_error_detail_alone() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut client = fixture.sotw_of("cds", &[]);
    let told = client.poll(&fixture).unwrap();
    // An old version with the newest nonce is an ACK.
    let request = proto::DiscoveryRequest {
        type_url: told.type_url.as_str().to_owned(),
        response_nonce: told.nonce,
        version_info: "of long ago".to_owned(),
        ..proto::DiscoveryRequest::default()
    };
    assert!(is_acked(&client.on_sotw_request(&fixture, request).unwrap()));
}

/// Envoy and gRPC go on with the nonce of the response that they rejected, and the version that they run.
#[test]
fn r_sotw_01_a_request_after_a_nack_is_no_ack() {
    let fixture = Fixture::knowing(&["eds"]).with_named("eds a:1 b:1");
    let mut client = fixture.sotw_of("eds", &["a"]);
    let told = client.poll(&fixture).unwrap();
    client.nack(&fixture, &told, &["a"]);
    for names in [&["a"][..], &["a", "b"]] {
        let heard = client.ack(&fixture, &told, names);
        assert!(matches!(heard, RequestKind::Subscribed { .. }), "{names:?}: {heard:?}");
    }
    assert_eq!(client.told(&fixture), ["eds b:1"]);
}

#[test]
fn r_sotw_02_a_nack_with_the_new_version_is_a_nack() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut client = fixture.sotw_of("cds", &[]);
    let told = client.poll(&fixture).unwrap();
    assert!(matches!(client.nack(&fixture, &told, &[]), RequestKind::Nack { error, .. } if error.code == 13));
}

#[test]
fn r_sotw_04_a_stale_nonce_is_no_answer() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut client = fixture.sotw_of("cds", &[]);
    let first = client.poll(&fixture).unwrap();
    client.ack(&fixture, &first, &[]);
    fixture.origin("cds a:2");
    let second = client.poll(&fixture).unwrap();
    assert!(matches!(client.ack(&fixture, &first, &[]), RequestKind::Stale { .. }));
    fixture.origin("cds a:3");
    assert!(client.told(&fixture).is_empty(), "the second response is still not answered");
    assert!(is_acked(&client.ack(&fixture, &second, &[])));
    assert_eq!(client.told(&fixture), ["cds a:3"]);
}

#[test]
fn r_sotw_05_a_name_added_with_the_last_good_nonce_is_served() {
    let mut fixture = Fixture::knowing(&["eds"]).with_named("eds a:1 b:1");
    let mut client = fixture.sotw_of("eds", &["a"]);
    let good = client.poll(&fixture).unwrap();
    client.ack(&fixture, &good, &["a"]);
    fixture.named("eds a:2");
    let bad = client.poll(&fixture).unwrap();
    client.nack(&fixture, &bad, &["a"]);
    assert!(matches!(client.ack(&fixture, &good, &["a", "b"]), RequestKind::Stale { .. }));
    assert_eq!(client.told(&fixture), ["eds b:1"]);
}

/// Changes of the next response that it holds only together with a later one.
fn coalesced(client: &mut Client, fixture: &Fixture) -> u32 {
    let NextStep::Send(outgoing) = client.next(fixture) else { panic!("something to say") };
    client.session.on_flushed(fixture.now);
    outgoing.coalesced
}

#[test]
fn changes_that_a_later_one_overtakes_are_counted() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1 b:1");
    // A change that reaches a subscription in two ways is one.
    for (mut client, names) in [(fixture.sotw(), "*"), (fixture.delta(), "*"), (fixture.delta(), "* a")] {
        client.ask_or_change(&fixture, "cds", names);
        fixture.origin("cds a:2");
        let first = client.poll(&fixture).unwrap();
        client.ack(&fixture, &first, &[]);
        fixture.origin("cds a:3 b:3");
        assert_eq!(coalesced(&mut client, &fixture), 0, "the client was told each change by itself");
        fixture.origin("cds a:4");
        fixture.origin("cds c:1");
        fixture.origin("cds -c");
        fixture.after(fixture.rules.ack_timeout);
        assert_eq!(coalesced(&mut client, &fixture), 2, "one update for three changes");
        fixture.origin("cds a:5");
        fixture.after(fixture.rules.ack_timeout);
        assert_eq!(coalesced(&mut client, &fixture), 0);
    }
}

#[test]
fn r_sotw_06_the_gate_opens_after_a_time_that_starts_when_the_response_was_taken() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut client = fixture.sotw_of("cds", &[]);
    let NextStep::Send(_) = client.next(&fixture) else { panic!("it has something to say") };
    fixture.origin("cds a:2");
    fixture.after(Duration::from_secs(60));
    let NextStep::Wait(None) = client.next(&fixture) else { panic!("the transport has taken nothing") };
    client.session.on_flushed(fixture.now);
    let NextStep::Wait(Some(opens)) = client.next(&fixture) else { panic!("the ACK is awaited") };
    assert_eq!(opens, fixture.now + fixture.rules.ack_timeout);
    fixture.now = opens;
    assert_eq!(client.told(&fixture), ["cds a:2"]);
}

#[test]
fn r_sotw_09_version_and_nonce_of_an_earlier_stream_do_no_harm() {
    let fixture = Fixture::knowing(&["eds"]).with_named("eds a:1");
    let mut client = fixture.sotw();
    let request = proto::DiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        version_info: "7".to_owned(),
        response_nonce: "of another stream".to_owned(),
        resource_names: strings(&["a"]),
        ..proto::DiscoveryRequest::default()
    };
    assert!(matches!(client.on_sotw_request(&fixture, request).unwrap(), RequestKind::Subscribed { .. }));
    assert_eq!(client.told(&fixture), ["eds a:1"]);
}

fn resume(fixture: &Fixture, short: &str, names: &[&str], version: &str) -> Vec<String> {
    let mut client = fixture.sotw();
    client.come_back(fixture, short, names, version);
    client.told(fixture)
}

#[test]
fn r_sotw_10_a_reconnect_with_the_digest_of_the_current_set_is_told_nothing() {
    let mut fixture = Fixture::knowing(&["cds", "eds"]).with_members("cds a:1 b:1").with_named("eds a:1");
    let mut client = fixture.sotw_of("cds", &[]);
    client.ask(&fixture, "eds", &["a"]);
    assert_eq!(client.told(&fixture), ["cds a:1 b:1", "eds a:1"]);
    let clusters = client.newest("cds").version.clone();
    let endpoints = client.newest("eds").version.clone();

    assert!(resume(&fixture, "cds", &[], &clusters).is_empty());
    assert_eq!(resume(&fixture, "cds", &["a"], &clusters), ["cds a:1"], "names might be new to the client");
    assert_eq!(resume(&fixture, "eds", &["a"], &endpoints), ["eds a:1"], "not a full-state type");
    fixture.origin("cds -b");
    assert_eq!(resume(&fixture, "cds", &[], &clusters), ["cds a:1 b:1"], "its routes may lead to `b`");
}

/// It let go of everything that the digest is of, but for a name.
#[test]
fn r_sotw_15_a_wildcard_that_was_let_go_before_the_first_answer_is_answered_in_full() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1 b:1");
    let mut client = fixture.sotw_of("cds", &[]);
    let version = client.poll(&fixture).unwrap().version;

    let mut fixture = Fixture::new();
    let mut client = fixture.sotw();
    for names in [&[][..], &["a"], &["a", "*"]] {
        client.come_back(&fixture, "cds", names, &version);
        assert!(client.told(&fixture).is_empty(), "nothing is known");
    }
    fixture.origin("cds a:1 b:1");
    fixture.named("cds a:1");
    fixture.known("cds");
    assert_eq!(client.told(&fixture), ["cds a:1 b:1"]);
}

/// Envoy applies what is good of a response that it rejects.
#[test]
fn r_sotw_10_a_client_that_rejected_something_is_sent_what_it_went_back_to() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1 b:1");
    let mut client = fixture.sotw_of("cds", &[]);
    let first = client.poll(&fixture).unwrap();
    client.ack(&fixture, &first, &[]);
    fixture.origin("cds a:2 bad:2");
    let second = client.poll(&fixture).unwrap();
    let rejection = proto::DiscoveryRequest {
        version_info: first.version.clone(),
        type_url: url("cds").as_str().to_owned(),
        response_nonce: second.nonce,
        error_detail: Some(proto::Status { code: 13, message: "no".to_owned() }),
        ..proto::DiscoveryRequest::default()
    };
    client.on_sotw_request(&fixture, rejection).unwrap();
    drop(client);
    fixture.origin("cds a:1 -bad");
    assert_eq!(resume(&fixture, "cds", &[], &first.version), ["cds a:1 b:1"]);
}

#[test]
fn r_sotw_11_a_set_that_is_known_to_be_empty_is_an_answer() {
    let fixture = Fixture::knowing(&["cds"]);
    let mut client = fixture.sotw_of("cds", &[]);
    assert_eq!(client.told(&fixture), ["cds"]);
}

#[test]
fn r_sotw_13_the_vector_of_the_protocol() {
    let mut fixture = Fixture::knowing(&["lds"]).with_members("lds a:1 b:1").with_named("lds A:1");
    let mut client = fixture.sotw_of("lds", &[]);
    assert_eq!(client.acked(&fixture), ["lds a:1 b:1"]);
    client.ask(&fixture, "lds", &["*", "A"]);
    assert_eq!(client.acked_with(&fixture, &[("lds", &["*", "A"])]), ["lds A:1 a:1 b:1"]);
    client.ask(&fixture, "lds", &["A"]);
    fixture.named("lds A:2");
    assert_eq!(client.acked_with(&fixture, &[("lds", &["A"])]), ["lds A:2"]);
    client.ask(&fixture, "lds", &[]);
    fixture.named("lds A:3");
    fixture.origin("lds a:2");
    assert!(client.acked(&fixture).is_empty(), "an empty list after names is no wildcard");
}

#[test]
fn r_sotw_14_an_empty_first_list_is_no_wildcard_for_types_asked_by_name() {
    for short in ["eds", "rds", "sds", "ecds", "rtds", "leds"] {
        let fixture = Fixture::knowing(&[short]).with_members(&format!("{short} a:1"));
        let mut client = fixture.sotw_of(short, &[]);
        assert!(client.told(&fixture).is_empty(), "{short}");
        client.ask(&fixture, short, &["*"]);
        assert_eq!(client.told(&fixture), [format!("{short} a:1")]);
    }
    for short in ["cds", "lds", "srds", "thing"] {
        let fixture = Fixture::knowing(&[short]).with_members(&format!("{short} a:1"));
        let mut client = fixture.sotw_of(short, &[]);
        assert_eq!(client.told(&fixture).len(), 1, "{short}");
        let mut grpc = fixture.client_as("gRPC Go", Protocol::Sotw, None);
        grpc.ask(&fixture, short, &[]);
        assert!(grpc.told(&fixture).is_empty(), "gRPC and {short}");
    }
}

/// That is how relays ask by state of the world, since not each control plane knows `*`. A relay may show the node of a client.
#[test]
fn r_sotw_14_an_empty_first_list_of_a_relay_is_a_wildcard_for_each_type() {
    for short in ["eds", "rds", "cds"] {
        for (user_agent, says_so) in [("deltafan", false), ("envoy", true), ("gRPC Go", true)] {
            let fixture = Fixture::knowing(&[short]).with_members(&format!("{short} a:1"));
            let mut relay = fixture.client_as(user_agent, Protocol::Sotw, None);
            relay.session = relay.session.of_relay(says_so);
            relay.ask(&fixture, short, &[]);
            assert_eq!(relay.told(&fixture), [format!("{short} a:1")], "{user_agent}");
        }
    }
}

#[test]
fn r_sotw_18_and_20_full_state_types_say_removals_by_omission() {
    for short in ["cds", "lds", "srds"] {
        let mut fixture = Fixture::knowing(&[short]).with_members(&format!("{short} a:1 b:1"));
        let mut client = fixture.sotw_of(short, &[]);
        assert_eq!(client.acked(&fixture), [format!("{short} a:1 b:1")]);
        fixture.origin(&format!("{short} -a"));
        assert_eq!(client.acked(&fixture), [format!("{short} b:1")]);
        fixture.origin(&format!("{short} -b"));
        assert_eq!(client.acked(&fixture), [short], "an empty answer deletes all");
    }
}

/// The client cannot tell whether what it let go of is a member: it holds it until a full state lacks it.
#[test]
fn r_sotw_18_a_name_let_go_beside_a_wildcard_that_is_no_member_is_answered() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1 b:1").with_named("cds b:1 x:1 y:1");
    let mut client = fixture.sotw_of("cds", &["*", "b", "x", "y"]);
    assert_eq!(client.acked_with(&fixture, &[("cds", &["*", "b", "x", "y"])]), ["cds a:1 b:1 x:1 y:1"]);
    client.ask(&fixture, "cds", &["*", "x", "y"]);
    assert!(client.acked_with(&fixture, &[("cds", &["*", "x", "y"])]).is_empty(), "b is a member");
    client.ask(&fixture, "cds", &["*", "x"]);
    assert_eq!(client.told(&fixture), ["cds a:1 b:1 x:1"]);
    fixture.named("cds -x");
    client.ask(&fixture, "cds", &["*"]);
    assert_eq!(client.acked_with(&fixture, &[("cds", &["*"])]), ["cds a:1 b:1"], "gone before it was let go");
}

/// An origin that never says that a name does not exist, and a client that asks for one more every five seconds.
#[test]
fn r_sotw_18_a_list_that_grows_holds_back_known_names_for_a_bounded_time() {
    for wildcard in [false, true] {
        let mut fixture = Fixture::knowing(&["cds"]);
        fixture.answer(if wildcard { View::Wildcard } else { View::Named }, "cds a:0");
        let mut client = fixture.sotw();
        let mut names = vec![if wildcard { "*".to_owned() } else { "a".to_owned() }, "none".to_owned()];
        let request = proto::DiscoveryRequest {
            type_url: url("cds").as_str().to_owned(),
            resource_names: names.clone(),
            version_info: "1".to_owned(),
            ..Default::default()
        };
        client.on_sotw_request(&fixture, request).unwrap();
        let mut told = Vec::new();
        for step in 1..=30 {
            fixture.after(Duration::from_secs(5));
            names.push(format!("none-{step}"));
            let list: Vec<&str> = names.iter().map(String::as_str).collect();
            client.ask(&fixture, "cds", &list);
            fixture.answer(if wildcard { View::Wildcard } else { View::Named }, &format!("cds a:{step}"));
            while let Some(response) = client.poll(&fixture) {
                assert_eq!(show(&response), format!("cds a:{step}"));
                told.push(step);
                client.ack(&fixture, &response, &list);
            }
            // Nor does an origin that answers for nothing but what is there wake it later than it has to look again.
            assert!(matches!(client.next(&fixture), NextStep::Wait(Some(at)) if at > fixture.now));
        }
        let longest =
            told.iter().chain(&[31]).scan(0, |last, step| Some(step - std::mem::replace(last, *step))).max();
        let bound = fixture.rules.longest_silence().as_secs() / 5 + 1;
        assert!(
            longest.is_some_and(|steps| steps <= bound),
            "wildcard {wildcard}: told at {told:?}, 5 s apart"
        );
    }
}
