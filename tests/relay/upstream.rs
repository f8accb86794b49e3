//! The relay as a client, over real sockets, against a scripted control plane.

use std::sync::Arc;

use deltafan::RelayIdentity;
use deltafan::cache::{
    Cache, Limits, Membership, Protocol, StreamProfile, Subscription, TtlSupport, WakeHandle,
};
use deltafan::upstream::{
    Backoff, Client, Counters, FailoverTimes, LivenessTimes, Mux, Options, Servers, Settings, Transport,
    Tuning, UpstreamState,
};
use deltafan_test_support::wire::framed;
use h2::RecvStream;
use h2::server::SendResponse;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::transport::Endpoint;

use crate::prelude::*;

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;

/// A server in cleartext, with the defaults of the keys.
pub(super) fn options(endpoint: Endpoint) -> Options {
    Options {
        endpoint,
        tls: None,
        backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(30)),
        max_message: 256 << 20,
        protocol: None,
        identity: RelayIdentity::default(),
        liveness: LivenessTimes::default(),
    }
}

/// The relay's upstream side alone.
pub(super) struct Relay {
    pub(super) cache: Arc<Cache>,
    pub(super) counters: Arc<Counters>,
    pub(super) state: watch::Receiver<UpstreamState>,
    _stop: DropGuard,
}

impl Relay {
    fn start(uri: &str) -> Self {
        Self::with_backoff(uri, Duration::from_millis(20), Duration::from_millis(200))
    }

    fn with_backoff(uri: &str, initial: Duration, max: Duration) -> Self {
        let endpoint = Transport::default().endpoint(uri).expect("a URI");
        Self::at(Options { backoff: Backoff::new(initial, max), ..options(endpoint) })
    }

    pub(super) fn at(options: Options) -> Self {
        let node = Node { id: "relay".to_owned(), ..Node::default() };
        let (linger, settle) = (Duration::from_millis(200), Duration::from_millis(10));
        let tuning = Tuning { settle, ..Tuning::default() };
        let settings = Settings { node, linger, tuning, ..Settings::default() };
        Self::on(Servers::new(options, [], FailoverTimes::default()), settings)
    }

    pub(super) fn on(servers: Servers, settings: Settings) -> Self {
        let (cache, writer) = Cache::new(Limits::default());
        let (_, tuned) = watch::channel((settings.tuning, Limits::default()));
        let mut client = Client::on(Mux::new(writer, settings), Arc::new(servers), tuned);
        let (counters, state, stop) =
            (Arc::clone(client.counters()), client.state(), CancellationToken::new());
        let stopped = stop.clone();
        tokio::spawn(async move { client.run(stopped).await });
        Self { cache, counters, state, _stop: stop.drop_guard() }
    }

    pub(super) fn client(&self, kind: Kind, wildcard: bool, names: &[&str]) -> Membership {
        let subscription = Subscription::new(wildcard, names.iter().map(|name| (*name).into()));
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let of = self.cache.of(&kind.into()).expect("few types");
        of.join(subscription, profile, &Arc::new(WakeHandle::default()))
    }

    pub(super) fn version(&self, kind: Kind, name: &str) -> Option<String> {
        let snapshot = self.cache.of(&kind.into()).expect("few types").snapshot();
        snapshot.by_name(name).present().map(|resource| resource.version().to_owned())
    }

    /// Waits until the cache holds this.
    pub(super) async fn holds(&self, kind: Kind, name: &str, version: &str) {
        eventually("version in the cache", async || self.version(kind, name).as_deref() == Some(version))
            .await;
    }
}

fn send(stream: &OriginStream, kind: Kind, nonce: &str, resources: &[(&str, &str)]) {
    stream.send(&changes(kind, nonce, resources, &[]));
}

async fn deliver(stream: &mut OriginStream, kind: Kind, nonce: &str, resources: &[(&str, &str)]) {
    send(stream, kind, nonce, resources);
    stream.expect_ack(nonce).await;
}

/// A control plane, a relay with a client of all clusters, and the stream on which it has asked for them.
async fn asked() -> (Origin, Relay, Membership, OriginStream) {
    let mut origin = Origin::start().await;
    let relay = Relay::start(&origin.uri());
    let client = relay.client(CDS, true, &[]);
    let stream = origin.accept_asked().await;
    (origin, relay, client, stream)
}

/// The kernel of a frozen server goes on completing TCP connections: they are no reason to call it reachable.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_07_a_server_that_only_accepts_is_not_connected() {
    for says in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let uri = format!("http://{}", server.local_addr().expect("an address"));
        let accepting = tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                let (mut socket, _) = server.accept().await.expect("a connection");
                tokio::io::AsyncWriteExt::write_all(&mut socket, says).await.expect("room");
                held.push(socket);
            }
        });
        let transport = Transport { connect_timeout: Duration::from_millis(200), ..Transport::default() };
        let relay = Relay::at(options(transport.endpoint(&uri).expect("a URI")));
        eventually("second failure", async || relay.counters.connect_failures.get() >= 2).await;
        assert_eq!(relay.counters.connects.get(), 0);
        let why = relay.state.borrow().last_error.clone().expect("a reason");
        let expected = if says.is_empty() { "has not answered within" } else { "does not speak HTTP/2" };
        assert!(why.contains(expected), "{why}");
        accepting.abort();
    }
}

/// A refused connection costs the control plane nothing. One that is accepted and then reset may be
/// of a control plane under load.
#[tokio::test]
async fn r_up_07_a_refused_relay_is_back_within_5_s_and_one_that_is_reset_waits() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let hour = Duration::from_secs(3_600);
    let reset = Relay::with_backoff(&format!("http://{address}"), hour, hour);
    drop(listener.accept().await.expect("a connection"));
    eventually("failure", async || reset.counters.connect_failures.get() == 1).await;
    drop(listener);
    let refused = Relay::with_backoff(&format!("http://{address}"), hour, hour);
    eventually("two refusals", async || refused.counters.connect_failures.get() >= 2).await;
    let (mut origin, back_at) = (Origin::listen(address).await, Instant::now());
    let _client = refused.client(CDS, true, &[]);
    let _stream = origin.accept_asked().await;
    assert!(back_at.elapsed() < Duration::from_secs(5), "{:?}", back_at.elapsed());
    assert!(refused.state.borrow().connected);
    assert_eq!(reset.counters.connect_failures.get(), 1);
    assert!(!reset.state.borrow().connected);
}

#[tokio::test]
async fn r_up_07_only_a_response_resets_the_back_off() {
    let mut origin = Origin::start().await;
    let relay = Relay::with_backoff(&origin.uri(), Duration::from_millis(30), Duration::from_secs(600));
    let _client = relay.client(CDS, true, &[]);
    // Streams that end without a response: eight of them take up to 30 · 2⁸ ms in sum, and half of it on average.
    let start = Instant::now();
    for _ in 0..8 {
        let stream = origin.accept_asked().await;
        stream.fail(Status::unavailable("not yet"));
    }
    let mut stream = origin.accept().await;
    assert!(start.elapsed() > Duration::from_millis(300), "{:?}", start.elapsed());
    for _ in 0..8 {
        stream.expect_request().await;
        deliver(&mut stream, CDS, "1", &[]).await;
        assert!(relay.state.borrow().answered);
        stream.close();
        let before = Instant::now();
        stream = origin.accept().await;
        // Far less than the ninth wait, which takes 30 · 2⁸ ms = 7.7 s on average.
        assert!(before.elapsed() < Duration::from_secs(3), "A57: reconnect at once");
    }
}

#[tokio::test]
async fn r_up_09_a_connection_that_went_dead_is_noticed() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let uri = format!("http://{}", listener.local_addr().expect("an address"));
    let probe = Duration::from_millis(100);
    let transport = Transport { keepalive_interval: probe, keepalive_timeout: probe, ..Transport::default() };
    let relay = Relay::at(options(transport.endpoint(&uri).expect("a URI")));
    let _client = relay.client(CDS, true, &[]);
    // Accepted, and then nothing.
    let first = listener.accept().await.expect("a connection");
    let again = timeout(PATIENCE, listener.accept()).await;
    assert!(again.is_ok(), "the relay still waits for {:?}", first.1);
}

#[tokio::test]
async fn r_up_23_a_large_response_is_taken() {
    let (_origin, relay, _client, mut stream) = asked().await;
    let large = resource(&CDS.into(), "c", "v", &vec![b'x'; 10 << 20]);
    stream
        .deliver(&DeltaDiscoveryResponse { resources: vec![large], ..response(&CDS.into(), "large") })
        .await;
    relay.holds(CDS, "c", "v").await;
}

#[tokio::test]
async fn an_origin_that_does_not_read_is_not_queued_for() {
    let mut origin = Origin::start().await;
    let relay = Relay::start(&origin.uri());
    let _first = relay.client(EDS, false, &["e0"]);
    let mut stream = origin.accept().await;
    let mut clients = Vec::new();
    for n in 0..100 {
        let names: Vec<String> = (0..20).map(|m| format!("{n}-{m}-{}", "x".repeat(200))).collect();
        clients.push(relay.client(EDS, false, &names.iter().map(String::as_str).collect::<Vec<_>>()));
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let sent = relay.counters.requests.get();
    assert!(sent < 40, "{sent} requests for a stream that takes none");
    let mut asked = 0;
    while asked < 1 + 100 * 20 {
        asked += stream.expect_request().await.resource_names_subscribe.len();
    }
    // In requests of 16 KiB.
    assert!(relay.counters.requests.get() < 75, "what could not be sent goes out together");
}

#[test]
fn a_bad_uri_is_named() {
    for uri in ["", "control-plane:18000", "http://", "not a uri"] {
        let error = Transport::default().endpoint(uri).expect_err(uri).to_string();
        assert!(error.contains(&format!("`{uri}`")) && error.contains("http://HOST:PORT"), "{error}");
    }
}

/// An origin that reads its ACKs, but not as fast as it sends.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_small_responses_does_not_end_the_stream() {
    let (_origin, relay, _client, mut stream) = asked().await;
    for n in 0..40_000 {
        send(&stream, CDS, &n.to_string(), &[(&format!("c{n}"), "v1")]);
    }
    let reading = tokio::spawn(async move { while stream.next_request().await.is_some() {} });
    let start = Instant::now();
    while relay.version(CDS, "c39999").is_none() && start.elapsed() < PATIENCE {
        assert_eq!(
            relay.counters.stream_failures.get(),
            0,
            "after {} responses and {} requests: {:?}",
            relay.counters.responses.get(),
            relay.counters.requests.get(),
            relay.state.borrow().last_error
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    relay.holds(CDS, "c39999", "v1").await;
    reading.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_primary_leaves_a_turn_to_clients() {
    let (_origin, relay, _client, mut stream) = asked().await;
    let flood = 20_000;
    // A few in one response: each takes some time to apply.
    for n in 0..flood {
        let names: Vec<String> = (0..5).map(|m| format!("c{}-{m}", n % 200)).collect();
        let version = n.to_string();
        let of: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), version.as_str())).collect();
        send(&stream, CDS, "n", &of);
    }
    eventually("hundred responses", async || relay.counters.responses.get() > 100).await;
    let _named = relay.client(EDS, false, &["e"]);
    let from = relay.counters.responses.get();
    let start = Instant::now();
    let mut count = 0;
    loop {
        let Ok(Some(request)) = timeout(PATIENCE, stream.next_request()).await else {
            break;
        };
        count += 1;
        if request.type_url == TypeUrl::from(EDS).as_str() {
            break;
        }
    }
    let read = relay.counters.responses.get() - from;
    assert!(
        read < 1_000,
        "the client was asked for after {read} more responses of {flood}, {count} requests and {:?}; failures {}, {:?}",
        start.elapsed(),
        relay.counters.stream_failures.get(),
        relay.state.borrow().last_error
    );
}

/// Streams to a server by h2: the request of each as `read` gives it, with the way to answer.
fn streams_of<T: Send + 'static>(
    listener: TcpListener,
    read: fn(http::Request<RecvStream>) -> T,
) -> UnboundedReceiver<(T, SendResponse<Bytes>)> {
    let (tell, told) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    _ = tell.send((read(request), respond));
                }
            });
        }
    });
    told
}

fn head(status: u16, content: &str) -> http::Response<()> {
    let head = http::Response::builder().status(status).header("content-type", content);
    head.body(()).expect("good headers")
}

#[tokio::test]
async fn answers_that_are_not_grpc_are_told_and_survived() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let relay = Relay::start(&format!("http://{}", listener.local_addr().expect("it is bound")));
    let _client = relay.client(CDS, true, &[]);
    let mut streams = streams_of(listener, http::Request::into_body);
    let mut next =
        async || timeout(PATIENCE, streams.recv()).await.expect("a stream in time").expect("a server");
    // The first is a gateway in front of a control plane that is away.
    for (status, content, bytes, trailers, says) in [
        (
            503,
            "text/html",
            &b"<html>"[..],
            None,
            "UNAVAILABLE: the answer is none of gRPC: HTTP status 503, content-type `text/html`",
        ),
        (200, "application/grpc", b"", Some(&[("7", "no base64!")][..]), "PERMISSION_DENIED"),
        (200, "application/grpc", &[1, 0, 0, 0, 1, 0], Some(&[]), "INTERNAL: a message is compressed"),
        (200, "application/grpc", &[0, 0, 0, 0, 9, 0], None, "UNKNOWN: the call ended without a status"),
        (
            200,
            "application/grpc",
            &[0, 0, 0, 0, 9, 0],
            Some(&[("0", "")]),
            "INTERNAL: the call ended within a message",
        ),
    ] {
        let (_requests, mut respond) = next().await;
        let mut body = respond.send_response(head(status, content), false).expect("an open stream");
        body.send_data(Bytes::from_static(bytes), trailers.is_none()).expect("an open stream");
        for (code, details) in trailers.into_iter().flatten() {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", code.parse().expect("a value"));
            trailers.insert("grpc-status-details-bin", details.parse().expect("a value"));
            body.send_trailers(trailers).expect("an open stream");
        }
        let is_said = || relay.state.borrow().last_error.as_deref().is_some_and(|error| error.contains(says));
        eventually(says, async || is_said()).await;
    }

    let (_requests, mut respond) = next().await;
    let mut body = respond.send_response(head(200, "application/grpc+proto"), false).expect("an open stream");
    let mut answer = response(&CDS.into(), "1");
    answer.resources = vec![resource(&CDS.into(), "c", "v1", b"")];
    for byte in framed(&answer.encode_to_vec()) {
        body.send_data(Bytes::copy_from_slice(&[byte]), false).expect("an open stream");
    }
    relay.holds(CDS, "c", "v1").await;
}

/// Also behind a proxy, to which the connection stands.
#[tokio::test]
async fn a_server_that_restarts_or_is_busy_is_asked_by_delta_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let relay = Relay::start(&format!("http://{}", listener.local_addr().expect("it is bound")));
    let _client = relay.client(CDS, true, &[]);
    let mut streams = streams_of(listener, |request| request.uri().path().to_owned());
    let mut next = async |method: &str| {
        let (path, respond) =
            timeout(PATIENCE, streams.recv()).await.expect("a stream in time").expect("a server");
        assert!(path.ends_with(method), "{path}");
        respond
    };
    let status = |code: &'static str| {
        let mut head = head(200, "application/grpc");
        head.headers_mut().insert("grpc-status", code.parse().expect("a value"));
        head
    };
    for code in ["0", "1", "2", "4", "7", "8", "13", "14", "16"] {
        next("/DeltaAggregatedResources").await.send_response(status(code), true).expect("an open stream");
    }
    next("/DeltaAggregatedResources")
        .await
        .send_response(head(503, "text/html"), true)
        .expect("an open stream");
    for reason in [h2::Reason::REFUSED_STREAM, h2::Reason::ENHANCE_YOUR_CALM] {
        next("/DeltaAggregatedResources").await.send_reset(reason);
    }
    // One that resets streams of either protocol says nothing about delta.
    for _ in 0..3 {
        next("/DeltaAggregatedResources").await.send_reset(h2::Reason::CANCEL);
        next("/StreamAggregatedResources").await.send_reset(h2::Reason::CANCEL);
    }
    next("/DeltaAggregatedResources").await;
}

/// The stream of a census may end for many reasons.
#[tokio::test]
async fn r_up_22_a_census_that_is_lost_is_repeated_and_one_that_is_refused_is_not() {
    let mut origin = Origin::start().await;
    origin.implement(true, true);
    let relay = Relay::start(&origin.uri());
    let _client = relay.client(CDS, true, &[]);
    let mut upstream = origin.accept().await;
    upstream.answers_no_end_mark();
    upstream.expect_request().await;
    send(&upstream, CDS, "1", &[("c1", "v1")]);
    relay.cache.of(&CDS.into()).expect("few types").ask_for_proof();
    for end in [Status::unavailable("a restart"), Status::unimplemented("there is no such method")] {
        let mut census = origin.accept_sotw().await;
        census.expect_request().await;
        census.fail(end);
    }
    let other = timeout(Duration::from_secs(3), origin.accept_sotw()).await;
    assert!(other.is_err(), "a census after it was refused");
}
