//! Control planes that speak state of the world, over real sockets.

use std::collections::HashMap;

use deltafan_test_support::origin::{SotwOriginStream, state};

use crate::prelude::*;

fn cds() -> TypeUrl {
    Kind::Cluster.into()
}

/// Takes responses until so many resources came; returns their versions.
async fn take(client: &mut Delta, count: usize) -> HashMap<String, String> {
    let mut held = HashMap::new();
    while held.len() < count {
        let response = client.response().await;
        held.extend(versions(&response));
        client.ack(&response).await;
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_without_delta_is_asked_by_state_of_the_world_and_with_delta_by_delta() {
    let mut origin = Origin::start().await;
    origin.implement(false, true);
    let relay = Process::behind(&origin.uri(), "");
    let mut client = relay.client("client", &["*"]).await;
    let mut upstream = origin.accept_sotw().await;
    upstream.answer(&state(&cds(), "1", &[("a", "1"), ("b", "1")])).await;
    take(&mut client, 2).await;
    assert_eq!(protocol(&relay), "sotw");
    relay.wait_for("a line about the protocol", || {
        relay.events().iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            event["level"] == "WARN" && text.contains("using state of the world")
        })
    });
    // It is the same connection: nothing was lost.
    assert_eq!(relay.metric("deltafan_upstream_events_total{event=\"reconnect\"}"), 0.0);
    // The next connection finds another server.
    origin.implement(true, true);
    upstream.close();
    let mut upstream = origin.accept_asked().await;
    upstream.send(&clusters_at("1", &["a", "b"]));
    upstream.expect_ack("1").await;
    assert_eq!(protocol(&relay), "delta");
}

fn protocol(relay: &Process) -> Json {
    relay.admin_json("/upstreams")["servers"][0]["protocol"].take()
}

/// Warnings that have this in them.
fn warnings(relay: &Process, text: &str) -> usize {
    let says = |event: &serde_json::Value| {
        event["level"] != "INFO" && event["level"] != "DEBUG" && event.to_string().contains(text)
    };
    relay.events().iter().filter(|event| says(event)).count()
}

async fn answer(upstream: &mut SotwOriginStream) {
    offer(upstream).await;
    upstream.expect_ack("1").await;
}

/// Answers, and leaves it open whether that is acknowledged.
async fn offer(upstream: &mut SotwOriginStream) {
    upstream.expect_request().await;
    upstream.send(&state(&cds(), "1", &[("a", "1"), ("b", "1")]));
}

/// As rust-control-plane, which panics on a delta stream.
#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_resets_each_delta_stream_is_asked_by_state_of_the_world() {
    let mut origin = Origin::start().await;
    origin.implement(true, true);
    origin.reset_delta(true);
    // It is ready with nothing asked.
    let relay = Process::behind(&origin.uri(), "");
    let mut upstream = origin.accept_sotw().await;
    let mut client = relay.client("client", &["*"]).await;
    offer(&mut upstream).await;
    take(&mut client, 2).await;
    // Delta is tried once more, and state of the world is asked again.
    upstream = origin.accept_sotw().await;
    answer(&mut upstream).await;
    relay.wait_for_message("the control plane resets each delta stream; using state of the world. Set upstream.servers[].protocol to sotw if that is how it is meant");
    assert_eq!(protocol(&relay), "sotw");
    assert_eq!(relay.metric("deltafan_upstream_events_total{event=\"reconnect\"}"), 0.0);
    // It is known by now.
    for turn in 1..4 {
        upstream.close();
        upstream = origin.accept_sotw().await;
        answer(&mut upstream).await;
        relay.wait_for("the reconnect", || {
            relay.metric("deltafan_upstream_events_total{event=\"reconnect\"}") == f64::from(turn)
        });
        assert!(tokio::time::timeout(MOMENT, origin.accept_sotw()).await.is_err(), "one stream is enough");
    }
    assert_eq!(relay.admin_get("/ready").0, 200);
    assert_eq!(warnings(&relay, ""), 0, "after the one above");
}

/// The second stream, for a type that is wanted by name too, finds it out as well as the first.
#[tokio::test(flavor = "multi_thread")]
async fn that_an_origin_lacks_delta_is_warned_of_once() {
    let mut origin = Origin::start().await;
    origin.implement(false, true);
    let relay = Process::behind(&origin.uri(), "");
    let mut upstream = origin.accept_sotw().await;
    let mut client = relay.client("client", &["*"]).await;
    answer(&mut upstream).await;
    take(&mut client, 2).await;
    let _by_name = relay.client("by-name", &["a"]).await;
    let second = origin.accept_sotw().await;
    let mut streams = vec![upstream, second];
    for _ in 0..8 {
        streams.drain(..).for_each(|stream| stream.close());
        for _ in 0..2 {
            let mut stream = origin.accept_sotw().await;
            answer(&mut stream).await;
            streams.push(stream);
        }
    }
    assert_eq!(warnings(&relay, "implement delta"), 1);
}
