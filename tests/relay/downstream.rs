//! The binary over real sockets: what a peer may do wrong, how streams end, and what the directory source shows.

use std::io::Write as _;
use std::net::TcpStream;

use deltafan_test_support::frames::{END_STREAM, HEADERS, only_call, read_frame};
use deltafan_test_support::wire::framed;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use tokio::sync::oneshot;
use tonic::metadata::MetadataMap;

use crate::prelude::*;

/// A client that must not notice what another does: it gets what it asks for.
async fn is_served(relay: &Process) {
    is_served_with(relay, &["a", "b"]).await;
}

/// A client gets these clusters in the end.
async fn is_served_with(relay: &Process, clusters: &[&str]) {
    let mut stream = relay.client("honest", &["*"]).await;
    let mut held = BTreeSet::new();
    while !held.iter().eq(clusters) {
        let response = stream.take().await;
        held.extend(names(&response));
        held.retain(|name| !response.removed_resources.contains(name));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_request_close_its_stream_with_a_clear_status() {
    let relay = relay("");
    let channel = connect(&relay.uri()).await;
    let long = "x".repeat(1 << 20);
    let of = |type_url: &str, names: &[&str]| subscription("faulty", type_url, names);
    let nobody = DeltaDiscoveryRequest { node: None, ..of(CDS, &[]) };
    let wrong = Code::InvalidArgument;
    let cases = [
        ("no type", DELTA_ADS, of("", &[]), wrong, "`type_url` is required"),
        (
            "a type that is not the service's (R-EP-03)",
            DELTA_CLUSTERS,
            of(EDS, &[]),
            wrong,
            "serves `type.googleapis.com/envoy.config.cluster.v3.Cluster`",
        ),
        ("no node", DELTA_ADS, nobody, wrong, "must carry `node`"),
        ("a name of a megabyte", DELTA_ADS, of(CDS, &[&long]), wrong, "is longer than 16384 bytes"),
        (
            "a request over the limit",
            DELTA_ADS,
            of(CDS, &[&*long; 5]),
            Code::ResourceExhausted,
            "over the limit of 4194304",
        ),
        ("a type of a megabyte", DELTA_ADS, of(&long, &[]), wrong, "`type_url` is longer"),
    ];
    for (what, method, request, code, message) in cases {
        let mut stream = Delta::open(&channel, method).await;
        stream.send(request).await;
        let status = stream.end().await;
        assert_eq!(status.code(), code, "{what}: {status:?}");
        assert!(status.message().contains(message), "{what}: {status:?}");
        assert!(status.message().len() < 400, "{what}: a message fit for a log");
    }
    is_served(&relay).await;
    assert!(
        relay.metric("deltafan_streams_ended_total{transport=\"delta\",code=\"invalid_argument\"}") >= 5.0
    );
}

/// Bytes that are no gRPC, or no message of the method, sent over a real HTTP/2 stream.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_request_close_their_stream_only() {
    let relay = relay("");
    let socket = tokio::net::TcpStream::connect(relay.listener).await.unwrap();
    let (mut h2, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(socket),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let call = |path: &'static str, content_type: &'static str, body: Bytes| {
        let request = http::Request::post(format!("http://relay{path}")).header("content-type", content_type);
        let answer = h2.send_request(request.body(http_body_util::Full::new(body)).unwrap());
        async move {
            let response = answer.await.unwrap();
            let (parts, body) = response.into_parts();
            let body = http_body_util::BodyExt::collect(body).await.unwrap();
            let trailer = body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned());
            let code = parts.headers.get("grpc-status").cloned().or(trailer);
            (parts.status.as_u16(), code.map(|code| code.to_str().unwrap().to_owned()))
        }
    };
    let mut call = call;
    let grpc = "application/grpc";
    let status = |code: Code| (200, Some((code as i32).to_string()));
    let garbage = Bytes::from_static(b"\0\0\0\0\x03\xff\xff\xff");
    assert_eq!(call(DELTA_ADS, grpc, garbage).await, status(Code::InvalidArgument), "no protobuf");
    let compressed = Bytes::from_static(b"\x01\0\0\0\0");
    assert_eq!(call(DELTA_ADS, grpc, compressed).await, status(Code::Unimplemented), "compressed");
    let cut = Bytes::from_static(b"\0\0\0\0\x09abc");
    assert_eq!(call(SOTW_ADS, grpc, cut).await, status(Code::InvalidArgument), "cut off");
    let huge = Bytes::from_static(b"\0\xff\xff\xff\xff");
    assert_eq!(call(SOTW_ADS, grpc, huge).await, status(Code::ResourceExhausted), "4 GiB foretold");
    let fetch = "/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters";
    for unknown in ["/a.Service/Method", fetch] {
        assert_eq!(call(unknown, grpc, Bytes::new()).await, status(Code::Unimplemented), "{unknown}");
    }
    assert_eq!(call(DELTA_ADS, "text/html", Bytes::new()).await, (415, None));
    assert_eq!(call("/nothing", "text/html", Bytes::new()).await, (404, None));
    assert_eq!(call(SOTW_ADS, grpc, Bytes::new()).await, status(Code::Ok), "a stream that ends at once");
    is_served(&relay).await;
}

/// gRPC's C core takes a DATA frame behind a status for a fault of the transport, and tells its user UNKNOWN.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_alone_ends_the_stream_with_its_headers() {
    let relay = relay("");
    for (path, message) in [
        ("/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats", Vec::new()),
        // A health check of a service that nobody has registered.
        ("/grpc.health.v1.Health/Check", b"\x0a\x01x".to_vec()),
    ] {
        let mut socket = TcpStream::connect(relay.listener).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&only_call(path, END_STREAM, &message)).unwrap();
        let flags = loop {
            let (kind, flags, ..) = read_frame(&mut socket).unwrap();
            if kind == HEADERS {
                break flags;
            }
        };
        assert_eq!(flags & END_STREAM, END_STREAM, "{path}");
    }
    is_served(&relay).await;
}

/// A client that never says anything does not keep a place for half an hour, be it a relay or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_or_connection_that_asks_nothing_is_closed() {
    let relay = relay("  first_request_timeout: 300ms\n");
    let socket = TcpStream::connect(relay.listener).unwrap();
    relay.wait_for("the connection", || relay.metric("deltafan_connections") == 1.0);
    relay.wait_for("its end", || relay.metric("deltafan_connections") == 0.0);
    drop(socket);
    let mut of_relays = MetadataMap::new();
    of_relays.insert("x-deltafan-relay", "another/1".parse().unwrap());
    for headers in [MetadataMap::new(), of_relays] {
        let mut stream = Delta::open_with(&connect(&relay.uri()).await, DELTA_ADS, headers).await;
        let status = stream.end().await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    }
}

/// A watch of the health service ends with nothing but its connection.
#[tokio::test(flavor = "multi_thread")]
async fn connections_grow_old() {
    let relay = relay("  max_connection_age: 1s\n  stall_timeout: 1s\n");
    let mut stream = relay.client("old", &["*"]).await;
    let mut watch = TcpStream::connect(relay.listener).unwrap();
    watch.write_all(&only_call("/grpc.health.v1.Health/Watch", 0, &[])).unwrap();
    stream.response().await;
    let status = stream.end().await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    relay.wait_for("the end of both", || relay.metric("deltafan_connections") == 0.0);
    is_served(&relay).await;
}

/// R-Relay-22: who takes nothing is given up, and nobody else notices.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_22_a_connection_that_takes_nothing_is_closed() {
    let many: Vec<String> = (0..20_000).map(|number| format!("cluster-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let relay = Process::start(&[("clusters.yaml", &clusters(&many))], "  stall_timeout: 1s\n");
    let connections = || relay.metric("deltafan_connections");

    // An HTTP/2 client that opens no window beyond the default and never reads.
    let mut socket = TcpStream::connect(relay.listener).unwrap();
    let request =
        DiscoveryRequest { node: Some(node("stuck")), type_url: CDS.to_owned(), ..Default::default() };
    socket.write_all(&only_call(SOTW_ADS, 0, &request.encode_to_vec())).unwrap();
    relay.wait_for("the connection", || connections() == 1.0);
    relay.wait_for("its end", || connections() == 0.0);

    let mut stream = Sotw::asking(&connect(&relay.uri()).await, "healthy", CDS, &[]).await;
    assert_eq!(stream.response().await.resources.len(), many.len());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    stream.silence().await;
}

/// A connection of a client that has this window, until the sender says that it opens.
pub(crate) async fn raw(relay: &Process, window: u32) -> (SendRequest<Bytes>, oneshot::Sender<()>) {
    let socket = tokio::net::TcpStream::connect(relay.listener).await.unwrap();
    let (sender, mut connection) =
        h2::client::Builder::new().initial_window_size(window).handshake(socket).await.unwrap();
    let (open, opened) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = &mut connection => return,
            Ok(()) = opened => connection.set_initial_window_size(1 << 20).unwrap(),
        }
        _ = connection.await;
    });
    (sender, open)
}

/// A delta stream on it whose requests are any bytes.
pub(crate) async fn raw_stream(connection: &SendRequest<Bytes>) -> (SendStream<Bytes>, ResponseFuture) {
    let request =
        http::Request::post(format!("http://relay{DELTA_ADS}")).header("content-type", "application/grpc");
    let mut connection = connection.clone().ready().await.unwrap();
    let (response, requests) = connection.send_request(request.body(()).unwrap(), false).unwrap();
    (requests, response)
}

/// Names in the first response on such a stream.
pub(crate) async fn first_names(response: ResponseFuture) -> Vec<String> {
    let mut responses = response.await.unwrap().into_body();
    let data = tokio::time::timeout(PATIENCE, responses.data()).await.unwrap().unwrap().unwrap();
    names(&DeltaDiscoveryResponse::decode(&data[5..]).unwrap())
}

/// R-Relay-22: a response that has not begun is dropped for the newest, so that a closed window keeps no old state alive.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_a_window_is_sent_the_newest_state_when_it_opens() {
    let relay = relay("");
    let (connection, open) = raw(&relay, 0).await;
    let (mut requests, response) = raw_stream(&connection).await;
    let subscribe = subscription("waits", CDS, &["*"]).encode_to_vec();
    requests.send_data(framed(&subscribe).into(), false).unwrap();
    relay.wait_for("the subscription", || {
        relay.metric("deltafan_requests_total{type=\"cds\",transport=\"delta\",result=\"subscribe\"}") == 1.0
    });
    for generation in ["c", "d", "e"] {
        relay.write("clusters.yaml", &clusters([generation]));
        is_served_with(&relay, &[generation]).await;
    }
    open.send(()).unwrap();
    assert_eq!(first_names(response).await, ["e"]);
}

/// R-ADS-03: an Envoy that comes back asks for one type after another, and what it is told depends on all of them.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_came_together_are_all_read_before_an_answer() {
    let many: Vec<String> = (0..40).map(|number| format!("cluster-{number:02}")).collect();
    let relay = Process::start(&[("clusters.yaml", &clusters(&many))], "");
    is_served_with(&relay, &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (connection, _open) = raw(&relay, 1 << 20).await;
    let (mut requests, response) = raw_stream(&connection).await;
    let subscribe = |name: &String| framed(&subscription("hasty", CDS, &[name]).encode_to_vec());
    requests.send_data(many.iter().flat_map(subscribe).collect(), false).unwrap();
    assert_eq!(first_names(response).await.len(), many.len());
}
