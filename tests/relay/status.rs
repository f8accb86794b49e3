//! `deltafan status`, by the real binary: whether all is well, and what is not.
use deltafan_test_support::client::{CDS, Delta, connect};
use deltafan_test_support::origin::clusters_at;
use deltafan_test_support::process::{Process, clusters, relay_and_origin};
use serde_json::{Value as Json, json};

use super::admin_commands::{ask, run};

/// Waits until a check has a state, and returns the exit status and the check.
pub(crate) async fn wait_for(relay: &Process, check: &str, state: &str) -> (Option<i32>, Json) {
    let deadline = std::time::Instant::now() + deltafan_test_support::PATIENCE;
    loop {
        let ran = ask(relay, &["status", "-o", "json"]).await;
        let status: Json = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        assert_eq!(status["well"], json!(ran.code == Some(0)), "{status}");
        let checks = status["checks"].as_array().unwrap();
        let found = checks.iter().find(|one| one["check"] == check).unwrap_or_else(|| panic!("{status}"));
        if found["state"] == state {
            return (ran.code, found.clone());
        }
        assert!(std::time::Instant::now() < deadline, "{check} is not {state}: {status}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_says_whether_all_is_well_and_what_is_not() {
    let (relay, origin, mut upstream) = relay_and_origin("").await;
    let mut client = Delta::asking(&connect(&relay.uri()).await, "client", CDS, &["*"]).await;
    upstream.answer(&clusters_at("17", &["a"])).await;
    client.take().await;
    relay.wait_for("the ACK", || relay.metric("deltafan_clients{type=\"cds\",state=\"synced\"}") == 1.0);
    let ran = ask(&relay, &["status"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert!(ran.stdout.starts_with("all is well: deltafan 0."), "{}", ran.stdout);
    let line = |begins: &str| {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        ran.stdout
            .lines()
            .map(words)
            .find(|line| line.starts_with(begins))
            .unwrap_or_else(|| panic!("{}", ran.stdout))
    };
    let source = line("ok control plane");
    assert!(source.contains(&origin.uri()) && source.contains(", delta, answered "), "{source}");
    assert_eq!(line("ok clients"), "ok clients open streams and polls: 1; synced 1");
    assert_eq!(line("ok rejections"), "ok rejections none");

    upstream.deliver(&clusters_at("18", &["a"])).await;
    let told = client.response().await;
    client.nack(&told).await;
    let (code, rejections) = wait_for(&relay, "rejections", "FAULT").await;
    assert_eq!(
        (code, &rejections["figures"]),
        (Some(3), &json!({"cds": {"rejecting": 1.0, "clients": 1.0}}))
    );
    let finding = "cds by 1 of 1 clients; the newest is of cds 18 by client: rejected by the test; see `deltafan nacks`";
    assert_eq!(rejections["finding"], finding);
    assert!(ask(&relay, &["status"]).await.stdout.starts_with("not well: deltafan 0."));
    upstream.deliver(&clusters_at("19", &["a"])).await;
    client.take().await;
    assert_eq!(wait_for(&relay, "rejections", "ok").await.0, Some(0));

    relay.reconfigure("nonsense: 1\n");
    let (code, configuration) = wait_for(&relay, "configuration", "FAULT").await;
    assert_eq!((code, &configuration["figures"]["last_reload_successful"]), (Some(3), &json!(false)));
    relay.reconfigure(&relay.config_with(""));
    assert_eq!(wait_for(&relay, "configuration", "ok").await.0, Some(0));

    drop((upstream, origin));
    let (code, away) = wait_for(&relay, "control plane", "FAULT").await;
    assert_eq!(code, Some(3));
    assert!(away["finding"].as_str().unwrap().contains(" is not connected: "), "{away}");
    assert!(away["figures"]["stale_seconds"].is_number(), "{away}");
}

/// Nothing else would tell that all clients still have the state before it.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_was_refused_is_a_fault_until_a_usable_one_comes() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let mut client = Delta::asking(&connect(&relay.uri()).await, "client", CDS, &["*"]).await;
    upstream.answer(&clusters_at("17", &["a"])).await;
    client.take().await;
    assert_eq!(wait_for(&relay, "control plane", "ok").await.0, Some(0));

    let mut twice = clusters_at("18", &["a"]);
    twice.resources.push(twice.resources[0].clone());
    upstream.send(&twice);
    let (code, fault) = wait_for(&relay, "control plane", "FAULT").await;
    let finding = fault["finding"].as_str().unwrap();
    assert_eq!(code, Some(3));
    assert!(
        finding.contains(": cds for ") && finding.ends_with("resource `a` is in one response twice"),
        "{finding}"
    );
    let refused = relay.admin_json("/upstreams")["refused"][0].take();
    assert_eq!((&refused["type"], &refused["type_url"]), (&json!("cds"), &json!(CDS)), "{refused}");
    assert_eq!(relay.metric("deltafan_upstream_refused_types"), 1.0);

    upstream.send(&clusters_at("19", &["a"]));
    assert_eq!(wait_for(&relay, "control plane", "ok").await.0, Some(0));
    assert_eq!(relay.metric("deltafan_upstream_refused_types"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_a_directory_names_files_that_are_not_in_force() {
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], "");
    let (code, directory) = wait_for(&relay, "directory", "ok").await;
    assert_eq!((code, &directory["finding"]), (Some(0), &json!("read")));
    relay.write("clusters.yaml", "resources: [1");
    let (code, directory) = wait_for(&relay, "directory", "FAULT").await;
    assert_eq!((code, &directory["figures"]["failing_files"]), (Some(3), &json!(1.0)));
    let ran = run(&["status", "--admin", &relay.uri()]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
}
