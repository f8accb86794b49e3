//! Decisions that only a relay has to make: R-Relay.

use std::time::Duration;

use deltafan::cache::{Claim, ParameterView, Protocol, View};
use deltafan::resource::Name;
use deltafan::subscription::{NextStep, RequestKind, Upstream};
use deltafan_test_support::fixture::{Client, Fixture};
use deltafan_test_support::wire::type_url;

/// A version that the relay does not know.
const EARLIER: &str = "of an earlier stream";

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

#[test]
fn r_relay_04_the_origin_answers_for_a_type_whatever_the_parameters() {
    let fixture = Fixture::new();
    let cds = type_url("cds");
    let plain = fixture.cache.of(&cds).unwrap();
    fixture.writer.record_answer(&cds, fixture.now);
    let parameters = [("env", "prod")].into_iter().collect();
    let seen = fixture.cache.claim_store(Claim::ANYBODY, &cds, &ParameterView::uniform(parameters)).unwrap();
    let eds = fixture.cache.of(&type_url("eds")).unwrap();
    fixture.writer.record_answer(&cds, fixture.now + Duration::from_secs(1));
    let heard = [&plain, &seen, &eds].map(|of| of.answering_since());
    assert_eq!(heard, [Some(fixture.now), Some(fixture.now), None]);
    fixture.writer.reset_answers();
    assert_eq!((plain.answering_since(), seen.answering_since()), (None, None));
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
fn r_relay_18_a_late_joiner_learns_at_once_that_a_name_is_absent() {
    let mut fixture = Fixture::new();
    let _first = fixture.delta_of("eds", "x");
    fixture.named("eds x:1");
    fixture.named("eds -x");
    let mut late = fixture.delta_of("eds", "x");
    assert_eq!(late.told(&fixture), ["eds -x"]);
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
