//! Several sets of parameters of one type: what is an answer to which, and what is left of those that nobody has.

use super::*;

#[test]
fn an_empty_answer_to_one_set_is_no_answer_to_another() {
    let mut rig = Rig::connected();
    rig.client_with("one", CDS, "v=1", &["*"]);
    rig.client_with("two", CDS, "v=2", &["*"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1")); // nothing for v=1
    rig.pass(500);
    let known = rig.snapshot_with(CDS, "v=2").wildcard_known();
    assert!(!known, "an empty set for a client that holds everything");
}

#[test]
fn an_update_for_everybody_is_no_answer_to_a_new_set() {
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
fn parameters_that_nobody_has_leave_nothing() {
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

/// The origin answers for both in one response.
#[test]
fn an_empty_set_beside_another_is_known_in_the_end() {
    let mut rig = Rig::connected();
    rig.client_with("one", CDS, "v=1", &["*"]);
    rig.client_with("two", CDS, "v=2", &["*"]);
    rig.pass(20);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").variant("a", "v=1", "1"));
    rig.pass(60_000);
    assert!(rig.snapshot_with(CDS, "v=2").wildcard_known());
}

/// An origin that does not read locators has sent its set; another kind of node comes. It is not sent again for a second
/// `*` (R-Delta-04 is about names, and go-control-plane sends nothing).
#[test]
fn a_wildcard_that_is_held_by_plain_names_serves_a_client_with_other_parameters() {
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
fn no_name_is_twice_in_a_request() {
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
