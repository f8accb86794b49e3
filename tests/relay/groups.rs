//! Node groups over real sockets: one connection upstream, and a cache and streams for each group (R-Relay-01, R-Relay-02).

use bytes::BytesMut;
use deltafan::resource::wire;
use tonic::Status;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::authorization::Fixture;
use crate::prelude::*;

/// A group for each fleet: the letters before the first dash of `node.id`.
pub(crate) const FLEETS: &str = "groups:
  rules:
    - name: fleet
      match: {node.id: \"(?P<fleet>[a-z]+)-.*\"}
      key: \"${fleet}\"
      node: {id: \"fleet-${fleet}\"}
";

/// A relay, its control plane, and the stream of the relay's own group.
async fn start(upstream: &str, further: &str) -> (Process, Origin, OriginStream) {
    let mut origin = Origin::start().await;
    let relay = Process::behind_keys(&origin.uri(), "", upstream, further);
    let own = origin.accept().await;
    (relay, origin, own)
}

fn cds() -> TypeUrl {
    Kind::Cluster.into()
}

/// A cluster with its name, and a second name by which fleets are told apart.
fn cluster(name: &str, version: &str, alt: &str) -> Bytes {
    let mut body = BytesMut::new();
    wire::put_field(&mut body, 1, name.as_bytes());
    body.extend_from_slice(&[0xe2, 1, alt.len() as u8]);
    body.extend_from_slice(alt.as_bytes());
    resource(&cds(), name, version, &body)
}

fn send(stream: &OriginStream, nonce: &str, clusters: &[Bytes]) {
    stream.send(&DeltaDiscoveryResponse { resources: clusters.to_vec(), ..response(&cds(), nonce) });
}

pub(crate) async fn client(relay: &Process, id: &str) -> Delta {
    relay.client(id, &["*"]).await
}

/// The next stream that the relay opens, and the `node.id` that it shows there.
async fn next_group(origin: &mut Origin) -> (String, OriginStream, DeltaDiscoveryRequest) {
    let mut stream = origin.accept().await;
    let request = stream.expect_request().await;
    (request.node.clone().expect("a node").id, stream, request)
}

fn holds(response: &DeltaDiscoveryResponse, text: &str) -> bool {
    response.encode_to_vec().windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn r_relay_02_each_fleet_has_streams_of_its_own_on_one_connection() {
    let (relay, mut origin, mut own) = start("", FLEETS).await;
    let mut first = client(&relay, "red-1").await;
    let (id, mut red, _) = next_group(&mut origin).await;
    assert_eq!((id.as_str(), red.peer()), ("fleet-red", own.peer()));
    let mut second = client(&relay, "red-2").await;
    let mut other = client(&relay, "blue-1").await;
    let (id, mut blue, _) = next_group(&mut origin).await;
    assert_eq!((id.as_str(), blue.peer()), ("fleet-blue", own.peer()));

    // A client of no rule is in the group of the relay.
    let mut none = client(&relay, "1").await;
    assert_eq!(own.expect_request().await.node.expect("a node").id, "test");

    // Names and versions are those of the other fleet: nothing but the group tells them apart.
    send(&own, "1", &[cluster("c", "1", "of-none")]);
    send(&red, "1", &[cluster("c", "1", "of-red")]);
    send(&blue, "1", &[cluster("c", "1", "of-blue")]);
    let clients =
        [(&mut first, "of-red"), (&mut second, "of-red"), (&mut other, "of-blue"), (&mut none, "of-none")];
    for (stream, alt) in clients {
        let response = stream.response().await;
        assert!(holds(&response, alt), "{alt}: {response:?}");
        stream.ack(&response).await;
    }
    red.expect_ack("1").await;
    blue.expect_ack("1").await;

    send(&red, "2", &[cluster("c", "2", "of-red")]);
    for stream in [&mut first, &mut second] {
        stream.take().await;
    }
    other.silence().await;
    assert!(origin.is_quiet_for(MOMENT).await, "no further stream");
    assert_eq!(relay.metric("deltafan_upstream_connections"), 1.0);
    assert_eq!(relay.metric("deltafan_groups{group=\"fleet\"}"), 2.0);
    assert_eq!(relay.metric("deltafan_group_clients{group=\"fleet\"}"), 3.0);
    let text = relay.admin_get("/metrics").1;
    assert!(!text.contains("fleet-") && !text.contains("blue"), "no label is of a client's choice");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transport_finds_the_group_of_its_node() {
    let (relay, mut origin, _own) = start("", &format!("{FLEETS}rest: {{hold: 1h}}\n")).await;
    let channel = connect(&relay.uri()).await;
    let mut streams = Vec::new();
    for fleet in ["red", "blue"] {
        let id = format!("{fleet}-1");
        let mut stream = Sotw::asking(&channel, &id, CDS, &["c"]).await;
        let (_, upstream, _) = next_group(&mut origin).await;
        send(&upstream, "1", &[cluster("c", "1", fleet)]);
        let told = stream.response().await.encode_to_vec();
        assert!(told.windows(fleet.len()).any(|window| window == fleet.as_bytes()), "{fleet}");
        streams.push((stream, upstream));
    }
    for fleet in ["red", "blue", "red"] {
        let mut stream = Delta::asking(&channel, &format!("{fleet}-2"), CDS, &["c"]).await;
        let told = stream.response().await.encode_to_vec();
        assert!(told.windows(fleet.len()).any(|window| window == fleet.as_bytes()), "{fleet}");
        // The versions of both are the same, and so are the requests but for their nodes.
        let mut http = Http1::connect(relay.listener);
        let body = format!(r#"{{"node": {{"id": "{fleet}-3"}}, "resource_names": ["c"]}}"#);
        let answer = http.poll("clusters", &body).json();
        assert_eq!(answer["resources"][0]["altStatName"], fleet, "{answer}");
    }
    assert!(origin.is_quiet_for(MOMENT).await, "four groups would be two too many");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_no_rule_takes_is_refused_where_the_operator_says_so() {
    let refuse = FLEETS.replace("groups:\n", "groups:\n  default: refuse\n");
    let (relay, mut origin, _own) = start("", &refuse).await;
    let mut stream = client(&relay, "1").await;
    let status = stream.end().await;
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("fleet"), "the rules that were tried: {}", status.message());
    let mut stream = Sotw::asking(&connect(&relay.uri()).await, "1", CDS, &[]).await;
    assert_eq!(stream.end().await.code(), Code::PermissionDenied);
    for body in [r#"{"node": {"id": "1"}}"#, "{}"] {
        let mut http = Http1::connect(relay.listener);
        let answer = http.poll("clusters", body);
        assert_eq!(answer.status, 403, "{body}");
    }
    assert_eq!(relay.metric("deltafan_denied_total{what=\"group\"}"), 4.0);
    let _red = client(&relay, "red-1").await;
    assert_eq!(next_group(&mut origin).await.0, "fleet-red");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_may_not_claim_a_node_makes_no_group() {
    let rights = "authorization: {rules: [{peers: [127.0.0.1], node_ids: [\"blue-*\"]}]}\n";
    let (relay, mut origin, _own) = start("", &format!("{FLEETS}{rights}")).await;
    let open = "peers matched by no rule may request everything";
    relay.wait_for("the log to say so", || relay.has_written(open));
    assert_eq!(client(&relay, "red-1").await.end().await.code(), Code::PermissionDenied);
    let _blue = client(&relay, "blue-1").await;
    assert_eq!(next_group(&mut origin).await.0, "fleet-blue");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_released_when_nobody_was_in_it_for_the_linger() {
    let (relay, mut origin, _own) = start("unsubscribe_linger: 1s", FLEETS).await;
    let first = client(&relay, "red-1").await;
    let (_, mut red, _) = next_group(&mut origin).await;
    send(&red, "1", &[cluster("c", "1", "")]);
    red.expect_ack("1").await;
    drop(first);
    // Back within the linger: from the cache, on the stream that stands.
    let mut again = client(&relay, "red-1").await;
    again.response().await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(relay.metric("deltafan_groups{group=\"fleet\"}"), 1.0);
    drop(again);
    red.expect_end().await;
    relay.wait_for("release", || relay.metric("deltafan_groups{group=\"fleet\"}") == 0.0);
    let mut later = client(&relay, "red-1").await;
    let (_, red, request) = next_group(&mut origin).await;
    assert!(request.initial_resource_versions.is_empty(), "nothing is left of the group: {request:?}");
    send(&red, "1", &[cluster("c", "2", "")]);
    later.response().await;
    // Counters do not go back with the groups that were released.
    assert!(relay.metric("deltafan_upstream_events_total{event=\"response\"}") >= 2.0);
}

/// A gateway that is moved to another machine during an outage comes back later than the linger.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_06_a_group_outlives_its_linger_while_the_control_plane_is_away() {
    let (relay, mut origin, own) = start("unsubscribe_linger: 1s", FLEETS).await;
    let first = client(&relay, "red-1").await;
    let (_, mut red, _) = next_group(&mut origin).await;
    send(&red, "1", &[cluster("c", "1", "")]);
    red.expect_ack("1").await;
    let empty = client(&relay, "made-1").await;
    let made = next_group(&mut origin).await;
    drop((origin, own, red, made));
    relay.wait_for("the loss", || relay.metric("deltafan_upstream_connected") == 0.0);
    drop((first, empty));
    relay.wait_for("the end of the group without resources", || {
        relay.metric("deltafan_groups{group=\"fleet\"}") == 1.0
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut later = client(&relay, "red-2").await;
    assert_eq!(later.response().await.resources.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_groups_come_back_on_one_connection() {
    let (relay, mut origin, own) = start("", FLEETS).await;
    let (mut one, mut two) = (client(&relay, "red-1").await, client(&relay, "blue-1").await);
    let mut held = Vec::new();
    for _ in 0..2 {
        let (_, mut stream, _) = next_group(&mut origin).await;
        send(&stream, "1", &[cluster("c", "1", ""), cluster("d", "1", "")]);
        stream.expect_ack("1").await;
        held.push(stream);
    }
    one.response().await;
    two.response().await;
    // Long enough for the set to settle: then its versions are told.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let address = origin.address();
    drop((origin, own, held));
    relay.wait_for("loss", || relay.metric("deltafan_upstream_connected") == 0.0);
    let mut origin = Origin::listen(address).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(origin.accept().await);
    }
    let peer = streams[0].peer();
    assert!(streams.iter().all(|stream| stream.peer() == peer), "one connection for all");
    let mut ids = Vec::new();
    for mut stream in streams {
        // Nothing is asked for on that of the own group.
        let request = tokio::time::timeout(Duration::from_secs(2), stream.next_request()).await;
        let Ok(Some(request)) = request else { continue };
        assert!(!request.initial_resource_versions.is_empty(), "what is held is told: {request:?}");
        ids.push(request.node.expect("a node").id);
        send(&stream, "2", &[cluster("c", "2", "")]);
        stream.expect_ack("2").await;
        std::mem::forget(stream);
    }
    ids.sort();
    assert_eq!(ids, ["fleet-blue", "fleet-red"]);
    let losses = relay.events().into_iter().filter(|event| {
        event["message"].as_str().is_some_and(|text| text.starts_with("control plane unreachable"))
    });
    assert!(losses.count() <= 1, "said once for all groups");
}

/// Streams that fail are opened again by each group, but the connection is not dialled by each of them in turn.
#[tokio::test(flavor = "multi_thread")]
async fn r_up_07_groups_have_one_back_off_for_their_connection() {
    let (relay, mut origin, own) = start("", FLEETS).await;
    let mut clients = Vec::new();
    for number in 0..10_u8 {
        clients.push(client(&relay, &format!("{}-1", char::from(b'a' + number))).await);
    }
    own.fail(Status::unavailable("not today"));
    let mut connections = BTreeSet::new();
    let fail = async {
        while let Some(stream) = origin.next_stream().await {
            connections.extend(stream.peer());
            stream.fail(Status::unavailable("not today"));
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(3), fail).await.is_err(), "they come back");
    assert!((2..30).contains(&connections.len()), "{} connections in 3 s", connections.len());
}

/// Nothing is asked for the relay's own node: relays behind this one hear of the groups.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_vouches_for_its_groups_where_nothing_is_asked_for_itself() {
    let refuse = FLEETS.replace("groups:\n", "groups:\n  default: refuse\n");
    let (relay, mut origin, _own) = start("", &refuse).await;
    let health = HealthClient::new(connect(&relay.uri()).await);
    let is_vouched = async || {
        let request = HealthCheckRequest { service: "deltafan.upstream".to_owned() };
        let answer = health.clone().check(request).await.expect("an answer").into_inner();
        answer.status() == ServingStatus::Serving
    };
    let _client = client(&relay, "red-1").await;
    let (_, mut red, _) = next_group(&mut origin).await;
    assert!(!is_vouched().await, "no group was answered");
    send(&red, "1", &[]);
    red.expect_ack("1").await;
    eventually("word of the relay", is_vouched).await;
}

/// A group whose node is that of one of its clients, and fleets.
pub(crate) const BORROWED: &str = "groups:
  rules:
    - {name: odd, match: {node.id: \"odd-.*\"}, node: client}
    - {name: fleet, match: {node.id: \"(?P<fleet>[a-z]+)-.*\"}, key: \"${fleet}\", node: {id: \"fleet-${fleet}\"}}
";

/// Proxies of a control plane that reads their metadata, each in a group of its own.
const EACH: &str =
    "groups: {rules: [{name: each, match: {node.id: \"(?P<id>.+)\"}, key: \"${id}\", node: client}]}\n";

/// Client of this build.
async fn of_build(channel: &Channel, build: &str) -> Delta {
    let stream = Delta::open(channel, DELTA_ADS).await;
    let node = Node { user_agent_version: build.to_owned(), ..node("proxy") };
    stream.send(DeltaDiscoveryRequest { node: Some(node), ..subscription("", CDS, &["*"]) }).await;
    stream
}

/// A node is the client's word, and so is the key that is made of it.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_01_a_client_that_claims_the_node_of_another_does_not_choose_its_configuration() {
    let mut origin = Origin::start().await;
    let fixture = Fixture::start(EACH, Some(origin.uri()));
    let _own = origin.accept().await;
    let (strangers, victims) = (fixture.connect("stranger").await, fixture.connect("victim").await);
    let mut stranger = of_build(&strangers, "evil").await;
    let (_, evil, request) = next_group(&mut origin).await;
    assert_eq!(request.node.expect("a node").user_agent_version, "evil");
    send(&evil, "1", &[cluster("c", "1", "for-evil")]);
    assert!(holds(&stranger.response().await, "for-evil"));

    let mut victim = of_build(&victims, "1").await;
    let (_, own, request) = next_group(&mut origin).await;
    assert_eq!(request.node.expect("a node").user_agent_version, "1");
    send(&own, "1", &[cluster("c", "1", "for-victim")]);
    assert!(holds(&victim.response().await, "for-victim"));
    // Another client of the same identity is in the same group.
    let mut second = of_build(&victims, "1").await;
    assert!(holds(&second.response().await, "for-victim"));
    let groups = fixture.relay.admin_json("/upstreams?group=each:*");
    let listed = groups["groups"]["listed"].as_array().unwrap();
    let names: BTreeSet<&str> = listed.iter().map(|group| group["group"].as_str().unwrap()).collect();
    let of = |who: &str| format!("each:proxy (spiffe://mesh/ns/{who}/sa/envoy)");
    assert_eq!(names, BTreeSet::from([&*of("stranger"), &*of("victim")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_restarted_with_another_node_is_shown_as_it_is_now() {
    let (relay, mut origin, _own) = start("", EACH).await;
    let channel = connect(&relay.uri()).await;
    let mut proxy = of_build(&channel, "1").await;
    let (_, mut stream, request) = next_group(&mut origin).await;
    assert_eq!(request.node.expect("a node").user_agent_version, "1");
    send(&stream, "1", &[cluster("c", "1", "build-1")]);
    stream.expect_ack("1").await;
    assert!(holds(&proxy.response().await, "build-1"));

    drop(proxy);
    proxy = of_build(&channel, "2").await;
    let (_, next, request) = next_group(&mut origin).await;
    assert_eq!(request.node.expect("a node").user_agent_version, "2");
    send(&next, "1", &[cluster("c", "2", "build-2")]);
    while !holds(&proxy.response().await, "build-2") {}
    stream.expect_end().await;

    drop(proxy);
    let _same = of_build(&channel, "2").await;
    assert!(origin.is_quiet_for(Duration::from_secs(3)).await, "it says the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_groups_fail_is_left_though_the_own_group_keeps_it() {
    let (relay, mut origin, own) = start("", FLEETS).await;
    let mut client = client(&relay, "red-1").await;
    let mut failed = 0;
    let red = loop {
        let red = origin.accept().await;
        if red.peer() != own.peer() {
            break red;
        }
        assert!(failed < 5, "no other connection is tried");
        failed += 1;
        red.fail(Status::unavailable("this server is ill"));
    };
    send(&red, "1", &[cluster("c", "1", "of-red")]);
    assert!(holds(&client.response().await, "of-red"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_is_silent_to_all_groups_is_logged_once() {
    let (relay, mut origin, _own) = start("", FLEETS).await;
    let mut held = Vec::new();
    for fleet in ["a", "b", "c", "d", "e"] {
        let client = client(&relay, &format!("{fleet}-1")).await;
        held.push((client, next_group(&mut origin).await));
    }
    let complaints = || {
        let is_one = |text: &str| text.contains("no answer: does the control plane");
        relay.events().iter().filter(|event| event["message"].as_str().is_some_and(is_one)).count()
    };
    let mut said = 0;
    relay.wait_for("silence that is logged", || {
        said += complaints();
        said > 0
    });
    // The other groups have waited as long, but for the time in which they came.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(said + complaints(), 1);
}
