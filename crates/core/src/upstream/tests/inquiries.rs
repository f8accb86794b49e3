//! The end mark, inquiries about names, and the census (R-Up-22).

use super::*;
use crate::cache::Completeness;
use crate::proto::DiscoveryResponse;
use crate::upstream::Locators;

impl Fixture {
    /// Takes the names of the one inquiry that was begun since the last call.
    fn inquired(&mut self) -> Vec<String> {
        assert_eq!(self.inquiries.len(), 1, "one inquiry: {:?}", self.inquiries);
        let (_, protocol, request) = self.inquiries.remove(0);
        assert_eq!(protocol, Protocol::Delta);
        let request = DeltaDiscoveryRequest::decode(request).expect("a request");
        assert!(request.node.is_some(), "R-Up-01");
        assert!(request.initial_resource_versions.contains_key(Name::END_MARK));
        let names = request.resource_names_subscribe;
        assert!(
            names.iter().any(|name| name == Name::END_MARK),
            "claims count of names that are subscribed to"
        );
        names.into_iter().filter(|name| name != Name::END_MARK).collect()
    }

    fn answer(&mut self, answer: &Answer) {
        self.mux.on_inquiry_message(answer.bytes(), self.now);
    }

    /// The origin answers the census of a type that was begun.
    fn count(&mut self, kind: Kind, names: &[&str]) {
        let (_, protocol, _) = self.inquiries.pop().expect("a census");
        assert_eq!((protocol, self.inquiries.len()), (Protocol::Sotw, 0));
        let type_url = TypeUrl::from(kind);
        // A cluster has its name in field 1.
        let resource = |name: &&str| {
            let body = field(1, name.as_bytes());
            Bytes::from([field(1, type_url.as_str().as_bytes()), field(2, &body)].concat())
        };
        let response = DiscoveryResponse {
            type_url: type_url.as_str().to_owned(),
            version_info: "1".to_owned(),
            resources: names.iter().map(resource).collect(),
            nonce: "census".to_owned(),
            ..Default::default()
        };
        self.mux.on_inquiry_message(response.encode_to_vec().into(), self.now);
    }

    fn known(&self, kind: Kind) -> Completeness {
        self.snapshot(kind).completeness()
    }
}

#[test]
fn r_up_22_the_first_request_of_a_type_claims_the_end_mark() {
    let mut fixture = Fixture::connected();
    fixture.client("wild", CDS, &["*"]);
    fixture.client("named", EDS, &["a"]);
    fixture.pass(10);
    let mut requests = Vec::new();
    while let Some(request) = fixture.mux.next_request(Primary, fixture.now) {
        requests.push(request);
    }
    let [wild, named] = &requests[..] else { panic!("two types: {requests:?}") };
    assert!(wild.resource_names_subscribe.is_empty(), "the legacy wildcard (R-Up-05)");
    assert_eq!(sorted(&named.resource_names_subscribe), ["a", Name::END_MARK]);
    for request in [wild, named] {
        assert_eq!(request.initial_resource_versions.keys().collect::<Vec<_>>(), [Name::END_MARK]);
    }
    // Once it is answered, it is not subscribed to any more, and later requests do not claim it.
    fixture.deliver(Primary, &Answer::of(EDS, "1").remove(Name::END_MARK));
    fixture.client("more", EDS, &["b"]);
    fixture.pass(20);
    let (mut left, mut claims) = (0, 0);
    while let Some(request) = fixture.mux.next_request(Primary, fixture.now) {
        left += request.resource_names_unsubscribe.iter().filter(|name| *name == Name::END_MARK).count();
        claims += request.initial_resource_versions.len();
    }
    assert_eq!((left, claims), (1, 0));
    assert_eq!(fixture.mux.counters().unrequested_resources.get(), 0);
}

#[test]
fn r_up_22_a_set_is_complete_with_the_response_that_answers_the_end_mark() {
    for members in [&[][..], &["c1"], &["c1", "c2"]] {
        let mut fixture = Fixture::asking("wild", CDS, &["*"]);
        let answer = members.iter().fold(Answer::of(CDS, "1"), |answer, name| answer.set(name, "v1"));
        fixture.hear(Primary, &answer.remove(Name::END_MARK));
        assert_eq!(fixture.known(CDS), Completeness::Complete, "{members:?}");
        assert_eq!(fixture.members(CDS).len(), members.len());
        fixture.pass(120_000);
        assert!(fixture.inquiries.is_empty() && fixture.renewed.is_empty(), "nothing is left to ask");
    }
}

/// istiod makes an empty resource of each name of endpoints.
#[test]
fn r_up_22_a_resource_by_the_name_of_the_end_mark_is_nobodys() {
    let mut fixture = Fixture::asking("named", EDS, &["a", "x"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "").set(Name::END_MARK, ""));
    assert_eq!(fixture.see(EDS, ["x", Name::END_MARK]), ["absent", "unknown"]);
}

#[test]
fn r_up_22_names_of_the_first_request_that_a_whole_answer_lacks_do_not_exist() {
    let mut fixture = Fixture::asking("named", CDS, &["a", "b", "x"]).answering_inquiries();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "v1").set("b", "").remove(Name::END_MARK));
    let seen = |fixture: &Fixture| ["a", "b", "x"].map(|name| fixture.seen(CDS, name)).join(" ");
    assert!(seen(&fixture).ends_with(" absent") && !seen(&fixture).starts_with("absent"));
    // On the next stream a is claimed, and b has to come again: it has no version.
    fixture.reconnect();
    assert_eq!(fixture.request(Primary).initial_resource_versions.keys().collect::<Vec<_>>(), ["a"]);
    fixture.pass(600_000);
    assert_ne!(fixture.seen(CDS, "b"), "absent", "silence removes nothing");
    fixture.hear(Primary, &Answer::of(CDS, "1").remove(Name::END_MARK));
    assert_eq!(seen(&fixture), "v1 absent absent");
    assert!(fixture.inquiries.is_empty());
}

/// A name that was asked for later is not in that answer.
#[test]
fn r_up_22_an_answer_says_nothing_of_names_that_were_asked_for_after_its_request() {
    let mut fixture = Fixture::asking("one", CDS, &["a"]).answering_inquiries();
    fixture.subscribe("two", CDS, &["late"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "v1").remove(Name::END_MARK));
    assert_eq!(fixture.seen(CDS, "late"), "unknown");
}

/// An origin that does not read locators answers the mark, and not the question beside it.
#[test]
fn r_up_22_beside_locators_the_end_mark_counts_from_an_origin_that_reads_them() {
    for is_relay in [false, true] {
        let mut fixture = Fixture::connected();
        if is_relay {
            fixture.mux.origin_is_relay(true);
        }
        fixture.client_with("one", EDS, "v=1", &["a"]);
        fixture.requests(Primary);
        fixture.hear(Primary, &Answer::of(EDS, "1").remove(Name::END_MARK));
        let seen = fixture.seen_with(EDS, "v=1", "a");
        assert_eq!(seen, if is_relay { "absent" } else { "unknown" });
    }
}

/// go-control-plane, behind which one of the clients has a parameter.
#[test]
fn r_up_22_the_end_mark_counts_for_what_every_origin_understands() {
    let mut fixture = Fixture::connected();
    fixture.client("plain", EDS, &["a", "x"]);
    fixture.client_with("located", EDS, "v=1", &["b"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1").remove(Name::END_MARK));
    assert_eq!((&*fixture.seen(EDS, "x"), &*fixture.seen_with(EDS, "v=1", "b")), ("absent", "unknown"));

    let mut fixture = Fixture::connected();
    fixture.client("plain", CDS, &["*"]);
    fixture.client_with("located", CDS, "v=1", &["*"]);
    for answer in [Answer::of(CDS, "1").set("c1", "").set("c2", ""), Answer::of(CDS, "2").set("c1", "")] {
        fixture.ask_anew();
        fixture.hear(Primary, &answer.remove(Name::END_MARK));
    }
    assert_eq!(fixture.members(CDS).len(), 1);
    assert_eq!(fixture.members_with(CDS, "v=1").len(), 1);

    // By locators alone, an answer of nothing may be none.
    let mut fixture = Fixture::connected();
    fixture.client_with("located", CDS, "v=1", &["*"]);
    for (answer, left) in [(Answer::of(CDS, "1").set("c1", ""), 1), (Answer::of(CDS, "2"), 1)] {
        fixture.ask_anew();
        fixture.hear(Primary, &answer.remove(Name::END_MARK));
        assert_eq!(fixture.members_with(CDS, "v=1").len(), left);
    }
}

/// A relay whose stream is answered, and that asks for these names on it later.
fn asked_later(names: &[&str]) -> Fixture {
    let mut fixture = Fixture::asking("one", EDS, &["a"]).answering_inquiries();
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1").remove(Name::END_MARK));
    fixture.subscribe("two", EDS, names);
    fixture
}

/// O2: many origins never say that a name does not exist.
#[test]
fn o2_a_name_that_stays_unanswered_is_asked_for_once_on_a_stream_of_its_own() {
    let mut fixture = asked_later(&["x", "y"]);
    fixture.pass(2_900);
    assert!(fixture.inquiries.is_empty(), "the stream may answer yet");
    fixture.pass(200);
    assert_eq!(fixture.inquired().len(), 2);
    fixture.answer(&Answer::of(EDS, "i").set("y", "v7").remove(Name::END_MARK));
    assert_eq!(fixture.see(EDS, ["x", "y"]), ["absent", "v7"]);
    assert!(!fixture.mux.has_inquiry());
    fixture.pass(600_000);
    assert!(fixture.inquiries.is_empty() && fixture.renewed.is_empty(), "nobody asks once more");
    // It comes into being.
    fixture.hear(Primary, &Answer::of(EDS, "2").set("x", "v1"));
    assert_eq!(fixture.seen(EDS, "x"), "v1");
}

/// O1: what was let go and is asked for again may be left unanswered on a stream that lives.
#[test]
fn o1_what_the_origin_takes_for_delivered_comes_by_an_inquiry() {
    let settings = Settings { linger: Duration::from_secs(1), ..Settings::default() };
    let mut fixture = Fixture::with(settings);
    fixture.answers_inquiries = true;
    fixture.open(Primary);
    fixture.client("one", EDS, &["a", "b"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1").set("b", "v1").remove(Name::END_MARK));
    fixture.client("one", EDS, &["b"]);
    fixture.flush(2_000);
    fixture.client("one", EDS, &["a", "b"]);
    fixture.pass(4_000);
    assert_eq!(fixture.requests(Primary).last().expect("it is asked for").resource_names_subscribe, ["a"]);
    fixture.pass(3_100);
    assert_eq!(fixture.inquired(), ["a"]);
    fixture.answer(&Answer::of(EDS, "i").set("a", "v2").set("stranger", "v1").remove(Name::END_MARK));
    assert_eq!(fixture.see(EDS, ["a", "stranger"]), ["v2", "unknown"]);
    // The stream goes on with it.
    fixture.hear(Primary, &Answer::of(EDS, "2").set("a", "v3"));
    assert_eq!(fixture.seen(EDS, "a"), "v3");
}

/// An answer that was made before the word of the living stream came later.
#[test]
fn what_the_living_stream_says_meanwhile_outweighs_an_inquiry() {
    for answer in [Answer::of(EDS, "i").set("x", "v1"), Answer::of(EDS, "i")] {
        let mut fixture = asked_later(&["x"]);
        fixture.pass(3_100);
        assert_eq!(fixture.inquired(), ["x"]);
        fixture.hear(Primary, &Answer::of(EDS, "2").set("x", "v2"));
        fixture.answer(&answer.remove(Name::END_MARK));
        assert_eq!(fixture.seen(EDS, "x"), "v2");
    }
}

/// Its stream is reset, or the origin is not there for a while.
#[test]
fn an_inquiry_about_names_that_had_no_answer_is_repeated_and_not_for_ever() {
    for is_reset in [true, false] {
        let mut fixture = asked_later(&["x"]);
        for wait in [3_100, 10_000] {
            fixture.pass(wait);
            assert_eq!(fixture.inquired(), ["x"], "reset: {is_reset}");
            if is_reset {
                fixture.mux.inquiry_refused(fixture.now);
            }
        }
        fixture.pass(10_000);
        assert_eq!(fixture.inquired(), ["x"]);
        fixture.answer(&Answer::of(EDS, "i").set("x", "v1").remove(Name::END_MARK));
        assert_eq!(fixture.seen(EDS, "x"), "v1");
    }
    let mut fixture = asked_later(&["x"]);
    fixture.pass(600_000);
    assert_eq!(fixture.inquiries.len(), 3);
}

/// Another client asks for what does not exist all the time, of types that come first.
#[test]
fn no_type_keeps_the_names_of_others_from_being_inquired_about() {
    let mut fixture = asked_later(&[]);
    let types: Vec<TypeUrl> = (0..30).map(|n| TypeUrl::from(format!("a/made.up.{n}").as_str())).collect();
    for number in 0..600_usize {
        let name: &'static str = format!("none-{number}").leak();
        fixture.client(name, types[number % 30].clone(), &[name]);
        if number == 300 {
            fixture.client("waits", EDS, &["x"]);
        }
        fixture.flush(50);
        if fixture.mux.has_inquiry() {
            let (_, _, request) = fixture.inquiries.last().expect("it is open");
            let request = DeltaDiscoveryRequest::decode(&request[..]).expect("a request");
            let mut answer = Answer::of(EDS, "i").remove(Name::END_MARK);
            answer.0.type_url = request.type_url;
            fixture.answer(&answer);
        }
    }
    assert_eq!(fixture.seen(EDS, "x"), "absent");
}

/// It is asked plainly, and others wait for an answer by locator.
#[test]
fn an_inquiry_answers_those_who_ask_without_parameters() {
    let mut fixture = Fixture::asking_with("located", EDS, "v=1", &["x"]).answering_inquiries();
    fixture.hear(Primary, &Answer::of(EDS, "1").variant("x", "v=1", "old"));
    fixture.ask_anew();
    fixture.subscribe("plain", EDS, &["x"]);
    fixture.pass(3_100);
    assert_eq!(fixture.inquired(), ["x"]);
    fixture.answer(&Answer::of(EDS, "i").remove(Name::END_MARK));
    assert_eq!((&*fixture.seen(EDS, "x"), &*fixture.seen_with(EDS, "v=1", "x")), ("absent", "old"));
}

/// It lives on the other stream.
#[test]
fn a_wildcard_that_is_let_go_leaves_the_end_mark_of_names_alone() {
    let settings = Settings { linger: Duration::from_secs(1), ..Settings::default() };
    let mut fixture = Fixture::connected_with(settings);
    fixture.client("named", EDS, &["x"]);
    fixture.requests(Primary);
    fixture.client_with("wild", EDS, "v=1", &["*"]);
    fixture.client("wild too", EDS, &["*"]);
    fixture.ask_on_secondary();
    fixture.leave("wild");
    fixture.leave_for("wild too", 2_000);
    fixture.mux.closed(Secondary);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").remove(Name::END_MARK));
    assert_eq!(fixture.seen(EDS, "x"), "absent");
}

#[test]
fn an_answer_to_an_inquiry_counts_as_on_any_stream() {
    let mut fixture = asked_later(&["x", "y"]);
    fixture.pass(3_100);
    fixture.inquired();
    fixture.answer(&Answer::of(EDS, "i").remove(Name::END_MARK).fail("x", 13));
    assert_eq!(fixture.see(EDS, ["x", "y"]), ["failed", "absent"]);

    let mut fixture = asked_later(&["xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/f/*"]);
    fixture.pass(3_100);
    fixture.inquired();
    let member = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/f/m";
    fixture.answer(&Answer::of(EDS, "i").set(member, "v1").remove(Name::END_MARK));
    assert_eq!(fixture.seen(EDS, member), "v1");
}

#[test]
fn an_answer_to_an_inquiry_that_cannot_be_read_says_nothing() {
    let mut fixture = asked_later(&["x", "y"]);
    for (answer, wait) in [
        (Answer::of(EDS, "i").set("x", "v1").raw(vec![0xff]).remove(Name::END_MARK), 3_100),
        (Answer::of(EDS, "i").set("x", "v1").remove("x").remove(Name::END_MARK), 10_000),
    ] {
        fixture.pass(wait);
        assert_eq!(fixture.inquired().len(), 2);
        fixture.answer(&answer);
        assert_eq!(fixture.see(EDS, ["x", "y"]), ["unknown", "unknown"]);
    }
}

/// java-control-plane answers no mark, and nothing at all where none of the names exist.
#[test]
fn names_do_not_wait_for_an_inquiry_about_others_that_does_not_end() {
    for part in [None, Some(Answer::of(EDS, "i").set("x", "v1"))] {
        let mut fixture = asked_later(&["x", "nowhere"]);
        fixture.pass(3_100);
        assert_eq!(fixture.inquired().len(), 2);
        part.iter().for_each(|part| fixture.answer(part));
        fixture.subscribe("three", EDS, &["y"]);
        fixture.pass(5_000);
        assert_eq!(fixture.inquired(), ["y"]);
    }
}

/// One client makes up types.
#[test]
fn inquiries_begin_apart_of_whatever_types_they_are() {
    let mut fixture = Fixture::connected();
    let types: Vec<TypeUrl> = (0..40).map(|n| TypeUrl::from(format!("x/made.up.{n}").as_str())).collect();
    for (at, type_url) in types.iter().enumerate() {
        for name in ["a", "b"] {
            let who: &'static str = format!("{name}{at}").leak();
            fixture.subscribe(who, type_url.clone(), &[name]);
        }
    }
    fixture.pass(5_000);
    assert!((10..=24).contains(&fixture.inquiries.len()), "{}", fixture.inquiries.len());
}

/// A state-of-the-world client is told nothing else while it waits for a name.
#[test]
fn a_name_that_a_client_waits_for_with_all_others_is_inquired_about_soon() {
    let mut fixture = Fixture::asking("one", CDS, &["a"]).answering_inquiries();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "v1").remove(Name::END_MARK));
    for round in 0..5 {
        let name: &'static str = format!("none-{round}").leak();
        fixture.client("two", CDS, &[name]);
        fixture.ask_for_proof(CDS);
        fixture.flush(20);
        fixture.pass(300);
        assert_eq!(fixture.inquired(), [name]);
        fixture.answer(&Answer::of(CDS, "i").remove(Name::END_MARK));
        assert_eq!(fixture.seen(CDS, name), "absent");
        fixture.pass(1_700);
    }
}

#[test]
fn inquiries_without_an_answer_become_rare() {
    let mut fixture = Fixture::asking("one", EDS, &["a"]).heard(&Answer::of(EDS, "1").set("a", "v1"));
    for second in 0..3_600_u32 {
        let name: &'static str = format!("none-{second}").leak();
        fixture.client("two", EDS, &[name]);
        fixture.flush(1_000);
    }
    assert!((40..80).contains(&fixture.inquiries.len()), "{}", fixture.inquiries.len());
}

#[test]
fn a_relay_and_an_origin_that_is_silent_for_its_own_sake_are_asked_no_more() {
    let mut fixture = Fixture::connected();
    fixture.mux.origin_is_relay(true);
    fixture.client("wild", CDS, &["*"]);
    fixture.client("named", EDS, &["a"]);
    fixture.ask_for_proof(CDS);
    fixture.flush(20);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1").remove(Name::END_MARK));
    fixture.subscribe("two", EDS, &["x"]);
    fixture.pass(120_000);
    assert_eq!(fixture.inquiries, []);
}

/// java-control-plane: it answers no mark.
fn uncounted() -> Fixture {
    let mut fixture = Fixture::asking("wild", CDS, &["*"]).answering_inquiries();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture
}

#[test]
fn a_census_completes_a_set_for_a_client_that_may_lose_something() {
    let mut fixture = uncounted();
    fixture.pass(10_000);
    assert!(fixture.inquiries.is_empty(), "nobody waits, and nothing is missing");
    fixture.ask_for_proof(CDS);
    fixture.pass(10);
    fixture.count(CDS, &["c1", "c2", "c3"]);
    assert!(fixture.known(CDS) < Completeness::Complete, "c3 is on its way");
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c3", "v1"));
    fixture.pass(2_000);
    fixture.count(CDS, &["c1", "c2", "c3"]);
    assert_eq!(fixture.known(CDS), Completeness::Complete);
    fixture.pass(600_000);
    assert!(fixture.inquiries.is_empty() && fixture.renewed.is_empty());
}

/// java-control-plane reads no locators.
#[test]
fn a_census_completes_the_sets_of_clients_with_parameters_that_are_asked_for_plainly() {
    let settings = Settings { locators: Locators::Plain, ..Settings::default() };
    let mut fixture = Fixture::with(settings);
    fixture.answers_inquiries = true;
    fixture.open(Primary);
    fixture.client_with("one", CDS, "v=1", &["*"]);
    fixture.client_with("two", CDS, "v=2", &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "").set("c2", ""));
    fixture.ask_anew();
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c1", ""));
    fixture.pass(1_000);
    fixture.count(CDS, &["c1"]);
    for pairs in ["v=1", "v=2"] {
        assert_eq!(fixture.members_with(CDS, pairs).len(), 1, "{pairs}");
    }
}

/// Two witnesses: the first answer of the stream that lives, and the census.
#[test]
fn a_member_is_gone_that_neither_a_census_nor_the_first_answer_has() {
    let mut fixture = uncounted();
    fixture.reconnect();
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 2);
    fixture.pass(3_100);
    fixture.count(CDS, &["c2"]);
    assert_eq!(fixture.members(CDS).len(), 2, "no answer has come on the stream that lives");
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c2", "v1"));
    fixture.pass(3_000);
    fixture.count(CDS, &["c1", "c2"]);
    assert_eq!(fixture.members(CDS).len(), 2, "the census has it");
    fixture.ask_anew();
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c2", "v1"));
    fixture.pass(4_000);
    fixture.count(CDS, &["c2"]);
    assert_eq!(fixture.members(CDS), set(&["c2@v1"]));
    assert_eq!(fixture.known(CDS), Completeness::Complete);
}

/// An empty set at java-control-plane, which answers nothing by delta.
#[test]
fn a_census_shows_that_there_is_nothing() {
    let mut fixture = Fixture::connected().answering_inquiries();
    fixture.client("wild", CDS, &["*"]);
    fixture.ask_for_proof(CDS);
    fixture.requests(Primary);
    fixture.pass(3_100);
    fixture.count(CDS, &[]);
    assert_eq!(fixture.known(CDS), Completeness::Complete);
}

/// Neither mark nor census.
#[test]
fn r_relay_05_without_any_evidence_newcomers_see_the_settled_set_and_others_wait() {
    let mut fixture = Fixture::connected();
    fixture.client("wild", CDS, &["*"]);
    fixture.ask_for_proof(CDS);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.pass(300);
    assert_eq!((fixture.known(CDS), fixture.inquiries.len()), (Completeness::Presumed, 1));
    fixture.pass(89_000);
    assert_eq!(fixture.known(CDS), Completeness::Presumed);
    fixture.pass(2_000);
    assert_eq!((fixture.known(CDS), fixture.inquiries.len()), (Completeness::Complete, 1));
}

#[test]
fn a_census_that_stays_unanswered_is_given_up_and_tried_again() {
    let mut fixture = uncounted();
    fixture.ask_for_proof(CDS);
    fixture.pass(300);
    assert!(fixture.mux.has_inquiry());
    fixture.pass(6_000);
    assert_eq!(fixture.inquiries.len(), 2);
    fixture.close();
    assert!(!fixture.mux.has_inquiry(), "it ends with the connection");
}

#[test]
fn a_census_whose_stream_is_lost_is_repeated() {
    let mut fixture = uncounted();
    fixture.ask_for_proof(CDS);
    fixture.pass(300);
    fixture.mux.inquiry_lost();
    fixture.pass(1_000);
    assert_eq!((fixture.mux.has_inquiry(), fixture.inquiries.len()), (true, 2));
}

/// The pause of this process is no silence of the origin.
#[test]
fn an_inquiry_is_not_given_up_because_of_a_pause() {
    let mut fixture = uncounted();
    fixture.ask_for_proof(CDS);
    fixture.pass(300);
    fixture.pause(Duration::from_secs(60));
    fixture.pass(0);
    assert_eq!((fixture.mux.has_inquiry(), fixture.inquiries.len()), (true, 1));
}

#[test]
fn an_inquiry_waits_while_a_response_is_on_its_way() {
    let mut fixture = uncounted();
    fixture.mux.transferred(Duration::ZERO, true, fixture.now);
    fixture.ask_for_proof(CDS);
    fixture.pass(2_000);
    assert!(fixture.inquiries.is_empty());
    fixture.mux.transferred(Duration::ZERO, false, fixture.now);
    fixture.pass(10);
    assert_eq!(fixture.inquiries.len(), 1);
}
