//! Answers that are too large for one response (R-Up-23), and requests that are too large.

use std::collections::BTreeMap;

use deltafan::cache::{Change, Limits, Op, Protocol, Resend, View};
use deltafan::proto;
use deltafan::subscription::{Code, NextStep};

use crate::support::{Bed, Client, show, strings, url};

fn split() -> Bed {
    split_at(2500)
}

fn split_at(response_bytes: usize) -> Bed {
    let mut bed = Bed::with_limits(Limits { response_bytes, ..Limits::default() });
    bed.known("thing");
    bed
}

#[test]
fn r_up_23_a_large_answer_is_sent_in_parts_whatever_happens_meanwhile() {
    let mut bed = split_at(25_000);
    let names: Vec<String> = (0..400).map(|n| format!("n{n:03}:1")).collect();
    bed.bulky(&format!("thing {}", names.join(" ")));
    let mut client = bed.delta();
    client.change(&bed, "thing", "*");
    let first = client.poll(&bed).unwrap();
    assert!(first.resources.len() < 400, "cut");
    client.ack(&bed, &first, &[]);
    bed.bulky("thing n000:2 -n001 n399:2 -n398 n1:1");
    let rest = client.acked(&bed).join(" ");
    for word in ["n000:2", "n399:2", "n1:1", "n397:1", "-n001"] {
        assert!(rest.split(' ').any(|other| other == word), "{word}");
    }
    assert!(!rest.contains("n398:1") && !rest.contains("n399:1"));
    assert_eq!(rest.matches("n200:").count(), 1);
}

/// Another relay could not tell the first part from the whole otherwise.
#[test]
fn r_up_23_each_part_but_the_last_says_that_more_follows() {
    let mut bed = split();
    let names: Vec<String> = (0..100).map(|n| format!("n{n:02}:1")).collect();
    bed.bulky(&format!("thing {}", names.join(" ")));
    for held in [&[][..], &[("n00", "0")]] {
        let mut client = bed.delta();
        client.resume(&bed, "thing", &["*"], held);
        let mut more = Vec::new();
        while let Some(part) = client.poll(&bed) {
            client.ack(&bed, &part, &[]);
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
        let mut bed = split_at(limit);
        let names: Vec<String> = (0..20).map(|n| format!("n{n:02}:1")).collect();
        bed.origin(&format!("thing {}", names.join(" ")));
        let mut client = bed.delta();
        client.resume(&bed, "thing", &["*"], &[("n00", "0")]);
        let mut more = Vec::new();
        while let Some(part) = client.poll(&bed) {
            client.ack(&bed, &part, &[]);
            more.push(part.nonce.ends_with('>'));
        }
        assert_eq!((more.pop(), more.contains(&false)), (Some(false), false), "{limit}: {more:?}");
    }
}

/// A relay waits for what it was told to follow. That nothing does, since nothing is known of the rest or the rest was let go, is
/// said too.
#[test]
fn r_up_23_an_answer_of_which_no_more_follows_after_all_has_an_end() {
    let mut bed = split_at(50);
    bed.named("thing a:1 b:1 c:1");
    for user_agent in ["deltafan", "envoy"] {
        for (asked, let_go) in [("b x y", None), ("b c", Some("-c"))] {
            let mut client = bed.client_as(user_agent, Protocol::Delta, None);
            client.change(&bed, "thing", "a");
            client.acked(&bed);
            client.change(&bed, "thing", asked);
            let first = client.poll(&bed).unwrap();
            assert_eq!((show(&first).as_str(), first.nonce.ends_with('>')), ("other b:1", true));
            client.ack(&bed, &first, &[]);
            let_go.into_iter().for_each(|names| _ = client.change(&bed, "thing", names));
            let last = client.poll(&bed).map(|last| (show(&last), last.nonce.ends_with('>')));
            let expected = (user_agent == "deltafan").then(|| ("other".to_owned(), false));
            assert_eq!(last, expected, "{asked} asked for by {user_agent}");
            assert!(client.poll(&bed).is_none());
        }
    }
}

#[test]
fn r_up_23_a_wildcard_answer_is_cut_below_the_limit_and_only_a_larger_resource_is_sent_whole() {
    let mut bed = split();
    let names: Vec<String> = (0..100).map(|n| format!("n{n:02}:1")).collect();
    bed.bulky(&format!("thing {}", names.join(" ")));
    let large = crate::wire::resource(&url("thing"), "n50", "2", 4000);
    let op = Op::Set { view: View::Wildcard, resource: large, resend: Resend::Unsolicited, lease: None };
    bed.apply("thing", Change { ops: vec![op], ..Change::default() });
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut client = bed.client(protocol, None);
        client.ask_or_change(&bed, "thing", "*");
        let mut told = Vec::new();
        while let NextStep::Say(outgoing) = client.next(&bed) {
            client.session.taken(bed.now);
            let part = crate::wire::read(protocol, &outgoing.frame);
            let alone = part.resources.len() == 1;
            assert!(alone || outgoing.frame.len() < 2600, "{} bytes of {part:?}", outgoing.frame.len());
            client.ack(&bed, &part, if protocol == Protocol::Sotw { &["*"] } else { &[] });
            told.extend(part.resources.into_iter().map(|(name, _)| name));
        }
        let all: Vec<String> = (0..100).map(|n| format!("n{n:02}")).collect();
        assert_eq!(told, all, "{protocol:?}");
    }
}

#[test]
fn r_up_23_names_fewer_than_the_changes_are_told_in_parts_whatever_happens_meanwhile() {
    let mut bed = split();
    let all = |names: std::ops::Range<usize>, version: usize| {
        names.map(|n| format!("n{n:02}:{version}")).collect::<Vec<_>>().join(" ")
    };
    bed.bulky(&format!("thing {}", all(0..60, 1)));
    let mut client = bed.delta();
    let names: Vec<String> = (0..20).map(|n| format!("n{n:02}")).collect();
    client.change(&bed, "thing", &names.join(" "));
    let first = client.poll(&bed).unwrap();
    let told: Vec<&str> = first.resources.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(told, ["n00", "n01", "n02"]);
    client.ack(&bed, &first, &[]);
    // Of what was told already and of what was not.
    bed.bulky("thing n00:2 -n01 n10:2 -n11 n19:2 -n18 n50:2");
    bed.named("thing -n01 -n11 -n18");
    let rest = client.acked(&bed);
    let words: Vec<&str> = rest.iter().flat_map(|told| told.split(' ')).collect();
    for word in ["n00:2", "n10:2", "n19:2", "-n01"] {
        assert!(words.contains(&word), "{word} in {rest:?}");
    }
    for word in ["n00:1", "n02:1", "n10:1", "n11:1", "n18:1", "n19:1", "n50:2"] {
        assert!(!words.contains(&word), "{word} in {rest:?}");
    }
    for n in (3..20).filter(|n| ![10, 11, 18, 19].contains(n)) {
        let word = format!("n{n:02}:1");
        assert_eq!(words.iter().filter(|other| **other == word).count(), 1, "{word} in {rest:?}");
    }
    // That was all, and the next change finds it where all others are.
    bed.bulky("thing n05:2");
    assert_eq!(client.acked(&bed), ["other n05:2"]);
}

/// A reload may change where answers are cut while one is being sent.
#[test]
fn r_up_23_a_large_answer_goes_on_where_it_stands_when_it_is_cut_elsewhere() {
    let parts = [25_000, 10_000_000].map(|response_bytes| {
        let mut bed = split_at(25_000);
        let names: Vec<String> = (0..400).map(|n| format!("n{n:03}:1")).collect();
        bed.bulky(&format!("thing {}", names.join(" ")));
        let mut client = bed.delta();
        client.change(&bed, "thing", "*");
        let first = client.poll(&bed).unwrap();
        client.ack(&bed, &first, &[]);
        bed.cache.set_limits(&Limits { response_bytes, ..Limits::default() });
        let rest = client.acked(&bed);
        let told = first.resources.len() + rest.join(" ").matches(":1").count();
        assert_eq!(told, 400, "each once, in parts of {response_bytes} bytes");
        rest.len()
    });
    assert!(parts[0] > 1 && parts[1] == 1, "{parts:?}");
}

#[test]
fn r_up_23_names_that_do_not_exist_are_said_once_in_a_split_answer() {
    let mut bed = split();
    bed.named("thing -x -y");
    bed.bulky("thing a:1 b:1 c:1 d:1 e:1 f:1 g:1");
    bed.apply("thing", Change::default());
    let mut client = bed.delta();
    client.change(&bed, "thing", "* x y");
    let told = client.acked(&bed);
    assert!(told.len() > 1, "{told:?}");
    let told = told.join(" ");
    assert_eq!((told.matches("-x").count(), told.matches("-y").count()), (1, 1), "{told}");
    assert_eq!(told.matches(":1").count(), 7, "{told}");
}

#[test]
fn r_up_23_a_split_answer_has_no_empty_part() {
    let mut bed = split();
    bed.bulky("thing a:1 b:1 c:1 d:1 e:1 f:1 g:1");
    let mut client = bed.delta();
    client.change(&bed, "thing", "*");
    client.acked(&bed);
    bed.bulky("thing a:2 b:2 c:2 d:2");
    client.change(&bed, "thing", "a");
    bed.bulky("thing a:3");
    bed.apply(
        "thing",
        Change { ops: vec![Op::Remove { view: View::Named, name: "a".into() }], ..Change::default() },
    );
    let told = client.acked(&bed);
    assert!(told.iter().all(|told| told.contains(':')), "{told:?}");
}

/// Reads until there is nothing more: how often each name was told to be gone. No response exceeds the limit for responses
/// by more than one name.
fn told_gone(client: &mut Client, bed: &Bed) -> BTreeMap<String, usize> {
    let mut gone = BTreeMap::new();
    while let Some(told) = client.poll(bed) {
        let bytes: usize = told.removed.iter().map(String::len).sum();
        assert!(bytes < 2500 + 100, "{bytes} bytes of {} names in one response", told.removed.len());
        told.removed.iter().for_each(|name| *gone.entry(name.clone()).or_default() += 1);
        client.ack(bed, &told, &[]);
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
    let (mut bed, names) = (split(), long_names());
    let all = |form: &dyn Fn(&String) -> String| names.iter().map(form).collect::<Vec<_>>().join(" ");
    bed.known("cds");
    bed.origin(&format!("thing {}", all(&|name| format!("{name}:1"))));
    bed.named(&format!("thing {}", all(&|name| format!("by-{name}:1"))));
    let (mut member, mut by_name) = (bed.delta(), bed.delta());
    member.change(&bed, "thing", "*");
    member.change(&bed, "cds", "*");
    by_name.change(&bed, "thing", &all(&|name| format!("by-{name}")));
    member.acked(&bed);
    by_name.acked(&bed);
    bed.origin(&format!("thing {}", all(&|name| format!("-{name}"))));
    bed.named(&format!("thing {}", all(&|name| format!("-by-{name}"))));

    let first = member.poll(&bed).unwrap();
    assert!(!first.removed.is_empty() && first.removed.len() < 400);
    member.ack(&bed, &first, &[]);
    bed.origin("cds a:1");
    bed.origin(&format!("thing {}:2 new:1", names[399]));
    assert_eq!(member.poll(&bed).unwrap().type_url, url("cds"), "an addition goes first all the same");
    member.ack(&bed, &member.newest("cds").clone(), &[]);
    let again = member.poll(&bed).unwrap();
    assert_eq!(again.resources.len(), 2, "those of the type go along with removals, or before them");
    member.ack(&bed, &again, &[]);
    let mut gone = told_gone(&mut member, &bed);
    for name in first.removed.iter().chain(&again.removed) {
        *gone.entry(name.clone()).or_default() += 1;
    }
    assert_eq!(gone, each_once(&names[..399]));
    let by: Vec<String> = names.iter().map(|name| format!("by-{name}")).collect();
    assert_eq!(told_gone(&mut by_name, &bed), each_once(&by));
}

#[test]
fn r_up_23_many_names_that_do_not_exist_are_told_in_parts() {
    let (mut bed, names) = (split(), long_names());
    bed.named(&format!(
        "thing {}",
        names.iter().map(|name| format!("-{name}")).collect::<Vec<_>>().join(" ")
    ));
    bed.bulky("thing a:1 b:1 c:1 d:1 e:1");
    let (mut at_first, mut later) = (bed.delta(), bed.delta());
    at_first.change(&bed, "thing", &format!("* {}", names.join(" ")));
    assert_eq!(told_gone(&mut at_first, &bed), each_once(&names));
    later.change(&bed, "thing", "a");
    later.acked(&bed);
    later.change(&bed, "thing", &names.join(" "));
    assert_eq!(told_gone(&mut later, &bed), each_once(&names));
    let mut let_go = bed.delta();
    let_go.change(&bed, "thing", "*");
    let_go.acked(&bed);
    let_go.change(&bed, "thing", &names.join(" "));
    told_gone(&mut let_go, &bed);
    let_go.change(&bed, "thing", &names.iter().map(|name| format!("-{name}")).collect::<Vec<_>>().join(" "));
    assert_eq!(told_gone(&mut let_go, &bed), each_once(&names));
}

#[test]
fn r_up_23_what_a_client_that_comes_back_holds_and_is_gone_is_told_in_parts() {
    let (mut bed, names) = (split(), long_names());
    bed.bulky("thing a:1 b:1 c:1 d:1 e:1");
    let held: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
    let mut client = bed.delta();
    client.resume(&bed, "thing", &["*"], &held);
    assert_eq!(told_gone(&mut client, &bed), each_once(&names));
}

#[test]
fn limits_of_names_and_types_refuse_the_stream() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.rules.max_names = 3;
    bed.rules.max_name_bytes = 100;
    bed.rules.max_types = 2;
    let request = |short: &str, names: &[&str]| proto::DeltaDiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_names_subscribe: strings(names),
        ..proto::DeltaDiscoveryRequest::default()
    };
    let long = "n".repeat(101);
    let code = |client: &mut Client, short, names: &[&str]| {
        client.on_delta_request(&bed, request(short, names)).map_err(|refusal| refusal.code)
    };
    let mut client = bed.delta();
    code(&mut client, "cds", &["a", "b", "c"]).unwrap();
    code(&mut client, "cds", &["a", "b", "c"]).expect("the same names again are not more names");
    assert_eq!(code(&mut client, "cds", &["d"]), Err(Code::ResourceExhausted));
    assert_eq!(code(&mut client, "eds", &[&long]), Err(Code::InvalidArgument));
    assert_eq!(code(&mut client, "eds", &["a", "b", "c", "d"]), Err(Code::ResourceExhausted));
    code(&mut client, "eds", &[]).unwrap();
    assert_eq!(code(&mut client, "lds", &[]), Err(Code::ResourceExhausted));

    let mut sotw = bed.client(Protocol::Sotw, None);
    let names = |names: &[&str]| proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        resource_names: strings(names),
        ..proto::DiscoveryRequest::default()
    };
    assert_eq!(
        sotw.on_sotw_request(&bed, names(&["a", "b", "c", "d"])).unwrap_err().code,
        Code::ResourceExhausted
    );
    assert_eq!(sotw.on_sotw_request(&bed, names(&[&long])).unwrap_err().code, Code::InvalidArgument);
}
