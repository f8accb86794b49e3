//! Decisions that only a relay has to make: R-Relay.

use std::time::Duration;

use deltafan::cache::{Change, Completeness, Limits, Op, ParameterView, Protocol, View};
use deltafan::resource::Name;
use deltafan::subscription::{Code, NextStep, RequestKind, Upstream};
use deltafan_test_support::fixture::{Client, Fixture, strings, url};
use deltafan_test_support::wire::type_url;

/// A version that the relay does not know.
const EARLIER: &str = "of an earlier stream";

#[test]
fn r_relay_03_a_name_that_somebody_asked_for_is_no_member_of_the_wildcard() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
        let mut everything = fixture.client_of(protocol, "cds", "*");
        assert_eq!(everything.acked(&fixture), ["cds a:1"]);
        let mut one = fixture.delta_of("cds", "foo");
        fixture.named("cds foo:1");
        assert_eq!(one.acked(&fixture), ["cds foo:1"]);
        fixture.named("cds foo:2");
        fixture.origin("cds a:2");
        assert_eq!(everything.acked(&fixture), ["cds a:2"]);
        fixture.named("cds -foo");
        assert!(everything.acked(&fixture).is_empty());
        // Nor is it to those who come later.
        fixture.named("cds foo:3");
        let mut late = fixture.delta_of("cds", "*");
        assert_eq!(late.acked(&fixture), ["cds a:2"]);
    }
}

#[test]
fn r_relay_03_a_member_has_one_body_whichever_stream_brings_it() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1").with_named("cds a:1");
        let (mut everything, mut one) = (fixture.client(protocol, None), fixture.client(protocol, None));
        everything.ask_or_change(&fixture, "cds", "*");
        one.ask_or_change(&fixture, "cds", "a");
        let mut both_are_told = |fixture: &Fixture, expected: &[&str]| {
            assert_eq!(everything.acked_with(fixture, &[("cds", &["*"])]), strings(expected));
            assert_eq!(one.acked_with(fixture, &[("cds", &["a"])]), strings(expected));
        };
        both_are_told(&fixture, &["cds a:1"]);
        // Either stream may be the faster one: each change is sent once.
        fixture.named("cds a:2");
        both_are_told(&fixture, &[]);
        fixture.origin("cds a:2");
        both_are_told(&fixture, &["cds a:2"]);
        fixture.origin("cds a:3");
        both_are_told(&fixture, &["cds a:3"]);
        fixture.named("cds a:3");
        both_are_told(&fixture, &[]);
    }
}

#[test]
fn r_relay_04_unknown_is_never_shown_as_missing() {
    let mut fixture = Fixture::new();
    let (mut sotw, mut delta) = (fixture.sotw_of("lds", &["a", "b"]), fixture.delta_of("lds", "a b"));
    fixture.named("lds a:1");
    assert!(sotw.told(&fixture).is_empty(), "a full state that lacks what may exist deletes it");
    assert_eq!(delta.told(&fixture), ["lds a:1"], "a delta answer need not wait");
    fixture.named("lds -b");
    assert_eq!(sotw.told(&fixture), ["lds a:1"]);
}

/// Lets time pass until the client is told something.
fn told_in_time(fixture: &mut Fixture, client: &mut Client) -> Vec<String> {
    let mut told = client.told(fixture);
    while told.is_empty() {
        let NextStep::Wait(Some(until)) = client.next(fixture) else { panic!("it has to look again") };
        fixture.now = until;
        told = client.told(fixture);
    }
    told
}

#[test]
fn r_relay_04_a_client_that_holds_nothing_waits_a_moment_for_a_name_the_origin_ignores() {
    let mut fixture = Fixture::new();
    fixture.upstream = Upstream::Away;
    let mut client = fixture.sotw_of("lds", &["a", "b"]);
    let asked = fixture.now;
    fixture.named("lds a:1");
    let told = told_in_time(&mut fixture, &mut client);
    assert_eq!(told, ["lds a:1"], "also while the origin is away (R-Relay-06)");
    assert_eq!(fixture.now, asked + fixture.rules.settle);
    client.ask(&fixture, "lds", &["a", "b", "c"]);
    fixture.named("lds a:2");
    assert_eq!(
        told_in_time(&mut fixture, &mut client),
        ["lds a:2"],
        "and a name that is added does not hold it up"
    );
    fixture.named("lds b:1");
    client.ask(&fixture, "lds", &["a", "b", "c"]);
    assert_eq!(client.told(&fixture), ["lds a:2 b:1"]);
}

#[test]
fn r_relay_04_a_client_that_may_hold_a_name_the_origin_ignores_waits_long_but_not_for_ever() {
    let mut fixture = Fixture::new();
    let mut client = fixture.sotw();
    client.come_back(&fixture, "cds", &["a", "b"], EARLIER);
    fixture.named("cds a:1");
    let asked = fixture.now;
    assert_eq!(told_in_time(&mut fixture, &mut client), ["cds a:1"]);
    assert_eq!(fixture.now, asked + fixture.rules.longest_silence());
    assert!(fixture.now > asked + fixture.rules.detection_time, "a dead connection is silent too");
}

/// An empty full state would say of a name that it does not exist, and holds back nothing that another name could wait for.
#[test]
fn r_relay_04_a_client_that_sees_nothing_waits_for_each_name_from_its_own_moment() {
    let mut fixture = Fixture::new();
    let mut client = fixture.sotw_of("lds", &["none"]);
    fixture.known("lds");
    let heard = fixture.now;
    let empty = loop {
        match client.poll(&fixture) {
            Some(response) => break response,
            None => fixture.after(Duration::from_secs(1)),
        }
    };
    client.ack(&fixture, &empty, &["none"]);
    assert_eq!(fixture.now, heard + fixture.rules.longest_silence());
    fixture.after(Duration::from_secs(10));
    client.ask(&fixture, "lds", &["a", "none"]);
    let asked = fixture.now;
    let NextStep::Wait(Some(_)) = client.next(&fixture) else { panic!("nothing is known of the other name") };
    fixture.after(Duration::from_secs(1));
    fixture.named("lds a:1");
    assert_eq!(told_in_time(&mut fixture, &mut client), ["lds a:1"]);
    assert!(fixture.now < asked + Duration::from_secs(2));
}

#[test]
fn r_relay_04_an_origin_that_answers_late_empties_no_client() {
    let mut fixture = Fixture::new();
    let mut client = fixture.sotw();
    client.come_back(&fixture, "cds", &["a", "b"], EARLIER);
    fixture.after(Duration::from_secs(10));
    assert!(client.told(&fixture).is_empty(), "the origin has answered for other types only");
    fixture.after(Duration::from_secs(4));
    fixture.named("cds a:1");
    let heard = fixture.now;
    assert!(client.told(&fixture).is_empty(), "the rest of its answer is on its way");
    assert_eq!(told_in_time(&mut fixture, &mut client), ["cds a:1"]);
    assert_eq!(fixture.now, heard + fixture.rules.longest_silence());
}

#[test]
fn r_relay_04_a_state_of_which_nothing_is_known_is_never_told_to_a_client_that_may_hold_it() {
    let mut fixture = Fixture::new();
    let mut client = fixture.sotw();
    client.come_back(&fixture, "cds", &["a", "b"], EARLIER);
    fixture.named("cds other:1");
    fixture.after(Duration::from_secs(3600));
    assert!(client.told(&fixture).is_empty());
    fixture.named("cds -b");
    fixture.after(Duration::from_secs(3600));
    assert!(client.told(&fixture).is_empty(), "nor one that says of the other that it is gone too");
    fixture.named("cds a:1");
    assert_eq!(client.told(&fixture), ["cds a:1"]);
}

#[test]
fn r_relay_04_the_origin_answers_for_a_type_whatever_the_parameters() {
    let fixture = Fixture::new();
    let cds = type_url("cds");
    let plain = fixture.cache.of(&cds).unwrap();
    fixture.writer.record_answer(&cds, fixture.now);
    let parameters = [("env", "prod")].into_iter().collect();
    let seen = fixture.cache.store_for(&cds, &ParameterView::uniform(parameters)).unwrap();
    let eds = fixture.cache.of(&type_url("eds")).unwrap();
    fixture.writer.record_answer(&cds, fixture.now + Duration::from_secs(1));
    let heard = [&plain, &seen, &eds].map(|of| of.answering_since());
    assert_eq!(heard, [Some(fixture.now), Some(fixture.now), None]);
    fixture.writer.reset_answers();
    assert_eq!((plain.answering_since(), seen.answering_since()), (None, None));
}

#[test]
fn r_relay_05_a_full_state_waits_until_the_set_is_known() {
    let mut fixture = Fixture::new();
    let (mut sotw, mut delta) = (fixture.sotw_of("cds", &[]), fixture.delta_of("cds", ""));
    fixture.origin("cds a:1");
    assert!(sotw.told(&fixture).is_empty());
    assert_eq!(delta.acked(&fixture), ["cds a:1"]);
    fixture.origin("cds b:1");
    fixture.known("cds");
    assert_eq!(sotw.told(&fixture), ["cds a:1 b:1"]);
    assert_eq!(delta.acked(&fixture), ["cds b:1"]);
}

#[test]
fn r_relay_05_a_set_that_settled_is_for_clients_that_hold_nothing() {
    let mut fixture = Fixture::new().with_members("cds a:1");
    fixture.know("cds", Completeness::Presumed);
    let (mut fresh, mut back, mut changed) = (fixture.sotw_of("cds", &[]), fixture.sotw(), fixture.sotw());
    assert_eq!(fresh.acked(&fixture), ["cds a:1"]);
    back.come_back(&fixture, "cds", &[], EARLIER);
    changed.ask(&fixture, "cds", &["b"]);
    fixture.named("cds b:1");
    assert_eq!(changed.acked_with(&fixture, &[("cds", &["b"])]), ["cds b:1"]);
    changed.ask(&fixture, "cds", &["*"]);
    assert!(changed.told(&fixture).is_empty(), "`b`, which it holds, may be a member that has not come yet");
    fixture.after(Duration::from_secs(3600));
    assert!(back.told(&fixture).is_empty());
    fixture.origin("cds b:1");
    assert_eq!(fresh.acked(&fixture), ["cds a:1 b:1"]);
    assert!(back.told(&fixture).is_empty() && changed.told(&fixture).is_empty());
    fixture.known("cds");
    assert_eq!(back.told(&fixture), ["cds a:1 b:1"]);
    assert_eq!(changed.told(&fixture), ["cds a:1 b:1"]);
    assert!(fresh.told(&fixture).is_empty(), "it has been told all of it");
}

#[test]
fn r_relay_05_removals_are_worked_out_from_a_complete_set_only() {
    let mut fixture = Fixture::new().with_members("cds a:1");
    fixture.know("cds", Completeness::Presumed);
    let (mut back, mut fresh, mut lets_go) = (fixture.delta(), fixture.delta(), fixture.delta());
    back.resume(&fixture, "cds", &["*"], &[("a", "1"), ("b", "1"), ("c", "1")]);
    fresh.change(&fixture, "cds", "*");
    fixture.named("cds b:1");
    lets_go.change(&fixture, "cds", "* b");
    assert_eq!(lets_go.acked(&fixture), ["cds a:1 b:1"]);
    lets_go.change(&fixture, "cds", "-b");
    assert!(back.told(&fixture).is_empty());
    assert_eq!(fresh.acked(&fixture), ["cds a:1"]);
    assert!(lets_go.acked(&fixture).is_empty(), "it may be a member of the set");
    fixture.origin("cds b:1");
    fixture.known("cds");
    assert_eq!(back.acked(&fixture), ["cds", "cds -c"]);
    assert_eq!(lets_go.acked(&fixture), ["cds b:1"]);
}

#[test]
fn r_relay_06_without_the_origin_newcomers_are_served_and_nothing_is_removed() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    fixture.upstream = Upstream::Away;
    let mut client = fixture.sotw_of("cds", &[]);
    assert_eq!(client.acked(&fixture), ["cds a:1"]);
    fixture.after(Duration::from_secs(3600));
    assert!(client.acked(&fixture).is_empty());
}

#[test]
fn r_relay_07_a_cold_relay_without_origin_closes_before_any_response() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta_of("cds", "*");
    let NextStep::Wait(Some(until)) = client.next(&fixture) else { panic!("it waits for the origin") };
    assert!(until <= fixture.now + fixture.rules.cold_deadline);
    fixture.after(fixture.rules.cold_deadline);
    assert!(matches!(client.next(&fixture), NextStep::Wait(_)), "the origin answers");
    for (upstream, why) in [(Upstream::Away, "be reached"), (Upstream::Silent, "answers nothing")] {
        fixture.upstream = upstream;
        let NextStep::Close(refusal) = client.next(&fixture) else { panic!("cold") };
        assert_eq!(refusal.code, Code::Unavailable);
        assert!(refusal.message.contains(why), "{refusal}");
    }
}

/// 300,000 versions may take longer than the deadline on their way. A client that is closed with its first request would never have
/// the relay ask for anything.
#[test]
fn r_relay_07_the_deadline_begins_with_the_first_request() {
    let mut fixture = Fixture::new();
    fixture.upstream = Upstream::Silent;
    let mut client = fixture.delta();
    fixture.after(10 * fixture.rules.cold_deadline);
    client.change(&fixture, "cds", "*");
    let NextStep::Wait(Some(until)) = client.next(&fixture) else { panic!("it waits for the origin") };
    assert!(until <= fixture.now + fixture.rules.cold_deadline);
    fixture.after(fixture.rules.cold_deadline);
    assert!(matches!(client.next(&fixture), NextStep::Close(_)));
}

#[test]
fn r_relay_07_a_stream_that_had_a_response_stays_open() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let mut client = fixture.delta_of("cds", "*");
    client.change(&fixture, "eds", "a");
    assert_eq!(client.acked(&fixture), ["cds a:1"]);
    fixture.upstream = Upstream::Away;
    fixture.after(Duration::from_secs(3600));
    assert!(matches!(client.next(&fixture), NextStep::Wait(_)));
}

#[test]
fn r_relay_09_versions_of_resources_are_the_origins() {
    // The harness compares the version in each envelope with the one in the body.
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:v-17/x");
    let mut client = fixture.delta_of("cds", "*");
    assert_eq!(client.told(&fixture), ["cds a:v-17/x"]);
}

#[test]
fn r_relay_11_the_version_is_a_digest_of_the_clients_view() {
    let mut fixture = Fixture::knowing(&["cds"]);
    let mut other = Fixture::knowing(&["cds"]);
    fixture.origin("cds a:1 b:1");
    other.origin("cds b:0");
    other.origin("cds c:1 b:1");
    other.origin("cds a:1 -c");
    let version = |fixture: &Fixture, names: &[&str]| {
        let mut client = fixture.sotw();
        client.ask(fixture, "cds", names);
        client.poll(fixture).unwrap().version
    };
    assert_eq!(version(&fixture, &[]), version(&other, &[]), "another replica with another history");
    assert_eq!(version(&fixture, &[]), version(&fixture, &["*"]));
    fixture.named("cds a:1 b:1");
    assert_eq!(version(&fixture, &["a", "b"]), version(&fixture, &[]), "it says what is seen, not how");
    assert_ne!(version(&fixture, &["a"]), version(&fixture, &[]));

    let before = version(&fixture, &[]);
    fixture.resend(View::Wildcard, "cds a:1");
    assert_eq!(version(&fixture, &[]), before, "R-Relay-21: a resend is no change");
    fixture.origin("cds a:1/changed");
    assert_ne!(version(&fixture, &[]), before, "R-XT-06: another body at the same version is a change");
}

#[test]
fn r_relay_13_to_15_a_nack_concerns_nobody_else() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let (mut bad, mut good) = (fixture.delta(), fixture.delta());
    for client in [&mut bad, &mut good] {
        client.change(&fixture, "cds", "*");
        client.acked(&fixture);
    }
    fixture.cache.take_interest();
    fixture.origin("cds a:2");
    let told = bad.poll(&fixture).unwrap();
    bad.nack(&fixture, &told, &[]);
    assert!(fixture.cache.take_interest().is_empty(), "nothing of it goes upstream");
    assert_eq!(good.acked(&fixture), ["cds a:2"]);
    let mut late = fixture.delta_of("cds", "*");
    assert_eq!(late.acked(&fixture), ["cds a:2"], "no rollback");
}

/// A relay that reports what its canaries rejected has accepted it long before.
#[test]
fn r_relay_13_a_nack_after_the_ack_is_shown_and_not_answered() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
        let mut relay = fixture.client_of(protocol, "cds", "*");
        let told = relay.poll(&fixture).unwrap();
        assert!(matches!(relay.ack(&fixture, &told, &[]), RequestKind::Ack { .. }));
        assert!(matches!(relay.nack(&fixture, &told, &[]), RequestKind::Nack { .. }));
        fixture.after(Duration::from_secs(60));
        assert_eq!(relay.acked(&fixture), [""; 0]);
        fixture.origin("cds a:2");
        assert_eq!(relay.acked(&fixture), ["cds a:2"]);
    }
}

#[test]
fn r_relay_16_the_subscription_upstream_is_the_union_and_ends_with_the_last_client() {
    let fixture = Fixture::new();
    let name = |text: &str| Name::from(text);
    let (mut a, mut b) = (fixture.delta_of("eds", "x y"), fixture.sotw_of("eds", &["y", "*"]));
    let taken = |fixture: &Fixture| {
        let mut taken = fixture.cache.take_interest();
        taken.iter_mut().for_each(|wanted| wanted.interest.names.sort());
        taken.into_iter().map(|wanted| (wanted.interest.wildcard, wanted.interest.names)).collect::<Vec<_>>()
    };
    assert_eq!(taken(&fixture), [(true, vec![(name("x"), true), (name("y"), true)])]);
    a.change(&fixture, "eds", "-y");
    assert!(taken(&fixture).is_empty(), "somebody else still asks for it");
    b.ask(&fixture, "eds", &["z"]);
    assert_eq!(taken(&fixture), [(false, vec![(name("y"), false), (name("z"), true)])]);
    drop((a, b));
    assert_eq!(taken(&fixture), [(false, vec![(name("x"), false), (name("z"), false)])]);
    let of = fixture.cache.of(&url("eds")).unwrap();
    assert_eq!((of.cohorts(), of.wants_wildcard(), of.wants("x")), (0, false, false));
}

#[test]
fn r_relay_16_a_client_of_many_names_does_not_delay_a_client_of_one() {
    let fixture = Fixture::new();
    let all = |prefix: &str| (0..5_000).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>().join(" ");
    let taken = |fixture: &Fixture| -> Vec<(Name, bool)> {
        fixture.cache.take_interest().into_iter().flat_map(|wanted| wanted.interest.names).collect()
    };
    let (many, mut one) = (fixture.delta_of("eds", &all("a")), fixture.delta());
    let mut asked = taken(&fixture);
    assert!(asked.len() <= 600, "{} names at once", asked.len());
    one.change(&fixture, "eds", "b a4999");
    let next = taken(&fixture);
    assert!(next.contains(&(Name::from("b"), true)), "its turn comes with the next");
    assert!(next.contains(&(Name::from("a4999"), true)), "also where it is one of the many");
    asked.extend(next);
    while fixture.cache.has_interest() {
        asked.extend(taken(&fixture));
    }
    assert_eq!((asked.len(), asked.iter().all(|(_, wanted)| *wanted)), (5_001, true));
    drop(many);
    one.change(&fixture, "eds", "-b");
    assert!(taken(&fixture).contains(&(Name::from("b"), false)), "nor when it lets them go");
    while fixture.cache.has_interest() {
        taken(&fixture);
    }
    let _long =
        fixture.delta_of("eds", &(0..400).map(|n| format!("{n:0>200}")).collect::<Vec<_>>().join(" "));
    let bytes: usize = taken(&fixture).iter().map(|(name, _)| name.as_str().len()).sum();
    assert!(bytes < 20 << 10, "{bytes} bytes at once");
}

#[test]
fn r_relay_17_a_newcomer_and_a_resubscription_cost_no_upstream_traffic() {
    let mut fixture = Fixture::new();
    let (mut a, mut b) = (fixture.delta_of("eds", "x"), fixture.delta());
    fixture.cache.take_interest();
    fixture.named("eds x:1");
    b.change(&fixture, "eds", "x");
    a.change(&fixture, "eds", "x");
    assert!(fixture.cache.take_interest().is_empty());
    assert_eq!(a.told(&fixture), ["eds x:1"]);
    assert_eq!(b.told(&fixture), ["eds x:1"]);
}

#[test]
fn r_relay_18_a_late_joiner_learns_at_once_that_a_name_is_absent() {
    let mut fixture = Fixture::new();
    let _first = fixture.delta_of("eds", "x");
    fixture.named("eds x:1");
    fixture.named("eds -x");
    let mut late = fixture.delta_of("eds", "x");
    assert_eq!(late.told(&fixture), ["eds -x"]);
}

#[test]
fn r_relay_18_a_forgotten_name_is_unknown_again() {
    let mut fixture = Fixture::new().with_named("eds x:1");
    let forget = Op::Forget { view: View::Named, name: "x".into() };
    fixture.apply("eds", Change { ops: vec![forget], ..Change::default() });
    let mut client = fixture.delta_of("eds", "x");
    assert!(client.told(&fixture).is_empty());
}

#[test]
fn r_relay_21_a_resend_of_a_member_reaches_wildcard_and_named_clients() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1 b:1");
    let mut delta = fixture.delta_of("cds", "*");
    let mut named = fixture.delta_of("cds", "a");
    let mut sotw = fixture.sotw_of("cds", &[]);
    for client in [&mut delta, &mut named, &mut sotw] {
        client.acked(&fixture);
    }
    let version = sotw.newest("cds").version.clone();
    fixture.resend(View::Wildcard, "cds a:1");
    assert_eq!(delta.acked(&fixture), ["cds a:1"]);
    assert_eq!(named.acked(&fixture), ["cds a:1"]);
    assert_eq!(sotw.acked(&fixture), ["cds a:1 b:1"]);
    assert_eq!(sotw.newest("cds").version, version);
}

#[test]
fn r_relay_22_a_client_that_takes_nothing_is_told_the_newest_only() {
    let mut fixture = Fixture::knowing(&["cds"]);
    let mut client = fixture.delta_of("cds", "*");
    client.acked(&fixture);
    for version in 1..100 {
        fixture.origin(&format!("cds a:{version}"));
    }
    assert_eq!(client.acked(&fixture), ["cds a:99"]);
}

fn forgetful() -> Fixture {
    let mut fixture = Fixture::with_limits(Limits { tombstones: 8, ..Limits::default() });
    fixture.known("cds");
    fixture
}

fn churn(fixture: &mut Fixture) {
    for number in 0..20 {
        fixture.origin(&format!("cds t{number}:1"));
        fixture.origin(&format!("cds -t{number}"));
    }
}

#[test]
fn r_relay_22_a_client_behind_the_memory_of_removals_is_closed_to_resume() {
    let mut fixture = forgetful().with_members("cds a:1 b:1");
    let mut client = fixture.delta_of("cds", "*");
    assert_eq!(client.acked(&fixture), ["cds a:1 b:1"]);
    fixture.origin("cds -a");
    churn(&mut fixture);
    let NextStep::Close(refusal) = client.next(&fixture) else { panic!("its removals are forgotten") };
    assert_eq!(refusal.code, Code::Unavailable);
    let mut again = fixture.delta();
    again.resume(&fixture, "cds", &[], &[("a", "1"), ("b", "1")]);
    assert_eq!(again.acked(&fixture), ["cds", "cds -a"]);
}

#[test]
fn r_relay_22_a_client_that_asked_by_name_needs_no_memory_of_other_removals() {
    let mut fixture = forgetful().with_named("cds mine:1");
    let mut client = fixture.delta_of("cds", "mine");
    assert_eq!(client.acked(&fixture), ["cds mine:1"]);
    churn(&mut fixture);
    fixture.named("cds -mine");
    assert_eq!(client.acked(&fixture), ["cds -mine"]);
}

#[test]
fn r_relay_22_removals_lost_during_a_split_answer_close_the_stream() {
    let mut fixture =
        Fixture::with_limits(Limits { tombstones: 8, response_bytes: 2500, ..Limits::default() });
    fixture.known("thing");
    fixture.named("thing -x");
    fixture.bulky("thing a:1 b:1 c:1 d:1 e:1 f:1 g:1");
    let mut client = fixture.delta_of("thing", "* x");
    let first = client.poll(&fixture).unwrap();
    assert!(first.resources.iter().any(|(name, _)| name == "a"));
    client.ack(&fixture, &first, &[]);
    fixture.bulky("thing -a");
    for number in 0..20 {
        fixture.bulky(&format!("thing t{number}:1"));
        fixture.bulky(&format!("thing -t{number}"));
    }
    loop {
        match client.next(&fixture) {
            NextStep::Close(refusal) => break assert_eq!(refusal.code, Code::Unavailable),
            NextStep::Wait(_) => panic!("it holds `a`, which is gone, and will never hear of it"),
            NextStep::Send(_) => {
                client.session.on_flushed(fixture.now);
                fixture.after(fixture.rules.ack_timeout);
            }
        }
    }
}
