//! Variants and versions across a reconnect: what went, came or was claimed while the origin was away.

use super::*;

/// Two sets of parameters are subscribed to, a third borrows from them.
fn lent() -> Rig {
    let mut rig = Rig::connected();
    rig.client_with("x", EDS, "a=x b=1", &["n"]);
    rig.requests(Primary);
    // It comes before there is anything to borrow.
    rig.client_with("y", EDS, "a=y b=1", &["n"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("n", "dead"));
    rig.client_with("b", EDS, "b=1", &["n"]);
    rig.pass(50);
    assert!(rig.requests(Primary).is_empty(), "it borrows");
    rig
}

/// Only clients that the new variant is for see anything of the name in the end.
fn assert_gone(rig: &mut Rig, sees: &[&str]) {
    for pairs in ["a=y b=1", "b=1"] {
        let seen = rig.seen_with(EDS, pairs, "n");
        assert_ne!(seen, "dead", "{pairs}");
    }
    for pairs in sees {
        assert_eq!(rig.seen_with(EDS, pairs, "n"), "new");
    }
    rig.client_with("newcomer", EDS, "b=1 c=1", &["n"]);
    rig.client_with("newcomer of y", EDS, "a=y c=1", &["n"]);
    for pairs in ["b=1 c=1", "a=y c=1"] {
        assert_ne!(rig.seen_with(EDS, pairs, "n"), "dead", "a newcomer with {pairs}");
    }
}

#[test]
fn r_dp_16_a_variant_lent_by_two_that_went_while_away_is_gone_for_the_borrower() {
    for together in [true, false] {
        let mut rig = lent();
        reconnect(&mut rig, 30_000);
        let answer = Answer::of(EDS, "2").variant("n", "a=x", "new");
        if together {
            rig.mux.on_message(Primary, answer.remove("n").bytes(), rig.now).expect("a response");
        } else {
            rig.mux.on_message(Primary, answer.bytes(), rig.now).expect("a response");
            rig.mux
                .on_message(Primary, Answer::of(EDS, "3").remove("n").bytes(), rig.now)
                .expect("a response");
        }
        rig.pass(50);
        let asked: Vec<ResourceLocator> =
            rig.requests(Primary).iter().flat_map(|r| r.resource_locators_subscribe.clone()).collect();
        assert!(located(&asked).contains(&"n{b=1}".to_owned()), "{asked:?}");
        rig.hear(Primary, &Answer::of(EDS, "4").remove("n"));
        assert_gone(&mut rig, &["a=x b=1"]);
    }
}

/// An origin that says nothing where nothing matches: the one word of the name is the new variant.
#[test]
fn r_dp_16_a_lent_variant_that_went_while_away_is_gone_though_the_origin_is_silent_of_it() {
    let mut rig = lent();
    reconnect(&mut rig, 30_000);
    rig.mux
        .on_message(Primary, Answer::of(EDS, "2").variant("n", "a=x", "new").bytes(), rig.now)
        .expect("a response");
    for _ in 0..10 {
        rig.pass(10_000);
        rig.requests(Primary);
    }
    assert_gone(&mut rig, &["a=x b=1"]);
}

#[test]
fn r_up_18_a_plain_removal_after_the_fallback_is_of_all() {
    let mut rig = lent();
    reconnect(&mut rig, 30_000);
    rig.pass(6_000);
    assert_eq!(rig.renewed.len(), 1, "plain names");
    let asked: Vec<String> =
        rig.requests(Primary).into_iter().flat_map(|r| r.resource_names_subscribe).collect();
    assert_eq!(asked, ["n"]);
    rig.mux.on_message(Primary, Answer::of(EDS, "2").remove("n").bytes(), rig.now).expect("a response");
    for _ in 0..10 {
        rig.pass(10_000);
        let asked: Vec<String> =
            rig.requests(Primary).into_iter().flat_map(|r| r.resource_names_subscribe).collect();
        if asked.contains(&"n".to_owned()) {
            rig.mux
                .on_message(Primary, Answer::of(EDS, "3").remove("n").bytes(), rig.now)
                .expect("a response");
        }
    }
    assert_gone(&mut rig, &[]);
    assert_eq!(rig.seen_with(EDS, "a=x b=1", "n"), "absent");
}

/// An origin that does not read locators answers those without parameters only.
#[test]
fn r_up_18_a_wildcard_beside_another_is_not_empty_because_it_is_not_answered() {
    let mut rig = Rig::connected();
    rig.client("plain", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c", "1"));
    rig.client_with("one", CDS, "v=1", &["*"]);
    for _ in 0..100 {
        rig.pass(200);
        let known = rig.snapshot_with(CDS, "v=1").wildcard_known();
        assert!(!known || rig.members_with(CDS, "v=1") == ["c:1"], "an empty set");
        let asked = rig.requests(Primary);
        if asked.iter().any(|request| request.resource_names_subscribe.contains(&"*".to_owned())) {
            rig.hear(Primary, &Answer::of(CDS, "2").set("c", "1"));
        }
    }
    assert_eq!(rig.mux.counters().locators_ignored.get(), 1);
    assert_eq!(rig.members_with(CDS, "v=1"), ["c:1"]);
}

/// A resource that cannot be claimed is no reason to take an origin that hangs for one that does not have it.
#[test]
fn r_dp_14_an_origin_that_hangs_takes_no_variant_away() {
    for (reconcile, kind, name) in
        [(Reconcile::Trust, CDS, "*"), (Reconcile::Sweep, CDS, "*"), (Reconcile::Sweep, EDS, "a")]
    {
        let mut rig = Rig::with(Settings { reconcile, ..Settings::default() });
        rig.open(Primary);
        rig.client_with("one", kind, "v=1", &[name]);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(kind, "1").variant("a", "v=1", "1"));
        rig.pass(3_000);
        reconnect(&mut rig, 30_000);
        for _ in 0..100 {
            rig.pass(2_000);
            rig.requests(Primary);
            assert_eq!(rig.seen_with(kind, "v=1", "a"), "1", "{reconcile:?} {name}");
        }
    }
}

/// The lender is not answered, because nothing is there for it; for the borrower there is.
#[test]
fn r_dp_16_a_loan_without_an_answer_ends_with_a_question() {
    let mut rig = Rig::connected();
    rig.client_with("y", EDS, "a=y b=1", &["n"]);
    rig.client_with("other", EDS, "a=y", &["k"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("n", "b=1", "dead").variant("k", "a=y", "1"));
    rig.client_with("b", EDS, "b=1", &["n"]);
    reconnect(&mut rig, 30_000);
    rig.mux
        .on_message(Primary, Answer::of(EDS, "2").variant("k", "a=y", "1").bytes(), rig.now)
        .expect("a response");
    rig.requests(Primary);
    rig.pass(4_000);
    assert_eq!(exchange(&mut rig, Primary).0, ["n{b=1}"]);
    rig.mux
        .on_message(
            Primary,
            Answer::of(EDS, "3").variant("n", "c=1", "other").variant("n", "b=1", "new").bytes(),
            rig.now,
        )
        .expect("a response");
    assert_eq!(rig.seen_with(EDS, "b=1", "n"), "new");
}

/// One topic lends what may be gone, another one what is there.
#[test]
fn r_dp_16_a_loan_without_an_answer_ends_though_others_lend_another_variant() {
    let mut rig = Rig::connected();
    rig.client_with("b", EDS, "b=1", &["n"]);
    rig.client_with("c", EDS, "c=1", &["n"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("n", "b=1", "dead"));
    rig.client_with("both", EDS, "b=1 c=1", &["n"]);
    reconnect(&mut rig, 30_000);
    rig.hear(Primary, &Answer::of(EDS, "2").variant("n", "c=1", "new"));
    assert_eq!(rig.seen_with(EDS, "b=1 c=1", "n"), "dead", "nobody has said that it is gone");
    rig.pass(4_000);
    assert_eq!(exchange(&mut rig, Primary).0, ["n{b=1, c=1}"]);
}

/// The wildcard is answered before the names are asked for on the other stream.
#[test]
fn r_dp_06_a_name_said_to_be_gone_before_it_is_asked_for_is_gone_there_too() {
    let mut rig = Rig::connected();
    rig.client_with("wildcard", CDS, "b=1 c=1", &["*"]);
    rig.client_with("name", CDS, "a=1 b=1", &["n"]);
    rig.pass(20);
    rig.open(Secondary);
    rig.pass(20);
    rig.requests(Primary);
    rig.requests(Secondary);
    for stream in [Primary, Secondary] {
        rig.hear(stream, &Answer::of(CDS, "1").variant("n", "b=1", "dead"));
    }
    reconnect(&mut rig, 30_000);
    rig.hear(Primary, &Answer::of(CDS, "2").variant("n", "c=1", "new"));
    rig.open(Secondary);
    rig.pass(20);
    rig.requests(Secondary);
    assert_eq!(rig.seen_with(CDS, "a=1 b=1", "n"), "dead", "its own answer may be on the way");
    rig.pass(4_000);
    assert_eq!(rig.seen_with(CDS, "a=1 b=1", "n"), "absent");
}

/// A removal names no parameters, and may answer any question for its name.
#[test]
fn r_dp_05_a_removal_for_early_clients_takes_nothing_from_late_ones() {
    for answers in [true, false] {
        let mut rig = Rig::connected();
        rig.client_with("lender", EDS, "a=1 b=1", &["n"]);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(EDS, "1").variant("n", "a=1", "old"));
        rig.client_with("borrower", EDS, "a=1 b=2", &["n"]);
        rig.client_with("first", EDS, "a=2", &["n"]);
        rig.pass(150);
        assert_eq!(exchange(&mut rig, Primary).0, ["n{a=2}"]);
        let split = Answer::of(EDS, "2").variant("n", "b=1", "1").remove_variant("n", "a=1");
        rig.pass(10);
        rig.hear(Primary, &split);
        rig.pass(150);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(EDS, "3").remove("n"));
        assert_eq!(rig.seen_with(EDS, "a=2", "n"), "absent");
        assert_eq!(rig.seen_with(EDS, "a=1 b=2", "n"), "old", "its own answer is on the way");
        if answers {
            rig.hear(Primary, &Answer::of(EDS, "4").variant("n", "b=2", "2"));
        }
        rig.pass(4_000);
        let seen = rig.seen_with(EDS, "a=1 b=2", "n");
        assert_eq!(seen, if answers { "2" } else { "absent" }, "or it was the answer to both");
    }
}

/// Of two variants for the same parameters the one is claimed, and only the other comes.
#[test]
fn r_dp_04_a_variant_takes_nothing_away_that_is_held_beside_it() {
    let mut rig = Rig::connected();
    rig.client("plain", CDS, &["*"]);
    rig.client_with("wildcard", CDS, "a=1", &["*"]);
    rig.client_with("name", CDS, "b=1", &["n"]);
    rig.pass(20);
    rig.open(Secondary);
    rig.pass(20);
    rig.requests(Primary);
    rig.requests(Secondary);
    for stream in [Primary, Secondary] {
        rig.hear(stream, &Answer::of(CDS, "1").set("n", "1").set("a", "1"));
    }
    rig.pass(20_000);
    reconnect(&mut rig, 30_000);
    rig.hear(Primary, &Answer::of(CDS, "2").set("a", "1").variant("n", "a=1", "2"));
    rig.open(Secondary);
    rig.pass(20);
    rig.requests(Secondary);
    rig.pass(4_000);
    assert_eq!(rig.seen_with(CDS, "b=1", "n"), "1");
}

/// An origin that does not read locators answers plain questions only.
#[test]
fn r_up_18_a_change_for_the_plain_wildcard_is_not_the_whole_of_another() {
    let mut rig = Rig::connected();
    rig.client("plain", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("a", "1").set("b", "1"));
    rig.pass(10_000);
    rig.client_with("located", CDS, "v=1", &["*"]);
    rig.pass(20);
    assert_eq!(exchange(&mut rig, Primary).0, ["*{v=1}"]);
    rig.hear(Primary, &Answer::of(CDS, "2").set("b", "2"));
    rig.pass(20_000);
    assert_eq!(rig.members_with(CDS, "v=1"), ["a:1", "b:2"]);
}

#[test]
fn r_up_18_a_locator_is_asked_again_when_the_plain_name_beside_it_is_let_go() {
    let mut rig = Rig::connected();
    rig.client("plain", EDS, &["n"]);
    rig.client_with("located", EDS, "v=1", &["n"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("n", "1"));
    rig.clients.remove("plain");
    rig.look();
    rig.pass(70_000);
    let asked: Vec<ResourceLocator> =
        rig.requests(Primary).into_iter().flat_map(|request| request.resource_locators_subscribe).collect();
    assert_eq!(located(&asked), ["n{v=1}"]);
    rig.pass(6_000);
    assert_eq!(rig.mux.counters().locators_ignored.get(), 1);
}

/// A client that joins a plain wildcard of others is kept up to date with them.
#[test]
fn r_up_18_a_plain_wildcard_that_is_shared_is_kept_up_to_date_for_all() {
    let mut rig = Rig::with(Settings { locators: Locators::Plain, ..Settings::default() });
    rig.open(Primary);
    rig.client_with("one", CDS, "v=1", &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("a", "1").set("b", "1"));
    rig.pass(10_000);
    rig.client_with("two", CDS, "v=2", &["*"]);
    rig.hear(Primary, &Answer::of(CDS, "2").set("a", "2").remove("b"));
    assert_eq!(rig.members_with(CDS, "v=2"), ["a:2"]);
}

/// While away the variant was split; the origin was told nothing of what is held, so sends only the new one.
#[test]
fn after_a_reconnect_a_new_variant_replaces_the_held_one() {
    for (kind, name) in [(EDS, "a"), (CDS, "*")] {
        let mut rig = answered(kind, "env=prod v=1", &[name], |first| first.variant("a", "env=prod", "old"));
        rig.pass(1_000);
        reconnect(&mut rig, 1_000);
        rig.hear(Primary, &Answer::of(kind, "2").variant("a", "env=prod,v=1", "new"));
        rig.pass(30_000);
        assert_eq!(rig.seen_with(kind, "env=prod v=1", "a"), "new", "{name}");
        if name == "*" {
            assert_eq!(rig.members_with(kind, "env=prod v=1"), ["a:new"]);
        }
    }
}

/// The origin does not know that a variant is held: it says by the plain name that there is none.
#[test]
fn after_a_reconnect_a_removal_or_not_found_by_the_plain_name_answers_for_the_variant() {
    for answer in [Answer::of(EDS, "2").remove("a"), Answer::of(EDS, "2").error("a", b"", 5)] {
        let mut rig = answered(EDS, "v=1", &["a"], |first| first.variant("a", "v=1", "old"));
        reconnect(&mut rig, 1_000);
        rig.hear(Primary, &answer);
        rig.pass(30_000);
        assert_eq!(rig.seen_with(EDS, "v=1", "a"), "absent");
    }
}

/// All that is held is for everybody; a plain topic claims its version, so the origin need not send it again.
#[test]
fn versions_that_were_claimed_do_not_look_like_locators_ignored() {
    let mut rig = Rig::connected();
    rig.client("plain", EDS, &["a", "b"]);
    rig.client_with("one", EDS, "v=1", &["b"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("a", "1").set("b", "1"));
    let requests = reconnect(&mut rig, 1_000);
    assert_eq!(requests[0].initial_resource_versions.len(), 1);
    rig.hear(Primary, &Answer::of(EDS, "2").set("a", "1"));
    rig.pass(10_000);
    assert_eq!(rig.mux.counters().locators_ignored.get(), 0);
}

/// A member without a version was deleted while the relay was away.
#[test]
fn members_without_a_version_are_swept_after_a_reconnect() {
    let mut rig = Rig::connected();
    rig.client("star", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set_body("a", "", "a").set("b", "1"));
    rig.pass(1_000);
    reconnect(&mut rig, 1_000);
    for round in ["2", "3"] {
        rig.hear(Primary, &Answer::of(CDS, round).set("c", "1"));
        rig.pass(30_000);
        rig.requests(Primary);
    }
    assert!(!rig.members(CDS).iter().any(|member| member.starts_with("a@")), "{:?}", rig.members(CDS));
}
