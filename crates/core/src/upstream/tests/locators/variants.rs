//! Variants of one name: replaced, in error, with a TTL, by an alias.

use super::*;

/// Not found and denied.
#[test]
fn an_error_of_the_replaced_variant_takes_nothing_from_the_new_one() {
    for code in [5, 7] {
        let mut fixture = answered(EDS, "env=prod v=1", &["a"], |first| first.variant("a", "env=prod", "1"));
        let split = Answer::of(EDS, "2")
            .remove_variant("a", "env=prod")
            .error("a", &constraints("env=prod"), code)
            .variant("a", "env=prod,v=1", "2");
        fixture.hear(Primary, &split);
        assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "2", "code {code}");
    }
}

#[test]
fn a_variant_is_removed_for_a_client_that_holds_it_by_an_alias() {
    let mut fixture = answered(EDS, "v=1", &["x"], |first| first.variant_alias("a", "v=1", "1", "x"));
    assert_eq!(fixture.seen_with(EDS, "v=1", "x"), "1");
    fixture.hear(Primary, &Answer::of(EDS, "2").remove_variant("a", "v=1"));
    assert_eq!(fixture.seen_with(EDS, "v=1", "x"), "absent");
}

#[test]
fn a_removal_for_others_takes_no_alias_of_a_variant() {
    let mut fixture = Fixture::connected();
    fixture.client("plain", EDS, &["a"]);
    fixture.subscribe_with("one", EDS, "v=1", &["x"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").variant_alias("a", "v=1", "1", "x").remove("a"));
    assert_eq!(fixture.seen_with(EDS, "v=1", "x"), "1");
    fixture.hear(Primary, &Answer::of(EDS, "2").remove("a"));
    assert_eq!(fixture.seen_with(EDS, "v=1", "x"), "1", "`a` is absent for clients without parameters");
}

#[test]
fn constraints_of_an_error_that_are_not_understood_are_not_everybody() {
    let mut fixture = answered(EDS, "v=1", &["a"], |first| first.set("a", "1"));
    fixture.hear(Primary, &Answer::of(EDS, "2").error("a", &[0xff], 7));
    assert_eq!(fixture.seen_with(EDS, "v=1", "a"), "1");
}

#[test]
fn a_ttl_of_another_variant_ends_nothing() {
    let mut fixture = answered(EDS, "env=prod v=1", &["a"], |first| first.variant("a", "v=1", "held"));
    fixture.hear(Primary, &Answer::of(EDS, "2").variant_ttl("a", "env=prod", "other", 1));
    assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "held");
    fixture.pass(2_000);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "held", "it has no TTL");
}

#[test]
fn a_variant_without_a_ttl_does_not_stop_the_timer_of_the_held_one() {
    let mut fixture = answered(EDS, "env=prod v=1", &["a"], |first| first.variant_ttl("a", "v=1", "held", 1));
    fixture.hear(Primary, &Answer::of(EDS, "2").variant("a", "env=prod", "other"));
    fixture.pass(2_000);
    assert_ne!(fixture.seen_with(EDS, "env=prod v=1", "a"), "held", "its TTL has ended");
}

/// The origin adds a rival again and again; each would be copied at each response.
#[test]
fn rivals_of_a_variant_are_bounded() {
    let mut fixture = Fixture::asking_with("one", EDS, "env=prod", &["a"]);
    for number in 0..200 {
        let not = field(4, &constraints(&format!("k={number}")));
        fixture.hear(Primary, &Answer::of(EDS, "1").constrained("a", &not, "1"));
    }
    let topics = fixture.mux.topic_sets.values().flat_map(|topic_set| topic_set.topics.values());
    let rivals: usize = topics
        .flat_map(|topic| topic.rivals.values())
        .map(|rivals| format!("{rivals:?}").matches("version").count())
        .sum();
    assert!(rivals < 100, "{rivals}");
}
