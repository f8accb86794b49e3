//! `POST /refresh`: the control plane is asked anew for what is held.

use bytes::Bytes;
use deltafan::proto::DeltaDiscoveryResponse;
use deltafan::resource::{Kind, TypeUrl};
use deltafan_test_support::client::{CDS, DELTA_ADS, Delta, connect, names};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response, state};
use deltafan_test_support::process::{Process, relay, relay_and_origin};
use serde_json::{Value as Json, json};

use crate::groups::{self, FLEETS};

fn cds() -> TypeUrl {
    Kind::Cluster.into()
}

fn send(stream: &OriginStream, nonce: &str, clusters: &[(&str, &str, &str)]) {
    let encode =
        |(name, version, body): &(&str, &str, &str)| resource(&cds(), name, version, body.as_bytes());
    let resources: Vec<Bytes> = clusters.iter().map(encode).collect();
    stream.send(&DeltaDiscoveryResponse { resources, ..response(&cds(), nonce) });
}

fn post(relay: &Process, query: &str) -> Json {
    let (status, text) = relay.admin_post(&format!("/refresh?{query}"));
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_name_is_sent_whole_at_the_version_that_is_held() {
    let (relay, mut origin, mut upstream) = relay_and_origin("").await;
    let mut client = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    client.subscribe("client", CDS, &["a", "b", "c"]).await;
    upstream.expect_request().await;
    send(&upstream, "1", &[("a", "1", "old"), ("b", "1", ""), ("c", "1", "")]);
    upstream.expect_ack("1").await;
    let told = client.response().await;
    assert_eq!(told.resources.len(), 3);
    client.ack(&told).await;

    let answer = post(&relay, "type=cds&name=a");
    assert_eq!(answer, json!({"type": "cds", "name": "a", "groups": [null], "connected": true}));
    let mut upstream = origin.accept().await;
    let asked = upstream.expect_request().await;
    let mut subscribed = asked.resource_names_subscribe.clone();
    subscribed.sort_unstable();
    assert_eq!(subscribed, ["a", "b", "c"]);
    let mut claimed: Vec<_> = asked.initial_resource_versions.keys().map(String::as_str).collect();
    claimed.sort_unstable();
    assert_eq!(claimed, ["b", "c"], "all but the one that is to come");
    // A control plane that changed a body and not its version.
    send(&upstream, "2", &[("a", "1", "new")]);
    upstream.expect_ack("2").await;
    let told = client.response().await;
    assert_eq!(told.resources, [resource(&cds(), "a", "1", b"new")]);
    client.ack(&told).await;
    // A reconnect afterwards tells all versions but the one that is always kept back.
    upstream.close();
    let asked = origin.accept().await.expect_request().await;
    assert_eq!(asked.initial_resource_versions.len(), 2, "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_as_before_reaches_no_client_and_none_takes_nothing_away() {
    let (relay, mut origin, mut upstream) = relay_and_origin("").await;
    let mut client = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    client.subscribe("client", CDS, &["*"]).await;
    upstream.expect_request().await;
    send(&upstream, "1", &[("a", "1", ""), ("b", "1", "")]);
    upstream.expect_ack("1").await;
    let told = client.response().await;
    client.ack(&told).await;

    post(&relay, "type=cds&name=*");
    let mut upstream = origin.accept().await;
    let asked = upstream.expect_request().await;
    assert!(asked.initial_resource_versions.is_empty(), "{asked:?}");
    client.silence().await;
    assert_eq!(relay.metric("deltafan_resources{type=\"cds\"}"), 2.0);
    send(&upstream, "2", &[("a", "1", ""), ("b", "2", "")]);
    upstream.expect_ack("2").await;
    let told = client.response().await;
    assert_eq!((names(&told), told.removed_resources.len()), (vec!["b".to_owned()], 0));
    client.ack(&told).await;
    client.silence().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_by_state_of_the_world_sends_its_state_again() {
    let mut origin = Origin::start().await;
    origin.implement(false, true);
    let uri = origin.uri();
    let start = move || Process::behind_server(&uri, "protocol: sotw", "");
    let relay = tokio::task::spawn_blocking(start).await.unwrap();
    let mut upstream = origin.accept_sotw().await;
    let mut client = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    client.subscribe("client", CDS, &["*"]).await;
    upstream.expect_request().await;
    upstream.send(&state(&cds(), "1", &[("a", "first"), ("b", "first")]));
    upstream.expect_ack("1").await;
    let told = client.response().await;
    client.ack(&told).await;
    post(&relay, "type=cds&name=a");
    let mut upstream = origin.accept_sotw().await;
    let asked = upstream.expect_request().await;
    assert_eq!((asked.version_info.as_str(), asked.response_nonce.as_str()), ("", ""));
    upstream.send(&state(&cds(), "1", &[("a", "second"), ("b", "first")]));
    upstream.expect_ack("1").await;
    assert_eq!(names(&client.response().await), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_group_that_asks_for_the_name_asks_anew() {
    let mut origin = Origin::start().await;
    let uri = origin.uri();
    let begin = move || Process::behind_with_keys(&uri, "", FLEETS);
    let relay = tokio::task::spawn_blocking(begin).await.unwrap();
    let _own = origin.accept().await;
    let _red = groups::client(&relay, "red-1").await;
    let mut upstream = origin.accept().await;
    upstream.expect_request().await;
    send(&upstream, "1", &[("a", "1", "")]);
    upstream.expect_ack("1").await;
    relay.wait_for("the cluster", || relay.metric("deltafan_cached_resources{type=\"cds\"}") == 1.0);
    let answer = post(&relay, "type=cds&name=a");
    assert_eq!(answer["groups"].as_array().unwrap().len(), 1, "{answer}");
    assert!(answer["groups"][0].as_str().unwrap().contains("red"), "{answer}");
    let asked = origin.accept().await.expect_request().await;
    assert_eq!(asked.node.unwrap().id, "fleet-red");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_is_refused_with_the_reason() {
    let (relay_of_origin, _origin, _upstream) = relay_and_origin("").await;
    for (query, status, text) in [
        ("", 400, "`type` is missing"),
        ("name=a", 400, "`type` is missing"),
        ("type=cows", 400, "is no resource type"),
        ("type=cds&type=eds", 400, "the parameters are type, name, each once"),
        ("type=cds&group=a", 400, "the parameters are type, name, each once"),
        ("type=cds&name=a", 404, "not asked for this; GET /resources?type=cds"),
        ("type=cds", 404, "not asked for this"),
    ] {
        let (is, answer) = relay_of_origin.admin_post(&format!("/refresh?{query}"));
        assert!(is == status && answer.contains(text), "{query}: {is} {answer}");
    }
    assert_eq!(relay_of_origin.admin_get("/refresh?type=cds").0, 405);
    let (status, text) = relay("").admin_post("/refresh?type=cds");
    assert!(status == 400 && text.contains("a directory is read when it changes"), "{status} {text}");
}
