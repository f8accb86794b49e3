//! `/config_dump` in the shape of Envoy's admin API.

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

/// The message of this name in a dump.
fn of<'d>(dump: &'d Json, name: &str) -> &'d Json {
    let configs = dump["configs"].as_array().unwrap();
    let found = configs.iter().find(|config| config["@type"].as_str().unwrap().ends_with(name));
    found.unwrap_or_else(|| panic!("no {name} in {dump}"))
}

#[test]
fn a_dump_has_each_resource_in_the_message_of_its_type() {
    let relay = Process::start(&[("all.yaml", RESOURCES), ("clusters.yaml", &clusters(["a", "b"]))], "");
    let all = dump(&relay, "");
    let clusters = &of(&all, ".ClustersConfigDump")["dynamic_active_clusters"];
    assert_eq!(clusters.as_array().unwrap().len(), 2, "{clusters}");
    assert_eq!(clusters[0]["cluster"], json!({"@type": CDS, "name": "a", "connect_timeout": "1s"}));
    assert!(clusters[0].get("last_updated").is_none(), "nothing has changed: {clusters}");
    assert_ne!(clusters[0]["version_info"], "", "{clusters}");
    let listener = &of(&all, ".ListenersConfigDump")["dynamic_listeners"][0];
    assert_eq!(
        (&listener["name"], &listener["active_state"]["listener"]["stat_prefix"]),
        (&json!("front"), &json!("web"))
    );
    let endpoints = &of(&all, ".EndpointsConfigDump")["dynamic_endpoint_configs"][0];
    assert_eq!(endpoints["endpoint_config"], json!({"@type": EDS, "cluster_name": "a"}));
    let routes = &of(&all, ".RoutesConfigDump")["dynamic_route_configs"][0];
    assert_eq!(routes["route_config"]["internal_only_headers"], json!(["x-one"]));
    let scope = &of(&all, ".ScopedRoutesConfigDump")["dynamic_scoped_route_configs"][0];
    assert_eq!(
        (&scope["name"], &scope["scoped_route_configs"][0]["name"]),
        (&json!("scope"), &json!("scope"))
    );
    let secret = &of(&all, ".SecretsConfigDump")["dynamic_active_secrets"][0];
    assert_eq!(secret["name"], "key");
    let keys: Vec<&String> = secret["secret"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["@type", "name"], "{secret}");
    let filter = &of(&all, ".EcdsConfigDump")["ecds_filters"][0];
    assert_eq!(filter["ecds_filter"]["typed_config"]["suppress_envoy_headers"], true, "{filter}");
    let layer = &of(&all, "envoy.service.status.v3.ClientConfig")["generic_xds_configs"][0];
    assert_eq!((&layer["name"], &layer["xds_config"]["name"]), (&json!("layer"), &json!("layer")));
    relay.write("clusters.yaml", &self::clusters(["a", "c"]));
    relay.wait_for("the time of the new cluster", || {
        let clusters = &dump(&relay, "?type=cds&name=c");
        let updated = clusters.pointer("/configs/0/dynamic_active_clusters/0/last_updated");
        updated.and_then(Json::as_str).is_some_and(|updated| updated.ends_with('Z'))
    });
}

#[test]
fn a_dump_can_be_of_some_resources() {
    let relay = Process::start(
        &[("all.yaml", RESOURCES), ("clusters.yaml", &clusters(["web-1", "web-2", "db"]))],
        "",
    );
    let some = dump(&relay, "?type=cds&name=web-*");
    assert_eq!(some["configs"].as_array().unwrap().len(), 1, "{some}");
    assert_eq!(some["configs"][0]["dynamic_active_clusters"].as_array().unwrap().len(), 2, "{some}");
    assert_eq!(dump(&relay, "?name=nothing"), json!({"configs": []}));
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
    let cluster = &of(&dump, ".ClustersConfigDump")["dynamic_active_clusters"][0];
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
    assert_eq!(dump(&relay, ""), json!({"configs": []}));
    let resources: Json = serde_json::from_str(&relay.admin_get("/resources").1).unwrap();
    let group = resources["resources"][0]["group"].as_str().unwrap().to_owned();
    let of_group = dump(&relay, &format!("?group={}", group.replace(':', "%3A").replace('/', "%2F")));
    assert_eq!(of(&of_group, ".ClustersConfigDump")["dynamic_active_clusters"][0]["version_info"], "7");
}
