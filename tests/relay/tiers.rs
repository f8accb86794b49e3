//! Relays behind relays.

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan::proto::{ControlPlane, DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest};
use deltafan::resource::{Kind, TypeUrl};
use deltafan_test_support::client::{
    CDS, DELTA_ADS, Delta, SOTW_ADS, Sotw, connect, names, sotw_subscription, subscription, versions,
};
use deltafan_test_support::origin::{Origin, OriginStream, changes};
use deltafan_test_support::process::{self, Process, relay, relay_and_origin};
use deltafan_test_support::slow_link::SlowLink;
use tonic::metadata::MetadataMap;

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
    let mut client = Delta::asking(&connect(&relay.uri()).await, "client", CDS, &[]).await;
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

/// A sibling with the same configuration is another relay.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_24_a_sibling_with_the_same_node_is_served() {
    let mut origin = Origin::start().await;
    let first = behind(origin.uri());
    let second = behind(first.uri());
    let mut client = Delta::asking(&connect(&second.uri()).await, "client", CDS, &[]).await;
    let mut upstream = origin.accept().await;
    answers(&mut upstream, &clusters("", "1", "c", "1")).await;
    assert_eq!(names(&client.response().await), ["c"]);
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
    first.wait_for("its resources", || first.metric("deltafan_resources") >= 2.0);
    let shows_clients = "groups: {rules: [{name: all, match: {node.id: \".*\"}, node: client}]}\n";
    for (protocol, groups) in [
        ("protocol: delta", ""),
        ("protocol: sotw", ""),
        ("protocol: delta", shows_clients),
        ("protocol: sotw", shows_clients),
    ] {
        let second = Process::behind_server(&first.uri(), protocol, groups);
        let third = if groups.is_empty() { Some(behind(second.uri())) } else { None };
        let channel = connect(&third.as_ref().unwrap_or(&second).uri()).await;
        for (kind, name) in [(Kind::Endpoint, "e"), (Kind::Route, "r")] {
            let mut client = Delta::asking(&channel, "client", TypeUrl::from(kind).as_str(), &["*"]).await;
            assert_eq!(names(&client.response().await), [name], "{protocol} {groups}");
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
    let mut client = Delta::asking(&connect(&second.uri()).await, "client", CDS, &[]).await;
    assert_eq!(names(&client.response().await), ["a", "b"]);
    assert_eq!(streams(), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_it_is_a_relay_has_to_ask_for_something_too() {
    let relay = relay("  first_request_timeout: 300ms\n");
    let mut headers = MetadataMap::new();
    headers.insert("x-deltafan-relay", "another/1".parse().unwrap());
    let mut client = Delta::open_with(&connect(&relay.uri()).await, DELTA_ADS, headers).await;
    assert_eq!(client.end().await.code(), tonic::Code::DeadlineExceeded);
}

/// Resources that a client holds, and the version of all of them by state of the world.
struct Held {
    versions: HashMap<String, String>,
    version_info: String,
}

/// Opens a stream of either protocol with what a client holds. Returns both first responses; `None` for state of the world if
/// there is none, because nothing is new.
async fn come(relay: &Process, held: Option<&Held>) -> (DeltaDiscoveryResponse, Option<String>) {
    let channel = connect(&relay.uri()).await;
    let mut delta = Delta::open(&channel, DELTA_ADS).await;
    let request = DeltaDiscoveryRequest {
        initial_resource_versions: held.map(|held| held.versions.clone()).unwrap_or_default(),
        ..subscription("delta", CDS, &[])
    };
    delta.send(request).await;
    let told = delta.response().await;
    let mut sotw = Sotw::open(&channel, SOTW_ADS).await;
    let request = DiscoveryRequest {
        version_info: held.map(|held| held.version_info.clone()).unwrap_or_default(),
        ..sotw_subscription("sotw", CDS, &[])
    };
    sotw.send(request).await;
    if held.is_some() {
        sotw.silence().await;
        return (told, None);
    }
    (told, Some(sotw.response().await.version_info))
}

/// Three tiers over links of 300 ms: a client that moves between them, and a tier that loses the one before it, are sent no
/// resource that they hold.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_09_clients_and_relays_resume_across_tiers_over_slow_links() {
    let latency = Duration::from_millis(300);
    let first = relay("");
    first.write("clusters.yaml", &process::clusters((0..50).map(|n| format!("c{n}"))));
    first.wait_for("all clusters", || first.metric("deltafan_resources") >= 50.0);
    let link_of_second = SlowLink::to(first.listener, latency).await;
    let second = behind(link_of_second.uri());
    let link_of_third = SlowLink::to(second.listener, latency).await;
    let third = behind(link_of_third.uri());

    let (told, version_info) = come(&third, None).await;
    let held = Held { versions: versions(&told).into_iter().collect(), version_info: version_info.unwrap() };
    let sorted = |mut resources: Vec<Bytes>| {
        resources.sort();
        resources
    };
    let (at_first, version_info) = come(&first, None).await;
    assert_eq!(sorted(told.resources), sorted(at_first.resources), "byte for byte");
    assert_eq!(version_info.as_ref(), Some(&held.version_info));
    for (tier, relay) in [("first", &first), ("second", &second), ("third", &third)] {
        let (told, _) = come(relay, Some(&held)).await;
        assert!(told.resources.is_empty() && told.removed_resources.is_empty(), "{tier}: {told:?}");
    }

    // The middle one is replaced by one that is empty, and a cluster changes meanwhile.
    let mut stays = Delta::asking(&connect(&third.uri()).await, "stays", CDS, &[]).await;
    stays.take().await;
    let replacement = behind(link_of_second.uri());
    link_of_third.lead_to(replacement.listener);
    drop(second);
    first.write(
        "clusters.yaml",
        &process::clusters((0..50).map(|n| if n == 7 { "new".to_owned() } else { format!("c{n}") })),
    );
    let told = stays.response().await;
    assert_eq!((names(&told), told.removed_resources), (vec!["new".to_owned()], vec!["c7".to_owned()]));
    stays.silence().await;
}

/// Members of a wildcard at a relay that was cut off before it knew whether there are more: a fresh relay behind it serves them, takes
/// nothing from a client that holds others, and follows once the control plane is back.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_06_a_fresh_relay_fills_itself_from_one_that_is_cut_off() {
    let (sibling, origin, mut upstream) = relay_and_origin("").await;
    upstream.answers_no_end_mark();
    let mut first = Delta::asking(&connect(&sibling.uri()).await, "first", CDS, &["*"]).await;
    answers(&mut upstream, &clusters("", "1", "c", "1")).await;
    first.take().await;
    let address = origin.address();
    drop((origin, upstream));
    sibling.wait_for("the outage", || sibling.metric("deltafan_upstream_connected") == 0.0);

    let fresh = behind(sibling.uri());
    let channel = connect(&fresh.uri()).await;
    let mut newcomer = Delta::asking(&channel, "newcomer", CDS, &["*"]).await;
    let told = newcomer.response().await;
    assert_eq!(names(&told), ["c"]);
    newcomer.ack(&told).await;
    let mut returning = Delta::open(&channel, DELTA_ADS).await;
    let request = DeltaDiscoveryRequest {
        initial_resource_versions: HashMap::from([("c".into(), "1".into()), ("d".into(), "1".into())]),
        ..subscription("returning", CDS, &["*"])
    };
    returning.send(request).await;
    // Longer than a link takes to deliver the rest of an answer.
    tokio::time::sleep(Duration::from_secs(7)).await;
    returning.silence().await;

    let mut origin = Origin::listen(address).await;
    let mut upstream = origin.accept().await;
    answers(&mut upstream, &clusters("", "1", "c", "2")).await;
    assert_eq!(names(&newcomer.response().await), ["c"]);
    // Its versions are weighed now that the set is known to be whole.
    let mut gone = Vec::new();
    while gone.is_empty() {
        gone = returning.response().await.removed_resources;
    }
    assert_eq!(gone, ["d"]);
}
