//! Answers that are too large for one response (R-Up-23), and requests that are too large.

use deltafan::cache::{Change, Completeness, Limits, Op, Protocol, Resend, View};
use deltafan::proto;
use deltafan::subscription::{Code, NextStep};
use deltafan_test_support::fixture::{Client, Fixture, strings, url};

fn split_at(response_bytes: usize) -> Fixture {
    let mut fixture = Fixture::with_limits(Limits { response_bytes, ..Limits::default() });
    fixture.known("thing");
    fixture
}

/// Also where owed resources fill a response to the byte.
#[test]
fn r_up_23_a_part_of_just_the_limit_says_that_more_follows() {
    for limit in 200..400 {
        let mut fixture = split_at(limit);
        let names: Vec<String> = (0..20).map(|n| format!("n{n:02}:1")).collect();
        fixture.origin(&format!("thing {}", names.join(" ")));
        let mut client = fixture.delta();
        client.resume(&fixture, "thing", &["*"], &[("n00", "0")]);
        let mut more = Vec::new();
        while let Some(part) = client.poll(&fixture) {
            client.ack(&fixture, &part, &[]);
            more.push(part.nonce.ends_with('>'));
        }
        assert_eq!((more.pop(), more.contains(&false)), (Some(false), false), "{limit}: {more:?}");
    }
}

#[test]
fn r_up_23_a_wildcard_answer_is_cut_below_the_limit_and_only_a_larger_resource_is_sent_whole() {
    let mut fixture = split_at(2500);
    let names: Vec<String> = (0..100).map(|n| format!("n{n:02}:1")).collect();
    fixture.bulky(&format!("thing {}", names.join(" ")));
    let large = deltafan_test_support::wire::resource(&url("thing"), "n50", "2", 4000);
    let op = Op::Set { view: View::Wildcard, resource: large, resend: Resend::Unsolicited, lease: None };
    fixture.apply("thing", Change { ops: vec![op], ..Change::default() });
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut client = fixture.client_of(protocol, "thing", "*");
        let mut told = Vec::new();
        while let NextStep::Send(outgoing) = client.next(&fixture) {
            client.session.on_flushed(fixture.now);
            let part = deltafan_test_support::wire::read(protocol, &outgoing.frame);
            let alone = part.resources.len() == 1;
            assert!(alone || outgoing.frame.size() < 2600, "{} bytes of {part:?}", outgoing.frame.size());
            client.ack(&fixture, &part, if protocol == Protocol::Sotw { &["*"] } else { &[] });
            told.extend(part.resources.into_iter().map(|(name, _)| name));
        }
        let all: Vec<String> = (0..100).map(|n| format!("n{n:02}")).collect();
        assert_eq!(told, all, "{protocol:?}");
    }
}

#[test]
fn limits_of_names_and_types_refuse_the_stream() {
    let mut fixture = Fixture::knowing(&["cds"]);
    fixture.rules.max_names = 3;
    fixture.rules.max_name_bytes = 100;
    fixture.rules.max_types = 2;
    let request = |short: &str, names: &[&str]| proto::DeltaDiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_names_subscribe: strings(names),
        ..proto::DeltaDiscoveryRequest::default()
    };
    let long = "n".repeat(101);
    let code = |client: &mut Client, short, names: &[&str]| {
        client.on_delta_request(&fixture, request(short, names)).map_err(|refusal| refusal.code)
    };
    let mut client = fixture.delta();
    code(&mut client, "cds", &["a", "b", "c"]).unwrap();
    code(&mut client, "cds", &["a", "b", "c"]).expect("the same names again are not more names");
    assert_eq!(code(&mut client, "cds", &["d"]), Err(Code::ResourceExhausted));
    assert_eq!(code(&mut client, "eds", &[&long]), Err(Code::InvalidArgument));
    assert_eq!(code(&mut client, "eds", &["a", "b", "c", "d"]), Err(Code::ResourceExhausted));
    code(&mut client, "eds", &[]).unwrap();
    assert_eq!(code(&mut client, "lds", &[]), Err(Code::ResourceExhausted));

    let mut sotw = fixture.client(Protocol::Sotw, None);
    let names = |names: &[&str]| proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        resource_names: strings(names),
        ..proto::DiscoveryRequest::default()
    };
    assert_eq!(
        sotw.on_sotw_request(&fixture, names(&["a", "b", "c", "d"])).unwrap_err().code,
        Code::ResourceExhausted
    );
    assert_eq!(sotw.on_sotw_request(&fixture, names(&[&long])).unwrap_err().code, Code::InvalidArgument);
}

const END: &str = "deltafan/end-of-answer";

/// The mark is claimed by a relay, which is told that it is gone once all that it asked for is known.
#[test]
fn r_up_23_the_end_mark_is_answered_once_the_set_is_complete() {
    for held in [&[(END, "none")][..], &[(END, "none"), ("a", "1"), ("gone", "1")]] {
        let mut fixture = Fixture::new();
        let mut relay = fixture.delta();
        relay.resume(&fixture, "cds", &[], held);
        fixture.origin("cds a:1 b:1");
        fixture.know("cds", Completeness::Settled);
        let told = relay.acked(&fixture);
        assert!(!told.iter().any(|told| told.contains(END)), "more may follow: {told:?}");
        fixture.known("cds");
        let told = relay.acked(&fixture);
        assert!(told.last().is_some_and(|told| told.contains(&format!("-{END}"))), "{told:?}");
        assert_eq!(told.last().is_some_and(|told| told.contains("-gone")), held.len() > 1, "{told:?}");
        // It is said once.
        fixture.origin("cds c:1");
        assert_eq!(relay.acked(&fixture), ["cds c:1"]);
    }
}

#[test]
fn r_up_23_by_name_the_end_mark_is_answered_once_each_name_is_known() {
    let mut fixture = Fixture::new();
    let mut relay = fixture.delta();
    relay.resume(&fixture, "eds", &["a", "x", END], &[(END, "none")]);
    fixture.named("eds a:1");
    assert_eq!(relay.acked(&fixture), ["eds a:1"], "x may exist");
    fixture.named("eds -x");
    let told = relay.acked(&fixture).join(" ");
    assert!(told.contains("-x") && told.contains(&format!("-{END}")), "{told}");
    // No name is asked for by it, and none is let go.
    relay.change(&fixture, "eds", &format!("-{END}"));
    assert!(relay.acked(&fixture).is_empty());
    let wanted = fixture.cache.take_interest();
    let names = wanted.iter().flat_map(|wanted| &wanted.interest.names);
    assert!(names.clone().count() > 0 && names.clone().all(|(name, _)| name.as_str() != END));
}

/// A first request for the mark alone is no legacy wildcard.
#[test]
fn r_up_23_the_end_mark_of_nothing_is_answered_at_once() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut relay = fixture.delta();
    relay.resume(&fixture, "cds", &[END], &[(END, "none")]);
    assert_eq!(relay.acked(&fixture), [format!("cds -{END}")]);
}

/// A relay that shows the node of a gRPC client, and that is not known as one, means the wildcard.
#[test]
fn r_up_23_the_end_mark_stays_unanswered_where_nothing_was_understood() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut client = fixture.client_as("gRPC Go", Protocol::Delta, None);
    client.resume(&fixture, "cds", &[], &[(END, "none")]);
    assert_eq!(client.acked(&fixture), Vec::<String>::new());
}

/// An answer in parts has it in the last.
#[test]
fn r_up_23_the_end_mark_comes_with_the_last_part() {
    let mut fixture = Fixture::with_limits(Limits { response_bytes: 2_000, ..Limits::default() });
    fixture.known("cds");
    fixture.bulky("cds a:1 b:1 c:1 d:1 e:1");
    let mut relay = fixture.delta();
    relay.resume(&fixture, "cds", &[], &[(END, "none")]);
    let told = relay.acked(&fixture);
    assert!(told.len() > 2, "{told:?}");
    let marks: Vec<bool> = told.iter().map(|told| told.contains(END)).collect();
    assert_eq!(marks.iter().filter(|has| **has).count(), 1, "{told:?}");
    assert_eq!(marks.last(), Some(&true), "{told:?}");
}
