//! When a set is complete (R-Relay-05), what is a resend, and what a reconnect sweeps.

use super::*;

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;

fn rig() -> Rig {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig
}

/// A relay that held `c1`, `c2` of a known set and `e1`, `e2` by name, and was connected again.
fn reconnected(mut rig: Rig) -> Rig {
    rig.open(Primary);
    rig.client("a", CDS, &["*"]);
    rig.client("b", EDS, &["e1", "e2", "e3"]);
    rig.pass(10);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1").remove("e3"));
    rig.pass(5_500);
    rig.close();
    rig.pass(100_000);
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c2@v1"]), "R-Relay-06");
    assert_eq!(rig.seen(EDS, "e1"), "v1");
    rig.open(Primary);
    rig
}

#[test]
fn r_relay_04_a_type_is_heard_from_its_first_accepted_answer_until_the_next_connection() {
    let mut rig = rig();
    let heard = |rig: &Rig| rig.mux.cache().of(&CDS.into()).unwrap().heard_since();
    rig.pass(1000);
    let refused = Answer::of(CDS, "1").set("c1", "v1").set("c1", "v1");
    rig.hear(Primary, &refused);
    assert_eq!(heard(&rig), None, "an answer that is refused says nothing");
    rig.hear(Primary, &Answer::of(CDS, "2"));
    let first = heard(&rig).unwrap();
    rig.pass(1000);
    rig.hear(Primary, &Answer::of(CDS, "3").set("c1", "v1"));
    assert_eq!(heard(&rig), Some(first));
    rig.mux.connected();
    assert_eq!(heard(&rig), None);
}

/// Silence on the last stream says nothing of names that are asked for on this one.
#[test]
fn r_relay_04_the_time_for_names_counts_from_the_stream_on_which_they_are_asked_for() {
    let mut rig = rig();
    rig.client("b", EDS, &["e1", "e2"]);
    rig.pass(10);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    let heard = |rig: &Rig| rig.mux.cache().of(&EDS.into()).unwrap().heard_since();
    rig.pass(10_000);
    rig.mux.closed(Primary);
    rig.mux.opened(Primary, rig.now);
    assert_eq!(heard(&rig), Some(rig.now));
    // Before its first answer there, its silence about a name is none either.
    rig.requests(Primary);
    rig.pass(14_000);
    rig.hear(Primary, &Answer::of(EDS, "2").set("e1", "v1"));
    let first = rig.now;
    assert_eq!(heard(&rig), Some(first));
    rig.pass(1_000);
    rig.hear(Primary, &Answer::of(EDS, "3").set("e1", "v2"));
    assert_eq!(heard(&rig), Some(first));
}

#[test]
fn r_relay_05_a_set_is_known_when_it_was_quiet_for_the_settle_time() {
    let mut rig = rig();
    rig.pass(50);
    assert!(!rig.snapshot(CDS).wildcard_known(), "unknown is not empty (R-Relay-04)");
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.pass(50);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    rig.pass(199);
    assert!(!rig.snapshot(CDS).wildcard_known());
    rig.pass(1);
    assert!(rig.snapshot(CDS).wildcard_known());
}

/// An origin that has other versions of what is held sends these in parts too.
#[test]
fn o4_the_first_word_about_a_claimed_resource_is_a_part_of_the_answer() {
    let mut rig = rig();
    let names: Vec<String> = (0..9).map(|n| format!("c{n}")).collect();
    let first = names.iter().fold(Answer::of(CDS, "1"), |answer, name| answer.set(name, "v1"));
    rig.hear(Primary, &first);
    rig.pass(100);
    rig.close();
    rig.open(Primary);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 8);
    // The one that was not claimed comes last: it alone would be the whole answer.
    for name in names.iter().rev() {
        rig.pass(900);
        assert!(!rig.snapshot(CDS).wildcard_known(), "others follow");
        rig.hear(Primary, &Answer::of(CDS, name).set(name, "v2"));
    }
    // A resource that changes once more is no part.
    for nonce in 0..8 {
        rig.pass(300);
        rig.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set("c1", &nonce.to_string()));
    }
    assert!(rig.snapshot(CDS).wildcard_known());
}

#[test]
fn o4_parts_that_are_a_round_trip_apart_are_waited_for() {
    let mut rig = rig();
    for part in 0..20 {
        rig.pass(500);
        assert!(!rig.snapshot(CDS).wildcard_known(), "{part} of 20 parts are no set");
        rig.hear(Primary, &Answer::of(CDS, &part.to_string()).set(&format!("c{part}"), "v1"));
    }
    rig.pass(999);
    assert!(!rig.snapshot(CDS).wildcard_known());
    rig.pass(1);
    assert!(rig.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_a_set_that_never_stops_growing_is_shown_in_the_end() {
    let mut rig = rig();
    for part in 0..200 {
        rig.hear(Primary, &Answer::of(CDS, &part.to_string()).set(&format!("c{part}"), "v1"));
        rig.pass(150);
    }
    assert!(rig.snapshot(CDS).wildcard_known());
}

#[test]
fn a_pause_of_the_relay_is_no_silence_of_the_origin() {
    let mut rig = rig();
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.now += Duration::from_secs(20);
    rig.mux.overslept(Duration::from_secs(20), rig.now);
    rig.mux.on_deadline(rig.now);
    assert!(!rig.snapshot(CDS).wildcard_known());
    rig.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    rig.pass(200);
    assert!(rig.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_steady_churn_does_not_put_it_off_for_ever() {
    let mut rig = rig();
    rig.hear(Primary, &Answer::of(CDS, "n").set("c1", "v1"));
    for step in 0..4_u32 {
        assert!(!rig.snapshot(CDS).wildcard_known(), "after {step} steps");
        rig.pass(50);
        rig.hear(Primary, &Answer::of(CDS, "n").set("c1", &step.to_string()));
    }
    assert!(rig.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_an_empty_response_counts() {
    let mut rig = rig();
    rig.hear(Primary, &Answer::of(CDS, "1"));
    rig.pass(200);
    assert!(rig.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_a_set_stays_known_over_a_reconnect() {
    let mut rig = reconnected(Rig::new());
    assert!(rig.snapshot(CDS).wildcard_known());
    rig.requests(Primary);
    rig.pass(10_000);
    assert!(rig.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_05_a_set_that_was_cut_off_before_it_was_known_is_known_once_the_rest_has_come() {
    let mut rig = rig();
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.close();
    rig.pass(5000);
    assert!(!rig.snapshot(CDS).wildcard_known());
    rig.open(Primary);
    let versions = rig.request(Primary).initial_resource_versions;
    assert_eq!(versions.keys().collect::<Vec<_>>(), ["c2"], "what has come, but for one");
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c3", "v1").remove("c2"));
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c3@v1"]));
    rig.pass(200);
    assert!(rig.snapshot(CDS).wildcard_known());
}

/// Whether an unchanged copy is passed on as news.
fn is_news(rig: &mut Rig, kind: Kind, name: &str) -> bool {
    let before = rig.snapshot(kind).generation();
    rig.hear(Primary, &Answer::of(kind, "again").set(name, "v1"));
    rig.snapshot(kind).generation() != before
}

#[test]
fn r_relay_21_an_unsolicited_copy_is_passed_on() {
    let mut rig = rig();
    rig.client("b", EDS, &["e1"]);
    rig.pass(10);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    assert!(!is_news(&mut rig, CDS, "c1"), "the set has not settled");
    assert!(is_news(&mut rig, EDS, "e1"), "the name was answered before");
    rig.pass(200);
    assert!(is_news(&mut rig, CDS, "c1"));
    assert_eq!(rig.mux.counters().unsolicited.get(), 2);
}

#[test]
fn r_relay_21_answers_to_a_reconnect_are_not() {
    let mut rig = reconnected(Rig::new());
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "again").set("c1", "v1"));
    assert!(!is_news(&mut rig, EDS, "e1"));
    assert_eq!(rig.mux.counters().unsolicited.get(), 0);
    assert!(is_news(&mut rig, EDS, "e1"), "once");
    // An origin that trusts our versions says nothing: what it says later is of its own accord.
    rig.pass(1000);
    assert!(is_news(&mut rig, CDS, "c2"));
    assert!(is_news(&mut rig, EDS, "e2"));
}

#[test]
fn r_up_21_trust_removes_resources_that_the_origin_says_are_gone() {
    let mut rig = reconnected(Rig::new());
    let requests = rig.requests(Primary);
    assert!(requests.iter().all(|request| request.initial_resource_versions.len() == 1));
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v2"));
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    rig.pass(10_000);
    assert_eq!(rig.members(CDS), set(&["c1@v2", "c2@v1"]));
    rig.hear(Primary, &Answer::of(CDS, "2").remove("c2"));
    assert_eq!(rig.members(CDS), set(&["c1@v2"]));
}

#[test]
fn r_up_21_sweep_removes_resources_that_are_not_sent_again() {
    let mut rig = reconnected(Rig::sweeping());
    let requests = rig.requests(Primary);
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.initial_resource_versions.is_empty()));
    rig.pass(10_000);
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c2@v1"]), "silence removes nothing");
    for round in ["1", "2"] {
        rig.hear(Primary, &Answer::of(CDS, round).set("c1", "v1"));
        rig.hear(Primary, &Answer::of(EDS, round).set("e2", "v1"));
        assert_eq!(
            (rig.members(CDS).len(), rig.seen(EDS, "e1")),
            (2, "v1".to_owned()),
            "not after one answer"
        );
        // The first part was long in coming: the second may be, too.
        rig.pass(41_000);
        rig.requests(Primary);
    }
    assert_eq!(rig.renewed.len(), 1);
    assert_eq!(rig.members(CDS), set(&["c1@v1"]));
    assert_eq!((rig.seen(EDS, "e1"), rig.seen(EDS, "e2")), ("absent".to_owned(), "v1".to_owned()));
    assert_eq!(rig.seen(EDS, "e3"), "absent");
    rig.hear(Primary, &Answer::of(CDS, "3").set("c3", "v1"));
    rig.pass(30_000);
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c3@v1"]), "a sweep happens once");
    assert_eq!(rig.renewed.len(), 1);
}

/// An origin that holds its answer up looks as if it had ended it.
#[test]
fn r_up_21_an_answer_that_stops_half_way_removes_nothing() {
    let mut rig = reconnected(Rig::sweeping());
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.pass(5_000);
    assert_eq!(rig.renewed.len(), 1);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.pass(100_000);
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c2@v1"]));
}

#[test]
fn r_up_21_a_sweep_cut_off_by_another_loss_removes_nothing() {
    let mut rig = reconnected(Rig::sweeping());
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.close();
    rig.pass(10_000);
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c2@v1"]));
}

#[test]
fn r_up_21_a_member_is_swept_also_when_its_name_is_let_go_meanwhile() {
    let mut rig = Rig::sweeping();
    rig.client("a", CDS, &["*"]);
    rig.client("b", CDS, &["c1"]);
    for round in ["first", "again"] {
        rig.open(Primary);
        rig.open(Secondary);
        rig.requests(Primary);
        rig.requests(Secondary);
        rig.hear(Secondary, &Answer::of(CDS, round).set("c1", "v1"));
        if round == "first" {
            rig.hear(Primary, &Answer::of(CDS, round).set("c1", "v1").set("c2", "v1"));
            rig.pass(500);
            rig.close();
            rig.leave("b");
            rig.pass(59_900);
        }
    }
    for round in ["rest", "once more"] {
        rig.hear(Primary, &Answer::of(CDS, round).set("c2", "v1"));
        rig.pass(5_000);
        assert_eq!(rig.named(CDS, "c1"), "unknown", "let go");
        rig.requests(Primary);
    }
    assert_eq!(rig.members(CDS), set(&["c2@v1"]));
}

#[test]
fn r_up_21_a_sweep_does_not_overtake_an_answer_in_parts() {
    let mut rig = Rig::sweeping();
    rig.client("a", CDS, &["*"]);
    let names: Vec<String> = (0..20).map(|number| format!("c{number:02}")).collect();
    rig.open(Primary);
    rig.requests(Primary);
    let all = names.iter().fold(Answer::of(CDS, "all"), |answer, name| answer.set(name, "v1"));
    rig.hear(Primary, &all);
    rig.pass(1000);
    rig.close();
    rig.open(Primary);
    rig.requests(Primary);
    for _ in 0..2 {
        for name in &names[1..] {
            assert_eq!(rig.members(CDS).len(), names.len(), "{name} was swept before it could come");
            rig.hear(Primary, &Answer::of(CDS, name).set(name, "v1"));
            rig.pass(300);
        }
        rig.pass(5_500);
        rig.requests(Primary);
    }
    assert_eq!(rig.members(CDS).len(), names.len() - 1, "what is gone is swept in the end");
}

#[test]
fn r_up_21_churn_does_not_put_a_sweep_off() {
    let mut rig = reconnected(Rig::sweeping());
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    for round in 2..150 {
        rig.pass(100);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(CDS, &round.to_string()).set("c1", &format!("v{round}")));
    }
    assert_eq!(rig.members(CDS).len(), 1);
}

/// An origin that hangs says as little as one to which every version is current: so one version is not told.
#[test]
fn an_origin_always_has_something_to_answer_after_a_reconnect() {
    let mut rig = reconnected(Rig::new());
    let requests = rig.requests(Primary);
    let [cds, eds] = &requests[..] else { panic!("{requests:?}") };
    assert!(
        cds.initial_resource_versions.keys().eq(["c2"]) && eds.initial_resource_versions.keys().eq(["e2"])
    );
    rig.pass(14_999);
    assert_eq!(rig.renewed, []);
    // A resource that was kept back may be gone: an origin does not say so to a relay that does not claim it.
    rig.pass(1);
    assert_eq!(rig.renewed.len(), 1);
    let requests = rig.requests(Primary);
    let [cds, eds] = &requests[..] else { panic!("{requests:?}") };
    assert!(
        cds.initial_resource_versions.keys().eq(["c1"]) && eds.initial_resource_versions.keys().eq(["e1"])
    );
    rig.hear(Primary, &Answer::of(CDS, "1").remove("c1").set("c2", "v1"));
    assert_eq!(rig.members(CDS), set(&["c2@v1"]));
}
