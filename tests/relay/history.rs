//! Last changes of resources: `GET /history` and `deltafan history`, by the real binary.

use deltafan::resource::wire;
use deltafan_test_support::origin;
use deltafan_test_support::process::relay as start;

use crate::admin_commands::{ask, found};
use crate::groups::{FLEETS, client};
use crate::prelude::*;

/// A cluster with a timeout in seconds.
fn cluster(name: &str, version: &str, seconds: u8) -> Bytes {
    let mut body = bytes::BytesMut::new();
    wire::put_field(&mut body, 1, name.as_bytes());
    wire::put_field(&mut body, 4, &[8, seconds]);
    resource(&Kind::Cluster.into(), name, version, &body)
}

fn clusters(nonce: &str, resources: &[Bytes]) -> DeltaDiscoveryResponse {
    let resources = resources.to_vec();
    DeltaDiscoveryResponse { resources, ..response(&Kind::Cluster.into(), nonce) }
}

/// The history of a resource that has one.
fn history(relay: &Process, query: &str) -> Json {
    relay.admin_json(&format!("/history?{query}"))
}

/// Event, version and clients that accepted, rejected and have not answered, of each change of the first group; and the clients that
/// ask for it.
fn changes(page: &Json) -> (Vec<Json>, u64) {
    let history = &page["histories"][0];
    let change =
        |of: &Json| json!([of["event"], of["version"], of["accepted"], of["rejected"], of["unanswered"]]);
    let changes = history["changes"].as_array().unwrap().iter().map(change).collect();
    (changes, history["clients"].as_u64().unwrap())
}

/// Waits until the changes of a resource are these: ACKs are on their way.
fn wait_for_changes(relay: &Process, query: &str, expected: &[Json], clients: u64) -> Json {
    let mut page = Json::Null;
    let expected = (expected.to_vec(), clients);
    relay.wait_for(&format!("{query} to be {expected:?}"), || {
        page = history(relay, query);
        changes(&page) == expected
    });
    page
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_have_their_clients_and_a_diff() {
    const STEERING: &str = "a\u{1b}[2J";
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let names = ["web", STEERING];
    let mut good = Delta::asking(&channel, "good", CDS, &names).await;
    let mut bad = Delta::asking(&channel, "bad", CDS, &names).await;
    let mut sotw = Sotw::asking(&channel, "sotw", CDS, &names).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[cluster("web", "16", 1), cluster(STEERING, "16", 1)]));
    for client in [&mut good, &mut bad] {
        client.take().await;
    }
    let told = sotw.response().await;
    sotw.ack(&told, &names).await;
    wait_for_changes(&relay, "type=cds&name=web", &[json!(["present", "16", 3, 0, 0])], 3);

    upstream.send(&clusters("2", &[cluster("web", "17", 2), cluster(STEERING, "17", 2)]));
    let (of_good, of_bad, of_sotw) = (good.response().await, bad.response().await, sotw.response().await);
    let unanswered = [json!(["changed", "17", 0, 0, 3]), json!(["present", "16", 3, 0, 0])];
    wait_for_changes(&relay, "type=cds&name=web", &unanswered, 3);
    good.ack(&of_good).await;
    bad.nack(&of_bad).await;
    sotw.ack(&of_sotw, &names).await;
    let answered = [json!(["changed", "17", 2, 1, 0]), json!(["present", "16", 3, 0, 0])];
    let page = wait_for_changes(&relay, "type=cds&name=web", &answered, 3);
    let newest = &page["histories"][0]["changes"][0];
    assert!(
        newest["bytes"].as_u64().unwrap() > 50 && newest["digest"].as_str().unwrap().len() == 32,
        "{newest}"
    );
    assert!(newest["time"].as_str().unwrap().ends_with('Z'), "{newest}");
    let diff = "--- 16\n+++ 17\n@@ -1,5 +1,5 @@\n {\n   \"@type\": \
                \"type.googleapis.com/envoy.config.cluster.v3.Cluster\",\n-  \"connectTimeout\": \"1s\",\n+  \
                \"connectTimeout\": \"2s\",\n   \"name\": \"web\"\n }\n";
    assert_eq!(page["histories"][0]["diff"]["text"], diff, "{page}");

    let table = found(&relay, &["history", "cds", "web"]).await;
    let newest: Vec<&str> = table.lines().nth(3).unwrap().split_whitespace().collect();
    assert_eq!(newest[2..], ["changed", "17", "64", "2", "1", "0"], "{table}");
    assert!(
        table.starts_with("cds web, clients 3\n\nAGE  TIME ") && table.ends_with(&format!("\n\n{diff}")),
        "{table}"
    );
    let reversed = ask(&relay, &["history", "cds", "web", "--from", "17", "--to", "16", "-o", "json"]).await;
    let reversed: Json = serde_json::from_str(&reversed.stdout).unwrap();
    let text = reversed["histories"][0]["diff"]["text"].as_str().unwrap();
    assert!(text.starts_with("--- 17\n+++ 16\n") && text.contains("+  \"connectTimeout\": \"1s\""), "{text}");
    let table = ask(&relay, &["history", "cds", STEERING]).await.stdout;
    assert!(table.contains("a\\u{1b}[2J") && !table.contains('\u{1b}'), "{table}");

    // It goes, and comes back.
    upstream.send(&origin::changes(Kind::Cluster, "3", &[], &["web"]));
    for client in [&mut good, &mut bad] {
        client.take().await;
    }
    let told = sotw.response().await;
    sotw.ack(&told, &names).await;
    let removed = [
        json!(["removed", null, 3, 0, 0]),
        json!(["changed", "17", 3, 0, 0]),
        json!(["present", "16", 3, 0, 0]),
    ];
    let page = wait_for_changes(&relay, "type=cds&name=web", &removed, 3);
    let text = page["histories"][0]["diff"]["text"].as_str().unwrap();
    assert!(text.contains("\n-  \"name\": \"web\"\n") && !text.contains("\n+ "), "{text}");
    upstream.send(&clusters("4", &[cluster("web", "18", 2)]));
    relay.wait_for("the return", || changes(&history(&relay, "type=cds&name=web")).0.len() == 4);
    let page = history(&relay, "type=cds&name=web");
    assert_eq!(changes(&page).0[0][0], "added");
    let page = history(&relay, "type=cds&name=web&from=17&to=18");
    let diff = &page["histories"][0]["diff"];
    let recent = history(&relay, "type=cds&limit=2")["changes"].clone();
    let names = |of: &Json| json!([of["name"], of["event"], of["version"]]);
    let recent: Vec<Json> = recent.as_array().unwrap().iter().map(names).collect();
    assert_eq!(recent, [json!(["web", "added", "18"]), json!(["web", "removed", null])]);
    let table = ask(&relay, &["history"]).await.stdout;
    assert!(table.starts_with("AGE  TIME ") && table.lines().count() == 5, "{table}");
    assert!(table.contains("a\\u{1b}[2J  changed  17 "), "{table}");
    assert_eq!(ask(&relay, &["history", "cds", "--limit", "1"]).await.stdout.lines().count(), 2);
    let all = history(&relay, "type=cds")["changes"].clone();
    let (newest, past, future) =
        (all[0]["time"].as_str().unwrap(), "2000-01-01T00:00:00Z", "2100-01-01T00:00:00Z");
    let named =
        |query: &str| history(&relay, &format!("type=cds&{query}"))["changes"].as_array().unwrap().len();
    assert_eq!(named(&format!("since={newest}&limit=1")), 1, "a time as it is shown");
    assert_eq!(named(&format!("since={past}&until={newest}")), 4, "a time as it is shown");
    assert_eq!([named(&format!("since={future}")), named(&format!("until={past}"))], [0, 0]);
    assert_eq!(found(&relay, &["history", "--since", past, "--until", newest]).await.lines().count(), 5);
    let compared = |at: &str| {
        let page = history(&relay, &format!("type=cds&name=web&at={at}"));
        let diff = &page["histories"][0]["diff"];
        [diff["from"].clone(), diff["to"].clone()]
    };
    assert_eq!([compared(past), compared(newest)], [["16", "18"], ["18", "18"]]);
    assert_eq!(diff["note"], "the content is the same; only the version changed", "{diff}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_no_history_of_is_told_with_the_remedy() {
    let relay = start("");
    relay.wait_for("the clusters", || relay.admin_get("/history?type=cds&name=a").0 == 200);
    for (query, status, reason) in [
        ("type=cds&name=nobody", 404, "GET /resources?type=cds lists what is here"),
        ("type=cds&name=a&group=other", 404, "there is no group `other`"),
        ("type=cds&name=a&from=nine", 404, "no history of version `nine`; there are "),
        ("type=cds&from=1", 400, "`name` is missing: /history?type=cds&name="),
        ("type=cds&at=2026-03-01T14:02:11Z", 400, "`name` is missing"),
        ("since=yesterday", 400, "a time such as 2026-03-01T14:02:11Z"),
        ("name=a", 400, "`type` is missing"),
        ("type=cows&name=a", 400, "is no resource type"),
        (
            "type=cds&name=a&node=1",
            400,
            "unknown key `node`; there are type, name, from, at, to, group, since, until and limit",
        ),
    ] {
        let (found, text) = relay.admin_get(&format!("/history?{query}"));
        assert!(found == status && text.contains(reason), "{query}: {found} {text}");
    }
    assert_eq!(relay.admin_get("/history?type=cds&name=a&group=").0, 200, "the relay's own group");
    let words =
        "no changes remembered; the relay keeps those since its start, within `cache.history_bytes`\n";
    assert_eq!(found(&relay, &["history"]).await, words);
    let ran = ask(&relay, &["history", "cds", "nobody"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.starts_with("deltafan: no history of cds `nobody`"), "{}", ran.stderr);
    for wrong in [&["history", "cows", "a"][..], &["history", "cds", "--from", "1"]] {
        assert_eq!(ask(&relay, wrong).await.code, Some(2), "{wrong:?}");
    }
    drop(relay);
    let relay = start("cache: {history_bytes: 0}\n");
    let (status, text) = relay.admin_get("/history?type=cds&name=a");
    assert!(status == 404 && text.contains("`cache.history_bytes` is 0"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_group_has_a_history_of_its_own() {
    let (relay, mut origin, _own) = relay_and_origin(FLEETS).await;
    for fleet in ["red", "blue"] {
        let mut member = client(&relay, &format!("{fleet}-1")).await;
        let upstream = origin.accept_asked().await;
        upstream.send(&clusters(fleet, &[cluster("web", fleet, 1)]));
        member.take().await;
        let expected = [json!(["present", fleet, 1, 0, 0])];
        let query = format!("type=cds&name=web&group=fleet:{fleet}");
        let page = wait_for_changes(&relay, &query, &expected, 1);
        assert_eq!(page["histories"][0]["group"], format!("fleet:{fleet}"));
        // Both are asked for once the other one is there too.
        if fleet == "blue" {
            let all = history(&relay, "type=cds&name=web");
            assert_eq!(all["histories"].as_array().unwrap().len(), 2, "{all}");
            let table = ask(&relay, &["history", "cds", "web"]).await.stdout;
            assert!(
                table.contains("cds web, group fleet:red, ") && table.contains("group fleet:blue, "),
                "{table}"
            );
        }
        std::mem::forget((member, upstream));
    }
}

/// The history is the control plane's; each client counts for what its track shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_held_back_is_in_the_history() {
    const GUARD: &str = "rollout: {types: [cds], share: 0%, window: 1s}\n";
    let (relay, _origin, mut upstream) = relay_and_origin(GUARD).await;
    let mut canary = relay.client("canary", &["*"]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[cluster("web", "16", 1)]));
    canary.take().await;
    let mut other = relay.client("other", &["*"]).await;
    other.take().await;
    wait_for_changes(&relay, "type=cds&name=web", &[json!(["present", "16", 2, 0, 0])], 2);
    upstream.send(&clusters("2", &[cluster("web", "17", 2)]));
    let told = canary.response().await;
    canary.nack(&told).await;
    let held = [json!(["changed", "17", 0, 1, 0]), json!(["present", "16", 1, 1, 0])];
    wait_for_changes(&relay, "type=cds&name=web", &held, 2);
    relay.wait_for("the hold", || relay.admin_get("/rollout").1.contains("\"phase\":\"held\""));
    // The canary is given the last good version back.
    canary.take().await;
    let taken_back = [json!(["changed", "17", 0, 0, 0]), json!(["present", "16", 2, 0, 0])];
    wait_for_changes(&relay, "type=cds&name=web", &taken_back, 2);
    assert_eq!(relay.admin_post("/rollout/release").0, 200);
    for client in [&mut canary, &mut other] {
        client.take().await;
    }
    let released = [json!(["changed", "17", 2, 0, 0]), json!(["present", "16", 2, 0, 0])];
    wait_for_changes(&relay, "type=cds&name=web", &released, 2);
}
