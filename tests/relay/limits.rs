//! The binary over real sockets: who gets no more than is theirs, what they are told, and that it is counted.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest};
use deltafan_test_support::client::{
    CDS, DELTA_ADS, Delta, EDS, PATIENCE, SOTW_ADS, Sotw, connect, names, node, sotw_subscription,
    subscription, unary, versions,
};
use deltafan_test_support::http1::Http1;
use deltafan_test_support::process::{Process, clusters, relay};
use deltafan_test_support::wire::framed;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use prost::Message as _;
use socket2::{Domain, Socket, Type};
use tokio::sync::mpsc;
use tonic::Code;

fn refused(relay: &Process, reason: &str) -> f64 {
    relay.metric(&format!("deltafan_refused_total{{reason=\"{reason}\"}}"))
}

/// A client that must not notice what another does: it gets what it asks for, and what changes.
async fn live(relay: &Process) -> Delta {
    live_with(relay, &["a", "b"]).await
}

/// A client that must not notice what another does, where these are all clusters.
async fn live_with(relay: &Process, all: &[&str]) -> Delta {
    let mut stream = Delta::asking(&connect(&relay.uri()).await, "honest", CDS, &["*"]).await;
    let first = stream.response().await;
    assert_eq!(names(&first), all);
    stream.ack(&first).await;
    stream
}

async fn goes_on(relay: &Process, stream: &mut Delta, new: &str) {
    relay.write("clusters.yaml", &clusters(["a", "b", new]));
    let next = stream.response().await;
    assert_eq!(names(&next), [new]);
    stream.ack(&next).await;
}

/// Whether a connection is served: one that is not ends without an answer.
fn is_open(mut socket: &TcpStream) -> bool {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = b"POST /v3/discovery:clusters HTTP/1.1\r\nhost: relay\r\ncontent-length: 2\r\n\r\n{}";
    socket.write_all(request).is_ok() && socket.read(&mut [0; 1]).is_ok_and(|read| read > 0)
}

fn connect_from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

#[test]
fn connections_are_limited_in_all_and_per_address() {
    let relay = relay("  max_connections: 3\n  max_connections_per_address: 2\n");
    let one = [127, 0, 0, 1];
    let mut open = vec![connect_from(one, relay.listener), connect_from(one, relay.listener)];
    assert!(open.iter().all(is_open));
    assert!(!is_open(&connect_from(one, relay.listener)), "a third of one address");
    assert_eq!(refused(&relay, "max_connections_per_address"), 1.0);
    open.push(connect_from([127, 0, 0, 2], relay.listener));
    assert!(is_open(&open[2]), "another address has its own");
    assert!(!is_open(&connect_from([127, 0, 0, 3], relay.listener)), "a fourth of all");
    assert_eq!(refused(&relay, "max_connections"), 1.0);
    open.clear();
    relay.wait_for("the end of the three", || relay.metric("deltafan_connections") == 0.0);
    assert!(is_open(&connect_from(one, relay.listener)), "their places are free again");
    let said = relay.wait_for_message("a connection is refused; raise the limit if this load is expected");
    let raise: Vec<_> = said.iter().map(|event| event["raise"].as_str().unwrap()).collect();
    assert_eq!(raise, ["downstream.max_connections_per_address", "downstream.max_connections"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_bomb_ends_whatever_it_is_sent_over() {
    let relay = relay("  max_names: 5000\n");
    let mut honest = live(&relay).await;
    let channel = connect(&relay.uri()).await;
    let batch = |number: u32| (0..1000).map(move |at| format!("bomb-{number}-{at}"));

    let mut delta = Delta::open(&channel, DELTA_ADS).await;
    for number in 0..6 {
        delta
            .send(DeltaDiscoveryRequest {
                resource_names_subscribe: batch(number).collect(),
                ..subscription("bomb", EDS, &[])
            })
            .await;
    }
    let status = ends(&mut delta).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("more than 5000 names"), "{status:?}");
    assert_eq!(refused(&relay, "max_names"), 1.0);

    let mut sotw = Sotw::open(&channel, SOTW_ADS).await;
    for number in 0..6 {
        sotw.send(DiscoveryRequest {
            resource_names: (0..=number).flat_map(batch).collect(),
            ..sotw_subscription("bomb", EDS, &[])
        })
        .await;
    }
    assert_eq!(sotw.end().await.code(), Code::ResourceExhausted);
    assert_eq!(refused(&relay, "max_names"), 2.0);

    for count in [5_001, 80_000] {
        let names: Vec<String> = (0..count).map(|at| format!("n{at}")).collect();
        let body = serde_json::json!({"node": {"id": "bomb"}, "resource_names": names}).to_string();
        let answer = Http1::connect(relay.listener).poll("endpoints", &body);
        assert_eq!(answer.status, 413, "{}", answer.body);
    }
    assert_eq!(refused(&relay, "max_names"), 4.0);
    goes_on(&relay, &mut honest, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_a_connection_share_a_limit_of_names() {
    let relay = relay("  max_names_per_connection: 250\n");
    let mut honest = live(&relay).await;
    let channel = connect(&relay.uri()).await;
    let ask = async |stream: &mut Delta, type_url: &str, from: usize| {
        let request = DeltaDiscoveryRequest {
            resource_names_subscribe: (from..from + 100).map(|at| format!("n{at}")).collect(),
            ..subscription("bomb", type_url, &[])
        };
        stream.send(request).await;
    };
    let mut first = Delta::open(&channel, DELTA_ADS).await;
    ask(&mut first, EDS, 0).await;
    first.response().await;
    ask(&mut first, CDS, 0).await;
    first.response().await;
    let mut second = Delta::open(&channel, DELTA_ADS).await;
    ask(&mut second, EDS, 0).await;
    let status = ends(&mut second).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("more than 250 names over all streams and requests"), "{status:?}");
    assert_eq!(refused(&relay, "max_names_per_connection"), 1.0);

    // The names of the stream went with it, another connection has its own, and to ask again is not to ask for more.
    ask(&mut first, EDS, 0).await;
    first.response().await;
    let mut third = Delta::asking(&channel, "bomb", CDS, &["a", "b"]).await;
    third.response().await;
    let mut other = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    ask(&mut other, EDS, 100).await;
    other.response().await;
    assert_eq!(refused(&relay, "max_names_per_connection"), 1.0);

    // A Fetch and a poll count as streams do.
    let resource_names: Vec<String> = (0..100).map(|at| format!("n{at}")).collect();
    let request = DiscoveryRequest { node: Some(node("bomb")), resource_names, ..Default::default() };
    let fetch = "/envoy.service.endpoint.v3.EndpointDiscoveryService/FetchEndpoints";
    let status = unary(&channel, fetch, request).await.expect_err("too many beside those of the streams");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let names: Vec<String> = (0..251).map(|at| format!("n{at}")).collect();
    let body = serde_json::json!({"node": {"id": "bomb"}, "resource_names": names}).to_string();
    let answer = Http1::connect(relay.listener).poll("endpoints", &body);
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert_eq!(refused(&relay, "max_names_per_connection"), 3.0);
    goes_on(&relay, &mut honest, "after").await;
}

/// Bytes that the kernel keeps for a connection of the relay's: written, and not acknowledged.
fn queued(relay: &Process, client: SocketAddr) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ports = [relay.listener.port(), client.port()].map(|port| format!(":{port:04X}"));
    let line = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields.len() > 4 && fields[1].ends_with(&ports[0]) && fields[2].ends_with(&ports[1]));
    u64::from_str_radix(line.unwrap()[4].split_once(':').unwrap().0, 16).unwrap()
}

/// R-Relay-22: by default the kernel would keep megabytes for each.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_reads_nothing_keeps_little_in_the_kernel() {
    let many: Vec<String> = (0..20_000).map(|number| format!("cluster-{number:0>100}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let relay = Process::start(&[("clusters.yaml", &clusters(&many))], "");
    let body = serde_json::json!({"node": {"id": "deaf"}}).to_string();
    let mut client = TcpStream::connect(relay.listener).unwrap();
    let head =
        format!("POST /v3/discovery:clusters HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write_all((head + &body).as_bytes()).unwrap();
    let address = client.local_addr().unwrap();
    relay.wait_for("an answer that is not read", || queued(&relay, address) > 0);
    std::thread::sleep(Duration::from_millis(500));
    let queued = queued(&relay, address);
    assert!(queued < 256 << 10, "{queued} bytes");
}

/// Status with which a stream ends, whatever it is told before.
async fn ends(stream: &mut Delta) -> tonic::Status {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no end");
        match stream.next_message().await {
            Ok(Some(_)) => {}
            Ok(None) => return tonic::Status::ok(""),
            Err(status) => return status,
        }
    }
}

/// Names of 80 bytes, and a wildcard client of a relay that has a resource for each.
async fn bring_back(
    downstream: &str,
    initial_resource_versions: HashMap<String, String>,
) -> (Process, Delta) {
    let all = (0..500).map(|number| format!("c{number:0>79}")).collect::<Vec<_>>();
    let all = clusters(&all);
    let relay = Process::start(&[("clusters.yaml", &all)], downstream);
    let stream = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    stream
        .send(DeltaDiscoveryRequest { initial_resource_versions, ..subscription("large", CDS, &["*"]) })
        .await;
    (relay, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_client_comes_back_with_more_versions_than_it_may_subscribe_to_names() {
    let narrow = "  max_names: 10\n  max_subscription_bytes: 1KiB\n  max_request_bytes: 4KiB\n  \
        max_buffered_request_bytes_per_connection: 8KiB\n";
    let (_relay, mut first) = bring_back(narrow, HashMap::new()).await;
    let held: HashMap<_, _> = versions(&first.response().await).into_iter().collect();
    assert_eq!(held.len(), 500);
    let (_relay, mut again) = bring_back(narrow, held.clone()).await;
    let answer = again.response().await;
    assert_eq!((answer.resources.len(), answer.removed_resources.len()), (0, 0), "it holds all there is");
    let (_relay, mut with_others) =
        bring_back(narrow, held.into_iter().chain([("gone".to_owned(), "1".to_owned())]).collect()).await;
    let first = with_others.response().await;
    assert_eq!((first.resources.len(), first.removed_resources.len()), (0, 0), "it may have routes to gone");
    with_others.ack(&first).await;
    assert_eq!(with_others.response().await.removed_resources, ["gone"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_brings_more_versions_than_are_held_is_answered_as_if_it_brought_none() {
    for (key, limit) in [
        ("max_initial_version_bytes_per_connection", "  max_initial_version_bytes_per_connection: 20KiB\n"),
        ("max_initial_version_bytes", "  max_initial_version_bytes: 20KiB\n"),
    ] {
        let held = (0..500).map(|number| (format!("c{number:0>79}"), "1".to_owned())).collect();
        let (relay, mut stream) = bring_back(limit, held).await;
        let answer = stream.response().await;
        assert_eq!((answer.resources.len(), answer.removed_resources.len()), (500, 0), "{key}");
        assert_eq!(refused(&relay, key), 1.0);
        let said = relay.wait_for_message("a client reached a limit; raise it if this load is expected");
        assert_eq!(said[0]["raise"], format!("downstream.{key}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_request_that_takes_longer_than_it_may_take_to_begin_is_taken_in() {
    let relay = relay("  first_request_timeout: 1s\n");
    let request = DeltaDiscoveryRequest {
        initial_resource_versions: (0..500).map(|n| (format!("gone-{n}"), "1".to_owned())).collect(),
        ..subscription("slow link", CDS, &["*"])
    }
    .encode_to_vec();
    let request = Bytes::from(framed(&request));
    let mut h2 = raw(&relay).await;
    let (pieces, response) = call(&mut h2);
    let start = Instant::now();
    for piece in request.chunks(request.len().div_ceil(10)) {
        // Refused where the stream has ended, which the answer tells.
        _ = pieces.send(request.slice_ref(piece)).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(start.elapsed() > Duration::from_secs(1));
    let mut body = response.await.unwrap().into_body();
    let frame = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
    let answer = frame.into_data().expect("an answer, and not the end of the stream");
    let answer = DeltaDiscoveryResponse::decode(answer.slice(5..)).unwrap();
    assert_eq!(names(&answer), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_answers_nothing_is_closed_and_one_that_answers_is_not() {
    let relay = relay("  unacked_timeout: 1s\n  ack_timeout: 100ms\n");
    let mut honest = live(&relay).await;
    let mut silent = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    let start = Instant::now();
    silent.subscribe("silent", CDS, &["*"]).await;
    silent.response().await;
    // Being told more, as its gate opens by itself, gives it no more time.
    relay.write("clusters.yaml", &clusters(["a", "b", "c"]));
    assert_eq!(names(&silent.response().await), ["c"]);
    honest.take().await;
    let status = silent.end().await;
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("ACK or NACK what is sent"), "{status:?}");
    assert_eq!(refused(&relay, "unacked_timeout"), 1.0);
    relay.write("clusters.yaml", &clusters(["a", "b", "c", "d"]));
    assert_eq!(names(&honest.response().await), ["d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_stream_is_asked_to_go() {
    let relay = relay("  idle_timeout: 300ms\n");
    let mut honest = live(&relay).await;
    let socket = tokio::net::TcpStream::connect(relay.listener).await.unwrap();
    let (_requests, connection) =
        hyper::client::conn::http2::handshake::<_, _, http_body_util::Empty<Bytes>>(
            hyper_util::rt::TokioExecutor::new(),
            hyper_util::rt::TokioIo::new(socket),
        )
        .await
        .unwrap();
    let start = Instant::now();
    tokio::time::timeout(PATIENCE, connection).await.expect("it is asked to go").expect("in good order");
    assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
    assert_eq!(refused(&relay, "idle_timeout"), 1.0);
    relay.wait_for("the other one alone", || relay.metric("deltafan_connections") == 1.0);
    goes_on(&relay, &mut honest, "after").await;
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>;

/// A connection on which requests are sent as bytes.
async fn raw(relay: &Process) -> SendRequest<Body> {
    let socket = tokio::net::TcpStream::connect(relay.listener).await.unwrap();
    let (h2, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(socket),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    h2
}

/// A delta stream, whose requests are what goes into the channel.
fn call(
    h2: &mut SendRequest<Body>,
) -> (mpsc::Sender<Bytes>, impl Future<Output = hyper::Result<http::Response<Incoming>>> + use<>) {
    let (pieces, mut outgoing) = mpsc::channel::<Bytes>(1);
    let body = StreamBody::new(futures_util::stream::poll_fn(move |cx| {
        outgoing.poll_recv(cx).map(|piece| piece.map(|piece| Ok(http_body::Frame::data(piece))))
    }));
    let request = http::Request::post(format!("http://relay{DELTA_ADS}"))
        .header("content-type", "application/grpc")
        .body(body.boxed_unsync())
        .unwrap();
    (pieces, h2.send_request(request))
}

/// Streams that have begun a message and do not end it.
async fn partial(relay: &Process, streams: usize, bytes: usize) -> Vec<Option<String>> {
    let mut h2 = raw(relay).await;
    let mut open = Vec::new();
    for _ in 0..streams {
        let (pieces, response) = call(&mut h2);
        let mut message = BytesMut::from(&[0][..]);
        message.put_u32(1 << 20);
        message.resize(bytes, 0);
        pieces.send(message.freeze()).await.unwrap();
        let mut body = response.await.unwrap().into_body();
        let status = async move {
            while let Some(frame) = body.frame().await {
                if let Ok(trailers) = frame.ok()?.into_trailers() {
                    return Some(trailers.get("grpc-status")?.to_str().ok()?.to_owned());
                }
            }
            None
        };
        open.push((pieces, tokio::spawn(status)));
    }
    let mut ended = Vec::new();
    for (pieces, status) in open {
        let status = tokio::time::timeout(Duration::from_secs(2), status).await;
        ended.push(status.ok().and_then(Result::unwrap));
        // Kept open until here.
        drop(pieces);
    }
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_whole_are_bounded_per_connection() {
    let relay = relay("  max_buffered_request_bytes_per_connection: 1MiB\n");
    let mut honest = live(&relay).await;
    let ended = partial(&relay, 4, 400 << 10).await;
    let exhausted = Some((Code::ResourceExhausted as i32).to_string());
    assert!(ended.contains(&exhausted), "{ended:?}");
    assert!(ended.contains(&None), "what fits is not refused: {ended:?}");
    assert!(refused(&relay, "max_buffered_request_bytes_per_connection") >= 1.0);
    goes_on(&relay, &mut honest, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_whole_are_bounded_in_all() {
    let relay = relay("  max_buffered_request_bytes: 4MiB\n  stall_timeout: 1s\n");
    let ended = futures_util::future::join_all((0..6).map(|_| partial(&relay, 1, 500 << 10))).await.concat();
    assert!(ended.contains(&Some((Code::ResourceExhausted as i32).to_string())), "{ended:?}");
    assert!(refused(&relay, "max_buffered_request_bytes") >= 1.0);
    // A request that fits is given up when it does not get on.
    assert!(ended.contains(&Some((Code::DeadlineExceeded as i32).to_string())), "{ended:?}");
    assert!(refused(&relay, "stall_timeout") >= 1.0);
    live(&relay).await;
}

#[test]
fn polls_whose_body_is_to_come_are_counted() {
    let relay = relay("rest: {max_polls_per_peer: 1}\n");
    let begun = b"POST /v3/discovery:clusters HTTP/1.1\r\nhost: relay\r\ncontent-length: 2\r\n\r\n{";
    let mut clients = [Http1::connect(relay.listener), Http1::connect(relay.listener)];
    clients.iter_mut().for_each(|client| client.send(begun));
    relay.wait_for("a refusal", || refused(&relay, "max_polls_per_peer") == 1.0);
    // A poll that needs no place is answered all the same.
    assert_eq!(Http1::connect(relay.listener).poll("clusters", "{}").status, 200);
    clients.iter_mut().for_each(|client| client.send(b"}"));
    let mut statuses = clients.each_mut().map(|client| client.answer().unwrap().status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429], "the one that came first has the place");
}

/// As over HTTP/2. A head that never ends would be kept until its time is over, at no name's or body's charge.
#[test]
fn heads_over_http1_are_bounded() {
    let relay = relay("");
    let mut client = Http1::connect(relay.listener);
    let head = format!("GET /v3/discovery:clusters HTTP/1.1\r\nhost: relay\r\nx: {}", "x".repeat(16 << 10));
    client.send(&head.as_bytes()[..16 << 10]);
    assert_eq!(client.answer().map(|answer| answer.status), Some(431));
    assert_eq!(Http1::connect(relay.listener).poll("clusters", "{}").status, 200);
}

/// A body that takes memory for as long as its connection is open.
fn hog(relay: &Process, bytes: usize) -> TcpStream {
    let mut socket = TcpStream::connect(relay.listener).unwrap();
    let head = "POST /v3/discovery:clusters HTTP/1.1\r\nhost: relay\r\ncontent-length: 268435456\r\n\r\n";
    socket.write_all(head.as_bytes()).unwrap();
    let piece = vec![b' '; 1 << 20];
    for _ in 0..bytes >> 20 {
        // It may be closed for it.
        if socket.write_all(&piece).is_err() {
            break;
        }
    }
    socket
}

/// A request takes up to twice its length while it comes, by the sizes of its pieces, and a connection has a quarter of the
/// bytes of all.
const ROOM_FOR_A_HOG: &str = "  max_request_bytes: 256MiB\n  max_buffered_request_bytes: 4GiB\n  \
    max_buffered_request_bytes_per_connection: 1GiB\n  first_request_timeout: 1h\n";

#[tokio::test(flavor = "multi_thread")]
async fn above_the_first_watermark_newcomers_are_refused_until_there_is_memory() {
    let relay = relay(&format!("{ROOM_FOR_A_HOG}  memory: {{refuse_above: 200MiB, close_above: 0}}\n"));
    let mut honest = live(&relay).await;
    let channel = connect(&relay.uri()).await;
    // So that it stands before memory is short.
    let mut first = Delta::asking(&channel, "first", CDS, &["*"]).await;
    first.response().await;
    let hog = hog(&relay, 240 << 20);
    relay.wait_for("memory to be short", || relay.metric("deltafan_memory_bytes{what=\"resident\"}") > 210e6);
    relay.wait_for("a connection to be refused", || !is_open(&TcpStream::connect(relay.listener).unwrap()));
    assert!(refused(&relay, "memory_refuse_above") >= 1.0);
    // A new stream on a connection that is open.
    let status = unary(&channel, DELTA_ADS, DeltaDiscoveryRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("short of memory"), "{status:?}");
    let (code, text) = relay.admin_get("/ready");
    assert_eq!(code, 503, "{text}");
    assert!(text.contains("memory"), "{text}");
    goes_on(&relay, &mut honest, "during").await;
    drop(hog);
    relay.wait_for("memory", || is_open(&TcpStream::connect(relay.listener).unwrap()));
    assert_eq!(
        relay.wait_for_message("memory is available again: new connections and streams are served").len(),
        1
    );
}

/// Memory that was freed is no reason to refuse anybody, and goes back to the system though nothing happens.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_burst_of_names_newcomers_are_served() {
    let files = [("clusters.yaml", &*clusters(["a"]))];
    let memory = "  memory: {refuse_above: 160MiB, close_above: 0}\n";
    let relay = Process::on_directory("unsubscribe_linger: 1s", &files, memory);
    let attack = |attacker: usize, server: String| async move {
        let stream = Delta::open(&connect(&server).await, DELTA_ADS).await;
        let names: Vec<String> = (0..2_000).map(|name| format!("{attacker}-{name:0>80}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        stream.subscribe("attacker", EDS, &names).await;
        std::future::pending::<()>().await;
    };
    let mut attackers = tokio::task::JoinSet::new();
    for attacker in 0..1_000 {
        if relay.admin_get("/ready").0 == 503 {
            break;
        }
        attackers.spawn(attack(attacker, relay.uri()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    relay.wait_for("memory to be short", || relay.admin_get("/ready").0 == 503);
    drop(attackers);
    relay.wait_for("nobody to be there", || relay.metric("deltafan_connections") == 0.0);
    let _one = TcpStream::connect(relay.listener).unwrap();
    relay.wait_for("memory", || relay.admin_get("/ready").0 == 200);
    live_with(&relay, &["a"]).await;
    let resident = || relay.metric("deltafan_memory_bytes{what=\"resident\"}");
    relay.wait_for("the system to have it back", || resident() < 100e6);
}

#[tokio::test(flavor = "multi_thread")]
async fn above_the_second_watermark_those_that_cost_most_are_closed_first() {
    let relay = relay(&format!("{ROOM_FOR_A_HOG}  memory: {{refuse_above: 0, close_above: 200MiB}}\n"));
    let mut honest = live(&relay).await;
    let _hog = hog(&relay, 240 << 20);
    relay.wait_for("the hog to be closed", || refused(&relay, "memory_close_above") >= 1.0);
    relay.wait_for("its end", || relay.metric("deltafan_connections") == 1.0);
    assert_eq!(refused(&relay, "memory_close_above"), 1.0, "nobody else was closed");
    goes_on(&relay, &mut honest, "after").await;
}
