//! Variants and versions across a reconnect: what went, came or was claimed while the origin was away.

use super::*;

/// One resource is for three sets of parameters; the third came later.
fn shared() -> Fixture {
    let mut fixture = Fixture::asking_with("x", EDS, "a=x b=1", &["n"]);
    fixture.subscribe_with("y", EDS, "a=y b=1", &["n"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("n", "dead"));
    fixture.client_with("b", EDS, "b=1", &["n"]);
    fixture.pass(50);
    assert_eq!(fixture.seen_with(EDS, "b=1", "n"), "dead", "until its own answer");
    assert_eq!(fixture.asked_locators(), ["n{b=1}"]);
    fixture
}

/// Only clients that the new variant is for see anything of the name in the end.
fn assert_gone(fixture: &mut Fixture, sees: &[&str]) {
    for pairs in ["a=y b=1", "b=1"] {
        let seen = fixture.seen_with(EDS, pairs, "n");
        assert_ne!(seen, "dead", "{pairs}");
    }
    for pairs in sees {
        assert_eq!(fixture.seen_with(EDS, pairs, "n"), "new");
    }
    fixture.client_with("newcomer", EDS, "b=1 c=1", &["n"]);
    fixture.client_with("newcomer of y", EDS, "a=y c=1", &["n"]);
    for pairs in ["b=1 c=1", "a=y c=1"] {
        assert_ne!(fixture.seen_with(EDS, pairs, "n"), "dead", "a newcomer with {pairs}");
    }
}

#[test]
fn r_dp_16_a_resource_of_three_that_went_while_away_is_gone_for_all() {
    for together in [true, false] {
        let mut fixture = shared();
        reconnect(&mut fixture, 30_000);
        let answer = Answer::of(EDS, "2").variant("n", "a=x", "new");
        if together {
            fixture.deliver(Primary, &answer.remove("n"));
        } else {
            fixture.deliver(Primary, &answer);
            fixture.deliver(Primary, &Answer::of(EDS, "3").remove("n"));
        }
        fixture.pass(50);
        assert_gone(&mut fixture, &["a=x b=1"]);
    }
}

#[test]
fn r_up_18_a_plain_removal_after_the_fallback_is_of_all() {
    let mut fixture = shared();
    reconnect(&mut fixture, 30_000);
    fixture.pass(6_000);
    assert_eq!(fixture.renewed.len(), 1, "plain names");
    assert_eq!(fixture.asked(), ["n"]);
    fixture.deliver(Primary, &Answer::of(EDS, "2").remove("n"));
    for _ in 0..10 {
        fixture.pass(10_000);
        let asked = fixture.asked();
        if asked.contains(&"n".to_owned()) {
            fixture.deliver(Primary, &Answer::of(EDS, "3").remove("n"));
        }
    }
    assert_gone(&mut fixture, &[]);
    assert_eq!(fixture.seen_with(EDS, "a=x b=1", "n"), "absent");
}

/// An origin that does not read locators answers those without parameters only.
#[test]
fn r_up_18_a_wildcard_beside_another_is_not_empty_because_it_is_not_answered() {
    let mut fixture = Fixture::asking("plain", CDS, &["*"]).heard(&Answer::of(CDS, "1").set("c", "1"));
    fixture.client_with("one", CDS, "v=1", &["*"]);
    for _ in 0..100 {
        fixture.pass(200);
        let known = fixture.snapshot_with(CDS, "v=1").wildcard_known();
        assert!(!known || fixture.members_with(CDS, "v=1") == ["c:1"], "an empty set");
        let asked = fixture.requests(Primary);
        if asked.iter().any(|request| request.resource_names_subscribe.contains(&"*".to_owned())) {
            fixture.hear(Primary, &Answer::of(CDS, "2").set("c", "1"));
        }
    }
    assert_eq!(fixture.mux.counters().locators_ignored.get(), 1);
    assert_eq!(fixture.members_with(CDS, "v=1"), ["c:1"]);
}

/// A resource that cannot be claimed is no reason to take an origin that hangs for one that does not have it.
#[test]
fn r_dp_14_an_origin_that_hangs_takes_no_variant_away() {
    for (kind, name) in [(CDS, "*"), (EDS, "a")] {
        let mut fixture = Fixture::asking_with("one", kind, "v=1", &[name]);
        fixture.hear(Primary, &Answer::of(kind, "1").variant("a", "v=1", "1"));
        fixture.pass(3_000);
        reconnect(&mut fixture, 30_000);
        for _ in 0..100 {
            fixture.flush(2_000);
            assert_eq!(fixture.seen_with(kind, "v=1", "a"), "1", "{name}");
        }
    }
}

/// A removal names no parameters, and may answer any question for its name.
#[test]
fn r_dp_05_a_removal_for_early_clients_takes_nothing_from_late_ones() {
    let own = Answer::of(EDS, "4");
    for (answer, shown) in [(own.clone().variant("n", "b=2", "2"), "2"), (own.remove("n"), "absent")] {
        let mut fixture = Fixture::asking_with("early", EDS, "a=1 b=1", &["n"]);
        fixture.hear(Primary, &Answer::of(EDS, "1").variant("n", "a=1", "old"));
        fixture.client_with("first", EDS, "a=2", &["n"]);
        fixture.pass(150);
        assert_eq!(exchange(&mut fixture, Primary).0, ["n{a=2}"]);
        fixture.client_with("late", EDS, "a=1 b=2", &["n"]);
        fixture.pass(20);
        assert_eq!(exchange(&mut fixture, Primary).0, ["n{a=1, b=2}"]);
        let split = Answer::of(EDS, "2").variant("n", "b=1", "1").remove_variant("n", "a=1");
        fixture.hear(Primary, &split);
        fixture.hear(Primary, &Answer::of(EDS, "3").remove("n"));
        assert_eq!(fixture.seen_with(EDS, "a=2", "n"), "absent");
        assert_eq!(fixture.seen_with(EDS, "a=1 b=2", "n"), "old", "its own answer is on the way");
        fixture.hear(Primary, &answer);
        assert_eq!(fixture.seen_with(EDS, "a=1 b=2", "n"), shown);
    }
}

/// Two variants are for the same parameters, and only the other comes.
#[test]
fn r_dp_04_a_variant_takes_nothing_away_that_is_held_beside_it() {
    let mut fixture = Fixture::connected();
    fixture.client("plain", CDS, &["*"]);
    fixture.client_with("wildcard", CDS, "a=1", &["*"]);
    fixture.client_with("name", CDS, "b=1", &["n"]);
    fixture.pass(20);
    fixture.open(Secondary);
    fixture.flush(20);
    fixture.requests(Secondary);
    for stream in [Primary, Secondary] {
        fixture.hear(stream, &Answer::of(CDS, "1").set("n", "1").set("a", "1"));
    }
    fixture.pass(20_000);
    reconnect(&mut fixture, 30_000);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("a", "1").variant("n", "a=1", "2"));
    fixture.ask_on_secondary();
    fixture.pass(4_000);
    assert_eq!(fixture.seen_with(CDS, "b=1", "n"), "1");
}

/// An origin that does not read locators answers plain questions only.
#[test]
fn r_up_18_a_change_for_the_plain_wildcard_is_not_the_whole_of_another() {
    let mut fixture = Fixture::asking("plain", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "1").set("b", "1"));
    fixture.pass(10_000);
    fixture.client_with("located", CDS, "v=1", &["*"]);
    fixture.pass(20);
    assert_eq!(exchange(&mut fixture, Primary).0, ["*{v=1}"]);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("b", "2"));
    fixture.pass(20_000);
    assert_eq!(fixture.members_with(CDS, "v=1"), ["a:1", "b:2"]);
}

#[test]
fn r_up_18_a_locator_is_asked_again_when_the_plain_name_beside_it_is_let_go() {
    let mut fixture = Fixture::connected();
    fixture.client("plain", EDS, &["n"]);
    fixture.subscribe_with("located", EDS, "v=1", &["n"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("n", "1"));
    fixture.clients.remove("plain");
    fixture.look();
    fixture.pass(70_000);
    assert_eq!(fixture.asked_locators(), ["n{v=1}"]);
    fixture.pass(6_000);
    assert_eq!(fixture.mux.counters().locators_ignored.get(), 1);
}

/// A client that joins a plain wildcard of others is kept up to date with them.
#[test]
fn r_up_18_a_plain_wildcard_that_is_shared_is_kept_up_to_date_for_all() {
    let mut fixture = Fixture::plain();
    fixture.client_with("one", CDS, "v=1", &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "1").set("b", "1"));
    fixture.pass(10_000);
    fixture.client_with("two", CDS, "v=2", &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("a", "2").remove("b"));
    assert_eq!(fixture.members_with(CDS, "v=2"), ["a:2"]);
}

/// The origin does not know that a variant is held: it says by the plain name that there is none.
#[test]
fn after_a_reconnect_a_removal_or_not_found_by_the_plain_name_answers_for_the_variant() {
    for answer in [Answer::of(EDS, "2").remove("a"), Answer::of(EDS, "2").error("a", b"", 5)] {
        let mut fixture = answered(EDS, "v=1", &["a"], |first| first.variant("a", "v=1", "old"));
        reconnect(&mut fixture, 1_000);
        fixture.hear(Primary, &answer);
        fixture.pass(30_000);
        assert_eq!(fixture.seen_with(EDS, "v=1", "a"), "absent");
    }
}
