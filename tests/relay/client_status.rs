//! Client status discovery service (CSDS) of the admin address.

use deltafan::descriptors;
use deltafan::grpc::BytesCodec;
use deltafan::proto::status::string_matcher::MatchPattern;
use deltafan::proto::status::{
    ClientConfig, ClientStatusRequest, ClientStatusResponse, GenericXdsConfig, NodeMatcher, RegexMatcher,
    StringMatcher,
};
use deltafan::proto::{ClientResourceStatus as Client, ConfigStatus as Config};
use deltafan_test_support::client::{Stream, message_bytes};
use http::uri::PathAndQuery;
use prost_reflect::DynamicMessage;
use tonic::transport::Channel;

use crate::prelude::*;

const FETCH: &str = "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus";
const STREAM: &str = "/envoy.service.status.v3.ClientStatusDiscoveryService/StreamClientStatus";

pub(crate) async fn admin(relay: &Process) -> Channel {
    connect(&format!("http://{}", relay.admin)).await
}

pub(crate) async fn fetch(
    channel: &Channel,
    request: ClientStatusRequest,
) -> Result<Vec<ClientConfig>, tonic::Status> {
    let message = unary(channel, FETCH, request).await?;
    Ok(ClientStatusResponse::decode(message).unwrap().config)
}

fn matching(pattern: MatchPattern) -> ClientStatusRequest {
    let node_id = Some(StringMatcher { ignore_case: false, match_pattern: Some(pattern) });
    let node_matchers = vec![NodeMatcher { node_id, node_metadatas: Vec::new() }];
    ClientStatusRequest { node_matchers, exclude_resource_contents: false }
}

fn only(node: &str) -> ClientStatusRequest {
    matching(MatchPattern::Exact(node.to_owned()))
}

/// Names of resources with their status, as the relay and as the client have it.
fn statuses(of: &ClientConfig) -> Vec<(&str, Config, Client)> {
    let status = |one: &GenericXdsConfig| {
        (one.config_status.try_into().unwrap(), one.client_status.try_into().unwrap())
    };
    of.generic_xds_configs.iter().map(|one| (one.name.as_str(), status(one).0, status(one).1)).collect()
}

/// Waits until the only client of this node has these.
async fn wait_for_statuses(
    channel: &Channel,
    node: &str,
    expected: &[(&str, Config, Client)],
) -> ClientConfig {
    let begun = std::time::Instant::now();
    loop {
        let found = fetch(channel, only(node)).await.unwrap();
        if found.len() == 1 && statuses(&found[0]) == expected {
            return found[0].clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(100), "{expected:?} and not {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_resource_has_the_status_that_its_client_brought_about() {
    let synced = |name| (name, Config::Synced, Client::Acked);
    let stale = |name| (name, Config::Stale, Client::Requested);
    let not_sent = |name| (name, Config::NotSent, Client::Requested);
    let (relay, _origin, mut upstream) = relay_and_origin("  ack_timeout: 1h\n  unacked_timeout: 2h\n").await;
    let (channel, status) = (connect(&relay.uri()).await, admin(&relay).await);
    assert_eq!(fetch(&status, ClientStatusRequest::default()).await.unwrap(), []);

    let mut client = Delta::asking(&channel, "envoy", CDS, &["a", "b", "gone"]).await;
    upstream.expect_request().await;
    wait_for_statuses(&status, "envoy", &["a", "b", "gone"].map(not_sent)).await;
    let answer = clusters_at("17", &["a", "b"]);
    let removed_resources = vec!["gone".to_owned()];
    upstream.send(&DeltaDiscoveryResponse { removed_resources, ..answer });
    upstream.expect_ack("17").await;
    let told = client.response().await;
    let absent = ("gone", Config::Unknown, Client::DoesNotExist);
    wait_for_statuses(&status, "envoy", &[stale("a"), stale("b"), absent]).await;
    client.ack(&told).await;
    let absent = ("gone", Config::Synced, Client::DoesNotExist);
    let config = wait_for_statuses(&status, "envoy", &[synced("a"), synced("b"), absent]).await;
    let node = config.node.clone().unwrap();
    assert_eq!((node.id.as_str(), node.cluster.as_str()), ("envoy", "test"));
    assert!(config.client_scope.starts_with("delta from 127.0.0.1, connection "), "{}", config.client_scope);
    let a = &config.generic_xds_configs[0];
    assert_eq!((a.type_url.as_str(), a.version_info.as_str(), &a.error_state), (CDS, "17", &None));
    let any = prost_types::Any::decode(&a.xds_config[..]).unwrap();
    assert_eq!(any.type_url, CDS);
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(since_1970.abs_diff(a.last_updated.unwrap().seconds as u64) < 600, "{a:?}");

    // One change that is not answered, and one that waits for that.
    upstream.deliver(&clusters_at("18", &["b"])).await;
    let told = client.response().await;
    upstream.deliver(&clusters_at("19", &["a"])).await;
    let absent = ("gone", Config::Unknown, Client::DoesNotExist);
    wait_for_statuses(&status, "envoy", &[not_sent("a"), stale("b"), absent]).await;
    client.nack(&told).await;
    client.take().await;
    let rejected = ("b", Config::Error, Client::Nacked);
    let config = wait_for_statuses(&status, "envoy", &[synced("a"), rejected, absent]).await;
    let error = config.generic_xds_configs[1].error_state.clone().unwrap();
    assert_eq!((error.details.as_str(), error.version_info.as_str()), ("rejected by the test", "18"));
    assert!(error.last_update_attempt.is_some());

    upstream.deliver(&clusters_at("20", &["b"])).await;
    client.take().await;
    let absent = ("gone", Config::Synced, Client::DoesNotExist);
    wait_for_statuses(&status, "envoy", &[synced("a"), synced("b"), absent]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_several_streams_is_one_and_matchers_choose_among_clients() {
    let (relay, _origin, mut upstream) = relay_and_origin("rest: {hold: 1h}\n").await;
    let (channel, status) = (connect(&relay.uri()).await, admin(&relay).await);
    let mut clusters_of = Delta::open(&channel, DELTA_CLUSTERS).await;
    clusters_of.subscribe("envoy-1", CDS, &["a"]).await;
    upstream.answer(&clusters_at("1", &["a"])).await;
    clusters_of.take().await;
    let secrets: &str = "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets";
    let mut secrets_of = Delta::open(&channel, secrets).await;
    secrets_of.subscribe("envoy-1", SDS, &["key"]).await;
    upstream.expect_request().await;
    let sds: TypeUrl = Kind::Secret.into();
    upstream.send(&DeltaDiscoveryResponse {
        resources: vec![resource(&sds, "key", "1", b"the text of a key")],
        ..response(&sds, "1")
    });
    upstream.expect_ack("1").await;
    secrets_of.take().await;
    let mut other = Sotw::asking(&connect(&relay.uri()).await, "grpc-2", CDS, &["a"]).await;
    other.response().await;
    let mut poll = Http1::connect(relay.listener);
    let asked = r#""node": {"id": "rest-3"}, "resource_names": ["a"]"#;
    let held = poll.poll("clusters", &format!("{{{asked}}}")).version();
    poll.request("POST /v3/discovery:clusters", "", &format!("{{{asked}, \"version_info\": \"{held}\"}}"));

    let synced = |name| (name, Config::Synced, Client::Acked);
    let config = wait_for_statuses(&status, "envoy-1", &[synced("a"), synced("key")]).await;
    let [cluster, secret] = &config.generic_xds_configs[..] else { panic!("{config:?}") };
    assert!(!cluster.xds_config.is_empty());
    assert!(secret.xds_config.is_empty(), "never a Secret");
    let poll = wait_for_statuses(&status, "rest-3", &[synced("")]).await;
    assert_eq!(poll.generic_xds_configs[0].version_info, held);

    let nodes = async |request| {
        let found = fetch(&status, request).await.unwrap();
        found.into_iter().map(|one| one.node.unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(nodes(ClientStatusRequest::default()).await, ["envoy-1", "grpc-2", "rest-3"]);
    assert_eq!(nodes(matching(MatchPattern::Prefix("grpc".to_owned()))).await, ["grpc-2"]);
    let regex = |text: &str| matching(MatchPattern::SafeRegex(RegexMatcher { regex: text.to_owned() }));
    assert_eq!(nodes(regex("(envoy|rest)-[0-9]")).await, ["envoy-1", "rest-3"]);
    let contents = |request| async {
        let found = fetch(&status, request).await.unwrap();
        found[0].generic_xds_configs.iter().map(|one| one.xds_config.len()).sum::<usize>()
    };
    assert!(contents(only("envoy-1")).await > 0);
    assert_eq!(contents(ClientStatusRequest { exclude_resource_contents: true, ..only("envoy-1") }).await, 0);

    // A stream answers each request anew.
    let mut stream = Stream::<ClientStatusRequest>::open(&status, STREAM).await;
    for node in ["grpc-2", "nobody"] {
        stream.send(only(node)).await;
        let message = stream.next_message().await.unwrap().unwrap();
        let found = ClientStatusResponse::decode(message).unwrap().config;
        assert_eq!(found.len(), usize::from(node == "grpc-2"));
    }
    stream.half_close();
    assert_eq!(stream.end().await.code(), Code::Ok);
}

/// Where keys may be is for the descriptors to say.
#[tokio::test(flavor = "multi_thread")]
async fn keys_inside_other_resources_are_hidden() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let (channel, status) = (connect(&relay.uri()).await, admin(&relay).await);
    let cluster = json!({"name": "a", "transportSocket": {"name": "tls", "typedConfig": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": "checkout.example.com",
        "commonTlsContext": {"tlsCertificates": [{"privateKey": {"inlineString": "PRIVATE"}}]},
    }}});
    let message = descriptors::message("envoy.config.cluster.v3.Cluster").unwrap();
    let cluster = DynamicMessage::deserialize(message, &cluster).unwrap().encode_to_vec();
    let thing = TypeUrl::from("type.googleapis.com/example.v1.Thing");
    let client = Delta::open(&channel, DELTA_ADS).await;
    for (type_url, name, body) in [(&Kind::Cluster.into(), "a", &cluster[..]), (&thing, "thing", b"PRIVATE")]
    {
        client.subscribe("envoy", type_url.as_str(), &[name]).await;
        let resources = vec![resource(type_url, name, "1", body)];
        upstream.answer(&DeltaDiscoveryResponse { resources, ..response(type_url, name) }).await;
    }
    let stale = |name| (name, Config::Stale, Client::Requested);
    let config = wait_for_statuses(&status, "envoy", &[stale("a"), stale("thing")]).await;
    let bytes = config.encode_to_vec();
    assert!(!bytes.windows(7).any(|part| part == b"PRIVATE"), "{}", String::from_utf8_lossy(&bytes));
    let [cluster, thing] = &config.generic_xds_configs[..] else { panic!("{config:?}") };
    let shown = descriptors::any_to_json(&cluster.xds_config).unwrap();
    let context = &shown["transportSocket"]["typedConfig"];
    let key = &context["commonTlsContext"]["tlsCertificates"][0]["privateKey"]["inlineString"];
    assert_eq!((key, &context["sni"]), (&json!("[redacted]"), &json!("checkout.example.com")));
    let details = &thing.error_state.as_ref().unwrap().details;
    assert!(thing.xds_config.is_empty());
    assert!(details.contains("cannot show") && details.contains("example.v1.Thing"), "{details}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_answered_is_told_why() {
    let (relay, _origin, _upstream) = relay_and_origin("").await;
    let status = admin(&relay).await;
    let refusal = async |request| fetch(&status, request).await.unwrap_err();
    let metadata = NodeMatcher { node_metadatas: vec![Bytes::new()], ..NodeMatcher::default() };
    let refused = refusal(ClientStatusRequest { node_matchers: vec![metadata], ..Default::default() }).await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("does not keep the metadata"), "{refused}");
    let large = refusal(only(&"x".repeat(100_000))).await;
    assert!(matches!(large.code(), Code::OutOfRange | Code::ResourceExhausted), "{large}");
    let unknown = "/envoy.service.status.v3.ClientStatusDiscoveryService/Other";
    let refused = unary(&status, unknown, ClientStatusRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);

    // The other pages are there over HTTP/2 as well, and a POST of HTTP/1 changes nothing.
    let mut http1 = Http1::connect(relay.admin);
    http1.request("POST /clients", "", "");
    assert_eq!(http1.answer().unwrap().status, 405);
    let mut grpc = tonic::client::Grpc::new(status.clone());
    grpc.ready().await.unwrap();
    let call = tonic::Request::new(message_bytes(&ClientStatusRequest::default()));
    let answer = grpc.unary(call, PathAndQuery::from_static(FETCH), BytesCodec).await.unwrap();
    let stale = answer.metadata().get("x-deltafan-stale-seconds").unwrap().to_str().unwrap();
    assert!(stale.parse::<f64>().unwrap() >= 0.0);
}
