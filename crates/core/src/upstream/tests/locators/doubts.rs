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

/// Two sets ask for the same names by plain name; they do not fit into the first request. The second half of the questions
/// repeats names that were answered already, at an origin that keeps versions (go-control-plane 0.13).
#[test]
fn plain_names_of_several_sets_that_need_several_requests_do_not_renew_the_stream_for_ever() {
    let mut fixture = Fixture::with(Settings { locators: Locators::Plain, ..Settings::default() });
    fixture.answers_inquiries = true;
    fixture.open(Primary);
    let names: Vec<String> = (0..12_000).map(|n| format!("{}-{n:05}", "n".repeat(110))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fixture.client_with("one", EDS, "v=1", &names);
    fixture.client_with("two", EDS, "v=2", &names);
    fixture.look_at_all();
    let mut sent = BTreeSet::new();
    let mut renewed = 0;
    for nonce in 0..6_000 {
        fixture.pass(100);
        if fixture.renewed.len() > renewed {
            renewed = fixture.renewed.len();
            sent.clear();
        }
        for (_, _, request) in std::mem::take(&mut fixture.inquiries) {
            let request = DeltaDiscoveryRequest::decode(request).expect("a request");
            let names = request.resource_names_subscribe.iter().filter(|name| *name != Name::END_MARK);
            let answer = names.fold(Answer::of(EDS, "i"), |answer, name| {
                answer.variant(name, "v=1", "1").variant(name, "v=2", "2")
            });
            fixture.mux.on_inquiry_message(answer.remove(Name::END_MARK).bytes(), fixture.now);
        }
        // The origin answers each request at once, and each name once on a stream, in all its variants.
        while fixture.mux.has_request(Primary) {
            let Some(request) = fixture.mux.next_request(Primary, fixture.now) else { continue };
            let mut answer = Answer::of(EDS, &format!("{nonce}-{}", sent.len()));
            for name in request.resource_names_subscribe {
                if sent.insert(name.clone()) {
                    answer = answer.variant(&name, "v=1", "1").variant(&name, "v=2", "2");
                }
            }
            if !answer.0.resources.is_empty() {
                fixture.deliver(Primary, &answer);
            }
        }
        if renewed > 30 {
            break;
        }
    }
    eprintln!("{renewed} streams");
    let known = |pairs: &str| {
        let snapshot = fixture.snapshot_with(EDS, pairs);
        names.iter().filter(|name| matches!(snapshot.by_name(name), VisibleState::Present(_))).count()
    };
    assert_eq!(
        (known("v=1"), known("v=2"), renewed.min(10)),
        (12_000, 12_000, renewed),
        "after {renewed} streams"
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

/// After a reconnect: constrained variants that are held cannot be claimed, and two silences must not remove them.
#[test]
fn nothing_is_removed_where_there_are_two_sets_and_the_origin_hangs_after_a_reconnect() {
    for locators in [Locators::Native, Locators::Plain] {
        let mut fixture = Fixture::connected_with(Settings { locators, ..Settings::default() });
        fixture.client_with("one", CDS, "v=1", &["*"]);
        fixture.subscribe_with("two", CDS, "v=2", &["*"]);
        fixture.hear(
            Primary,
            &Answer::of(CDS, "1").variant("a", "v=1", "1").variant("a", "v=2", "2").set("b", "1"),
        );
        fixture.flush(30_000);
        fixture.reconnect();
        for second in 0..600 {
            fixture.requests(Primary);
            fixture.pass(100);
            assert_eq!(
                (fixture.members_with(CDS, "v=1").len(), fixture.members_with(CDS, "v=2").len()),
                (2, 2),
                "{locators:?}: live resources were removed {}.{} s after a reconnect, without a word of the origin",
                second / 10,
                second % 10
            );
        }
    }
}
