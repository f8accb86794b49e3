//! A scripted origin and scripted clients.
//!
//! What the origin says and what a client is told are written the same way: `cds a:1 b:2 -c` is a response of
//! clusters with `a` in version 1, `b` in version 2, and `c` gone. `a:1@5000` is `a` with a TTL of five seconds, and
//! `~a@5000` its heartbeat; a client is told `a:~1@5000`. `!d:14` is the error of
//! `d` with that code.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Change, Completeness, Lease, Limits, Op, Protocol, Resend, View, Writer};
use deltafan::proto;
use deltafan::resource::TypeUrl;
use deltafan::subscription::{NextStep, RequestKind, Session, SessionConfig, SessionError, Upstream};

use crate::wire::{self, Told, type_url};

pub(crate) struct Bed {
    pub(crate) cache: Arc<Cache>,
    pub(crate) writer: Writer,
    pub(crate) now: Instant,
    pub(crate) rules: SessionConfig,
    pub(crate) upstream: Upstream,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        let (cache, writer) = Cache::new(limits);
        let rules = SessionConfig { serve_secrets: true, ..SessionConfig::default() };
        Self { cache, writer, now: Instant::now(), rules, upstream: Upstream::Answering }
    }

    /// With types whose wildcard sets are known to be empty.
    pub(crate) fn knowing(types: &[&str]) -> Self {
        let mut bed = Self::new();
        types.iter().for_each(|short| bed.known(short));
        bed
    }

    pub(crate) fn after(&mut self, time: Duration) {
        self.now += time;
    }

    pub(crate) fn apply(&mut self, short: &str, change: Change) {
        self.writer.apply(&type_url(short), change, self.now).unwrap();
        self.writer.heard(&type_url(short), self.now);
    }

    pub(crate) fn known(&mut self, short: &str) {
        self.know(short, Completeness::Complete);
    }

    /// So much of a wildcard set is known.
    pub(crate) fn know(&mut self, short: &str, completeness: Completeness) {
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
    pub(crate) fn fill(&mut self) {
        for wanted in self.cache.take_interest() {
            self.writer.fill(&wanted, self.now).unwrap();
        }
    }

    /// The origin speaks of its wildcard set, unasked.
    pub(crate) fn origin(&mut self, text: &str) {
        self.say(View::Wildcard, Resend::Unsolicited, text, 0);
    }

    /// The same with bodies of a thousand bytes, so that answers are cut where the limit is small.
    pub(crate) fn bulky(&mut self, text: &str) {
        self.say(View::Wildcard, Resend::Unsolicited, text, 1000);
    }

    /// The origin answers for names that were asked for.
    pub(crate) fn named(&mut self, text: &str) {
        self.say(View::Named, Resend::Answer, text, 0);
    }

    /// It answers in either way.
    pub(crate) fn answer(&mut self, view: View, text: &str) {
        self.say(view, Resend::Answer, text, 0);
    }

    /// It sends something again that nobody asked for again.
    pub(crate) fn resend(&mut self, view: View, text: &str) {
        self.say(view, Resend::Unsolicited, text, 0);
    }

    pub(crate) fn client(&self, protocol: Protocol, only: Option<&str>) -> Client {
        self.client_as("envoy", protocol, only)
    }

    pub(crate) fn client_as(&self, user_agent: &str, protocol: Protocol, only: Option<&str>) -> Client {
        let rules = Arc::new(self.rules.clone());
        Client {
            session: Session::new(Arc::clone(&self.cache), rules, protocol, only.map(type_url), self.now),
            protocol,
            node: Some(proto::Node { user_agent_name: user_agent.to_owned(), ..proto::Node::default() }),
            newest: HashMap::new(),
        }
    }

    /// A client whose node lists these features.
    pub(crate) fn client_with(&self, features: &[&str], protocol: Protocol) -> Client {
        let mut client = self.client(protocol, None);
        client.node.as_mut().unwrap().client_features = strings(features);
        client
    }

    pub(crate) fn sotw(&self) -> Client {
        self.client(Protocol::Sotw, None)
    }

    pub(crate) fn delta(&self) -> Client {
        self.client(Protocol::Delta, None)
    }
}

pub(crate) struct Client {
    pub(crate) session: Session,
    protocol: Protocol,
    pub(crate) node: Option<proto::Node>,
    newest: HashMap<String, Told>,
}

pub(crate) fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn error() -> proto::Status {
    proto::Status { code: 13, message: "no".to_owned() }
}

impl Client {
    /// Asks for one name in either protocol.
    pub(crate) fn ask_or_change(&mut self, bed: &Bed, short: &str, name: &str) {
        match self.protocol {
            // The wildcard in its legacy form, which an ACK without names repeats.
            Protocol::Sotw => {
                self.ask(bed, short, if name == "*" { &[] } else { std::slice::from_ref(&name) })
            }
            Protocol::Delta => self.change(bed, short, name),
        };
    }

    pub(crate) fn nonce(&self, short: &str) -> String {
        self.newest.get(type_url(short).as_str()).map(|told| told.nonce.clone()).unwrap_or_default()
    }

    /// The newest response of a type that this client has seen.
    pub(crate) fn newest(&self, short: &str) -> &Told {
        &self.newest[type_url(short).as_str()]
    }

    pub(crate) fn on_sotw_request(
        &mut self,
        bed: &Bed,
        mut request: proto::DiscoveryRequest,
    ) -> Result<RequestKind, SessionError> {
        request.node = request.node.or_else(|| self.node.take());
        self.session.on_sotw_request(request, bed.now)
    }

    pub(crate) fn on_delta_request(
        &mut self,
        bed: &Bed,
        mut request: proto::DeltaDiscoveryRequest,
    ) -> Result<RequestKind, SessionError> {
        request.node = request.node.or_else(|| self.node.take());
        self.session.on_delta_request(request, bed.now)
    }

    /// State of the world: the complete list of names.
    pub(crate) fn ask(&mut self, bed: &Bed, short: &str, names: &[&str]) -> RequestKind {
        let request = proto::DiscoveryRequest {
            type_url: type_url(short).as_str().to_owned(),
            resource_names: strings(names),
            response_nonce: self.nonce(short),
            ..proto::DiscoveryRequest::default()
        };
        self.on_sotw_request(bed, request).unwrap()
    }

    /// Delta: `a -b *` subscribes `a` and `*` and unsubscribes `b`.
    pub(crate) fn change(&mut self, bed: &Bed, short: &str, names: &str) -> RequestKind {
        let names: Vec<&str> = names.split_whitespace().collect();
        let (unsubscribe, subscribe): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.starts_with('-'));
        let request = proto::DeltaDiscoveryRequest {
            type_url: type_url(short).as_str().to_owned(),
            resource_names_subscribe: strings(&subscribe),
            resource_names_unsubscribe: unsubscribe.iter().map(|name| name[1..].to_owned()).collect(),
            ..proto::DeltaDiscoveryRequest::default()
        };
        self.on_delta_request(bed, request).unwrap()
    }

    /// Delta: the first request of a type on a new stream, with the versions held.
    pub(crate) fn resume(&mut self, bed: &Bed, short: &str, names: &[&str], held: &[(&str, &str)]) {
        let request = proto::DeltaDiscoveryRequest {
            type_url: type_url(short).as_str().to_owned(),
            resource_names_subscribe: strings(names),
            initial_resource_versions: held.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            ..proto::DeltaDiscoveryRequest::default()
        };
        self.on_delta_request(bed, request).unwrap();
    }

    fn answer(
        &mut self,
        bed: &Bed,
        told: &Told,
        names: &[&str],
        error: Option<proto::Status>,
    ) -> RequestKind {
        let type_url = told.type_url.as_str().to_owned();
        let response_nonce = told.nonce.clone();
        match self.protocol {
            Protocol::Sotw => self.on_sotw_request(
                bed,
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
                bed,
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
    pub(crate) fn ack(&mut self, bed: &Bed, told: &Told, names: &[&str]) -> RequestKind {
        self.answer(bed, told, names, None)
    }

    pub(crate) fn nack(&mut self, bed: &Bed, told: &Told, names: &[&str]) -> RequestKind {
        self.answer(bed, told, names, Some(error()))
    }

    pub(crate) fn next(&mut self, bed: &Bed) -> NextStep {
        self.session.next(bed.now, bed.upstream)
    }

    /// What it is told next, taken by the transport at once; `None` where it has to wait.
    pub(crate) fn poll(&mut self, bed: &Bed) -> Option<Told> {
        match self.next(bed) {
            NextStep::Say(outgoing) => {
                self.session.taken(bed.now);
                let told = wire::read(self.protocol, &outgoing.frame);
                assert_eq!(told.type_url, outgoing.type_url);
                self.newest.insert(told.type_url.as_str().to_owned(), told.clone());
                Some(told)
            }
            NextStep::Wait(_) => None,
            NextStep::Close(refusal) => panic!("closed: {refusal}"),
        }
    }

    /// What it is told until it has to wait, without an answer from it.
    pub(crate) fn told(&mut self, bed: &Bed) -> Vec<String> {
        std::iter::from_fn(|| self.poll(bed)).map(|told| show(&told)).collect()
    }

    /// What it is told until there is nothing more, each response ACKed as a delta client does.
    pub(crate) fn acked(&mut self, bed: &Bed) -> Vec<String> {
        self.acked_with(bed, &[])
    }

    /// The same for state of the world, which has to repeat its names.
    pub(crate) fn acked_with(&mut self, bed: &Bed, names: &[(&str, &[&str])]) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(told) = self.poll(bed) {
            all.push(show(&told));
            assert!(all.len() < 50, "it goes on and on: {:?}", &all[..8]);
            let names = names.iter().find(|(short, _)| type_url(short) == told.type_url);
            self.ack(bed, &told, names.map_or(&[], |(_, names)| names));
        }
        all
    }
}

pub(crate) fn show(told: &Told) -> String {
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

pub(crate) fn is_acked(heard: &RequestKind) -> bool {
    matches!(heard, RequestKind::Ack { .. })
}

pub(crate) fn url(short: &str) -> TypeUrl {
    type_url(short)
}
