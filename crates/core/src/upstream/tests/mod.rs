//! Unit tests of the pure core, by rule.

mod doubts;
mod errors;
mod inquiries;
mod linger;
mod locators;
mod prefetch;
mod questions;
mod refresh;
mod refusals;
mod reports;
mod requests;
mod responses;
mod servers;
mod settle;
mod silence;
mod sotw;
mod streams;
mod transfers;
mod ttl;
mod xdstp;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::{Mux, Settings, StreamId, Tuning};
use crate::cache::{
    Budget, Cache, Limits, Membership, Named, Protocol, Snapshot, StreamProfile, Subscription, TtlSupport,
    TypeCache, VisibleState, WakeHandle,
};
use crate::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, ResourceError, ResourceName, Status,
};
use crate::resource::wire::field;
use crate::resource::{Kind, Name, TypeUrl, wire};

pub(super) use StreamId::{Primary, Secondary};

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;
const DELTA: StreamProfile =
    StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };

fn any(type_url: &TypeUrl, body: &str) -> Vec<u8> {
    [field(1, type_url.as_str().as_bytes()), field(2, body.as_bytes())].concat()
}

/// A response of the origin.
#[derive(Clone, Debug)]
struct Answer(DeltaDiscoveryResponse, TypeUrl);

impl Answer {
    fn of(kind: Kind, nonce: &str) -> Self {
        let type_url = TypeUrl::from(kind);
        let response = DeltaDiscoveryResponse {
            type_url: type_url.as_str().to_owned(),
            nonce: nonce.to_owned(),
            ..Default::default()
        };
        Self(response, type_url)
    }

    fn set(self, name: &str, version: &str) -> Self {
        let body = format!("{name}@{version}");
        self.set_body(name, version, &body)
    }

    fn set_body(self, name: &str, version: &str, body: &str) -> Self {
        let any = any(&self.1, body);
        self.raw([field(3, name.as_bytes()), field(1, version.as_bytes()), field(2, &any)].concat())
    }

    fn raw(mut self, resource: Vec<u8>) -> Self {
        self.0.resources.push(resource.into());
        self
    }

    fn remove(mut self, name: &str) -> Self {
        self.0.removed_resources.push(name.to_owned());
        self
    }

    /// The error of a variant.
    fn error(mut self, name: &str, constraints: &[u8], code: i32) -> Self {
        let dynamic_parameter_constraints = constraints.to_vec().into();
        self.0.resource_errors.push(ResourceError {
            resource_name: Some(ResourceName { name: name.to_owned(), dynamic_parameter_constraints }),
            error_detail: Some(Status { code, message: format!("{name}?") }),
        });
        self
    }

    fn fail(self, name: &str, code: i32) -> Self {
        self.error(name, b"", code)
    }

    fn bytes(&self) -> Bytes {
        self.0.encode_to_vec().into()
    }
}

/// A relay, its clients and a clock.
struct Fixture {
    cache: Arc<Cache>,
    mux: Mux,
    now: Instant,
    clients: BTreeMap<&'static str, Membership>,
    /// Streams that were opened anew, with the time.
    renewed: Vec<(Instant, StreamId)>,
    /// Inquiries, with the time.
    inquiries: Vec<(Instant, Protocol, Bytes)>,
    answers_inquiries: bool,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        Self::with_limits(settings, Limits::default())
    }

    fn with_limits(settings: Settings, limits: Limits) -> Self {
        Self::within(settings, limits, &Budget::new(limits.encoded_bytes))
    }

    /// A relay, or one of its node groups, that shares a budget with others.
    fn within(mut settings: Settings, limits: Limits, budget: &Budget) -> Self {
        settings.node = Node { id: "relay".to_owned(), ..Node::default() };
        let (cache, writer) = Cache::guarded(limits, budget, None);
        let mux = Mux::new(writer, settings);
        Self {
            cache,
            mux,
            now: Instant::now(),
            clients: BTreeMap::new(),
            renewed: Vec::new(),
            inquiries: Vec::new(),
            answers_inquiries: false,
        }
    }

    fn connected() -> Self {
        Self::connected_with(Settings::default())
    }

    fn connected_with(settings: Settings) -> Self {
        let mut fixture = Self::with(settings);
        fixture.open(Primary);
        fixture
    }

    fn lingering(linger: Duration) -> Self {
        Self::connected_with(Settings { linger, ..Settings::default() })
    }

    /// A connected relay that has asked for what its one client wants.
    fn asking(who: &'static str, kind: Kind, names: &[&str]) -> Self {
        let mut fixture = Self::connected();
        fixture.client(who, kind, names);
        fixture.requests(Primary);
        fixture
    }

    fn heard(mut self, answer: &Answer) -> Self {
        self.hear(Primary, answer);
        self
    }

    fn answering_inquiries(mut self) -> Self {
        self.answers_inquiries = true;
        self
    }

    /// A client takes, or changes, its subscription; a leading `*` stands for the wildcard.
    fn client(&mut self, who: &'static str, kind: impl Into<TypeUrl>, names: &[&str]) {
        let of = self.cache.of(&kind.into()).expect("room for a type");
        self.join(who, &of, names, DELTA);
    }

    fn join(&mut self, who: &'static str, of: &Arc<TypeCache>, names: &[&str], profile: StreamProfile) {
        let joined = of.join(subscription(names), profile, &Arc::new(WakeHandle::default()));
        self.clients.insert(who, joined);
        self.look();
    }

    /// A client takes its subscription, and the origin is asked.
    fn subscribe(&mut self, who: &'static str, kind: impl Into<TypeUrl>, names: &[&str]) {
        self.client(who, kind, names);
        self.flush(20);
    }

    fn leave(&mut self, who: &str) {
        self.clients.remove(who);
        self.look();
    }

    /// A client leaves, and so much time passes.
    fn leave_for(&mut self, who: &str, millis: u64) {
        self.leave(who);
        self.pass(millis);
    }

    /// Everything that clients want, which may be more than is looked at in one turn.
    fn look_at_all(&mut self) {
        while self.cache.has_interest() {
            self.look();
        }
    }

    fn look(&mut self) {
        let interest = self.cache.take_interest();
        self.mux.interest(interest, self.now);
    }

    /// A client waits for proof of what the origin has not sent.
    fn ask_for_proof(&mut self, kind: Kind) {
        self.cache.of(&kind.into()).expect("few types").ask_for_proof();
        self.look();
    }

    fn open(&mut self, stream: StreamId) {
        if stream == Primary {
            self.mux.connected(&"http://origin".into());
        }
        self.mux.opened(stream, self.now);
    }

    /// The stream ends, and another begins.
    fn reconnect(&mut self) {
        self.close();
        self.open(Primary);
    }

    /// The stream ends, and another begins with its requests.
    fn ask_anew(&mut self) {
        self.reconnect();
        self.requests(Primary);
    }

    fn ask_on_secondary(&mut self) {
        self.open(Secondary);
        self.pass(10);
        self.requests(Secondary);
    }

    /// Opens streams anew as a shell would. The test opens the secondary that ends with its primary.
    fn renew(&mut self) {
        while let Some(stream) = self.mux.renewal_due(self.now) {
            self.renewed.push((self.now, stream));
            self.mux.closed(stream);
            if stream == Primary || self.mux.wants_secondary() {
                self.mux.opened(stream, self.now);
            }
        }
    }

    fn close(&mut self) {
        self.mux.closed(Primary);
    }

    /// Lets time pass as a shell would: by every deadline on the way.
    fn pass(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        let mut last = None;
        while let Some(at) = self.mux.next_deadline().filter(|at| *at <= end) {
            assert!(last.is_none_or(|last| last < at) || at > self.now, "a deadline that never passes");
            self.now = self.now.max(at);
            last = Some(at);
            self.mux.on_deadline(self.now);
            self.mux.unanswered(self.now);
            self.inquire();
            self.renew();
        }
        self.now = end;
        self.mux.on_deadline(end);
        self.mux.unanswered(end);
        self.inquire();
        self.renew();
    }

    /// Lets time pass, and takes away what the primary stream has to say.
    fn flush(&mut self, millis: u64) {
        self.pass(millis);
        self.requests(Primary);
    }

    /// The process does not run for a while, and tells of that first.
    fn pause(&mut self, pause: Duration) {
        self.now += pause;
        self.mux.exclude_pause(pause, self.now);
    }

    /// Opens a stream for an inquiry as a shell would. The origin refuses it unless the test is about inquiries.
    fn inquire(&mut self) {
        if let Some((protocol, request)) = self.mux.begin_inquiry(self.now) {
            self.inquiries.push((self.now, protocol, request));
            if !self.answers_inquiries {
                self.mux.inquiry_refused(self.now);
            }
        }
    }

    /// Everything that a stream has to say now.
    fn requests(&mut self, stream: StreamId) -> Vec<DeltaDiscoveryRequest> {
        let mut requests = Vec::new();
        while self.mux.has_request(stream) {
            requests.extend(self.mux.next_request(stream, self.now).and_then(without_end_mark));
            assert!(requests.len() < 1000, "the stream has always something more to say");
        }
        requests
    }

    /// The one thing it has to say.
    fn request(&mut self, stream: StreamId) -> DeltaDiscoveryRequest {
        let mut requests = self.requests(stream);
        assert_eq!(requests.len(), 1, "one request: {requests:?}");
        requests.remove(0)
    }

    /// Names that it subscribes to now.
    fn asked(&mut self) -> Vec<String> {
        self.requests(Primary).into_iter().flat_map(|request| request.resource_names_subscribe).collect()
    }

    /// The origin says something.
    fn deliver(&mut self, stream: StreamId, answer: &Answer) {
        self.mux.on_message(stream, answer.bytes(), self.now).expect("a response");
    }

    /// The origin says something, and its ACK is taken away.
    fn hear(&mut self, stream: StreamId, answer: &Answer) {
        self.deliver(stream, answer);
        let requests = self.requests(stream);
        let acked = requests.iter().any(|request| request.response_nonce == answer.0.nonce);
        assert!(acked, "no ACK of `{}` in {requests:?}", answer.0.nonce);
    }

    fn snapshot(&self, kind: Kind) -> Arc<Snapshot> {
        self.cache.of(&kind.into()).expect("few types").snapshot()
    }

    fn members(&self, kind: Kind) -> BTreeSet<String> {
        let text = |r: &Arc<crate::resource::Resource>| format!("{}@{}", r.name(), r.version());
        self.snapshot(kind).members().map(text).collect()
    }

    /// State of a name for a client that asks for it: a version, `absent` or `unknown`.
    fn seen(&self, kind: Kind, name: &str) -> String {
        match self.snapshot(kind).by_name(name) {
            VisibleState::Unknown => "unknown".to_owned(),
            VisibleState::Absent => "absent".to_owned(),
            VisibleState::Collection => "collection".to_owned(),
            VisibleState::Failed => "failed".to_owned(),
            VisibleState::Denied(resource) => format!("denied {}", resource.version()),
            VisibleState::Unresolved(_) => "unresolved".to_owned(),
            VisibleState::Dropped(_) => "dropped".to_owned(),
            VisibleState::Present(resource) => resource.version().to_owned(),
        }
    }

    fn see<const N: usize>(&self, kind: Kind, names: [&str; N]) -> [String; N] {
        names.map(|name| self.seen(kind, name))
    }

    /// State of a name in the named view alone.
    fn named(&self, kind: Kind, name: &str) -> String {
        let snapshot = self.snapshot(kind);
        match snapshot.get(name).map_or(&Named::Unknown, |entry| entry.named()) {
            Named::Unknown => "unknown".to_owned(),
            Named::Superseded(_) => "superseded".to_owned(),
            Named::Absent => "absent".to_owned(),
            Named::Gone => "gone".to_owned(),
            Named::Collection { members, .. } => format!("{members} members"),
            Named::Present(resource) => resource.version().to_owned(),
            Named::Alias(alias) => alias.now().map_or_else(|| "absent".to_owned(), |now| format!("{now:?}")),
        }
    }
}

/// A request as an origin sees it that does not know the end mark; `None` if it is about that alone.
fn without_end_mark(mut request: DeltaDiscoveryRequest) -> Option<DeltaDiscoveryRequest> {
    request.initial_resource_versions.remove(Name::END_MARK);
    request.resource_names_subscribe.retain(|name| name != Name::END_MARK);
    let ended = request.resource_names_unsubscribe.len();
    request.resource_names_unsubscribe.retain(|name| name != Name::END_MARK);
    let is_about_it_alone = request.resource_names_unsubscribe.len() < ended
        && request.resource_names_unsubscribe.is_empty()
        && request.resource_names_subscribe.is_empty()
        && request.response_nonce.is_empty();
    (!is_about_it_alone).then_some(request)
}

fn subscription(names: &[&str]) -> Subscription {
    Subscription::new(names.contains(&"*"), names.iter().filter(|n| **n != "*").map(|n| (*n).into()))
}

fn sorted(names: &[String]) -> Vec<&str> {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
