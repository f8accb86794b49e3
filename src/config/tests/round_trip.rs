//! Reading gives what is written, and what is printed reads back equal.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::UPSTREAM;
use crate::config::notation::Written as _;
use crate::config::{Backoff, Config, ListenAddress, UpstreamKeepalive};
use crate::node_field::NodeField;
use crate::resource::TypeUrl;
use deltafan_core::upstream::Locators;
use deltafan_transport::tls::options::ServerIdentity;

const EVERYTHING: &str = r#"
node:
  id: "007"
  cluster: 0123
  locality: {region: eu, zone: a, sub_zone: "true"}
  metadata: {hops: 1, half: 0.5, hex: 0x1F, negative: -3, none: ~, yes: true, text: "1", list: [a, {b: c}], date: 2026-11-21}
upstream:
  servers: [{uri: "http://[::1]:18000/"}]
  connect_timeout: 1.5s
  max_response_bytes: 1000
  request_interval: 0s
  unsubscribe_linger: 1000ms
  max_lingering_names: 0
  prefetch_endpoints: false
  ready_wait: 15s
  locators: plain
  backoff: {initial: 1s, max: 1s}
  keepalive: {interval: 61s, timeout: "7s"}
downstream:
  listeners: [{address: "[::]:1"}, {address: 0.0.0.0:0}, {}]
  settle: 1s
  max_connection_age: 720h
  max_name_bytes: 1KiB
  max_names: 7
  max_streams_per_connection: 8
  trust_initial_versions_for_explicit: true
  eds_repush_on_cds_change: false
  resource_errors: false
  no_legacy_wildcard: [cds, type.example.com/acme.Thing, cds]
admin: {address: "[::1]:15000"}
cache: {encoded_bytes: 1GiB, tombstones: 1, max_parameter_sets: 7, history_bytes: 0}
rollout: {types: [cds, lds], canaries: {match: {node.id: "canary-.*"}}, steps: [2.5%, 100%], key_file: canaries.key, window: 1m, threshold: "0%", max_removed: 40%, report: nack}
dynamic_parameters:
- {key: env, from: node.metadata.env.name, pattern: "(prod|canary)-.*", default: ""}
- {key: "a: b", from: node.locality.sub_zone}
- {key: "007", from: node.id, pattern: '(?x)([^:]+) \n # "the \ rest"'}
groups:
  default: refuse
  max: 7
  rules:
  - name: edge
    match: {node.metadata.role: gateway, node.id: 'edge-(?P<region>[a-z]+)-.*', peer.san: '.*\.mesh'}
    key: "${region}$$"
    node:
      id: "edge-${region}"
      cluster: 0123
      locality: {region: "${region}"}
      metadata: {role: gateway, "n": 1, list: ["${region}", {deep: "$$"}], "null": ~}
  - {name: proxies, match: {peer.spiffe_id: '(?x) spiffe://(?P<domain> .*) # all'}, key: "${node.id} ${domain}", node: client}
  - {name: bare, match: {node.cluster: 1}, node: {id: 1, locality: {}, metadata: {}}}
"#;

fn everything() -> Config {
    Config::parse(EVERYTHING, "f").unwrap()
}

#[test]
fn tls_upstream_is_as_in_the_file() {
    let file = "upstream:\n  servers:\n  - uri: HTTPS://[::1]:1/\n    tls: {ca_file: a, cert_file: /b, key_file: ../c, ";
    let names =
        ["control-plane", "10.0.0.1", "::1", "spiffe://mesh.example/ns/istio/sa/istiod", "spiffe://mesh"];
    for name in names {
        let config =
            Config::parse(&format!("{file}crl_file: d, server_name: \"{name}\"}}\n"), "/etc/f").unwrap();
        let servers = &config.upstream.servers;
        let tls = servers[0].tls.clone().unwrap().options();
        assert_eq!(
            (tls.ca_file.as_deref(), tls.crl_file.as_deref()),
            (Some(Path::new("/etc/a")), Some(Path::new("/etc/d")))
        );
        let own = tls.own.as_ref().unwrap();
        assert_eq!((&*own.cert_file, &*own.key_file), (Path::new("/b"), Path::new("/etc/../c")));
        let named = tls.server_name.as_ref().unwrap();
        assert_eq!(named.to_string(), name);
        assert_eq!(matches!(named, ServerIdentity::Spiffe(_)), name.starts_with("spiffe:"));
        assert_eq!(servers[0].uri.to_string(), "https://[::1]:1");
        assert_eq!(Config::parse(&config.to_string(), "f").unwrap(), config, "{config}");
    }
    for (uri, expected) in [
        ("https://cp.example:1", "cp.example"),
        ("https://[::1]:1", "::1"),
        ("https://10.0.0.1:1", "10.0.0.1"),
    ] {
        assert_eq!(ServerIdentity::of_host(&uri.parse().unwrap()).unwrap().to_string(), expected);
    }
    let plain = Config::parse("upstream: {servers: [{uri: \"https://cp:1\"}]}", "f").unwrap();
    assert!(!plain.to_string().contains("tls"), "{plain}");
}

#[test]
fn values_are_as_in_the_file() {
    let config = everything();
    assert_eq!((config.node.id.as_str(), config.node.cluster.as_str()), ("007", "0123"));
    assert_eq!(config.node.locality.sub_zone, "true");
    assert_eq!(
        Json::from(config.node.metadata.clone()),
        json!({"hops": 1, "half": 0.5, "hex": "0x1F", "negative": -3, "none": null, "yes": true, "text": "1",
               "list": ["a", {"b": "c"}], "date": "2026-11-21"})
    );
    let servers = &config.upstream.servers;
    assert_eq!(servers[0].uri.as_uri().authority().unwrap(), "[::1]:18000");
    assert_eq!(servers[0].uri.to_string(), "http://[::1]:18000");
    assert_eq!(config.upstream.connect_timeout, Duration::from_millis(1500));
    assert_eq!(config.upstream.max_response_bytes, 1000);
    assert_eq!(config.upstream.request_interval, Duration::ZERO);
    assert_eq!(config.upstream.ready_wait, Duration::from_secs(15));
    assert_eq!(config.upstream.locators, Locators::Plain);
    let second = Duration::from_secs(1);
    assert_eq!(config.upstream.backoff, Backoff { initial: second, max: second });
    let keepalive = UpstreamKeepalive { interval: Duration::from_secs(61), timeout: Duration::from_secs(7) };
    assert_eq!(config.upstream.keepalive, keepalive);
    let addresses: Vec<String> =
        config.downstream.listeners.iter().map(|listener| listener.address.to_string()).collect();
    assert_eq!(addresses, ["[::]:1", "0.0.0.0:0", "0.0.0.0:15010"]);
    assert_eq!(
        config.downstream.no_legacy_wildcard.iter().map(TypeUrl::as_str).collect::<Vec<_>>(),
        ["type.googleapis.com/envoy.config.cluster.v3.Cluster", "type.example.com/acme.Thing"]
    );
    assert_eq!(config.cache.encoded_bytes, 1 << 30);
    let path = vec!["env".to_owned(), "name".to_owned()];
    assert_eq!(config.dynamic_parameters[0].from, NodeField::Metadata(path));
    assert_eq!(config.dynamic_parameters[0].default.as_deref(), Some(""));
    let last = &config.dynamic_parameters[2];
    assert_eq!((last.key.as_str(), &last.from), ("007", &NodeField::Id));
}

#[test]
fn a_printed_configuration_reads_back_equal() {
    for config in [everything(), Config::parse(UPSTREAM, "f").unwrap()] {
        let printed = config.to_string();
        assert_eq!(Config::parse(&printed, "elsewhere/g").unwrap(), config, "{printed}");
        assert_eq!(Config::parse(&printed, "f").unwrap().to_string(), printed);
    }
    let printed = everything().to_string();
    for line in ["  connect_timeout: 1500ms\n", "  max_connection_age: 720h\n", "  max_name_bytes: 1KiB\n"] {
        assert!(printed.contains(line), "{line:?} is not in\n{printed}");
    }
}

#[test]
fn relative_paths_start_from_the_folder_of_the_file() {
    let directory =
        |text: &str, origin: &str| Config::parse(text, origin).unwrap().upstream.directory.unwrap();
    let text = "upstream: {directory: ./resources}";
    assert_eq!(directory(text, "/etc/deltafan/relay.yaml"), Path::new("/etc/deltafan/resources"));
    assert_eq!(directory("upstream: {directory: /srv}", "/etc/deltafan/relay.yaml"), Path::new("/srv"));
    let here = std::env::current_dir().unwrap();
    assert_eq!(directory(text, "conf/relay.yaml"), here.join("conf/resources"));
    assert_eq!(directory(text, "relay.yaml"), here.join("resources"));

    let config = Config::parse(text, "conf/relay.yaml").unwrap();
    assert_eq!(Config::parse(&config.to_string(), "conf/relay.yaml").unwrap(), config);

    let socket = ListenAddress::parse("unix:relay.sock", Path::new("/run")).unwrap();
    assert_eq!(socket, ListenAddress::Unix("/run/relay.sock".into()));
    assert_eq!(socket.to_string(), "unix:/run/relay.sock");
}

#[test]
fn sections_without_a_key_are_their_defaults() {
    let text = format!("{UPSTREAM}node:\n  metadata:\ndownstream:\n  keepalive:\nadmin: ~\ncache: {{}}\n");
    assert_eq!(Config::parse(&text, "f").unwrap(), Config::parse(UPSTREAM, "f").unwrap());
}

#[test]
fn windows_line_ends_and_a_byte_order_mark_are_fine() {
    let text = format!("\u{feff}{}", UPSTREAM.replace('\n', "\r\n"));
    assert_eq!(Config::parse(&text, "f").unwrap(), Config::parse(UPSTREAM, "f").unwrap());
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        any_text().prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            prop::collection::btree_map(any_text(), inner, 0..6)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

/// With those that YAML readers are known to take for something else.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        "[-+0-9.eExo_:]{0,8}",
        "\\PC{0,12}",
        "[ \\n\\t\\r:#'\"\\\\|>&*!%@`{}\\[\\],?-]{0,6}",
        prop::sample::select(vec![
            "yes", "no", "null", "~", "true", ".inf", "-.inf", ".nan", "<<", "=", "---"
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    /// Whatever pattern is accepted means the same when it is printed and read again.
    #[test]
    fn rules_survive_printing(
        key in any_text(), default in any_text(), path in any_text(),
        pattern in "[ab|*?+^$()\\[\\]{},#:\\\\ xi\\n-]{0,12}|\\(\\?x\\)\\(a\\).{0,8}", id in "[ab\\n]{0,4}",
    ) {
        let rule = json!({
            "key": key, "from": format!("node.metadata.{path}"), "pattern": pattern, "default": default,
        });
        let Ok(config) = Config::parse(&format!("{UPSTREAM}dynamic_parameters: [{rule}]\n"), "f") else {
            return Ok(());
        };
        let printed = config.to_string();
        let again = Config::parse(&printed, "f").map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))?;
        prop_assert_eq!(&again, &config);
        let [read, expected] = [&again, &config].map(|config| {
            let whole = config.dynamic_parameters[0].pattern.as_ref().unwrap().regex();
            // Anchored: what it finds is all there is.
            prop_assert!(whole.find(&id).is_none_or(|found| found.as_str() == id));
            Ok(whole.is_match(&id))
        });
        prop_assert_eq!(read?, expected?);
    }

    #[test]
    fn metadata_survives_printing(value in any_json(), id in "\\PC{1,20}") {
        let mut config = Config::parse(UPSTREAM, "f").unwrap();
        config.node.metadata.insert("value".to_owned(), value);
        config.node.id = id;
        let printed = config.to_string();
        prop_assert_eq!(Config::parse(&printed, "f").map_err(|error| format!("{error}\n{printed}")), Ok(config));
    }
}
