//! The admin address: its methods, and who may reach it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use deltafan_test_support::process::{program, relay};
use http::Method;

#[tokio::test(flavor = "multi_thread")]
async fn head_has_no_body_over_http2() {
    let relay = relay("");
    let socket = tokio::net::TcpStream::connect(relay.admin).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    for path in ["/healthz", "/clients", "/metrics"] {
        let uri = format!("http://{}{path}", relay.admin);
        let head = http::Request::builder().method(Method::HEAD).uri(uri).body(()).unwrap();
        let (response, _) = client.send_request(head, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let length: usize = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
        assert!(length > 0, "{path}");
        assert!(response.into_body().data().await.is_none(), "{path}");
    }
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
