//! A control plane that does as it is told: it serves delta ADS to the relay, on a thread of its own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use deltafan::resource::wire;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

use super::measure::monotonic_nanos;
use super::shape::{Kind, resource_name, set_name};

/// The version of everything until it is changed.
pub(crate) const FIRST_VERSION: u64 = 1;
/// The key of the dynamic parameter that the relay gives clients, and that tells variants apart.
pub(crate) const PARAMETER: &str = "cluster";

/// Names of a type that the relay asked for.
#[derive(Default)]
struct Topic {
    wildcard: bool,
    names: HashSet<String>,
    /// It asks by locators, always for `*`.
    located: bool,
}

/// The resources of a type.
struct Held {
    versions: BTreeMap<String, u64>,
    bytes: usize,
    /// Variants of each resource, for one set of parameters each; 0: one resource, for all.
    variants: usize,
}

/// Commands of the bench to the origin.
enum Order {
    Fill { kind: Kind, count: usize, bytes: usize, variants: usize, done: std::sync::mpsc::Sender<()> },
    Change { kind: Kind, which: Vec<usize>, bytes: Option<usize> },
    Churn { kind: Kind, per_second: usize },
    Rest,
    Acks(std::sync::mpsc::Sender<Vec<u64>>),
}

/// A running origin.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    orders: mpsc::UnboundedSender<Order>,
}

impl Origin {
    pub(crate) fn start() -> Self {
        let (orders, taken) = mpsc::unbounded_channel();
        let (tell, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(serve(taken, tell));
        });
        Self { address: address.recv().expect("the origin's address"), orders }
    }

    /// Holds `count` resources of `bytes` each from now on.
    pub(crate) fn fill(&self, kind: Kind, count: usize, bytes: usize) {
        self.fill_variants(kind, count, bytes, 0);
    }

    /// Resources with so many variants of each, one for each set of parameters.
    pub(crate) fn fill_variants(&self, kind: Kind, count: usize, bytes: usize, variants: usize) {
        let (done, filled) = std::sync::mpsc::channel();
        self.order(Order::Fill { kind, count, bytes, variants, done });
        filled.recv().expect("the origin lives");
    }

    /// Changes these resources, all variants of them, in one response. Their version is the time of the change, by the clock of
    /// [`monotonic_nanos`].
    pub(crate) fn change(&self, kind: Kind, which: Vec<usize>) {
        self.order(Order::Change { kind, which, bytes: None });
    }

    /// Resources with bodies of another size from now on.
    pub(crate) fn change_size(&self, kind: Kind, which: Vec<usize>, bytes: usize) {
        self.order(Order::Change { kind, which, bytes: Some(bytes) });
    }

    /// Changes so many resources per second, one after the other and each in a response of its own.
    pub(crate) fn churn(&self, kind: Kind, per_second: usize) {
        self.order(Order::Churn { kind, per_second });
    }

    /// Changes nothing any more.
    pub(crate) fn rest(&self) {
        self.order(Order::Rest);
    }

    /// How long the responses waited for their ACKs, in nanoseconds, since this was asked last.
    pub(crate) fn acks(&self) -> Vec<u64> {
        let (tell, acks) = std::sync::mpsc::channel();
        self.order(Order::Acks(tell));
        acks.recv().expect("the origin lives")
    }

    fn order(&self, order: Order) {
        self.orders.send(order).expect("the origin lives");
    }
}

/// Changes that the origin makes by itself.
struct Churn {
    kind: Kind,
    every: Duration,
    next: Instant,
    at: usize,
}

/// A stream of the relay: that of its own node, or of a group.
struct Stream {
    frames: mpsc::UnboundedSender<Bytes>,
    topics: HashMap<String, Topic>,
}

#[derive(Default)]
struct State {
    held: HashMap<&'static str, Held>,
    /// By their numbers.
    streams: BTreeMap<u64, Stream>,
    nonce: u64,
    churn: Option<Churn>,
    /// When responses were sent that are not ACKed yet.
    sent: HashMap<String, u64>,
    acks: Vec<u64>,
}

async fn serve(mut orders: mpsc::UnboundedReceiver<Order>, tell: std::sync::mpsc::Sender<SocketAddr>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    tell.send(listener.local_addr().expect("an address")).expect("the bench lives");
    let (requests, mut asked) = mpsc::unbounded_channel();
    let opened = Arc::new(AtomicU64::new(0));
    let mut state = State::default();
    loop {
        let due = state.churn.as_ref().map(|churn| churn.next);
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                // A change that waits for the ACK of the one before is not what is measured.
                _ = socket.set_nodelay(true);
                let (requests, opened) = (requests.clone(), Arc::clone(&opened));
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        answer(request, opened.fetch_add(1, Ordering::Relaxed), requests.clone())
                    });
                    let io = hyper_util::rt::TokioIo::new(socket);
                    let mut http2 = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
                    // A stream for each group of the relay.
                    http2.initial_connection_window_size(16 << 20).max_concurrent_streams(None);
                    _ = http2.serve_connection(io, service).await;
                });
            }
            heard = asked.recv() => if let Some(heard) = heard { state.hear(heard) },
            order = orders.recv() => match order {
                Some(order) => state.obey(order),
                None => return,
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => state.tick(),
        }
    }
}

/// News of a stream, by its number.
enum Heard {
    Opened(u64, mpsc::UnboundedSender<Bytes>),
    Request(u64, Bytes),
}

async fn answer(
    request: http::Request<Incoming>,
    stream: u64,
    heard: mpsc::UnboundedSender<Heard>,
) -> Result<http::Response<impl http_body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (send, mut frames) = mpsc::unbounded_channel();
    _ = heard.send(Heard::Opened(stream, send));
    tokio::spawn(async move {
        let mut body = request.into_body();
        let mut buffer = BytesMut::new();
        while let Some(Ok(frame)) = body.frame().await {
            buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some((prefix, rest)) = buffer.split_first_chunk::<5>() {
                let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                if rest.len() < len {
                    break;
                }
                let message = buffer.split_to(5 + len).freeze().slice(5..);
                _ = heard.send(Heard::Request(stream, message));
            }
        }
    });
    let frames = futures_util::stream::poll_fn(move |cx| {
        frames.poll_recv(cx).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
    });
    let mut response = http::Response::new(StreamBody::new(frames));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    Ok(response)
}

impl State {
    fn obey(&mut self, order: Order) {
        match order {
            Order::Fill { kind, count, bytes, variants, done } => {
                let versions = (0..count).map(|at| (resource_name(at), FIRST_VERSION)).collect();
                self.held.insert(kind.type_url(), Held { versions, bytes, variants });
                // The side that filled it waits, unless it is gone with the whole bench.
                _ = done.send(());
            }
            Order::Change { kind, which, bytes } => {
                if let (Some(bytes), Some(held)) = (bytes, self.held.get_mut(kind.type_url())) {
                    held.bytes = bytes;
                }
                self.change(kind, &which);
            }
            Order::Churn { kind, per_second } => {
                let every = Duration::from_secs(1) / per_second as u32;
                self.churn = Some(Churn { kind, every, next: Instant::now(), at: 0 });
            }
            Order::Rest => self.churn = None,
            Order::Acks(tell) => _ = tell.send(std::mem::take(&mut self.acks)),
        }
    }

    /// Makes the change that is due. One that came late does not put off the next.
    fn tick(&mut self) {
        let Some(churn) = &mut self.churn else { return };
        let (kind, at) = (churn.kind, churn.at);
        churn.next += churn.every;
        churn.at += 1;
        let count = self.held.get(kind.type_url()).map_or(1, |held| held.versions.len().max(1));
        self.change(kind, &[at % count]);
    }

    fn change(&mut self, kind: Kind, which: &[usize]) {
        let names: Vec<String> = which.iter().copied().map(resource_name).collect();
        if let Some(held) = self.held.get_mut(kind.type_url()) {
            let now = monotonic_nanos();
            held.versions.extend(names.iter().map(|name| (name.clone(), now)));
        }
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream in streams {
            self.send(stream, kind.type_url(), names.clone(), None);
        }
    }

    fn hear(&mut self, heard: Heard) {
        let (number, message) = match heard {
            Heard::Opened(number, frames) => {
                self.streams.insert(number, Stream { frames, topics: HashMap::new() });
                return;
            }
            Heard::Request(number, message) => (number, message),
        };
        let Ok(request) = DeltaDiscoveryRequest::decode(message) else { return };
        if let Some(sent) = self.sent.remove(&request.response_nonce) {
            self.acks.push(monotonic_nanos() - sent);
        }
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let first = !stream.topics.contains_key(&request.type_url);
        let topic = stream.topics.entry(request.type_url.clone()).or_default();
        let subscribe = request.resource_names_subscribe;
        let located = request.resource_locators_subscribe;
        let wildcard = (first && subscribe.is_empty() && located.is_empty())
            || subscribe.iter().any(|name| name == "*")
            || located.iter().any(|locator| locator.name == "*");
        topic.wildcard |= wildcard;
        topic.located |= !located.is_empty();
        topic.names.extend(subscribe.iter().cloned());
        for name in &request.resource_names_unsubscribe {
            topic.wildcard &= name != "*";
            topic.names.remove(name);
        }
        let Some((&type_url, held)) = self.held.get_key_value(request.type_url.as_str()) else { return };
        let mut names: Vec<String> =
            if wildcard { held.versions.keys().cloned().collect() } else { subscribe };
        // As go-control-plane does: what is claimed and does not exist is gone.
        names.extend(
            request.initial_resource_versions.into_keys().filter(|name| !held.versions.contains_key(name)),
        );
        if !names.is_empty() {
            let mut sets: Vec<String> = located
                .into_iter()
                .filter_map(|mut locator| locator.dynamic_parameters.remove(PARAMETER))
                .collect();
            sets.sort_unstable();
            self.send(number, type_url, names, Some(&sets));
        }
    }

    /// Sends what is held of these names; of variants only those for some sets, which are in order, where any are said.
    fn send(&mut self, stream: u64, type_url: &'static str, names: Vec<String>, sets: Option<&[String]>) {
        let Some(Stream { frames, topics }) = self.streams.get(&stream) else { return };
        let Some(topic) = topics.get(type_url) else { return };
        let Some(held) = self.held.get(type_url) else { return };
        self.nonce += 1;
        let mut response = DeltaDiscoveryResponse {
            type_url: type_url.to_owned(),
            nonce: self.nonce.to_string(),
            ..DeltaDiscoveryResponse::default()
        };
        for name in names.into_iter().filter(|name| topic.wildcard || topic.names.contains(name)) {
            match held.versions.get(&name) {
                Some(version) if held.variants > 0 => {
                    let asked = |set: &String| sets.is_none_or(|sets| sets.binary_search(set).is_ok());
                    let variants = (0..held.variants).map(set_name).filter(asked).map(Named::For);
                    let variants =
                        variants.map(|named| named.resource(type_url, &name, *version, held.bytes));
                    response.resources.extend(variants);
                }
                Some(version) => {
                    let named = if topic.located { Named::ForAll } else { Named::Plainly };
                    response.resources.push(named.resource(type_url, &name, *version, held.bytes));
                }
                None => response.removed_resources.push(name),
            }
        }
        let mut framed = BytesMut::new();
        framed.put_u8(0);
        framed.put_u32(response.encoded_len() as u32);
        response.encode(&mut framed).expect("a BytesMut grows");
        self.sent.insert(response.nonce, monotonic_nanos());
        if frames.send(framed.freeze()).is_err() {
            // It ended; the next one asks anew.
            self.streams.remove(&stream);
        }
    }
}

/// How the name of a resource is written.
enum Named {
    /// As it has always been.
    Plainly,
    /// As to who asked by locators; it is for everybody.
    ForAll,
    /// A resource for one set of parameters.
    For(String),
}

impl Named {
    fn resource(&self, type_url: &str, name: &str, version: u64, bytes: usize) -> Bytes {
        let field = |number, value: &[u8]| {
            let mut out = BytesMut::new();
            wire::put_field(&mut out, number, value);
            out
        };
        let written = match self {
            Self::Plainly => field(3, name.as_bytes()),
            Self::ForAll => field(8, &field(1, name.as_bytes())),
            Self::For(set) => {
                // DynamicParameterConstraints, of them a SingleConstraint: a key and the value that it has to have.
                let single = [field(1, PARAMETER.as_bytes()), field(2, set.as_bytes())].concat();
                let constraints = field(1, &single);
                field(8, &[field(1, name.as_bytes()), field(2, &constraints)].concat())
            }
        };
        // `name` of a Cluster, `cluster_name` of endpoints; the rest is a field nobody reads.
        let padding = vec![version as u8; bytes.saturating_sub(name.len() + 4)];
        let body = [field(1, name.as_bytes()), field(15, &padding)].concat();
        let any = [field(1, type_url.as_bytes()), field(2, &body)].concat();
        let version = field(1, version.to_string().as_bytes());
        [written, version, field(2, &any)].concat().into()
    }
}
