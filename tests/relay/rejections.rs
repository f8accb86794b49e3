//! Rejections (NACKs), as operators see them: which clients reject what, and why.

use deltafan::proto::status::ClientStatusRequest;

use crate::prelude::*;

const CSDS: &str = "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus";

/// A client may come back for what it rejected, time and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reconnects_is_one() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    for round in 0..5 {
        let mut client = relay.client("envoy", &["*"]).await;
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
