//! Names of the form `xdstp://…`, as an origin spells them.

use super::*;

const EDS: Kind = Kind::Endpoint;
const NORMAL: &str = "xdstp://auth/t/web?a=2&b=1";
const OTHER: &str = "xdstp://auth/t/web?b=1&a=2";

#[test]
fn r_xt_01_the_origin_may_spell_a_name_as_it_likes() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &[NORMAL]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, [NORMAL]);
    rig.hear(Primary, &Answer::of(EDS, "1").set(OTHER, "v1"));
    assert_eq!(rig.seen(EDS, NORMAL), "v1");
    rig.hear(Primary, &Answer::of(EDS, "2").remove(OTHER));
    assert_eq!(rig.seen(EDS, NORMAL), "absent");
    assert_eq!(rig.mux.counters().unrequested_resources.get(), 0);
}

#[test]
fn r_xt_01_two_spellings_of_one_name_are_a_name_twice() {
    for answer in [
        Answer::of(EDS, "1").set(OTHER, "v1").set(NORMAL, "v2"),
        Answer::of(EDS, "1").set(OTHER, "v1").remove(NORMAL),
    ] {
        let mut rig = Rig::connected();
        rig.client("a", EDS, &[NORMAL]);
        rig.requests(Primary);
        rig.mux.on_message(Primary, answer.bytes(), rig.now).expect("a response");
        assert!(rig.request(Primary).error_detail.is_some());
        assert_eq!(rig.seen(EDS, NORMAL), "unknown");
    }
}

const GLOB: &str = "xdstp://a/t/foo/*?k=v";
const X: &str = "xdstp://a/t/foo/x?k=v";
const Y: &str = "xdstp://a/t/foo/y?k=v";
const OUTSIDE: &str = "xdstp://a/t/foo/x";

/// A relay that asked for a collection, and what its members were answered with.
fn collecting() -> Rig {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &[GLOB]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, [GLOB]);
    rig.hear(Primary, &Answer::of(EDS, "1").set(X, "v1").set(Y, "v1").set(OUTSIDE, "v1"));
    rig
}

#[test]
fn r_xt_05_a_glob_is_asked_for_once_and_brings_its_members() {
    let mut rig = collecting();
    rig.client("b", EDS, &[GLOB]);
    assert_eq!(rig.requests(Primary), [], "shared");
    assert_eq!((rig.seen(EDS, X), rig.seen(EDS, Y)), ("v1".to_owned(), "v1".to_owned()));
    assert_eq!((rig.seen(EDS, OUTSIDE), rig.seen(EDS, GLOB)), ("unknown".to_owned(), "unknown".to_owned()));
    assert_eq!(rig.mux.counters().unrequested_resources.get(), 1);
    rig.hear(Primary, &Answer::of(EDS, "2").set("xdstp://a/t/foo/z?k=v", "v1"));
    assert_eq!(rig.mux.counters().unsolicited.get(), 0);
    rig.pass(5_000);
    assert_eq!(rig.named(EDS, GLOB), "3 members");
    rig.hear(Primary, &Answer::of(EDS, "3").set(X, "v1"));
    assert_eq!(rig.mux.counters().unsolicited.get(), 1, "from now on a resend is one");
    rig.hear(Primary, &Answer::of(EDS, "4").remove(X).set(Y, "v2"));
    assert_eq!((rig.named(EDS, X), rig.seen(EDS, Y)), ("gone".to_owned(), "v2".to_owned()));
    assert_eq!(rig.named(EDS, GLOB), "2 members");
}

#[test]
fn r_xt_04_a_glob_that_the_origin_removes_has_no_members() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &[GLOB]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").remove(GLOB));
    assert_eq!(rig.seen(EDS, GLOB), "absent");

    let mut rig = collecting();
    rig.client("b", EDS, &[X]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "2").remove(GLOB));
    assert_eq!((rig.named(EDS, X), rig.named(EDS, Y)), ("absent".to_owned(), "gone".to_owned()));
    assert_eq!(rig.seen(EDS, GLOB), "absent");
    rig.hear(Primary, &Answer::of(EDS, "3").remove(GLOB).set(Y, "v2"));
    assert_eq!((rig.seen(EDS, Y), rig.named(EDS, GLOB)), ("v2".to_owned(), "1 members".to_owned()));
}

#[test]
fn r_xt_05_a_glob_without_a_word_for_it_is_not_known() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &[GLOB]);
    rig.requests(Primary);
    rig.pass(60_000);
    assert_eq!(rig.seen(EDS, GLOB), "unknown");
    rig.hear(Primary, &Answer::of(EDS, "1").set(GLOB, "v1"));
    assert_eq!(rig.seen(EDS, GLOB), "unknown", "a resource cannot be called so");
}

#[test]
fn r_xt_05_a_member_stays_while_it_is_asked_for_in_either_way() {
    let mut rig = collecting();
    rig.pass(200);
    rig.client("b", EDS, &[X]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, [X]);
    rig.hear(Primary, &Answer::of(EDS, "2").set(X, "v1"));
    rig.leave("b");
    rig.pass(60_000);
    assert_eq!(rig.request(Primary).resource_names_unsubscribe, [X]);
    assert_eq!(rig.seen(EDS, X), "v1", "as a member");

    rig.client("b", EDS, &[X]);
    rig.requests(Primary);
    rig.leave("a");
    rig.pass(60_000);
    assert_eq!(rig.request(Primary).resource_names_unsubscribe, [GLOB]);
    assert_eq!((rig.seen(EDS, X), rig.seen(EDS, Y)), ("v1".to_owned(), "unknown".to_owned()));
    assert_eq!(rig.seen(EDS, GLOB), "unknown");
    rig.leave("b");
    rig.pass(60_000);
    assert_eq!(rig.snapshot(EDS).entries().count(), 0, "nothing is kept of what nobody wants");
}

#[test]
fn r_xt_05_after_a_reconnect_members_are_claimed_and_removals_are_told() {
    let mut rig = collecting();
    rig.pass(200);
    rig.close();
    rig.open(Primary);
    let request = rig.request(Primary);
    assert_eq!(request.resource_names_subscribe, [GLOB]);
    let claimed: BTreeSet<String> = request.initial_resource_versions.keys().cloned().collect();
    assert_eq!(claimed, set(&[X, Y]));
    rig.hear(Primary, &Answer::of(EDS, "1").remove(Y));
    rig.pass(5_000);
    assert_eq!((rig.seen(EDS, X), rig.named(EDS, Y)), ("v1".to_owned(), "gone".to_owned()));
}

#[test]
fn r_xt_05_members_that_are_not_sent_again_are_swept() {
    let mut rig = Rig::sweeping();
    rig.open(Primary);
    rig.client("a", EDS, &[GLOB]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set(X, "v1").set(Y, "v1"));
    rig.pass(5_000);
    rig.close();
    rig.open(Primary);
    for round in ["2", "3"] {
        assert!(rig.request(Primary).initial_resource_versions.is_empty());
        rig.hear(Primary, &Answer::of(EDS, round).set(X, "v1"));
        assert_eq!(rig.seen(EDS, Y), "v1", "more may come");
        rig.pass(5_000);
    }
    assert_eq!((rig.seen(EDS, X), rig.named(EDS, Y)), ("v1".to_owned(), "gone".to_owned()));
    assert_eq!(rig.mux.counters().unsolicited.get(), 0);
}
