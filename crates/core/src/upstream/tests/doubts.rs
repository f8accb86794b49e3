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
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.pass(50);
    let pause = Duration::from_secs(3600);
    fixture.now += pause;
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.mux.overslept(pause, fixture.now);
    fixture.pass(30_000);
    assert!(fixture.snapshot(CDS).wildcard_known(), "30 s after the answer");
}

/// A wildcard that is left over from a closed secondary has no deadline: it stays, and is shown as if it were current.
#[test]
fn a_stray_wildcard_is_dropped_without_another_event() {
    let mut fixture = Fixture::connected();
    fixture.client("named", CDS, &["odcds"]);
    fixture.requests(Primary);
    fixture.client("wild", CDS, &["*"]);
    fixture.open(Secondary);
    fixture.pass(10);
    fixture.requests(Secondary);
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

/// One resource whose TTL ends because the origin does not renew it, at an origin that keeps versions (go-control-plane).
#[test]
fn a_name_whose_ttl_ends_does_not_renew_the_stream_for_ever() {
    let mut fixture = Fixture::connected();
    fixture.client("wild", CDS, &["*"]);
    fixture.client("b", EDS, &["t"]);
    fixture.pass(10);
    let mut fresh = true;
    let mut renewed = 0;
    for nonce in 0..6_000 {
        let requests = fixture.requests(Primary);
        if fresh && !requests.is_empty() {
            fixture.pass(20);
            let mut all = requests;
            all.extend(fixture.requests(Primary));
            if asked(&all).contains("t") {
                fixture.hear(Primary, &Answer::of(CDS, &format!("c{nonce}")).set("c", "v1"));
                fixture.hear(Primary, &Answer::of(EDS, &format!("e{nonce}")).ttl("t", "v1", 1, true));
                fresh = false;
            }
        }
        fixture.pass(100);
        if fixture.renewed.len() > renewed {
            renewed = fixture.renewed.len();
            fresh = true;
        }
    }
    assert!(renewed < 20, "{renewed} streams in ten minutes: everything is asked for anew each time");
}

/// Names that do not exist, at an origin that says nothing of them: one client that asks for one after the other.
#[test]
fn one_client_with_names_that_do_not_exist_does_not_renew_the_stream_all_the_time() {
    let mut fixture = Fixture::connected();
    fixture.client("wild", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
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

/// An origin that takes 4 s for the first answer on a new stream. What is kept back is in doubt after 3 s, on each stream.
#[test]
fn an_origin_with_a_slow_first_answer_is_not_asked_anew_for_ever() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.pass(10_000);
    fixture.close();
    fixture.open(Primary);
    let mut opened = fixture.now;
    let mut answered = false;
    let mut seen = 0;
    for nonce in 0..18_000 {
        fixture.requests(Primary);
        fixture.pass(100);
        if fixture.renewed.len() > seen {
            (seen, opened, answered) =
                (fixture.renewed.len(), fixture.renewed[fixture.renewed.len() - 1].0, false);
        }
        if !answered && fixture.now >= opened + Duration::from_secs(4) {
            fixture.requests(Primary);
            fixture.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set("c1", "v1").set("c2", "v1"));
            answered = true;
        }
    }
    assert!(seen < 8, "{seen} streams in 30 minutes, though every one was answered or would have been");
}

/// `Topic::advance` takes `unseen` after 3 s of silence though it is in doubt already: nobody judges it afterwards.
#[test]
fn a_missing_resource_is_removed_also_where_the_answer_takes_four_seconds() {
    let mut fixture = Fixture::sweeping();
    fixture.open(Primary);
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("gone", "v1"));
    fixture.pass(10_000);
    fixture.close();
    fixture.open(Primary);
    let (mut opened, mut answered, mut seen) = (fixture.now, false, 0);
    for nonce in 0..36_000 {
        fixture.requests(Primary);
        fixture.pass(100);
        if fixture.renewed.len() > seen {
            (seen, opened, answered) =
                (fixture.renewed.len(), fixture.renewed[fixture.renewed.len() - 1].0, false);
        }
        if !answered && fixture.now >= opened + Duration::from_secs(4) {
            fixture.requests(Primary);
            fixture.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set("new", "v1"));
            answered = true;
        }
    }
    assert_eq!(fixture.members(CDS), set(&["new@v1"]), "an hour and {seen} streams later");
}

/// A relay that holds `a0`…`a7`, each the content of one part, and comes back. On each new stream the origin sends all of them,
/// in order, `apart` seconds from each other: a slow link, or an origin that waits for the ACK of each part.
fn live_after_a_slow_answer(version: &str, apart: u64, settings: Settings) -> (BTreeSet<String>, usize) {
    let mut fixture = Fixture::with(settings);
    fixture.open(Primary);
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    let names: Vec<String> = (0..8).map(|n| format!("a{n}")).collect();
    fixture.hear(Primary, &names.iter().fold(Answer::of(CDS, "1"), |all, name| all.set(name, version)));
    fixture.pass(10_000);
    fixture.close();
    fixture.open(Primary);
    let (mut opened, mut sent, mut seen) = (fixture.now, 0, 0);
    let mut least = fixture.members(CDS);
    for nonce in 0..18_000 {
        fixture.requests(Primary);
        fixture.pass(100);
        if fixture.renewed.len() > seen {
            (seen, opened, sent) = (fixture.renewed.len(), fixture.renewed[fixture.renewed.len() - 1].0, 0);
        }
        if sent < names.len() && fixture.now >= opened + Duration::from_secs(apart) * (sent as u32 + 1) {
            fixture.requests(Primary);
            fixture.hear(Primary, &Answer::of(CDS, &nonce.to_string()).set(&names[sent], version));
            sent += 1;
        }
        if fixture.members(CDS).len() < least.len() {
            least = fixture.members(CDS);
        }
    }
    (least, seen)
}

/// Parts keep coming every 20 s for 160 s, longer than a set that no longer grows is waited for.
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
fn waiting_for_proof(names: &[&'static str], first: &Answer) -> Fixture {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, names);
    fixture.requests(Primary);
    fixture.hear(Primary, first);
    fixture.pass(10_000);
    assert!(fixture.renewed.is_empty(), "nobody waits for it");
    fixture.ask_for_proof(CDS);
    fixture.pass(10_000);
    assert_eq!(fixture.renewed.len(), 1);
    fixture
}

#[test]
fn a_set_is_complete_once_a_new_stream_brings_the_one_resource_that_was_not_claimed() {
    use crate::cache::Completeness::{Complete, Presumed};
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    for (beside, known) in [(None, Complete), (Some("c3"), Presumed)] {
        let mut fixture = waiting_for_proof(&["*"], &first);
        assert_eq!(fixture.snapshot(CDS).completeness(), Presumed, "silence proves nothing");
        let request = fixture.request(Primary);
        assert_eq!(request.initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
        let mut answer = Answer::of(CDS, "2").set("c1", "v1");
        if let Some(name) = beside {
            answer = answer.set(name, "v1");
        }
        fixture.hear(Primary, &answer);
        assert_eq!(fixture.snapshot(CDS).completeness(), known, "{beside:?}");
    }
}

/// R-Up-23: a relay cuts an answer by its size and says so, and tells another relay nothing of a set that is not complete.
#[test]
fn r_up_22_an_answer_of_a_relay_is_whole_with_its_last_part() {
    use crate::cache::Completeness::{Complete, Unknown};
    let mut fixture = Fixture::connected();
    fixture.mux.origin_is_relay();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1.5~1>").set("c1", "v1"));
    fixture.pass(20_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Unknown, "more follows, however late");
    fixture.hear(Primary, &Answer::of(CDS, "1.5~2").set("c2", "v1"));
    assert_eq!(fixture.snapshot(CDS).completeness(), Complete);
    // A member that was not claimed and did not come is gone.
    fixture.close();
    fixture.open(Primary);
    fixture.mux.origin_is_relay();
    assert_eq!(fixture.request(Primary).initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
    fixture.hear(Primary, &Answer::of(CDS, "1.9~1>"));
    assert_eq!(fixture.members(CDS), set(&["c1@v1", "c2@v1"]), "more follows");
    fixture.hear(Primary, &Answer::of(CDS, "1.9~2"));
    assert_eq!(fixture.members(CDS), set(&["c2@v1"]));
}

/// A relay that is cut off from its own control plane may lack members for as long as that lasts.
#[test]
fn r_relay_05_no_time_completes_the_set_of_a_relay_that_is_cut_off() {
    use crate::cache::Completeness::{Complete, Unknown};
    let mut fixture = Fixture::connected();
    fixture.mux.origin_is_relay();
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
    fixture.hear(Primary, &Answer::of(CDS, "1.5~2"));
    assert_eq!(fixture.snapshot(CDS).completeness(), Complete);
}

/// A proxy may lead the next stream on the same connection to another origin, which says nothing of how it cuts its answers.
#[test]
fn the_answer_of_an_origin_in_the_place_of_a_relay_is_not_taken_for_whole() {
    let mut fixture = Fixture::connected();
    fixture.mux.origin_is_relay();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.close();
    fixture.open(Primary);
    fixture.mux.origin_is_relay();
    fixture.mux.origin_is_no_relay();
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 1);
    fixture.hear(Primary, &Answer::of(CDS, "2"));
    assert_eq!(fixture.members(CDS), set(&["c1@v1", "c2@v1"]));
}

/// A copy that comes by itself is meant for all clients (R-Relay-21). The rest of a slow answer is not.
#[test]
fn a_late_part_of_an_answer_is_no_news_to_clients() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    fixture.close();
    fixture.open(Primary);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    fixture.pass(3_000);
    let before = fixture.snapshot(CDS).generation();
    fixture.hear(Primary, &Answer::of(CDS, "3").set("c2", ""));
    assert_eq!(fixture.snapshot(CDS).generation(), before);
    fixture.hear(Primary, &Answer::of(CDS, "4").set("c2", ""));
    assert!(fixture.snapshot(CDS).generation() > before, "that one came by itself");
}

/// From one that sends each resource by itself the resource that was kept back comes alone, whatever follows.
#[test]
fn o4_an_origin_that_sends_each_resource_by_itself_is_not_asked_for_proof() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    fixture.ask_for_proof(CDS);
    fixture.pass(10_000);
    assert!(fixture.renewed.is_empty());
    assert_eq!(fixture.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
}

/// A response of another type is evidence as well.
#[test]
fn an_origin_that_puts_several_resources_into_a_response_proves_a_set_of_one() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.client("b", EDS, &["e1", "e2"]);
    fixture.pass(100);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    fixture.ask_for_proof(CDS);
    fixture.pass(1_000);
    assert_eq!(fixture.renewed.len(), 1);
}

#[test]
fn an_origin_where_something_changes_all_the_time_is_believed_in_the_end() {
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    let mut fixture = waiting_for_proof(&["*"], &first);
    for _ in 0..2 {
        fixture.requests(Primary);
        fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c3", "v1"));
        fixture.pass(50_000);
    }
    assert_eq!(fixture.snapshot(CDS).completeness(), crate::cache::Completeness::Complete);
}

#[test]
fn o2_a_name_is_absent_once_a_new_stream_brings_all_else_that_was_not_claimed() {
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    for (beside, expected) in [(None, "absent"), (Some("c3"), "unknown")] {
        let mut fixture = waiting_for_proof(&["c1", "c2", "c3", "x"], &first);
        let claimed = fixture.request(Primary).initial_resource_versions;
        let versions = ["c2", "c3", "x"].map(|name| claimed.get(name).map(String::as_str));
        assert_eq!((claimed.len(), versions), (3, [Some("v1"), Some("none"), Some("none")]));
        let mut answer = Answer::of(CDS, "2").set("c1", "v1");
        if let Some(name) = beside {
            answer = answer.set(name, "v1");
        }
        fixture.hear(Primary, &answer);
        assert_eq!(fixture.seen(CDS, "x"), expected, "{beside:?}");
        fixture.hear(Primary, &Answer::of(CDS, "3").set("x", "v1"));
        assert_eq!(fixture.seen(CDS, "x"), "v1", "it is still subscribed to");
    }
}

/// A client asks for one listener by name, which is gone since the relay was restarted.
#[test]
fn o2_of_a_name_that_nothing_is_held_of_an_origin_that_reads_versions_says_that_it_is_gone() {
    const LDS: Kind = Kind::Listener;
    for word in [Answer::of(LDS, "2").remove("l"), Answer::of(LDS, "2").set("l", "v1"), Answer::of(LDS, "2")]
    {
        let mut fixture = Fixture::connected();
        fixture.client("all", CDS, &["*"]);
        fixture.client("a", LDS, &["l"]);
        fixture.ask_for_proof(LDS);
        fixture.pass(100);
        let claims = |request: &DeltaDiscoveryRequest| !request.initial_resource_versions.is_empty();
        assert!(!fixture.requests(Primary).iter().any(claims));
        // It gives versions.
        fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
        fixture.pass(5_900);
        assert_eq!(fixture.renewed.len(), 0);
        fixture.pass(200);
        let requests = fixture.requests(Primary);
        let request = requests.into_iter().find(|request| request.resource_names_subscribe == ["l"]);
        let request = request.expect("the name once more");
        fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
        let claimed: Vec<_> = request.initial_resource_versions.into_iter().collect();
        assert_eq!(claimed, [("l".to_owned(), "none".to_owned())]);
        fixture.hear(Primary, &word);
        let expected = match (word.0.removed_resources.len(), word.0.resources.len()) {
            (1, _) => "absent",
            (_, 1) => "v1",
            _ => "unknown",
        };
        assert_eq!(fixture.seen(LDS, "l"), expected);
        // It says so of no name that was not claimed.
        fixture.client("a", LDS, &["l", "m"]);
        for _ in 0..100 {
            fixture.ask_for_proof(LDS);
            fixture.pass(1_000);
            for request in fixture.requests(Primary) {
                if request.type_url == TypeUrl::from(CDS).as_str() && request.response_nonce.is_empty() {
                    fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
                }
                let asks = request.resource_names_subscribe.contains(&"l".to_owned());
                if asks && !request.initial_resource_versions.contains_key("l") && expected == "v1" {
                    fixture.hear(Primary, &Answer::of(LDS, "3").set("l", "v1"));
                }
            }
        }
        assert_eq!(fixture.renewed.len(), 2, "each name is claimed once");
    }
}

/// It would send everything once more for each name that it does not know.
#[test]
fn o2_an_origin_that_reads_no_versions_is_not_asked_about_name_after_name() {
    const LDS: Kind = Kind::Listener;
    const NAMES: [&str; 12] = ["l0", "l1", "l2", "l3", "l4", "l5", "l6", "l7", "l8", "l9", "l10", "l11"];
    let mut fixture = Fixture::connected();
    fixture.client("all", CDS, &["*"]);
    for count in 1..=NAMES.len() {
        fixture.client("grows", LDS, &NAMES[..count]);
        for _ in 0..150 {
            fixture.ask_for_proof(LDS);
            fixture.pass(1_000);
            for request in fixture.requests(Primary) {
                if request.type_url == TypeUrl::from(CDS).as_str() && request.response_nonce.is_empty() {
                    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
                }
            }
        }
    }
    assert!(fixture.renewed.len() <= 2, "{} streams", fixture.renewed.len());
}

/// O2: istiod and java-control-plane answer names of clusters with all clusters.
#[test]
fn an_answer_with_resources_that_were_not_asked_for_proves_nothing() {
    let mut fixture = waiting_for_proof(&["c1", "x"], &Answer::of(CDS, "1").set("c1", "v1").set("c3", "v1"));
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c3", "v1"));
    assert_eq!(fixture.seen(CDS, "x"), "unknown");
}

/// The wildcard was answered with all that was claimed. That nothing more came for a name, of which no version was told,
/// is no sign that versions are read.
#[test]
fn an_origin_that_ignores_versions_is_not_asked_again_because_of_a_name() {
    let mut fixture = Fixture::connected();
    fixture.client("all", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.client("named", CDS, &["c1"]);
    fixture.open(Secondary);
    fixture.requests(Secondary);
    let all = |nonce| Answer::of(CDS, nonce).set("c1", "v1").set("c2", "v1");
    let one = |nonce| Answer::of(CDS, nonce).set("c1", "v1");
    fixture.hear(Primary, &all("1"));
    fixture.hear(Secondary, &one("1"));
    for _ in 0..5 {
        fixture.ask_for_proof(CDS);
        let before = fixture.renewed.len();
        fixture.pass(4_000);
        if fixture.renewed.len() > before {
            fixture.open(Secondary);
            fixture.requests(Primary);
            fixture.requests(Secondary);
            fixture.hear(Primary, &all("2"));
            fixture.hear(Secondary, &one("2"));
        }
    }
    assert_eq!(fixture.renewed.len(), 1, "once for all: {:?}", fixture.renewed);
    assert_eq!(fixture.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
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
        let mut fixture = Fixture::connected();
        fixture.client("a", CDS, &["c1", "c2", "gone", "x"]);
        fixture.requests(Primary);
        fixture.hear(Primary, &gone(Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1")));
        fixture.ask_for_proof(CDS);
        fixture.pass(20_000);
        assert!(fixture.renewed.is_empty(), "word {word}");
        fixture.close();
        fixture.open(Primary);
        fixture.requests(Primary);
        fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1"));
        assert_eq!(fixture.seen(CDS, "x"), "unknown", "word {word}");
    }
}

#[test]
fn an_origin_that_sends_claimed_resources_is_not_asked_for_proof_again() {
    let first = Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1");
    let mut fixture = waiting_for_proof(&["*"], &first);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c2", "v1"));
    fixture.pass(6_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
    assert_eq!(fixture.renewed.len(), 1);
}

/// A sweep tells no versions. Where nothing at all comes, the origin is asked for a word.
#[test]
fn r_up_21_a_sweep_that_is_met_with_silence_asks_by_version() {
    let mut fixture = Fixture::sweeping();
    fixture.open(Primary);
    fixture.client("a", EDS, &["e1"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    fixture.close();
    fixture.open(Primary);
    assert!(fixture.request(Primary).initial_resource_versions.is_empty());
    fixture.pass(16_000);
    assert_eq!(fixture.renewed.len(), 1);
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 1);
    fixture.hear(Primary, &Answer::of(EDS, "2").remove("e1"));
    assert_eq!(fixture.seen(EDS, "e1"), "absent");
}

/// An origin that never says which of the versions that it was told are gone (java-control-plane). What it has is asked for
/// once more without versions.
#[test]
fn r_up_21_resources_that_a_sweep_claimed_after_a_silence_are_swept() {
    for news in [None, Some("v2")] {
        let mut fixture = Fixture::sweeping();
        fixture.open(Primary);
        fixture.client("a", EDS, &["e1", "e2"]);
        fixture.requests(Primary);
        fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
        fixture.close();
        fixture.open(Primary);
        fixture.requests(Primary);
        fixture.pass(16_000);
        assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 2, "after a silence");
        if let Some(version) = news {
            fixture.hear(Primary, &Answer::of(EDS, "2").set("e1", version));
        }
        for streams in 2..4 {
            fixture.pass(16_000);
            assert_eq!(fixture.renewed.len(), streams, "{news:?}");
            assert!(fixture.request(Primary).initial_resource_versions.is_empty(), "{news:?}");
            fixture.hear(Primary, &Answer::of(EDS, "3").set("e1", "v1"));
        }
        fixture.pass(16_000);
        assert_eq!(fixture.seen(EDS, "e2"), "absent", "{news:?}");
        assert_eq!((fixture.seen(EDS, "e1").as_str(), fixture.renewed.len()), ("v1", 3), "{news:?}");
    }
}

/// A proof tells versions, which this origin ignores: it never says what is gone. All that it has came on that stream.
#[test]
fn r_up_21_a_sweep_in_which_versions_were_told_in_vain_begins_anew() {
    let mut fixture = Fixture::sweeping();
    fixture.open(Primary);
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1").set("c3", "v1"));
    fixture.pass(10_000);
    fixture.ask_for_proof(CDS);
    fixture.pass(10_000);
    assert_eq!(fixture.renewed.len(), 1);
    for _ in 0..4 {
        fixture.requests(Primary);
        fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c2", "v1"));
        fixture.pass(20_000);
    }
    assert_eq!(fixture.members(CDS), set(&["c1@v1", "c2@v1"]));
    assert_eq!(fixture.renewed.len(), 3, "{:?}", fixture.renewed);
}

/// Its stream was opened anew for another reason before the origin could answer.
#[test]
fn r_up_21_a_sweep_tells_a_version_once_after_a_silence() {
    let mut fixture = Fixture::sweeping();
    fixture.open(Primary);
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    fixture.close();
    fixture.open(Primary);
    fixture.requests(Primary);
    fixture.pass(16_000);
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 2);
    fixture.mux.closed(Primary);
    fixture.mux.opened(Primary, fixture.now);
    assert!(fixture.request(Primary).initial_resource_versions.is_empty());
}

/// A client that may hold a name of which nothing is known waits for the origin to answer. All else that is held was claimed,
/// so that an origin where nothing changed has nothing to say.
#[test]
fn r_relay_04_an_origin_of_which_all_names_were_claimed_is_asked_for_a_sign_of_life() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["c1", "x"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.close();
    fixture.open(Primary);
    assert!(fixture.request(Primary).initial_resource_versions.is_empty(), "it is kept back");
    fixture.pass(16_000);
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 1, "after a silence it is claimed");
    fixture.pass(16_000);
    assert!(fixture.request(Primary).initial_resource_versions.is_empty(), "and has to come once more");
    fixture.pass(600_000);
    assert_eq!(
        fixture.request(Primary).initial_resource_versions.len(),
        1,
        "at last it can be said to be gone"
    );
    assert_eq!(fixture.renewed.len(), 3, "an origin that hangs is not asked for ever");
}

/// O1: what crosses the word that it is let go counts as sent.
#[test]
fn o1_a_name_that_came_after_it_was_let_go_is_asked_for_on_a_new_stream() {
    let mut fixture = Fixture::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    fixture.open(Primary);
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    fixture.pass(60_000);
    fixture.client("a", EDS, &["e1"]);
    fixture.pass(5_000);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e2", "v1"));
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.requests(Primary);
    fixture.pass(10_000);
    assert_eq!(fixture.renewed.len(), 1);
}

/// Claimed after a silence, everything is as it was: an origin that says nothing then is right, and waited for in vain.
#[test]
fn a_client_waits_for_proof_no_longer_than_for_two_silences() {
    let mut fixture = waiting_for_proof(&["*"], &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 1, "c1 is kept back");
    fixture.pass(20_000);
    assert!(
        fixture.request(Primary).initial_resource_versions.contains_key("c1"),
        "after a silence it is claimed"
    );
    fixture.pass(20_000);
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 1, "and one is kept back once more");
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1"));
    assert_eq!(fixture.snapshot(CDS).completeness(), crate::cache::Completeness::Complete);
}

/// A set that cannot be proven any more has no deadline that has passed.
#[test]
fn an_absence_that_turns_out_to_be_unprovable_does_not_spin() {
    let mut fixture = waiting_for_proof(&["*"], &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.requests(Primary);
    fixture.pass(4_000);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set("c2", "v1"));
    for part in 0..8 {
        fixture.pass(14_000);
        fixture.hear(Primary, &Answer::of(CDS, "3").set(&format!("part-{part}"), "v1"));
    }
    fixture.pass(200_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), crate::cache::Completeness::Complete);
}

/// Names that come and go cost a stream when they are asked for again (O1), at the slowest pace in the end. A client that waits
/// for proof does not wait for these, and has a pace of its own.
#[test]
fn a_proof_does_not_wait_behind_a_client_with_ever_new_names() {
    let mut fixture = Fixture::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    fixture.open(Primary);
    fixture.client("wild", CDS, &["*"]);
    let mut answered = 0;
    // Answers for the wildcard on each new stream, and for nothing else; each time with something that was not claimed.
    let second = |fixture: &mut Fixture, answered: &mut usize, count: usize| {
        if count.is_multiple_of(5) {
            // One, another, and both once more; then two that are new.
            let turn = count / 5;
            fixture.client("names", EDS, &[&format!("none-{}", turn / 4 * 2 + turn % 2)]);
        }
        fixture.pass(1_000);
        let streams = fixture.renewed.len() + 1;
        let is_new = streams > *answered;
        fixture.requests(Primary);
        if is_new {
            let news = format!("c{streams}");
            fixture.hear(Primary, &Answer::of(CDS, "n").set("c1", "v1").set(&news, "v1"));
            *answered = streams;
        }
    };
    let mut count = 0;
    while fixture.renewed.len() < 12 {
        second(&mut fixture, &mut answered, count);
        count += 1;
        assert!(count < 3_600, "each costs a stream: {:?}", fixture.renewed);
    }
    let last = fixture.renewed.len() - 1;
    let pace = fixture.renewed[last].0 - fixture.renewed[last - 1].0;
    assert!(pace > Duration::from_secs(60), "{pace:?} from one to the next");
    fixture.pass(3_000);
    let of = fixture.cache.of(&CDS.into()).expect("few types");
    let mut asked = fixture.now;
    of.ask_for_proof();
    fixture.look();
    while fixture.renewed.len() == 12 {
        second(&mut fixture, &mut answered, count);
        count += 1;
        assert!(fixture.now < asked + Duration::from_secs(4), "it waits for the names of another client");
    }
    // Nothing is proven, and it asks again and again.
    let before = fixture.renewed.len();
    asked = fixture.now;
    while fixture.now < asked + Duration::from_secs(600) {
        of.ask_for_proof();
        fixture.look();
        second(&mut fixture, &mut answered, count);
        count += 1;
    }
    let more = fixture.renewed.len() - before;
    assert!(more < 25, "{more} streams in ten minutes");
}

/// deltafan cuts its answers by bytes: of large resources each comes by itself.
#[test]
fn o4_an_origin_that_never_put_as_much_into_a_response_is_not_asked_for_proof() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.client("b", EDS, &["e1", "e2"]);
    fixture.pass(100);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    let large = "large".repeat(10_000);
    fixture.hear(Primary, &Answer::of(CDS, "2").set_body("c1", "v1", &large));
    fixture.hear(Primary, &Answer::of(CDS, "3").set_body("c2", "v1", &large));
    fixture.ask_for_proof(CDS);
    fixture.pass(10_000);
    assert!(fixture.renewed.is_empty());
    assert_eq!(fixture.snapshot(CDS).completeness(), crate::cache::Completeness::Complete, "by its silence");
}

/// One listener, larger than all that came before: an origin that puts two resources into a response would put that one in, too.
#[test]
fn o4_an_origin_that_puts_several_into_a_response_is_asked_for_proof_of_one_of_a_usual_size() {
    let mut fixture = Fixture::connected();
    fixture.client("a", Kind::Listener, &["*"]);
    fixture.client("b", CDS, &["*"]);
    fixture.pass(100);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    let usual = "a listener".repeat(2_000);
    fixture.hear(Primary, &Answer::of(Kind::Listener, "2").set_body("l", "v1", &usual));
    fixture.ask_for_proof(Kind::Listener);
    fixture.pass(300);
    assert_eq!(fixture.renewed.len(), 1);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(Kind::Listener, "2").set_body("l", "v1", &usual));
    assert_eq!(fixture.snapshot(Kind::Listener).completeness(), crate::cache::Completeness::Complete);
}

/// Another origin at the same address may send each resource by itself: the one that was kept back alone is not its whole answer.
#[test]
fn o4_an_origin_in_the_place_of_one_that_filled_its_responses_proves_nothing() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["c1", "c2", "x"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.close();
    fixture.open(Primary);
    assert_eq!(fixture.request(Primary).initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    assert_eq!(fixture.seen(CDS, "x"), "unknown");
    fixture.ask_for_proof(CDS);
    fixture.pass(20_000);
    assert_eq!(fixture.renewed.len(), 1);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    assert_eq!(fixture.seen(CDS, "x"), "unknown");
    // It turns out to do as the one before.
    fixture.client("b", EDS, &["e1", "e2"]);
    fixture.pass(100);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    fixture.mux.closed(Primary);
    fixture.mux.opened(Primary, fixture.now);
    fixture.pass(100);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1"));
    assert_eq!(fixture.seen(CDS, "x"), "absent");
}

/// Each part is sent after the ACK of the last. To open the stream anew for another type would begin with the first.
#[test]
fn o4_a_stream_is_not_opened_anew_for_proof_while_an_answer_comes_in_parts() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.client("b", Kind::Listener, &["*"]);
    fixture.pass(100);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.ask_for_proof(CDS);
    for part in 0..5 {
        fixture.pass(700);
        fixture.hear(Primary, &Answer::of(Kind::Listener, "2").set(&format!("l{part}"), "v1"));
    }
    assert!(fixture.renewed.is_empty(), "{:?}", fixture.renewed);
    fixture.pass(2_000);
    assert_eq!(fixture.renewed.len(), 1);
}

/// The one that was not claimed may be in the last part.
#[test]
fn o4_the_first_words_about_names_are_parts_of_an_answer() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["c1", "c2", "c3", "c4", "c5", "c6"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.close();
    fixture.open(Primary);
    let request = fixture.request(Primary);
    assert_eq!(request.initial_resource_versions.keys().collect::<Vec<_>>(), ["c2"]);
    for name in ["c3", "c4", "c5"] {
        fixture.pass(700);
        fixture.hear(Primary, &Answer::of(CDS, "2").set(name, "v1"));
    }
    fixture.pass(700);
    fixture.hear(Primary, &Answer::of(CDS, "3").remove("c6"));
    fixture.pass(700);
    fixture.hear(Primary, &Answer::of(CDS, "4").set("c1", "v1"));
    fixture.pass(60_000);
    assert!(fixture.renewed.is_empty(), "{:?}", fixture.renewed);
}

/// An origin without versions, and a first answer that took 20 s. Nothing is taken for gone before the silence after it was
/// four times as long; asked on another stream, the origin answers at once.
#[test]
fn a_name_missing_from_a_slow_answer_is_asked_for_anew_before_it_is_over() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    fixture.pass(10_000);
    fixture.close();
    fixture.open(Primary);
    fixture.requests(Primary);
    fixture.pass(20_000);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    fixture.pass(41_000);
    assert_eq!((fixture.renewed.len(), fixture.members(CDS).len()), (1, 2));
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "3").set("c1", ""));
    fixture.pass(6_000);
    assert_eq!(fixture.members(CDS).len(), 1);
}

/// A stream that was opened anew many times waits for its turn. Meanwhile the answer that lacks `c1` is over: that is one
/// silence, not two.
#[test]
fn nothing_is_gone_because_of_one_silence_though_the_next_stream_has_to_wait() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("other", "v1"));
    for streams in 1..6 {
        // A heartbeat of what is not held.
        fixture.hear(Primary, &Answer::of(CDS, "2").ttl("ended", "v1", 5, false));
        while fixture.renewed.len() < streams {
            fixture.pass(1_000);
        }
        fixture.requests(Primary);
        let news = format!("news{streams}");
        fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", "v1").set(&news, "v1"));
    }
    fixture.pass(1_000);
    fixture.close();
    fixture.mux.opened(Primary, fixture.now);
    assert!(!fixture.request(Primary).initial_resource_versions.contains_key("c1"), "it is kept back");
    fixture.hear(Primary, &Answer::of(CDS, "3").set("news9", "v1"));
    fixture.pass(15_000);
    assert_eq!(fixture.renewed.len(), 5);
    assert!(fixture.members(CDS).contains("c1@v1"));
}

/// Its stream ended before the origin could answer, and on the next one nothing else was left to keep back.
#[test]
fn versions_told_on_a_stream_that_ended_too_soon_are_told_again() {
    let mut fixture = Fixture::connected();
    fixture.client("a", EDS, &["e1"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    fixture.close();
    fixture.open(Primary);
    assert!(fixture.request(Primary).initial_resource_versions.is_empty(), "it is kept back");
    fixture.pass(16_000);
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 1, "after a silence it is claimed");
    fixture.mux.closed(Primary);
    fixture.mux.opened(Primary, fixture.now);
    assert!(fixture.request(Primary).initial_resource_versions.is_empty(), "it is kept back");
    fixture.pass(20_000);
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 1);
    fixture.hear(Primary, &Answer::of(EDS, "2").remove("e1"));
    assert_eq!(fixture.seen(EDS, "e1"), "absent");
}

/// Members that have not come again may still come, and others with them.
#[test]
fn r_relay_05_a_set_that_lacks_held_resources_is_shown_to_no_newcomer_after_a_short_silence() {
    use crate::cache::Completeness::{Complete, Settled};
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    fixture.close();
    fixture.open(Primary);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    fixture.pass(1_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Settled);
    fixture.pass(10_000);
    assert_eq!(fixture.snapshot(CDS).completeness(), Complete);
}

/// An origin that hangs, or never says that a name is gone: each version was told in vain, and each was kept back in vain.
/// A new stream for each of them would show no more than the last one did.
#[test]
fn o2_an_origin_that_stays_silent_about_all_that_is_held_does_not_renew_the_stream_for_ever() {
    let held: Vec<String> = (0..50).map(|n| format!("e{n}")).collect();
    let held: Vec<&str> = held.iter().map(String::as_str).collect();
    for (kind, names) in [(EDS, &held[..]), (CDS, &["*"])] {
        for reconcile in [Reconcile::Sweep, Reconcile::Trust] {
            let mut fixture = Fixture::with(Settings { reconcile, ..Settings::default() });
            fixture.open(Primary);
            fixture.client("a", kind, names);
            fixture.requests(Primary);
            let answer = |nonce| held.iter().fold(Answer::of(kind, nonce), |all, name| all.set(name, "v1"));
            fixture.hear(Primary, &answer("1"));
            fixture.pass(20_000);
            fixture.close();
            fixture.open(Primary);
            let (mut told, mut last) = (BTreeSet::new(), (usize::MAX, BTreeSet::new()));
            for _ in 0..720 {
                let versions =
                    fixture.requests(Primary).into_iter().flat_map(|r| r.initial_resource_versions);
                let versions: Vec<String> = versions.map(|(name, _)| name).collect();
                if last.0 != fixture.renewed.len() {
                    last = (fixture.renewed.len(), BTreeSet::new());
                }
                last.1.extend(versions.iter().cloned());
                told.extend(versions);
                fixture.pass(10_000);
            }
            let context = format!("{kind:?}, {reconcile:?}: {} streams in two hours", fixture.renewed.len());
            assert!(fixture.renewed.len() < 4, "{context}");
            assert_eq!(told.len(), held.len(), "each version was told, {context}");
            // An origin that wakes up later can say on the last stream what is gone.
            assert!(
                reconcile == Reconcile::Sweep || last.1 == told,
                "{} on the last, {context}",
                last.1.len()
            );
            assert!(held.iter().all(|name| fixture.seen(kind, name) == "v1"), "{context}");
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
        let mut fixture = Fixture::connected();
        let names: Vec<&str> = held.iter().map(String::as_str).chain(["x"]).collect();
        fixture.client("a", EDS, &names);
        fixture.requests(Primary);
        fixture.hear(Primary, &held.iter().fold(Answer::of(EDS, "1"), |all, name| all.set(name, "v1")));
        fixture.pass(20_000);
        fixture.close();
        fixture.open(Primary);
        let mut answered = None;
        for _ in 0..1440 {
            fixture.requests(Primary);
            if answered != Some(fixture.renewed.len()) {
                answered = Some(fixture.renewed.len());
                fixture.hear(Primary, &said(Answer::of(EDS, "2")));
            }
            fixture.pass(5_000);
        }
        assert!(fixture.renewed.len() < 40, "word {word}: {} streams in two hours", fixture.renewed.len());
        assert!(held.iter().all(|name| fixture.seen(EDS, name) == "v1"), "word {word}");
        // A word of what was in doubt shows that it says what is gone.
        let before = fixture.renewed.len();
        fixture.hear(Primary, &Answer::of(EDS, "3").remove("e0"));
        fixture.mux.closed(Primary);
        fixture.mux.opened(Primary, fixture.now);
        fixture.requests(Primary);
        fixture.hear(Primary, &said(Answer::of(EDS, "4")));
        fixture.pass(70_000);
        assert!(fixture.renewed.len() > before, "word {word}");
    }
}

/// The answer to a name crosses the word that it is let go, be it the last one: an origin that keeps what it has sent does
/// not send it again (O1), though nothing else was asked for meanwhile.
#[test]
fn o1_a_name_whose_answer_comes_when_nothing_is_wanted_is_asked_for_on_another_stream() {
    let mut fixture = Fixture::connected();
    fixture.client("a", EDS, &["e"]);
    fixture.client("b", CDS, &["c"]);
    fixture.pass(100);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
    fixture.pass(120_000);
    fixture.leave("a");
    fixture.pass(70_000);
    let unsubscribed = fixture.requests(Primary);
    assert!(unsubscribed.iter().any(|request| sorted(&request.resource_names_unsubscribe) == ["e"]));
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e", "v1"));
    fixture.pass(3_000);
    fixture.client("a", EDS, &["e"]);
    fixture.pass(10);
    fixture.requests(Primary);
    fixture.pass(5_000);
    assert_eq!(fixture.renewed.len(), 1);
}

/// The one resource that an origin had to send is let go before it came. All others are claimed: it has nothing to say, and
/// clients cannot tell it from one that hangs.
#[test]
fn r_up_02_another_resource_is_to_be_sent_where_the_one_that_was_kept_back_is_let_go() {
    let mut fixture = Fixture::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    fixture.open(Primary);
    fixture.client("a", CDS, &["a"]);
    fixture.client("b", CDS, &["bb"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "v1").set("bb", "v1"));
    fixture.close();
    fixture.open(Primary);
    assert_eq!(fixture.request(Primary).initial_resource_versions.keys().collect::<Vec<_>>(), ["bb"]);
    fixture.leave("a");
    fixture.pass(10_000);
    assert_eq!(fixture.renewed.len(), 1);
    let requests = fixture.requests(Primary);
    assert!(requests.iter().all(|request| request.initial_resource_versions.is_empty()), "{requests:?}");
    fixture.hear(Primary, &Answer::of(CDS, "2").set("bb", "v1"));
    fixture.pass(120_000);
    assert_eq!(fixture.renewed.len(), 1);
}

/// In a sweep no version is told because something was missing. A relay says itself of each name what it knows, and is asked for
/// each on any stream: another one would ask in the same words.
#[test]
fn a_name_that_a_relay_leaves_out_of_a_sweep_is_no_reason_for_another_stream() {
    let mut fixture = Fixture::sweeping();
    fixture.open(Primary);
    fixture.mux.origin_is_relay();
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    fixture.close();
    fixture.open(Primary);
    fixture.mux.origin_is_relay();
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e1", "v1"));
    fixture.pass(600_000);
    assert!(fixture.renewed.is_empty());
    assert_eq!(fixture.seen(EDS, "e2"), "v1");
}

/// An origin that answers each stream `late` seconds after it was opened, as one does behind a long answer for another type, and
/// has `c1` and `c2` of what the relay holds. Returns the members after two hours, and how many streams were opened in the second
/// one. `is_paced`: streams were opened anew often before, so that each stays open for a minute.
fn swept_late(late: u64, is_paced: bool, is_relay: bool, held: &[&str]) -> (BTreeSet<String>, usize) {
    let mut fixture = Fixture::sweeping();
    fixture.open(Primary);
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    let all = |nonce| held.iter().fold(Answer::of(CDS, nonce), |all, name| all.set(name, "v1"));
    fixture.hear(Primary, &all("1"));
    fixture.pass(600_000);
    while is_paced && fixture.renewed.len() < 6 {
        let seen = fixture.renewed.len();
        fixture.hear(Primary, &Answer::of(CDS, "2").ttl("ended", "v1", 5, false));
        while fixture.renewed.len() == seen {
            fixture.pass(1_000);
        }
        fixture.requests(Primary);
        fixture.hear(Primary, &all("3"));
    }
    fixture.mux.closed(Primary);
    fixture.mux.opened(Primary, fixture.now);
    let (first, mut opened, mut answered) = (fixture.now, fixture.now, false);
    let mut seen = fixture.renewed.len();
    for _ in 0..7_200 {
        if is_relay {
            fixture.mux.origin_is_relay();
        }
        fixture.requests(Primary);
        fixture.pass(1_000);
        if fixture.renewed.len() > seen {
            (seen, opened, answered) =
                (fixture.renewed.len(), fixture.renewed[fixture.renewed.len() - 1].0, false);
        }
        if !answered && fixture.now >= opened + Duration::from_secs(late) {
            fixture.requests(Primary);
            fixture.hear(Primary, &Answer::of(CDS, "4").set("c1", "v1").set("c2", "v1"));
            answered = true;
        }
    }
    let half = first + Duration::from_secs(3_600);
    let streams = fixture.renewed.iter().filter(|(at, _)| *at > half).count();
    (fixture.members(CDS), streams)
}

/// Each stream is silent for long enough to cast doubt on all that is held, and answered after that.
#[test]
fn r_up_21_a_sweep_of_an_origin_that_answers_late_comes_to_its_end() {
    for (late, is_paced) in [(16, false), (22, false), (22, true), (40, true), (70, false), (70, true)] {
        for is_relay in [false, true] {
            for held in [&["c1", "c2"][..], &["c1", "c2", "gone"]] {
                let (members, streams) = swept_late(late, is_paced, is_relay, held);
                let context = format!("{late} s late, paced {is_paced}, a relay {is_relay}, of {held:?}");
                assert_eq!(members, set(&["c1@v1", "c2@v1"]), "{context}");
                assert_eq!(streams, 0, "{context}");
            }
        }
    }
}
