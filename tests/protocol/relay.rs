//! What only a relay has to decide: R-Relay.

use std::time::Duration;

use deltafan::cache::{Change, Completeness, Limits, Op, ParameterView, Protocol, View};
use deltafan::proto;
use deltafan::resource::Name;
use deltafan::subscription::{Code, NextStep, Upstream};

use crate::support::{Bed, Client, strings, url};
use crate::wire::type_url;

#[test]
fn r_relay_03_a_name_that_somebody_asked_for_is_no_member_of_the_wildcard() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut bed = Bed::knowing(&["cds"]);
        bed.origin("cds a:1");
        let mut everything = bed.client(protocol, None);
        match protocol {
            Protocol::Sotw => everything.ask(&bed, "cds", &[]),
            Protocol::Delta => everything.change(&bed, "cds", "*"),
        };
        assert_eq!(everything.acked(&bed), ["cds a:1"]);
        let mut one = bed.delta();
        one.change(&bed, "cds", "foo");
        bed.named("cds foo:1");
        assert_eq!(one.acked(&bed), ["cds foo:1"]);
        bed.named("cds foo:2");
        bed.origin("cds a:2");
        assert_eq!(everything.acked(&bed), ["cds a:2"]);
        bed.named("cds -foo");
        assert!(everything.acked(&bed).is_empty());
        // Nor is it to those who come later.
        bed.named("cds foo:3");
        let mut late = bed.delta();
        late.change(&bed, "cds", "*");
        assert_eq!(late.acked(&bed), ["cds a:2"]);
    }
}

#[test]
fn r_relay_03_a_member_that_is_held_by_name_too_leaves_the_wildcard_alone() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut bed = Bed::knowing(&["cds"]);
        bed.origin("cds a:1 b:1");
        bed.named("cds a:1");
        let (mut everything, mut one, mut back) = (bed.client(protocol, None), bed.delta(), bed.delta());
        everything.ask_or_change(&bed, "cds", "*");
        one.change(&bed, "cds", "a");
        everything.acked(&bed);
        one.acked(&bed);
        // As after a sweep: the origin does not list it any more, and has said nothing of its name.
        bed.origin("cds -a");
        assert_eq!(
            everything.acked(&bed).last().map(String::as_str),
            Some(match protocol {
                Protocol::Sotw => "cds b:1",
                Protocol::Delta => "cds -a",
            })
        );
        assert!(one.acked(&bed).is_empty(), "its own name still has it");
        back.resume(&bed, "cds", &["*"], &[("a", "1"), ("b", "1")]);
        assert_eq!(back.acked(&bed), ["cds -a"]);
    }
}

#[test]
fn r_relay_04_unknown_is_never_shown_as_missing() {
    let mut bed = Bed::new();
    let (mut sotw, mut delta) = (bed.sotw(), bed.delta());
    sotw.ask(&bed, "lds", &["a", "b"]);
    delta.change(&bed, "lds", "a b");
    bed.named("lds a:1");
    assert!(sotw.told(&bed).is_empty(), "a full state that lacks what may exist deletes it");
    assert_eq!(delta.told(&bed), ["lds a:1"], "a delta answer need not wait");
    bed.named("lds -b");
    assert_eq!(sotw.told(&bed), ["lds a:1"]);
}

/// Lets time pass until the client is told something.
fn told_in_time(bed: &mut Bed, client: &mut Client) -> Vec<String> {
    let mut told = client.told(bed);
    while told.is_empty() {
        let NextStep::Wait(Some(until)) = client.next(bed) else { panic!("it has to look again") };
        bed.now = until;
        told = client.told(bed);
    }
    told
}

#[test]
fn r_relay_04_who_holds_nothing_waits_a_moment_for_a_name_the_origin_ignores() {
    let mut bed = Bed::new();
    bed.upstream = Upstream::Away;
    let mut client = bed.sotw();
    client.ask(&bed, "lds", &["a", "b"]);
    let asked = bed.now;
    bed.named("lds a:1");
    let told = told_in_time(&mut bed, &mut client);
    assert_eq!(told, ["lds a:1"], "also while the origin is away (R-Relay-06)");
    assert_eq!(bed.now, asked + bed.rules.settle);
    client.ask(&bed, "lds", &["a", "b", "c"]);
    bed.named("lds a:2");
    assert_eq!(
        told_in_time(&mut bed, &mut client),
        ["lds a:2"],
        "and a name that is added does not hold it up"
    );
    bed.named("lds b:1");
    client.ask(&bed, "lds", &["a", "b", "c"]);
    assert_eq!(client.told(&bed), ["lds a:2 b:1"]);
}

#[test]
fn r_relay_04_who_may_hold_a_name_the_origin_ignores_waits_long_but_not_for_ever() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    let request = proto::DiscoveryRequest {
        node: client.node.clone(),
        version_info: "of an earlier stream".to_owned(),
        type_url: type_url("cds").as_str().to_owned(),
        resource_names: strings(&["a", "b"]),
        ..proto::DiscoveryRequest::default()
    };
    client.on_sotw_request(&bed, request).unwrap();
    bed.named("cds a:1");
    let asked = bed.now;
    assert_eq!(told_in_time(&mut bed, &mut client), ["cds a:1"]);
    assert_eq!(bed.now, asked + bed.rules.longest_silence());
    assert!(bed.now > asked + bed.rules.dead_unnoticed, "a dead connection is silent too");
}

/// An empty full state would say of a name that it does not exist, and holds back nothing that another name could wait for.
#[test]
fn r_relay_04_a_client_that_sees_nothing_waits_for_each_name_from_its_own_moment() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    client.ask(&bed, "lds", &["none"]);
    bed.known("lds");
    let heard = bed.now;
    let empty = loop {
        match client.poll(&bed) {
            Some(response) => break response,
            None => bed.after(Duration::from_secs(1)),
        }
    };
    client.ack(&bed, &empty, &["none"]);
    assert_eq!(bed.now, heard + bed.rules.longest_silence());
    bed.after(Duration::from_secs(10));
    client.ask(&bed, "lds", &["a", "none"]);
    let asked = bed.now;
    let NextStep::Wait(Some(_)) = client.next(&bed) else { panic!("nothing is known of the other name") };
    bed.after(Duration::from_secs(1));
    bed.named("lds a:1");
    assert_eq!(told_in_time(&mut bed, &mut client), ["lds a:1"]);
    assert!(bed.now < asked + Duration::from_secs(2));
}

/// A client that comes with a version and these names.
fn come_back(bed: &Bed, client: &mut Client, short: &str, names: &[&str]) {
    let request = proto::DiscoveryRequest {
        version_info: "of an earlier stream".to_owned(),
        type_url: type_url(short).as_str().to_owned(),
        resource_names: strings(names),
        ..proto::DiscoveryRequest::default()
    };
    client.on_sotw_request(bed, request).unwrap();
}

#[test]
fn r_relay_04_an_origin_that_answers_late_empties_no_client() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    come_back(&bed, &mut client, "cds", &["a", "b"]);
    bed.after(Duration::from_secs(10));
    assert!(client.told(&bed).is_empty(), "the origin has answered for other types only");
    bed.after(Duration::from_secs(4));
    bed.named("cds a:1");
    let heard = bed.now;
    assert!(client.told(&bed).is_empty(), "the rest of its answer is on its way");
    assert_eq!(told_in_time(&mut bed, &mut client), ["cds a:1"]);
    assert_eq!(bed.now, heard + bed.rules.longest_silence());
}

#[test]
fn r_relay_04_what_was_answered_on_an_earlier_connection_does_not_count() {
    let mut bed = Bed::new();
    bed.named("cds a:1");
    bed.after(Duration::from_secs(60));
    bed.writer.unheard();
    let mut client = bed.sotw();
    come_back(&bed, &mut client, "cds", &["a", "b"]);
    bed.after(Duration::from_secs(14));
    assert!(client.told(&bed).is_empty());
    bed.named("cds b:1");
    assert_eq!(client.told(&bed), ["cds a:1 b:1"]);
}

#[test]
fn r_relay_04_a_state_of_which_nothing_is_known_is_never_told_to_a_client_that_may_hold_it() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    come_back(&bed, &mut client, "cds", &["a", "b"]);
    bed.named("cds other:1");
    bed.after(Duration::from_secs(3600));
    assert!(client.told(&bed).is_empty());
    bed.named("cds -b");
    bed.after(Duration::from_secs(3600));
    assert!(client.told(&bed).is_empty(), "nor one that says of the other that it is gone too");
    bed.named("cds a:1");
    assert_eq!(client.told(&bed), ["cds a:1"]);
}

#[test]
fn r_relay_04_the_origin_answers_for_a_type_whatever_the_parameters() {
    let bed = Bed::new();
    let cds = type_url("cds");
    let plain = bed.cache.of(&cds).unwrap();
    bed.writer.heard(&cds, bed.now);
    let parameters = [("env", "prod")].into_iter().collect();
    let seen = bed.cache.seen(&cds, &ParameterView::uniform(parameters)).unwrap();
    let eds = bed.cache.of(&type_url("eds")).unwrap();
    bed.writer.heard(&cds, bed.now + Duration::from_secs(1));
    let heard = [&plain, &seen, &eds].map(|of| of.heard_since());
    assert_eq!(heard, [Some(bed.now), Some(bed.now), None]);
    bed.writer.unheard();
    assert_eq!((plain.heard_since(), seen.heard_since()), (None, None));
}

#[test]
fn r_relay_04_a_client_that_was_told_all_that_it_asked_for_holds_nothing_else() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    come_back(&bed, &mut client, "cds", &["a"]);
    bed.named("cds a:1");
    assert_eq!(client.acked_with(&bed, &[("cds", &["a"])]), ["cds a:1"]);
    client.ask(&bed, "cds", &["a", "b"]);
    let asked = bed.now;
    assert_eq!(told_in_time(&mut bed, &mut client), ["cds a:1"]);
    assert_eq!(bed.now, asked + bed.rules.settle, "it cannot lose `b`");
}

#[test]
fn r_relay_05_a_full_state_waits_until_the_set_is_known() {
    let mut bed = Bed::new();
    let (mut sotw, mut delta) = (bed.sotw(), bed.delta());
    sotw.ask(&bed, "cds", &[]);
    delta.change(&bed, "cds", "");
    bed.origin("cds a:1");
    assert!(sotw.told(&bed).is_empty());
    assert_eq!(delta.acked(&bed), ["cds a:1"]);
    bed.origin("cds b:1");
    bed.known("cds");
    assert_eq!(sotw.told(&bed), ["cds a:1 b:1"]);
    assert_eq!(delta.acked(&bed), ["cds b:1"]);
}

#[test]
fn r_relay_05_a_set_that_settled_is_for_clients_that_hold_nothing() {
    let mut bed = Bed::new();
    bed.origin("cds a:1");
    bed.know("cds", Completeness::Presumed);
    let (mut fresh, mut back, mut changed) = (bed.sotw(), bed.sotw(), bed.sotw());
    fresh.ask(&bed, "cds", &[]);
    assert_eq!(fresh.acked(&bed), ["cds a:1"]);
    come_back(&bed, &mut back, "cds", &[]);
    changed.ask(&bed, "cds", &["b"]);
    bed.named("cds b:1");
    assert_eq!(changed.acked_with(&bed, &[("cds", &["b"])]), ["cds b:1"]);
    changed.ask(&bed, "cds", &["*"]);
    assert!(changed.told(&bed).is_empty(), "`b`, which it holds, may be a member that has not come yet");
    bed.after(Duration::from_secs(3600));
    assert!(back.told(&bed).is_empty());
    bed.origin("cds b:1");
    assert_eq!(fresh.acked(&bed), ["cds a:1 b:1"]);
    assert!(back.told(&bed).is_empty() && changed.told(&bed).is_empty());
    bed.known("cds");
    assert_eq!(
        (back.told(&bed), changed.told(&bed)),
        (vec!["cds a:1 b:1".to_owned()], vec!["cds a:1 b:1".to_owned()])
    );
    assert!(fresh.told(&bed).is_empty(), "it has been told all of it");
}

#[test]
fn r_relay_05_removals_are_worked_out_from_a_complete_set_only() {
    let mut bed = Bed::new();
    bed.origin("cds a:1");
    bed.know("cds", Completeness::Presumed);
    let (mut back, mut fresh, mut lets_go) = (bed.delta(), bed.delta(), bed.delta());
    back.resume(&bed, "cds", &["*"], &[("a", "1"), ("b", "1"), ("c", "1")]);
    fresh.change(&bed, "cds", "*");
    bed.named("cds b:1");
    lets_go.change(&bed, "cds", "* b");
    assert_eq!(lets_go.acked(&bed), ["cds a:1 b:1"]);
    lets_go.change(&bed, "cds", "-b");
    assert!(back.told(&bed).is_empty());
    assert_eq!(fresh.acked(&bed), ["cds a:1"]);
    assert!(lets_go.acked(&bed).is_empty(), "it may be a member of the set");
    bed.origin("cds b:1");
    bed.known("cds");
    assert_eq!(back.told(&bed), ["cds -c"]);
    assert_eq!(lets_go.acked(&bed), ["cds b:1"]);
}

#[test]
fn r_relay_05_what_was_brought_beside_names_is_not_gone_before_the_set_is_complete() {
    let mut bed = Bed::new();
    bed.know("cds", Completeness::Presumed);
    bed.named("eds x:1");
    let mut client = bed.delta();
    client.change(&bed, "eds", "x");
    let told = client.poll(&bed).unwrap();
    bed.named("eds x:2");
    client.resume(&bed, "cds", &["a"], &[("b", "1"), ("c", "1")]);
    assert!(client.told(&bed).is_empty(), "removals wait for the endpoints, and those for an answer");
    client.change(&bed, "cds", "*");
    client.ack(&bed, &told, &[]);
    assert_eq!(client.acked(&bed), ["eds x:2"], "`b` may be a member that has not come yet");
    bed.origin("cds c:1");
    bed.known("cds");
    assert_eq!(client.acked(&bed), ["cds c:1 -b"]);
}

#[test]
fn r_relay_05_an_empty_set_is_an_answer_once_it_settled() {
    for (completeness, told) in [(Completeness::Unknown, 0), (Completeness::Presumed, 1)] {
        let mut bed = Bed::new();
        bed.know("cds", completeness);
        let mut delta = bed.delta();
        delta.change(&bed, "cds", "*");
        assert_eq!(delta.acked(&bed).len(), told);
    }
}

#[test]
fn r_relay_06_without_the_origin_newcomers_are_served_and_nothing_is_removed() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    bed.upstream = Upstream::Away;
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    assert_eq!(client.acked(&bed), ["cds a:1"]);
    bed.after(Duration::from_secs(3600));
    assert!(client.acked(&bed).is_empty());
}

#[test]
fn r_relay_07_a_cold_relay_without_origin_closes_before_any_response() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    let NextStep::Wait(Some(until)) = client.next(&bed) else { panic!("it waits for the origin") };
    assert!(until <= bed.now + bed.rules.cold_deadline);
    bed.after(bed.rules.cold_deadline);
    assert!(matches!(client.next(&bed), NextStep::Wait(_)), "the origin answers");
    for (upstream, why) in [(Upstream::Away, "be reached"), (Upstream::Silent, "answers nothing")] {
        bed.upstream = upstream;
        let NextStep::Close(refusal) = client.next(&bed) else { panic!("cold") };
        assert_eq!(refusal.code, Code::Unavailable);
        assert!(refusal.message.contains(why), "{refusal}");
    }
}

#[test]
fn r_relay_07_a_stream_that_had_a_response_stays_open() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    client.change(&bed, "eds", "a");
    assert_eq!(client.acked(&bed), ["cds a:1"]);
    bed.upstream = Upstream::Away;
    bed.after(Duration::from_secs(3600));
    assert!(matches!(client.next(&bed), NextStep::Wait(_)));
}

#[test]
fn r_relay_09_versions_of_resources_are_the_origins() {
    // The harness compares the version in each envelope with the one in the body.
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:v-17/x");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    assert_eq!(client.told(&bed), ["cds a:v-17/x"]);
}

#[test]
fn r_relay_11_the_version_is_a_digest_of_what_the_client_sees() {
    let mut bed = Bed::knowing(&["cds"]);
    let mut other = Bed::knowing(&["cds"]);
    bed.origin("cds a:1 b:1");
    other.origin("cds b:0");
    other.origin("cds c:1 b:1");
    other.origin("cds a:1 -c");
    let version = |bed: &Bed, names: &[&str]| {
        let mut client = bed.sotw();
        client.ask(bed, "cds", names);
        client.poll(bed).unwrap().version
    };
    assert_eq!(version(&bed, &[]), version(&other, &[]), "another replica with another history");
    assert_eq!(version(&bed, &[]), version(&bed, &["*"]));
    bed.named("cds a:1 b:1");
    assert_eq!(version(&bed, &["a", "b"]), version(&bed, &[]), "it says what is seen, not how");
    assert_ne!(version(&bed, &["a"]), version(&bed, &[]));

    let before = version(&bed, &[]);
    bed.resend(View::Wildcard, "cds a:1");
    assert_eq!(version(&bed, &[]), before, "R-Relay-21: a resend is no change");
    bed.origin("cds a:1/changed");
    assert_ne!(version(&bed, &[]), before, "R-XT-06: another body at the same version is a change");
}

#[test]
fn r_relay_13_to_15_a_nack_concerns_nobody_else() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let (mut bad, mut good) = (bed.delta(), bed.delta());
    for client in [&mut bad, &mut good] {
        client.change(&bed, "cds", "*");
        client.acked(&bed);
    }
    bed.cache.take_interest();
    bed.origin("cds a:2");
    let told = bad.poll(&bed).unwrap();
    bad.nack(&bed, &told, &[]);
    assert!(bed.cache.take_interest().is_empty(), "nothing of it goes upstream");
    assert_eq!(good.acked(&bed), ["cds a:2"]);
    let mut late = bed.delta();
    late.change(&bed, "cds", "*");
    assert_eq!(late.acked(&bed), ["cds a:2"], "no rollback");
}

#[test]
fn r_relay_16_what_is_wanted_upstream_is_the_union_and_ends_with_the_last_client() {
    let bed = Bed::new();
    let name = |text: &str| Name::from(text);
    let (mut a, mut b) = (bed.delta(), bed.sotw());
    a.change(&bed, "eds", "x y");
    b.ask(&bed, "eds", &["y", "*"]);
    let taken = |bed: &Bed| {
        let mut taken = bed.cache.take_interest();
        taken.iter_mut().for_each(|wanted| wanted.interest.names.sort());
        taken.into_iter().map(|wanted| (wanted.interest.wildcard, wanted.interest.names)).collect::<Vec<_>>()
    };
    assert_eq!(taken(&bed), [(true, vec![(name("x"), true), (name("y"), true)])]);
    a.change(&bed, "eds", "-y");
    assert!(taken(&bed).is_empty(), "somebody else still asks for it");
    b.ask(&bed, "eds", &["z"]);
    assert_eq!(taken(&bed), [(false, vec![(name("y"), false), (name("z"), true)])]);
    drop((a, b));
    assert_eq!(taken(&bed), [(false, vec![(name("x"), false), (name("z"), false)])]);
    let of = bed.cache.of(&url("eds")).unwrap();
    assert_eq!((of.cohorts(), of.wants_wildcard(), of.wants("x")), (0, false, false));
}

#[test]
fn r_relay_16_who_asks_for_many_names_does_not_delay_who_asks_for_one() {
    let bed = Bed::new();
    let all = |prefix: &str| (0..5_000).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>().join(" ");
    let taken = |bed: &Bed| -> Vec<(Name, bool)> {
        bed.cache.take_interest().into_iter().flat_map(|wanted| wanted.interest.names).collect()
    };
    let (mut many, mut one) = (bed.delta(), bed.delta());
    many.change(&bed, "eds", &all("a"));
    let mut asked = taken(&bed);
    assert!(asked.len() <= 600, "{} names at once", asked.len());
    one.change(&bed, "eds", "b a4999");
    let next = taken(&bed);
    assert!(next.contains(&(Name::from("b"), true)), "its turn comes with the next");
    assert!(next.contains(&(Name::from("a4999"), true)), "also where it is one of the many");
    asked.extend(next);
    while bed.cache.has_interest() {
        asked.extend(taken(&bed));
    }
    assert_eq!((asked.len(), asked.iter().all(|(_, wanted)| *wanted)), (5_001, true));
    drop(many);
    one.change(&bed, "eds", "-b");
    assert!(taken(&bed).contains(&(Name::from("b"), false)), "nor when it lets them go");
    while bed.cache.has_interest() {
        taken(&bed);
    }
    let mut long = bed.delta();
    long.change(&bed, "eds", &(0..400).map(|n| format!("{n:0>200}")).collect::<Vec<_>>().join(" "));
    let bytes: usize = taken(&bed).iter().map(|(name, _)| name.as_str().len()).sum();
    assert!(bytes < 20 << 10, "{bytes} bytes at once");
}

#[test]
fn r_relay_17_a_newcomer_and_a_resubscription_cost_no_upstream_traffic() {
    let mut bed = Bed::new();
    let (mut a, mut b) = (bed.delta(), bed.delta());
    a.change(&bed, "eds", "x");
    bed.cache.take_interest();
    bed.named("eds x:1");
    b.change(&bed, "eds", "x");
    a.change(&bed, "eds", "x");
    assert!(bed.cache.take_interest().is_empty());
    assert_eq!((a.told(&bed), b.told(&bed)), (vec!["eds x:1".to_owned()], vec!["eds x:1".to_owned()]));
}

#[test]
fn r_relay_18_a_late_joiner_learns_at_once_that_a_name_is_absent() {
    let mut bed = Bed::new();
    let mut first = bed.delta();
    first.change(&bed, "eds", "x");
    bed.named("eds x:1");
    bed.named("eds -x");
    let mut late = bed.delta();
    late.change(&bed, "eds", "x");
    assert_eq!(late.told(&bed), ["eds -x"]);
}

#[test]
fn r_relay_18_what_is_forgotten_is_unknown_again() {
    let mut bed = Bed::new();
    bed.named("eds x:1");
    let forget = Op::Forget { view: View::Named, name: "x".into() };
    bed.apply("eds", Change { ops: vec![forget], ..Change::default() });
    let mut client = bed.delta();
    client.change(&bed, "eds", "x");
    assert!(client.told(&bed).is_empty());
}

#[test]
fn r_relay_21_a_resend_of_a_member_reaches_wildcard_and_named_clients() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1 b:1");
    let (mut delta, mut named, mut sotw) = (bed.delta(), bed.delta(), bed.sotw());
    delta.change(&bed, "cds", "*");
    named.change(&bed, "cds", "a");
    sotw.ask(&bed, "cds", &[]);
    for client in [&mut delta, &mut named, &mut sotw] {
        client.acked(&bed);
    }
    let version = sotw.newest("cds").version.clone();
    bed.resend(View::Wildcard, "cds a:1");
    assert_eq!(delta.acked(&bed), ["cds a:1"]);
    assert_eq!(named.acked(&bed), ["cds a:1"]);
    assert_eq!(sotw.acked(&bed), ["cds a:1 b:1"]);
    assert_eq!(sotw.newest("cds").version, version);
}

#[test]
fn r_relay_22_a_client_that_takes_nothing_is_told_the_newest_only() {
    let mut bed = Bed::knowing(&["cds"]);
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    client.acked(&bed);
    for version in 1..100 {
        bed.origin(&format!("cds a:{version}"));
    }
    assert_eq!(client.acked(&bed), ["cds a:99"]);
}

fn forgetful() -> Bed {
    let mut bed = Bed::with_limits(Limits { tombstones: 8, ..Limits::default() });
    bed.known("cds");
    bed
}

fn churn(bed: &mut Bed) {
    for number in 0..20 {
        bed.origin(&format!("cds t{number}:1"));
        bed.origin(&format!("cds -t{number}"));
    }
}

#[test]
fn r_relay_22_who_stands_before_the_memory_of_removals_is_closed_to_resume() {
    let mut bed = forgetful();
    bed.origin("cds a:1 b:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    assert_eq!(client.acked(&bed), ["cds a:1 b:1"]);
    bed.origin("cds -a");
    churn(&mut bed);
    let NextStep::Close(refusal) = client.next(&bed) else { panic!("its removals are forgotten") };
    assert_eq!(refusal.code, Code::Unavailable);
    let mut again = bed.delta();
    again.resume(&bed, "cds", &[], &[("a", "1"), ("b", "1")]);
    assert_eq!(again.acked(&bed), ["cds -a"]);
}

#[test]
fn r_relay_22_who_asked_by_name_needs_no_memory_of_other_removals() {
    let mut bed = forgetful();
    bed.named("cds mine:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "mine");
    assert_eq!(client.acked(&bed), ["cds mine:1"]);
    churn(&mut bed);
    bed.named("cds -mine");
    assert_eq!(client.acked(&bed), ["cds -mine"]);
}

#[test]
fn r_relay_22_names_that_are_forgotten_do_not_age_a_wildcard_client() {
    let mut bed = forgetful();
    // Members that are asked for by name too, and lost.
    for number in 0..20 {
        bed.named(&format!("cds t{number}:1"));
        bed.origin(&format!("cds t{number}:1"));
        bed.origin(&format!("cds -t{number}"));
    }
    bed.origin("cds a:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    assert_eq!(client.acked(&bed), ["cds a:1"]);
    for number in 0..20 {
        let forget = Op::Forget { view: View::Named, name: format!("t{number}").into() };
        bed.apply("cds", Change { ops: vec![forget], ..Change::default() });
    }
    bed.origin("cds a:2");
    assert_eq!(client.acked(&bed), ["cds a:2"], "nothing that it was to be told is lost");
}

#[test]
fn r_relay_22_removals_lost_during_a_split_answer_close_the_stream() {
    let mut bed = Bed::with_limits(Limits { tombstones: 8, response_bytes: 2500, ..Limits::default() });
    bed.known("thing");
    bed.named("thing -x");
    bed.bulky("thing a:1 b:1 c:1 d:1 e:1 f:1 g:1");
    let mut client = bed.delta();
    client.change(&bed, "thing", "* x");
    let first = client.poll(&bed).unwrap();
    assert!(first.resources.iter().any(|(name, _)| name == "a"));
    client.ack(&bed, &first, &[]);
    bed.bulky("thing -a");
    for number in 0..20 {
        bed.bulky(&format!("thing t{number}:1"));
        bed.bulky(&format!("thing -t{number}"));
    }
    loop {
        match client.next(&bed) {
            NextStep::Close(refusal) => break assert_eq!(refusal.code, Code::Unavailable),
            NextStep::Wait(_) => panic!("it holds `a`, which is gone, and will never hear of it"),
            NextStep::Say(_) => {
                client.session.taken(bed.now);
                bed.after(bed.rules.ack_timeout);
            }
        }
    }
}
