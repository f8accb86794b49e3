//! Limits of the admin address: memory of answers that peers do not read, and connections.

use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use deltafan_test_support::http1::Http1;
use deltafan_test_support::process::{Process, relay};
use socket2::{Domain, Socket, Type};

/// Clusters whose dump takes more than half of the room for answers that nobody has read.
fn large_clusters() -> String {
    let mut clusters = "resources:\n".to_owned();
    for number in 0..40 {
        clusters += "- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n";
        clusters += &format!("  name: c{number}\n  alt_stat_name: \"{}\"\n", "x".repeat(1_000_000));
    }
    clusters
}

fn connect_from(address: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Asks for a dump, and reads nothing but the beginning of the answer.
fn ask_and_stop_reading(relay: &Process) -> Http1 {
    let mut client = Http1::connect(relay.admin);
    socket2::SockRef::from(client.socket()).set_recv_buffer_size(4096).unwrap();
    client.send(b"GET /config_dump HTTP/1.1\r\nhost: relay\r\n\r\n");
    client.socket().read_exact(&mut [0; 16]).unwrap();
    client
}

#[test]
fn answers_that_nobody_reads_leave_room_for_others() {
    let relay = Process::start(&[("clusters.yaml", &large_clusters())], "");
    let unread = [ask_and_stop_reading(&relay), ask_and_stop_reading(&relay)];
    for path in ["/ready", "/healthz", "/metrics", "/upstreams"] {
        assert_eq!(relay.admin_get(path).0, 200, "{path}");
    }
    let (status, dump) = relay.admin_get("/config_dump");
    assert!(status == 200 && dump.len() > 40_000_000, "{status}");
    drop(unread);
}

/// Connections of another host that ask for nothing take neither the place of a probe nor descriptors without bound.
#[test]
fn idle_connections_keep_no_probe_out() {
    let relay = relay("");
    let mut scraper = Http1::connect(relay.admin);
    scraper.request("GET /metrics", "", "");
    assert_eq!(scraper.answer().unwrap().status, 200);
    let begun = Instant::now();
    let idle: Vec<_> = (0..150).map(|_| connect_from(Ipv4Addr::new(127, 0, 0, 2), relay.admin)).collect();
    let is_open = |mut socket: &TcpStream| {
        socket.set_nonblocking(true).unwrap();
        socket.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert_eq!(relay.admin_get("/ready").0, 200);
    scraper.request("GET /metrics", "", "");
    assert_eq!(scraper.answer().unwrap().status, 200, "the connection of another address stays");
    while idle.iter().filter(|socket| is_open(socket)).count() > 63 {
        // They time out after 10 s, which is not the point.
        assert!(begun.elapsed() < Duration::from_secs(8), "idle connections keep their places");
        std::thread::sleep(Duration::from_millis(50));
    }
}
