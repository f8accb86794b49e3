//! Readiness, log and metrics of the binary behind a control plane that is silent, unfit or gone.

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::admin_commands::run;
use crate::prelude::*;

const QUICK: &str = "backoff: {initial: 50ms, max: 500ms}";
/// No ping finds a loss while a test waits: it is noticed as soon as the connection ends, or not at all.
const QUICK_UNPINGED: &str = "backoff: {initial: 50ms, max: 500ms}, keepalive: {interval: 1h, timeout: 1h}";

/// Waits for an event of the log whose text begins like this.
fn wait_for_event(relay: &Process, begins: &str) -> Json {
    let mut found = None;
    relay.wait_for(begins, || {
        let is_it = |event: &Json| event["message"].as_str().is_some_and(|text| text.starts_with(begins));
        found = relay.events().into_iter().find(is_it);
        found.is_some()
    });
    found.unwrap()
}

/// gRPC health, by the name of its status.
async fn health(relay: &Process) -> String {
    let mut client = HealthClient::new(connect(&relay.uri()).await);
    let answer = client.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    answer.status().as_str_name().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_without_ads_is_named_and_leaves_the_relay_not_ready() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let (_, other_service) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder().add_service(other_service);
    let relay = Process::unready_behind(&uri, QUICK);
    let server = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let event = wait_for_event(&relay, &format!("the control plane at {uri}/ does not implement ADS"));
    assert_eq!(event["level"], "ERROR");
    assert!(event["message"].as_str().unwrap().contains("upstream.servers[].protocol"), "{event}");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        let (status, why) = relay.admin_get("/ready");
        assert_eq!(status, 503, "{why}");
        assert!(why.contains("does not implement ADS (UNIMPLEMENTED)"), "{why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(health(&relay).await, "NOT_SERVING");
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_control_plane_is_told_of_and_leaves_the_relay_not_ready() {
    let mut origin = Origin::start().await;
    let relay = Process::unready_behind(&origin.uri(), QUICK);
    let mut upstream = origin.accept().await;
    relay.wait_for("readiness of a relay that asks for nothing", || relay.admin_get("/ready").0 == 200);
    let channel = connect(&relay.uri()).await;
    let mut client = Delta::asking(&channel, "client", CDS, &["*"]).await;
    upstream.expect_request().await;
    relay.wait_for("the question in the metrics", || {
        relay.metric("deltafan_upstream_unanswered_subscriptions") == 1.0
    });
    assert_eq!(relay.admin_get("/ready").0, 200, "it is given time for its first answer");

    let event = wait_for_event(&relay, "subscribed to CDS 1");
    assert_eq!(event["level"], "WARN");
    let text = event["message"].as_str().unwrap();
    assert!(
        text.ends_with(" s ago as node test, no answer: does the control plane know this node?"),
        "{text}"
    );
    let (status, why) = relay.admin_get("/ready");
    assert_eq!(status, 503);
    assert!(why.contains("has not answered any of 1 subscriptions") && why.contains("`test`"), "{why}");
    assert_eq!(health(&relay).await, "NOT_SERVING");
    assert_eq!(relay.metric("deltafan_upstream_connected"), 1.0, "a fact of the transport");
    for metric in ["deltafan_upstream_stale_seconds", "deltafan_upstream_last_answer_age_seconds"] {
        assert!(relay.metric(metric) >= 10.0, "{metric}");
    }

    assert_eq!(client.end().await.code(), tonic::Code::Unavailable, "it is sent to other servers");
    upstream.deliver(&clusters_at("1", &["c1"])).await;
    relay.wait_for("readiness", || relay.admin_get("/ready").0 == 200);
    assert_eq!(wait_for_event(&relay, "the control plane answers, ")["level"], "INFO");
    assert_eq!(health(&relay).await, "SERVING");
    assert_eq!(relay.metric("deltafan_upstream_unanswered_subscriptions"), 0.0);
    assert_eq!(relay.metric("deltafan_upstream_stale_seconds"), 0.0);
    assert!(relay.metric("deltafan_upstream_last_answer_age_seconds") < 10.0);
    let mut again = Delta::asking(&channel, "again", CDS, &["*"]).await;
    assert_eq!(names(&again.response().await), ["c1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_that_is_silent_beside_others_is_told_of_and_leaves_the_relay_ready() {
    let mut origin = Origin::start().await;
    let relay = Process::unready_behind(&origin.uri(), QUICK);
    let mut upstream = origin.accept().await;
    let client = relay.client("client", &["*"]).await;
    upstream.expect_request().await;
    client.subscribe("client", EDS, &["nowhere"]).await;
    upstream.expect_request().await;
    upstream.send(&clusters_at("1", &["c1"]));
    let event = wait_for_event(&relay, "subscribed to EDS 1");
    assert_eq!(event["level"], "WARN");
    assert!(
        event["message"].as_str().unwrap().ends_with("it answers other types: does it have these resources?")
    );
    assert_eq!(relay.admin_get("/ready").0, 200);
    assert_eq!(relay.metric("deltafan_upstream_unanswered_subscriptions"), 1.0);
    assert_eq!(relay.metric("deltafan_upstream_stale_seconds"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_have_a_relay_ready_without_an_answer() {
    let mut origin = Origin::start().await;
    let relay =
        Process::unready_behind(&origin.uri(), "backoff: {initial: 50ms, max: 500ms}, ready_wait: 0s");
    let _client = relay.client("client", &["*"]).await;
    let _upstream = origin.accept().await;
    relay.wait_for("readiness", || relay.admin_get("/ready").0 == 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_the_control_plane_is_a_warning_at_once_and_in_words() {
    let mut origin = Origin::start().await;
    let relay = Process::unready_behind(&origin.uri(), QUICK_UNPINGED);
    let uri = origin.uri();
    let channel = connect(&relay.uri()).await;
    let mut client = Delta::asking(&channel, "client", CDS, &["*"]).await;
    let mut upstream = origin.accept_asked().await;
    upstream.deliver(&clusters_at("1", &["c1"])).await;
    client.response().await;
    // An end in order is none: the relay is back at once.
    upstream.close();
    let mut upstream = origin.accept().await;
    assert_eq!(wait_for_event(&relay, "the control plane ended the stream; reconnecting")["level"], "INFO");
    upstream.answer(&clusters_at("1", &["c1"])).await;

    // A line about the second stream on the connection does not hold back one about the connection.
    let _named = Delta::asking(&channel, "named", CDS, &["on-demand"]).await;
    let second = origin.accept_asked().await;
    second.fail(tonic::Status::unavailable("not now"));
    wait_for_event(&relay, "the second stream to the control plane ended");

    drop((upstream, origin));
    let event = wait_for_event(&relay, "control plane unreachable; serving cached resources");
    assert_eq!((&event["level"], &event["uri"]), (&Json::from("WARN"), &Json::from(format!("{uri}/"))));
    assert!(event["retry_in"].as_str().unwrap().ends_with(" s"), "{event}");
    let reason = event["reason"].as_str().unwrap();
    let dumped = ["{", "Status", "MetadataMap", "Some(", "source:", "\""];
    assert!(!reason.is_empty() && !dumped.iter().any(|dump| reason.contains(dump)), "{reason}");
    relay.wait_for("the loss in the metrics", || relay.metric("deltafan_upstream_stale_seconds") > 0.0);
    assert_eq!(relay.admin_get("/ready").0, 200, "what it heard is served on");
}

/// Success, stdout and stderr of `deltafan get`, which must not take long.
async fn get(relay: &Process, args: &[&str]) -> (bool, String, String) {
    let begun = Instant::now();
    let ran = run(&[&["get"], args, &["--server", &relay.uri()]].concat()).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{args:?} took {:?}", begun.elapsed());
    (ran.code == Some(0), ran.stdout, ran.stderr)
}

fn endpoints(nonce: &str, name: &str) -> DeltaDiscoveryResponse {
    changes(Kind::Endpoint, nonce, &[(name, nonce)], &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_relay_leaves_no_trace_upstream() {
    let mut origin = Origin::start().await;
    let relay = Process::unready_behind(&origin.uri(), QUICK);
    let mut upstream = origin.accept().await;
    let channel = connect(&relay.uri()).await;
    let mut client = Delta::asking(&channel, "client", EDS, &["e"]).await;
    upstream.answer(&endpoints("1", "e")).await;
    client.take().await;
    client.subscribe("client", CDS, &["*"]).await;
    upstream.answer(&clusters_at("2", &["c1"])).await;
    client.take().await;

    let (found, table, _) = get(&relay, &["eds", "e"]).await;
    assert!(found && table.lines().any(|line| line.starts_with("e ")), "{table}");
    let (found, table, _) = get(&relay, &["cds"]).await;
    assert!(found && table.lines().any(|line| line.starts_with("c1")), "{table}");
    let (found, table, why) = get(&relay, &["eds"]).await;
    assert!(!found && table.is_empty(), "clients ask for endpoints by name only: {table}");
    assert!(why.contains("no client of it asks for it") && why.contains("--subscribe"), "{why}");
    let (found, table, why) = get(&relay, &["lds", "l"]).await;
    assert!(
        !found && table.lines().any(|line| line.starts_with("l ") && line.ends_with("no answer")),
        "{table}"
    );
    assert!(why.contains("no client of it asks for it") && why.contains("--subscribe"), "{why}");
    assert!(upstream.is_quiet_for(MOMENT).await, "no subscription");
    assert!(origin.is_quiet_for(MOMENT).await, "no stream");
    let secrets = &["sds", "s", "--timeout", "1"];
    assert!(!get(&relay, secrets).await.0);

    // A client is served as if nobody had looked.
    let mut late = Delta::asking(&channel, "late", EDS, &["e", "f"]).await;
    assert_eq!(upstream.expect_request().await.resource_names_subscribe, ["f"]);
    assert_eq!(names(&late.response().await), ["e"]);
    upstream.send(&endpoints("3", "f"));
    assert_eq!(names(&late.response().await), ["f"]);
    upstream.expect_ack("3").await;

    let ask = async { get(&relay, &["lds", "l", "--subscribe", "--timeout", "2"]).await };
    let answer = async {
        assert_eq!(upstream.expect_request().await.resource_names_subscribe, ["l"]);
        let lds: TypeUrl = Kind::Listener.into();
        let removed_resources = vec!["l".to_owned()];
        upstream.send(&DeltaDiscoveryResponse { removed_resources, ..response(&lds, "4") });
    };
    let ((found, table, _), ()) = tokio::join!(ask, answer);
    assert!(!found && table.contains("does not exist"), "{table}");
}
