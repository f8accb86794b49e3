//! REST-JSON over real sockets: what is answered and when, what is refused, and what a client that leaves takes along.

use std::net::Shutdown;

use deltafan_test_support::process;
use http_body_util::{BodyExt as _, Full};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, field_descriptor_proto,
};

use crate::prelude::*;

/// A hold that ends in no test: what is answered within [`PATIENCE`] is answered before.
const LONG: &str = "rest: {hold: 1h}\n";

fn offering(version: &str) -> String {
    format!("{{\"version_info\": \"{version}\"}}")
}

fn held(relay: &Process) -> f64 {
    relay.metric("deltafan_held_polls")
}

/// Polls from another thread, so that the origin can go on.
fn poll(
    relay: &Process,
    what: &'static str,
    body: String,
) -> tokio::task::JoinHandle<deltafan_test_support::http1::Answer> {
    let mut client = Http1::connect(relay.listener);
    tokio::task::spawn_blocking(move || client.poll(what, &body))
}

/// Answer to a poll of clusters that was sent before the control plane answered: one whose hold was over is sent again.
async fn answered(
    relay: &Process,
    mut poll_in_hand: tokio::task::JoinHandle<deltafan_test_support::http1::Answer>,
) -> deltafan_test_support::http1::Answer {
    loop {
        let answer = poll_in_hand.await.unwrap();
        if answer.status != 503 {
            return answer;
        }
        poll_in_hand = poll(relay, "clusters", "{}".to_owned());
    }
}

fn cluster_names(answer: &serde_json::Value) -> Vec<&str> {
    answer["resources"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn r_rest_01_a_poll_is_answered_in_json_on_a_connection_that_lives_on() {
    let relay = relay("");
    let mut client = Http1::connect(relay.listener);
    let first = client.poll("clusters", "{}");
    let fields: Vec<String> = first.json().as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["resources", "typeUrl", "versionInfo"], "an old client may know no other");
    assert_eq!(first.json()["typeUrl"], CDS);
    assert_eq!(cluster_names(&first.json()), ["a", "b"]);
    assert_eq!(first.json()["resources"][0]["@type"], CDS);
    assert_eq!(first.json()["resources"][0]["connectTimeout"], "1s");
    let second = client.poll(
        "clusters",
        r#"{"resourceNames": ["b"], "typeUrl": "type.googleapis.com/envoy.config.cluster.v3.Cluster"}"#,
    );
    assert_eq!(cluster_names(&second.json()), ["b"]);
    assert_ne!(second.version(), first.version());
    assert_eq!(
        client.poll("endpoints", r#"{"resource_names": ["none"]}"#).json()["resources"],
        serde_json::json!([])
    );
}

/// The examples of docs/rest.md, each followed by what it prints.
#[test]
fn the_curl_examples_answer_as_the_page_says() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rest.md")).unwrap();
    let read = |name: &str| {
        std::fs::read_to_string(format!("{}/config/resources/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let files =
        ["clusters.yaml", "endpoints.yaml", "listeners.yaml", "routes.yaml"].map(|name| (name, read(name)));
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let relay = Process::start(&files, "");
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        assert!(std::env::var("CI").is_err(), "in CI nothing may be skipped: there is no curl");
        eprintln!("SKIPPED (there is no curl)");
        return;
    }
    let mut examples = 0;
    for example in page.split("    $ curl ").skip(1) {
        let (command, printed) = example.split_once('\n').unwrap();
        let printed: Vec<&str> = printed.lines().map_while(|line| line.strip_prefix("    ")).collect();
        let command = format!("curl -s {command}").replace("127.0.0.1:15010", &relay.listener.to_string());
        let output = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(told.trim_end(), printed.join("\n"), "{command}");
        examples += 1;
    }
    assert!(examples >= 3, "{examples} examples were found");
}

#[tokio::test(flavor = "multi_thread")]
async fn r_rest_01_and_over_http2() {
    let relay = relay(LONG);
    let socket = tokio::net::TcpStream::connect(relay.listener).await.unwrap();
    let (mut h2, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(socket),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let head = http::Request::head("http://relay/v3/discovery:clusters").body(Full::new(Bytes::new()));
    let refused = h2.send_request(head.unwrap()).await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["allow"]), (405, &"POST".parse().unwrap()));
    assert_eq!(refused.into_body().collect().await.unwrap().to_bytes(), "", "HEAD has no body");
    let mut poll = |body: String| {
        let request = http::Request::post("http://relay/v3/discovery:clusters");
        h2.send_request(request.body(Full::new(Bytes::from(body))).unwrap())
    };
    let answer = poll("{}".to_owned()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(cluster_names(&body), ["a", "b"]);
    // Many wait on one connection, and are forgotten when their streams are reset.
    let version = body["versionInfo"].as_str().unwrap();
    let mut parked: Vec<_> = (0..50).map(|_| Box::pin(poll(offering(version)))).collect();
    for poll in &mut parked {
        assert!(futures_util::poll!(poll).is_pending());
    }
    relay.wait_for("fifty that wait", || held(&relay) == 50.0);
    parked.truncate(20);
    relay.wait_for("twenty that are left", || held(&relay) == 20.0);
    relay.write("clusters.yaml", &clusters(["c"]));
    for poll in parked {
        let body = poll.await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(cluster_names(&body), ["c"]);
    }
    assert_eq!(held(&relay), 0.0);
    assert_eq!(relay.metric("deltafan_json_written_total{what=\"answer\"}"), 2.0);
}

#[test]
fn r_rest_04_nothing_new_is_304_without_a_body_after_the_hold() {
    let relay = relay("rest: {hold: 300ms}\n");
    let mut client = Http1::connect(relay.listener);
    let version = client.poll("clusters", "{}").version();
    for _ in 0..2 {
        let start = Instant::now();
        let answer = client.poll("clusters", &offering(&version));
        assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
        assert_eq!((answer.status, answer.body.as_str()), (304, ""));
        assert_eq!(answer.header("content-length"), None);
    }
}

#[test]
fn r_rest_06_the_hold_is_cut_to_the_clients_timeout() {
    let relay = relay(LONG);
    let mut client = Http1::connect(relay.listener);
    let version = client.poll("clusters", "{}").version();
    let start = Instant::now();
    let envoy = "x-envoy-expected-rq-timeout-ms: 1000\r\n";
    client.request("POST /v3/discovery:clusters", envoy, &offering(&version));
    assert_eq!(client.answer().unwrap().status, 304);
    assert!(start.elapsed() >= Duration::from_millis(800), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn r_rest_09_a_cold_relay_says_503_and_not_that_there_is_nothing() {
    let (relay, _origin, _stream) = relay_and_origin("rest: {hold: 300ms}\n").await;
    let fresh = poll(&relay, "clusters", "{}".to_owned()).await.unwrap();
    assert_eq!(fresh.status, 503, "{fresh:?}");
    assert!(fresh.retry_after().is_some_and(|seconds| (1..=5).contains(&seconds)), "{fresh:?}");
    assert!(fresh.body.contains("has not answered"), "{}", fresh.body);
    let holder = poll(&relay, "clusters", offering("of another relay")).await.unwrap();
    assert_eq!(holder.status, 304);
}

/// A client that hangs up leaves nothing: not after the hold, but at once.
#[test]
fn a_client_that_hangs_up_is_forgotten_at_once() {
    let relay = relay(LONG);
    let version = Http1::connect(relay.listener).poll("clusters", "{}").version();
    for how in ["closes", "closes its sending side", "resets"] {
        let mut client = Http1::connect(relay.listener);
        client.request("POST /v3/discovery:clusters", "", &offering(&version));
        relay.wait_for("a poll that waits", || held(&relay) == 1.0);
        assert_eq!(relay.metric("deltafan_cohorts{type=\"cds\"}"), 1.0);
        match how {
            "closes" => drop(client),
            "resets" => {
                socket2::SockRef::from(client.socket()).set_linger(Some(Duration::ZERO)).unwrap();
                drop(client);
            }
            _ => {
                client.socket().shutdown(Shutdown::Write).unwrap();
                assert!(client.answer().is_none(), "it is taken for gone");
            }
        }
        relay.wait_for(how, || held(&relay) == 0.0);
        assert_eq!(relay.metric("deltafan_cohorts{type=\"cds\"}"), 0.0, "{how}");
    }
    assert_eq!(relay.metric("deltafan_polls_total{type=\"cds\",outcome=\"abandoned\"}"), 3.0);
}

#[test]
fn requests_that_are_sent_ahead_are_answered_in_order() {
    let relay = relay("rest: {hold: 300ms}\n");
    let mut client = Http1::connect(relay.listener);
    let version = client.poll("clusters", "{}").version();
    let polls = ["{}", &offering(&version), r#"{"resource_names": ["a"]}"#];
    let request = |body: &&str| {
        format!(
            "POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    client.send(polls.iter().map(request).collect::<String>().as_bytes());
    assert_eq!(cluster_names(&client.answer().unwrap().json()), ["a", "b"]);
    assert_eq!(client.answer().unwrap().status, 304);
    assert_eq!(cluster_names(&client.answer().unwrap().json()), ["a"]);
    // Requests that are sent ahead hide that their sender is gone, but no longer than the hold.
    client.send([request(&offering(&version).as_str()), request(&"{}")].concat().as_bytes());
    relay.wait_for("a poll that waits", || held(&relay) == 1.0);
    drop(client);
    relay.wait_for("its end", || held(&relay) == 0.0 && relay.metric("deltafan_connections") == 0.0);
}

#[test]
fn r_rest_13_the_fault_of_a_request_is_told() {
    let relay = relay("  max_request_bytes: 10KiB\n  first_request_timeout: 500ms\n");
    let ask = |line: &str, headers: &str, body: &str| {
        let mut client = Http1::connect(relay.listener);
        client.request(line, headers, body);
        client.answer().unwrap()
    };
    let cds = "POST /v3/discovery:clusters";
    let large = format!("{{\"resource_names\": [\"{}\"]}}", "x".repeat(20 << 10));
    let deep = format!("{{\"node\":{{\"metadata\":{}1{}}}}}", "{\"a\":".repeat(900), "}".repeat(900));
    let eds = format!("{{\"type_url\": \"{EDS}\"}}");
    for (line, headers, body, status, reason) in [
        (cds, "", "{", 400, "EOF"),
        (cds, "", "", 400, "empty"),
        (cds, "", "[]", 400, "as an object"),
        (cds, "", r#"{"version_info": 1}"#, 400, "expected a string"),
        (cds, "", &eds, 400, "serves `type.googleapis.com/envoy.config.cluster.v3.Cluster`"),
        (cds, "", &deep, 400, "nests deeper than 100"),
        (cds, "", &large, 413, "more than 10240 bytes"),
        (cds, "content-encoding: gzip\r\n", "{}", 415, "compressed"),
        ("POST /v3/discovery:virtual_hosts", "", "{}", 404, "no such path"),
        ("POST /v3/discovery", "", "{}", 404, "no such path"),
        ("GET /v3/discovery:clusters", "", "", 405, "POST"),
        ("PUT /v3/discovery:clusters", "", "{}", 405, "POST"),
    ] {
        let answer = ask(line, headers, body);
        let shown = &body[..body.len().min(80)];
        assert_eq!(answer.status, status, "{line} {shown}: {answer:?}");
        assert!(answer.body.contains(reason), "{line} {shown}: {answer:?}");
        assert!(answer.body.len() < 400, "fit for a log");
        assert_eq!(answer.header("allow"), (status == 405).then_some("POST"), "{line}");
    }
    // A request that is refused for its method alone is answered when it is whole, so that the connection can be used again.
    let mut client = Http1::connect(relay.listener);
    client.request("PUT /v3/discovery:clusters", "", &"x".repeat(8 << 10));
    assert_eq!(client.answer().unwrap().status, 405);
    assert_eq!(client.poll("clusters", "{}").status, 200);
    // Fields that nobody knows yet, curl's idea of the type, and a body in chunks are fine.
    let fine = ask(cds, "content-type: application/x-www-form-urlencoded\r\n", r#"{"new": {"@type": "x"}}"#);
    assert_eq!(cluster_names(&fine.json()), ["a", "b"]);
    let mut client = Http1::connect(relay.listener);
    client.send(b"POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 200);
    let mut client = Http1::connect(relay.listener);
    client.send(b"POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{");
    assert_eq!(client.answer().unwrap().status, 408, "a body that does not come");
    // Too large in chunks, where no length foretells it.
    let mut client = Http1::connect(relay.listener);
    client.send(b"POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(format!("{:x}\r\n{large}\r\n", large.len()).as_bytes());
    assert_eq!(client.answer().unwrap().status, 413);
    assert!(relay.metric("deltafan_polls_total{type=\"cds\",outcome=\"refused\"}") >= 9.0);
}

#[test]
fn a_peer_that_holds_too_many_is_told_to_come_later() {
    let relay = relay("rest: {hold: 60s, max_polls_per_peer: 3}\n");
    let version = Http1::connect(relay.listener).poll("clusters", "{}").version();
    let mut clients: Vec<Http1> = (0..3).map(|_| Http1::connect(relay.listener)).collect();
    clients
        .iter_mut()
        .for_each(|client| client.request("POST /v3/discovery:clusters", "", &offering(&version)));
    relay.wait_for("three that wait", || held(&relay) == 3.0);
    let mut one_more = Http1::connect(relay.listener);
    let answer = one_more.poll("clusters", &offering(&version));
    assert_eq!(answer.status, 429);
    assert!(answer.retry_after().is_some_and(|seconds| (1..=5).contains(&seconds)), "{answer:?}");
    assert!(answer.body.contains("rest.max_polls_per_peer"), "{}", answer.body);
    // A poll that need not be held is answered all the same.
    assert_eq!(one_more.poll("clusters", "{}").status, 200);
    clients.pop();
    relay.wait_for("two that are left", || held(&relay) == 2.0);
    one_more.request("POST /v3/discovery:clusters", "", &offering(&version));
    relay.wait_for("three that wait", || held(&relay) == 3.0);
}

#[test]
fn r_relay_22_a_client_of_http1_that_reads_nothing_is_closed() {
    let many: Vec<String> = (0..40_000).map(|number| format!("n{number:0>400}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let relay = Process::start(&[("clusters.yaml", &clusters(&many))], "  stall_timeout: 1s\n");
    let mut client = Http1::connect(relay.listener);
    client.request("POST /v3/discovery:clusters", "", "{}");
    relay.wait_for("an answer", || {
        relay.metric("deltafan_polls_total{type=\"cds\",outcome=\"answered\"}") == 1.0
    });
    relay.wait_for("its end", || relay.metric("deltafan_connections") == 0.0);
    // A client that reads gets all of it, in however many pieces.
    let answer = Http1::connect(relay.listener).poll("clusters", "{}");
    assert_eq!(cluster_names(&answer.json()).len(), many.len());
}

/// A type that no descriptor set of the relay's has.
fn acme() -> FileDescriptorSet {
    let field = FieldDescriptorProto {
        name: Some("server_name".to_owned()),
        number: Some(1),
        label: Some(field_descriptor_proto::Label::Optional as i32),
        r#type: Some(field_descriptor_proto::Type::String as i32),
        ..Default::default()
    };
    let message = DescriptorProto { name: Some("Tls".to_owned()), field: vec![field], ..Default::default() };
    let file = FileDescriptorProto {
        name: Some("acme/tls.proto".to_owned()),
        package: Some("acme".to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message],
        ..Default::default()
    };
    FileDescriptorSet { file: vec![file] }
}

/// A cluster with a transport socket of that type, beside one that is like any other.
fn acme_clusters() -> Vec<(&'static str, Vec<u8>)> {
    let field = |number: u32, payload: &[u8]| {
        let mut out = bytes::BytesMut::new();
        prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut out);
        prost::encoding::encode_varint(payload.len() as u64, &mut out);
        out.extend_from_slice(payload);
        out.to_vec()
    };
    let any = [field(1, b"type.googleapis.com/acme.Tls"), field(2, &field(1, b"example.com"))].concat();
    let socket = [field(1, b"acme"), field(3, &any)].concat();
    vec![("plain", field(1, b"plain")), ("strange", [field(1, b"strange"), field(24, &socket)].concat())]
}

async fn send_acme(mut stream: OriginStream) -> OriginStream {
    let cds: TypeUrl = Kind::Cluster.into();
    stream.expect_request().await;
    let resources = acme_clusters().iter().map(|(name, body)| resource(&cds, name, "1", body)).collect();
    stream.deliver(&DeltaDiscoveryResponse { resources, ..response(&cds, "1") }).await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn r_rest_11_an_unknown_type_inside_is_an_error_of_that_poll_alone() {
    let (relay, _origin, stream) = relay_and_origin("  settle: 10ms\n").await;
    let all = poll(&relay, "clusters", "{}".to_owned());
    let _stream = send_acme(stream).await;
    let all = answered(&relay, all).await;
    assert_eq!(all.status, 500, "{all:?}");
    for word in ["`strange`", "acme.Tls", "rest.descriptor_sets"] {
        assert!(all.body.contains(word), "{}", all.body);
    }
    assert_eq!(relay.metric("deltafan_polls_total{type=\"cds\",outcome=\"unknown_type\"}"), 1.0);
    assert_eq!(relay.wait_for_message("cannot answer a REST-JSON poll").len(), 1);
    // Nothing gets better by asking again at once.
    let begun = Instant::now();
    assert_eq!(poll(&relay, "clusters", offering("other")).await.unwrap().status, 500);
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
    // gRPC clients are not affected.
    let mut grpc = relay.client("grpc", &["*"]).await;
    assert_eq!(names(&grpc.response().await), ["plain", "strange"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn r_rest_11_with_the_descriptors_of_an_operator_it_is_written_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("acme.binpb");
    std::fs::write(&path, acme().encode_to_vec()).unwrap();
    let further = format!("rest: {{descriptor_sets: [{}]}}\n", path.display());
    let (relay, _origin, stream) = relay_and_origin(further.leak()).await;
    let all = poll(&relay, "clusters", "{}".to_owned());
    let _stream = send_acme(stream).await;
    let socket = &answered(&relay, all).await.json()["resources"][1]["transportSocket"];
    let expected = serde_json::json!({"@type": "type.googleapis.com/acme.Tls", "serverName": "example.com"});
    assert_eq!(socket["typedConfig"], expected);
}

#[test]
fn bad_descriptor_sets_are_told_by_check_and_by_serve() {
    let home = tempfile::tempdir().unwrap();
    let (mut other, mut broken, mut twice) = (acme(), acme(), acme());
    other.file[0].message_type[0].name = Some("Other".to_owned());
    broken.file[0].dependency.push("acme/missing.proto".to_owned());
    twice.file[0].name = Some("acme/again.proto".to_owned());
    for (name, bytes) in [
        ("acme.binpb", &acme().encode_to_vec()[..]),
        ("other.binpb", &other.encode_to_vec()),
        ("broken.binpb", &broken.encode_to_vec()),
        ("twice.binpb", &twice.encode_to_vec()),
        ("garbage.binpb", b"\xff\xff"),
        ("empty.binpb", b""),
        ("cut.binpb.gz", b"\x1f\x8b\x08"),
    ] {
        std::fs::write(home.path().join(name), bytes).unwrap();
    }
    let config = home.path().join("relay.yaml");
    let run = |command: &str, sets: &str| {
        let text = format!(
            "upstream: {{servers: [{{uri: \"http://cp:1\"}}]}}\nrest: {{descriptor_sets: [{sets}]}}\nadmin: {{address: \"127.0.0.1:0\"}}\n"
        );
        std::fs::write(&config, text).unwrap();
        let ran = process::run(&[command, "--config", config.to_str().unwrap()]);
        (ran.code, ran.stderr)
    };
    for (sets, reasons) in [
        ("none.binpb", &["none.binpb", "No such file"][..]),
        ("garbage.binpb", &["garbage.binpb", "no google.protobuf.FileDescriptorSet"]),
        ("empty.binpb", &["empty.binpb", "has no files"]),
        ("cut.binpb.gz", &["cut.binpb.gz", "gzip"]),
        ("acme.binpb, other.binpb", &["other.binpb", "another \"acme/tls.proto\" than", "acme.binpb"]),
        ("broken.binpb", &["broken.binpb", "acme/missing.proto"]),
        ("acme.binpb, twice.binpb", &["binpb", "acme.Tls", "twice.binpb"]),
    ] {
        for command in ["check", "serve"] {
            let (code, told) = run(command, sets);
            assert_eq!(code, Some(78), "{command} {sets}: {told}");
            for reason in ["relay.yaml: rest.descriptor_sets: "].iter().chain(reasons) {
                assert!(told.contains(reason), "{command} {sets}: {told}");
            }
        }
    }
    assert_eq!(run("check", "acme.binpb, acme.binpb").0, Some(0), "the same twice is no conflict");
}
