//! How the real binary ends: what docs/configure.md says of a drain, sentence by sentence.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use deltafan_test_support::frames::{DATA, GOAWAY, PING, frame, only_call, read_frame};
use deltafan_test_support::process::{self, program};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::prelude::*;

fn relay(count: usize, downstream: &str) -> Process {
    let names = (0..count).map(|number| format!("c{number}"));
    Process::start(&[("clusters.yaml", &clusters(names))], downstream)
}

fn drains(relay: &Process) -> bool {
    relay.admin_get("/ready") == (503, "not ready: draining\n".to_owned())
}

/// A client of HTTP/2 in plain bytes, that does nothing by itself.
struct Raw(TcpStream);

impl Raw {
    /// Preface, settings, and a state-of-the-world stream that asks for all clusters.
    fn subscribe(relay: &Process) -> Self {
        let request =
            DiscoveryRequest { node: Some(node("raw")), type_url: CDS.to_owned(), ..Default::default() };
        let mut socket = TcpStream::connect(relay.listener).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&only_call(SOTW_ADS, 0, &request.encode_to_vec())).unwrap();
        Self(socket)
    }

    /// The payload of the next frame of this kind.
    fn expect(&mut self, kind: u8) -> Vec<u8> {
        loop {
            let (found, _, _, payload) = read_frame(&mut self.0).expect("not the end");
            if found == kind {
                return payload;
            }
        }
    }
}

fn last_stream(go_away: &[u8]) -> u32 {
    u32::from_be_bytes(go_away[..4].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_every_kind_are_told_to_go_elsewhere() {
    // Its first moment is 5 s.
    let mut relay = relay(2, "  drain: 10m\nrest: {hold: 1h}\n");
    let channel = connect(&relay.uri()).await;
    let mut delta = Delta::asking(&channel, "delta", CDS, &["*"]).await;
    let _response = delta.take().await;
    let mut sotw = Sotw::asking(&connect(&relay.uri()).await, "sotw", CDS, &[]).await;
    sotw.response().await;
    let mut health = HealthClient::new(connect(&relay.uri()).await);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let mut poller = Http1::connect(relay.listener);
    let version = poller.poll("clusters", "{}").version();
    poller.request("POST /v3/discovery:clusters", "", &format!("{{\"version_info\": \"{version}\"}}"));
    let mut idle = Http1::connect(relay.listener);
    idle.poll("clusters", "{}");
    relay.wait_for("a poll that waits", || relay.metric("deltafan_held_polls{type=\"cds\"}") == 1.0);

    let start = Instant::now();
    relay.terminate();
    relay.wait_for("a word to load balancers", || drains(&relay));
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(relay.admin_get("/healthz").0, 200);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "too late to see the first moment: {:?}",
        start.elapsed()
    );

    // A client that comes in the first moment is served.
    let mut late = relay.client("late", &["*"]).await;
    assert_eq!(names(&late.response().await).len(), 2);

    let statuses =
        [delta.end().await, sotw.end().await, late.end().await, watch.message().await.unwrap_err()];
    assert!(
        start.elapsed() >= Duration::from_secs(5),
        "nobody was closed who could come back: {:?}",
        start.elapsed()
    );
    for status in statuses {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("reconnect"), "{status:?}");
    }
    let answer = poller.answer().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (304, Some("close")));
    assert!(poller.answer().is_none() && idle.answer().is_none(), "their connections end");
    assert!(TcpStream::connect(relay.listener).is_err(), "nobody listens any more");
    drop((delta, sotw, late, watch, health, channel));
    assert_eq!(relay.wait().code(), Some(0), "long before the window is over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_streams_leave_one_after_the_other() {
    const CONNECTIONS: usize = 250;
    let mut relay = relay(1, "  drain: 10s\n");
    let mut streams = Vec::new();
    for number in 0..CONNECTIONS {
        let channel = connect(&relay.uri()).await;
        for _ in 0..2 {
            let mut stream = Delta::asking(&channel, &format!("client-{number}"), CDS, &["*"]).await;
            stream.take().await;
            streams.push(stream);
        }
    }
    let start = Instant::now();
    relay.terminate();
    let ends = streams
        .into_iter()
        .map(|mut stream| tokio::spawn(async move { (stream.end().await.code(), start.elapsed()) }));
    let mut times = Vec::new();
    for end in ends.collect::<Vec<_>>() {
        let (code, at) = end.await.unwrap();
        assert_eq!(code, Code::Unavailable);
        times.push(at);
    }
    times.sort();
    let [first, median, last] = [0, CONNECTIONS, 2 * CONNECTIONS - 1].map(|at| times[at]);
    // After a first second 250 connections, 20 ms apart. A busy machine only adds to that.
    assert!(first >= Duration::from_millis(1000), "the first after {first:?}");
    assert!(last >= Duration::from_millis(5500), "the last after {last:?}");
    assert!(median >= Duration::from_millis(2500), "half of them after {median:?}");
    assert_eq!(relay.wait().code(), Some(0));
}

#[test]
fn goaway_comes_in_two_steps() {
    let mut relay = relay(1, "  drain: 5s\n");
    let mut client = Raw::subscribe(&relay);
    client.expect(DATA);
    relay.terminate();
    assert_eq!(last_stream(&client.expect(GOAWAY)), (1 << 31) - 1, "first for no stream");
    let ping = client.expect(PING);
    // The stream ends; the connection waits for what may still be on its way here.
    let (_, _, stream, _) = read_frame(&mut client.0).expect("trailers");
    assert_eq!(stream, 1);
    client.0.write_all(&frame(PING, 1, 0, &ping)).unwrap();
    assert_eq!(last_stream(&client.expect(GOAWAY)), 1, "then for those that came");
    assert!(read_frame(&mut client.0).is_none(), "and the connection ends");
    assert_eq!(relay.wait().code(), Some(0));
}

#[test]
fn a_client_that_does_not_read_is_cut_off_at_the_end_of_the_window() {
    let mut relay = relay(20_000, "  drain: 8s\n");
    let _stalled = Raw::subscribe(&relay);
    relay.wait_for("its stream", || relay.metric("deltafan_streams{transport=\"sotw\"}") == 1.0);
    let start = Instant::now();
    relay.terminate();
    relay.wait_for("a drain", || drains(&relay));
    // Operators see it to the end.
    while start.elapsed() < Duration::from_secs(4) {
        assert!(drains(&relay));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(relay.wait().code(), Some(0));
    assert!(start.elapsed() >= Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn a_second_signal_ends_it_at_once_and_a_reload_means_nothing_meanwhile() {
    let mut relay = relay(1, "  drain: 1h\n");
    let mut client = Raw::subscribe(&relay);
    client.expect(DATA);
    relay.terminate();
    relay.wait_for("a drain", || drains(&relay));
    relay.signal("HUP");
    relay.reconfigure(&relay.config_with("  drain: 0s\n"));
    std::thread::sleep(Duration::from_secs(2));
    assert!(drains(&relay));
    assert_eq!(["applied", "unchanged", "refused"].map(|result| relay.reloads(result)), [0.0; 3]);
    relay.signal("INT");
    assert_eq!(relay.wait().code(), Some(0), "long before an hour is over");
}

#[test]
fn with_nobody_connected_a_drain_ends_at_once() {
    let mut relay = relay(1, "  drain: 1h\n");
    relay.terminate();
    assert_eq!(relay.wait().code(), Some(0), "long before an hour is over");
}

/// Neither a SIGTERM is lost nor a SIGHUP fatal, however early it comes.
#[test]
fn signals_during_the_start_count() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("relay.yaml");
    let text = "upstream: {servers: [{uri: \"http://127.0.0.1:1\"}]}\nadmin: {address: \"127.0.0.1:0\"}\n\
                downstream: {listeners: [{address: \"127.0.0.1:0\"}]}\n";
    std::fs::write(&config, text).unwrap();
    let mut child = Command::new(program())
        .args(["serve", "--config"])
        .arg(&config)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // As soon as the process minds signals at all.
    let minds = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mask =
            status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & 1 != 0
    };
    let start = Instant::now();
    while !minds() {
        assert!(start.elapsed() < PATIENCE, "it minds no signals");
    }
    for signal in ["HUP", "TERM"] {
        process::signal(child.id(), signal);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A process that ends does not wait for what runs beside it: that its sockets' files are gone is awaited.
#[test]
fn files_of_unix_sockets_are_gone_however_it_ends() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("s");
    let listeners = format!("[{{address: \"unix:{}\"}}]", path.display());
    for round in 0..10 {
        let mut relay = Process::listening(&listeners, &[("clusters.yaml", &clusters(["c0"]))], "");
        assert!(path.exists());
        // The second signal finds a drain that has not begun to close anything, or none at all.
        let open = (round % 2 == 1).then(|| std::os::unix::net::UnixStream::connect(&path).unwrap());
        relay.terminate();
        if open.is_some() {
            // It may be over before it is seen.
            relay.wait_for("the drain", || drains(&relay) || relay.admin_get("/ready").0 == 0);
            relay.terminate();
        }
        assert!(relay.wait().success());
        assert!(!path.exists(), "in round {round}");
    }
}
