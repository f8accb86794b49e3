//! The cost of a change does not grow with the number of clients by more than their own bookkeeping: bodies are
//! encoded once and shared. Bytes are counted by the allocator of this test program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan::cache::{Cache, Change, Completeness, Limits, Op, Protocol, Resend, View, Writer};
use deltafan::descriptors::Descriptors;
use deltafan::downstream::ResponseCache;
use deltafan::identity::{Peer, Source};
use deltafan::json::JsonResponse;
use deltafan::proto;
use deltafan::resource::{Kind, Resource};
use deltafan::subscription::{
    NextStep, Outgoing, Poll, PollHistory, PollVerdict, Session, SessionConfig, Upstream,
};
use deltafan_test_support::wire;
use stats_alloc::Region;

use crate::{ALLOCATOR, ALONE};

const MIB: usize = 1 << 20;
/// Bytes that a client may cost beside the bodies.
const PER_CLIENT: usize = 1 << 10;

struct Fleet {
    cache: Arc<Cache>,
    writer: Writer,
    sessions: Vec<Session>,
    protocol: Protocol,
    short: &'static str,
    now: Instant,
}

impl Fleet {
    fn new(protocol: Protocol, short: &'static str) -> Self {
        let (cache, writer) = Cache::new(Limits::default());
        Self { cache, writer, sessions: Vec::new(), protocol, short, now: Instant::now() }
    }

    fn resource(&self, name: &str, text: &str, size: usize) -> Arc<Resource> {
        wire::resource(&wire::type_url(self.short), name, text, size)
    }

    fn set(&mut self, view: View, resources: Vec<Arc<Resource>>) {
        let set = |resource| Op::Set { view, resource, resend: Resend::Answer, lease: None };
        let ops = resources.into_iter().map(set).collect();
        let change = Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() };
        self.writer.apply(&wire::type_url(self.short), change, self.now).unwrap();
    }

    fn join(&mut self, names: &[&str]) {
        let rules = Arc::new(SessionConfig::default());
        let mut session = Session::new(Arc::clone(&self.cache), rules, self.protocol, None, self.now);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let type_url = wire::type_url(self.short).as_str().to_owned();
        let node = Some(proto::Node::default());
        match self.protocol {
            Protocol::Sotw => {
                let resource_names = names;
                let request =
                    proto::DiscoveryRequest { node, type_url, resource_names, ..Default::default() };
                session.on_sotw_request(request, self.now).unwrap();
            }
            Protocol::Delta => {
                let resource_names_subscribe = names;
                let request = proto::DeltaDiscoveryRequest {
                    node,
                    type_url,
                    resource_names_subscribe,
                    ..Default::default()
                };
                session.on_delta_request(request, Default::default(), self.now).unwrap();
            }
        }
        self.sessions.push(session);
    }

    /// Next response of each client; exactly one each.
    fn told(&mut self) -> Vec<Outgoing> {
        let now = self.now;
        let mut told = Vec::with_capacity(self.sessions.len());
        for session in &mut self.sessions {
            let NextStep::Send(outgoing) = session.next(now, Upstream::Answering) else {
                panic!("it has something to say")
            };
            session.on_flushed(now);
            told.push(outgoing);
        }
        // Nobody answers here: the gates open by themselves.
        self.now += SessionConfig::default().ack_timeout;
        told
    }

    /// Bytes allocated and frames encoded for a change that every client is told of.
    fn cost(&mut self, view: View, changed: Arc<Resource>) -> (usize, u64, Vec<Outgoing>) {
        let encodes = self.cache.encoder().encodes();
        let region = Region::new(ALLOCATOR);
        self.set(view, vec![changed]);
        let told = self.told();
        let allocated = region.change().bytes_allocated;
        (allocated, self.cache.encoder().encodes() - encodes, told)
    }
}

fn shared(told: &[Outgoing]) -> bool {
    let pointers =
        |outgoing: &Outgoing| outgoing.frame.chunks().iter().map(|c| c.as_ptr()).collect::<Vec<_>>();
    told.iter().all(|outgoing| pointers(outgoing) == pointers(&told[0]))
}

/// A fleet of clients with one subscription is told of a new version of one large resource.
fn one_large_resource(protocol: Protocol, short: &'static str, view: View, names: &[&str]) {
    let _alone = ALONE.lock();
    for clients in [10, 500] {
        let mut fleet = Fleet::new(protocol, short);
        let (first, second) = (fleet.resource("big", "1", MIB), fleet.resource("big", "2", MIB));
        fleet.set(view, vec![first]);
        (0..clients).for_each(|_| fleet.join(names));
        fleet.told();
        let (allocated, encodes, told) = fleet.cost(view, second);
        assert_eq!(encodes, 1, "{clients} clients");
        assert!(allocated < clients * PER_CLIENT + MIB, "{allocated} bytes for {clients} clients");
        assert!(shared(&told));
        let read = wire::read(protocol, &told[0].frame);
        assert_eq!(read.resources, [("big".to_owned(), "2".to_owned())]);
        assert_eq!(
            (read.type_url, read.version.is_empty()),
            (wire::type_url(short), protocol == Protocol::Delta)
        );
    }
}

#[test]
fn a_change_is_encoded_once_for_all_delta_wildcards() {
    one_large_resource(Protocol::Delta, "cds", View::Wildcard, &["*"]);
}

#[test]
fn a_change_is_encoded_once_for_all_delta_clients_of_the_same_names() {
    one_large_resource(Protocol::Delta, "eds", View::Named, &["big"]);
}

#[test]
fn a_change_is_encoded_once_for_all_state_of_the_world_clients_of_the_same_names() {
    one_large_resource(Protocol::Sotw, "eds", View::Named, &["big"]);
}

#[test]
fn clients_of_different_names_share_the_body_that_they_have_in_common() {
    let _alone = ALONE.lock();
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut fleet = Fleet::new(protocol, "eds");
        let (first, second) = (fleet.resource("big", "1", MIB), fleet.resource("big", "2", MIB));
        fleet.set(View::Named, vec![first]);
        (0..100).for_each(|number| fleet.join(&["big", &format!("own{number}")]));
        fleet.told();
        let (allocated, _, told) = fleet.cost(View::Named, second);
        // Each frame has a head of its own, of a few KiB, and the body behind it.
        assert!(allocated < 100 * 12 * PER_CLIENT, "{allocated} bytes for {} frames", told.len());
    }
}

#[test]
fn full_states_share_the_segments_that_did_not_change() {
    const RESOURCES: usize = 1_000;
    const SIZE: usize = 10 << 10;
    const CLIENTS: usize = 500;
    let _alone = ALONE.lock();
    let mut fleet = Fleet::new(Protocol::Sotw, "cds");
    let all = (0..RESOURCES).map(|number| fleet.resource(&format!("c{number:04}"), "1", SIZE)).collect();
    fleet.set(View::Wildcard, all);
    (0..CLIENTS).for_each(|_| fleet.join(&[]));
    let before = fleet.told();
    let changed = fleet.resource("c0500", "2", SIZE);
    let (allocated, encodes, after) = fleet.cost(View::Wildcard, changed);

    assert_eq!(encodes, 1);
    assert!(allocated < RESOURCES * SIZE / 5 + CLIENTS * PER_CLIENT, "{allocated} bytes");
    assert!(shared(&after));
    let told = wire::read(Protocol::Sotw, &after[0].frame);
    assert_eq!(told.resources.len(), RESOURCES);
    assert!(told.resources.contains(&("c0500".to_owned(), "2".to_owned())));
    let kept: Vec<&Bytes> = before[0].frame.chunks().iter().collect();
    let is_kept = |chunk: &&Bytes| kept.iter().any(|old| old.as_ptr_range().contains(&chunk.as_ptr()));
    let reused: usize = after[0].frame.chunks().iter().filter(is_kept).map(Bytes::len).sum();
    assert!(reused > RESOURCES * SIZE * 4 / 5, "{reused} bytes are those of the state before");
}

/// Long polls, which are answered with the whole in JSON.
struct Pollers {
    fleet: Fleet,
    cache: Arc<ResponseCache>,
    memory: PollHistory,
    runtime: tokio::runtime::Runtime,
    polls: Vec<Poll>,
}

impl Pollers {
    fn new() -> Self {
        Self {
            fleet: Fleet::new(Protocol::Sotw, "rds"),
            cache: ResponseCache::new(Descriptors::default(), 256 << 20, 256 << 20),
            memory: PollHistory::default(),
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
            polls: Vec::new(),
        }
    }

    /// Routes of which the first text is a version of its own, and the second is what takes the room.
    fn set(&mut self, names: &[&str], version: &str, size: usize) {
        let type_url = wire::type_url("rds");
        let resource = |name: &&str| {
            let mut route = bytes::BytesMut::new();
            wire::put(&mut route, 1, name.as_bytes());
            wire::put(&mut route, 3, version.as_bytes());
            wire::put(&mut route, 5, &vec![b'x'; size]);
            wire::envelope(&type_url, name, version, &route)
        };
        self.fleet.set(View::Named, names.iter().map(resource).collect());
    }

    fn join(&mut self, names: &[&str], version: &str) {
        let request = proto::DiscoveryRequest {
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            version_info: version.to_owned(),
            ..Default::default()
        };
        let (rules, now) = (Arc::new(SessionConfig::default()), self.fleet.now);
        let (cache, hold) = (&self.fleet.cache, Duration::from_secs(60));
        let poll = Poll::new(
            cache,
            &rules,
            &self.memory,
            Kind::Route,
            request,
            (&Peer::unproven(Source::Unix), None),
            hold,
            now,
        );
        self.polls.push(poll.unwrap());
    }

    fn answers(&self) -> Vec<JsonResponse> {
        let answer = |poll: &Poll| {
            let verdict = poll.next(self.fleet.now, Upstream::Answering);
            let PollVerdict::Answer(version) = verdict else { panic!("{verdict:?}") };
            let asked = poll.asked();
            let answer = self.cache.response(poll.type_url(), version, &asked, || poll.found());
            self.runtime.block_on(answer).unwrap()
        };
        self.polls.iter().map(answer).collect()
    }

    fn written(&self) -> (u64, u64) {
        (self.cache.writer().resources_written(), self.cache.writer().responses_written())
    }
}

fn text(answer: &JsonResponse) -> serde_json::Value {
    serde_json::from_slice(&answer.chunks().concat()).unwrap()
}

#[test]
fn a_change_is_written_as_json_once_for_all_polls_that_it_wakes() {
    let _alone = ALONE.lock();
    for clients in [10, 2000] {
        let mut pollers = Pollers::new();
        pollers.set(&["big"], "1", MIB);
        pollers.join(&["big"], "");
        let held = pollers.answers()[0].version.to_string();
        pollers.polls.clear();
        (0..clients).for_each(|_| pollers.join(&["big"], &held));
        let before = pollers.written();
        let region = Region::new(ALLOCATOR);
        pollers.set(&["big"], "2", MIB);
        let answers = pollers.answers();
        // The resource as it came, decoded to be checked and to be written, as JSON, and room that was not needed.
        let allocated = region.change().bytes_allocated;
        assert!(allocated < clients * PER_CLIENT + 20 * MIB, "{allocated} bytes for {clients} polls");
        let after = pollers.written();
        assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{clients} polls");
        let first: Vec<_> = answers[0].chunks().iter().map(|chunk| chunk.as_ptr()).collect();
        assert!(
            answers.iter().all(|answer| answer.chunks().iter().map(|c| c.as_ptr()).eq(first.iter().copied()))
        );
        assert!(answers[0].chunks().iter().all(|chunk| chunk.len() >= 256), "a tiny chunk");
        let json = text(&answers[0]);
        assert_eq!(json["versionInfo"], answers[0].version.to_string());
        assert_eq!(json["resources"][0]["internalOnlyHeaders"], serde_json::json!(["2"]));
    }
}

#[test]
fn polls_for_different_names_share_the_json_that_they_have_in_common() {
    let _alone = ALONE.lock();
    let mut pollers = Pollers::new();
    let own: Vec<String> = (0..100).map(|number| format!("own{number}")).collect();
    pollers.set(&own.iter().map(String::as_str).collect::<Vec<_>>(), "1", 10);
    pollers.set(&["big"], "1", MIB);
    own.iter().for_each(|own| pollers.join(&["big", own], ""));
    pollers.answers();
    let before = pollers.written();
    let region = Region::new(ALLOCATOR);
    pollers.set(&["big"], "2", MIB);
    let answers = pollers.answers();
    let allocated = region.change().bytes_allocated;
    let after = pollers.written();
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 100));
    assert!(allocated < 100 * 24 * PER_CLIENT + 20 * MIB, "{allocated} bytes for 100 answers");
    assert_eq!(text(&answers[7])["resources"].as_array().unwrap().len(), 2);
}

#[test]
fn a_small_budget_costs_time_and_nothing_else() {
    let _alone = ALONE.lock();
    let mut pollers =
        Pollers { cache: ResponseCache::new(Descriptors::default(), 1, 256 << 20), ..Pollers::new() };
    pollers.set(&["a", "b"], "1", 40_000);
    (0..3).for_each(|_| pollers.join(&["a", "b"], ""));
    let answers = pollers.answers();
    assert!(answers.iter().all(|answer| text(answer) == text(&answers[0])));
    assert_eq!(text(&answers[0])["resources"].as_array().unwrap().len(), 2);
}
