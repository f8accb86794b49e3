//! The binary between a scripted control plane and clients, over real sockets.

use deltafan::proto::{ResourceError, ResourceName, Status};
use deltafan_test_support::origin::timed;
use rustix::process::{Pid, Signal, kill_process};

use crate::prelude::*;

fn endpoints(nonce: &str, versions: &[(&str, &str)]) -> DeltaDiscoveryResponse {
    changes(Kind::Endpoint, nonce, versions, &[])
}

/// R-Relay-06: what is known is served, nothing is removed, and waiting costs next to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_06_without_its_origin_the_relay_serves_on_and_is_quiet() {
    let (relay, origin, mut upstream) = relay_and_origin("  cold_deadline: 1s\n").await;
    let channel = connect(&relay.uri()).await;
    let mut first = Delta::asking(&channel, "first", EDS, &["a"]).await;
    upstream.expect_request().await;
    upstream.send(&endpoints("1", &[("a", "1")]));
    first.take().await;

    drop((upstream, origin));
    relay.wait_for("the loss in the metrics", || relay.metric("deltafan_upstream_connected") == 0.0);
    let (cpu, lines) = (relay.cpu(), relay.log_lines());
    first.silence().await;
    let mut newcomer = Delta::asking(&channel, "newcomer", EDS, &["a"]).await;
    assert_eq!(names(&newcomer.response().await), ["a"]);
    // R-Relay-07: a client that cannot be told anything tries another server.
    let mut cold = Sotw::asking(&channel, "cold", EDS, &["b"]).await;
    assert_eq!(cold.end().await.code(), Code::Unavailable);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (cpu, lines) = (relay.cpu() - cpu, relay.log_lines() - lines);
    assert!(cpu < Duration::from_millis(200), "{cpu:?} of CPU in 4 s of retries every half second at most");
    assert!(lines <= 3, "{lines} lines of log");
    assert!(relay.admin_get("/ready").0 == 200, "it serves");
    assert!(relay.metric("deltafan_upstream_stale_seconds") >= 4.0);
}

/// Two tiers: the second relay is connected and answered, and cannot know more than the first.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_07_a_relay_behind_a_relay_knows_that_the_control_plane_is_away() {
    let (first, origin, mut upstream) = relay_and_origin("").await;
    let second = Process::behind(&first.uri(), "  cold_deadline: 1s\n");
    let channel = connect(&second.uri()).await;
    let mut stream = Sotw::asking(&channel, "first", EDS, &["a"]).await;
    upstream.expect_request().await;
    upstream.send(&endpoints("1", &[("a", "1")]));
    assert_eq!(stream.response().await.resources.len(), 1);
    drop((origin, upstream));
    second.wait_for("stale", || second.metric("deltafan_upstream_stale_seconds") > 0.0);
    assert_eq!(second.metric("deltafan_upstream_connected"), 1.0);
    let mut cold = Sotw::asking(&channel, "second", EDS, &["b"]).await;
    assert_eq!(cold.end().await.code(), Code::Unavailable);
    let mut warm = Sotw::asking(&channel, "third", EDS, &["a"]).await;
    assert_eq!(warm.response().await.resources.len(), 1, "what it has it serves");
}

/// Stops the process of the relay for so long: its sockets fill meanwhile, and its clock goes on.
async fn pause(relay: &Process, time: Duration) {
    let pid = Pid::from_raw(i32::try_from(relay.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    tokio::time::sleep(time).await;
    kill_process(pid, Signal::CONT).unwrap();
}

/// Heartbeats that arrive in time are in time, also where the relay reads them late.
#[tokio::test(flavor = "multi_thread")]
async fn r_ttl_09_a_pause_of_the_relay_ends_nothing_that_its_origin_kept_alive() {
    const TTL: Duration = Duration::from_secs(2);
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut client = Delta::asking(&channel, "client", CDS, &["*"]).await;
    upstream.expect_request().await;
    let cds: TypeUrl = Kind::Cluster.into();
    let first = vec![timed(&cds, "c1", "1", Some(b""), TTL)];
    upstream.deliver(&DeltaDiscoveryResponse { resources: first, ..response(&cds, "first") }).await;
    let answer = client.response().await;
    assert_eq!(names(&answer), ["c1"]);
    client.ack(&answer).await;

    let beats = tokio::spawn(async move {
        for beat in 0..30 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let beat = response(&Kind::Cluster.into(), &format!("beat {beat}"));
            let resources = vec![timed(&Kind::Cluster.into(), "c1", "1", None, TTL)];
            upstream.send(&DeltaDiscoveryResponse { resources, ..beat });
        }
        upstream
    });
    pause(&relay, Duration::from_secs(5)).await;
    client.silence().await;
    let mut late = Delta::asking(&channel, "late", CDS, &["*"]).await;
    assert_eq!(names(&late.response().await), ["c1"]);
    let _upstream = beats.await.unwrap();
    client.silence().await;
}

fn error(name: &str, code: Code, message: &str) -> ResourceError {
    ResourceError {
        resource_name: Some(ResourceName { name: name.to_owned(), ..ResourceName::default() }),
        error_detail: Some(Status { code: code as i32, message: message.to_owned() }),
    }
}

/// R-Err-07: the off-switch.
#[tokio::test(flavor = "multi_thread")]
async fn r_err_07_switched_off_a_client_is_told_no_errors() {
    let (relay, _origin, mut upstream) = relay_and_origin("  resource_errors: false\n").await;
    let mut delta = relay.client("delta", &["a", "b"]).await;
    upstream.expect_request().await;
    let cds: TypeUrl = Kind::Cluster.into();
    let resource_errors = vec![error("a", Code::Unavailable, ""), error("b", Code::NotFound, "")];
    upstream.send(&DeltaDiscoveryResponse { resource_errors, ..response(&cds, "1") });
    let told = delta.response().await;
    assert_eq!((told.removed_resources, told.resource_errors), (vec!["b".to_owned()], Vec::new()));
}
