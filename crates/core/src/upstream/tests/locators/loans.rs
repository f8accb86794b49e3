//! Variants that clients borrow from a subscription with other parameters, until an answer to their own.

use super::*;

#[test]
fn a_borrower_keeps_its_variant_when_not_found_is_said_to_the_lender() {
    let mut fixture = answered(EDS, "v=1", &["a"], |first| first.set("a", "1"));
    fixture.client_with("two", EDS, "v=2", &["a"]);
    fixture.hear(Primary, &Answer::of(EDS, "2").error("a", b"", 5));
    assert_eq!(fixture.seen_with(EDS, "v=2", "a"), "1", "its own parameters were never told");
}

/// Asked for by plain names, a removal is for everybody.
#[test]
fn r_up_18_a_plain_removal_reaches_borrowers_at_once() {
    let mut fixture = Fixture::plain();
    fixture.client_with("one", EDS, "v=1", &["a"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "1"));
    fixture.client_with("two", EDS, "v=2", &["a"]);
    assert_eq!(fixture.seen_with(EDS, "v=2", "a"), "1");
    fixture.hear(Primary, &Answer::of(EDS, "2").remove("a"));
    assert_eq!(fixture.seen_with(EDS, "v=2", "a"), "absent");
}

/// The lender leaves; the origin splits the variant before it hears of the borrower's own question.
#[test]
fn a_loan_is_kept_until_its_own_answer_whatever_crosses_it() {
    let mut fixture = answered(EDS, "env=prod v=1", &["a"], |first| first.variant("a", "env=prod", "1"));
    fixture.client_with("two", EDS, "env=prod v=2", &["a"]);
    fixture.leave("one");
    fixture.flush(61_000);
    let crossing = Answer::of(EDS, "2").remove_variant("a", "env=prod").variant("a", "env=prod,v=1", "2");
    fixture.hear(Primary, &crossing);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "1", "kept until its own answer");
    fixture.hear(Primary, &Answer::of(EDS, "3").variant("a", "env=prod,v=2", "3"));
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "3");
}

/// A mark of the loan would make a later removal, meant for others, count.
#[test]
fn a_loan_that_ended_by_its_ttl_leaves_nothing_behind() {
    let mut fixture =
        answered(EDS, "env=prod v=1", &["a"], |first| first.variant_ttl("a", "env=prod", "1", 5));
    fixture.client_with("two", EDS, "env=prod v=2", &["a"]);
    fixture.flush(6_000);
    fixture.hear(Primary, &Answer::of(EDS, "2").variant("a", "env=prod,v=2", "2"));
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "2");
    fixture.subscribe("plain", EDS, &["a"]);
    fixture.hear(Primary, &Answer::of(EDS, "3").remove("a"));
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "2", "that was for those without parameters");
}

/// A heartbeat and a TTL of what is borrowed; the end, and what comes after.
#[test]
fn loans_end_with_their_ttl_and_are_asked_for() {
    let mut fixture =
        answered(EDS, "env=prod v=1", &["a"], |first| first.variant_ttl("a", "env=prod", "1", 5));
    fixture.client_with("two", EDS, "env=prod v=2", &["a"]);
    fixture.pass(4_900);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "1");
    fixture.pass(200);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "absent");
    assert_eq!(fixture.asked_locators(), ["a{env=prod, v=1}", "a{env=prod, v=2}"]);
}

/// Both views, so that there is a secondary stream; the loan is of what lives there.
#[test]
fn loans_on_the_secondary_end_when_it_is_lost_and_nothing_comes_back() {
    let mut fixture = Fixture::asking("star", CDS, &["*"]).heard(&Answer::of(CDS, "1").set("m", "1"));
    fixture.pass(1_000);
    fixture.client_with("one", CDS, "env=prod v=1", &["a"]);
    fixture.ask_on_secondary();
    fixture.hear(Secondary, &Answer::of(CDS, "2").variant("a", "env=prod", "1"));
    fixture.client_with("two", CDS, "env=prod v=2", &["a"]);
    fixture.pass(50);
    assert!(fixture.requests(Secondary).is_empty());
    fixture.leave_for("one", 61_000);
    let (asked, let_go) = exchange(&mut fixture, Secondary);
    assert_eq!((asked, let_go), (vec!["a{env=prod, v=2}".to_owned()], vec!["a{env=prod, v=1}".to_owned()]));
    // The wildcard goes: in the end the names have the primary to themselves.
    fixture.leave_for("star", 660_000);
    let primary = fixture.requests(Primary);
    let all: Vec<ResourceLocator> =
        primary.iter().flat_map(|r| r.resource_locators_subscribe.clone()).collect();
    assert_eq!(located(&all), ["a{env=prod, v=2}"]);
    fixture.hear(Primary, &Answer::of(CDS, "3").variant("a", "env=prod,v=2", "2"));
    fixture.pass(2_000);
    assert_eq!(fixture.seen_with(CDS, "env=prod v=2", "a"), "2");
}

#[test]
fn the_end_mark_is_left_once() {
    let mut fixture = Fixture::connected();
    fixture.client("plain", EDS, &["z"]);
    fixture.client_with("one", EDS, "v=1", &["a"]);
    fixture.client_with("two", EDS, "v=2", &["b"]);
    fixture.subscribe_with("three", EDS, "v=3", &["c"]);
    let end = Answer::of(EDS, "1").remove(Name::END_MARK);
    fixture.deliver(Primary, &end);
    fixture.pass(100);
    let mut left = Vec::new();
    while fixture.mux.has_request(Primary) {
        left.extend(fixture.mux.next_request(Primary, fixture.now).map(|r| r.resource_names_unsubscribe));
    }
    let left: Vec<String> = left.into_iter().flatten().collect();
    assert_eq!(left, [Name::END_MARK]);
}
