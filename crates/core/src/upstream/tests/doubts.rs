//! Doubts that must not last, and silences that must not count: slow and hung origins, pauses, names that do not exist.

use super::*;

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;

fn asked(requests: &[DeltaDiscoveryRequest]) -> BTreeSet<String> {
    requests.iter().flat_map(|request| request.resource_names_subscribe.clone()).collect()
}

/// `Arrival::shifted` moves what came *after* the pause into the future: the client reads the socket first, and shifts then.
#[test]
fn a_part_that_was_read_after_a_pause_is_not_put_into_the_future() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.pass(50);
    let pause = Duration::from_secs(3600);
    rig.now += pause;
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.mux.overslept(pause, rig.now);
    rig.pass(30_000);
    assert!(rig.snapshot(CDS).wildcard_known(), "30 s after the answer");
}

/// A wildcard that is left over from a closed secondary has no deadline: it stays, and is shown as if it were current.
#[test]
fn a_stray_wildcard_is_dropped_without_another_event() {
    let mut rig = Rig::connected();
    rig.client("named", CDS, &["odcds"]);
    rig.requests(Primary);
    rig.client("wild", CDS, &["*"]);
    rig.open(Secondary);
    rig.pass(10);
    rig.requests(Secondary);
    rig.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1"));
    rig.pass(30_000);
    rig.leave("wild");
    // As the shell does: deadlines that come, and the secondary closed once nothing is wanted there.
    while let Some(at) = rig.mux.next_deadline() {
        rig.now = rig.now.max(at);
        rig.mux.on_deadline(rig.now);
        if !rig.mux.wants_secondary() {
            break;
        }
    }
    rig.mux.closed(Secondary);
    assert!(
        rig.mux.next_deadline().is_some() || !rig.snapshot(CDS).wildcard_known(),
        "nothing will ever drop it"
    );
    // An hour later, only by deadlines that the core asks for.
    let end = rig.now + Duration::from_secs(3600);
    while let Some(at) = rig.mux.next_deadline().filter(|at| *at < end) {
        rig.now = rig.now.max(at);
        rig.mux.on_deadline(rig.now);
    }
    rig.now = end;
    rig.client("late", CDS, &["*"]);
    assert!(!rig.snapshot(CDS).wildcard_known(), "an hour old, not subscribed to, and shown as complete");
}

/// One resource whose TTL ends because the origin does not renew it, at an origin that keeps versions (go-control-plane).
#[test]
fn a_name_whose_ttl_ends_does_not_renew_the_stream_for_ever() {
    let mut rig = Rig::connected();
    rig.client("wild", CDS, &["*"]);
    rig.client("b", EDS, &["t"]);
    rig.pass(10);
    let mut fresh = true;
    let mut renewed = 0;
    for nonce in 0..6_000 {
        let requests = rig.requests(Primary);
        if fresh && !requests.is_empty() {
            rig.pass(20);
            let mut all = requests;
            all.extend(rig.requests(Primary));
            if asked(&all).contains("t") {
                rig.hear(Primary, &Answer::of(CDS, &format!("c{nonce}")).set("c", "v1"));
                rig.hear(Primary, &Answer::of(EDS, &format!("e{nonce}")).ttl("t", "v1", 1, true));
                fresh = false;
            }
        }
        rig.pass(100);
        if rig.renewed.len() > renewed {
            renewed = rig.renewed.len();
            fresh = true;
        }
    }
    assert!(renewed < 20, "{renewed} streams in ten minutes: everything is asked for anew each time");
}

/// Names that do not exist, at an origin that says nothing of them: one client that asks for one after the other.
#[test]
fn one_client_with_names_that_do_not_exist_does_not_renew_the_stream_all_the_time() {
    let mut rig = Rig::connected();
    rig.client("wild", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
    let names: Vec<&'static str> = (0..152).map(|n| &*format!("none-{n}").leak()).collect();
    // Each is asked for a moment, every 4 s another, over and over.
    for second in 0..3_600_usize {
        if second % 4 == 0 {
            rig.client("b", EDS, &[names[second / 4 % names.len()]]);
        }
        rig.pass(1000);
        for request in rig.requests(Primary) {
            if request.type_url == TypeUrl::from(CDS).as_str() && request.response_nonce.is_empty() {
                rig.hear(Primary, &Answer::of(CDS, "n").set("c", "v1"));
            }
        }
        rig.requests(Primary);
    }
    let count = rig.renewed.len();
    assert!(count < 60, "{count} streams in an hour");
}

/// An origin that takes 4 s for the first answer on a new stream. What is kept back is in doubt after 3 s, on each stream.
#[test]
fn an_origin_with_a_slow_first_answer_is_not_asked_anew_for_ever() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.pass(10_000);
    rig.close();
    rig.open(Primary);
    let mut opened = rig.now;
    let mut answered = false;
    let mut seen = 0;
    for nonce in 0..18_000 {
        rig.requests(Primary);
        rig.pass(100);
        if rig.renewed.len() > seen {
            (seen, opened, answered) = (rig.renewed.len(), rig.renewed[rig.renewed.len() - 1].0, false);
        }
        if !answered && rig.now >= opened + Duration::from_secs(4) {
            rig.requests(Primary);
            rig.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set("c1", "v1").set("c2", "v1"));
            answered = true;
        }
    }
    assert!(seen < 8, "{seen} streams in 30 minutes, though every one was answered or would have been");
}

/// `Topic::advance` takes `unseen` after 3 s of silence though it is in doubt already: nobody judges it afterwards.
#[test]
fn a_missing_resource_is_removed_also_where_the_answer_takes_four_seconds() {
    let mut rig = Rig::sweeping();
    rig.open(Primary);
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("gone", "v1"));
    rig.pass(10_000);
    rig.close();
    rig.open(Primary);
    let (mut opened, mut answered, mut seen) = (rig.now, false, 0);
    for nonce in 0..36_000 {
        rig.requests(Primary);
        rig.pass(100);
        if rig.renewed.len() > seen {
            (seen, opened, answered) = (rig.renewed.len(), rig.renewed[rig.renewed.len() - 1].0, false);
        }
        if !answered && rig.now >= opened + Duration::from_secs(4) {
            rig.requests(Primary);
            rig.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set("new", "v1"));
            answered = true;
        }
    }
    assert_eq!(rig.members(CDS), set(&["new@v1"]), "an hour and {seen} streams later");
}

/// A relay that holds `a0`…`a7`, each the content of one part, and comes back. On each new stream the origin sends all of them,
/// in order, `apart` seconds from each other: a slow link, or an origin that waits for the ACK of each part.
fn live_after_a_slow_answer(version: &str, apart: u64, settings: Settings) -> (BTreeSet<String>, usize) {
    let mut rig = Rig::with(settings);
    rig.open(Primary);
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    let names: Vec<String> = (0..8).map(|n| format!("a{n}")).collect();
    rig.hear(Primary, &names.iter().fold(Answer::of(CDS, "1"), |all, name| all.set(name, version)));
    rig.pass(10_000);
    rig.close();
    rig.open(Primary);
    let (mut opened, mut sent, mut seen) = (rig.now, 0, 0);
    let mut least = rig.members(CDS);
    for nonce in 0..18_000 {
        rig.requests(Primary);
        rig.pass(100);
        if rig.renewed.len() > seen {
            (seen, opened, sent) = (rig.renewed.len(), rig.renewed[rig.renewed.len() - 1].0, 0);
        }
        if sent < names.len() && rig.now >= opened + Duration::from_secs(apart) * (sent as u32 + 1) {
            rig.requests(Primary);
            rig.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set(&names[sent], version));
            sent += 1;
        }
        if rig.members(CDS).len() < least.len() {
            least = rig.members(CDS);
        }
    }
    (least, seen)
}

/// `GROWING_LONG`: 120 s after the first part an answer is complete though parts keep coming every 20 s. Twice, and all that
/// was still on its way is removed.
#[test]
fn a_sweep_removes_nothing_that_a_slow_answer_brings_after_two_minutes() {
    let settings = Settings { reconcile: Reconcile::Sweep, ..Settings::default() };
    let (least, streams) = live_after_a_slow_answer("v1", 20, settings);
    assert_eq!(least.len(), 8, "live resources were removed, {streams} streams: only {least:?} left");
}

/// `PACE_COMPLETE`: parts 25 s apart (a 4 MiB response at 1.3 Mbit/s). The silence that counts is 20 s at most. An origin
/// without versions (istiod) and `reconcile: trust`, the default: nothing can be claimed.
#[test]
fn nothing_is_removed_of_an_answer_whose_parts_take_25_s() {
    let (least, streams) = live_after_a_slow_answer("", 25, Settings::default());
    assert_eq!(least.len(), 8, "live resources were removed, {streams} streams: only {least:?} left");
}

/// A relay that has heard c1 and c2 for a wildcard, or c1 for c1 and x, and a client that waits for proof.
fn waiting_for_proof(names: &[&'static str], first: &Answer) -> Rig {
    let mut rig = Rig::connected();
    rig.client("a", CDS, names);
    rig.requests(Primary);
    rig.hear(Primary, first);
    rig.pass(10_000);
    assert!(rig.renewed.is_empty(), "nobody waits for it");
    rig.ask_for_proof(CDS);
    rig.pass(10_000);
    assert_eq!(rig.renewed.len(), 1);
    rig
}

#[test]
fn a_set_is_complete_once_a_new_stream_brings_the_one_resource_that_was_not_claimed() {
    use crate::cache::Completeness::{Complete, Presumed};
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    for (beside, known) in [(None, Complete), (Some("c3"), Presumed)] {
        let mut rig = waiting_for_proof(&["*"], &first);
        assert_eq!(rig.snapshot(CDS).completeness(), Presumed, "silence proves nothing");
        let request = rig.request(Primary);
        assert_eq!(request.initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
        let mut answer = Answer::of(CDS, "2").set("c1", "v1");
        if let Some(name) = beside {
            answer = answer.set(name, "v1");
        }
        rig.hear(Primary, &answer);
        assert_eq!(rig.snapshot(CDS).completeness(), known, "{beside:?}");
    }
}

/// R-Up-23: a relay cuts an answer by its size and says so, and tells another relay nothing of a set that is not complete.
#[test]
fn r_up_22_an_answer_of_a_relay_is_whole_with_its_last_part() {
    use crate::cache::Completeness::{Complete, Unknown};
    let mut rig = Rig::connected();
    rig.mux.origin_is_relay();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1.5~1>").set("c1", "v1"));
    rig.pass(20_000);
    assert_eq!(rig.snapshot(CDS).completeness(), Unknown, "more follows, however late");
    rig.hear(Primary, &Answer::of(CDS, "1.5~2").set("c2", "v1"));
    assert_eq!(rig.snapshot(CDS).completeness(), Complete);
    // A member that was not claimed and did not come is gone.
    rig.close();
    rig.open(Primary);
    rig.mux.origin_is_relay();
    assert_eq!(rig.request(Primary).initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
    rig.hear(Primary, &Answer::of(CDS, "1.9~1>"));
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c2@v1"]), "more follows");
    rig.hear(Primary, &Answer::of(CDS, "1.9~2"));
    assert_eq!(rig.members(CDS), set(&["c2@v1"]));
}

/// A proxy may lead the next stream on the same connection to another origin, which says nothing of how it cuts its answers.
#[test]
fn the_answer_of_an_origin_in_the_place_of_a_relay_is_not_taken_for_whole() {
    let mut rig = Rig::connected();
    rig.mux.origin_is_relay();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.close();
    rig.open(Primary);
    rig.mux.origin_is_relay();
    rig.mux.origin_is_no_relay();
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1);
    rig.hear(Primary, &Answer::of(CDS, "2"));
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c2@v1"]));
}

/// A copy that comes by itself is meant for all clients (R-Relay-21). The rest of a slow answer is not.
#[test]
fn a_late_part_of_an_answer_is_no_news_to_clients() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    rig.close();
    rig.open(Primary);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    rig.pass(3_000);
    let before = rig.snapshot(CDS).generation();
    rig.hear(Primary, &Answer::of(CDS, "3").set("c2", ""));
    assert_eq!(rig.snapshot(CDS).generation(), before);
    rig.hear(Primary, &Answer::of(CDS, "4").set("c2", ""));
    assert!(rig.snapshot(CDS).generation() > before, "that one came by itself");
}

/// From one that sends each resource by itself the resource that was kept back comes alone, whatever follows.
#[test]
fn o4_an_origin_that_sends_each_resource_by_itself_is_not_asked_for_proof() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    rig.ask_for_proof(CDS);
    rig.pass(10_000);
    assert!(rig.renewed.is_empty());
    assert_eq!(rig.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
}

/// A response of another type is evidence as well.
#[test]
fn an_origin_that_puts_several_resources_into_a_response_proves_a_set_of_one() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.client("b", EDS, &["e1", "e2"]);
    rig.pass(100);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    rig.ask_for_proof(CDS);
    rig.pass(1_000);
    assert_eq!(rig.renewed.len(), 1);
}

#[test]
fn an_origin_where_something_changes_all_the_time_is_believed_in_the_end() {
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    let mut rig = waiting_for_proof(&["*"], &first);
    for _ in 0..2 {
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c3", "v1"));
        rig.pass(50_000);
    }
    assert_eq!(rig.snapshot(CDS).completeness(), crate::cache::Completeness::Complete);
}

#[test]
fn o2_a_name_is_absent_once_a_new_stream_brings_all_else_that_was_not_claimed() {
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    for (beside, expected) in [(None, "absent"), (Some("c3"), "unknown")] {
        let mut rig = waiting_for_proof(&["c1", "c2", "c3", "x"], &first);
        let request = rig.request(Primary);
        assert_eq!(request.initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
        let mut answer = Answer::of(CDS, "2").set("c1", "v1");
        if let Some(name) = beside {
            answer = answer.set(name, "v1");
        }
        rig.hear(Primary, &answer);
        assert_eq!(rig.seen(CDS, "x"), expected, "{beside:?}");
        rig.hear(Primary, &Answer::of(CDS, "3").set("x", "v1"));
        assert_eq!(rig.seen(CDS, "x"), "v1", "it is still subscribed to");
    }
}

/// O2: istiod and java-control-plane answer names of clusters with all clusters.
#[test]
fn an_answer_with_resources_that_were_not_asked_for_proves_nothing() {
    let mut rig = waiting_for_proof(&["c1", "x"], &Answer::of(CDS, "1").set("c1", "v1").set("c3", "v1"));
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c3", "v1"));
    assert_eq!(rig.seen(CDS, "x"), "unknown");
}

/// The wildcard was answered with all that was claimed. That nothing more came for a name, of which no version was told,
/// is no sign that versions are read.
#[test]
fn an_origin_that_ignores_versions_is_not_asked_again_because_of_a_name() {
    let mut rig = Rig::connected();
    rig.client("all", CDS, &["*"]);
    rig.requests(Primary);
    rig.client("named", CDS, &["c1"]);
    rig.open(Secondary);
    rig.requests(Secondary);
    let all = |nonce| Answer::of(CDS, nonce).set("c1", "v1").set("c2", "v1");
    let one = |nonce| Answer::of(CDS, nonce).set("c1", "v1");
    rig.hear(Primary, &all("1"));
    rig.hear(Secondary, &one("1"));
    for _ in 0..5 {
        rig.ask_for_proof(CDS);
        let before = rig.renewed.len();
        rig.pass(4_000);
        if rig.renewed.len() > before {
            rig.open(Secondary);
            rig.requests(Primary);
            rig.requests(Secondary);
            rig.hear(Primary, &all("2"));
            rig.hear(Secondary, &one("2"));
        }
    }
    assert_eq!(rig.renewed.len(), 1, "once for all: {:?}", rig.renewed);
    assert_eq!(rig.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
}

/// By any of the words for it.
#[test]
fn an_origin_that_answers_for_each_name_proves_nothing_by_silence() {
    const NOT_FOUND: i32 = 5;
    let words: [fn(Answer) -> Answer; 4] = [
        |answer| answer.remove("gone"),
        |answer| answer.fail("gone", NOT_FOUND),
        |answer| answer.raw(field(3, b"gone")),
        // An alias of nothing.
        |answer| answer.raw([field(3, b"gone"), field(4, b"gone")].concat()),
    ];
    for (word, gone) in words.into_iter().enumerate() {
        let mut rig = Rig::connected();
        rig.client("a", CDS, &["c1", "c2", "gone", "x"]);
        rig.requests(Primary);
        rig.hear(Primary, &gone(Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1")));
        rig.ask_for_proof(CDS);
        rig.pass(20_000);
        assert!(rig.renewed.is_empty(), "word {word}");
        rig.close();
        rig.open(Primary);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1"));
        assert_eq!(rig.seen(CDS, "x"), "unknown", "word {word}");
    }
}

#[test]
fn an_origin_that_sends_claimed_resources_is_not_asked_for_proof_again() {
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    let mut rig = waiting_for_proof(&["*"], &first);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c2", "v1"));
    rig.pass(6_000);
    assert_eq!(rig.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
    assert_eq!(rig.renewed.len(), 1);
}

/// A sweep tells no versions. Where nothing at all comes, the origin is asked for a word.
#[test]
fn r_up_21_a_sweep_that_is_met_with_silence_asks_by_version() {
    let mut rig = Rig::sweeping();
    rig.open(Primary);
    rig.client("a", EDS, &["e1"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    rig.close();
    rig.open(Primary);
    assert!(rig.request(Primary).initial_resource_versions.is_empty());
    rig.pass(16_000);
    assert_eq!(rig.renewed.len(), 1);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1);
    rig.hear(Primary, &Answer::of(EDS, "2").remove("e1"));
    assert_eq!(rig.seen(EDS, "e1"), "absent");
}

/// An origin that never says which of the versions that it was told are gone (java-control-plane). What it has is asked for
/// once more without versions.
#[test]
fn r_up_21_resources_that_a_sweep_claimed_after_a_silence_are_swept() {
    for news in [None, Some("v2")] {
        let mut rig = Rig::sweeping();
        rig.open(Primary);
        rig.client("a", EDS, &["e1", "e2"]);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
        rig.close();
        rig.open(Primary);
        rig.requests(Primary);
        rig.pass(16_000);
        assert_eq!(rig.request(Primary).initial_resource_versions.len(), 2, "after a silence");
        if let Some(version) = news {
            rig.hear(Primary, &Answer::of(EDS, "2").set("e1", version));
        }
        for streams in 2..4 {
            rig.pass(16_000);
            assert_eq!(rig.renewed.len(), streams, "{news:?}");
            assert!(rig.request(Primary).initial_resource_versions.is_empty(), "{news:?}");
            rig.hear(Primary, &Answer::of(EDS, "3").set("e1", "v1"));
        }
        rig.pass(16_000);
        assert_eq!(rig.seen(EDS, "e2"), "absent", "{news:?}");
        assert_eq!((rig.seen(EDS, "e1").as_str(), rig.renewed.len()), ("v1", 3), "{news:?}");
    }
}

/// A proof tells versions, which this origin ignores: it never says what is gone. All that it has came on that stream.
#[test]
fn r_up_21_a_sweep_in_which_versions_were_told_in_vain_begins_anew() {
    let mut rig = Rig::sweeping();
    rig.open(Primary);
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1").set("c3", "v1"));
    rig.pass(10_000);
    rig.ask_for_proof(CDS);
    rig.pass(10_000);
    assert_eq!(rig.renewed.len(), 1);
    for _ in 0..4 {
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c2", "v1"));
        rig.pass(20_000);
    }
    assert_eq!(rig.members(CDS), set(&["c1@v1", "c2@v1"]));
    assert_eq!(rig.renewed.len(), 3, "{:?}", rig.renewed);
}

/// Its stream was opened anew for another reason before the origin could answer.
#[test]
fn r_up_21_a_sweep_tells_a_version_once_after_a_silence() {
    let mut rig = Rig::sweeping();
    rig.open(Primary);
    rig.client("a", EDS, &["e1", "e2"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    rig.close();
    rig.open(Primary);
    rig.requests(Primary);
    rig.pass(16_000);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 2);
    rig.mux.closed(Primary);
    rig.mux.opened(Primary, rig.now);
    assert!(rig.request(Primary).initial_resource_versions.is_empty());
}

/// A client that may hold a name of which nothing is known waits for the origin to answer. All else that is held was claimed,
/// so that an origin where nothing changed has nothing to say.
#[test]
fn r_relay_04_an_origin_of_which_all_names_were_claimed_is_asked_for_a_sign_of_life() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["c1", "x"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    rig.close();
    rig.open(Primary);
    assert!(rig.request(Primary).initial_resource_versions.is_empty(), "it is kept back");
    rig.pass(16_000);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1, "after a silence it is claimed");
    rig.pass(16_000);
    assert!(rig.request(Primary).initial_resource_versions.is_empty(), "and has to come once more");
    rig.pass(600_000);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1, "at last it can be said to be gone");
    assert_eq!(rig.renewed.len(), 3, "an origin that hangs is not asked for ever");
}

/// O1: what crosses the word that it is let go counts as sent.
#[test]
fn o1_a_name_that_came_after_it_was_let_go_is_asked_for_on_a_new_stream() {
    let mut rig = Rig::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    rig.open(Primary);
    rig.client("a", EDS, &["e1", "e2"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    rig.pass(60_000);
    rig.client("a", EDS, &["e1"]);
    rig.pass(5_000);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "2").set("e2", "v1"));
    rig.client("a", EDS, &["e1", "e2"]);
    rig.requests(Primary);
    rig.pass(10_000);
    assert_eq!(rig.renewed.len(), 1);
}

/// Claimed after a silence, everything is as it was: an origin that says nothing then is right, and waited for in vain.
#[test]
fn a_client_waits_for_proof_no_longer_than_for_two_silences() {
    let mut rig = waiting_for_proof(&["*"], &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1, "c1 is kept back");
    rig.pass(20_000);
    assert!(
        rig.request(Primary).initial_resource_versions.contains_key("c1"),
        "after a silence it is claimed"
    );
    rig.pass(20_000);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1, "and one is kept back once more");
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1"));
    assert_eq!(rig.snapshot(CDS).completeness(), crate::cache::Completeness::Complete);
}

/// A set that cannot be proven any more has no deadline that has passed.
#[test]
fn an_absence_that_turns_out_to_be_unprovable_does_not_spin() {
    let mut rig = waiting_for_proof(&["*"], &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.requests(Primary);
    rig.pass(4_000);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c2", "v1"));
    for part in 0..8 {
        rig.pass(14_000);
        rig.hear(Primary, &Answer::of(CDS, "3").set(&format!("part-{part}"), "v1"));
    }
    rig.pass(200_000);
    assert_eq!(rig.snapshot(CDS).completeness(), crate::cache::Completeness::Complete);
}

/// Names that come and go cost a stream each time that they are asked for again (O1), at the slowest pace in the end. A client
/// that waits for proof does not wait for these, and has a pace of its own.
#[test]
fn a_proof_does_not_wait_behind_a_client_with_ever_new_names() {
    let mut rig = Rig::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    rig.open(Primary);
    rig.client("wild", CDS, &["*"]);
    let mut answered = 0;
    // Answers for the wildcard on each new stream, and for nothing else; each time with something that was not claimed.
    let second = |rig: &mut Rig, answered: &mut usize, count: usize| {
        if count.is_multiple_of(5) {
            rig.client("names", EDS, &[["none-1", "none-2", "none-3", "none-4"][count / 5 % 4]]);
        }
        rig.pass(1_000);
        let streams = rig.renewed.len() + 1;
        let is_new = streams > *answered;
        rig.requests(Primary);
        if is_new {
            let news = format!("c{streams}");
            rig.hear(Primary, &Answer::of(CDS, "n").set("c1", "v1").set(&news, "v1"));
            *answered = streams;
        }
    };
    let mut count = 0;
    while rig.renewed.len() < 12 {
        second(&mut rig, &mut answered, count);
        count += 1;
        assert!(count < 3_600, "each costs a stream: {:?}", rig.renewed);
    }
    let last = rig.renewed.len() - 1;
    let pace = rig.renewed[last].0 - rig.renewed[last - 1].0;
    assert!(pace > Duration::from_secs(60), "{pace:?} from one to the next");
    rig.pass(3_000);
    let of = rig.cache.of(&CDS.into()).expect("few types");
    let mut asked = rig.now;
    of.ask_for_proof();
    rig.look();
    while rig.renewed.len() == 12 {
        second(&mut rig, &mut answered, count);
        count += 1;
        assert!(rig.now < asked + Duration::from_secs(4), "it waits for the names of another client");
    }
    // Nothing is proven, and it asks again and again.
    let before = rig.renewed.len();
    asked = rig.now;
    while rig.now < asked + Duration::from_secs(600) {
        of.ask_for_proof();
        rig.look();
        second(&mut rig, &mut answered, count);
        count += 1;
    }
    let more = rig.renewed.len() - before;
    assert!(more < 25, "{more} streams in ten minutes");
}

/// deltafan cuts its answers by bytes: of large resources each comes by itself.
#[test]
fn o4_an_origin_that_never_put_as_much_into_a_response_is_not_asked_for_proof() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.client("b", EDS, &["e1", "e2"]);
    rig.pass(100);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    let large = "large".repeat(50);
    rig.hear(Primary, &Answer::of(CDS, "2").set_body("c1", "v1", &large));
    rig.hear(Primary, &Answer::of(CDS, "3").set_body("c2", "v1", &large));
    rig.ask_for_proof(CDS);
    rig.pass(10_000);
    assert!(rig.renewed.is_empty());
    assert_eq!(rig.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
}

/// Another origin at the same address may send each resource by itself: the one that was kept back alone is not its whole answer.
#[test]
fn o4_an_origin_in_the_place_of_one_that_filled_its_responses_proves_nothing() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["c1", "c2", "x"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.close();
    rig.open(Primary);
    assert_eq!(rig.request(Primary).initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    assert_eq!(rig.seen(CDS, "x"), "unknown");
    rig.ask_for_proof(CDS);
    rig.pass(20_000);
    assert!(rig.renewed.is_empty(), "nor is it asked to");
    // It turns out to do as the one before.
    rig.client("b", EDS, &["e1", "e2"]);
    rig.pass(100);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    rig.mux.closed(Primary);
    rig.mux.opened(Primary, rig.now);
    rig.pass(100);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1"));
    assert_eq!(rig.seen(CDS, "x"), "absent");
}

/// Each part is sent after the ACK of the last. To open the stream anew for another type would begin with the first.
#[test]
fn o4_a_stream_is_not_opened_anew_for_proof_while_an_answer_comes_in_parts() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.client("b", Kind::Listener, &["*"]);
    rig.pass(100);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.ask_for_proof(CDS);
    for part in 0..5 {
        rig.pass(700);
        rig.hear(Primary, &Answer::of(Kind::Listener, "2").set(&format!("l{part}"), "v1"));
    }
    assert!(rig.renewed.is_empty(), "{:?}", rig.renewed);
    rig.pass(2_000);
    assert_eq!(rig.renewed.len(), 1);
}

/// The one that was not claimed may be in the last part.
#[test]
fn o4_the_first_words_about_names_are_parts_of_an_answer() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["c1", "c2", "c3", "c4", "c5", "c6"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    rig.close();
    rig.open(Primary);
    let request = rig.request(Primary);
    assert_eq!(request.initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
    for name in ["c3", "c4", "c5"] {
        rig.pass(700);
        rig.hear(Primary, &Answer::of(CDS, "2").set(name, "v1"));
    }
    rig.pass(700);
    rig.hear(Primary, &Answer::of(CDS, "3").remove("c6"));
    rig.pass(700);
    rig.hear(Primary, &Answer::of(CDS, "4").set("c1", "v1"));
    rig.pass(60_000);
    assert!(rig.renewed.is_empty(), "{:?}", rig.renewed);
}

/// An origin without versions, and a first answer that took 20 s. Nothing is taken for gone before the silence after it was
/// four times as long; asked on another stream, the origin answers at once.
#[test]
fn a_name_missing_from_a_slow_answer_is_asked_for_anew_before_it_is_over() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    rig.pass(10_000);
    rig.close();
    rig.open(Primary);
    rig.requests(Primary);
    rig.pass(20_000);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    rig.pass(41_000);
    assert_eq!((rig.renewed.len(), rig.members(CDS).len()), (1, 2));
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "3").set("c1", ""));
    rig.pass(6_000);
    assert_eq!(rig.members(CDS).len(), 1);
}

/// A stream that was opened anew many times waits for its turn. Meanwhile the answer that lacks `c1` is over: that is one
/// silence, not two.
#[test]
fn nothing_is_gone_because_of_one_silence_though_the_next_stream_has_to_wait() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("other", "v1"));
    for streams in 1..6 {
        // A heartbeat of what is not held.
        rig.hear(Primary, &Answer::of(CDS, "2").ttl("ended", "v1", 5, false));
        while rig.renewed.len() < streams {
            rig.pass(1_000);
        }
        rig.requests(Primary);
        let news = format!("news{streams}");
        rig.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set(&news, "v1"));
    }
    rig.pass(1_000);
    rig.close();
    rig.mux.opened(Primary, rig.now);
    assert!(!rig.request(Primary).initial_resource_versions.contains_key("c1"), "it is kept back");
    rig.hear(Primary, &Answer::of(CDS, "3").set("news9", "v1"));
    rig.pass(15_000);
    assert_eq!(rig.renewed.len(), 5);
    assert!(rig.members(CDS).contains("c1@v1"));
}

/// Its stream ended before the origin could answer, and on the next one nothing else was left to keep back.
#[test]
fn versions_told_on_a_stream_that_ended_too_soon_are_told_again() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &["e1"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    rig.close();
    rig.open(Primary);
    assert!(rig.request(Primary).initial_resource_versions.is_empty(), "it is kept back");
    rig.pass(16_000);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1, "after a silence it is claimed");
    rig.mux.closed(Primary);
    rig.mux.opened(Primary, rig.now);
    assert!(rig.request(Primary).initial_resource_versions.is_empty(), "it is kept back");
    rig.pass(20_000);
    assert_eq!(rig.request(Primary).initial_resource_versions.len(), 1);
    rig.hear(Primary, &Answer::of(EDS, "2").remove("e1"));
    assert_eq!(rig.seen(EDS, "e1"), "absent");
}

/// Members that have not come again may still come, and others with them.
#[test]
fn r_relay_05_a_set_that_lacks_held_resources_is_shown_to_no_newcomer_after_a_short_silence() {
    use crate::cache::Completeness::{Complete, Settled};
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    rig.close();
    rig.open(Primary);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    rig.pass(1_000);
    assert_eq!(rig.snapshot(CDS).completeness(), Settled);
    rig.pass(10_000);
    assert_eq!(rig.snapshot(CDS).completeness(), Complete);
}

/// An origin that hangs, or never says that a name is gone: each version was told in vain, and each was kept back in vain.
/// A new stream for each of them would show no more than the last one did.
#[test]
fn o2_an_origin_that_stays_silent_about_all_that_is_held_does_not_renew_the_stream_for_ever() {
    let held: Vec<String> = (0..50).map(|n| format!("e{n}")).collect();
    let held: Vec<&str> = held.iter().map(String::as_str).collect();
    for (kind, names) in [(EDS, &held[..]), (CDS, &["*"])] {
        for reconcile in [Reconcile::Sweep, Reconcile::Trust] {
            let mut rig = Rig::with(Settings { reconcile, ..Settings::default() });
            rig.open(Primary);
            rig.client("a", kind, names);
            rig.requests(Primary);
            let answer = |nonce| held.iter().fold(Answer::of(kind, nonce), |all, name| all.set(name, "v1"));
            rig.hear(Primary, &answer("1"));
            rig.pass(20_000);
            rig.close();
            rig.open(Primary);
            let (mut told, mut last) = (BTreeSet::new(), (usize::MAX, BTreeSet::new()));
            for _ in 0..720 {
                let versions = rig.requests(Primary).into_iter().flat_map(|r| r.initial_resource_versions);
                let versions: Vec<String> = versions.map(|(name, _)| name).collect();
                if last.0 != rig.renewed.len() {
                    last = (rig.renewed.len(), BTreeSet::new());
                }
                last.1.extend(versions.iter().cloned());
                told.extend(versions);
                rig.pass(10_000);
            }
            let context = format!("{kind:?}, {reconcile:?}: {} streams in two hours", rig.renewed.len());
            assert!(rig.renewed.len() < 4, "{context}");
            assert_eq!(told.len(), held.len(), "each version was told, {context}");
            // An origin that wakes up later can say on the last stream what is gone.
            assert!(
                reconcile == Reconcile::Sweep || last.1 == told,
                "{} on the last, {context}",
                last.1.len()
            );
            assert!(held.iter().all(|name| rig.seen(kind, name) == "v1"), "{context}");
        }
    }
}

/// An origin that answers something on each stream and never says that a name is gone (java-control-plane): what it did not say of
/// the versions of some names it will not say of the others.
#[test]
fn o2_an_origin_that_says_nothing_of_gone_names_does_not_renew_the_stream_for_ever() {
    let held: Vec<String> = (0..50).map(|n| format!("e{n}")).collect();
    let words: [fn(Answer) -> Answer; 2] = [|answer| answer.remove("x"), |answer| answer.set("other", "v1")];
    for (word, said) in words.into_iter().enumerate() {
        let mut rig = Rig::connected();
        let names: Vec<&str> = held.iter().map(String::as_str).chain(["x"]).collect();
        rig.client("a", EDS, &names);
        rig.requests(Primary);
        rig.hear(Primary, &held.iter().fold(Answer::of(EDS, "1"), |all, name| all.set(name, "v1")));
        rig.pass(20_000);
        rig.close();
        rig.open(Primary);
        let mut answered = None;
        for _ in 0..1440 {
            rig.requests(Primary);
            if answered != Some(rig.renewed.len()) {
                answered = Some(rig.renewed.len());
                rig.hear(Primary, &said(Answer::of(EDS, "2")));
            }
            rig.pass(5_000);
        }
        assert!(rig.renewed.len() < 40, "word {word}: {} streams in two hours", rig.renewed.len());
        assert!(held.iter().all(|name| rig.seen(EDS, name) == "v1"), "word {word}");
        // A word of what was in doubt shows that it says what is gone.
        let before = rig.renewed.len();
        rig.hear(Primary, &Answer::of(EDS, "3").remove("e0"));
        rig.mux.closed(Primary);
        rig.mux.opened(Primary, rig.now);
        rig.requests(Primary);
        rig.hear(Primary, &said(Answer::of(EDS, "4")));
        rig.pass(70_000);
        assert!(rig.renewed.len() > before, "word {word}");
    }
}

/// The answer to a name crosses the word that it is let go, be it the last one: an origin that keeps what it has sent does
/// not send it again (O1), though nothing else was asked for meanwhile.
#[test]
fn o1_a_name_whose_answer_comes_when_nothing_is_wanted_is_asked_for_on_another_stream() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &["e"]);
    rig.client("b", CDS, &["c"]);
    rig.pass(100);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
    rig.pass(120_000);
    rig.leave("a");
    rig.pass(70_000);
    let unsubscribed = rig.requests(Primary);
    assert!(unsubscribed.iter().any(|request| sorted(&request.resource_names_unsubscribe) == ["e"]));
    rig.hear(Primary, &Answer::of(EDS, "1").set("e", "v1"));
    rig.pass(3_000);
    rig.client("a", EDS, &["e"]);
    rig.pass(10);
    rig.requests(Primary);
    rig.pass(5_000);
    assert_eq!(rig.renewed.len(), 1);
}

/// The one resource that an origin had to send is let go before it came. All others are claimed: it has nothing to say, and
/// clients cannot tell it from one that hangs.
#[test]
fn r_up_02_another_resource_is_to_be_sent_where_the_one_that_was_kept_back_is_let_go() {
    let mut rig = Rig::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    rig.open(Primary);
    rig.client("a", CDS, &["a"]);
    rig.client("b", CDS, &["bb"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("a", "v1").set("bb", "v1"));
    rig.close();
    rig.open(Primary);
    assert_eq!(rig.request(Primary).initial_resource_versions.keys().collect::<Vec<_>>(), ["bb"]);
    rig.leave("a");
    rig.pass(10_000);
    assert_eq!(rig.renewed.len(), 1);
    let requests = rig.requests(Primary);
    assert!(requests.iter().all(|request| request.initial_resource_versions.is_empty()), "{requests:?}");
    rig.hear(Primary, &Answer::of(CDS, "2").set("bb", "v1"));
    rig.pass(120_000);
    assert_eq!(rig.renewed.len(), 1);
}

/// In a sweep no version is told because something was missing. A relay says itself of each name what it knows, and is asked for
/// each on any stream: another one would ask in the same words.
#[test]
fn a_name_that_a_relay_leaves_out_of_a_sweep_is_no_reason_for_another_stream() {
    let mut rig = Rig::sweeping();
    rig.open(Primary);
    rig.mux.origin_is_relay();
    rig.client("a", EDS, &["e1", "e2"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    rig.close();
    rig.open(Primary);
    rig.mux.origin_is_relay();
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "2").set("e1", "v1"));
    rig.pass(600_000);
    assert!(rig.renewed.is_empty());
    assert_eq!(rig.seen(EDS, "e2"), "v1");
}
