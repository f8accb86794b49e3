//! Names of the form `xdstp://…`, as an origin spells them.

use super::*;

const NORMAL: &str = "xdstp://auth/t/web?a=2&b=1";
const OTHER: &str = "xdstp://auth/t/web?b=1&a=2";

#[test]
fn r_xt_01_the_origin_may_spell_a_name_as_it_likes() {
    let mut fixture = Fixture::connected();
    fixture.client("a", EDS, &[NORMAL]);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, [NORMAL]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set(OTHER, "v1"));
    assert_eq!(fixture.seen(EDS, NORMAL), "v1");
    fixture.hear(Primary, &Answer::of(EDS, "2").remove(OTHER));
    assert_eq!(fixture.seen(EDS, NORMAL), "absent");
    assert_eq!(fixture.mux.counters().unrequested_resources.get(), 0);
}

#[test]
fn r_xt_01_two_spellings_of_one_name_are_a_name_twice() {
    let mut fixture = Fixture::asking("a", EDS, &[NORMAL]);
    let answer = Answer::of(EDS, "1").set(OTHER, "v1").set(NORMAL, "v2");
    fixture.deliver(Primary, &answer);
    assert!(fixture.request(Primary).error_detail.is_some());
    assert_eq!(fixture.seen(EDS, NORMAL), "unknown");
}

/// go-control-plane compares names byte by byte (O9).
#[test]
fn r_xt_01_a_name_that_is_removed_in_another_spelling_than_it_is_sent_in_exists() {
    let mut fixture = Fixture::asking("a", EDS, &[NORMAL]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set(OTHER, "v1").remove(NORMAL));
    assert_eq!(fixture.seen(EDS, NORMAL), "v1");
}

#[test]
fn r_up_03_a_version_is_claimed_under_a_name_with_one_spelling_only() {
    const PLAIN: &str = "xdstp://auth/t/web?a=2";
    let mut fixture = Fixture::asking("a", EDS, &[NORMAL, PLAIN]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set(OTHER, "v1").set(PLAIN, "v1"));
    fixture.subscribe("b", CDS, &["*"]);
    fixture.hear(
        Primary,
        &Answer::of(CDS, "1").set(OTHER, "v1").set("c1", "v1").set("c2", "v1").set("c3", "v1"),
    );
    fixture.reconnect();
    for request in fixture.requests(Primary) {
        assert!(!request.initial_resource_versions.contains_key(NORMAL), "{request:?}");
        assert!(!request.initial_resource_versions.is_empty(), "{request:?}");
    }
}

const GLOB: &str = "xdstp://a/t/foo/*?k=v";
const X: &str = "xdstp://a/t/foo/x?k=v";
const Y: &str = "xdstp://a/t/foo/y?k=v";
const OUTSIDE: &str = "xdstp://a/t/foo/x";

/// A relay that asked for a collection, and what its members were answered with.
fn collecting() -> Fixture {
    let mut fixture = Fixture::connected();
    fixture.client("a", EDS, &[GLOB]);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, [GLOB]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set(X, "v1").set(Y, "v1").set(OUTSIDE, "v1"));
    fixture
}

#[test]
fn r_xt_05_a_glob_is_asked_for_once_and_brings_its_members() {
    let mut fixture = collecting();
    fixture.client("b", EDS, &[GLOB]);
    assert_eq!(fixture.requests(Primary), [], "shared");
    assert_eq!(fixture.see(EDS, [X, Y]), ["v1", "v1"]);
    assert_eq!(fixture.see(EDS, [OUTSIDE, GLOB]), ["unknown", "unknown"]);
    assert_eq!(fixture.mux.counters().unrequested_resources.get(), 1);
    fixture.hear(Primary, &Answer::of(EDS, "2").set("xdstp://a/t/foo/z?k=v", "v1"));
    assert_eq!(fixture.mux.counters().unsolicited.get(), 0);
    fixture.pass(5_000);
    assert_eq!(fixture.named(EDS, GLOB), "3 members");
    fixture.hear(Primary, &Answer::of(EDS, "3").set(X, "v1"));
    assert_eq!(fixture.mux.counters().unsolicited.get(), 1, "from now on a resend is one");
    fixture.hear(Primary, &Answer::of(EDS, "4").remove(X).set(Y, "v2"));
    assert_eq!((fixture.named(EDS, X), fixture.seen(EDS, Y)), ("gone".to_owned(), "v2".to_owned()));
    assert_eq!(fixture.named(EDS, GLOB), "2 members");
}

#[test]
fn r_xt_04_a_glob_that_the_origin_removes_has_no_members() {
    let fixture = Fixture::asking("a", EDS, &[GLOB]).heard(&Answer::of(EDS, "1").remove(GLOB));
    assert_eq!(fixture.seen(EDS, GLOB), "absent");

    let mut fixture = collecting();
    fixture.client("b", EDS, &[X]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "2").remove(GLOB));
    assert_eq!((fixture.named(EDS, X), fixture.named(EDS, Y)), ("absent".to_owned(), "gone".to_owned()));
    assert_eq!(fixture.seen(EDS, GLOB), "absent");
    fixture.hear(Primary, &Answer::of(EDS, "3").remove(GLOB).set(Y, "v2"));
    assert_eq!((fixture.seen(EDS, Y), fixture.named(EDS, GLOB)), ("v2".to_owned(), "1 members".to_owned()));
}

#[test]
fn r_xt_05_a_glob_without_a_word_for_it_is_not_known() {
    let mut fixture = Fixture::asking("a", EDS, &[GLOB]);
    fixture.pass(60_000);
    assert_eq!(fixture.seen(EDS, GLOB), "unknown");
    fixture.hear(Primary, &Answer::of(EDS, "1").set(GLOB, "v1"));
    assert_eq!(fixture.seen(EDS, GLOB), "unknown", "a resource cannot be called so");
}

#[test]
fn r_xt_05_a_member_stays_while_it_is_asked_for_in_either_way() {
    let mut fixture = collecting();
    fixture.pass(200);
    fixture.client("b", EDS, &[X]);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, [X]);
    fixture.hear(Primary, &Answer::of(EDS, "2").set(X, "v1"));
    fixture.leave_for("b", 60_000);
    assert_eq!(fixture.request(Primary).resource_names_unsubscribe, [X]);
    assert_eq!(fixture.seen(EDS, X), "v1", "as a member");

    fixture.client("b", EDS, &[X]);
    fixture.requests(Primary);
    fixture.leave_for("a", 60_000);
    assert_eq!(fixture.request(Primary).resource_names_unsubscribe, [GLOB]);
    assert_eq!(fixture.see(EDS, [X, Y]), ["v1", "unknown"]);
    assert_eq!(fixture.seen(EDS, GLOB), "unknown");
    fixture.leave_for("b", 60_000);
    assert_eq!(fixture.snapshot(EDS).entries().count(), 0, "nothing is kept of what nobody wants");
}

#[test]
fn r_xt_05_after_a_reconnect_members_are_claimed_and_removals_are_told() {
    let mut fixture = collecting();
    fixture.pass(200);
    fixture.reconnect();
    let request = fixture.request(Primary);
    assert_eq!(request.resource_names_subscribe, [GLOB]);
    let claimed: BTreeSet<String> = request.initial_resource_versions.keys().cloned().collect();
    assert_eq!(claimed, set(&[X, Y]));
    fixture.hear(Primary, &Answer::of(EDS, "1").remove(Y));
    fixture.pass(5_000);
    assert_eq!((fixture.seen(EDS, X), fixture.named(EDS, Y)), ("v1".to_owned(), "gone".to_owned()));
}

#[test]
fn r_xt_05_a_glob_whose_members_still_come_is_not_known() {
    let mut fixture = collecting();
    fixture.pass(1_000);
    assert_eq!(fixture.named(EDS, GLOB), "unknown", "a short silence is no end");
    fixture.hear(Primary, &Answer::of(EDS, "2").set("xdstp://a/t/foo/z?k=v", "v1"));
    fixture.pass(5_000);
    assert_eq!(fixture.named(EDS, GLOB), "3 members");
}

#[test]
fn r_xt_09_a_body_that_was_not_kept_is_asked_for_once_more_and_only_once() {
    let mut fixture = Fixture::asking("a", EDS, &["e"]);
    let any = any(&EDS.into(), "e@v1");
    let unkept = || [field(3, b"e"), field(1, b"v1"), field(2, &any), field(7, &[0x08, 1])].concat();
    fixture.hear(Primary, &Answer::of(EDS, "1").raw(unkept()));
    assert_eq!(fixture.seen(EDS, "e"), "v1");
    fixture.pass(60_000);
    assert_eq!(fixture.seen(EDS, "e"), "dropped");
    assert_eq!(fixture.requests(Primary), []);
    let again = |fixture: &mut Fixture| {
        fixture.clients["a"].ask_again(&["e".into()]);
        fixture.look();
        fixture.pass(1_000);
        fixture.requests(Primary)
    };
    let requests = again(&mut fixture);
    assert_eq!(
        requests.iter().map(|request| &*request.resource_names_subscribe).collect::<Vec<_>>(),
        [["e"]]
    );
    assert_eq!(again(&mut fixture), [], "the answer to another client is on its way");
    fixture.hear(Primary, &Answer::of(EDS, "2").raw(unkept()));
    assert_eq!(fixture.seen(EDS, "e"), "v1");
}

#[test]
fn r_xt_05_a_glob_of_which_a_member_changes_all_the_time_is_known() {
    let mut fixture = collecting();
    for second in 0..10 {
        fixture.flush(1_000);
        fixture.hear(Primary, &Answer::of(EDS, "n").set(X, &format!("w{second}")));
    }
    assert_eq!(fixture.seen(EDS, GLOB), "collection");
}
