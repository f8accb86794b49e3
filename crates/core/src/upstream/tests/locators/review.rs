//! Faults that a review of locators towards the origin found.

use super::*;
use crate::cache::OriginError;
use crate::proto::{ResourceError, ResourceName, Status};

impl Answer {
    fn error(mut self, name: &str, rule: &[u8], code: i32) -> Self {
        self.0.resource_errors.push(ResourceError {
            resource_name: Some(ResourceName {
                name: name.to_owned(),
                dynamic_parameter_constraints: rule.to_vec().into(),
            }),
            error_detail: Some(Status { code, message: "?".to_owned() }),
        });
        self
    }

    fn variant_ttl(self, name: &str, rule: &str, version: &str, seconds: u8) -> Self {
        let any = any(&self.1, version);
        let named = resource_name(name, &constraints(rule));
        self.raw(
            [field(8, &named), field(1, version.as_bytes()), field(2, &any), field(6, &[8, seconds])]
                .concat(),
        )
    }

    fn variant_alias(self, name: &str, rule: &str, version: &str, alias: &str) -> Self {
        let any = any(&self.1, version);
        let named = resource_name(name, &constraints(rule));
        self.raw(
            [field(8, &named), field(1, version.as_bytes()), field(4, alias.as_bytes()), field(2, &any)]
                .concat(),
        )
    }
}

fn reconnect(rig: &mut Rig) -> Vec<DeltaDiscoveryRequest> {
    rig.close();
    rig.pass(1_000);
    rig.open(Primary);
    rig.pass(20);
    rig.requests(Primary)
}

/// While away the variant was split; the origin was told nothing of what is held, so sends only the new one.
#[test]
fn f01_after_a_reconnect_a_new_variant_replaces_the_held_one() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "env=prod", "old"));
    reconnect(&mut rig);
    rig.hear(Primary, &Answer::of(EDS, "2").variant("a", "env=prod,v=1", "new"));
    rig.pass(30_000);
    assert_eq!(rig.seen_with(EDS, "env=prod v=1", "a"), "new");
}

#[test]
fn f01b_after_a_reconnect_a_new_member_variant_replaces_the_held_one() {
    let mut rig = Rig::connected();
    rig.client_with("one", CDS, "env=prod v=1", &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").variant("a", "env=prod", "old"));
    rig.pass(1_000);
    reconnect(&mut rig);
    rig.hear(Primary, &Answer::of(CDS, "2").variant("a", "env=prod,v=1", "new"));
    rig.pass(30_000);
    assert_eq!(rig.members_with(CDS, "env=prod v=1"), ["a:new"]);
}

/// The origin does not know that a variant is held: it says by the plain name that there is none.
#[test]
fn f02_after_a_reconnect_a_plain_removal_answers_for_the_variant() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "v=1", "old"));
    reconnect(&mut rig);
    rig.hear(Primary, &Answer::of(EDS, "2").remove("a"));
    rig.pass(30_000);
    assert_eq!(rig.seen_with(EDS, "v=1", "a"), "absent");
}

#[test]
fn f02b_after_a_reconnect_not_found_answers_for_the_variant() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "v=1", "old"));
    reconnect(&mut rig);
    rig.hear(Primary, &Answer::of(EDS, "2").error("a", b"", 5));
    rig.pass(30_000);
    assert_eq!(rig.seen_with(EDS, "v=1", "a"), "absent");
}

#[test]
fn f03_an_empty_answer_to_one_set_is_no_answer_to_another() {
    let mut rig = Rig::connected();
    rig.client_with("one", CDS, "v=1", &["*"]);
    rig.client_with("two", CDS, "v=2", &["*"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1")); // nothing for v=1
    rig.pass(500);
    let known = rig.snapshot_with(CDS, "v=2").wildcard_known();
    assert!(!known, "an empty set for who holds everything");
}

#[test]
fn f04_an_update_for_everybody_is_no_answer_to_a_new_set() {
    let mut rig = Rig::connected();
    rig.client_with("prod", CDS, "env=prod", &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").variant("a", "env=prod", "1").set("b", "1"));
    rig.pass(1_000);
    rig.client_with("dev", CDS, "env=dev", &["*"]);
    rig.pass(20);
    rig.requests(Primary);
    // Ordinary news for clients that have the set, while the origin works on the answer.
    rig.hear(Primary, &Answer::of(CDS, "2").set("b", "2"));
    rig.pass(300);
    assert!(
        !rig.snapshot_with(CDS, "env=dev").wildcard_known(),
        "a[env=dev] has not come: it would be deleted"
    );
}

#[test]
fn f05_parameters_that_nobody_has_leave_nothing() {
    let mut rig = Rig::connected();
    rig.client("plain", EDS, &["z"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("z", "1"));
    for number in 0..50 {
        let pairs = format!("v={number}");
        rig.client_with("one", EDS, &pairs, &["a"]);
        rig.pass(20);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(EDS, "2").variant("a", &pairs, "1"));
        rig.leave("one");
        rig.pass(61_000);
        rig.requests(Primary);
        rig.pass(61_000);
        rig.requests(Primary);
    }
    rig.hear(Primary, &Answer::of(EDS, "3").set("z", "2"));
    let topics: usize = rig.mux.groups.values().map(|group| group.topics.len()).sum();
    assert_eq!((topics, rig.cache.types().len()), (1, 1));
}

#[test]
fn f06_not_found_of_the_replaced_variant_takes_nothing_from_the_new_one() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "env=prod", "1"));
    let split = Answer::of(EDS, "2")
        .remove_variant("a", "env=prod")
        .error("a", &constraints("env=prod"), 5)
        .variant("a", "env=prod,v=1", "2");
    rig.hear(Primary, &split);
    assert_eq!(rig.seen_with(EDS, "env=prod v=1", "a"), "2");
}

#[test]
fn f06b_denial_of_the_replaced_variant_takes_nothing_from_the_new_one() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "env=prod", "1"));
    let split = Answer::of(EDS, "2")
        .remove_variant("a", "env=prod")
        .error("a", &constraints("env=prod"), 7)
        .variant("a", "env=prod,v=1", "2");
    rig.hear(Primary, &split);
    assert_eq!(rig.seen_with(EDS, "env=prod v=1", "a"), "2");
}

#[test]
fn f07_who_borrows_keeps_it_when_not_found_is_said_to_the_lender() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("a", "1"));
    rig.client_with("two", EDS, "v=2", &["a"]);
    rig.hear(Primary, &Answer::of(EDS, "2").error("a", b"", 5));
    assert_eq!(rig.seen_with(EDS, "v=2", "a"), "1", "its own parameters were never told");
}

#[test]
fn f08_a_variant_is_removed_for_who_holds_it_by_an_alias() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "v=1", &["x"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant_alias("a", "v=1", "1", "x"));
    assert_eq!(rig.seen_with(EDS, "v=1", "x"), "1");
    rig.hear(Primary, &Answer::of(EDS, "2").remove_variant("a", "v=1"));
    assert_eq!(rig.seen_with(EDS, "v=1", "x"), "absent");
}

#[test]
fn f08b_nothing_for_others_takes_no_alias_of_a_variant() {
    let mut rig = Rig::connected();
    rig.client("plain", EDS, &["a"]);
    rig.client_with("one", EDS, "v=1", &["x"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant_alias("a", "v=1", "1", "x").remove("a"));
    assert_eq!(rig.seen_with(EDS, "v=1", "x"), "1");
    rig.hear(Primary, &Answer::of(EDS, "2").remove("a"));
    assert_eq!(rig.seen_with(EDS, "v=1", "x"), "1", "`a` is absent for who has no parameters");
}

#[test]
fn f09_constraints_of_an_error_that_are_not_understood_are_not_everybody() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("a", "1"));
    rig.hear(Primary, &Answer::of(EDS, "2").error("a", &[0xff], 7));
    assert_eq!(rig.seen_with(EDS, "v=1", "a"), "1");
}

#[test]
fn f10_a_ttl_of_another_variant_ends_nothing() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "v=1", "held"));
    rig.hear(Primary, &Answer::of(EDS, "2").variant_ttl("a", "env=prod", "other", 1));
    assert_eq!(rig.seen_with(EDS, "env=prod v=1", "a"), "held");
    rig.pass(2_000);
    assert_eq!(rig.seen_with(EDS, "env=prod v=1", "a"), "held", "it has no TTL");
}

#[test]
fn f10b_a_variant_without_a_ttl_does_not_stop_the_timer_of_the_held_one() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant_ttl("a", "v=1", "held", 1));
    rig.hear(Primary, &Answer::of(EDS, "2").variant("a", "env=prod", "other"));
    rig.pass(2_000);
    assert_ne!(rig.seen_with(EDS, "env=prod v=1", "a"), "held", "its TTL has ended");
}

/// The lender leaves; the origin splits the variant before it hears of the borrower's own question.
#[test]
fn f11_what_was_borrowed_is_kept_until_the_answer_whoever_crosses_it() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "env=prod", "1"));
    rig.client_with("two", EDS, "env=prod v=2", &["a"]);
    rig.leave("one");
    rig.pass(61_000);
    rig.requests(Primary);
    let crossing = Answer::of(EDS, "2").remove_variant("a", "env=prod").variant("a", "env=prod,v=1", "2");
    rig.hear(Primary, &crossing);
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "1", "kept until its own answer");
    rig.hear(Primary, &Answer::of(EDS, "3").variant("a", "env=prod,v=2", "3"));
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "3");
}

/// A loan that ended by a TTL leaves a mark that makes a later removal meant for others count.
#[test]
fn f12_a_loan_that_ended_by_its_ttl_leaves_nothing_behind() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant_ttl("a", "env=prod", "1", 5));
    rig.client_with("two", EDS, "env=prod v=2", &["a"]);
    rig.pass(6_000);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "2").variant("a", "env=prod,v=2", "2"));
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "2");
    rig.client("plain", EDS, &["a"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "3").remove("a"));
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "2", "that was for those without parameters");
}

/// All that is held is for everybody; a plain topic claims its version, so the origin need not send it again.
#[test]
fn f14_versions_that_were_claimed_do_not_look_like_locators_ignored() {
    let mut rig = Rig::connected();
    rig.client("plain", EDS, &["a", "b"]);
    rig.client_with("one", EDS, "v=1", &["b"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("a", "1").set("b", "1"));
    let requests = reconnect(&mut rig);
    assert_eq!(requests[0].initial_resource_versions.len(), 1);
    rig.hear(Primary, &Answer::of(EDS, "2").set("a", "1"));
    rig.pass(10_000);
    assert_eq!(rig.mux.counters().locators_ignored.get(), 0);
}

/// A rival that the origin adds to again and again is kept for ever, and copied at each response.
#[test]
fn f15_what_rivals_is_bounded() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod", &["a"]);
    rig.requests(Primary);
    for number in 0..200 {
        let not = field(4, &constraints(&format!("k={number}")));
        rig.hear(Primary, &Answer::of(EDS, "1").constrained("a", &not, "1"));
    }
    let topics = rig.mux.groups.values().flat_map(|group| group.topics.values());
    let rivals: usize = topics
        .flat_map(|topic| topic.rivals.values())
        .map(|rivals| format!("{rivals:?}").matches("version").count())
        .sum();
    assert!(rivals < 100, "{rivals}");
}

#[test]
fn f16_the_failure_type_is_used() {
    assert!(OriginError::new(5, "").is_not_found());
}

/// A set that is empty for one of two is never known, where the origin answers both in one response.
#[test]
fn f17_an_empty_set_beside_another_is_known_in_the_end() {
    let mut rig = Rig::connected();
    rig.client_with("one", CDS, "v=1", &["*"]);
    rig.client_with("two", CDS, "v=2", &["*"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").variant("a", "v=1", "1"));
    rig.pass(60_000);
    assert!(rig.snapshot_with(CDS, "v=2").wildcard_known());
}

/// A heartbeat and a TTL of what is borrowed; the end, and what comes after.
#[test]
fn g01_loans_end_with_their_ttl_and_are_asked_for() {
    let mut rig = Rig::connected();
    rig.client_with("one", EDS, "env=prod v=1", &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant_ttl("a", "env=prod", "1", 5));
    rig.client_with("two", EDS, "env=prod v=2", &["a"]);
    rig.pass(4_900);
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "1");
    rig.pass(200);
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "absent");
    let all: Vec<ResourceLocator> =
        rig.requests(Primary).iter().flat_map(|r| r.resource_locators_subscribe.clone()).collect();
    assert_eq!(located(&all), ["a{env=prod, v=1}", "a{env=prod, v=2}"]);
}

#[test]
fn g02_loans_survive_a_reconnect_and_end_with_a_sweep() {
    let settle = Duration::from_millis(50);
    let mut rig = Rig::with(Settings { reconcile: Reconcile::Sweep, settle, ..Settings::default() });
    rig.open(Primary);
    rig.client_with("one", EDS, "env=prod v=1", &["a", "b"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").variant("a", "env=prod", "1").set("b", "1"));
    rig.client_with("two", EDS, "env=prod v=2", &["a"]);
    let requests = reconnect(&mut rig);
    let all: Vec<ResourceLocator> =
        requests.iter().flat_map(|r| r.resource_locators_subscribe.clone()).collect();
    assert_eq!(located(&all), ["a{env=prod, v=1}", "b{env=prod, v=1}"]);
    for round in ["2", "3"] {
        rig.hear(Primary, &Answer::of(EDS, round).set("b", "1"));
        assert_eq!(rig.seen_with(EDS, "env=prod v=1", "a"), "1", "missing once is no evidence");
        rig.pass(2_500);
        if round == "2" {
            rig.requests(Primary);
        }
    }
    assert_eq!(rig.seen_with(EDS, "env=prod v=1", "a"), "absent");
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "1", "until its own answer");
    assert_eq!(exchange(&mut rig, Primary).0, ["a{env=prod, v=2}"]);
    rig.hear(Primary, &Answer::of(EDS, "3").remove("a"));
    // It may be a late answer to the question of the lender.
    rig.pass(4_000);
    assert_eq!(rig.seen_with(EDS, "env=prod v=2", "a"), "absent");
}

/// Both views, so that there is a secondary stream; the loan is of what lives there.
#[test]
fn g03_loans_on_the_secondary_end_when_it_is_lost_and_nothing_comes_back() {
    let mut rig = Rig::connected();
    rig.client("star", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("m", "1"));
    rig.pass(1_000);
    rig.client_with("one", CDS, "env=prod v=1", &["a"]);
    rig.open(Secondary);
    rig.pass(20);
    rig.requests(Secondary);
    rig.hear(Secondary, &Answer::of(CDS, "2").variant("a", "env=prod", "1"));
    rig.client_with("two", CDS, "env=prod v=2", &["a"]);
    rig.pass(50);
    assert!(rig.requests(Secondary).is_empty());
    rig.leave("one");
    rig.pass(61_000);
    let (asked, let_go) = exchange(&mut rig, Secondary);
    assert_eq!((asked, let_go), (vec!["a{env=prod, v=2}".to_owned()], vec!["a{env=prod, v=1}".to_owned()]));
    // The wildcard goes: in the end the names have the primary to themselves.
    rig.leave("star");
    rig.pass(660_000);
    let primary = rig.requests(Primary);
    let all: Vec<ResourceLocator> =
        primary.iter().flat_map(|r| r.resource_locators_subscribe.clone()).collect();
    assert_eq!(located(&all), ["a{env=prod, v=2}"]);
    rig.hear(Primary, &Answer::of(CDS, "3").variant("a", "env=prod,v=2", "2"));
    rig.pass(2_000);
    assert_eq!(rig.seen_with(CDS, "env=prod v=2", "a"), "2");
}

/// An origin that does not read locators has sent its set; another kind of node comes. It is not sent again for a second
/// `*` (R-Delta-04 is about names, and go-control-plane sends nothing).
#[test]
fn f19_a_wildcard_that_is_held_by_plain_names_serves_who_comes_with_other_parameters() {
    let mut rig = Rig::with(Settings { locators: Locators::Plain, ..Settings::default() });
    rig.open(Primary);
    rig.client_with("one", CDS, "v=1", &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c", "1"));
    rig.pass(1_000);
    rig.client_with("two", CDS, "v=2", &["*"]);
    rig.pass(20);
    assert_eq!(rig.members_with(CDS, "v=2"), ["c:1"], "at once");
    let again: Vec<String> =
        rig.requests(Primary).into_iter().flat_map(|r| r.resource_names_subscribe).collect();
    assert_eq!(again, ["*"], "there may be more that is for them");
    rig.hear(Primary, &Answer::of(CDS, "2").set("c", "1").set("d", "1"));
    rig.pass(60_000);
    assert_eq!(rig.members_with(CDS, "v=1"), ["c:1", "d:1"]);
    assert_eq!(rig.members_with(CDS, "v=2"), ["c:1", "d:1"]);
}

/// Clients with different parameters ask for one name in a single request.
#[test]
fn f19b_no_name_is_twice_in_a_request() {
    let mut rig = Rig::with(Settings { locators: Locators::Plain, ..Settings::default() });
    rig.open(Primary);
    rig.client_with("zero", CDS, "v=0", &["x"]);
    rig.requests(Primary);
    rig.client_with("one", CDS, "v=1", &["a"]);
    rig.client_with("two", CDS, "v=2", &["a"]);
    rig.pass(20);
    let asked: Vec<String> =
        rig.requests(Primary).into_iter().flat_map(|r| r.resource_names_subscribe).collect();
    assert_eq!(asked, ["a"]);
}

/// A member without a version was deleted while the relay was away.
#[test]
fn g04_members_without_a_version_are_swept_after_a_reconnect() {
    let mut rig = Rig::connected();
    rig.client("star", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set_body("a", "", "a").set("b", "1"));
    rig.pass(1_000);
    reconnect(&mut rig);
    for round in ["2", "3"] {
        rig.hear(Primary, &Answer::of(CDS, round).set("c", "1"));
        rig.pass(30_000);
        rig.requests(Primary);
    }
    assert!(!rig.members(CDS).iter().any(|member| member.starts_with("a@")), "{:?}", rig.members(CDS));
}
