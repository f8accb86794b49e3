//! Limits of the admin address: memory of answers that peers do not read, and connections.

use std::io::Read as _;
use std::net::TcpStream;

use deltafan_test_support::http1::Http1;
use deltafan_test_support::process::{Process, relay};

/// Clusters whose dump takes more than half of the room for answers that nobody has read.
fn large_clusters() -> String {
    let mut clusters = "resources:\n".to_owned();
    for number in 0..40 {
        clusters += "- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n";
        clusters += &format!("  name: c{number}\n  alt_stat_name: \"{}\"\n", "x".repeat(1_000_000));
    }
    clusters
}

/// Asks for a dump, and reads nothing but the beginning of the answer.
fn ask_and_stop_reading(relay: &Process) -> Http1 {
    let mut client = Http1::connect(relay.admin);
    socket2::SockRef::from(client.socket()).set_recv_buffer_size(4096).unwrap();
    client.send(b"GET /config_dump HTTP/1.1\r\nhost: relay\r\n\r\n");
    client.socket().read_exact(&mut [0; 16]).unwrap();
    client
}

/// Answers are bounded, and those that nobody reads keep others out only until their connections are closed.
#[test]
fn answers_that_nobody_reads_are_bounded_and_keep_no_probe_out() {
    let relay = Process::start(&[("clusters.yaml", &large_clusters())], "");
    let unread = [ask_and_stop_reading(&relay), ask_and_stop_reading(&relay)];
    for path in ["/ready", "/healthz", "/metrics", "/upstreams"] {
        assert_eq!(relay.admin_get(path).0, 200, "{path}");
    }
    assert_eq!(relay.admin_get("/config_dump").0, 503, "there is no room");
    drop(unread);
    let (status, dump) = relay.admin_get("/config_dump");
    assert!(status == 200 && dump.len() > 40_000_000, "{status}");
}

/// Peers that say nothing take all connections only for a moment.
#[test]
fn silent_connections_end() {
    let relay = relay("");
    let silent: Vec<_> = (0..64).map(|_| TcpStream::connect(relay.admin).unwrap()).collect();
    assert_eq!(relay.admin_get("/ready").0, 200);
    drop(silent);
}
