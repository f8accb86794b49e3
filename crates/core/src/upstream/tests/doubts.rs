//! Doubts that must not last, and silences that must not count: slow and hung origins, pauses, names that do not exist.

use super::*;

/// A relay that is cut off from its own control plane may lack members for as long as that lasts.
#[test]
fn r_relay_05_no_time_completes_the_set_of_a_relay_that_is_cut_off() {
    use crate::cache::Completeness::{Complete, Unknown};
    let mut fixture = Fixture::connected();
    fixture.mux.origin_is_relay(true);
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1.5~1>").set("c1", "v1"));
    fixture.mux.origin_reported(false, fixture.now);
    fixture.pass(3_600_000);
    // A stream that is opened anew on the connection changes nothing: the relay says no more before that is news.
    fixture.mux.closed(Primary);
    fixture.mux.opened(Primary, fixture.now);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1.5~1>").set("c1", "v1"));
    fixture.pass(3_600_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Unknown);
    fixture.mux.origin_reported(true, fixture.now);
    fixture.pass(1_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Unknown, "that hour was no silence");
    fixture.hear(Primary, &Answer::of(CDS, "1.5~2").remove(Name::END_MARK));
    assert_eq!(fixture.snapshot(CDS).completeness(), Complete);
}

/// A copy that comes by itself is meant for all clients (R-Relay-21). The rest of a slow answer is not.
#[test]
fn a_late_part_of_an_answer_is_no_news_to_clients() {
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    fixture.ask_anew();
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    fixture.pass(3_000);
    let before = fixture.snapshot(CDS).generation();
    fixture.hear(Primary, &Answer::of(CDS, "3").set("c2", ""));
    assert_eq!(fixture.snapshot(CDS).generation(), before);
    fixture.hear(Primary, &Answer::of(CDS, "4").set("c2", ""));
    assert!(fixture.snapshot(CDS).generation() > before, "that one came by itself");
}

/// Members that have not come again may still come, and others with them.
#[test]
fn r_relay_05_a_set_that_lacks_held_resources_is_shown_to_no_newcomer_after_a_short_silence() {
    use crate::cache::Completeness::{Complete, Settled};
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    fixture.ask_anew();
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    fixture.pass(1_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Settled);
    // The origin may still say that this was all. It is believed to be after a time in which clients wait that may lose something.
    fixture.pass(80_000);
    assert!(fixture.snapshot(CDS).completeness() < Complete);
    fixture.pass(10_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Complete);
    assert_eq!(fixture.members(CDS).len(), 2, "silence removes nothing");
}
