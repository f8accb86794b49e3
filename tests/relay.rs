//! The binary between a scripted control plane and clients, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use deltafan::resource::{Envelope, Kind, TypeUrl};
use support::client::{CDS, DELTA_ADS, Delta, EDS, MOMENT, PATIENCE, SOTW_ADS, Sotw, connect, names};
use support::origin::{Origin, OriginStream, resource, response};
use support::process::Process;
use tonic::Code;

/// The relay, and the origin's side of its stream.
async fn start(downstream: &'static str) -> (Process, Origin, OriginStream) {
    let mut origin = Origin::start().await;
    let uri = origin.uri();
    let relay = tokio::task::spawn_blocking(move || Process::behind(&uri, downstream)).await.unwrap();
    let stream = origin.accept().await;
    (relay, origin, stream)
}

fn endpoints(nonce: &str, versions: &[(&str, &str)]) -> DeltaDiscoveryResponse {
    let eds: TypeUrl = Kind::Endpoint.into();
    let resources = versions.iter().map(|(name, version)| resource(&eds, name, version, b"")).collect();
    DeltaDiscoveryResponse { resources, ..response(&eds, nonce) }
}

/// What a client holds, from what it was told.
fn take(held: &mut BTreeMap<String, String>, told: &DeltaDiscoveryResponse) {
    for bytes in &told.resources {
        let envelope = Envelope::parse(bytes, &told.type_url.as_str().into()).unwrap();
        held.insert(envelope.name.to_owned(), envelope.version.to_owned());
    }
    told.removed_resources.iter().for_each(|name| _ = held.remove(name));
}

/// Two cohorts, joined at different times, under bursts of changes 15 ms apart: xds-relay froze for good here,
/// because it compared nonces across streams.
#[tokio::test(flavor = "multi_thread")]
async fn everyone_ends_at_the_origins_version_and_every_nonce_is_its_own_streams() {
    const BURSTS: usize = 60;
    let (relay, _origin, mut upstream) = start("").await;
    let early = connect(&relay.uri()).await;
    let mut clients = Vec::new();
    for at in 0..20 {
        let stream = Delta::open(&early, DELTA_ADS).await;
        stream.subscribe(&format!("early-{at}"), EDS, &["a", "b"]).await;
        clients.push(stream);
    }
    let mut asked = BTreeSet::new();
    while asked.len() < 2 {
        asked.extend(upstream.expect_request().await.resource_names_subscribe);
    }
    upstream.send(&endpoints("first", &[("a", "0"), ("b", "0")]));
    upstream.expect_ack("first").await;

    let script = tokio::spawn(async move {
        for burst in 1..=BURSTS {
            tokio::time::sleep(Duration::from_millis(15)).await;
            let version = burst.to_string();
            upstream.send(&endpoints(&version, &[("a", &version), ("b", &version)]));
            upstream.expect_ack(&version).await;
        }
        upstream
    });
    tokio::time::sleep(Duration::from_millis(15 * BURSTS as u64 / 2)).await;
    let late = connect(&relay.uri()).await;
    for at in 0..20 {
        let stream = Delta::open(&late, DELTA_ADS).await;
        stream.subscribe(&format!("late-{at}"), EDS, &["a", "b"]).await;
        clients.push(stream);
    }

    let last = BURSTS.to_string();
    let mut followers = Vec::new();
    for mut stream in clients {
        let last = last.clone();
        followers.push(tokio::spawn(async move {
            let (mut held, mut nonces) = (BTreeMap::new(), BTreeSet::new());
            while !(held.len() == 2 && held.values().all(|version| *version == last)) {
                let told = stream.response().await;
                assert!(nonces.insert(told.nonce.clone()), "a nonce came twice: {}", told.nonce);
                take(&mut held, &told);
                stream.ack(&told).await;
            }
            stream.silence().await;
        }));
    }
    for follower in followers {
        tokio::time::timeout(PATIENCE, follower).await.expect("everyone in time").unwrap();
    }
    script.await.unwrap();
}

/// R-SotW-08: one copy per version, however often it is rejected, and nobody else is held up by it.
#[tokio::test(flavor = "multi_thread")]
async fn r_sotw_08_who_rejects_for_ever_gets_one_copy_per_version() {
    let (relay, _origin, mut upstream) = start("").await;
    let channel = connect(&relay.uri()).await;
    let mut rejecting = Delta::open(&channel, DELTA_ADS).await;
    rejecting.subscribe("rejecting", EDS, &["a"]).await;
    let mut content = Sotw::open(&channel, SOTW_ADS).await;
    content.subscribe("content", EDS, &["a"]).await;
    upstream.expect_request().await;
    for version in ["1", "2", "3"] {
        upstream.send(&endpoints(version, &[("a", version)]));
        upstream.expect_ack(version).await;
        let told = rejecting.response().await;
        assert_eq!(names(&told), ["a"]);
        for _ in 0..50 {
            rejecting.nack(&told).await;
        }
        rejecting.silence().await;
        let told = content.response().await;
        content.ack(&told, &["a"]).await;
    }
    content.silence().await;
    assert!(upstream.is_quiet_for(MOMENT).await, "no rejection goes upstream (R-Relay-13, R-Relay-14)");
    let rejected = relay.metric("deltafan_requests_total{type=\"eds\",transport=\"delta\",result=\"nack\"}");
    assert!(rejected >= 3.0, "{rejected}");
}

/// R-Relay-06: what is known is served, nothing is removed, and waiting costs next to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_06_without_its_origin_the_relay_serves_on_and_is_quiet() {
    let (relay, origin, mut upstream) = start("").await;
    let channel = connect(&relay.uri()).await;
    let mut first = Delta::open(&channel, DELTA_ADS).await;
    first.subscribe("first", EDS, &["a"]).await;
    upstream.expect_request().await;
    upstream.send(&endpoints("1", &[("a", "1")]));
    let told = first.response().await;
    first.ack(&told).await;

    drop((upstream, origin));
    relay.wait_for("the loss in the metrics", || relay.metric("deltafan_upstream_connected") == 0.0);
    let (cpu, lines) = (relay.cpu(), relay.log_lines());
    first.silence().await;
    let mut newcomer = Delta::open(&channel, DELTA_ADS).await;
    newcomer.subscribe("newcomer", EDS, &["a"]).await;
    assert_eq!(names(&newcomer.response().await), ["a"]);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (cpu, lines) = (relay.cpu() - cpu, relay.log_lines() - lines);
    assert!(cpu < Duration::from_millis(200), "{cpu:?} of CPU in 4 s of retries every half second at most");
    assert!(lines <= 3, "{lines} lines of log");
    assert!(relay.admin_get("/ready").0 == 200, "it serves");
    assert!(relay.metric("deltafan_upstream_stale_seconds") >= 4.0);
}

/// R-Relay-07: who cannot be told anything is sent away before any response, so that it tries another server.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_07_a_cold_relay_without_an_origin_says_unavailable() {
    let origin = Origin::start().await;
    let uri = origin.uri();
    let relay =
        tokio::task::spawn_blocking(move || Process::behind(&uri, "  cold_deadline: 1s\n")).await.unwrap();
    drop(origin);
    relay.wait_for("the loss in the metrics", || relay.metric("deltafan_upstream_connected") == 0.0);
    let channel = connect(&relay.uri()).await;
    for (what, method) in [("delta", DELTA_ADS), ("sotw", SOTW_ADS)] {
        let started = std::time::Instant::now();
        let status = if method == DELTA_ADS {
            let mut stream = Delta::open(&channel, method).await;
            stream.subscribe(what, CDS, &[]).await;
            stream.end().await
        } else {
            let mut stream = Sotw::open(&channel, method).await;
            stream.subscribe(what, CDS, &[]).await;
            stream.end().await
        };
        assert_eq!(status.code(), Code::Unavailable, "{what}: {status:?}");
        assert!(started.elapsed() >= Duration::from_millis(900), "{what}: not before the deadline");
    }
}

/// R-Relay-16, R-Relay-17 and R-Up-20 as the origin sees them: each name once, none while somebody lingers.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_17_a_second_subscriber_costs_the_origin_nothing() {
    let (relay, _origin, mut upstream) = start("").await;
    let channel = connect(&relay.uri()).await;
    let mut first = Delta::open(&channel, DELTA_ADS).await;
    first.subscribe("first", EDS, &["a"]).await;
    let request = upstream.expect_request().await;
    assert_eq!(request.resource_names_subscribe, ["a"]);
    assert_eq!(request.node.map(|node: Node| node.id).as_deref(), Some("test"));
    upstream.send(&endpoints("1", &[("a", "1")]));
    upstream.expect_ack("1").await;
    let told = first.response().await;
    first.ack(&told).await;
    let again = DeltaDiscoveryRequest {
        type_url: EDS.to_owned(),
        resource_names_subscribe: vec!["a".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    first.send(again).await;
    assert_eq!(names(&first.response().await), ["a"], "to ask again is to be answered again (R-Delta-04)");
    drop(first);
    let mut second = Sotw::open(&channel, SOTW_ADS).await;
    second.subscribe("second", EDS, &["a"]).await;
    assert_eq!(second.response().await.resources.len(), 1);
    assert!(upstream.is_quiet_for(MOMENT).await);
}

/// R-Relay-20 over sockets: one asks by an alias, one by the own name, and each gets and loses the same resource.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_20_a_client_gets_what_it_asks_for_by_an_alias() {
    let vhds: TypeUrl = Kind::VirtualHost.into();
    let (relay, _origin, mut upstream) = start("").await;
    let channel = connect(&relay.uri()).await;
    let mut by_alias = Delta::open(&channel, DELTA_ADS).await;
    by_alias.subscribe("by-alias", vhds.as_str(), &["routes/host"]).await;
    assert_eq!(upstream.expect_request().await.resource_names_subscribe, ["routes/host"]);
    let aliased = |version: &str| {
        let plain = resource(&vhds, "routes/virtual", version, b"");
        [&plain[..], b"\x22\x0broutes/host"].concat().into()
    };
    let say =
        |nonce: &str| DeltaDiscoveryResponse { resources: vec![aliased(nonce)], ..response(&vhds, nonce) };
    upstream.send(&say("1"));
    upstream.expect_ack("1").await;
    let told = by_alias.response().await;
    let mut held = BTreeMap::new();
    take(&mut held, &told);
    assert_eq!(held, BTreeMap::from([("routes/virtual".to_owned(), "1".to_owned())]));
    by_alias.ack(&told).await;

    let mut late = Delta::open(&channel, DELTA_ADS).await;
    late.subscribe("late", vhds.as_str(), &["routes/host"]).await;
    let told = late.response().await;
    assert_eq!(told.resources.len(), 1);
    late.ack(&told).await;
    assert!(upstream.is_quiet_for(MOMENT).await, "it was answered from the cache");

    let gone = DeltaDiscoveryResponse {
        removed_resources: vec!["routes/virtual".to_owned()],
        ..response(&vhds, "2")
    };
    upstream.send(&gone);
    for client in [&mut by_alias, &mut late] {
        assert_eq!(client.response().await.removed_resources, ["routes/virtual"]);
    }
}
