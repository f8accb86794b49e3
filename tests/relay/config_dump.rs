//! `/config_dump`, in messages of Envoy's API.

use deltafan::descriptors;
use prost_reflect::{DeserializeOptions, DynamicMessage};

use crate::groups;
use crate::groups::FLEETS;
use crate::prelude::*;

const RESOURCES: &str = "
resources:
- \"@type\": type.googleapis.com/envoy.config.listener.v3.Listener
  name: front
  stat_prefix: web
- \"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: a
- \"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: routes
  internal_only_headers: [x-one]
- \"@type\": type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration
  name: scope
  route_configuration_name: routes
  key: {fragments: [{string_key: one}]}
- \"@type\": type.googleapis.com/envoy.service.runtime.v3.Runtime
  name: layer
  layer: {health_check: {min_interval: 5}}
- \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: key
  generic_secret: {secret: {inline_string: \"hidden from everybody\"}}
- \"@type\": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig
  name: filter
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
    suppress_envoy_headers: true
";

fn dump(relay: &Process, query: &str) -> Json {
    let (status, text) = relay.admin_get(&format!("/config_dump{query}"));
    assert_eq!(status, 200, "{text}");
    assert!(!text.contains("hidden"), "{text}");
    let json: Json = serde_json::from_str(&text).unwrap();
    // Envoy's own message, with no field that it does not have.
    let message = descriptors::message("envoy.admin.v3.ConfigDump").unwrap();
    let strict = DeserializeOptions::new().deny_unknown_fields(true);
    DynamicMessage::deserialize_with_options(message, &json, &strict)
        .unwrap_or_else(|error| panic!("{error}: {text}"));
    json
}

/// The resources of a dump.
fn resources(dump: &Json) -> &Vec<Json> {
    dump["configs"][0]["generic_xds_configs"].as_array().unwrap_or_else(|| panic!("{dump}"))
}

#[test]
fn a_dump_has_each_resource_with_its_body() {
    let relay = Process::start(&[("all.yaml", RESOURCES), ("clusters.yaml", &clusters(["a", "b"]))], "");
    let all = dump(&relay, "");
    assert_eq!(resources(&all).len(), 9, "{all}");
    let of = |type_name: &str, name: &str| {
        let is_it = |of: &&Json| of["type_url"].as_str().unwrap().ends_with(type_name) && of["name"] == name;
        resources(&all).iter().find(is_it).unwrap_or_else(|| panic!("no {name} in {all}"))
    };
    let cluster = of(".Cluster", "a");
    assert_eq!(cluster["xds_config"], json!({"@type": CDS, "name": "a", "connect_timeout": "1s"}));
    assert_ne!(cluster["version_info"], "", "{cluster}");
    assert_eq!(of(".Listener", "front")["xds_config"]["stat_prefix"], "web");
    let endpoints = of(".ClusterLoadAssignment", "a");
    assert_eq!(endpoints["xds_config"], json!({"@type": EDS, "cluster_name": "a"}));
    let routes = of(".RouteConfiguration", "routes");
    assert_eq!(routes["xds_config"]["internal_only_headers"], json!(["x-one"]));
    assert_eq!(of(".ScopedRouteConfiguration", "scope")["xds_config"]["name"], "scope");
    let keys: Vec<&String> = of(".Secret", "key").as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "type_url", "version_info"]);
    let filter = of(".TypedExtensionConfig", "filter");
    assert_eq!(filter["xds_config"]["typed_config"]["suppress_envoy_headers"], true, "{filter}");
    assert_eq!(of(".Runtime", "layer")["xds_config"]["name"], "layer");
}

#[test]
fn a_dump_can_be_of_some_resources() {
    let relay = Process::start(
        &[("all.yaml", RESOURCES), ("clusters.yaml", &clusters(["web-1", "web-2", "db"]))],
        "",
    );
    let some = dump(&relay, "?type=cds&name=web-*");
    assert_eq!(resources(&some).len(), 2, "{some}");
    assert!(resources(&dump(&relay, "?name=nothing")).is_empty());
    for (query, status, text) in [
        ("?mask=a", 400, "unknown key `mask`; there are type, name and group"),
        ("?type=cows", 400, "is no resource type"),
        ("?group=a", 404, "there is no group `a`"),
    ] {
        let (is, answer) = relay.admin_get(&format!("/config_dump{query}"));
        assert!(is == status && answer.contains(text), "{query}: {is} {answer}");
    }
}

#[test]
fn a_large_body_is_not_shown() {
    let large = "x".repeat(1 << 20);
    let cluster = format!("resources: [{{\"@type\": {CDS}, name: large, alt_stat_name: {large}}}]\n");
    let relay = Process::start(&[("large.yaml", &cluster)], "");
    let dump = dump(&relay, "");
    let cluster = &resources(&dump)[0];
    assert!(cluster["error_state"]["details"].as_str().unwrap().contains("are not shown"), "{cluster}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_is_of_one_node_group() {
    let (relay, mut server, _own) = relay_and_origin(FLEETS).await;
    let _red = groups::client(&relay, "red-1").await;
    let mut upstream = server.accept_asked().await;
    upstream.send(&changes(Kind::Cluster, "1", &[("a", "7")], &[]));
    upstream.expect_ack("1").await;
    relay.wait_for("the cluster", || relay.metric("deltafan_cached_resources{type=\"cds\"}") == 1.0);
    assert!(resources(&dump(&relay, "")).is_empty());
    let listed: Json = serde_json::from_str(&relay.admin_get("/resources").1).unwrap();
    let group = listed["resources"][0]["group"].as_str().unwrap().to_owned();
    let of_group = dump(&relay, &format!("?group={}", group.replace(':', "%3A").replace('/', "%2F")));
    assert_eq!(resources(&of_group)[0]["version_info"], "7");
}
