//! The admin address: its methods, who may reach it, and its limits: memory of answers that peers do not read, and connections.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use deltafan_test_support::process::{http1, program, run};
use http::Method;

use crate::prelude::*;

/// An order may come with a body, as forms and some HTTP clients send one.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_body_is_answered() {
    let relay = relay("");
    let socket = tokio::net::TcpStream::connect(relay.admin).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    for (method, path, status) in [(Method::POST, "/log?level=info", 200), (Method::PUT, "/clients", 405)] {
        for _ in 0..20 {
            let uri = format!("http://{}{path}", relay.admin);
            let head = http::Request::builder().method(method.clone()).uri(uri).body(()).unwrap();
            let (response, mut body) = client.send_request(head, false).unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            body.send_data(Bytes::from_static(b"x"), true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.status(), status, "{method} {path}");
            assert!(response.into_body().data().await.unwrap().is_ok());
        }
    }
    let large = "x".repeat(100_000);
    let request =
        format!("POST /drain HTTP/1.1\r\nhost: relay\r\ncontent-length: {}\r\n\r\n{large}", large.len());
    assert_eq!(http1(relay.admin, &request).0, 413);
    assert_eq!(relay.admin_get("/ready").0, 200);
}

/// It has no authentication.
#[test]
fn an_admin_address_that_others_reach_is_told_of() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("resources")).unwrap();
    for (address, is_told) in [("127.0.0.1:0", false), ("[::ffff:127.0.0.1]:0", false), ("0.0.0.0:0", true)] {
        let config = home.path().join("relay.yaml");
        let text = format!(
            "upstream: {{directory: ./resources}}\nadmin: {{address: \"{address}\"}}\n\
             downstream: {{listeners: [{{address: \"127.0.0.1:0\"}}]}}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut relay = Command::new(program())
            .args(["serve", "--log-format", "json", "--config"])
            .arg(config)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(relay.stderr.take().unwrap()).lines().map_while(Result::ok);
        let before: Vec<_> = lines.take_while(|line| !line.contains("\"serving\"")).collect();
        relay.kill().unwrap();
        relay.wait().unwrap();
        assert_eq!(
            before.iter().any(|line| line.contains("admin address")),
            is_told,
            "{address}: {before:?}"
        );
    }
}

/// Status of a request to a host by this name, with these headers.
fn ask(relay: &Process, method: &str, path: &str, host: &str, headers: &str) -> (u16, String) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n"
    );
    http1(relay.admin, &head)
}

/// DNS rebinding: a browser takes the relay for the site whose name led to it.
#[test]
fn a_page_of_another_site_reads_and_orders_nothing_nor_does_another_method() {
    let relay = relay("");
    let (evil, own) = (format!("evil.example.com:{}", relay.admin.port()), relay.admin.to_string());
    let origin = format!("origin: http://{evil}\r\n");
    for path in ["/clients", "/config_dump", "/history", "/upstreams", "/server_info", "/"] {
        let (status, text) = ask(&relay, "GET", path, &evil, "");
        assert!(status == 403 && text.contains("`admin.hosts`"), "{path}: {status} {text}");
    }
    for path in [
        "/drain",
        "/log?level=debug",
        "/clients/1/disconnect",
        "/rollout/release",
        "/refresh?type=cds&name=a",
    ] {
        assert_eq!(ask(&relay, "POST", path, &evil, &origin).0, 403, "{path}");
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            assert_eq!(ask(&relay, method, path, "127.0.0.1", "").0, 405, "{method} {path}");
        }
        for other in ["https://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1"] {
            let (status, text) = ask(&relay, "POST", path, &own, &format!("origin: {other}\r\n"));
            assert!(status == 403 && text.contains("another site"), "{path} {other}: {status}");
        }
    }
    assert_eq!(ask(&relay, "POST", "/clients", &own, "").0, 405);
    assert_eq!(ask(&relay, "POST", "/drain?now=1", &own, "").0, 400);
    assert_eq!(relay.admin_json("/server_info")["state"], "LIVE");
    assert_eq!(ask(&relay, "POST", "/log?level=warn", &own, &format!("origin: http://{own}\r\n")).0, 200);
    let csds = "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus";
    assert_eq!(ask(&relay, "POST", csds, &evil, "content-type: application/grpc\r\n").0, 403);
    for path in ["/ready", "/healthz", "/metrics"] {
        assert_eq!(ask(&relay, "GET", path, &evil, "").0, 200, "{path}");
    }
    // A form of a page, from a browser that sends no `origin` with it.
    for site in ["cross-site", "same-site"] {
        let site = format!("sec-fetch-site: {site}\r\n");
        assert_eq!(ask(&relay, "POST", "/log?level=debug", "127.0.0.1", &site).0, 403);
    }
    assert_eq!(ask(&relay, "POST", "/log?level=info", "127.0.0.1", "sec-fetch-site: same-origin\r\n").0, 200);
    for host in ["127.0.0.1", "localhost:15000", "[::1]:15000", "relay", "relay.edge.svc.cluster.local:15000"]
    {
        assert_eq!(ask(&relay, "GET", "/clients", host, "").0, 200, "{host}");
    }
    // The program itself may use any name.
    assert_eq!(ask(&relay, "GET", "/clients", &evil, "sec-fetch-site: none\r\n").0, 200);
}

#[test]
fn an_xds_client_at_the_admin_address_is_told_so_at_once() {
    let relay = relay("");
    let begun = Instant::now();
    for (transport, status) in
        [("delta", "Unimplemented"), ("sotw", "Unimplemented"), ("rest", "404 Not Found")]
    {
        let server = format!("http://{}", relay.admin);
        let get = run(&["get", "cds", "--transport", transport, "--server", &server]);
        let said = get.stderr;
        let start = format!(
            "deltafan: the server answered {status}: this is the admin address of the relay; xDS is served at the addresses of \
             `downstream.listeners`"
        );
        assert!(get.code == Some(1) && said.starts_with(&start), "{said}");
        assert!(!said.contains("--transport") && !said.contains("--server"), "one remedy: {said}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "no wait for the end of the requests");
}

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
