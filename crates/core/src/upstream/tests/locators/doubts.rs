//! Locators and plain names without evidence: pauses, full requests and origins that hang.

use super::*;

/// A pause of the process does not move the times of names.
#[test]
fn a_pause_of_the_process_is_no_evidence_that_locators_are_ignored() {
    let mut fixture = Fixture::asking_with("one", EDS, "env=prod", &["a"]);
    // Stopped before the request, or the answer, was on its way.
    fixture.pause(Duration::from_secs(60));
    fixture.pass(200);
    assert_eq!(fixture.mux.counters().locators_ignored.get(), 0, "0.2 s after the pause");
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
