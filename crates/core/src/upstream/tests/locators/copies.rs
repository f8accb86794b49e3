//! Variants of other parameters that new clients see until the answer to their own request.

use super::*;

#[test]
fn a_copy_is_kept_when_not_found_is_said_before_its_own_request() {
    let mut fixture = answered(EDS, "v=1", &["a"], |first| first.set("a", "1"));
    fixture.client_with("two", EDS, "v=2", &["a"]);
    fixture.hear(Primary, &Answer::of(EDS, "2").error("a", b"", 5));
    assert_eq!(fixture.seen_with(EDS, "v=2", "a"), "1", "its own parameters were never told");
}

/// Asked for by plain names, a removal is for everybody.
#[test]
fn r_up_18_a_plain_removal_reaches_all_sets_at_once() {
    let mut fixture = Fixture::plain();
    fixture.client_with("one", EDS, "v=1", &["a"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "1"));
    fixture.client_with("two", EDS, "v=2", &["a"]);
    assert_eq!(fixture.seen_with(EDS, "v=2", "a"), "1");
    fixture.hear(Primary, &Answer::of(EDS, "2").remove("a"));
    assert_eq!(fixture.seen_with(EDS, "v=2", "a"), "absent");
}

/// The origin splits the variant before it reads the other request.
#[test]
fn a_copy_is_kept_until_its_own_answer_whatever_crosses_it() {
    let mut fixture = answered(EDS, "env=prod v=1", &["a"], |first| first.variant("a", "env=prod", "1"));
    fixture.client_with("two", EDS, "env=prod v=2", &["a"]);
    fixture.flush(50);
    let crossing = Answer::of(EDS, "2").remove_variant("a", "env=prod").variant("a", "env=prod,v=1", "2");
    fixture.hear(Primary, &crossing);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "1", "kept until its own answer");
    fixture.hear(Primary, &Answer::of(EDS, "3").variant("a", "env=prod,v=2", "3"));
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "3");
}

/// A mark of the copy would make a later removal, meant for others, count.
#[test]
fn a_copy_that_ended_by_its_ttl_leaves_nothing_behind() {
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

#[test]
fn copies_end_with_their_ttl() {
    let mut fixture =
        answered(EDS, "env=prod v=1", &["a"], |first| first.variant_ttl("a", "env=prod", "1", 5));
    fixture.client_with("two", EDS, "env=prod v=2", &["a"]);
    fixture.pass(4_900);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "1");
    fixture.pass(200);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "absent");
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

/// A removed name is subscribed to once more, which is no question.
#[test]
fn a_removal_for_others_ends_no_variant_that_came_after_one_that_was_removed() {
    let mut fixture = answered(EDS, "env=prod", &["a"], |first| first.variant("a", "env=prod", "1"));
    fixture.deliver(Primary, &Answer::of(EDS, "2").remove_variant("a", "env=prod"));
    fixture.deliver(Primary, &Answer::of(EDS, "3").variant("a", "env=prod", "2"));
    fixture.client_with("dev", EDS, "env=dev", &["a"]);
    fixture.flush(50);
    // The first one crosses the question and counts as its answer.
    fixture.hear(Primary, &Answer::of(EDS, "4").remove("a"));
    fixture.hear(Primary, &Answer::of(EDS, "5").remove("a"));
    assert_eq!(fixture.seen_with(EDS, "env=dev", "a"), "absent");
    assert_eq!(fixture.seen_with(EDS, "env=prod", "a"), "2");
}
