//! A stream of any requests over a small cache: one un-ACKed response per type, nonces that are never repeated, and an
//! ACK that is told from its bytes means what it would mean decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use deltafan::cache::{Cache, Change, Completeness, Limits, Op, Protocol, Resend, View, Writer};
use deltafan::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node,
    ResourceLocator, Status,
};
use deltafan::resource::{Envelope, TypeUrl, wire};
use deltafan::subscription::{NextStep, RequestKind, Session, SessionConfig, SessionError, Upstream};
use prost::Message as _;

use super::input::Input;
use super::origin::{NAMES, TYPES};

const ACK_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_NAMES: usize = 6;

/// Which protocol and service, then what happens.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let protocol = if input.flag() { Protocol::Sotw } else { Protocol::Delta };
    let only = input.flag().then(|| TypeUrl::from(*input.pick(&TYPES)));
    let limits = Limits { encoded_bytes: 0, tombstones: 2, response_bytes: 200, ..Limits::default() };
    let (cache, writer) = Cache::new(limits);
    let now = Instant::now();
    let mut bed = Bed { cache, writer, now, upstream: Upstream::Answering };
    let mut streams = [Stream::new(&bed, protocol, only.clone()), Stream::new(&bed, protocol, only)];
    for _ in 0..200 {
        if input.is_empty() || step(&mut bed, &mut streams, &mut input).is_none() {
            break;
        }
    }
    drop(streams);
    assert!(
        bed.cache.types().iter().all(|of| of.cohorts() == 0),
        "a stream that ended leaves nothing behind"
    );
}

/// The streams hear the same and say the same: the first recognises ACKs by their bytes. `None` when they end.
fn step(bed: &mut Bed, streams: &mut [Stream; 2], input: &mut Input<'_>) -> Option<()> {
    match input.byte() % 8 {
        0 => bed.change(input),
        1 => bed.now += Duration::from_millis(1 << (input.byte() % 16)),
        2 => {
            bed.upstream = match bed.upstream {
                Upstream::Away => Upstream::Silent,
                Upstream::Silent => Upstream::Answering,
                Upstream::Answering => Upstream::Unread,
                Upstream::Unread => Upstream::Away,
            }
        }
        kind @ 3..=5 => {
            let protocol = streams[0].protocol;
            let message = match kind {
                3 => input.piece().to_vec(),
                4 => streams[0].answer(input),
                _ if protocol == Protocol::Sotw => sotw(input, &streams[0]).encode_to_vec(),
                _ => delta(input, &streams[0]).encode_to_vec(),
            };
            let [quick, slow] = streams;
            let (quick, slow) = (quick.hear(bed, &message, true), slow.hear(bed, &message, false));
            assert_eq!(quick, slow);
            quick.ok()?;
        }
        _ => {
            let taken = input.flag();
            let [quick, slow] = streams;
            let (quick, slow) = (quick.next(bed, taken), slow.next(bed, taken));
            assert_eq!(quick, slow);
            quick.ok()?;
        }
    }
    Some(())
}

struct Bed {
    cache: Arc<Cache>,
    writer: Writer,
    now: Instant,
    upstream: Upstream,
}

impl Bed {
    fn change(&mut self, input: &mut Input<'_>) {
        let type_url = TypeUrl::from(*input.pick(&TYPES));
        let how = input.byte();
        let view = if how & 1 == 0 { View::Wildcard } else { View::Named };
        let resend = if how & 2 == 0 { Resend::Answer } else { Resend::Unsolicited };
        let mut ops = Vec::new();
        for name in input.some(&NAMES[..6]) {
            let version = input.byte();
            if version == 0 {
                ops.push(Op::Remove { view, name: (*name).into() });
                continue;
            }
            let (mut sent, mut any) = (BytesMut::new(), BytesMut::new());
            wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
            wire::put_field(&mut any, 2, &[0x0a, 1, version]);
            wire::put_field(&mut sent, 1, version.to_string().as_bytes());
            wire::put_field(&mut sent, 2, &any);
            wire::put_field(&mut sent, 3, name.as_bytes());
            let envelope = Envelope::parse(&sent, &type_url).expect("a resource");
            let resource = Arc::new(envelope.encode(&type_url, (*name).into()).expect("it has a body"));
            ops.push(Op::Set { view, resource, resend, lease: None });
        }
        let wildcard_known = (how & 4 == 4).then_some(match how >> 3 & 3 {
            0 => Completeness::Unknown,
            1 => Completeness::Settled,
            _ => Completeness::Complete,
        });
        let change = Change { ops, wildcard_known, ..Change::default() };
        self.writer.apply(&type_url, change, self.now).expect("few types");
    }
}

struct InFlight {
    nonce: String,
    taken: Option<Instant>,
}

struct Stream {
    session: Session,
    protocol: Protocol,
    in_flight: BTreeMap<String, InFlight>,
    nonces: BTreeSet<String>,
    /// The newest of any type: its type and nonce.
    newest: (String, String),
    node: Option<Node>,
}

impl Stream {
    fn new(bed: &Bed, protocol: Protocol, only: Option<TypeUrl>) -> Self {
        let rules = SessionConfig {
            ack_timeout: ACK_TIMEOUT,
            serve_secrets: true,
            max_names: MAX_NAMES,
            max_name_bytes: 100,
            max_types: 4,
            ..SessionConfig::default()
        };
        Self {
            session: Session::new(Arc::clone(&bed.cache), Arc::new(rules), protocol, only, bed.now),
            protocol,
            in_flight: BTreeMap::new(),
            nonces: BTreeSet::new(),
            newest: <_>::default(),
            node: Some(Node { user_agent_name: "envoy".to_owned(), ..Node::default() }),
        }
    }

    /// An answer to the newest response, as clients of delta send it.
    fn answer(&self, input: &mut Input<'_>) -> Vec<u8> {
        let (type_url, response_nonce) = self.newest.clone();
        let error_detail = input.flag().then(|| Status { code: 13, message: "no".to_owned() });
        let node = input.flag().then(Node::default);
        match self.protocol {
            Protocol::Sotw => {
                let resource_names = input.some(&NAMES).map(|name| (*name).to_owned()).collect();
                let request = DiscoveryRequest {
                    type_url,
                    response_nonce,
                    error_detail,
                    node,
                    resource_names,
                    ..<_>::default()
                };
                request.encode_to_vec()
            }
            Protocol::Delta => {
                let request =
                    DeltaDiscoveryRequest { type_url, response_nonce, error_detail, node, ..<_>::default() };
                request.encode_to_vec()
            }
        }
    }

    fn nonce(&self, input: &mut Input<'_>, type_url: &str) -> String {
        match input.byte() % 4 {
            0 => String::new(),
            1 => self.in_flight.get(type_url).map(|newest| newest.nonce.clone()).unwrap_or_default(),
            2 => self.nonces.first().cloned().unwrap_or_default(),
            _ => "made-up".to_owned(),
        }
    }

    fn hear(&mut self, bed: &Bed, message: &[u8], quick: bool) -> Result<(), SessionError> {
        if quick && let Some(acked) = self.session.on_ack(message) {
            self.in_flight.retain(|type_url, _| TypeUrl::from(type_url.as_str()).kind() != acked.kind);
            return Ok(());
        }
        let heard = match self.protocol {
            Protocol::Sotw => {
                let Ok(mut request) = DiscoveryRequest::decode(message) else { return Ok(()) };
                request.node = request.node.or_else(|| self.node.take());
                self.session.on_sotw_request(request, bed.now)
            }
            Protocol::Delta => {
                let Ok(mut request) = DeltaDiscoveryRequest::decode(message) else { return Ok(()) };
                request.node = request.node.or_else(|| self.node.take());
                self.session.on_delta_request(request, Default::default(), bed.now)
            }
        };
        if let RequestKind::Ack { type_url } | RequestKind::Nack { type_url, .. } = heard? {
            self.in_flight.remove(type_url.as_str());
        }
        Ok(())
    }

    /// Says the next thing; an error is its end.
    fn next(&mut self, bed: &Bed, taken: bool) -> Result<Option<Bytes>, SessionError> {
        let outgoing = match self.session.next(bed.now, bed.upstream) {
            NextStep::Send(outgoing) => outgoing,
            NextStep::Wait(_) => return Ok(None),
            NextStep::Close(refusal) => return Err(refusal),
        };
        let message = Bytes::from(outgoing.frame.chunks().concat()).slice(5..);
        let (type_url, nonce) = match self.protocol {
            Protocol::Sotw => {
                let told = DiscoveryResponse::decode(message.clone()).expect("a response");
                (told.type_url, told.nonce)
            }
            Protocol::Delta => {
                let told = DeltaDiscoveryResponse::decode(message.clone()).expect("a response");
                assert!(told.resources.len() + told.removed_resources.len() <= 2 * NAMES.len());
                (told.type_url, told.nonce)
            }
        };
        assert_eq!(type_url, outgoing.type_url.as_str());
        assert!(self.nonces.insert(nonce.clone()), "the nonce {nonce} twice");
        if let Some(before) = self.in_flight.get(&type_url) {
            let opens = before.taken.expect("nothing follows what was not taken") + ACK_TIMEOUT;
            assert!(bed.now >= opens, "{nonce} follows {}, which is not answered", before.nonce);
        }
        // The transport takes it now, or never: then nothing of this type may follow.
        if taken {
            self.session.on_flushed(bed.now);
        }
        self.newest = (type_url.clone(), nonce.clone());
        self.in_flight.insert(type_url, InFlight { nonce, taken: taken.then_some(bed.now) });
        Ok(Some(message))
    }
}

fn strings<'a>(names: impl Iterator<Item = &'a &'static str>) -> Vec<String> {
    names.map(|name| (*name).to_owned()).collect()
}

fn locators(input: &mut Input<'_>) -> Vec<ResourceLocator> {
    if !input.byte().is_multiple_of(4) {
        return Vec::new();
    }
    let dynamic_parameters = input.some(&["k", "l"]).map(|key| ((*key).to_owned(), "v".to_owned())).collect();
    vec![ResourceLocator { name: (*input.pick(&NAMES)).to_owned(), dynamic_parameters }]
}

fn sotw(input: &mut Input<'_>, stream: &Stream) -> DiscoveryRequest {
    let type_url = TypeUrl::from(*input.pick(&TYPES)).as_str().to_owned();
    DiscoveryRequest {
        resource_names: strings(input.some(&NAMES)),
        response_nonce: stream.nonce(input, &type_url),
        error_detail: input.flag().then(Status::default),
        resource_locators: locators(input),
        type_url,
        ..DiscoveryRequest::default()
    }
}

fn delta(input: &mut Input<'_>, stream: &Stream) -> DeltaDiscoveryRequest {
    let type_url = TypeUrl::from(*input.pick(&TYPES)).as_str().to_owned();
    DeltaDiscoveryRequest {
        resource_names_subscribe: strings(input.some(&NAMES)),
        resource_names_unsubscribe: strings(input.some(&NAMES)),
        response_nonce: stream.nonce(input, &type_url),
        error_detail: input.flag().then(Status::default),
        initial_resource_versions: input
            .some(&NAMES)
            .map(|name| ((*name).to_owned(), "1".to_owned()))
            .collect(),
        resource_locators_subscribe: locators(input),
        resource_locators_unsubscribe: locators(input),
        type_url,
        ..DeltaDiscoveryRequest::default()
    }
}
