//! R-Relay-03: wildcard and names of one type never share a stream, and move without a gap.

use super::*;

const CDS: Kind = Kind::Cluster;

/// Wildcard on the primary, a name on the secondary, both answered.
fn mixed() -> Rig {
    let mut rig = Rig::connected();
    rig.client("wild", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("m", "v1"));
    rig.pass(500);
    assert!(!rig.mux.wants_secondary());
    rig.client("named", CDS, &["odcds"]);
    assert!(rig.mux.wants_secondary());
    assert_eq!(rig.requests(Primary), []);
    rig.open(Secondary);
    assert_eq!(rig.request(Secondary).resource_names_subscribe, ["odcds"]);
    rig.hear(Secondary, &Answer::of(CDS, "1").set("odcds", "v1"));
    rig
}

#[test]
fn r_relay_03_a_name_that_is_no_member_is_not_shown_to_the_wildcard() {
    let rig = mixed();
    assert_eq!(rig.members(CDS), set(&["m@v1"]));
    assert_eq!(rig.seen(CDS, "odcds"), "v1");
}

#[test]
fn r_relay_03_each_stream_removes_from_its_own_view() {
    let mut rig = mixed();
    rig.client("named", CDS, &["odcds", "m"]);
    rig.pass(10);
    rig.requests(Secondary);
    rig.hear(Secondary, &Answer::of(CDS, "2").set("m", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "2").remove("m").remove("odcds"));
    assert_eq!(rig.members(CDS), set(&[]));
    assert_eq!((rig.seen(CDS, "m"), rig.seen(CDS, "odcds")), ("v1".to_owned(), "v1".to_owned()));
    rig.hear(Secondary, &Answer::of(CDS, "3").remove("m"));
    assert_eq!(rig.seen(CDS, "m"), "absent");
}

#[test]
fn r_relay_03_the_view_that_comes_second_goes_to_the_secondary() {
    let mut rig = Rig::connected();
    rig.client("named", CDS, &["odcds"]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["odcds"]);
    rig.client("wild", CDS, &["*"]);
    rig.open(Secondary);
    rig.pass(10);
    assert_eq!(rig.requests(Primary), []);
    assert!(rig.request(Secondary).resource_names_subscribe.is_empty());
    rig.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1"));
    assert_eq!(rig.members(CDS), set(&["m@v1"]));

    rig.close();
    rig.open(Primary);
    rig.open(Secondary);
    assert!(rig.request(Primary).resource_names_subscribe.is_empty(), "a clean layout after a reconnect");
    assert_eq!(rig.request(Secondary).resource_names_subscribe, ["odcds"]);
}

#[test]
fn r_relay_03_names_move_to_the_primary_without_a_gap() {
    let mut rig = mixed();
    rig.leave("wild");
    rig.pass(60_000);
    assert_eq!(rig.members(CDS), set(&[]), "forgotten");
    assert_eq!(rig.request(Primary).resource_names_unsubscribe, ["*"]);
    // What is on its way as a member of the wildcard is no news of the name.
    rig.hear(Primary, &Answer::of(CDS, "2").remove("odcds").set("m", "v2"));
    assert_eq!((rig.seen(CDS, "odcds"), rig.seen(CDS, "m")), ("v1".to_owned(), "unknown".to_owned()));
    rig.pass(210);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["odcds"]);
    assert!(rig.mux.wants_secondary(), "not before the primary answered");
    rig.hear(Secondary, &Answer::of(CDS, "3").set("odcds", "v2"));
    assert_eq!(rig.seen(CDS, "odcds"), "v2");
    let before = rig.snapshot(CDS).generation();
    rig.hear(Primary, &Answer::of(CDS, "3").set("odcds", "v2"));
    assert_eq!(rig.snapshot(CDS).generation(), before, "the second copy is no resend");
    assert!(!rig.mux.wants_secondary());
    rig.mux.closed(Secondary);
    rig.hear(Primary, &Answer::of(CDS, "4").set("odcds", "v3"));
    assert_eq!(rig.seen(CDS, "odcds"), "v3");
}

#[test]
fn r_relay_03_a_name_without_an_answer_does_not_keep_the_secondary_for_ever() {
    let mut rig = mixed();
    rig.leave("wild");
    rig.pass(60_000);
    rig.requests(Primary);
    rig.pass(210);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["odcds"]);
    rig.pass(900);
    assert!(rig.mux.wants_secondary());
    rig.pass(200);
    assert!(!rig.mux.wants_secondary());
    assert_eq!(rig.seen(CDS, "odcds"), "v1");
}

/// Names on the primary, the wildcard on the secondary and known.
fn reversed() -> Rig {
    let mut rig = Rig::connected();
    rig.client("named", CDS, &["odcds", "m"]);
    rig.requests(Primary);
    rig.client("wild", CDS, &["*"]);
    rig.open(Secondary);
    rig.pass(10);
    rig.requests(Secondary);
    rig.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1").set("n", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1").set("m", "v1"));
    rig.pass(500);
    rig
}

#[test]
fn r_relay_03_the_wildcard_moves_to_the_primary_without_a_gap() {
    let mut rig = reversed();
    rig.leave("named");
    rig.pass(60_000);
    assert_eq!(sorted(&rig.request(Primary).resource_names_unsubscribe), ["m", "odcds"]);
    rig.pass(100);
    assert_eq!(rig.requests(Primary), [], "what is on its way for the names must not pass for members");
    rig.hear(Primary, &Answer::of(CDS, "2").set("odcds", "v2").remove("m"));
    assert_eq!(rig.members(CDS), set(&["m@v1", "n@v1"]));
    rig.pass(110);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["*"]);
    let before = rig.snapshot(CDS).generation();
    rig.hear(Primary, &Answer::of(CDS, "3").set("m", "v1"));
    rig.pass(100);
    rig.hear(Secondary, &Answer::of(CDS, "3").set("n", "v1"));
    assert!(rig.snapshot(CDS).generation() > before, "the secondary's resend is one");
    let before = rig.snapshot(CDS).generation();
    rig.hear(Primary, &Answer::of(CDS, "4").set("n", "v1"));
    assert_eq!(rig.snapshot(CDS).generation(), before);
    rig.pass(199);
    assert!(rig.mux.wants_secondary(), "not before it settled");
    rig.pass(1);
    assert!(!rig.mux.wants_secondary());
    assert!(rig.snapshot(CDS).wildcard_known());
    assert_eq!(rig.members(CDS), set(&["m@v1", "n@v1"]));
}

#[test]
fn r_relay_03_a_wildcard_that_the_primary_does_not_answer_stays_where_it_is() {
    let mut rig = reversed();
    rig.leave("named");
    rig.pass(60_000);
    rig.requests(Primary);
    rig.pass(210);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["*"]);
    rig.pass(100_000);
    assert!(rig.mux.wants_secondary());
    rig.hear(Secondary, &Answer::of(CDS, "2").set("m", "v2").remove("n"));
    assert_eq!(rig.members(CDS), set(&["m@v2"]));
}

#[test]
fn r_relay_03_a_move_is_called_off_when_the_type_is_mixed_again() {
    let mut rig = mixed();
    rig.leave("wild");
    rig.pass(60_000);
    rig.requests(Primary);
    rig.pass(210);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["odcds"]);
    rig.client("wild", CDS, &["*"]);
    rig.pass(10);
    assert_eq!(rig.request(Primary).resource_names_unsubscribe, ["odcds"]);
    rig.hear(Primary, &Answer::of(CDS, "2").set("odcds", "v1"));
    rig.pass(210);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["*"]);
    rig.hear(Primary, &Answer::of(CDS, "3").set("m", "v9"));
    rig.pass(2000);
    assert!(rig.mux.wants_secondary());
    assert_eq!(rig.requests(Secondary), []);
    assert_eq!(rig.members(CDS), set(&["m@v9"]));
    assert_eq!(rig.named(CDS, "odcds"), "v1");
}

#[test]
fn r_relay_03_a_lost_secondary_is_resumed_with_its_versions() {
    let mut rig = mixed();
    rig.mux.closed(Secondary);
    assert_eq!(rig.seen(CDS, "odcds"), "v1");
    assert!(rig.mux.wants_secondary());
    rig.open(Secondary);
    let request = rig.request(Secondary);
    assert_eq!(request.initial_resource_versions.get("odcds").map(String::as_str), Some("v1"));
    assert_eq!(rig.requests(Primary), []);
}

#[test]
fn r_relay_03_while_names_move_a_resend_counts_once() {
    let mut rig = mixed();
    rig.client("named", CDS, &["odcds", "slow"]);
    rig.pass(10);
    rig.requests(Secondary);
    rig.leave("wild");
    rig.pass(60_000);
    rig.requests(Primary);
    rig.pass(210);
    assert_eq!(rig.request(Primary).resource_names_subscribe.len(), 2);
    rig.hear(Primary, &Answer::of(CDS, "2").set("odcds", "v1"));
    assert!(rig.mux.wants_secondary(), "`slow` has not been answered");
    let before = rig.snapshot(CDS).generation();
    rig.hear(Secondary, &Answer::of(CDS, "3").set("odcds", "v1"));
    let once = rig.snapshot(CDS).generation();
    rig.hear(Primary, &Answer::of(CDS, "3").set("odcds", "v1"));
    assert!(once > before && rig.snapshot(CDS).generation() == once);
}

#[test]
fn r_relay_03_a_type_that_moved_is_unsubscribed_from_where_others_stay() {
    let mut rig = mixed();
    rig.client("other", Kind::Listener, &["*"]);
    rig.client("others", Kind::Listener, &["l"]);
    rig.pass(10);
    rig.requests(Secondary);
    rig.leave("wild");
    rig.pass(60_000);
    rig.requests(Primary);
    rig.pass(210);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "2").set("odcds", "v1"));
    rig.pass(10);
    assert!(rig.mux.wants_secondary());
    assert_eq!(rig.request(Secondary).resource_names_unsubscribe, ["odcds"]);
}

#[test]
fn r_relay_03_a_wildcard_does_not_leave_a_secondary_that_was_lost_before_it_caught_up() {
    let mut rig = reversed();
    rig.leave("named");
    rig.pass(60_000);
    rig.requests(Primary);
    rig.pass(210);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["*"]);
    rig.mux.closed(Secondary);
    // `n` was removed when only the lost stream would have said so: the primary was not there yet.
    rig.hear(Primary, &Answer::of(CDS, "2").set("m", "v1"));
    rig.pass(5000);
    assert!(rig.mux.wants_secondary());
    rig.open(Secondary);
    assert_eq!(rig.request(Secondary).initial_resource_versions.len(), 2);
    rig.hear(Secondary, &Answer::of(CDS, "1").remove("n"));
    rig.pass(300);
    assert_eq!(rig.members(CDS), set(&["m@v1"]));
    assert!(!rig.mux.wants_secondary());
}
