//! Origins that speak state of the world.

use std::time::Duration;

use prost::Message as _;

use super::*;
use crate::cache::Completeness;
use crate::proto::{DiscoveryRequest, DiscoveryResponse, ResourceError, ResourceName, Status};

const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

/// A response of the origin: its version is its nonce.
#[derive(Clone, Debug)]
pub(super) struct World(DiscoveryResponse, TypeUrl);

impl World {
    pub(super) fn of(kind: Kind, nonce: &str, resources: &[(&str, &str)]) -> Self {
        let type_url = TypeUrl::from(kind);
        let response = DiscoveryResponse {
            type_url: type_url.as_str().to_owned(),
            version_info: nonce.to_owned(),
            nonce: nonce.to_owned(),
            ..DiscoveryResponse::default()
        };
        let mut world = Self(response, type_url);
        for (name, text) in resources {
            let body = world.body(name, text);
            world.0.resources.push(body.into());
        }
        world
    }

    fn body(&self, name: &str, text: &str) -> Vec<u8> {
        let value = [field(1, name.as_bytes()), field(15, text.as_bytes())].concat();
        [field(1, self.1.as_str().as_bytes()), field(2, &value)].concat()
    }

    fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.0.version_info);
        self
    }

    /// Adds a wrapper with these fields beside its name.
    fn wrap(mut self, name: &str, fields: &[Vec<u8>]) -> Self {
        let wrapper = [vec![field(3, name.as_bytes())], fields.to_vec()].concat().concat();
        let any = [field(1, WRAPPER.as_bytes()), field(2, &wrapper)].concat();
        self.0.resources.push(any.into());
        self
    }

    /// Adds a resource with a TTL.
    fn timed(self, name: &str, text: &str, seconds: u8) -> Self {
        let body = self.body(name, text);
        self.wrap(name, &[ttl(seconds), field(2, &body)])
    }

    fn error(mut self, name: &str, code: i32) -> Self {
        let resource_name = Some(ResourceName { name: name.to_owned(), ..ResourceName::default() });
        let error_detail = Some(Status { code, message: "so it is".to_owned() });
        self.0.resource_errors.push(ResourceError { resource_name, error_detail });
        self
    }

    /// Version of a resource as clients see it.
    fn hash(&self, name: &str, text: &str) -> String {
        let body = self.body(name, text);
        let element = crate::resource::SotwElement::parse(&body, &self.1).expect("a good element");
        format!("{:032x}", element.content_hash().expect("a body"))
    }
}

/// Version of a resource as clients see it.
fn hash(kind: Kind, name: &str, text: &str) -> String {
    World::of(kind, "", &[]).hash(name, text)
}

fn at(kind: Kind, name: &str, text: &str) -> String {
    format!("{name}@{}", hash(kind, name, text))
}

fn ttl(seconds: u8) -> Vec<u8> {
    field(6, &[8, seconds])
}

impl Fixture {
    fn sotw() -> Self {
        let mut fixture = Self::new();
        fixture.open_sotw(Primary);
        fixture
    }

    pub(super) fn open_sotw(&mut self, stream: StreamId) {
        if stream == Primary {
            self.mux.connected(&"http://origin".into());
            self.mux.set_protocol(Protocol::Sotw);
        }
        self.mux.opened(stream, self.now);
    }

    /// A relay that has asked for what its one client wants.
    fn sotw_asking(who: &'static str, kind: Kind, names: &[&str]) -> Self {
        let mut fixture = Self::sotw();
        fixture.client(who, kind, names);
        fixture.says(Primary);
        fixture
    }

    fn taking(mut self, world: &World) -> Self {
        self.takes(Primary, world);
        self
    }

    fn ask_anew_sotw(&mut self) {
        self.reconnect_sotw();
        self.says(Primary);
    }

    fn reconnect_sotw(&mut self) {
        self.close();
        self.open_sotw(Primary);
    }

    /// Everything that a stream has to say, when changes have been collected.
    pub(super) fn says(&mut self, stream: StreamId) -> Vec<DiscoveryRequest> {
        self.pass(10);
        let mut requests = Vec::new();
        while self.mux.has_request(stream)
            && let Some(message) = self.mux.next_message(stream, self.now)
        {
            requests.push(DiscoveryRequest::decode(message).expect("a request"));
            assert!(requests.len() < 1000, "the stream has always something more to say");
        }
        requests
    }

    /// The one thing it has to say.
    fn says_once(&mut self, stream: StreamId) -> DiscoveryRequest {
        let mut requests = self.says(stream);
        assert_eq!(requests.len(), 1, "one request: {requests:?}");
        requests.remove(0)
    }

    /// The origin says something.
    pub(super) fn sends(&mut self, stream: StreamId, world: &World) {
        self.mux.on_message(stream, world.0.encode_to_vec().into(), self.now).expect("a response");
    }

    /// The origin says something; returns the answer.
    pub(super) fn told(&mut self, stream: StreamId, world: &World) -> DiscoveryRequest {
        self.sends(stream, world);
        self.says_once(stream)
    }

    /// The origin says something that is accepted.
    pub(super) fn takes(&mut self, stream: StreamId, world: &World) {
        let ack = self.told(stream, world);
        assert_eq!((ack.response_nonce, ack.error_detail), (world.0.nonce.clone(), None));
    }
}

/// Fields of a request: names, version, nonce.
pub(super) fn parts(request: &DiscoveryRequest) -> (Vec<&str>, &str, &str) {
    (sorted(&request.resource_names), &request.version_info, &request.response_nonce)
}

#[test]
fn r_up_01_the_wildcard_is_the_empty_list_and_the_node_is_sent_once() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", CDS, &["*"]);
    let first = fixture.says_once(Primary);
    assert_eq!(first.type_url, TypeUrl::from(CDS).as_str());
    assert_eq!(parts(&first), (vec![], "", ""));
    assert_eq!(first.node.as_ref().map(|node| &*node.id), Some("relay"));
    let ack = fixture.told(Primary, &World::of(CDS, "1", &[("c1", "a")]));
    assert_eq!(parts(&ack), (vec![], "1", "1"));
    assert_eq!((ack.node, ack.error_detail), (None, None));
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "a")]));
}

/// Control planes answer it for each type; `*` is nothing to older versions of go-control-plane.
#[test]
fn r_up_05_the_wildcard_is_the_empty_list_for_types_asked_by_name_too() {
    for kind in [EDS, Kind::Route] {
        let mut fixture = Fixture::sotw();
        fixture.client("a", kind, &["*"]);
        assert_eq!(parts(&fixture.says_once(Primary)), (vec![], "", ""));
        let ack = fixture.told(Primary, &World::of(kind, "1", &[("e1", "a")]));
        assert_eq!(parts(&ack), (vec![], "1", "1"));
        assert_eq!(fixture.members(kind), set(&[&at(kind, "e1", "a")]));
    }
}

#[test]
fn r_sotw_12_a_request_lists_all_names_and_merges_with_the_ack() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", EDS, &["e1", "e2"]);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["e1", "e2"], "", ""));
    fixture.client("b", EDS, &["e3"]);
    let said = World::of(EDS, "1", &[("e1", "a"), ("e2", "a")]);
    fixture.sends(Primary, &said);
    fixture.pass(10);
    assert_eq!(
        parts(&fixture.says_once(Primary)),
        (vec!["e1", "e2", "e3"], "", "1"),
        "a new name, no version"
    );
    fixture.takes(Primary, &World::of(EDS, "1", &[("e3", "a")]));
    fixture.pass(100);
    fixture.client("c", EDS, &["e4"]);
    assert_eq!(
        parts(&fixture.says_once(Primary)),
        (vec!["e1", "e2", "e3", "e4"], "", "1"),
        "the newest nonce"
    );
    fixture.leave_for("b", 61_000);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["e1", "e2", "e4"], "1", "1"));
}

#[test]
fn r_sotw_18_the_first_response_is_the_whole_set_and_what_is_missing_later_is_gone() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["*"]);
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a"), ("c2", "a"), ("c4", "a")]));
    assert!(fixture.snapshot(CDS).completeness() == Completeness::Complete, "no silence is waited for");
    fixture.takes(Primary, &World::of(CDS, "2", &[("c1", "a"), ("c3", "a"), ("c4", "a")]));
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "a"), &at(CDS, "c3", "a"), &at(CDS, "c4", "a")]));
    // An empty set is whole too.
    let fixture = Fixture::sotw_asking("a", CDS, &["*"]).taking(&World::of(CDS, "1", &[]));
    assert!(fixture.snapshot(CDS).completeness() == Completeness::Complete);
}

/// go-control-plane's LinearCache sends only what changed on a stream that lives.
#[test]
fn o7_a_response_without_anything_that_was_there_removes_nothing_before_a_new_stream_confirms_it() {
    for kind in [CDS, Kind::ScopedRoute] {
        let mut fixture = Fixture::sotw_asking("a", kind, &["*"]);
        fixture.takes(Primary, &World::of(kind, "1", &[("c1", "a"), ("c2", "a")]));
        // A resource that is put there unchanged is sent, too.
        fixture.takes(Primary, &World::of(kind, "2", &[("c1", "a")]));
        assert_eq!(fixture.members(kind).len(), 2);
        fixture.takes(Primary, &World::of(kind, "2", &[("c1", "b")]));
        assert_eq!(fixture.members(kind), set(&[&at(kind, "c1", "b"), &at(kind, "c2", "a")]));
        fixture.pass(1_000);
        assert_eq!(fixture.renewed.len(), 1);
        fixture.says(Primary);
        fixture.takes(Primary, &World::of(kind, "2", &[("c1", "b"), ("c2", "a")]));
        assert_eq!(fixture.members(kind).len(), 2);
        // This time c2 is gone.
        fixture.takes(Primary, &World::of(kind, "3", &[("c1", "c")]));
        assert_eq!(fixture.members(kind).len(), 2);
        fixture.pass(2_000);
        fixture.says(Primary);
        fixture.takes(Primary, &World::of(kind, "3", &[("c1", "c")]));
        assert_eq!(fixture.members(kind), set(&[&at(kind, "c1", "c")]));
        // A control plane that lost everything is asked once more, too.
        fixture.takes(Primary, &World::of(kind, "4", &[]));
        assert_eq!(fixture.members(kind).len(), 1);
        fixture.pass(4_000);
        fixture.says(Primary);
        fixture.takes(Primary, &World::of(kind, "4", &[]));
        assert_eq!(fixture.members(kind), set(&[]));
    }
}

/// java-control-plane answers no list with a name that it does not have.
#[test]
fn o12_endpoints_of_a_cluster_that_is_gone_leave_the_list_within_a_second() {
    let mut fixture = Fixture::with(Settings {
        tuning: Tuning { prefetch_endpoints: false, ..Tuning::default() },
        ..Settings::default()
    });
    fixture.open_sotw(Primary);
    let clusters = |nonce: &str, names: &[&str]| {
        let world = World::of(CDS, nonce, &[]);
        names.iter().fold(world, |mut world, name| {
            // Field 2: of type EDS.
            let value = [field(1, name.as_bytes()), vec![0x10, 3]].concat();
            let any = [field(1, TypeUrl::from(CDS).as_str().as_bytes()), field(2, &value)].concat();
            world.0.resources.push(any.into());
            world
        })
    };
    fixture.client("clusters", CDS, &["*"]);
    fixture.client("a", EDS, &["e1", "e2", "e3"]);
    fixture.says(Primary);
    fixture.takes(Primary, &clusters("1", &["e1", "e2", "e3", "e4", "e5"]));
    fixture.takes(Primary, &World::of(EDS, "1", &[("e1", "a"), ("e2", "a"), ("e3", "a")]));
    // A client that reconnects finds what is still there.
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.pass(2_000);
    assert_eq!(fixture.says(Primary), []);
    // The cluster goes before its last client lets go of the endpoints, and after.
    fixture.takes(Primary, &clusters("2", &["e1", "e4", "e5"]));
    fixture.pass(1_000);
    assert_eq!(parts(&fixture.says_once(Primary)).0, ["e1", "e2"]);
    fixture.client("a", EDS, &["e1"]);
    fixture.pass(1_000);
    assert_eq!(parts(&fixture.says_once(Primary)).0, ["e1"]);
}

#[test]
fn r_relay_09_of_a_repeated_state_only_news_reach_the_cache() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["*"]);
    let names: Vec<String> = (0..1000).map(|n| format!("c{n}")).collect();
    let mut state: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "a")).collect();
    fixture.takes(Primary, &World::of(CDS, "1", &state));
    let before = fixture.mux.counters().operations.get();
    state[500].1 = "b";
    fixture.takes(Primary, &World::of(CDS, "2", &state));
    assert_eq!(fixture.mux.counters().operations.get(), before + 1);
    assert!(fixture.members(CDS).contains(&at(CDS, "c500", "b")));
}

#[test]
fn r_up_21_what_the_first_response_of_a_new_stream_lacks_is_gone_and_the_rest_is_unchanged() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", CDS, &["*"]);
    fixture.client("b", EDS, &["e1", "e2"]);
    fixture.says(Primary);
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a"), ("c2", "a")]));
    fixture.takes(Primary, &World::of(EDS, "2", &[("e1", "a"), ("e2", "a")]));
    let generation = fixture.snapshot(CDS).generation();
    fixture.close();
    fixture.pass(1000);
    fixture.open_sotw(Primary);
    let asked = fixture.says(Primary);
    assert_eq!(parts(&asked[0]), (vec![], "", ""), "a version would have the origin send nothing");
    assert_eq!(parts(&asked[1]), (vec!["e1", "e2"], "", ""));
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a"), ("c2", "a")]));
    assert_eq!(fixture.snapshot(CDS).generation(), generation, "nothing is news");
    fixture.takes(Primary, &World::of(EDS, "2", &[("e1", "b")]));
    fixture.pass(600_000);
    assert_eq!(fixture.seen(EDS, "e2"), hash(EDS, "e2", "a"), "endpoints are not removed by omission");
    fixture.ask_anew_sotw();
    fixture.takes(Primary, &World::of(CDS, "1", &[("c2", "a")]));
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c2", "a")]));
    fixture.pass(600_000);
    assert_eq!(fixture.seen(EDS, "e2"), hash(EDS, "e2", "a"));
    assert_eq!(fixture.renewed, []);
}

#[test]
fn r_sotw_19_of_other_types_nothing_is_gone_because_it_is_missing() {
    let mut fixture = Fixture::sotw_asking("a", EDS, &["e1", "e2", "e3"]);
    fixture.takes(Primary, &World::of(EDS, "1", &[("e1", "a"), ("e2", "a")]));
    fixture.takes(Primary, &World::of(EDS, "2", &[("e1", "b")]));
    fixture.takes(Primary, &World::of(EDS, "3", &[]));
    fixture.pass(600_000);
    assert_eq!(fixture.seen(EDS, "e1"), hash(EDS, "e1", "b"));
    assert_eq!(fixture.seen(EDS, "e2"), hash(EDS, "e2", "a"));
    assert_eq!(fixture.seen(EDS, "e3"), "unknown");
    assert_eq!(fixture.renewed, [], "nothing is proven by another stream");
    fixture.takes(Primary, &World::of(EDS, "4", &[]).error("e2", 5));
    assert_eq!(fixture.seen(EDS, "e2"), "absent", "the word of the origin");
}

#[test]
fn r_sotw_18_a_name_that_the_origin_had_read_and_does_not_send_is_absent_at_once() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", CDS, &["c1", "c8", "c9", "no"]);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["c1", "c8", "c9", "no"], "", ""));
    fixture.takes(Primary, &World::of(CDS, "1", &[("c8", "a"), ("c9", "a"), ("c1", "a")]));
    assert_eq!(
        (fixture.seen(CDS, "no"), fixture.seen(CDS, "c1")),
        ("absent".to_owned(), hash(CDS, "c1", "a"))
    );
    // A response that was on its way says nothing of a name that is asked for now.
    fixture.pass(100);
    fixture.client("b", CDS, &["c2", "none"]);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["c1", "c2", "c8", "c9", "no", "none"], "", "1"));
    fixture.takes(Primary, &World::of(CDS, "2", &[("c8", "a"), ("c9", "a"), ("c1", "b")]));
    assert_eq!(fixture.seen(CDS, "c2"), "unknown");
    // The next one follows an ACK with the name.
    fixture.takes(Primary, &World::of(CDS, "3", &[("c8", "a"), ("c9", "a"), ("c1", "b"), ("c2", "a")]));
    assert_eq!(fixture.seen(CDS, "c2"), hash(CDS, "c2", "a"));
    assert_eq!(fixture.seen(CDS, "none"), "absent");
    // Later it is there, and then gone again.
    fixture.takes(Primary, &World::of(CDS, "4", &[("c8", "a"), ("c9", "a"), ("c1", "b"), ("none", "a")]));
    assert_eq!(
        (fixture.seen(CDS, "none"), fixture.seen(CDS, "c2")),
        (hash(CDS, "none", "a"), "absent".to_owned())
    );
    fixture.takes(Primary, &World::of(CDS, "5", &[("c8", "a"), ("c9", "a"), ("c1", "b")]));
    assert_eq!(fixture.seen(CDS, "none"), "absent");
}

#[test]
fn r_sotw_18_a_name_that_is_asked_for_with_an_ack_is_reflected_in_the_next_response() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["c1"]);
    fixture.client("b", CDS, &["no"]);
    let said = World::of(CDS, "1", &[("c1", "a")]);
    fixture.pass(10);
    fixture.sends(Primary, &said);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["c1", "no"], "", "1"));
    fixture.takes(Primary, &World::of(CDS, "2", &[("c1", "b")]));
    assert_eq!(fixture.seen(CDS, "no"), "absent");
}

#[test]
fn r_relay_03_wildcard_and_names_of_a_type_live_on_two_streams() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", CDS, &["*"]);
    fixture.client("b", CDS, &["x"]);
    assert!(fixture.mux.wants_secondary());
    fixture.open_sotw(Secondary);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec![], "", ""));
    assert_eq!(parts(&fixture.says_once(Secondary)), (vec!["x"], "", ""));
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a")]));
    fixture.takes(Secondary, &World::of(CDS, "1", &[("x", "a")]));
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "a")]));
    assert_eq!(fixture.seen(CDS, "x"), hash(CDS, "x", "a"));
    fixture.takes(Primary, &World::of(CDS, "2", &[("c2", "a")]));
    assert_eq!(fixture.seen(CDS, "x"), hash(CDS, "x", "a"), "a state of members says nothing of names");
}

#[test]
fn r_up_13_a_fault_is_refused_with_the_last_good_version_and_changes_nothing() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["*"]).taking(&World::of(CDS, "1", &[("c1", "a")]));
    let route = World::of(Kind::Route, "2", &[("r", "a")]);
    let mut of_another_type = World::of(CDS, "2", &[("c1", "b")]);
    of_another_type.0.resources.extend(route.0.resources);
    let mut malformed = World::of(CDS, "2", &[]);
    malformed.0.resources.push(Bytes::from_static(b"\x0b"));
    let faults = [
        (World::of(CDS, "2", &[("c1", "b"), ("c1", "c")]), "twice"),
        (of_another_type, "in a response of"),
        (malformed, "could not be decoded"),
        (World::of(CDS, "2", &[("", "a")]), "has no name"),
        (World::of(CDS, "2", &[("c1", "b")]).error("", 5), "has no name"),
    ];
    for (fault, expected) in faults {
        let nack = fixture.told(Primary, &fault);
        assert_eq!(parts(&nack), (vec![], "1", "2"), "{expected}");
        let text = nack.error_detail.expect("a NACK").message;
        assert!(text.contains(expected), "{text}");
        assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "a")]));
        // The NACK of a second fault in a row would wait.
        fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a")]));
    }
    fixture.takes(Primary, &World::of(CDS, "3", &[("c1", "b")]));
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "b")]));
    assert!(fixture.mux.on_message(Primary, Bytes::from_static(b"\x0b"), fixture.now).is_err());
}

#[test]
fn r_up_11_a_type_that_nobody_asked_for_is_dropped_without_an_answer() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["*"]);
    let said = World::of(EDS, "1", &[("e1", "a")]);
    fixture.sends(Primary, &said);
    assert_eq!(fixture.says(Primary), []);
    assert_eq!(fixture.mux.counters().unrequested_responses.get(), 1);
}

#[test]
fn r_sotw_18_heartbeats_do_not_show_that_the_origin_had_read_a_name() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["c1"]);
    let state = |nonce: &str, text: &str| World::of(CDS, nonce, &[]).timed("c1", text, 10);
    fixture.takes(Primary, &state("1", "a"));
    fixture.pass(100);
    fixture.client("b", CDS, &["c2"]);
    assert_eq!(parts(&fixture.says_once(Primary)).0, ["c1", "c2"]);
    // They were on their way, and so was the state after them.
    for beat in ["2", "3"] {
        fixture.takes(Primary, &World::of(CDS, beat, &[]).version("1").wrap("c1", &[ttl(10)]));
    }
    fixture.takes(Primary, &state("4", "b"));
    assert_eq!(fixture.seen(CDS, "c2"), "unknown");
    fixture.takes(Primary, &state("5", "b"));
    assert_eq!(fixture.seen(CDS, "c2"), "absent");
}

/// The list that asks for it once more says nothing new, so the stream does not bring it.
#[test]
fn r_ttl_08_a_heartbeat_renews_what_came_by_an_inquiry() {
    let mut fixture = Fixture::sotw();
    fixture.answers_inquiries = true;
    fixture.client("a", CDS, &["c1"]);
    fixture.says(Primary);
    let state = |nonce: &str| World::of(CDS, nonce, &[]).timed("c1", "a", 10);
    fixture.takes(Primary, &state("1"));
    // Heartbeats are held up.
    fixture.pass(11_000);
    assert_eq!(fixture.seen(CDS, "c1"), "absent");
    fixture.says(Primary);
    fixture.pass(3_000);
    assert_eq!(fixture.inquiries.len(), 1);
    fixture.mux.on_inquiry_message(state("1").0.encode_to_vec().into(), fixture.now);
    for beat in ["2", "3", "4"] {
        fixture.pass(8000);
        fixture.takes(Primary, &World::of(CDS, beat, &[]).version("1").wrap("c1", &[ttl(10)]));
        assert_eq!(fixture.seen(CDS, "c1"), hash(CDS, "c1", "a"));
    }
    assert_eq!(fixture.renewed, []);
}

#[test]
fn r_ttl_08_a_heartbeat_renews_and_is_no_state_of_the_world() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["*"]);
    let with_ttl = |nonce: &str| World::of(CDS, nonce, &[("c1", "a"), ("c2", "a")]).timed("c3", "a", 10);
    fixture.takes(Primary, &with_ttl("1"));
    let all = fixture.members(CDS);
    assert_eq!(all.len(), 3);
    for beat in ["2", "3", "4"] {
        fixture.pass(8000);
        fixture.takes(Primary, &World::of(CDS, beat, &[]).version("1").wrap("c3", &[ttl(10)]));
        assert_eq!(
            fixture.members(CDS),
            all,
            "at the version that was accepted, only what it names is renewed"
        );
    }
    // The whole state renews it too, and is no news.
    fixture.pass(8000);
    let generation = fixture.snapshot(CDS).generation();
    fixture.takes(Primary, &with_ttl("5"));
    fixture.pass(8000);
    assert_eq!(fixture.members(CDS), all);
    assert_eq!(fixture.mux.counters().unsolicited.get(), 0);
    assert!(fixture.snapshot(CDS).generation() >= generation);
    fixture.pass(3000);
    assert_eq!(fixture.members(CDS).len(), 2, "the TTL ended");
    // The resource that ended comes back with the next state, though that is the same.
    fixture.takes(Primary, &with_ttl("6"));
    assert_eq!(fixture.members(CDS), all);
    // A resource without a TTL stays.
    let world = World::of(CDS, "7", &[("c1", "a"), ("c2", "a"), ("c3", "a")]);
    fixture.takes(Primary, &world);
    fixture.pass(60_000);
    assert_eq!(fixture.members(CDS), all);
    assert_eq!(fixture.renewed, []);
}

#[test]
fn r_err_02_a_resource_in_error_is_kept_though_the_state_lacks_it() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", CDS, &["*"]);
    fixture.client("b", Kind::Listener, &["l1", "l2"]);
    fixture.says(Primary);
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a"), ("c3", "a"), ("c2", "a")]));
    fixture.takes(Primary, &World::of(Kind::Listener, "1", &[("l1", "a")]).error("l2", 14));
    assert_eq!(fixture.seen(Kind::Listener, "l2"), "failed", "unavailable, not absent");
    fixture.takes(Primary, &World::of(CDS, "2", &[("c1", "a"), ("c3", "a")]).error("c2", 14));
    assert_eq!(fixture.members(CDS).len(), 3);
    fixture.ask_anew_sotw();
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a"), ("c3", "a")]).error("c2", 14));
    assert_eq!(fixture.members(CDS).len(), 3, "on a new stream too");
    fixture.takes(Primary, &World::of(CDS, "2", &[("c1", "a"), ("c3", "a")]));
    assert_eq!(fixture.members(CDS).len(), 2);
}

#[test]
fn r_dp_07_wrapped_variants_keep_their_constraints() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["*"]);
    let world = World::of(CDS, "1", &[("c1", "a")]);
    let body = world.body("v", "a");
    let wrapper = |constraints: &[u8]| {
        let named = [field(1, b"v"), field(2, constraints)].concat();
        let wrapper = [field(8, &named), field(2, &body)].concat();
        Bytes::from([field(1, WRAPPER.as_bytes()), field(2, &wrapper)].concat())
    };
    // DynamicParameterConstraints{constraint: {key: "env", value: "prod"}}, and NOT of it.
    let prod = field(1, &[field(1, b"env"), field(2, b"prod")].concat());
    let others = field(4, &prod);
    let mut both = world;
    both.0.resources.extend([wrapper(&prod), wrapper(&others)]);
    fixture.takes(Primary, &both);
    assert_eq!(fixture.members(CDS).len(), 2, "a client without parameters sees one of the variants");
    both.0.resources.truncate(2);
    "2".clone_into(&mut both.0.nonce);
    fixture.takes(Primary, &both);
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "a")]), "its variant is gone");
}

#[test]
fn r_ttl_09_a_name_whose_ttl_ended_leaves_the_list_and_comes_back() {
    let mut fixture = Fixture::sotw_asking("a", EDS, &["e1", "e2"]);
    fixture.takes(Primary, &World::of(EDS, "1", &[("e2", "a")]).timed("e1", "a", 5));
    fixture.pass(5000);
    assert_eq!(fixture.seen(EDS, "e1"), "absent");
    let asked = fixture.says(Primary);
    let lists: Vec<_> = asked.iter().map(parts).collect();
    assert_eq!(lists, [(vec!["e2"], "1", "1"), (vec!["e1", "e2"], "", "1")]);
    fixture.takes(Primary, &World::of(EDS, "2", &[("e1", "a"), ("e2", "a")]));
    assert_eq!(fixture.seen(EDS, "e1"), hash(EDS, "e1", "a"));
}

#[test]
fn r_up_19_a_wildcard_that_nobody_wants_stays_and_costs_no_request() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", CDS, &["*"]);
    fixture.client("b", EDS, &["e1"]);
    fixture.says(Primary);
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a")]));
    fixture.leave_for("a", 70_000);
    assert_eq!(fixture.says(Primary), []);
    fixture.takes(Primary, &World::of(CDS, "2", &[("c1", "b")]));
    fixture.client("a", CDS, &["*"]);
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "b")]), "it was kept up to date");
}

#[test]
fn o1_names_that_are_let_go_leave_an_empty_list_and_come_back() {
    let mut fixture = Fixture::sotw_asking("a", EDS, &["e1"]).taking(&World::of(EDS, "1", &[("e1", "a")]));
    fixture.leave_for("a", 61_000);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec![], "1", "1"));
    // An origin may take that for the wildcard.
    fixture.takes(Primary, &World::of(EDS, "2", &[("e1", "a"), ("e2", "a")]));
    assert_eq!(fixture.seen(EDS, "e2"), "unknown");
    fixture.client("b", EDS, &["e2"]);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["e2"], "", "2"));
    fixture.takes(Primary, &World::of(EDS, "3", &[("e2", "a")]));
    assert_eq!(fixture.seen(EDS, "e2"), hash(EDS, "e2", "a"));
}

#[test]
fn r_up_20_a_long_list_is_repeated_less_often() {
    let mut fixture = Fixture::sotw();
    let names: Vec<String> = (0..20_000).map(|n| format!("a-name-of-thirty-characters-{n:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fixture.client("a", EDS, &names);
    let (mut bytes, mut list) = (0, 0);
    for _ in 0..1000 {
        fixture.pass(10);
        fixture.look();
        while fixture.mux.has_request(Primary)
            && let Some(message) = fixture.mux.next_message(Primary, fixture.now)
        {
            bytes += message.len();
            list = message.len();
        }
    }
    assert!(list > 20_000 * 30, "all of them: {list} bytes");
    assert!(bytes < 10 * list, "{bytes} bytes for a list of {list}");
}

#[test]
fn r_up_18_names_with_parameters_are_asked_for_plainly() {
    let mut fixture = Fixture::sotw();
    fixture.client_with("a", EDS, "env=prod", &["e1"]);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["e1"], "", ""));
    fixture.takes(Primary, &World::of(EDS, "1", &[("e1", "a")]));
    fixture.pass(60_000);
    assert_eq!(fixture.renewed, []);
}

#[test]
fn r_up_04_an_origin_that_changes_its_protocol_is_asked_anew() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.request(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.reconnect_sotw();
    assert_eq!(parts(&fixture.says_once(Primary)), (vec![], "", ""));
    fixture.takes(Primary, &World::of(CDS, "1", &[("c1", "a")]));
    assert_eq!(fixture.members(CDS), set(&[&at(CDS, "c1", "a")]));
    fixture.close();
    fixture.mux.connected(&"http://origin".into());
    fixture.mux.set_protocol(Protocol::Delta);
    fixture.mux.opened(Primary, fixture.now + Duration::from_secs(1));
    let asked =
        DeltaDiscoveryRequest::decode(fixture.mux.next_message(Primary, fixture.now).expect("a request"));
    assert_eq!(asked.expect("a delta request").type_url, TypeUrl::from(CDS).as_str());
}

#[test]
fn r_sotw_08_an_origin_that_answers_each_nack_is_not_nacked_without_pause() {
    let mut fixture = Fixture::sotw_asking("a", CDS, &["*"]).taking(&World::of(CDS, "1", &[("a", "x")]));
    let mut nonce = 1;
    let mut nacks = 0;
    let mut answer = |fixture: &mut Fixture| {
        nonce += 1;
        let twice = World::of(CDS, &nonce.to_string(), &[("b", "x"), ("b", "y")]);
        fixture.sends(Primary, &twice);
    };
    answer(&mut fixture);
    for _ in 0..1_000 {
        fixture.mux.on_deadline(fixture.now);
        for request in fixture.says(Primary) {
            assert_eq!(request.version_info, "1");
            nacks += u32::from(request.error_detail.is_some());
            answer(&mut fixture);
        }
    }
    // Ten seconds: at 0, 1, 3 and 7 s.
    assert_eq!(nacks, 4);
    // A good response is answered at once, and the next fault too.
    fixture.takes(Primary, &World::of(CDS, "good", &[("a", "z")]));
    let twice = World::of(CDS, "bad", &[("b", "x"), ("b", "y")]);
    assert!(fixture.told(Primary, &twice).error_detail.is_some());
}

#[test]
fn r_up_19_names_in_a_request_that_a_response_crossed_are_asked_for_again() {
    let mut fixture = Fixture::sotw_asking("a", EDS, &["e1"]).taking(&World::of(EDS, "1", &[("e1", "a")]));
    fixture.client("b", EDS, &["e2"]);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec!["e1", "e2"], "", "1"));
    // The origin made this response before it read that request, and drops the request for its nonce.
    let ack = fixture.told(Primary, &World::of(EDS, "2", &[("e1", "b")]));
    assert_eq!(parts(&ack), (vec!["e1", "e2"], "", "2"), "no version, or e2 seems to be there already");
    let ack = fixture.told(Primary, &World::of(EDS, "3", &[("e1", "b"), ("e2", "a")]));
    assert_eq!(parts(&ack), (vec!["e1", "e2"], "3", "3"));
}

#[test]
fn r_sotw_04_names_do_not_depend_on_a_nack_that_a_newer_response_has_overtaken() {
    let mut fixture = Fixture::sotw_asking("a", EDS, &["e1"]).taking(&World::of(EDS, "1", &[("e1", "a")]));
    fixture.client("b", EDS, &["e2"]);
    for nonce in ["2", "3"] {
        let twice = World::of(EDS, nonce, &[("e1", "x"), ("e1", "y")]);
        fixture.sends(Primary, &twice);
    }
    let said = fixture.says(Primary);
    let refuses = |request: &DiscoveryRequest| request.error_detail.is_some();
    assert_eq!(said.iter().map(refuses).collect::<Vec<_>>(), [true, false]);
    assert_eq!(parts(&said[0]), (vec!["e1"], "1", "2"), "the response that is refused");
    assert_eq!(parts(&said[1]), (vec!["e1", "e2"], "", "3"), "an origin may drop the NACK as stale");
    fixture.pass(1_000);
    let nack = fixture.says_once(Primary);
    assert!(refuses(&nack));
    assert_eq!(nack.response_nonce, "3");
}

/// Home-made origins send the next version once they have the ACK, or compare versions in requests.
#[test]
fn responses_without_a_nonce_are_answered_with_their_version() {
    let mut fixture = Fixture::sotw();
    fixture.client("a", CDS, &["*"]);
    assert_eq!(parts(&fixture.says_once(Primary)), (vec![], "", ""));
    for version in ["1", "2", "3"] {
        let world = World::of(CDS, "", &[("a", version)]).version(version);
        let ack = fixture.told(Primary, &world);
        assert_eq!((parts(&ack), &ack.error_detail), ((vec![], version, ""), &None));
        assert_eq!(fixture.says(Primary), [], "once");
        fixture.sends(Primary, &world);
        assert_eq!(fixture.says(Primary), [], "an origin that answers each request is not asked for ever");
    }
    for body in ["x", "y"] {
        let world = World::of(CDS, "", &[("a", body)]).version("3");
        assert_eq!(parts(&fixture.told(Primary, &world)), (vec![], "3", ""), "its version never changes");
    }
    let bad = World::of(CDS, "", &[("a", "4"), ("a", "5")]).version("4");
    let nack = fixture.told(Primary, &bad);
    assert_eq!((parts(&nack), nack.error_detail.is_some()), ((vec![], "3", ""), true));
}
