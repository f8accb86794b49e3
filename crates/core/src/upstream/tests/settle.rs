//! When a set is complete (R-Relay-05), what is a resend, and what a reconnect sweeps.

use super::*;
use crate::cache::Completeness;

fn fixture() -> Fixture {
    Fixture::asking("a", CDS, &["*"])
}

/// A relay that held `c1`, `c2` of a known set and `e1`, `e2` by name, and was connected again.
fn reconnected(mut fixture: Fixture) -> Fixture {
    fixture.open(Primary);
    fixture.client("a", CDS, &["*"]);
    fixture.subscribe("b", EDS, &["e1", "e2", "e3"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1").remove("e3"));
    fixture.pass(5_500);
    fixture.close();
    fixture.pass(100_000);
    assert_eq!(fixture.members(CDS), set(&["c1@v1", "c2@v1"]), "R-Relay-06");
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
    fixture.open(Primary);
    fixture
}

#[test]
fn r_relay_04_a_type_is_heard_from_its_first_accepted_answer_until_the_next_connection() {
    let mut fixture = fixture();
    let heard = |fixture: &Fixture| fixture.mux.cache().of(&CDS.into()).unwrap().answering_since();
    fixture.pass(1000);
    let refused = Answer::of(CDS, "1").set("c1", "v1").set("c1", "v1");
    fixture.hear(Primary, &refused);
    assert_eq!(heard(&fixture), None, "an answer that is refused says nothing");
    fixture.hear(Primary, &Answer::of(CDS, "2"));
    let first = heard(&fixture).unwrap();
    fixture.pass(1000);
    fixture.hear(Primary, &Answer::of(CDS, "3").set("c1", "v1"));
    assert_eq!(heard(&fixture), Some(first));
    fixture.mux.connected(&"http://origin".into());
    assert_eq!(heard(&fixture), None);
}

/// Silence on the last stream says nothing of names that are asked for on this one.
#[test]
fn r_relay_04_the_time_for_names_counts_from_the_stream_on_which_they_are_asked_for() {
    let mut fixture = fixture();
    fixture.subscribe("b", EDS, &["e1", "e2"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    let heard = |fixture: &Fixture| fixture.mux.cache().of(&EDS.into()).unwrap().answering_since();
    fixture.pass(10_000);
    fixture.mux.closed(Primary);
    fixture.mux.opened(Primary, fixture.now);
    assert_eq!(heard(&fixture), Some(fixture.now));
    // Before its first answer there, its silence about a name is none either.
    fixture.requests(Primary);
    fixture.pass(14_000);
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e1", "v1"));
    let first = fixture.now;
    assert_eq!(heard(&fixture), Some(first));
    fixture.pass(1_000);
    fixture.hear(Primary, &Answer::of(EDS, "3").set("e1", "v2"));
    assert_eq!(heard(&fixture), Some(first));
}

#[test]
fn r_relay_05_a_set_is_known_when_it_was_quiet_for_the_settle_time() {
    let mut fixture = fixture();
    fixture.pass(50);
    assert!(!fixture.snapshot(CDS).wildcard_known(), "unknown is not empty (R-Relay-04)");
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.pass(50);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    fixture.pass(199);
    assert!(!fixture.snapshot(CDS).wildcard_known());
    fixture.pass(1);
    assert!(fixture.snapshot(CDS).wildcard_known());
}

/// A full state that lacks what is on its way would delete it.
#[test]
fn o4_parts_that_are_a_round_trip_apart_are_no_full_state() {
    let mut fixture = fixture();
    for part in 0..20 {
        fixture.pass(500);
        assert!(
            fixture.snapshot(CDS).completeness() < Completeness::Presumed,
            "{part} of 20 parts are no set"
        );
        fixture.hear(Primary, &Answer::of(CDS, &part.to_string()).set(&format!("c{part}"), "v1"));
    }
    fixture.hear(Primary, &Answer::of(CDS, "last").remove(Name::END_MARK));
    assert_eq!(fixture.snapshot(CDS).completeness(), Completeness::Complete);
}

#[test]
fn r_relay_05_a_set_that_never_stops_growing_is_shown_in_the_end() {
    let mut fixture = fixture();
    for part in 0..200 {
        fixture.hear(Primary, &Answer::of(CDS, &part.to_string()).set(&format!("c{part}"), "v1"));
        fixture.pass(150);
    }
    assert!(fixture.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_a_set_that_grows_by_little_for_ever_is_complete_in_the_end() {
    for version in ["", "v1"] {
        let mut fixture = fixture();
        fixture.ask_for_proof(CDS);
        let answer = (0..100).fold(Answer::of(CDS, "1"), |answer, n| answer.set(&format!("c{n}"), version));
        fixture.hear(Primary, &answer);
        for second in 0..130 {
            fixture.flush(1_000);
            if second % 20 == 0 {
                fixture.hear(Primary, &Answer::of(CDS, "n").set(&format!("more{second}"), version));
            }
        }
        assert_eq!(fixture.snapshot(CDS).completeness(), Completeness::Complete, "{version:?}");
    }
}

#[test]
fn a_pause_of_the_relay_is_no_silence_of_the_origin() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.now += Duration::from_secs(20);
    fixture.mux.exclude_pause(Duration::from_secs(20), fixture.now);
    fixture.mux.on_deadline(fixture.now);
    assert!(!fixture.snapshot(CDS).wildcard_known());
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    fixture.pass(200);
    assert!(fixture.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_steady_churn_does_not_put_it_off_for_ever() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(CDS, "n").set("c1", "v1"));
    for step in 0..4_u32 {
        assert!(!fixture.snapshot(CDS).wildcard_known(), "after {step} steps");
        fixture.pass(50);
        fixture.hear(Primary, &Answer::of(CDS, "n").set("c1", &step.to_string()));
    }
    assert!(fixture.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_an_empty_response_counts() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(CDS, "1"));
    fixture.pass(200);
    assert!(fixture.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_a_set_that_was_cut_off_before_it_was_known_is_known_once_the_rest_has_come() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.close();
    fixture.pass(5000);
    assert!(!fixture.snapshot(CDS).wildcard_known());
    fixture.open(Primary);
    let versions = fixture.request(Primary).initial_resource_versions;
    assert_eq!(versions.len(), 2, "what has come");
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c3", "v1").remove("c2"));
    assert_eq!(fixture.members(CDS), set(&["c1@v1", "c3@v1"]));
    fixture.pass(200);
    assert!(fixture.snapshot(CDS).wildcard_known());
}

/// Whether an unchanged copy is passed on as news.
fn is_news(fixture: &mut Fixture, kind: Kind, name: &str) -> bool {
    let before = fixture.snapshot(kind).generation();
    fixture.hear(Primary, &Answer::of(kind, "again").set(name, "v1"));
    fixture.snapshot(kind).generation() != before
}

#[test]
fn r_relay_21_an_unsolicited_copy_is_passed_on() {
    let mut fixture = fixture();
    fixture.subscribe("b", EDS, &["e1"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    assert!(!is_news(&mut fixture, CDS, "c1"), "the set has not settled");
    assert!(is_news(&mut fixture, EDS, "e1"), "the name was answered before");
    fixture.pass(200);
    assert!(is_news(&mut fixture, CDS, "c1"));
    assert_eq!(fixture.mux.counters().unsolicited.get(), 2);
}

#[test]
fn r_relay_21_answers_to_a_reconnect_are_not() {
    let mut fixture = reconnected(Fixture::new());
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "again").set("c1", "v1"));
    assert!(!is_news(&mut fixture, EDS, "e1"));
    assert_eq!(fixture.mux.counters().unsolicited.get(), 0);
    assert!(is_news(&mut fixture, EDS, "e1"), "once");
    // An origin that reads our versions says nothing of them: what it says after its answer is of its own accord.
    fixture.hear(Primary, &Answer::of(EDS, "end").remove(Name::END_MARK));
    fixture.pass(1000);
    assert!(is_news(&mut fixture, CDS, "c2"));
    assert!(is_news(&mut fixture, EDS, "e2"));
}

#[test]
fn r_up_21_trust_removes_resources_that_the_origin_says_are_gone() {
    let mut fixture = reconnected(Fixture::new());
    let requests = fixture.requests(Primary);
    assert!(requests.iter().all(|request| request.initial_resource_versions.len() == 2));
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v2"));
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    fixture.pass(10_000);
    assert_eq!(fixture.members(CDS), set(&["c1@v2", "c2@v1"]));
    fixture.hear(Primary, &Answer::of(CDS, "2").remove("c2"));
    assert_eq!(fixture.members(CDS), set(&["c1@v2"]));
}

#[test]
fn r_relay_05_a_set_that_still_comes_is_not_known_because_a_client_waits_for_proof() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.pass(50);
    fixture.ask_for_proof(CDS);
    assert!(!fixture.snapshot(CDS).wildcard_known(), "the next part may be on its way");
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    fixture.pass(1_000);
    assert!(fixture.snapshot(CDS).wildcard_known());
}

/// Of a set of constant size one member is replaced now and then, under a new name: that is no growth.
#[test]
fn a_set_whose_members_replace_each_other_does_not_grow() {
    for (size, every) in [(10, 1), (10, 4), (1, 4)] {
        let mut fixture = fixture();
        fixture.ask_for_proof(CDS);
        let all = (0..size).fold(Answer::of(CDS, "1"), |answer, n| answer.set(&format!("c{n}"), ""));
        fixture.hear(Primary, &all);
        let mut second = 0;
        while fixture.snapshot(CDS).completeness() < Completeness::Complete && second < 1_000 {
            fixture.flush(1_000);
            second += 1;
            if second % every == 0 {
                let n = second / every;
                let (came, went) = (format!("c{}", n + size - 1), format!("c{}", n - 1));
                fixture.hear(Primary, &Answer::of(CDS, "n").set(&came, "").remove(&went));
            }
        }
        assert!((90..=95).contains(&second), "{size} members, one new every {every} s: after {second} s");
    }
}
