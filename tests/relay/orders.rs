//! Orders of operators, posted to the admin address, and the facts about the process.

use crate::prelude::*;

async fn client(relay: &Process, node: &str) -> Delta {
    let mut client = relay.client(node, &["*"]).await;
    client.take().await;
    client
}

fn json_of((status, text): (u16, String)) -> Json {
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn server_info(relay: &Process) -> Json {
    relay.admin_json("/server_info")
}

#[test]
fn server_info_says_which_program_runs_with_which_configuration() {
    let relay = relay("");
    let mut info = Json::Null;
    relay.wait_for("the configuration", || {
        info = server_info(&relay);
        info["config"] != Json::Null
    });
    assert_eq!((&info["state"], &info["version"]), (&json!("LIVE"), &json!(env!("CARGO_PKG_VERSION"))));
    assert_eq!((&info["node"]["id"], &info["node"]["cluster"]), (&json!("test"), &json!("deltafan")));
    assert!(info["uptime_seconds"].as_f64().unwrap() > 0.0, "{info}");
    assert!(info["uptime_current_epoch"].as_str().unwrap().ends_with('s'), "{info}");
    let config = &info["config"];
    assert_eq!(config["path"], json!(relay.config().display().to_string()));
    assert_eq!(config["newest_content_refused"], false);
    let digest = config["xxh3"].clone();

    relay.reconfigure(&relay.config_with("  drain: 3s\n"));
    relay.wait_for("the new content", || server_info(&relay)["config"]["xxh3"] != digest);
    let digest = server_info(&relay)["config"]["xxh3"].clone();
    relay.reconfigure("downstream: {drain: never}\n");
    relay.wait_for("the refusal", || server_info(&relay)["config"]["newest_content_refused"] == true);
    assert_eq!(server_info(&relay)["config"]["xxh3"], digest, "what is in force");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_ordered_does_not_end_the_process() {
    let mut relay = relay("  drain: 2s\n");
    let mut client = client(&relay, "envoy").await;
    let began = json_of(relay.admin_post("/drain"));
    assert_eq!(began, json!({"state": "DRAINING", "window_seconds": 2.0, "began": true}));
    assert_eq!(relay.admin_get("/ready"), (503, "not ready: draining\n".to_owned()));
    assert_eq!(client.end().await.code(), Code::Unavailable);
    drop(client);
    relay.wait_for_message("drained; SIGTERM ends the process");
    assert!(std::net::TcpStream::connect(relay.listener).is_err(), "no listener");
    assert_eq!(server_info(&relay)["state"], "DRAINING");
    assert_eq!(json_of(relay.admin_post("/drain"))["began"], false);
    relay.terminate();
    assert_eq!(relay.wait().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_can_be_disconnected() {
    let relay = relay("");
    let (mut one, mut other) = (client(&relay, "one").await, client(&relay, "other").await);
    let page = relay.admin_json("/clients?node=one");
    let found = &page["clients"][0];
    let path = format!("/clients/{}/disconnect", found["id"]);
    let answer = json_of(relay.admin_post(&path));
    assert_eq!(answer, json!({"connection": found["connection"], "node": "one"}));
    assert_eq!(one.end().await.code(), Code::Unavailable);
    drop(one);
    relay.wait_for("its end", || relay.admin_json("/clients?node=one")["clients"] == json!([]));
    for gone in [&path, "/clients/x/disconnect", "/clients//disconnect"] {
        assert_eq!(relay.admin_post(gone).0, 404, "{gone}");
    }
    other.silence().await;
    // It may come back.
    client(&relay, "one").await;
}

/// A stream that its client ends, of which the log says something at the level `debug`.
async fn ends(relay: &Process, node: &str) {
    let mut client = client(relay, node).await;
    client.half_close();
    assert_eq!(client.end().await.code(), Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_level_can_be_changed() {
    let relay = relay("");
    ends(&relay, "quiet").await;
    let changed = "the log level was changed, as an operator ordered";
    let mut events = Vec::new();
    for (level, before, node) in
        [("debug", "info", "loud"), ("info%2Cdeltafan%3A%3Adownstream=debug", "debug", "filtered")]
    {
        let answer = json_of(relay.admin_post(&format!("/log?level={level}")));
        assert_eq!(answer["before"], before);
        ends(&relay, node).await;
        relay.wait_for("debug lines", || {
            events.extend(relay.events());
            events.iter().any(|event| event["message"] == "stream ends" && event["node"] == node)
        });
    }
    assert!(!events.iter().any(|event| event["node"] == "quiet"), "{events:?}");
    assert_eq!(events.iter().filter(|event| event["message"] == changed).count(), 2);
    // The last would be the level of a target that does not exist, and silence all others.
    for wrong in ["/log", "/log?level=", "/log?level=verbose", "/log?level=%ff", "/log?level=debug&json=1"] {
        assert_eq!(relay.admin_post(wrong).0, 400, "{wrong}");
    }
    assert_eq!(json_of(relay.admin_post("/log?level=info"))["before"], "info,deltafan::downstream=debug");
}

/// The control plane sends one cluster, always in the same version.
fn send_cluster(upstream: &OriginStream, nonce: &str, body: &[u8]) {
    let cds: TypeUrl = Kind::Cluster.into();
    let mut response = response(&cds, nonce);
    response.resources = vec![resource(&cds, "c 1", "1", body)];
    upstream.send(&response);
}

/// A control plane that changed a body and not its version has nothing to say of it by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_can_be_asked_for_anew() {
    let mut origin = Origin::start().await;
    let relay = Process::unready_behind(&origin.uri(), "");
    let mut upstream = origin.accept().await;
    let mut client = relay.client("envoy", &["*"]).await;
    upstream.expect_request().await;
    send_cluster(&upstream, "1", b"\x0a\x01a");
    client.take().await;
    upstream.expect_ack("1").await;

    let answer = json_of(relay.admin_post("/refresh?type=cds&name=c%201"));
    assert_eq!((&answer["type"], &answer["name"]), (&json!("cds"), &json!("c 1")));
    assert_eq!(answer["groups"], json!([null]), "the one group has no name");
    let mut upstream = origin.accept().await;
    let request = upstream.expect_request().await;
    assert!(request.initial_resource_versions.is_empty(), "{request:?}");
    send_cluster(&upstream, "1", b"\x0a\x01b");
    let told = client.response().await;
    assert!(told.resources[0].ends_with(b"\x0a\x01b"), "{told:?}");
    client.ack(&told).await;

    for unwanted in ["type=cds&name=c2", "type=eds&name=c%201", "type=cds&name=c%201&group=g"] {
        let (status, why) = relay.admin_post(&format!("/refresh?{unwanted}"));
        assert!(
            status == 404 && why.contains("no client asks for this resource"),
            "{unwanted}: {status} {why}"
        );
    }
    for wrong in ["", "type=cds", "name=c%201", "type=x&name=c1", "type=cds&name=c1&names=c2"] {
        assert_eq!(relay.admin_post(&format!("/refresh?{wrong}")).0, 400, "{wrong}");
    }
}

/// A script may order without end.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_orders_to_ask_anew_is_bounded() {
    let mut origin = Origin::start().await;
    let relay = Process::unready_behind(&origin.uri(), "");
    let mut upstream = origin.accept().await;
    let _client = relay.client("envoy", &["c"]).await;
    upstream.expect_request().await;
    for _ in 0..80 {
        json_of(relay.admin_post("/refresh?type=cds&name=c"));
    }
    let message = "asking the control plane for a resource anew, as an operator ordered";
    assert_eq!(relay.wait_for_messages(message, 50).len(), 50);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(relay.said(message).len(), 0);
}
