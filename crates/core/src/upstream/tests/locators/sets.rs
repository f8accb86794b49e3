//! Several sets of parameters of one type: what is an answer to which, and what is left of those that nobody has.

use super::*;
use crate::cache::Completeness;

#[test]
fn an_empty_answer_to_one_set_is_no_answer_to_another() {
    let mut fixture = Fixture::connected();
    fixture.client_with("one", CDS, "v=1", &["*"]);
    fixture.subscribe_with("two", CDS, "v=2", &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1")); // nothing for v=1
    fixture.pass(500);
    let known = fixture.snapshot_with(CDS, "v=2").wildcard_known();
    assert!(!known, "an empty set for a client that holds everything");
}

#[test]
fn an_update_for_everybody_is_no_answer_to_a_new_set() {
    let mut fixture = Fixture::asking_with("prod", CDS, "env=prod", &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").variant("a", "env=prod", "1").set("b", "1"));
    fixture.pass(1_000);
    fixture.subscribe_with("dev", CDS, "env=dev", &["*"]);
    // Ordinary news for clients that have the set, while the origin works on the answer.
    fixture.hear(Primary, &Answer::of(CDS, "2").set("b", "2"));
    fixture.pass(300);
    assert!(
        !fixture.snapshot_with(CDS, "env=dev").wildcard_known(),
        "a[env=dev] has not come: it would be deleted"
    );
}

#[test]
fn parameters_that_nobody_has_leave_nothing() {
    let mut fixture = Fixture::asking("plain", EDS, &["z"]).heard(&Answer::of(EDS, "1").set("z", "1"));
    for number in 0..50 {
        let pairs = format!("v={number}");
        fixture.subscribe_with("one", EDS, &pairs, &["a"]);
        fixture.hear(Primary, &Answer::of(EDS, "2").variant("a", &pairs, "1"));
        fixture.leave("one");
        fixture.flush(61_000);
        fixture.flush(61_000);
    }
    fixture.hear(Primary, &Answer::of(EDS, "3").set("z", "2"));
    let topics: usize = fixture.mux.topic_sets.values().map(|topic_set| topic_set.topics.len()).sum();
    assert_eq!((topics, fixture.cache.types().len()), (1, 1));
}

/// The origin answers for both in one response.
#[test]
fn an_empty_set_beside_another_is_known_in_the_end() {
    let mut fixture = Fixture::connected();
    fixture.client_with("one", CDS, "v=1", &["*"]);
    fixture.subscribe_with("two", CDS, "v=2", &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").variant("a", "v=1", "1"));
    fixture.pass(60_000);
    assert!(fixture.snapshot_with(CDS, "v=2").wildcard_known());
}

/// An origin that does not read locators has sent its set; another kind of node comes. It is not sent again for a second
/// `*` (R-Delta-04 is about names, and go-control-plane sends nothing).
#[test]
fn a_wildcard_that_is_held_by_plain_names_serves_a_client_with_other_parameters() {
    let mut fixture = Fixture::plain();
    fixture.client_with("one", CDS, "v=1", &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "1"));
    fixture.pass(1_000);
    fixture.client_with("two", CDS, "v=2", &["*"]);
    fixture.pass(20);
    assert_eq!(fixture.members_with(CDS, "v=2"), ["c:1"], "at once");
    assert_eq!(fixture.asked(), ["*"], "there may be more that is for them");
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c", "1").set("d", "1"));
    fixture.pass(60_000);
    assert_eq!(fixture.members_with(CDS, "v=1"), ["c:1", "d:1"]);
    assert_eq!(fixture.members_with(CDS, "v=2"), ["c:1", "d:1"]);
}

/// The variants for the others are held nowhere: the set lacks them until the next stream.
#[test]
fn a_set_that_plain_names_share_is_not_complete_for_other_parameters() {
    let mut fixture = Fixture::plain();
    fixture.client_with("one", CDS, "v=1", &["*"]);
    fixture.requests(Primary);
    let all = |nonce| Answer::of(CDS, nonce).set("c", "1").variant("d", "v=2", "1").remove(Name::END_MARK);
    fixture.hear(Primary, &all("1"));
    let known = |fixture: &Fixture, pairs| fixture.snapshot_with(CDS, pairs).completeness();
    fixture.client_with("two", CDS, "v=2", &["*"]);
    assert_eq!(fixture.members_with(CDS, "v=2"), ["c:1"]);
    assert_eq!(known(&fixture, "v=1"), Completeness::Complete);
    assert_eq!(known(&fixture, "v=2"), Completeness::Presumed, "a client that comes back may hold `d`");
    fixture.flush(2_000);
    fixture.hear(Primary, &all("2"));
    assert_eq!(fixture.members_with(CDS, "v=2"), ["c:1", "d:1"]);
    assert_eq!(known(&fixture, "v=2"), Completeness::Complete);
}

/// Clients with different parameters ask for one name in a single request.
#[test]
fn no_name_is_twice_in_a_request() {
    let mut fixture = Fixture::plain();
    fixture.client_with("zero", CDS, "v=0", &["x"]);
    fixture.requests(Primary);
    fixture.client_with("one", CDS, "v=1", &["a"]);
    fixture.client_with("two", CDS, "v=2", &["a"]);
    fixture.pass(20);
    assert_eq!(fixture.asked(), ["a"]);
}

/// The end mark need not count for it, and a census is no help.
#[test]
fn r_relay_05_a_set_that_is_asked_for_by_locator_is_complete_after_a_silence() {
    let mut fixture = Fixture::asking_with("one", CDS, "env=prod", &["*"]).answering_inquiries();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "1"));
    let known = |fixture: &Fixture| fixture.snapshot_with(CDS, "env=prod").completeness();
    fixture.pass(4_900);
    assert_eq!(known(&fixture), Completeness::Settled);
    fixture.pass(200);
    assert_eq!(known(&fixture), Completeness::Complete);
    assert_eq!(fixture.inquiries, []);
}
