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
    fixture.mux.origin_says(false, fixture.now);
    fixture.pass(3_600_000);
    // A stream that is opened anew on the connection changes nothing: the relay says no more before that is news.
    fixture.mux.closed(Primary);
    fixture.mux.opened(Primary, fixture.now);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1.5~1>").set("c1", "v1"));
    fixture.pass(3_600_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Unknown);
    fixture.mux.origin_says(true, fixture.now);
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

/// A wildcard that is left over from a closed secondary has no deadline: it stays, and is shown as if it were current.
#[test]
fn a_stray_wildcard_is_dropped_without_another_event() {
    let mut fixture = Fixture::asking("named", CDS, &["odcds"]);
    fixture.client("wild", CDS, &["*"]);
    fixture.ask_on_secondary();
    fixture.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1"));
    fixture.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1"));
    fixture.pass(30_000);
    fixture.leave("wild");
    // As the shell does: deadlines that come, and the secondary closed once nothing is wanted there.
    while let Some(at) = fixture.mux.next_deadline() {
        fixture.now = fixture.now.max(at);
        fixture.mux.on_deadline(fixture.now);
        if !fixture.mux.wants_secondary() {
            break;
        }
    }
    fixture.mux.closed(Secondary);
    assert!(
        fixture.mux.next_deadline().is_some() || !fixture.snapshot(CDS).wildcard_known(),
        "nothing will ever drop it"
    );
    // An hour later, only by deadlines that the core asks for.
    let end = fixture.now + Duration::from_secs(3600);
    while let Some(at) = fixture.mux.next_deadline().filter(|at| *at < end) {
        fixture.now = fixture.now.max(at);
        fixture.mux.on_deadline(fixture.now);
    }
    fixture.now = end;
    fixture.client("late", CDS, &["*"]);
    assert!(!fixture.snapshot(CDS).wildcard_known(), "an hour old, not subscribed to, and shown as complete");
}

/// Names that do not exist, at an origin that says nothing of them: one client that asks for one after the other.
#[test]
fn one_client_with_names_that_do_not_exist_does_not_renew_the_stream_all_the_time() {
    let mut fixture = Fixture::asking("wild", CDS, &["*"]).heard(&Answer::of(CDS, "1").set("c", "v1"));
    let names: Vec<&'static str> = (0..152).map(|n| &*format!("none-{n}").leak()).collect();
    // Each is asked for a moment, every 4 s another, over and over.
    for second in 0..3_600_usize {
        if second % 4 == 0 {
            fixture.client("b", EDS, &[names[second / 4 % names.len()]]);
        }
        fixture.pass(1000);
        for request in fixture.requests(Primary) {
            if request.type_url == TypeUrl::from(CDS).as_str() && request.response_nonce.is_empty() {
                fixture.hear(Primary, &Answer::of(CDS, "n").set("c", "v1"));
            }
        }
        fixture.requests(Primary);
    }
    let count = fixture.renewed.len();
    assert!(count < 60, "{count} streams in an hour");
}

/// On each new stream the origin sends all of them, in order, 25 s from each other: a 4 MiB response at 1.3 Mbit/s. The silence that
/// counts is 20 s at most. An origin without versions (istiod): nothing can be claimed.
#[test]
fn nothing_is_removed_of_an_answer_whose_parts_take_25_s() {
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    let names: Vec<String> = (0..8).map(|n| format!("a{n}")).collect();
    fixture.hear(Primary, &names.iter().fold(Answer::of(CDS, "1"), |all, name| all.set(name, "")));
    fixture.pass(10_000);
    fixture.reconnect();
    let (mut opened, mut sent, mut seen) = (fixture.now, 0, 0);
    for nonce in 0..18_000 {
        fixture.requests(Primary);
        fixture.pass(100);
        if fixture.renewed.len() > seen {
            (seen, opened, sent) = (fixture.renewed.len(), fixture.renewed[fixture.renewed.len() - 1].0, 0);
        }
        if sent < names.len() && fixture.now >= opened + Duration::from_secs(25) * (sent as u32 + 1) {
            fixture.requests(Primary);
            fixture.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set(&names[sent], ""));
            sent += 1;
        }
        let left = fixture.members(CDS);
        assert_eq!(left.len(), 8, "live resources were removed, {seen} streams: only {left:?} left");
    }
}
