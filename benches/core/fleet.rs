//! Sessions without sockets: who subscribes to what, and one round of change, updates and ACKs.

use std::hint::black_box;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use deltafan::cache::{Cache, Change, Completeness, Limits, Nonce, Op, Protocol, Resend, View, Writer};
use deltafan::node_field::NodeField;
use deltafan::proto;
use deltafan::resource::{Envelope, Kind, Parameters, Resource, TypeUrl, wire};
use deltafan::subscription::{NextStep, NodeParameterRules, Rule, Session, SessionConfig, Upstream};
use prost::Message as _;

/// About what a cluster or a small set of endpoints takes.
const RESOURCE_BYTES: usize = 300;
const PARAMETER: &str = "cluster";

/// A fleet of equal clients.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) protocol: Protocol,
    pub(crate) clients: usize,
    pub(crate) resources: usize,
    /// Names that each client asks for; none: the wildcard.
    pub(crate) names: usize,
    /// Sets of dynamic parameters among the clients; 0: they have none.
    pub(crate) sets: usize,
}

impl Shape {
    fn type_url(&self) -> TypeUrl {
        match self.protocol {
            Protocol::Delta => Kind::Endpoint.into(),
            Protocol::Sotw => Kind::Cluster.into(),
        }
    }

    const fn view(&self) -> View {
        if self.names == 0 { View::Wildcard } else { View::Named }
    }

    /// Neighbours, from a place that few others share.
    fn names_of(&self, client: usize) -> Vec<String> {
        match (self.names, self.protocol) {
            (0, Protocol::Delta) => vec!["*".to_owned()],
            (0, Protocol::Sotw) => Vec::new(),
            (names, _) => (0..names).map(|at| name((client * 37 + at) % self.resources)).collect(),
        }
    }

    /// The cluster of a client, from which its parameters come.
    fn cluster_of(&self, client: usize) -> String {
        (client % self.sets.max(1)).to_string()
    }

    /// All sets of parameters that clients have.
    fn parameters(&self) -> Vec<Parameters> {
        if self.sets == 0 {
            return vec![Parameters::NONE];
        }
        (0..self.sets).map(|set| [(PARAMETER, self.cluster_of(set))].into_iter().collect()).collect()
    }

    fn rules(&self) -> SessionConfig {
        let (key, from) = (PARAMETER.into(), NodeField::Cluster);
        let rule = Rule { key, from, pattern: None, default: None };
        let rules = if self.sets == 0 { Vec::new() } else { vec![rule] };
        SessionConfig { given: NodeParameterRules::new(rules, 256), ..SessionConfig::default() }
    }

    /// Resource of one change, so that every client has exactly one thing to learn.
    fn changed(&self, round: usize) -> Vec<usize> {
        match self.names {
            0 => vec![round % self.resources],
            names => (0..self.resources).filter(|at| at % names == round % names).collect(),
        }
    }
}

pub(crate) fn name(at: usize) -> String {
    format!("resource-{at:06}")
}

/// A resource as an origin sends it.
pub(crate) fn resource(type_url: &TypeUrl, name: &str, version: usize) -> Arc<Resource> {
    let version = version.to_string();
    let mut any = BytesMut::new();
    wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
    wire::put_field(&mut any, 2, &[0x7a; RESOURCE_BYTES - 100]);
    let mut sent = BytesMut::new();
    wire::put_field(&mut sent, 1, version.as_bytes());
    wire::put_field(&mut sent, 2, &any);
    wire::put_field(&mut sent, 3, name.as_bytes());
    let envelope = Envelope::parse(&sent, type_url).expect("a good envelope");
    Arc::new(envelope.encode(type_url, name.into()).expect("it has a body"))
}

/// How long the parts of one round took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Round {
    /// The change until all are woken.
    pub(crate) change: Duration,
    /// Every client's update, from the wake-up until the transport has it.
    pub(crate) updates: Duration,
    /// Every client's ACK, from its bytes.
    pub(crate) acks: Duration,
}

/// All clients of one shape.
pub(crate) struct Fleet {
    shape: Shape,
    pub(crate) cache: Arc<Cache>,
    pub(crate) writer: Writer,
    sessions: Vec<Session>,
    now: Instant,
    round: usize,
}

impl Fleet {
    pub(crate) fn new(shape: Shape) -> Self {
        let (cache, writer) = Cache::new(Limits::default());
        let mut fleet = Self { shape, cache, writer, sessions: Vec::new(), now: Instant::now(), round: 0 };
        fleet.change(0..shape.resources);
        let rules = Arc::new(shape.rules());
        for client in 0..shape.clients {
            let mut session =
                Session::new(Arc::clone(&fleet.cache), Arc::clone(&rules), shape.protocol, None, fleet.now);
            hear(&mut session, shape.protocol, subscribe(&shape, client), fleet.now);
            fleet.sessions.push(session);
        }
        let mut acks = fleet.updates();
        while !acks.is_empty() {
            fleet.answer(acks);
            acks = fleet.updates();
        }
        fleet
    }

    /// One change that every client is told of and ACKs.
    pub(crate) fn round(&mut self) -> Round {
        self.round += 1;
        for session in &self.sessions {
            session.wake_handle().register(Waker::noop());
        }
        let changed = self.shape.changed(self.round);
        let type_url = self.shape.type_url();
        let ops = changed.iter().map(|at| self.set(&type_url, *at)).collect();
        let parameters = self.shape.parameters();
        let begin = Instant::now();
        self.apply(Change { ops, ..Change::default() }, &parameters);
        let applied = Instant::now();
        let acks = self.updates();
        let updated = Instant::now();
        assert_eq!(acks.len(), self.sessions.len(), "every client is told");
        let requests: Vec<(usize, Bytes)> = acks.into_iter().map(|ack| self.ack(ack)).collect();
        let begin_acks = Instant::now();
        for (at, request) in requests {
            assert!(self.sessions[at].on_ack(&request).is_some());
        }
        // As a stream does after each request: it looks whether there is more to say.
        for session in &mut self.sessions {
            black_box(session.next(self.now, Upstream::Answering));
        }
        Round { change: applied - begin, updates: updated - applied, acks: begin_acks.elapsed() }
    }

    fn set(&self, type_url: &TypeUrl, at: usize) -> Op {
        let resource = resource(type_url, &name(at), self.round);
        Op::Set { view: self.shape.view(), resource, resend: Resend::Answer, lease: None }
    }

    fn change(&mut self, which: impl Iterator<Item = usize>) {
        let type_url = self.shape.type_url();
        let ops = which.map(|at| self.set(&type_url, at)).collect();
        let change = Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() };
        self.apply(change, &self.shape.parameters());
    }

    /// Resources for everybody, in the store of each set.
    fn apply(&mut self, change: Change, parameters: &[Parameters]) {
        let type_url = self.shape.type_url();
        for parameters in parameters {
            let seen = self.writer.apply_with_parameters(&type_url, parameters, change.clone(), self.now);
            seen.expect("a type of the protocol, and few sets");
        }
    }

    fn updates(&mut self) -> Vec<(usize, Nonce)> {
        let mut told = Vec::with_capacity(self.sessions.len());
        for (at, session) in self.sessions.iter_mut().enumerate() {
            if let NextStep::Send(outgoing) = session.next(self.now, Upstream::Answering) {
                outgoing.frame.chunks().iter().for_each(|chunk| drop(black_box(chunk.clone())));
                session.on_flushed(self.now);
                told.push((at, outgoing.frame.nonce));
            }
        }
        told
    }

    fn answer(&mut self, acks: Vec<(usize, Nonce)>) {
        for ack in acks {
            let (at, request) = self.ack(ack);
            assert!(self.sessions[at].on_ack(&request).is_some());
        }
    }

    /// The request that ACKs a response; in the state of the world it names the version and all that is wanted.
    fn ack(&self, (at, nonce): (usize, Nonce)) -> (usize, Bytes) {
        let type_url = self.shape.type_url().as_str().to_owned();
        let response_nonce = nonce.to_string();
        let encoded = match self.shape.protocol {
            Protocol::Delta => {
                proto::DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }
                    .encode_to_vec()
            }
            Protocol::Sotw => proto::DiscoveryRequest {
                type_url,
                response_nonce,
                version_info: format!("{:032x}", u128::MAX),
                resource_names: self.shape.names_of(at),
                ..Default::default()
            }
            .encode_to_vec(),
        };
        (at, encoded.into())
    }
}

fn subscribe(shape: &Shape, client: usize) -> Bytes {
    let type_url = shape.type_url().as_str().to_owned();
    let node = Some(proto::Node {
        id: format!("client-{client}"),
        cluster: shape.cluster_of(client),
        ..proto::Node::default()
    });
    let names = shape.names_of(client);
    match shape.protocol {
        Protocol::Delta => proto::DeltaDiscoveryRequest {
            node,
            type_url,
            resource_names_subscribe: names,
            ..Default::default()
        }
        .encode_to_vec(),
        Protocol::Sotw => {
            proto::DiscoveryRequest { node, type_url, resource_names: names, ..Default::default() }
                .encode_to_vec()
        }
    }
    .into()
}

/// A request from its bytes, as a stream reads it.
pub(crate) fn hear(session: &mut Session, protocol: Protocol, message: Bytes, now: Instant) {
    match protocol {
        Protocol::Sotw => {
            let request = proto::DiscoveryRequest::decode(message).expect("our own message");
            session.on_sotw_request(request, now).expect("within the rules");
        }
        Protocol::Delta => {
            let request = proto::DeltaDiscoveryRequest::decode(message).expect("our own message");
            session.on_delta_request(request, now).expect("within the rules");
        }
    }
}
