//! REST-JSON long polls: R-REST.

use std::collections::BTreeSet;
use std::time::Duration;

use deltafan::cache::{Change, Completeness, SetVersion};
use deltafan::proto;
use deltafan::resource::TypeUrl;
use deltafan::subscription::{Poll, PollHistory, PollVerdict, Upstream};
use deltafan_test_support::bell::Bell;
use deltafan_test_support::fixture::{Fixture, strings, url};
use deltafan_test_support::wire;

const HOLD: Duration = Duration::from_millis(800);
const MOMENT: Duration = Duration::from_millis(1);
const CUT_OFF: Upstream = Upstream::Away;

/// One client that polls, with what the relay remembers of it.
struct Poller {
    memory: PollHistory,
    id: &'static str,
    agent: &'static str,
    hold: Duration,
}

impl Poller {
    fn new() -> Self {
        Self { memory: PollHistory::default(), id: "envoy-1", agent: "envoy", hold: HOLD }
    }

    fn ask(&self, fixture: &Fixture, short: &str, names: &[&str], version: &str) -> Poll {
        let request = proto::DiscoveryRequest {
            resource_names: strings(names),
            version_info: version.to_owned(),
            node: Some(proto::Node {
                id: self.id.to_owned(),
                user_agent_name: self.agent.to_owned(),
                ..proto::Node::default()
            }),
            ..proto::DiscoveryRequest::default()
        };
        fixture.poll(&self.memory, short, request, self.hold).unwrap()
    }

    /// The answer that comes at once: the version, and what the client holds then.
    fn told(&self, fixture: &Fixture, short: &str, names: &[&str], version: &str) -> (String, String) {
        let poll = self.ask(fixture, short, names, version);
        let PollVerdict::Answer(version) = look(fixture, &poll) else { panic!("{:?}", look(fixture, &poll)) };
        let found = poll.found();
        assert_eq!(found.version, version);
        let holds = show(&url(short), &poll);
        poll.end(Some(version), &self.memory, fixture.now);
        (version.to_string(), holds)
    }
}

fn look(fixture: &Fixture, poll: &Poll) -> PollVerdict {
    poll.next(fixture.now, fixture.upstream)
}

fn show(type_url: &TypeUrl, poll: &Poll) -> String {
    let found = poll.found().resources;
    let mut words: Vec<String> = found
        .iter()
        .map(|resource| wire::body(resource.body(), type_url))
        .map(|(n, t)| format!("{n}:{t}"))
        .collect();
    words.sort_unstable();
    words.join(" ")
}

fn answer(verdict: PollVerdict) -> SetVersion {
    let PollVerdict::Answer(version) = verdict else { panic!("{verdict:?} is no answer") };
    version
}

fn waits(fixture: &Fixture, poll: &Poll) -> Duration {
    let PollVerdict::Wait(until) = look(fixture, poll) else {
        panic!("{:?}: it should wait", look(fixture, poll))
    };
    until - fixture.now
}

#[test]
fn r_rest_05_a_poll_is_held_until_its_resources_change() {
    let mut fixture = Fixture::knowing(&["cds"]).with_named("eds a:1 b:1 c:1");
    let client = Poller::new();
    let (version, _) = client.told(&fixture, "eds", &["a", "b"], "");
    let poll = client.ask(&fixture, "eds", &["b", "a"], &version);
    let bell = Bell::new();
    poll.wake_handle().register(&bell.waker());
    fixture.after(MOMENT);
    fixture.named("eds c:2");
    assert_eq!(bell.take(), 0, "what others ask for wakes nobody else");
    fixture.named("eds b:2");
    assert_eq!(bell.take(), 1);
    let next = answer(look(&fixture, &poll));
    assert_ne!(next.to_string(), version);
    assert_eq!(show(&url("eds"), &poll), "a:1 b:2", "an answer is the whole of what was asked for");
    assert_eq!(poll.changed_at(), Some(fixture.now));
}

#[test]
fn r_rest_07_the_version_covers_the_names_and_their_resources_and_nothing_else() {
    let version =
        |fixture: &Fixture, short: &str, names: &[&str]| Poller::new().told(fixture, short, names, "").0;
    let mut one = Fixture::knowing(&["cds", "lds"]);
    for text in ["cds z:1", "cds a:1 b:1", "cds a:2 b:7", "cds -z", "cds b:1", "lds a:2 b:1"] {
        one.origin(text);
    }
    one.named("cds c:4 -d");
    // Another relay, which was started later and heard it in one go.
    let mut other = Fixture::knowing(&["cds", "lds"]).with_members("lds b:1 a:2").with_named("cds -d c:4");
    other.origin("cds b:1 a:2");
    let cases: [(&str, &[&str]); 7] = [
        ("cds", &[]),
        ("cds", &["*"]),
        ("cds", &["*", "c"]),
        ("cds", &["a", "b"]),
        ("cds", &["a", "b", "c"]),
        ("cds", &["a", "b", "d"]),
        ("lds", &[]),
    ];
    let mut seen = BTreeSet::new();
    for (short, names) in cases {
        let found = version(&one, short, names);
        assert_eq!(found, version(&other, short, names), "{short} {names:?}: on every replica alike");
        seen.insert(found);
    }
    assert_eq!(seen.len(), cases.len() - 1, "all differ, but that no names and `*` mean the same");
    // Each part of what is found counts.
    let before = version(&one, "cds", &["a"]);
    one.origin("cds a:3");
    let after = version(&one, "cds", &["a"]);
    assert_ne!(before, after);
    one.origin("cds a:2");
    assert_eq!(version(&one, "cds", &["a"]), before, "what is back is what it was");
}

#[test]
fn r_rest_08_a_rejected_version_is_given_again_only_after_the_hold() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let client = Poller::new();
    let (good, _) = client.told(&fixture, "cds", &[], "");
    fixture.origin("cds a:2");
    let (bad, _) = client.told(&fixture, "cds", &[], &good);
    for _ in 0..3 {
        // It says that it still holds what it had before.
        fixture.after(MOMENT);
        let poll = client.ask(&fixture, "cds", &[], &good);
        assert_eq!(waits(&fixture, &poll), HOLD);
        fixture.after(HOLD);
        let again = answer(look(&fixture, &poll));
        assert_eq!(again.to_string(), bad, "it may have been lost on the way");
        poll.end(Some(again), &client.memory, fixture.now);
    }
    let poll = client.ask(&fixture, "cds", &[], &good);
    fixture.origin("cds a:3");
    let better = answer(look(&fixture, &poll));
    assert_ne!(better.to_string(), bad, "what is new is given at once");
    poll.end(Some(better), &client.memory, fixture.now);
    // Once it is accepted nothing is held against the client that it said before.
    let poll = client.ask(&fixture, "cds", &[], &better.to_string());
    poll.end(None, &client.memory, fixture.now);
    client.told(&fixture, "cds", &[], &good);
}

#[test]
fn r_rest_08_a_first_answer_can_be_rejected_too_and_concerns_nobody_else() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let client = Poller::new();
    client.told(&fixture, "cds", &[], "");
    let poll = client.ask(&fixture, "cds", &[], "");
    assert_eq!(waits(&fixture, &poll), HOLD);
    drop(poll);
    let Poller { memory, .. } = client;
    let other = Poller { memory, id: "envoy-2", ..Poller::new() };
    other.told(&fixture, "cds", &[], "");
    other.told(&fixture, "cds", &["a"], "");
    // People with curl say no name, and cannot be told from one another.
    let Poller { memory, .. } = other;
    let nameless = Poller { memory, id: "", ..Poller::new() };
    nameless.told(&fixture, "cds", &[], "");
    nameless.told(&fixture, "cds", &[], "");
}

#[test]
fn r_rest_08_a_client_that_holds_nothing_waits_a_second_at_most() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let client = Poller { hold: Duration::from_secs(120), ..Poller::new() };
    client.told(&fixture, "cds", &[], "");
    let restarted = client.ask(&fixture, "cds", &[], "");
    assert_eq!(waits(&fixture, &restarted), Duration::from_secs(1));
    fixture.after(Duration::from_secs(1));
    answer(look(&fixture, &restarted));
}

#[test]
fn r_rest_08_a_client_that_comes_back_after_a_while_is_answered_at_once() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let client = Poller::new();
    client.told(&fixture, "cds", &[], "");
    fixture.after(Duration::from_secs(30));
    client.told(&fixture, "cds", &[], "");
}

#[test]
fn r_rest_09_an_unknown_set_is_never_shown_as_empty() {
    for short in ["cds", "lds", "rds", "eds"] {
        let mut fixture = Fixture::new();
        let client = Poller::new();
        let names: &[&str] = if ["rds", "eds"].contains(&short) { &["a"] } else { &[] };
        let fresh = client.ask(&fixture, short, names, "");
        let holder = client.ask(&fixture, short, names, "of another server");
        fixture.after(HOLD);
        assert_eq!(look(&fixture, &fresh), PollVerdict::Unknown, "{short}");
        // Nobody can say that it holds what there is of a name. Of a set it may keep what it has.
        let expected = if names.is_empty() { PollVerdict::NotModified } else { PollVerdict::Unknown };
        assert_eq!(look(&fixture, &holder), expected, "{short}");
    }
    // A set of which some is there and more may come.
    let mut fixture = Fixture::new().with_members("cds a:1");
    let poll = Poller::new().ask(&fixture, "cds", &[], "");
    fixture.after(HOLD);
    assert_eq!(look(&fixture, &poll), PollVerdict::Unknown);
}

#[test]
fn r_rest_09_a_full_state_waits_for_names_that_its_client_may_hold() {
    let mut fixture = Fixture::knowing(&["lds"]).with_named("lds a:1");
    let client = Poller { hold: Duration::from_secs(120), ..Poller::new() };
    // A client that holds nothing cannot lose anything.
    let fresh = client.ask(&fixture, "lds", &["a", "b"], "");
    assert_eq!(waits(&fixture, &fresh), fixture.rules.settle);
    let holder = client.ask(&fixture, "lds", &["a", "b"], "of another server");
    fixture.after(fixture.rules.settle);
    answer(look(&fixture, &fresh));
    waits(&fixture, &holder);
    fixture.after(fixture.rules.cold_deadline);
    for upstream in [CUT_OFF, Upstream::Silent] {
        assert!(
            matches!(holder.next(fixture.now, upstream), PollVerdict::Wait(_)),
            "nobody can have answered"
        );
    }
    fixture.writer.reset_answers();
    assert!(matches!(look(&fixture, &holder), PollVerdict::Wait(_)), "nor for other types only");
    fixture.writer.record_answer(&url("lds"), fixture.now);
    let patience = fixture.rules.longest_silence();
    assert_eq!(waits(&fixture, &holder), patience, "the rest of its answer is on its way");
    fixture.after(patience);
    answer(look(&fixture, &holder));
}

#[test]
fn r_rest_09_a_set_that_settled_is_for_polls_that_offer_no_version() {
    let mut fixture = Fixture::new().with_members("cds a:1");
    fixture.know("cds", Completeness::Presumed);
    let client = Poller::new();
    answer(look(&fixture, &client.ask(&fixture, "cds", &[], "")));
    let holder = client.ask(&fixture, "cds", &[], "of another server");
    waits(&fixture, &holder);
    assert_eq!(holder.expire(fixture.now + HOLD, fixture.upstream), PollVerdict::NotModified);
    fixture.known("cds");
    answer(look(&fixture, &holder));
}

#[test]
fn r_rest_09_short_polls_in_a_row_wait_no_longer_than_one_long_one() {
    let mut fixture = Fixture::knowing(&["lds"]).with_named("lds a:1");
    let client = Poller::new();
    let mut polls = 0;
    let start = fixture.now;
    loop {
        let poll = client.ask(&fixture, "lds", &["a", "b"], "of another server");
        fixture.after(HOLD);
        match look(&fixture, &poll) {
            PollVerdict::NotModified => poll.end(None, &client.memory, fixture.now),
            PollVerdict::Answer(_) => break,
            other => panic!("{other:?}"),
        }
        polls += 1;
        assert!(polls < 100, "an origin that never answers for one name withholds the others for ever");
    }
    assert!(fixture.now - start < fixture.rules.longest_silence() + 2 * HOLD);
    // A set that deletes nothing is given after a moment, however short the hold is.
    let hasty = Poller { hold: fixture.rules.settle / 3, ..Poller::new() };
    fixture.named("eds a:1");
    let polls = (0..10).find(|_| {
        let poll = hasty.ask(&fixture, "eds", &["a", "b"], "x");
        fixture.after(hasty.hold);
        let answered = matches!(look(&fixture, &poll), PollVerdict::Answer(_));
        poll.end(None, &hasty.memory, fixture.now);
        answered
    });
    assert!(polls.is_some_and(|polls| polls >= 2), "{polls:?}");
}

#[test]
fn r_rest_10_each_request_is_its_own_first_one() {
    let mut fixture = Fixture::knowing(&["cds", "eds", "srds"]).with_members("cds a:1 b:1");
    fixture.origin("eds a:1");
    fixture.origin("srds a:1");
    fixture.named("cds c:1");
    let client = Poller::new();
    let holds = |short: &str, names: &[&str]| client.told(&fixture, short, names, "x").1;
    assert_eq!(holds("cds", &["a"]), "a:1");
    assert_eq!(holds("cds", &[]), "a:1 b:1", "an empty list is the wildcard, whatever was asked for before");
    assert_eq!(holds("cds", &["*", "c"]), "a:1 b:1 c:1");
    assert_eq!(holds("srds", &[]), "a:1");
    assert_eq!(holds("eds", &[]), "", "R-SotW-14: an empty list of endpoints means nothing");
    assert_eq!(holds("eds", &["*"]), "a:1");
    let grpc = Poller { agent: "gRPC C-core", ..Poller::new() };
    assert_eq!(grpc.told(&fixture, "cds", &[], "").1, "");
}

#[test]
fn a_set_that_becomes_known_wakes_clients_that_wait_for_it() {
    let mut fixture = Fixture::new();
    let client = Poller::new();
    let poll = client.ask(&fixture, "cds", &[], "");
    fixture.origin("cds a:1");
    waits(&fixture, &poll);
    let bell = Bell::new();
    poll.wake_handle().register(&bell.waker());
    fixture.apply("cds", Change { wildcard_known: Some(Completeness::Complete), ..Change::default() });
    assert_eq!(bell.take(), 1);
    answer(look(&fixture, &poll));
    assert_eq!(show(&url("cds"), &poll), "a:1");
}
