//! Relays behind relays.

use std::net::TcpListener;

use deltafan::proto::{ControlPlane, DeltaDiscoveryResponse};
use deltafan::resource::{Kind, TypeUrl};
use deltafan_test_support::client::{CDS, DELTA_ADS, Delta, SOTW_ADS, Sotw, connect, names};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response};
use deltafan_test_support::process::{Process, relay_and_origin};

/// Response with one cluster, which has come through these servers.
fn clusters(identifier: &str, nonce: &str, name: &str, version: &str) -> DeltaDiscoveryResponse {
    let cds = TypeUrl::from(Kind::Cluster);
    let resources = vec![resource(&cds, name, version, b"")];
    let control_plane = Some(ControlPlane { identifier: identifier.to_owned() });
    DeltaDiscoveryResponse { resources, control_plane, ..response(&cds, nonce) }
}

fn identifier(control_plane: Option<ControlPlane>) -> String {
    control_plane.expect("an identifier").identifier
}

async fn behind(uri: String) -> Process {
    tokio::task::spawn_blocking(move || Process::behind(&uri, "")).await.unwrap()
}

/// Three tiers, all with one `node.id`, as replicas of one configuration have.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_19_a_client_is_told_all_servers_on_the_way() {
    let (first, _origin, mut upstream) = relay_and_origin("").await;
    let second = behind(first.uri()).await;
    let third = behind(second.uri()).await;
    let channel = connect(&third.uri()).await;
    let mut delta = Delta::open(&channel, DELTA_ADS).await;
    delta.subscribe("delta", CDS, &[]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("control-plane-7", "1", "c", "1"));
    let told = identifier(delta.response().await.control_plane);
    let chain: Vec<&str> = told.split(" via ").collect();
    assert_eq!((chain.len(), chain[3]), (4, "control-plane-7"), "{told}");
    assert!(chain[..3].iter().all(|relay| relay.starts_with("test/")), "{told}");
    assert!(chain[0] != chain[1] && chain[1] != chain[2] && chain[2] != chain[0], "{told}");
    let mut sotw = Sotw::open(&channel, SOTW_ADS).await;
    sotw.subscribe("sotw", CDS, &[]).await;
    assert_eq!(identifier(sotw.response().await.control_plane), told);
}

async fn answers(upstream: &mut OriginStream, response: &DeltaDiscoveryResponse) {
    upstream.expect_request().await;
    upstream.send(response);
}

/// A loop of relays would send outdated resources around for ever, each relay confirmed by the others.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_24_resources_that_come_around_a_loop_are_refused() {
    let (relay, mut origin, mut upstream) = relay_and_origin("").await;
    let mut client = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    client.subscribe("client", CDS, &[]).await;
    answers(&mut upstream, &clusters("hub/1", "1", "c", "1")).await;
    let told = client.response().await;
    client.ack(&told).await;
    let around = format!("hub/1 via {}", identifier(told.control_plane));
    upstream.send(&clusters(&around, "2", "c", "0"));
    let lines = relay.wait_for_message("no usable answer from the control plane; serving cached resources");
    let reason = lines[0]["reason"].as_str().unwrap();
    assert!(reason.contains("the relays form a loop") && reason.contains(&around), "{reason}");
    // The hub has another origin again.
    let mut upstream = origin.accept().await;
    answers(&mut upstream, &clusters("hub/1 via control-plane", "3", "d", "1")).await;
    assert_eq!(names(&client.response().await), ["d"], "nothing of the loop was told");
}

/// A service name that leads back to the relay itself.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_24_a_relay_that_asks_itself_says_so() {
    let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begin = move || {
        let listeners = format!("[{{address: \"{own}\"}}]");
        Process::unready_on(&listeners, &format!("http://{own}"))
    };
    let relay = tokio::task::spawn_blocking(begin).await.unwrap();
    let lines = relay.wait_for_message("no usable answer from the control plane; nothing is cached yet");
    let reason = lines[0]["reason"].as_str().unwrap();
    assert!(reason.contains("this relay asks itself") && reason.contains("upstream.servers"), "{reason}");
    let (status, why) = relay.admin_get("/ready");
    assert!(status == 503 && why.contains("asks itself"), "{status} {why}");
}

/// A sibling with the same configuration is another relay.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_24_a_sibling_with_the_same_node_is_served() {
    let mut origin = Origin::start().await;
    let first = behind(origin.uri()).await;
    let second = behind(first.uri()).await;
    let mut client = Delta::open(&connect(&second.uri()).await, DELTA_ADS).await;
    client.subscribe("client", CDS, &[]).await;
    let mut upstream = origin.accept().await;
    answers(&mut upstream, &clusters("", "1", "c", "1")).await;
    assert_eq!(names(&client.response().await), ["c"]);
}
