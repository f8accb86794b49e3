//! Bodies of 10 MB in both directions, by every client of HTTP/2 at hand, with windows of sizes that nobody expects and
//! that change meanwhile.

use std::process::Command;

use deltafan::proto::{DiscoveryRequest, Node};
use deltafan_test_support::client::{CDS, SOTW_CLUSTERS, Sotw, connect};
use deltafan_test_support::process::Process;
use prost::Message as _;

use crate::fixture::{Implementation, require};

const MEGABYTE: usize = 1 << 20;
/// Number of clusters, all of which are one response.
const CLUSTERS: usize = 100;
const CLUSTER: usize = MEGABYTE / 10;
/// Windows of the clients: less than one frame, the default and a byte, and more than that.
const WINDOWS: [u32; 3] = [16_001, 65_536, 1_000_003];

/// A relay that takes large requests, and has clusters for large responses.
fn relay() -> Process {
    let text = "s".repeat(CLUSTER);
    let cluster = |number| {
        let cluster =
            format!("{{\"@type\": {CDS}, name: c{number}, connect_timeout: 1s, alt_stat_name: {text}}}");
        (format!("{number}.yaml"), format!("resources: [{cluster}]\n"))
    };
    let files: Vec<(String, String)> = (0..CLUSTERS).map(cluster).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
    // A request takes up to twice its length while it comes, and minutes on a busy machine.
    let limits = "  max_request_bytes: 16MiB\n  max_buffered_request_bytes_per_connection: 64MiB\n  \
                  first_request_timeout: 5m\n";
    Process::start(&files, limits)
}

/// 10 MB that ask for everything.
fn request() -> DiscoveryRequest {
    let text = prost_types::value::Kind::StringValue("m".repeat(10 * MEGABYTE));
    let fields = [("text".to_owned(), prost_types::Value { kind: Some(text) })];
    let metadata = prost_types::Struct { fields: fields.into() }.encode_to_vec().into();
    let node = Node { id: "large".to_owned(), metadata, ..Node::default() };
    DiscoveryRequest { node: Some(node), ..DiscoveryRequest::default() }
}

fn is_exchanged_by(clients: Implementation) {
    if clients.require().is_none() {
        return;
    }
    let relay = relay();
    let request = request();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let expected = runtime.block_on(async {
        let mut stream = Sotw::open(&connect(&relay.uri()).await, SOTW_CLUSTERS).await;
        stream.send(request.clone()).await;
        stream.next_message().await.unwrap().expect("a response")
    });
    assert!(expected.len() > CLUSTERS * CLUSTER);
    for window in WINDOWS {
        let response = clients.ask_for_clusters(relay.listener, window, &request.encode_to_vec());
        assert!(response == expected, "{} bytes with windows of {window}", response.len());
    }
}

#[test]
fn large_bodies_by_each_implementation() {
    use Implementation::{Core, Go, Java, Js};
    [Core, Go, Java, Js].into_iter().for_each(is_exchanged_by);
}

#[test]
fn large_polls_by_curl() {
    let curl = |args: &[&str]| Command::new("curl").args(args).output();
    let version = curl(&["--version"]).map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if require(version.is_ok_and(|text| text.contains("nghttp2")), "no curl with HTTP/2").is_none() {
        return;
    }
    let relay = relay();
    let home = tempfile::tempdir().unwrap();
    let body = home.path().join("body.json");
    let text = "m".repeat(10 * MEGABYTE);
    let json = serde_json::json!({"node": {"id": "large", "metadata": {"text": text}}});
    std::fs::write(&body, json.to_string()).unwrap();
    let data = format!("@{}", body.display());
    let url = format!("{}/v3/discovery:clusters", relay.uri());
    let poll = |version: &str, expect: &str| {
        let args =
            ["--silent", "--show-error", "--fail", version, "--header", expect, "--data-binary", &data, &url];
        let output = curl(&args).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let expected = poll("--http1.1", "expect:");
    assert!(expected.len() > CLUSTERS * CLUSTER);
    // Without waiting to be asked for the body, and asked for it.
    for expect in ["expect:", "expect: 100-continue"] {
        assert!(poll("--http2-prior-knowledge", expect) == expected, "{expect}");
    }
}
