//! Rollout guard of the binary: a change that the canary rejects reaches no other client, until an operator or the control plane decides.

use crate::admin_commands::found;
use crate::prelude::*;

const GUARD: &str =
    "rollout: {types: [cds], share: 0%, window: 1s}\nsnapshot: {path: ./snapshot}\nrest: {hold: 10ms}\n";

fn cluster(version: &str) -> DeltaDiscoveryResponse {
    clusters_at(version, &["a"])
}

fn has(response: &DeltaDiscoveryResponse, version: &str) -> bool {
    response.resources == cluster(version).resources
}

fn rollout(relay: &Process) -> Json {
    relay.admin_json("/rollout")[0].take()
}

fn wait_for_phase(relay: &Process, phase: &str) -> Json {
    let mut found = Json::Null;
    relay.wait_for(phase, || {
        found = rollout(relay);
        found["phase"] == phase
    });
    found
}

/// The client accepts this version, which comes next.
async fn accepts(client: &mut Delta, version: &str) {
    let told = client.take().await;
    assert!(has(&told, version), "{told:?}");
}

/// The client rejects this version, which comes next.
async fn rejects(client: &mut Delta, version: &str) {
    let told = client.response().await;
    assert!(has(&told, version), "{told:?}");
    client.nack(&told).await;
}

async fn synced(relay: &Process, id: &str, version: &str) -> Delta {
    let mut client = relay.client(id, &["a"]).await;
    accepts(&mut client, version).await;
    client
}

/// Two clients that have the first version; the first one is the canary.
async fn canary_and_other(relay: &Process, upstream: &mut OriginStream) -> [Delta; 2] {
    let mut canary = relay.client("canary", &["a"]).await;
    upstream.expect_request().await;
    upstream.send(&cluster("1"));
    canary.take().await;
    [canary, synced(relay, "other", "1").await]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_the_canary_rejects_reaches_nobody_else() {
    let (mut relay, mut origin, mut upstream) = relay_and_origin(GUARD).await;
    let [mut canary, mut other] = canary_and_other(&relay, &mut upstream).await;
    let mut sotw = Sotw::asking(&connect(&relay.uri()).await, "sotw", CDS, &["a"]).await;
    let told = sotw.response().await;
    sotw.ack(&told, &["a"]).await;

    upstream.send(&cluster("2"));
    rejects(&mut canary, "2").await;
    let held = wait_for_phase(&relay, "held");
    assert_eq!((&held["canaries"], &held["group"]), (&json!(1), &Json::Null));
    assert_eq!((&held["reason"], &held["searching"]), (&json!("rejected"), &json!(false)));
    let change = &held["held"][0];
    assert_eq!(
        (&change["type"], &change["name"], &change["version"]),
        (&json!("cds"), &json!("a"), &json!("2"))
    );
    assert_eq!((&change["rejected"], &change["texts"]), (&json!(1), &json!(["rejected by the test"])));
    assert_eq!(relay.metric("deltafan_rollout_changes{state=\"held\"}"), 1.0);
    let (code, rollout) = super::status::wait_for(&relay, "rollout", "FAULT").await;
    assert!(rollout["finding"].as_str().unwrap().contains(": cds a 2; canaries reject this: "), "{rollout}");
    assert_eq!(code, Some(3));
    assert_eq!(relay.metric("deltafan_rollouts_total{result=\"held\"}"), 1.0);
    relay.wait_for_message(
        "canaries reject a change, so the other clients keep the last good resources; correct it at the control plane, or \
         run `deltafan rollout release` or `discard`",
    );
    // Newcomers of every transport are sent the last good version.
    drop(synced(&relay, "late", "1").await);
    let poll = Http1::connect(relay.listener)
        .poll("clusters", r#"{"node": {"id": "rest"}, "resource_names": ["a"]}"#);
    assert_eq!(poll.json()["resources"].as_array().unwrap().len(), 1);
    let mut per_type = Delta::open(&connect(&relay.uri()).await, DELTA_CLUSTERS).await;
    per_type.subscribe("per-type", CDS, &["a"]).await;
    assert!(has(&per_type.response().await, "1"));
    drop(per_type);

    // After a crash too: what was on trial is not on disk, and comes again from the control plane.
    relay.wait_for_snapshot(Duration::from_millis(2_500));
    relay = relay.killed_and_restarted(|_| {});
    drop((canary, other, sotw, upstream));
    let mut canary = relay.client("canary", &["a"]).await;
    accepts(&mut canary, "1").await;
    other = synced(&relay, "other", "1").await;
    let mut upstream = origin.accept().await;
    upstream.expect_request().await;
    upstream.send(&cluster("2"));
    rejects(&mut canary, "2").await;
    wait_for_phase(&relay, "held");

    // The canary is given back what the others have.
    accepts(&mut canary, "1").await;
    assert_eq!(relay.admin_post("/rollout/discard?group=none").0, 404);
    assert_eq!(relay.admin_post("/rollout/discard?group").0, 400, "it is not the own group");
    let shown = found(&relay, &["rollout"]).await;
    let held = "STATE  TYPE  NAME  VERSION  ACCEPTED  REJECTED  TEXT\n\
                held   cds   a     2        0         1         rejected by the test\n";
    assert!(shown.starts_with("PHASE") && shown.ends_with(held), "{shown}");
    assert_eq!(found(&relay, &["rollout", "discard", "--yes"]).await, "groups          own\n");
    wait_for_phase(&relay, "idle");
    // The correction reaches all.
    upstream.send(&cluster("3"));
    accepts(&mut canary, "3").await;
    assert!(has(&other.response().await, "3"));
    wait_for_phase(&relay, "idle");
    assert_eq!(relay.admin_post("/rollout/release").0, 404);
    assert_eq!(relay.admin_get("/rollout/release").0, 405);
}

/// The canary is silent, and the control plane connects again meanwhile and repeats itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_the_canary_does_not_answer_waits_for_it_or_for_an_operator() {
    let (relay, mut origin, mut upstream) =
        relay_and_origin("rollout: {types: [cds], share: 0%, window: 1s}\n").await;
    let [mut canary, mut other] = canary_and_other(&relay, &mut upstream).await;
    upstream.send(&cluster("2"));
    assert!(has(&canary.response().await, "2"));
    drop(upstream);
    let mut upstream = origin.accept().await;
    upstream.expect_request().await;
    upstream.send(&cluster("2"));
    relay.wait_for("silence", || rollout(&relay)["unanswered"].as_u64() > Some(1));
    relay.wait_for_message(
        "no canary answers a change, so the other clients keep the last good resources and the trial begins anew; see whether the \
         canaries are alive, or run `deltafan rollout release`",
    );
    assert!(relay.metric("deltafan_rollouts_total{result=\"unanswered\"}") > 1.0);
    drop(synced(&relay, "late", "1").await);
    assert_eq!(relay.admin_post("/rollout/discard").0, 404);
    assert_eq!(relay.admin_post("/rollout/release").0, 200);
    assert!(has(&other.response().await, "2"));
    assert_eq!(wait_for_phase(&relay, "idle")["unanswered"], 0);
}

/// A control plane that was emptied by mistake, while the relay was away or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_is_emptied_empties_nobody() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let all = || clusters_at("1", &names);
    let gone = || changes(Kind::Cluster, "2", &[], &names);
    let brake = "rollout: {types: [cds], window: 0s, max_removed: 40%}\nsnapshot: {path: ./snapshot}\n";
    let (mut relay, mut origin, mut upstream) = relay_and_origin(brake).await;
    let mut client = relay.client("envoy", &["*"]).await;
    upstream.expect_request().await;
    upstream.send(&all());
    let told = client.response().await;
    assert_eq!(told.resources.len(), names.len());
    client.ack(&told).await;
    relay.wait_for_snapshot(Duration::from_millis(2_500));

    upstream.send(&gone());
    let held = wait_for_phase(&relay, "held");
    assert_eq!((&held["reason"], held["held"].as_array().unwrap().len()), (&json!("removals"), names.len()));
    assert!(tokio::time::timeout(Duration::from_millis(1500), client.response()).await.is_err());
    relay.wait_for_message(
        "a change removes more than `rollout.max_removed` allows, so no client is sent it; put the resources back at the control \
         plane, or run `deltafan rollout release` or `discard`",
    );
    relay = relay.killed_and_restarted(|_| {});
    drop((client, upstream));
    let mut client = relay.client("envoy", &["*"]).await;
    assert_eq!(client.response().await.resources.len(), names.len(), "from the snapshot");
    let mut upstream = origin.accept().await;
    upstream.expect_request().await;
    upstream.send(&gone());
    wait_for_phase(&relay, "held");
    assert_eq!(relay.admin_post("/rollout/release").0, 200);
    wait_for_phase(&relay, "idle");
    let told = client.response().await;
    assert_eq!(told.removed_resources.len(), names.len());
}

/// Nothing else happens at the relay meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_followed_at_once_with_a_directory_too() {
    let guard = "rollout: {types: [cds], share: 0%, window: 1s}\n";
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], guard);
    let mut canary = relay.client("canary", &["*"]).await;
    canary.take().await;
    assert_eq!(relay.admin_post("/rollout/hold").0, 200);
    relay.write("clusters.yaml", &clusters(["a", "b"]));
    relay.wait_for("the change", || rollout(&relay)["on_hold"] == 1);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(relay.admin_post("/rollout/release").0, 200);
    let told = tokio::time::timeout(Duration::from_secs(1), canary.response()).await.unwrap();
    assert_eq!(told.resources.len(), 1);
}

/// An operator holds a type, gives clients earlier states back, and lets go; all but the last across a crash.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_holds_a_type_and_restores_earlier_states() {
    let (mut relay, mut origin, mut upstream) = relay_and_origin(GUARD).await;
    let [mut canary, mut other] = canary_and_other(&relay, &mut upstream).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let then = prost_types::Timestamp::from(std::time::SystemTime::now());
    // Times are compared in whole seconds.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    upstream.send(&cluster("2"));
    let told = canary.response().await;
    canary.ack(&told).await;
    accepts(&mut other, "2").await;
    wait_for_phase(&relay, "idle");

    for (query, status, text) in [
        ("type=lds&name=a&version=1", 404, "not guarded"),
        ("name=a&version=1", 400, "a name and its version, or a time"),
        ("type=cds&name=a&version=7", 404, "there are 2, 1"),
        ("type=cds&name=none&version=1", 404, "no history of cds `none`"),
        ("type=cds&name=a", 400, "a name and its version, or a time"),
        ("type=cds&at=soon", 400, "2026-03-01T14:02:11Z"),
        ("type=cds&at=2099-03-01T14:02:11Z", 404, "nothing has changed since"),
        ("type=cds&at=2020-03-01T14:02:11Z", 404, "goes back to"),
    ] {
        let (found, said) = relay.admin_post(&format!("/rollout/restore?{query}"));
        assert!(found == status && said.contains(text), "{query}: {found} {said}");
    }
    for order in ["type=cds&name=a&version=1".to_owned(), format!("type=cds&at={then}")] {
        let (status, text) = relay.admin_post(&format!("/rollout/restore?{order}&by=alice%0a"));
        assert_eq!((status, text.trim()), (200, r#"{"groups":[null],"restored":1}"#), "{order}");
    }
    for client in [&mut canary, &mut other] {
        accepts(client, "1").await;
    }
    relay.wait_for_message("an operator gave the rollout guard an order");
    let (status, text) = relay.admin_post("/rollout/hold?type=cds");
    assert_eq!((status, text.trim()), (200, r#"{"groups":[null]}"#));
    let orders = wait_for_phase(&relay, "held")["orders"].clone();
    let fields = |at: usize, keys: [&str; 4]| keys.map(|key| orders[at][key].clone());
    assert_eq!(
        fields(0, ["order", "type", "name", "by"]),
        [json!("hold"), json!("cds"), Json::Null, json!("127.0.0.1")]
    );
    assert_eq!(
        fields(1, ["order", "name", "version", "by"]),
        [json!("restore"), json!("a"), json!("1"), json!("127.0.0.1 (alice\n)")]
    );

    relay.wait_for_snapshot(Duration::from_millis(2_500));
    relay = relay.killed_and_restarted(|_| {});
    drop((canary, other, upstream));
    let (mut canary, mut other) = (synced(&relay, "canary", "1").await, synced(&relay, "other", "1").await);
    let mut upstream = origin.accept().await;
    upstream.expect_request().await;
    upstream.send(&cluster("2"));
    upstream.send(&DeltaDiscoveryResponse { nonce: "3".to_owned(), ..cluster("3") });
    assert!(tokio::time::timeout(Duration::from_millis(2500), canary.response()).await.is_err());
    let held = rollout(&relay);
    assert_eq!((&held["phase"], &held["on_hold"]), (&json!("held"), &json!(1)), "{held}");
    assert_eq!(held["orders"], json!([orders[0]]), "something newer came for the other");
    let (status, text) = relay.admin_post("/rollout/restore?type=cds&name=a&version=2");
    assert!(
        status == 404 && text.contains("no history of version `2`"),
        "the fleet was never sent it: {text}"
    );
    assert_eq!(relay.admin_post("/rollout/release?type=cds").0, 200);
    accepts(&mut canary, "3").await;
    assert!(has(&other.response().await, "3"));
    assert_eq!(wait_for_phase(&relay, "idle")["orders"], json!([]));
}
