//! Locators and plain names without evidence: pauses, full requests and origins that hang.

use super::*;

/// `locators_due` and the times of names are not moved by a pause of the process.
#[test]
fn a_pause_of_the_process_is_no_evidence_that_locators_are_ignored() {
    let mut fixture = Fixture::asking_with("one", EDS, "env=prod", &["a"]);
    // Stopped before the request, or the answer, was on its way.
    fixture.pause(Duration::from_secs(60));
    fixture.pass(200);
    assert_eq!(fixture.mux.counters().locators_ignored.get(), 0, "0.2 s after the pause");
}

/// A set of more than 1 MiB of versions fills the first request; the wildcards of other parameters wait for another stream
/// then (`wildcard_waits`), and nothing opens one.
#[test]
fn plain_the_wildcard_of_each_set_is_asked_for_though_the_first_request_is_full() {
    let mut fixture = Fixture::plain();
    fixture.client("none", CDS, &["*"]);
    fixture.subscribe_with("one", CDS, "v=1", &["*"]);
    let version = "v".repeat(100);
    let mut all = Answer::of(CDS, "1");
    for number in 0..12_000 {
        all = all.set_body(&format!("cluster-{number:05}"), &version, "b");
    }
    fixture.hear(Primary, &all);
    fixture.pass(30_000);
    assert_eq!(fixture.snapshot_with(CDS, "v=1").member_count(), 12_000);
    fixture.close();
    fixture.pass(1_000);
    fixture.open(Primary);
    fixture.pass(100);
    let claimed: usize = fixture.requests(Primary).iter().map(|r| r.initial_resource_versions.len()).sum();
    assert!(claimed > 10_000, "{claimed}");
    fixture.hear(Primary, &Answer::of(CDS, "2").set_body("cluster-00000", "v2", "new"));
    fixture.flush(200_000);
    fixture
        .hear(Primary, &Answer::of(CDS, "3").set_body("cluster-00001", "v3", "new").remove("cluster-00002"));
    fixture.pass(200_000);
    let versions = |fixture: &Fixture, pairs: &str| {
        let snapshot = fixture.snapshot_with(CDS, pairs);
        let of = |name: &str| {
            snapshot.held(crate::cache::View::Wildcard, name).map(|held| held.version().to_owned())
        };
        ["cluster-00000", "cluster-00001", "cluster-00002"].map(of).map(|v| v.map(|v| v.len()))
    };
    assert_eq!(versions(&fixture, ""), [Some(2), Some(2), None]);
    assert_eq!(
        versions(&fixture, "v=1"),
        [Some(2), Some(2), None],
        "clients with parameters see what was, for good"
    );
}

/// `join_wildcard`: beside other parameters, 5 s of silence are a complete answer (`quiet_at`). An origin that accepts the
/// stream and answers after 14 s (issue 14, item 3) is shown as one that has nothing.
#[test]
fn unknown_is_not_shown_as_empty_where_there_are_two_sets_and_the_origin_hangs() {
    for locators in [Locators::Native, Locators::Plain] {
        let mut fixture = Fixture::connected_with(Settings { locators, ..Settings::default() });
        fixture.client("none", CDS, &["*"]);
        fixture.client_with("one", CDS, "v=1", &["*"]);
        for _ in 0..140 {
            fixture.requests(Primary);
            fixture.pass(100);
        }
        let known = [fixture.snapshot(CDS).completeness(), fixture.snapshot_with(CDS, "v=1").completeness()];
        assert_eq!(
            known.map(|known| known as u8),
            [0, 0],
            "{locators:?}: {known:?}, and nothing was ever answered"
        );
    }
}
