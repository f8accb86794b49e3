//! Relays behind relays.

use std::net::TcpListener;

use deltafan::proto::ControlPlane;

use crate::prelude::*;

/// Response with one cluster, which has come through these servers.
fn clusters(identifier: &str, nonce: &str, name: &str, version: &str) -> DeltaDiscoveryResponse {
    let control_plane = Some(ControlPlane { identifier: identifier.to_owned() });
    DeltaDiscoveryResponse { control_plane, ..changes(Kind::Cluster, nonce, &[(name, version)], &[]) }
}

fn identifier(control_plane: Option<ControlPlane>) -> String {
    control_plane.expect("an identifier").identifier
}

fn behind(uri: String) -> Process {
    Process::behind(&uri, "")
}

/// Three tiers, all with one `node.id`, as replicas of one configuration have.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_19_a_client_is_told_all_servers_on_the_way() {
    let (first, _origin, mut upstream) = relay_and_origin("").await;
    let second = behind(first.uri());
    let third = behind(second.uri());
    let channel = connect(&third.uri()).await;
    let mut delta = Delta::asking(&channel, "delta", CDS, &[]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("control-plane-7", "1", "c", "1"));
    let told = identifier(delta.response().await.control_plane);
    let chain: Vec<&str> = told.split(" via ").collect();
    assert_eq!((chain.len(), chain[3]), (4, "control-plane-7"), "{told}");
    assert!(chain[..3].iter().all(|relay| relay.starts_with("test/")), "{told}");
    assert!(chain[0] != chain[1] && chain[1] != chain[2] && chain[2] != chain[0], "{told}");
    let mut sotw = Sotw::asking(&channel, "sotw", CDS, &[]).await;
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
    let mut client = relay.client("client", &[]).await;
    answers(&mut upstream, &clusters("hub/1", "1", "c", "1")).await;
    let told = client.take().await;
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
    let relay = Process::unready_on(&format!("[{{address: \"{own}\"}}]"), &format!("http://{own}"));
    let lines = relay.wait_for_message("no usable answer from the control plane; nothing is cached yet");
    let reason = lines[0]["reason"].as_str().unwrap();
    assert!(reason.contains("this relay asks itself") && reason.contains("upstream.servers"), "{reason}");
    // While it connects once more, that is the reason.
    relay.wait_for("the reason at /ready", || {
        let (status, why) = relay.admin_get("/ready");
        assert_eq!(status, 503, "{why}");
        why.contains("asks itself")
    });
}

/// A relay may show the node of one of its clients, of which an empty first request for EDS or RDS asks for nothing (R-SotW-14).
#[tokio::test(flavor = "multi_thread")]
async fn r_up_05_a_wildcard_of_each_type_passes_through_tiers() {
    let first = relay("");
    let endpoints =
        "\"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment\ncluster_name: e\n";
    first.write("endpoints.yaml", endpoints);
    first.write(
        "routes.yaml",
        "\"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\nname: r\n",
    );
    first.wait_for("both, and two clusters", || first.metric("deltafan_resources") == 4.0);
    let shows_clients = "groups: {rules: [{name: all, match: {node.id: \".*\"}, node: client}]}\n";
    for (protocol, groups) in [
        ("protocol: delta", ""),
        ("protocol: sotw", ""),
        ("protocol: delta", shows_clients),
        ("protocol: sotw", shows_clients),
    ] {
        let second = Process::behind_keys(&first.uri(), protocol, "", groups);
        let third = if groups.is_empty() { Some(behind(second.uri())) } else { None };
        let channel = connect(&third.as_ref().unwrap_or(&second).uri()).await;
        for (kind, name) in [(Kind::Endpoint, "e"), (Kind::Route, "r")] {
            let mut client = Delta::asking(&channel, "client", TypeUrl::from(kind).as_str(), &["*"]).await;
            assert_eq!(names(&client.response().await), [name], "{protocol} {groups}");
        }
        if protocol == "protocol: sotw" {
            second.wait_for("a warning", || second.has_written("the server is a relay"));
        }
    }
}

/// A relay opens a stream to see that the server is there. At a relay, which ends streams without a request, it leaves it at that, and
/// loses nothing when the connection is closed because it is idle.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_clients_stays_connected_and_asks_once_it_has_some() {
    let first = relay("  first_request_timeout: 2s\n  idle_timeout: 3s\n");
    let second = behind(first.uri());
    let streams = || first.metric("deltafan_streams{");
    let idle = || first.metric("deltafan_refused_total{reason=\"idle_timeout\"}");
    let connects = || second.metric("deltafan_upstream_events_total{event=\"reconnect\"}");
    let until = Instant::now() + Duration::from_secs(9);
    while Instant::now() < until {
        assert_eq!(second.admin_get("/ready").0, 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    first.wait_for("the end of the last look", || streams() == 0.0);
    assert_eq!(first.metric("deltafan_refused_total{reason=\"first_request_timeout\"}"), 0.0);
    assert!(idle() >= 1.0 && connects() >= 1.0, "{} {}", idle(), connects());
    let complaints = second.events().into_iter().filter(|event| event["level"] == "WARN");
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<serde_json::Value>::new());
    let mut client = second.client("client", &[]).await;
    assert_eq!(names(&client.response().await), ["a", "b"]);
    assert_eq!(streams(), 1.0);
}
