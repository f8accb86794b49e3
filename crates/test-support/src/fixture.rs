//! A scripted origin and scripted clients.
//!
//! Responses of the origin and those to a client are written alike: `cds a:1 b:2 -c` is a response of
//! clusters with `a` in version 1, `b` in version 2, and `c` gone. `a:1@5000` is `a` with a TTL of five seconds, and
//! `~a@5000` its heartbeat; a client is told `a:~1@5000`. `!d:14` is the error of
//! `d` with that code.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{
    Budget, Cache, Change, Completeness, Lease, Limits, Op, Order, OriginError, Protocol, Resend,
    RolloutSettings, View, Writer,
};
use deltafan::identity::{Peer, Source};
use deltafan::proto;
use deltafan::resource::TypeUrl;
use deltafan::subscription::{
    NextStep, Overdue, Poll, PollHistory, RequestKind, Session, SessionConfig, SessionError, Upstream,
};

use crate::wire::{self, Told, parameters, type_url, variant};

/// The cache, the control plane that fills it, and the rules of its clients.
pub struct Fixture {
    pub cache: Arc<Cache>,
    pub writer: Writer,
    pub now: Instant,
    pub rules: SessionConfig,
    pub upstream: Upstream,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub fn with_limits(limits: Limits) -> Self {
        let (cache, writer) = Cache::new(limits);
        let rules = SessionConfig { serve_secrets: true, ..SessionConfig::default() };
        Self { cache, writer, now: Instant::now(), rules, upstream: Upstream::Answering }
    }

    /// Gives the rollout guard an order. Returns whether there is something to order.
    pub fn order(&self, order: Order) -> bool {
        self.cache.order(order, self.now)
    }

    /// With a guard of changes.
    pub fn guarded(rollout: RolloutSettings) -> Self {
        Self::guarded_within(Limits::default(), rollout)
    }

    pub fn guarded_within(limits: Limits, rollout: RolloutSettings) -> Self {
        let (cache, writer) = Cache::guarded(limits, &Budget::new(limits.encoded_bytes), Some(rollout));
        Self { cache, writer, ..Self::new() }
    }

    /// Time goes by, and the guard of changes does what is due.
    pub fn roll_out(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.writer.next_rollout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.writer.roll_out(self.now);
        }
        self.now = end;
    }

    /// With types whose wildcard sets are known to be empty.
    pub fn knowing(types: &[&str]) -> Self {
        let mut fixture = Self::new();
        types.iter().for_each(|short| fixture.known(short));
        fixture
    }

    pub fn after(&mut self, time: Duration) {
        self.now += time;
    }

    pub fn apply(&mut self, short: &str, change: Change) {
        self.writer.apply(&type_url(short), change, self.now).unwrap();
        self.writer.record_answer(&type_url(short), self.now);
    }

    pub fn known(&mut self, short: &str) {
        self.know(short, Completeness::Complete);
    }

    /// So much of a wildcard set is known.
    pub fn know(&mut self, short: &str, completeness: Completeness) {
        self.apply(short, Change { wildcard_known: Some(completeness), ..Change::default() });
    }

    fn say(&mut self, view: View, resend: Resend, text: &str, padding: usize) {
        let (short, items) = text.split_once(' ').unwrap();
        let type_url = type_url(short);
        let op = |item: &str| {
            let (item, ttl) = item.rsplit_once('@').map_or((item, None), |(item, ttl)| (item, Some(ttl)));
            let ttl = ttl.map(|ttl| Duration::from_millis(ttl.parse().unwrap()));
            let lease = ttl.and_then(|ttl| Lease::new(ttl, self.now));
            if let Some(name) = item.strip_prefix('-') {
                return Op::Remove { view, name: name.into() };
            }
            if let Some(name) = item.strip_prefix('~') {
                return Op::Renew { view, name: name.into(), lease };
            }
            let (name, version) = item.rsplit_once(':').unwrap();
            Op::Set { view, resource: wire::resource(&type_url, name, version, padding), resend, lease }
        };
        let change = Change { ops: items.split(' ').map(op).collect(), ..Change::default() };
        self.apply(short, change);
    }

    /// Brings stores of mixed parameters, or of those who may not see all, up to date, as the upstream does.
    pub fn fill(&mut self) {
        for wanted in self.cache.take_interest() {
            self.writer.fill(&wanted, self.now);
        }
    }

    /// The origin speaks of its wildcard set, unasked.
    pub fn origin(&mut self, text: &str) {
        self.say(View::Wildcard, Resend::Unsolicited, text, 0);
    }

    pub fn with_members(mut self, text: &str) -> Self {
        self.origin(text);
        self
    }

    pub fn with_named(mut self, text: &str) -> Self {
        self.named(text);
        self
    }

    /// A response with bodies of a thousand bytes, so that answers are cut where the limit is small.
    pub fn bulky(&mut self, text: &str) {
        self.say(View::Wildcard, Resend::Unsolicited, text, 1000);
    }

    /// The origin answers for names that were asked for.
    pub fn named(&mut self, text: &str) {
        self.say(View::Named, Resend::Answer, text, 0);
    }

    /// It answers in either way.
    pub fn answer(&mut self, view: View, text: &str) {
        self.say(view, Resend::Answer, text, 0);
    }

    /// It sends something again that nobody asked for again.
    pub fn resend(&mut self, view: View, text: &str) {
        self.say(view, Resend::Unsolicited, text, 0);
    }

    /// Begins a poll that is held for so long.
    pub fn poll(
        &self,
        memory: &PollHistory,
        short: &str,
        request: proto::DiscoveryRequest,
        hold: Duration,
    ) -> Result<Poll, SessionError> {
        let (rules, peer) = (Arc::new(self.rules.clone()), Peer::unproven(Source::Unix));
        Poll::new(&self.cache, &rules, memory, url(short).kind(), request, (&peer, None), hold, self.now)
    }

    pub fn client(&self, protocol: Protocol, only: Option<&str>) -> Client {
        self.client_as("envoy", protocol, only)
    }

    pub fn client_as(&self, user_agent: &str, protocol: Protocol, only: Option<&str>) -> Client {
        let rules = Arc::new(self.rules.clone());
        Client {
            session: Session::new(Arc::clone(&self.cache), rules, protocol, only.map(type_url), self.now),
            protocol,
            node: Some(proto::Node { user_agent_name: user_agent.to_owned(), ..proto::Node::default() }),
            newest: HashMap::new(),
            overdue: Vec::new(),
        }
    }

    /// A client with this node ID.
    pub fn client_named(&self, node_id: &str, protocol: Protocol) -> Client {
        let mut client = self.client(protocol, None);
        client.node.as_mut().unwrap().id = node_id.to_owned();
        client
    }

    /// A client whose node lists these features.
    pub fn client_with(&self, features: &[&str], protocol: Protocol) -> Client {
        let mut client = self.client(protocol, None);
        client.node.as_mut().unwrap().client_features = strings(features);
        client
    }

    pub fn sotw(&self) -> Client {
        self.client(Protocol::Sotw, None)
    }

    pub fn delta(&self) -> Client {
        self.client(Protocol::Delta, None)
    }

    pub fn ops(&mut self, short: &str, ops: Vec<Op>) {
        self.apply(short, Change { ops, ..Change::default() });
    }

    pub fn fail(&mut self, short: &str, name: &str, code: i32) {
        self.ops(short, vec![fail(name, code)]);
    }

    pub fn delta_of(&self, short: &str, names: &str) -> Client {
        let mut client = self.delta();
        client.change(self, short, names);
        client
    }

    pub fn sotw_of(&self, short: &str, names: &[&str]) -> Client {
        let mut client = self.sotw();
        client.ask(self, short, names);
        client
    }

    /// In either protocol, as [`Client::ask_or_change`] asks.
    pub fn client_of(&self, protocol: Protocol, short: &str, name: &str) -> Client {
        let mut client = self.client(protocol, None);
        client.ask_or_change(self, short, name);
        client
    }

    /// All members have been heard.
    pub fn complete(&mut self, short: &str, name: &str) {
        self.ops(short, vec![Op::Complete { name: name.into() }]);
    }

    pub fn withdraw(&mut self, short: &str, name: &str) {
        self.ops(short, vec![Op::LeaveCollection { name: name.into() }]);
    }

    /// A response to clients with these parameters: `a:1[env=prod]` is a variant, `a:1` is for everybody.
    pub fn seen(&mut self, pairs: &str, view: View, text: &str) {
        let (short, items) = text.split_once(' ').unwrap();
        let ops = items.split(' ').map(|item| variant_op(short, view, item)).collect();
        let change = Change { ops, ..Change::default() };
        self.writer.apply_with_parameters(&url(short), &parameters(pairs), change, self.now).unwrap();
    }

    /// The wildcard set of clients with these parameters is known.
    pub fn known_to(&mut self, pairs: &str, short: &str) {
        let change = Change { wildcard_known: Some(Completeness::Complete), ..Change::default() };
        self.writer.apply_with_parameters(&url(short), &parameters(pairs), change, self.now).unwrap();
    }
}

pub struct Client {
    pub session: Session,
    protocol: Protocol,
    pub node: Option<proto::Node>,
    newest: HashMap<String, Told>,
    /// Answers of it that responses to it did not wait for any longer.
    pub overdue: Vec<Overdue>,
}

pub fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn error() -> proto::Status {
    proto::Status { code: 13, message: "no".to_owned() }
}

impl Client {
    /// Asks for one name in either protocol.
    pub fn ask_or_change(&mut self, fixture: &Fixture, short: &str, name: &str) {
        match self.protocol {
            // The wildcard in its legacy form, which an ACK without names repeats.
            Protocol::Sotw => {
                self.ask(fixture, short, if name == "*" { &[] } else { std::slice::from_ref(&name) })
            }
            Protocol::Delta => self.change(fixture, short, name),
        };
    }

    pub fn nonce(&self, short: &str) -> String {
        self.newest.get(type_url(short).as_str()).map(|told| told.nonce.clone()).unwrap_or_default()
    }

    /// The newest response of a type that this client has seen.
    pub fn newest(&self, short: &str) -> &Told {
        &self.newest[type_url(short).as_str()]
    }

    pub fn on_sotw_request(
        &mut self,
        fixture: &Fixture,
        mut request: proto::DiscoveryRequest,
    ) -> Result<RequestKind, SessionError> {
        request.node = request.node.or_else(|| self.node.take());
        self.session.on_sotw_request(request, fixture.now)
    }

    pub fn on_delta_request(
        &mut self,
        fixture: &Fixture,
        mut request: proto::DeltaDiscoveryRequest,
    ) -> Result<RequestKind, SessionError> {
        request.node = request.node.or_else(|| self.node.take());
        self.session.on_delta_request(request, Default::default(), fixture.now)
    }

    /// State of the world: the complete list of names.
    pub fn ask(&mut self, fixture: &Fixture, short: &str, names: &[&str]) -> RequestKind {
        let request = proto::DiscoveryRequest {
            type_url: type_url(short).as_str().to_owned(),
            resource_names: strings(names),
            response_nonce: self.nonce(short),
            ..proto::DiscoveryRequest::default()
        };
        self.on_sotw_request(fixture, request).unwrap()
    }

    /// Delta: `a -b *` subscribes `a` and `*` and unsubscribes `b`.
    pub fn change(&mut self, fixture: &Fixture, short: &str, names: &str) -> RequestKind {
        let names: Vec<&str> = names.split_whitespace().collect();
        let (unsubscribe, subscribe): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.starts_with('-'));
        let request = proto::DeltaDiscoveryRequest {
            type_url: type_url(short).as_str().to_owned(),
            resource_names_subscribe: strings(&subscribe),
            resource_names_unsubscribe: unsubscribe.iter().map(|name| name[1..].to_owned()).collect(),
            ..proto::DeltaDiscoveryRequest::default()
        };
        self.on_delta_request(fixture, request).unwrap()
    }

    /// Delta: the first request of a type on a new stream, with the versions held.
    pub fn resume(&mut self, fixture: &Fixture, short: &str, names: &[&str], held: &[(&str, &str)]) {
        let request = proto::DeltaDiscoveryRequest {
            type_url: type_url(short).as_str().to_owned(),
            resource_names_subscribe: strings(names),
            initial_resource_versions: held.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            ..proto::DeltaDiscoveryRequest::default()
        };
        self.on_delta_request(fixture, request).unwrap();
    }

    /// State of the world: the first request of a type on a new stream, with the version held.
    pub fn come_back(&mut self, fixture: &Fixture, short: &str, names: &[&str], version: &str) {
        let request = proto::DiscoveryRequest {
            version_info: version.to_owned(),
            type_url: type_url(short).as_str().to_owned(),
            resource_names: strings(names),
            ..proto::DiscoveryRequest::default()
        };
        self.on_sotw_request(fixture, request).unwrap();
    }

    fn answer(
        &mut self,
        fixture: &Fixture,
        told: &Told,
        names: &[&str],
        error: Option<proto::Status>,
    ) -> RequestKind {
        let type_url = told.type_url.as_str().to_owned();
        let response_nonce = told.nonce.clone();
        match self.protocol {
            Protocol::Sotw => self.on_sotw_request(
                fixture,
                proto::DiscoveryRequest {
                    type_url,
                    response_nonce,
                    resource_names: strings(names),
                    version_info: told.version.clone(),
                    error_detail: error,
                    ..proto::DiscoveryRequest::default()
                },
            ),
            Protocol::Delta => self.on_delta_request(
                fixture,
                proto::DeltaDiscoveryRequest {
                    type_url,
                    response_nonce,
                    error_detail: error,
                    ..proto::DeltaDiscoveryRequest::default()
                },
            ),
        }
        .unwrap()
    }

    /// Accepts a response. State of the world repeats the list of names.
    pub fn ack(&mut self, fixture: &Fixture, told: &Told, names: &[&str]) -> RequestKind {
        self.answer(fixture, told, names, None)
    }

    pub fn nack(&mut self, fixture: &Fixture, told: &Told, names: &[&str]) -> RequestKind {
        self.answer(fixture, told, names, Some(error()))
    }

    /// Rejects a response with this text.
    pub fn nack_saying(&mut self, fixture: &Fixture, told: &Told, names: &[&str], text: &str) -> RequestKind {
        let error = proto::Status { code: 13, message: text.to_owned() };
        self.answer(fixture, told, names, Some(error))
    }

    pub fn next(&mut self, fixture: &Fixture) -> NextStep {
        next_step(&mut self.session, fixture.now, fixture.upstream)
    }

    /// Next response to it, taken by the transport at once; `None` where it has to wait.
    pub fn poll(&mut self, fixture: &Fixture) -> Option<Told> {
        match self.next(fixture) {
            NextStep::Send(outgoing) => {
                self.session.on_flushed(fixture.now);
                self.overdue.extend(outgoing.overdue);
                let told = wire::read(self.protocol, &outgoing.frame);
                assert_eq!(told.type_url, outgoing.type_url);
                self.newest.insert(told.type_url.as_str().to_owned(), told.clone());
                Some(told)
            }
            NextStep::Wait(_) => None,
            NextStep::Close(refusal) => panic!("closed: {refusal}"),
        }
    }

    /// Responses to it until it has to wait, without an answer from it.
    pub fn told(&mut self, fixture: &Fixture) -> Vec<String> {
        std::iter::from_fn(|| self.poll(fixture)).map(|told| show(&told)).collect()
    }

    /// Responses to it until there is nothing more, each ACKed as a delta client does.
    pub fn acked(&mut self, fixture: &Fixture) -> Vec<String> {
        self.acked_with(fixture, &[])
    }

    /// Responses to it until there is nothing more, over state of the world, which has to repeat its names.
    pub fn acked_with(&mut self, fixture: &Fixture, names: &[(&str, &[&str])]) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(told) = self.poll(fixture) {
            all.push(show(&told));
            assert!(all.len() < 50, "it goes on and on: {:?}", &all[..8]);
            let names = names.iter().find(|(short, _)| type_url(short) == told.type_url);
            self.ack(fixture, &told, names.map_or(&[], |(_, names)| names));
        }
        all
    }
}

pub fn show(told: &Told) -> String {
    let kind = told.type_url.kind().short();
    let mut words: Vec<String> = told.resources.iter().map(|(name, text)| format!("{name}:{text}")).collect();
    words.sort_unstable();
    let mut gone: Vec<String> = told.removed.iter().map(|name| format!("-{name}")).collect();
    gone.sort_unstable();
    words.extend(gone);
    let mut failed: Vec<String> =
        told.errors.iter().map(|(name, code, _)| format!("!{name}:{code}")).collect();
    failed.sort_unstable();
    words.extend(failed);
    words.insert(0, kind.to_owned());
    words.join(" ")
}

pub fn is_acked(heard: &RequestKind) -> bool {
    matches!(heard, RequestKind::Ack { .. })
}

pub fn url(short: &str) -> TypeUrl {
    type_url(short)
}

/// An error of a single resource.
pub fn fail(name: &str, code: i32) -> Op {
    Op::Fail { name: name.into(), failure: Arc::new(OriginError::new(code, "why")), listed: false }
}

/// An item of such a response.
fn variant_op(short: &str, view: View, item: &str) -> Op {
    if let Some(name) = item.strip_prefix('-') {
        return Op::Remove { view, name: name.into() };
    }
    let (name, rest) = item.split_once(':').unwrap();
    let resource = match rest.trim_end_matches(']').split_once('[') {
        Some((version, rule)) => variant(&url(short), name, version, rule),
        None => wire::resource(&url(short), name, rest, 0),
    };
    Op::Set { view, resource, resend: Resend::Unsolicited, lease: None }
}

/// Next step of a session. One that calls itself up to date has nothing to do.
pub fn next_step(session: &mut Session, now: Instant, upstream: Upstream) -> NextStep {
    let is_up_to_date = session.is_up_to_date(now);
    let next = session.next(now, upstream);
    assert!(!is_up_to_date || matches!(next, NextStep::Wait(None)), "up to date, and yet {next:?}");
    next
}
