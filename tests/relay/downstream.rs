//! The binary over real sockets: what a peer may do wrong, how streams end, and what the directory source shows.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse};
use deltafan_test_support::client::{
    CDS, DELTA_ADS, DELTA_CLUSTERS, Delta, EDS, FETCH_CLUSTERS, PATIENCE, SOTW_ADS, Sotw, connect, names,
    node, subscription, unary,
};
use deltafan_test_support::frames::{END_STREAM, HEADERS, only_call};
use deltafan_test_support::process::{Process, clusters, http1, relay};
use deltafan_test_support::wire::framed;
use prost::Message as _;
use tonic::Code;

/// A client that must not notice what another does: it gets what it asks for.
async fn is_served(relay: &Process) {
    is_served_with(relay, &["a", "b"]).await;
}

/// A client gets these clusters in the end.
async fn is_served_with(relay: &Process, clusters: &[&str]) {
    let mut stream = Delta::asking(&connect(&relay.uri()).await, "honest", CDS, &["*"]).await;
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
    let cds = CDS.to_owned();
    let node = Some(node("faulty"));
    let cases = [
        (
            "no type",
            DELTA_ADS,
            DeltaDiscoveryRequest { node: node.clone(), ..Default::default() },
            Code::InvalidArgument,
            "`type_url` is required",
        ),
        (
            "a type that is not the service's (R-EP-03)",
            DELTA_CLUSTERS,
            DeltaDiscoveryRequest { node: node.clone(), type_url: EDS.to_owned(), ..Default::default() },
            Code::InvalidArgument,
            "serves `type.googleapis.com/envoy.config.cluster.v3.Cluster`",
        ),
        (
            "no node",
            DELTA_ADS,
            DeltaDiscoveryRequest { type_url: cds.clone(), ..Default::default() },
            Code::InvalidArgument,
            "must carry `node`",
        ),
        (
            "a name of a megabyte",
            DELTA_ADS,
            DeltaDiscoveryRequest {
                node: node.clone(),
                type_url: cds.clone(),
                resource_names_subscribe: vec![long.clone()],
                ..Default::default()
            },
            Code::InvalidArgument,
            "is longer than 16384 bytes",
        ),
        (
            "a request over the limit",
            DELTA_ADS,
            DeltaDiscoveryRequest {
                node: node.clone(),
                type_url: cds.clone(),
                resource_names_subscribe: vec![long; 5],
                ..Default::default()
            },
            Code::ResourceExhausted,
            "over the limit of 4194304",
        ),
        (
            "a type of a megabyte",
            DELTA_ADS,
            DeltaDiscoveryRequest { node, type_url: "t".repeat(1 << 20), ..Default::default() },
            Code::InvalidArgument,
            "`type_url` is longer",
        ),
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
    assert_eq!(call(FETCH_CLUSTERS, grpc, Bytes::new()).await, status(Code::InvalidArgument), "no request");
    assert_eq!(
        call("/a.Service/Method", grpc, Bytes::new()).await,
        status(Code::Unimplemented),
        "unknown method"
    );
    assert_eq!(call(DELTA_ADS, "text/html", Bytes::new()).await, (415, None));
    assert_eq!(call("/nothing", "text/html", Bytes::new()).await, (404, None));
    assert_eq!(call(SOTW_ADS, grpc, Bytes::new()).await, status(Code::Ok), "a stream that ends at once");
    is_served(&relay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http2_are_turned_away() {
    let relay = relay("");
    let post =
        format!("POST {DELTA_ADS} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let (status, body) = http1(relay.listener, &post);
    assert_eq!(status, 426, "{body}");
    assert!(body.contains("HTTP/2"), "{body}");

    for garbage in [
        &[0_u8; 4096][..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense nonsense nonsense",
        b"\x16\x03\x01\x02\0\x01",
    ] {
        let mut socket = TcpStream::connect(relay.listener).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        _ = socket.write_all(garbage);
        _ = socket.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        _ = socket.read_to_end(&mut answer);
    }
    is_served(&relay).await;
}

/// gRPC's C core takes a DATA frame behind a status for a fault of the transport, and tells its user UNKNOWN.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_alone_ends_the_stream_with_its_headers() {
    let relay = relay("");
    let wrong_type = DiscoveryRequest { type_url: EDS.to_owned(), ..Default::default() };
    for (path, message) in [
        ("/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats", Vec::new()),
        (FETCH_CLUSTERS, wrong_type.encode_to_vec()),
        // A health check of a service that nobody has registered.
        ("/grpc.health.v1.Health/Check", b"\x0a\x01x".to_vec()),
    ] {
        let mut socket = TcpStream::connect(relay.listener).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&only_call(path, END_STREAM, &message)).unwrap();
        let flags = loop {
            let mut head = [0; 9];
            socket.read_exact(&mut head).unwrap();
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            socket.read_exact(&mut payload).unwrap();
            if head[3] == HEADERS {
                break head[4];
            }
        };
        assert_eq!(flags & END_STREAM, END_STREAM, "{path}");
    }
    is_served(&relay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_asks_nothing_is_closed() {
    let relay = relay("  first_request_timeout: 300ms\n");
    let status = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await.end().await;
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_is_followed_on_every_protocol() {
    let relay = relay("");
    let channel = connect(&relay.uri()).await;
    let mut delta = Delta::asking(&channel, "delta", CDS, &[]).await;
    let first = delta.response().await;
    assert_eq!(names(&first), ["a", "b"]);
    delta.ack(&first).await;
    let mut sotw = Sotw::asking(&channel, "sotw", CDS, &[]).await;
    let first = sotw.response().await;
    assert_eq!(first.resources.len(), 2);
    sotw.ack(&first, &[]).await;

    relay.write("clusters.yaml", &clusters(["b", "c"]));
    let change = delta.response().await;
    assert_eq!(names(&change), ["c"]);
    assert_eq!(change.removed_resources, ["a"]);
    assert_eq!(sotw.response().await.resources.len(), 2);

    relay.write("clusters.yaml", "type_url: [");
    relay.wait_for("the failing file in the metrics", || {
        relay.metric("deltafan_directory_failing_files") == 1.0
    });
    delta.ack(&change).await;
    delta.silence().await;

    let request = DiscoveryRequest { node: Some(node("fetch")), ..DiscoveryRequest::default() };
    let fetched = unary(&channel, FETCH_CLUSTERS, request.clone()).await.unwrap();
    assert_eq!(DiscoveryResponse::decode(fetched).unwrap().resources.len(), 2, "the last good state");
    let none = DiscoveryRequest { resource_names: vec!["none".to_owned()], ..request };
    let fetched = unary(&channel, FETCH_CLUSTERS, none).await.unwrap();
    assert_eq!(DiscoveryResponse::decode(fetched).unwrap().resources.len(), 0, "known to be absent");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_grow_old() {
    let relay = relay("  max_connection_age: 1s\n  stall_timeout: 1s\n");
    let mut stream = Delta::asking(&connect(&relay.uri()).await, "old", CDS, &["*"]).await;
    stream.response().await;
    let status = stream.end().await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    is_served(&relay).await;
}

/// A watch of the health service ends with nothing but its connection.
#[tokio::test(flavor = "multi_thread")]
async fn connections_grow_old_though_somebody_watches_their_health() {
    let relay = relay("  max_connection_age: 1s\n  stall_timeout: 1s\n");
    let mut socket = TcpStream::connect(relay.listener).unwrap();
    socket.write_all(&only_call("/grpc.health.v1.Health/Watch", 0, &[])).unwrap();
    relay.wait_for("the connection", || relay.metric("deltafan_connections") == 1.0);
    relay.wait_for("its end", || relay.metric("deltafan_connections") == 0.0);
}

/// A client that never says anything does not keep a place for half an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_is_closed() {
    let relay = relay("  first_request_timeout: 1s\n");
    let _socket = TcpStream::connect(relay.listener).unwrap();
    relay.wait_for("the connection", || relay.metric("deltafan_connections") == 1.0);
    relay.wait_for("its end", || relay.metric("deltafan_connections") == 0.0);
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

/// R-Relay-22: a response that has not begun is dropped for the newest, so that a closed window keeps no old state alive.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_a_window_is_sent_the_newest_state_when_it_opens() {
    let relay = relay("");
    let (socket, path) = (tokio::net::TcpStream::connect(relay.listener).await.unwrap(), DELTA_ADS);
    let (sender, mut connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(socket).await.unwrap();
    let (open, opened) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = &mut connection => return,
            _ = opened => connection.set_initial_window_size(1 << 20).unwrap(),
        }
        _ = connection.await;
    });
    let request =
        http::Request::post(format!("http://relay{path}")).header("content-type", "application/grpc");
    let mut sender = sender.ready().await.unwrap();
    let (response, mut requests) = sender.send_request(request.body(()).unwrap(), false).unwrap();
    let subscribe = subscription("waits", CDS, &["*"]).encode_to_vec();
    requests.send_data(framed(&subscribe).into(), false).unwrap();
    let mut responses = response.await.unwrap().into_body();
    relay.wait_for("the subscription", || {
        relay.metric("deltafan_requests_total{type=\"cds\",transport=\"delta\",result=\"subscribe\"}") == 1.0
    });
    for generation in ["c", "d", "e"] {
        relay.write("clusters.yaml", &clusters([generation]));
        is_served_with(&relay, &[generation]).await;
    }
    open.send(()).unwrap();
    let data = tokio::time::timeout(PATIENCE, responses.data()).await.unwrap().unwrap().unwrap();
    let response = DeltaDiscoveryResponse::decode(&data[5..]).unwrap();
    assert_eq!(names(&response), ["e"]);
}

/// R-ADS-03: an Envoy that comes back asks for one type after another, and what it is told depends on all of them.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_came_together_are_all_read_before_an_answer() {
    let many: Vec<String> = (0..40).map(|number| format!("cluster-{number:02}")).collect();
    let relay = Process::start(&[("clusters.yaml", &clusters(&many))], "");
    is_served_with(&relay, &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let socket = tokio::net::TcpStream::connect(relay.listener).await.unwrap();
    let (sender, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let request =
        http::Request::post(format!("http://relay{DELTA_ADS}")).header("content-type", "application/grpc");
    let mut sender = sender.ready().await.unwrap();
    let (response, mut requests) = sender.send_request(request.body(()).unwrap(), false).unwrap();
    let subscribe = |name: &String| {
        let request = DeltaDiscoveryRequest {
            resource_names_subscribe: vec![name.clone()],
            ..subscription("hasty", CDS, &[])
        };
        framed(&request.encode_to_vec())
    };
    requests.send_data(many.iter().flat_map(subscribe).collect(), false).unwrap();
    let mut responses = response.await.unwrap().into_body();
    let data = tokio::time::timeout(PATIENCE, responses.data()).await.unwrap().unwrap().unwrap();
    let response = DeltaDiscoveryResponse::decode(&data[5..]).unwrap();
    assert_eq!(names(&response).len(), many.len());
}
