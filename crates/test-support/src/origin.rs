//! A control plane that does what the test says.
//!
//! It speaks `DeltaAggregatedResources`, and `StreamAggregatedResources` where a test says so, over real sockets and has no
//! mind of its own: the test accepts streams, looks at requests and sends responses. Everything that waits gives up after [`PATIENCE`].

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use deltafan::grpc::BytesCodec;
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse};
use deltafan::resource::{Kind, Name, TypeUrl, wire};
use futures_util::{Stream, StreamExt as _};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

pub use crate::PATIENCE;

/// A listening control plane. Dropping it closes everything.
#[derive(Debug)]
pub struct Origin {
    address: SocketAddr,
    streams: mpsc::UnboundedReceiver<OriginStream>,
    sotw_streams: mpsc::UnboundedReceiver<SotwOriginStream>,
    is_relay: Arc<AtomicBool>,
    protocols: Arc<Protocols>,
    health: HealthReporter,
    leaves_checks: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl Origin {
    /// Listens on a free port.
    pub async fn start() -> Self {
        Self::listen((crate::own_loopback(), 0).into()).await
    }

    /// Listens on this address.
    pub async fn listen(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port to listen on");
        let address = listener.local_addr().expect("an address");
        let (accepted, streams) = mpsc::unbounded_channel();
        let (accepted_sotw, sotw_streams) = mpsc::unbounded_channel();
        let protocols = Arc::<Protocols>::default();
        let stop = CancellationToken::new();
        let is_relay = Arc::new(AtomicBool::new(false));
        let (health, health_service) = tonic_health::server::health_reporter();
        let leaves_checks = Arc::new(AtomicBool::new(false));
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(64 << 10)
            .add_service(Health { service: health_service, leaves_checks: Arc::clone(&leaves_checks) })
            .add_service(Service {
                accepted,
                accepted_sotw,
                is_relay: Arc::clone(&is_relay),
                protocols: Arc::clone(&protocols),
            })
            .serve_with_incoming(TcpListenerStream::new(listener).map(|socket| {
                // A small response would wait for the ACK of the one before, and that for a timer.
                socket.and_then(|socket| socket.set_nodelay(true).map(|()| socket))
            }));
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(server).await });
        Self { address, streams, sotw_streams, is_relay, protocols, health, leaves_checks, stop }
    }

    /// Listens where another one did, as soon as the last connection leaves the port.
    pub async fn listen_again(address: SocketAddr) -> Self {
        crate::eventually("the port", async || TcpListener::bind(address).await.is_ok()).await;
        Self::listen(address).await
    }

    /// Says on streams that are opened from now on whether it is a relay.
    pub fn set_relay(&self, is_relay: bool) {
        self.is_relay.store(is_relay, Ordering::Relaxed);
    }

    /// Implements, from now on, these of both protocols.
    pub fn implement(&self, delta: bool, sotw: bool) {
        self.protocols.lacks_delta.store(!delta, Ordering::Relaxed);
        self.protocols.has_sotw.store(sotw, Ordering::Relaxed);
    }

    /// Resets, from now on, delta streams that are opened, as rust-control-plane does.
    pub fn reset_delta(&self, resets: bool) {
        self.protocols.resets_delta.store(resets, Ordering::Relaxed);
    }

    /// The next state-of-the-world stream that a client opens.
    pub async fn accept_sotw(&mut self) -> SotwOriginStream {
        within(self.sotw_streams.recv()).await.expect("the server runs")
    }

    /// Says, as a relay, whether its own control plane answers it.
    pub async fn says(&self, is_answered: bool) {
        let status = if is_answered { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.health.set_service_status("deltafan.upstream", status).await;
    }

    /// Leaves health checks unanswered from now on, or answers them. Streams and watches go on.
    pub fn leave_checks(&self, leaves: bool) {
        self.leaves_checks.store(leaves, Ordering::Relaxed);
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URI of it.
    pub fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next stream that a client opens.
    pub async fn accept(&mut self) -> OriginStream {
        within(self.streams.recv()).await.expect("the server runs")
    }

    /// The next stream that a client opens, whose first request is taken away.
    pub async fn accept_asked(&mut self) -> OriginStream {
        let mut stream = self.accept().await;
        stream.expect_request().await;
        stream
    }

    /// The next stream that a client opens, however long it takes.
    pub async fn next_stream(&mut self) -> Option<OriginStream> {
        self.streams.recv().await
    }

    /// Whether no client opens a stream for so long.
    pub async fn is_quiet_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.streams.recv()).await.is_err()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Protocols that a control plane implements; delta only unless it is told otherwise.
#[derive(Debug, Default)]
struct Protocols {
    lacks_delta: AtomicBool,
    resets_delta: AtomicBool,
    has_sotw: AtomicBool,
}

/// One state-of-the-world stream of a client.
pub type SotwOriginStream = OriginStream<DiscoveryRequest>;

/// One stream of a client. As go-control-plane does, it answers the end mark in the first response of a type; the test sees requests
/// and sends responses without it.
#[derive(Debug)]
pub struct OriginStream<Q = DeltaDiscoveryRequest> {
    peer: Option<SocketAddr>,
    requests: Streaming<Bytes>,
    responses: mpsc::UnboundedSender<Result<Bytes, Status>>,
    /// Types of which the end mark is to be answered; `None` if it answers none.
    end_marks: Mutex<Option<BTreeSet<String>>>,
    of: PhantomData<Q>,
}

/// Request as a control plane sees it that knows no end mark.
pub trait Asks: Message + Default + std::fmt::Debug + 'static {
    type Answer: Message + Clone;

    /// This request without the end mark; `None` if it is about that alone.
    fn without_end_mark(self) -> Option<Self>;

    /// Type of which it claims the end mark.
    fn claims_end_mark(&self) -> Option<&str> {
        None
    }

    /// Nonce of the response that it answers, and the fault that it tells.
    fn answers(&self) -> (&str, bool);

    fn nonce(answer: &Self::Answer) -> &str;

    /// Answers the end mark with this response, if it is one of these types.
    fn end(_: &mut Self::Answer, _: &mut BTreeSet<String>) {}
}

impl Asks for DeltaDiscoveryRequest {
    type Answer = DeltaDiscoveryResponse;

    fn claims_end_mark(&self) -> Option<&str> {
        self.initial_resource_versions.contains_key(Name::END_MARK).then_some(&self.type_url)
    }

    fn without_end_mark(mut self) -> Option<Self> {
        self.initial_resource_versions.remove(Name::END_MARK);
        self.resource_names_subscribe.retain(|name| name != Name::END_MARK);
        let was_left = self.resource_names_unsubscribe == [Name::END_MARK];
        self.resource_names_unsubscribe.retain(|name| name != Name::END_MARK);
        let says_else = !(self.response_nonce.is_empty() && self.resource_names_subscribe.is_empty());
        (says_else || !was_left).then_some(self)
    }

    fn answers(&self) -> (&str, bool) {
        (&self.response_nonce, self.error_detail.is_some())
    }

    fn nonce(answer: &DeltaDiscoveryResponse) -> &str {
        &answer.nonce
    }

    fn end(answer: &mut DeltaDiscoveryResponse, marks: &mut BTreeSet<String>) {
        if marks.remove(&answer.type_url) {
            answer.removed_resources.push(Name::END_MARK.to_owned());
        }
    }
}

impl Asks for DiscoveryRequest {
    type Answer = DiscoveryResponse;

    fn without_end_mark(self) -> Option<Self> {
        Some(self)
    }

    fn answers(&self) -> (&str, bool) {
        (&self.response_nonce, self.error_detail.is_some())
    }

    fn nonce(answer: &DiscoveryResponse) -> &str {
        &answer.nonce
    }
}

impl<Q: Asks> OriginStream<Q> {
    /// The client's end of the connection: the same for streams that share one.
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The next request.
    pub async fn expect_request(&mut self) -> Q {
        within(self.next_request()).await.expect("a request, not the end of the stream")
    }

    /// The next request, however long it takes; `None` at the end of the stream.
    pub async fn next_request(&mut self) -> Option<Q> {
        loop {
            let request = self.requests.message().await.ok().flatten()?;
            let request = Q::decode(request).expect("a request");
            let claimed = request.claims_end_mark().map(str::to_owned);
            self.end_marks.lock().iter_mut().for_each(|marks| marks.extend(claimed.clone()));
            if let Some(request) = request.without_end_mark() {
                return Some(request);
            }
        }
    }

    /// Answers no end mark from now on, as java-control-plane does.
    pub fn answers_no_end_mark(&self) {
        *self.end_marks.lock() = None;
    }

    /// Waits until the client gives the stream up.
    pub async fn expect_end(&mut self) {
        let end = within(self.requests.message()).await;
        assert!(!matches!(end, Ok(Some(_))), "the end of the stream, not {end:?}");
    }

    /// Whether the client says nothing for so long.
    pub async fn is_quiet_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.next_request()).await.is_err()
    }

    /// Sends a response, and waits for its ACK.
    pub async fn deliver(&mut self, response: &Q::Answer) {
        self.send(response);
        self.expect_ack(Q::nonce(response)).await;
    }

    /// Takes the next request away, and delivers this.
    pub async fn answer(&mut self, response: &Q::Answer) {
        self.expect_request().await;
        self.deliver(response).await;
    }

    /// The next request, which has to be the ACK of this nonce.
    pub async fn expect_ack(&mut self, nonce: &str) {
        let request = self.expect_request().await;
        assert_eq!(request.answers(), (nonce, false), "an ACK: {request:?}");
    }

    /// Sends a response.
    pub fn send(&self, response: &Q::Answer) {
        let mut response = response.clone();
        self.end_marks.lock().iter_mut().for_each(|marks| Q::end(&mut response, marks));
        self.send_bytes(response.encode_to_vec().into());
    }

    /// Sends any bytes as a message.
    pub fn send_bytes(&self, message: Bytes) {
        self.responses.send(Ok(message)).expect("the stream is open");
    }

    /// Sends any bytes as a message, if the stream is still open.
    pub fn try_send_bytes(&self, message: Bytes) -> bool {
        self.responses.send(Ok(message)).is_ok()
    }

    /// Ends the stream in order.
    pub fn close(self) {}

    /// Ends the stream with an error.
    pub fn fail(self, status: Status) {
        self.responses.send(Err(status)).expect("the stream is open");
    }
}

/// A state of the world of a type, with its version as the nonce, of resources by name and content.
pub fn state(type_url: &TypeUrl, version: &str, resources: &[(&str, &str)]) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: version.to_owned(),
        resources: resources.iter().map(|(name, content)| named_any(type_url, name, content)).collect(),
        type_url: type_url.as_str().to_owned(),
        nonce: version.to_owned(),
        ..Default::default()
    }
}

/// An encoded `Any` of a resource that has its name in its first field.
pub fn named_any(type_url: &TypeUrl, name: &str, content: &str) -> Bytes {
    let (mut body, mut any) = (BytesMut::new(), BytesMut::new());
    wire::put_field(&mut body, 1, name.as_bytes());
    // A field that nobody has.
    wire::put_field(&mut body, 15, content.as_bytes());
    wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
    wire::put_field(&mut any, 2, &body);
    any.freeze()
}

/// An encoded `Any` of a `Resource`: an element of a state of the world that is wrapped.
pub fn wrapped(resource: &Bytes) -> Bytes {
    let mut any = BytesMut::new();
    wire::put_field(&mut any, 1, b"type.googleapis.com/envoy.service.discovery.v3.Resource");
    wire::put_field(&mut any, 2, resource);
    any.freeze()
}

/// A response of a type, to which resources are added.
pub fn response(type_url: &TypeUrl, nonce: &str) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        type_url: type_url.as_str().to_owned(),
        nonce: nonce.to_owned(),
        ..Default::default()
    }
}

/// A response of clusters in a version, which is its nonce too.
pub fn clusters_at(version: &str, names: &[&str]) -> DeltaDiscoveryResponse {
    let cds = TypeUrl::from(Kind::Cluster);
    let resources = names.iter().map(|name| resource(&cds, name, version, b"")).collect();
    DeltaDiscoveryResponse { resources, system_version_info: version.to_owned(), ..response(&cds, version) }
}

/// A response of resources by name and version, and of names that are gone.
pub fn changes(kind: Kind, nonce: &str, held: &[(&str, &str)], gone: &[&str]) -> DeltaDiscoveryResponse {
    let of = TypeUrl::from(kind);
    DeltaDiscoveryResponse {
        resources: held.iter().map(|(name, version)| resource(&of, name, version, b"")).collect(),
        removed_resources: gone.iter().map(ToString::to_string).collect(),
        ..response(&of, nonce)
    }
}

/// An encoded `Resource`; what is in it is of no importance.
pub fn resource(type_url: &TypeUrl, name: &str, version: &str, body: &[u8]) -> Bytes {
    let mut any = BytesMut::new();
    wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
    wire::put_field(&mut any, 2, body);
    let mut out = BytesMut::new();
    wire::put_field(&mut out, 3, name.as_bytes());
    wire::put_field(&mut out, 1, version.as_bytes());
    wire::put_field(&mut out, 2, &any);
    out.freeze()
}

/// An encoded `Resource` with a TTL; without a body it is a heartbeat.
pub fn timed(type_url: &TypeUrl, name: &str, version: &str, body: Option<&[u8]>, ttl: Duration) -> Bytes {
    let mut out = BytesMut::new();
    match body {
        Some(body) => out.extend_from_slice(&resource(type_url, name, version, body)),
        None => {
            wire::put_field(&mut out, 3, name.as_bytes());
            wire::put_field(&mut out, 1, version.as_bytes());
        }
    }
    let mut seconds = BytesMut::from(&[1 << 3][..]);
    wire::encode_varint(ttl.as_secs(), &mut seconds);
    wire::put_field(&mut out, 6, &seconds);
    out.freeze()
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("this happens in time")
}

#[derive(Clone, Debug)]
struct Service {
    accepted: mpsc::UnboundedSender<OriginStream>,
    accepted_sotw: mpsc::UnboundedSender<SotwOriginStream>,
    is_relay: Arc<AtomicBool>,
    protocols: Arc<Protocols>,
}

/// Health service whose checks a test may leave unanswered.
#[derive(Clone, Debug)]
struct Health<S> {
    service: S,
    leaves_checks: Arc<AtomicBool>,
}

impl<S: NamedService> NamedService for Health<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> tower::Service<http::Request<Body>> for Health<S>
where
    S: tower::Service<http::Request<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let is_left = request.uri().path().ends_with("/Check") && self.leaves_checks.load(Ordering::Relaxed);
        let answer = self.service.call(request);
        Box::pin(async move { if is_left { std::future::pending().await } else { answer.await } })
    }
}

impl NamedService for Service {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { accepted, accepted_sotw, is_relay, protocols } = self.clone();
        let is_sotw = request.uri().path().ends_with("/StreamAggregatedResources");
        let is_delta = request.uri().path().ends_with("/DeltaAggregatedResources");
        assert!(is_sotw || is_delta, "{}", request.uri());
        let is_relay = is_relay.load(Ordering::Relaxed);
        let lacks = if is_sotw {
            !protocols.has_sotw.load(Ordering::Relaxed)
        } else {
            protocols.lacks_delta.load(Ordering::Relaxed)
        };
        let resets = is_delta && protocols.resets_delta.load(Ordering::Relaxed);
        Box::pin(async move {
            if resets {
                // A panic, of which nothing is printed, ends the task of the stream.
                std::panic::resume_unwind(Box::new("not implemented"));
            }
            if lacks {
                return Ok(Status::unimplemented("").into_http());
            }
            let mut grpc = Grpc::new(BytesCodec);
            let mut response = if is_sotw {
                grpc.streaming(Accept(accepted_sotw), request).await
            } else {
                grpc.streaming(Accept(accepted), request).await
            };
            if is_relay {
                response.headers_mut().insert("x-deltafan-relay", http::HeaderValue::from_static("1"));
            }
            Ok(response)
        })
    }
}

/// Hands a stream to the test.
struct Accept<Q>(mpsc::UnboundedSender<OriginStream<Q>>);

impl<Q> StreamingService<Bytes> for Accept<Q> {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (responses, mut queue) = mpsc::unbounded_channel();
        let peer = request.remote_addr();
        let stream = OriginStream {
            peer,
            requests: request.into_inner(),
            responses,
            end_marks: Mutex::new(Some(BTreeSet::new())),
            of: PhantomData,
        };
        if self.0.send(stream).is_err() {
            return ready(Err(Status::unavailable("the test is over")));
        }
        ready(Ok(Response::new(Box::pin(futures_util::stream::poll_fn(move |context| {
            queue.poll_recv(context)
        })))))
    }
}
