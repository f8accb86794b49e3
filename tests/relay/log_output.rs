//! A log that is not read, or cannot be written to.

use crate::prelude::*;

async fn update(upstream: &mut OriginStream, version: &str) {
    upstream.deliver(&clusters_at(version, &["a"])).await;
}

/// Relay with a client that has version 1.
async fn with_client() -> (Process, Origin, OriginStream, Delta) {
    let (relay, origin, mut upstream) = relay_and_origin("  drain: 100ms\n").await;
    let mut client = relay.client("client", &["*"]).await;
    upstream.expect_request().await;
    update(&mut upstream, "1").await;
    client.take().await;
    (relay, origin, upstream, client)
}

/// Each of these is told in the log: a rejection, and a stream that the control plane ends.
async fn makes_lines(client: &mut Delta, origin: &mut Origin, mut upstream: OriginStream) -> OriginStream {
    update(&mut upstream, "2").await;
    let told = client.response().await;
    client.nack(&told).await;
    upstream.fail(tonic::Status::unavailable("not today"));
    let mut again = origin.accept_asked().await;
    update(&mut again, "3").await;
    client.response().await;
    again
}

const LOST: &str = "deltafan_log_lines_lost_total";

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_holds_up_nothing() {
    let (mut relay, mut origin, upstream, mut client) = with_client().await;
    relay.leave_log();
    let mut upstream = makes_lines(&mut client, &mut origin, upstream).await;
    assert_eq!(relay.admin_get("/ready").0, 200);
    // More lines than may wait: libraries log each frame then.
    relay.admin_post("/log?level=trace");
    relay.wait_for("lost lines", || {
        (0..200).for_each(|_| drop(relay.admin_get("/healthz")));
        relay.metric(LOST) > 0.0
    });
    relay.admin_post("/log?level=info");
    relay.read_log();
    let told =
        relay.wait_for_message("lines of the log were lost: stderr was not read, or could not be written to");
    assert!(told[0]["lost"].as_u64().is_some_and(|lost| lost > 0), "{told:?}");
    relay.leave_log();
    update(&mut upstream, "4").await;
    client.response().await;
    relay.terminate();
    assert!(relay.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_closed_ends_nothing() {
    let (mut relay, mut origin, upstream, mut client) = with_client().await;
    relay.close_log();
    let mut upstream = makes_lines(&mut client, &mut origin, upstream).await;
    update(&mut upstream, "4").await;
    client.response().await;
    assert_eq!(relay.admin_get("/ready").0, 200);
    relay.wait_for("lines that could not be written", || relay.metric(LOST) > 0.0);
    relay.terminate();
    assert!(relay.wait().success());
}
