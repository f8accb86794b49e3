//! Node groups that the control plane does not answer, or whose streams it ends: what operators are told, and of which group.

use std::time::Duration;

use bytes::Bytes;
use deltafan::proto::DeltaDiscoveryResponse;
use deltafan::resource::{Kind, TypeUrl};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response};
use deltafan_test_support::process::Process;
use serde_json::json;

use crate::admin_commands::ask;
use crate::groups::{FLEETS, client};
use crate::status;

async fn behind(origins: Vec<String>, keys: &'static str) -> Process {
    let begin = move || Process::behind_several(&origins, keys, FLEETS);
    tokio::task::spawn_blocking(begin).await.unwrap()
}

/// Answers the first request of a stream.
async fn answer(stream: &mut OriginStream, version: &str) {
    stream.expect_request().await;
    send(stream, version);
    stream.expect_ack(version).await;
}

fn send(stream: &OriginStream, version: &str) {
    let cds: TypeUrl = Kind::Cluster.into();
    let resources: Vec<Bytes> = vec![resource(&cds, "c", version, b"")];
    stream.send(&DeltaDiscoveryResponse { resources, ..response(&cds, version) });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_never_answered_has_nothing_that_is_out_of_date() {
    let mut origin = Origin::start().await;
    let relay = behind(vec![origin.uri()], "backoff: {initial: 50ms, max: 500ms}").await;
    let own = origin.accept().await;
    let _made_up = client(&relay, "made-1").await;
    let mut silent = origin.accept().await;
    silent.expect_request().await;
    // The relay looks every second for what is unanswered.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let stale = || relay.metric("deltafan_group_stale_seconds{group=\"fleet\"}");
    assert_eq!(stale(), 0.0);
    let (code, check) = status::wait_for(&relay, "node groups", "ok").await;
    assert_eq!((code, &check["figures"]["unanswered"]), (Some(0), &json!({"fleet": 0.0})), "{check}");

    let mut fleet = client(&relay, "red-1").await;
    let mut red = origin.accept().await;
    answer(&mut red, "1").await;
    fleet.response().await;
    drop((origin, own, silent, red));
    relay.wait_for("age of what is held", || stale() > 0.0);
    assert!(ask(&relay, &["status"]).await.stdout.contains("resources may be out of date: fleet for "));
}
