//! Answers that are too large for one response (R-Up-23), and requests that are too large.

use std::collections::BTreeMap;

use deltafan::cache::{Change, Completeness, Limits, Op, Protocol, Resend, View};
use deltafan::proto;
use deltafan::subscription::{Code, NextStep};
use deltafan_test_support::fixture::{Client, Fixture, strings, url};

fn split() -> Fixture {
    split_at(2500)
}

fn split_at(response_bytes: usize) -> Fixture {
    let mut fixture = Fixture::with_limits(Limits { response_bytes, ..Limits::default() });
    fixture.known("thing");
    fixture
}

#[test]
fn r_up_23_a_large_answer_is_sent_in_parts_whatever_happens_meanwhile() {
    let mut fixture = split_at(25_000);
    let names: Vec<String> = (0..400).map(|n| format!("n{n:03}:1")).collect();
    fixture.bulky(&format!("thing {}", names.join(" ")));
    let mut client = fixture.delta_of("thing", "*");
    let first = client.poll(&fixture).unwrap();
    assert!(first.resources.len() < 400, "cut");
    client.ack(&fixture, &first, &[]);
    fixture.bulky("thing n000:2 -n001 n399:2 -n398 n1:1");
    let rest = client.acked(&fixture).join(" ");
    for word in ["n000:2", "n399:2", "n1:1", "n397:1", "-n001"] {
        assert!(rest.split(' ').any(|other| other == word), "{word}");
    }
    assert!(!rest.contains("n398:1") && !rest.contains("n399:1"));
    assert_eq!(rest.matches("n200:").count(), 1);
}

/// Another relay could not tell the first part from the whole otherwise.
#[test]
fn r_up_23_each_part_but_the_last_says_that_more_follows() {
    let mut fixture = split();
    let names: Vec<String> = (0..100).map(|n| format!("n{n:02}:1")).collect();
    fixture.bulky(&format!("thing {}", names.join(" ")));
    for held in [&[][..], &[("n00", "0")]] {
        let mut client = fixture.delta();
        client.resume(&fixture, "thing", &["*"], held);
        let mut more = Vec::new();
        while let Some(part) = client.poll(&fixture) {
            client.ack(&fixture, &part, &[]);
            more.push(part.nonce.ends_with('>'));
        }
        let last = more.pop();
        assert_eq!((more.len() > 5, more.contains(&false), last), (true, false, Some(false)));
    }
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
    let mut fixture = split();
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
            assert!(alone || outgoing.frame.len() < 2600, "{} bytes of {part:?}", outgoing.frame.len());
            client.ack(&fixture, &part, if protocol == Protocol::Sotw { &["*"] } else { &[] });
            told.extend(part.resources.into_iter().map(|(name, _)| name));
        }
        let all: Vec<String> = (0..100).map(|n| format!("n{n:02}")).collect();
        assert_eq!(told, all, "{protocol:?}");
    }
}

#[test]
fn r_up_23_names_that_do_not_exist_are_said_once_in_a_split_answer() {
    let mut fixture = split();
    fixture.named("thing -x -y");
    fixture.bulky("thing a:1 b:1 c:1 d:1 e:1 f:1 g:1");
    fixture.apply("thing", Change::default());
    let mut client = fixture.delta_of("thing", "* x y");
    let told = client.acked(&fixture);
    assert!(told.len() > 1, "{told:?}");
    let told = told.join(" ");
    assert_eq!((told.matches("-x").count(), told.matches("-y").count()), (1, 1), "{told}");
    assert_eq!(told.matches(":1").count(), 7, "{told}");
}

/// Reads until there is nothing more: how often each name was told to be gone. No response exceeds the limit for responses
/// by more than one name.
fn told_gone(client: &mut Client, fixture: &Fixture) -> BTreeMap<String, usize> {
    let mut gone = BTreeMap::new();
    while let Some(told) = client.poll(fixture) {
        let bytes: usize = told.removed.iter().map(String::len).sum();
        assert!(bytes < 2500 + 100, "{bytes} bytes of {} names in one response", told.removed.len());
        told.removed.iter().for_each(|name| *gone.entry(name.clone()).or_default() += 1);
        client.ack(fixture, &told, &[]);
    }
    gone
}

fn long_names() -> Vec<String> {
    (0..400).map(|number| format!("{number:0>80}")).collect()
}

fn each_once(names: &[String]) -> BTreeMap<String, usize> {
    names.iter().map(|name| (name.clone(), 1)).collect()
}

#[test]
fn r_up_23_many_removals_are_told_in_parts() {
    let (mut fixture, names) = (split(), long_names());
    let all = |form: &dyn Fn(&String) -> String| names.iter().map(form).collect::<Vec<_>>().join(" ");
    fixture.known("cds");
    fixture.origin(&format!("thing {}", all(&|name| format!("{name}:1"))));
    fixture.named(&format!("thing {}", all(&|name| format!("by-{name}:1"))));
    let (mut member, mut by_name) = (fixture.delta_of("thing", "*"), fixture.delta());
    member.change(&fixture, "cds", "*");
    by_name.change(&fixture, "thing", &all(&|name| format!("by-{name}")));
    member.acked(&fixture);
    by_name.acked(&fixture);
    fixture.origin(&format!("thing {}", all(&|name| format!("-{name}"))));
    fixture.named(&format!("thing {}", all(&|name| format!("-by-{name}"))));

    let first = member.poll(&fixture).unwrap();
    assert!(!first.removed.is_empty() && first.removed.len() < 400);
    member.ack(&fixture, &first, &[]);
    fixture.origin("cds a:1");
    fixture.origin(&format!("thing {}:2 new:1", names[399]));
    assert_eq!(member.poll(&fixture).unwrap().type_url, url("cds"), "an addition goes first all the same");
    member.ack(&fixture, &member.newest("cds").clone(), &[]);
    let again = member.poll(&fixture).unwrap();
    assert_eq!(again.resources.len(), 2, "those of the type go along with removals, or before them");
    member.ack(&fixture, &again, &[]);
    let mut gone = told_gone(&mut member, &fixture);
    for name in first.removed.iter().chain(&again.removed) {
        *gone.entry(name.clone()).or_default() += 1;
    }
    assert_eq!(gone, each_once(&names[..399]));
    let by: Vec<String> = names.iter().map(|name| format!("by-{name}")).collect();
    assert_eq!(told_gone(&mut by_name, &fixture), each_once(&by));
}

#[test]
fn r_up_23_many_names_that_do_not_exist_are_told_in_parts() {
    let (mut fixture, names) = (split(), long_names());
    fixture.named(&format!(
        "thing {}",
        names.iter().map(|name| format!("-{name}")).collect::<Vec<_>>().join(" ")
    ));
    fixture.bulky("thing a:1 b:1 c:1 d:1 e:1");
    let (mut at_first, mut later) = (fixture.delta(), fixture.delta());
    at_first.change(&fixture, "thing", &format!("* {}", names.join(" ")));
    assert_eq!(told_gone(&mut at_first, &fixture), each_once(&names));
    later.change(&fixture, "thing", "a");
    later.acked(&fixture);
    later.change(&fixture, "thing", &names.join(" "));
    assert_eq!(told_gone(&mut later, &fixture), each_once(&names));
    let mut let_go = fixture.delta_of("thing", "*");
    let_go.acked(&fixture);
    let_go.change(&fixture, "thing", &names.join(" "));
    told_gone(&mut let_go, &fixture);
    let_go.change(
        &fixture,
        "thing",
        &names.iter().map(|name| format!("-{name}")).collect::<Vec<_>>().join(" "),
    );
    assert_eq!(told_gone(&mut let_go, &fixture), each_once(&names));
}

#[test]
fn r_up_23_removals_for_a_client_that_comes_back_are_told_in_parts() {
    let (mut fixture, names) = (split(), long_names());
    fixture.bulky("thing a:1 b:1 c:1 d:1 e:1");
    let held: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
    let mut client = fixture.delta();
    client.resume(&fixture, "thing", &["*"], &held);
    assert_eq!(told_gone(&mut client, &fixture), each_once(&names));
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
