//! Rejections (NACKs), as operators see them: which clients reject what, and why.

use deltafan::proto::status::ClientStatusRequest;
use deltafan::proto::{DiscoveryRequest, Status};
use deltafan::resource::Kind;
use deltafan_test_support::client::{CDS, Delta, SDS, Sotw, connect, unary};
use deltafan_test_support::origin::{OriginStream, changes, clusters_at};
use deltafan_test_support::process::{Process, relay_and_origin};
use serde_json::{Value as Json, json};

const CSDS: &str = "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus";

fn states(relay: &Process) -> Json {
    relay.admin_json("/clients")["states"].clone()
}

/// Envoy and gRPC go on with the nonce that they rejected when they ask for something else.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_for_more_has_not_accepted_what_it_rejected() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let mut client = Sotw::asking(&connect(&relay.uri()).await, "envoy", CDS, &["a"]).await;
    upstream.answer(&clusters_at("1", &["a"])).await;
    let told = client.response().await;
    let answer = |names: &[&str], error_detail| DiscoveryRequest {
        type_url: CDS.to_owned(),
        response_nonce: told.nonce.clone(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        error_detail,
        ..DiscoveryRequest::default()
    };
    client.send(answer(&["a"], Some(Status { code: 13, message: "no".to_owned() }))).await;
    // One that asks for nothing else, and one that does.
    client.send(answer(&["a"], None)).await;
    client.send(answer(&["a", "b"], None)).await;
    upstream.expect_request().await;
    assert_eq!(states(&relay), json!({"rejected": 1}));
    assert_eq!(relay.metric("deltafan_requests_total{type=\"cds\",transport=\"sotw\",result=\"ack\""), 0.0);
}

/// A slow client is sent the next change without an answer to the one before, and rejects that later.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_that_comes_late_is_one() {
    let (relay, _origin, mut upstream) = relay_and_origin("  ack_timeout: 100ms\n").await;
    let mut client = Delta::asking(&connect(&relay.uri()).await, "envoy", CDS, &["*"]).await;
    upstream.expect_request().await;
    let mut told = Vec::new();
    for (version, name) in [("1", "a"), ("2", "b"), ("3", "c")] {
        upstream.deliver(&clusters_at(version, &[name])).await;
        told.push(client.response().await);
        if version == "1" {
            client.ack(&told[0]).await;
        }
    }
    client.nack_saying(&told[1], "b is bad").await;
    client.ack(&told[2]).await;
    let acks = "deltafan_requests_total{type=\"cds\",transport=\"delta\",result=\"ack\"";
    relay.wait_for("the answers", || relay.metric(acks) == 2.0);
    assert_eq!(states(&relay), json!({"rejected": 1}));
    let cds = &relay.admin_json("/clients")["clients"][0]["types"][0];
    assert_eq!((&cds["acked"]["version"], &cds["rejected"]["version"]), (&json!("3"), &json!("2")));
    let nack = &relay.admin_json("/nacks")["nacks"][0];
    assert_eq!((&nack["version"], &nack["text"]), (&json!("2"), &json!("b is bad")));
    assert_eq!(nack["changed"], json!(["b"]));
    assert_eq!(
        relay.wait_for_message("1 client rejects cds 2 (NACK); node and text are of the first").len(),
        1
    );
    // The second time it is no news.
    client.nack_saying(&told[1], "b is bad").await;
    relay.wait_for("its answer", || relay.metric(&acks.replace("ack", "stale")) == 1.0);
    assert_eq!(relay.admin_json("/nacks")["nacks"][0]["count"], 1);
}

/// A client may come back for what it rejected, time and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reconnects_is_one() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    for round in 0..5 {
        let mut client = Delta::asking(&connect(&relay.uri()).await, "envoy", CDS, &["*"]).await;
        if round == 0 {
            upstream.answer(&clusters_at("17", &["a"])).await;
        }
        let told = client.response().await;
        client.nack(&told).await;
        relay.wait_for("the rejection", || relay.admin_json("/nacks")["nacks"][0]["count"] == round + 1);
    }
    let mut nacks = 0;
    while nacks < 5 {
        let line = relay.wait_for_message("1 client rejects cds 17 (NACK); node and text are of the first");
        nacks = line[0]["nacks"].as_u64().unwrap();
    }
    assert_eq!(relay.admin_json("/nacks")["remembered"], 1);
}

/// A client of one Secret rejects its second version, with a text.
async fn rejects_a_secret(relay: &Process, upstream: &mut OriginStream, text: &str) -> Delta {
    let mut client = Delta::asking(&connect(&relay.uri()).await, "envoy", SDS, &["key"]).await;
    upstream.expect_request().await;
    for version in ["1", "2"] {
        upstream.send(&changes(Kind::Secret, version, &[("key", version)], &[]));
        upstream.expect_ack(version).await;
        let told = client.response().await;
        match version {
            "1" => client.ack(&told).await,
            _ => client.nack_saying(&told, text).await,
        }
    }
    client
}

/// As Envoy says it: it quotes the message that breaks a constraint.
const QUOTES: &str = "Proto constraint validation failed (SecretValidationError.Type: value is required): \
                      tls_certificate { private_key { inline_string: \"MIIEvQIBADANBgkqhkiG\" } }";
const WITHHELD: &str = "withheld, because it may quote the Secret; see the log of the client";

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_rejected_secret_is_shown_nowhere() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let _client = rejects_a_secret(&relay, &mut upstream, QUOTES).await;
    relay.wait_for("the rejection", || relay.admin_json("/nacks")["remembered"] == 1);
    let nack = &relay.admin_json("/nacks")["nacks"][0];
    assert_eq!((&nack["type"], &nack["code"]), (&json!("sds"), &json!(13)));
    assert_eq!((&nack["changed"], &nack["text"]), (&json!(["key"]), &json!(WITHHELD)));
    let status = connect(&format!("http://{}", relay.admin)).await;
    let status = unary(&status, CSDS, ClientStatusRequest::default()).await.unwrap();
    let status = String::from_utf8_lossy(&status).into_owned();
    assert!(status.contains(WITHHELD), "{status}");
    let one = format!("/clients/{}", nack["client"]);
    let pages = ["/clients", &one, "/nacks", "/resources"].map(|path| relay.admin_get(path).1);
    let mut line = String::new();
    relay.wait_for("its log line", || {
        let told = relay.events().into_iter().find(|event| event["text"] == WITHHELD);
        line = told.map(|event| event.to_string()).unwrap_or_default();
        !line.is_empty()
    });
    for shown in pages.into_iter().chain([status, line]) {
        assert!(!shown.contains("MIIE"), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_is_it_shown_of_a_change_that_is_held() {
    let guard = "rollout: {types: [sds], share: 0%, window: 1s}\n";
    let (relay, _origin, mut upstream) = relay_and_origin(guard).await;
    let _client = rejects_a_secret(&relay, &mut upstream, QUOTES).await;
    relay.wait_for("a change that is held", || relay.admin_json("/rollout")[0]["phase"] == "held");
    assert_eq!(relay.admin_json("/rollout")[0]["held"][0]["texts"], json!([WITHHELD]));
    relay.wait_for("its log line", || {
        let events = relay.events();
        let told = events.iter().find(|event| event["held"] == 1);
        told.is_some_and(|line| line["text"] == WITHHELD)
    });
}
