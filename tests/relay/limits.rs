//! The binary over real sockets: who gets no more than is theirs, what they are told, and that it is counted.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use bytes::{BufMut as _, BytesMut};
use deltafan_test_support::process::LISTENERS;
use socket2::{Domain, Socket, Type};

use crate::downstream::{raw, raw_stream};
use crate::prelude::*;

fn refused(relay: &Process, reason: &str) -> f64 {
    relay.metric(&format!("deltafan_refused_total{{reason=\"{reason}\"}}"))
}

/// A client that must not notice what another does: it gets what it asks for, and what changes.
async fn live(relay: &Process) -> Delta {
    let mut stream = relay.client("honest", &["*"]).await;
    assert_eq!(names(&stream.take().await), ["a", "b"]);
    stream
}

async fn goes_on(relay: &Process, stream: &mut Delta, new: &str) {
    relay.write("clusters.yaml", &clusters(["a", "b", new]));
    assert_eq!(names(&stream.take().await), [new]);
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
    let said = relay.wait_for_message("a client reached a limit; raise it if this load is expected");
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
        let resource_names_subscribe = batch(number).collect();
        let more = DeltaDiscoveryRequest { resource_names_subscribe, ..subscription("bomb", EDS, &[]) };
        delta.send(more).await;
    }
    let status = ends(&mut delta).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("more than 5000 names"), "{status:?}");
    assert_eq!(refused(&relay, "max_names"), 1.0);

    let mut sotw = Sotw::open(&channel, SOTW_ADS).await;
    for number in 0..6 {
        let resource_names = (0..=number).flat_map(batch).collect();
        sotw.send(DiscoveryRequest { resource_names, ..sotw_subscription("bomb", EDS, &[]) }).await;
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

    // A poll counts as a stream does.
    let names: Vec<String> = (0..251).map(|at| format!("n{at}")).collect();
    let body = serde_json::json!({"node": {"id": "bomb"}, "resource_names": names}).to_string();
    let answer = Http1::connect(relay.listener).poll("endpoints", &body);
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert_eq!(refused(&relay, "max_names_per_connection"), 2.0);
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
    let many = (0..20_000).map(|number| format!("cluster-{number:0>100}"));
    let relay = Process::start(&[("clusters.yaml", &clusters(many))], "");
    let mut client = Http1::connect(relay.listener);
    client.request("POST /v3/discovery:clusters", "", r#"{"node": {"id": "deaf"}}"#);
    let address = client.socket().local_addr().unwrap();
    relay.wait_for("an answer that is not read", || queued(&relay, address) > 0);
    std::thread::sleep(Duration::from_millis(500));
    let queued = queued(&relay, address);
    assert!(queued < 256 << 10, "{queued} bytes");
}

/// Status with which a stream ends, whatever it is told before.
async fn ends(stream: &mut Delta) -> tonic::Status {
    loop {
        match stream.next_message().await {
            Ok(Some(_)) => {}
            Ok(None) => return tonic::Status::ok(""),
            Err(status) => return status,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_brings_more_versions_than_are_held_is_answered_as_if_it_brought_none() {
    let names: Vec<String> = (0..500).map(|number| format!("c{number:0>79}")).collect();
    for key in ["max_initial_version_bytes_per_connection", "max_initial_version_bytes"] {
        let limit = format!("  {key}: 20KiB\n");
        let relay = Process::start(&[("clusters.yaml", &clusters(&names))], &limit);
        let mut stream = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
        let initial_resource_versions = names.iter().map(|name| (name.clone(), "1".to_owned())).collect();
        let all = DeltaDiscoveryRequest { initial_resource_versions, ..subscription("large", CDS, &["*"]) };
        stream.send(all).await;
        let answer = stream.response().await;
        assert_eq!((answer.resources.len(), answer.removed_resources.len()), (500, 0), "{key}");
        assert_eq!(refused(&relay, key), 1.0);
        let said = relay.wait_for_message("a client reached a limit; raise it if this load is expected");
        assert_eq!(said[0]["raise"], format!("downstream.{key}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_answers_nothing_is_closed_and_one_that_answers_is_not() {
    let relay = relay("  unacked_timeout: 3s\n  ack_timeout: 100ms\n");
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
    assert!(start.elapsed() >= Duration::from_secs(3), "{:?}", start.elapsed());
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
    let (_requests, connection) = h2::client::handshake(socket).await.unwrap();
    let start = Instant::now();
    tokio::time::timeout(PATIENCE, connection).await.expect("it is asked to go").expect("in good order");
    assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
    assert_eq!(refused(&relay, "idle_timeout"), 1.0);
    relay.wait_for("the other one alone", || relay.metric("deltafan_connections") == 1.0);
    goes_on(&relay, &mut honest, "after").await;
}

/// Statuses of streams that have begun a message and do not end it.
async fn partial(relay: &Process, streams: usize, bytes: usize) -> Vec<Option<String>> {
    let (connection, _open) = raw(relay, 1 << 20).await;
    let mut open = Vec::new();
    for _ in 0..streams {
        let (mut requests, response) = raw_stream(&connection).await;
        let mut message = BytesMut::from(&[0][..]);
        message.put_u32(1 << 20);
        message.resize(bytes, 0);
        requests.send_data(message.freeze(), false).unwrap();
        let status = async move {
            let mut body = response.await.ok()?.into_body();
            while let Some(Ok(_)) = body.data().await {}
            Some(body.trailers().await.ok()??.get("grpc-status")?.to_str().ok()?.to_owned())
        };
        open.push((requests, tokio::spawn(status)));
    }
    let mut ended = Vec::new();
    for (requests, status) in open {
        let status = tokio::time::timeout(Duration::from_secs(2), status).await;
        ended.push(status.ok().and_then(Result::unwrap));
        // Kept open until here.
        drop(requests);
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
    let files = [("clusters.yaml", &*clusters(["a", "b"]))];
    let memory = "  memory: {refuse_above: 160MiB, close_above: 0}\n";
    let relay =
        Process::launch("{directory: ./resources, unsubscribe_linger: 1s}", &files, LISTENERS, memory);
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
    live(&relay).await;
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
