//! Reports of the binary while a change is held, and after a mass removal: CLI, page's JSON, CSDS and metrics agree.

use deltafan::proto::status::ClientStatusRequest;
use deltafan::proto::{ClientResourceStatus, ConfigStatus};

use super::admin_commands::ask;
use super::client_status::{admin, fetch};
use super::status;
use crate::prelude::*;

fn clients(relay: &Process, state: &str) -> f64 {
    relay.metric(&format!("deltafan_clients{{type=\"cds\",state=\"{state}\"}}"))
}

/// Versions that each client was sent and has accepted.
fn versions(relay: &Process) -> Vec<[Json; 2]> {
    let page = relay.admin_json("/clients");
    let types = page["clients"].as_array().unwrap().iter().map(|client| client["types"][0].clone());
    let streams = types.filter(|of| of["held"].is_null());
    streams.map(|of| [of["sent"]["version"].clone(), of["acked"]["version"].clone()]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_change_is_held_every_report_says_who_runs_what() {
    let guard = "rollout: {types: [cds], share: 0%, window: 1s}\nrest: {hold: 1h}\n";
    let (relay, _origin, mut upstream) = relay_and_origin(guard).await;
    let mut canary = relay.client("canary", &["a"]).await;
    upstream.answer(&clusters_at("1", &["a"])).await;
    canary.take().await;
    let mut other = relay.client("other", &["a"]).await;
    other.take().await;
    let mut poll = Http1::connect(relay.listener);
    let ask_for = |version: &str| {
        format!(r#"{{"node": {{"id": "rest"}}, "resource_names": ["a"], "version_info": "{version}"}}"#)
    };
    let version = poll.poll("clusters", &ask_for("")).version();
    poll.request("POST /v3/discovery:clusters", "", &ask_for(&version));
    relay.wait_for("all", || clients(&relay, "synced") == 3.0);

    upstream.send(&clusters_at("2", &["a"]));
    let told = canary.response().await;
    relay.wait_for("the trial", || clients(&relay, "held_back") == 2.0);
    canary.nack(&told).await;
    canary.take().await;
    relay.wait_for("the hold", || clients(&relay, "held_back") == 3.0 && clients(&relay, "synced") == 0.0);
    assert_eq!(versions(&relay), [["1", "1"], ["1", "1"]].map(|both| both.map(Json::from)));
    assert_eq!(relay.admin_json("/clients?state=held_back&limit=0")["states"], json!({"held_back": 3}));
    let resources = relay.admin_json("/resources");
    assert_eq!(relay.admin_json("/resources?held_back=true")["resources"], resources["resources"]);
    let row = &resources["resources"][0];
    assert_eq!(resources["matched"], json!({"cds": 1}));
    assert_eq!((&row["version"], &row["newest"], &row["clients"]), (&json!("1"), &json!("2"), &json!(3)));
    let shown = fetch(&admin(&relay).await, ClientStatusRequest::default()).await.unwrap();
    for config in shown.iter().flat_map(|client| &client.generic_xds_configs) {
        let statuses = (config.config_status, config.client_status);
        assert_eq!(
            statuses,
            (ConfigStatus::NotSent.into(), ClientResourceStatus::Acked.into()),
            "{config:?}"
        );
    }
    assert_eq!(shown.len(), 3);
    let ran = ask(&relay, &["resources"]).await;
    assert!(ran.stdout.contains("NEWEST") && ran.stdout.contains("matched: cds 1"), "{}", ran.stdout);
    let (code, check) = status::wait_for(&relay, "rollout", "FAULT").await;
    let finding = check["finding"].as_str().unwrap();
    let why = ": cds a 2; canaries reject this: rejected by the test; correct it at the control plane, or `deltafan rollout release`";
    assert!(code == Some(3) && finding.starts_with("held for ") && finding.contains(why), "{finding}");

    upstream.send(&clusters_at("3", &["a"]));
    canary.take().await;
    let told = other.response().await;
    other.ack(&told).await;
    assert_eq!(poll.answer().unwrap().status, 200);
    relay.wait_for("the correction", || clients(&relay, "synced") == 2.0);
    assert_eq!(versions(&relay), [["3", "3"], ["3", "3"]].map(|both| both.map(Json::from)));
    assert!(relay.admin_json("/resources")["resources"][0].get("newest").is_none());
    assert_eq!(relay.admin_json("/resources?held_back=true")["resources"], json!([]));
    let ran = ask(&relay, &["status"]).await;
    assert!(ran.stdout.starts_with("all is well"), "{}", ran.stdout);
}

/// Without the brake nothing is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_mass_removal_is_told_by_log_status_and_metric() {
    let names: Vec<String> = (0..12).map(|at| format!("c{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let mut client = relay.client("envoy", &["*"]).await;
    upstream.answer(&clusters_at("1", &names)).await;
    client.take().await;
    let removed_resources = names[..7].iter().map(ToString::to_string).collect();
    upstream.deliver(&DeltaDiscoveryResponse { removed_resources, ..clusters_at("2", &[]) }).await;
    assert_eq!(client.take().await.removed_resources.len(), 7);
    let (code, check) = status::wait_for(&relay, "removals", "FAULT").await;
    assert!(check["finding"].as_str().unwrap().contains(" within a minute: 7 cds; "), "{check}");
    assert_eq!(code, Some(3));
    assert_eq!(relay.metric("deltafan_lost_resources{type=\"cds\"}"), 7.0);
    assert_told(&relay, 7, 5);

    let directory = Process::start(&[("clusters.yaml", &clusters(&names))], "");
    directory.wait_for("the files", || directory.metric("deltafan_resources{type=\"cds\"}") == 12.0);
    directory.write("clusters.yaml", &clusters(["c1"]));
    directory.wait_for("the loss", || directory.metric("deltafan_lost_resources{type=\"cds\"}") == 11.0);
    assert_told(&directory, 11, 1);
}

fn assert_told(relay: &Process, lost: u64, left: u64) {
    let told = relay.wait_for_message(
        "most resources of a type are gone within a minute, and clients are told so; if that is a mistake, put them back at the control \
         plane; `rollout.max_removed` holds such changes",
    );
    assert_eq!((told.len(), &told[0]["level"]), (1, &json!("WARN")));
    assert_eq!((&told[0]["lost"], &told[0]["left"]), (&json!(lost), &json!(left)), "{told:?}");
}
