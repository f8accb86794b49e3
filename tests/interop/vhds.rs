//! Virtual hosts on demand (VHDS): Envoy asks for a host by an alias when the first request to it comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use deltafan::descriptors;
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use deltafan::resource::{Kind, TypeUrl, wire};
use deltafan_test_support::origin::{Origin, OriginStream, response};
use parking_lot::Mutex;
use prost::Message as _;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fixture::{Fixture, PATIENCE, Transport, always, eventually, require_relay};
use crate::fleet::local;

const INGRESS: &str = "ingress";
const ROUTES: &str = "routes";

/// Answers of the control plane for hosts, and the names that it was asked for.
#[derive(Debug, Default)]
struct Script {
    /// The answer of each host.
    hosts: BTreeMap<String, String>,
    asked: Vec<String>,
}

impl Script {
    /// Answer to a name that is an alias of the form `routes/host`: without such a host a resource without a body (R-Delta-22).
    fn virtual_host(&self, alias: &str) -> BytesMut {
        // Names of routes may have slashes, names of hosts not (R-Delta-23).
        let host = alias.rsplit_once('/').unwrap().1;
        let Some(answer) = self.hosts.get(host) else { return resource(alias, "", &[alias], None) };
        let body = json!({
            "@type": Kind::VirtualHost.url().unwrap(),
            "name": format!("virtual-{host}"),
            "domains": [host],
            "routes": [{
                "match": {"prefix": "/"},
                "direct_response": {"status": 200, "body": {"inline_string": answer}},
            }],
        });
        resource(&format!("{ROUTES}/virtual-{host}"), answer, &[alias], Some(&body))
    }

    fn answer(&mut self, type_url: &TypeUrl, request: &DeltaDiscoveryRequest) -> Option<Vec<BytesMut>> {
        let names = &request.resource_names_subscribe;
        if !request.response_nonce.is_empty() && names.is_empty() {
            return None;
        }
        let ads = json!({"resource_api_version": "V3", "ads": {}});
        Some(match type_url.kind() {
            Kind::Listener => vec![resource(INGRESS, "1", &[], Some(&listener(&ads)))],
            Kind::Route => {
                // Envoy waits for a first virtual host before it serves at all, and there is none before it serves.
                let mut source = ads;
                source["initial_fetch_timeout"] = "0.5s".into();
                let routes =
                    json!({"@type": type_url.as_str(), "name": ROUTES, "vhds": {"config_source": source}});
                vec![resource(ROUTES, "1", &[], Some(&routes))]
            }
            Kind::VirtualHost => {
                self.asked.extend(names.iter().filter(|name| *name != "*").cloned());
                names.iter().filter(|name| *name != "*").map(|name| self.virtual_host(name)).collect()
            }
            _ => Vec::new(),
        })
    }
}

fn listener(source: &Value) -> Value {
    let filter = |name: &str, kind: &str| {
        json!({
            "name": name,
            "typed_config": {"@type": format!("type.googleapis.com/envoy.extensions.filters.http.{kind}")},
        })
    };
    json!({
        "@type": Kind::Listener.url().unwrap(),
        "name": INGRESS,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{
            "name": "http",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": ROUTES,
                "rds": {"config_source": source, "route_config_name": ROUTES},
                "http_filters": [
                    filter("envoy.filters.http.on_demand", "on_demand.v3.OnDemand"),
                    filter("router", "router.v3.Router"),
                ],
            },
        }]}],
    })
}

/// A `Resource` with the proto3 JSON of an `Any` for its body.
fn resource(name: &str, version: &str, aliases: &[&str], body: Option<&Value>) -> BytesMut {
    let mut sent = BytesMut::new();
    wire::put_field(&mut sent, 1, version.as_bytes());
    if let Some(body) = body {
        let any = descriptors::pool().get_message_by_name("google.protobuf.Any").unwrap();
        wire::put_field(&mut sent, 2, &DynamicMessage::deserialize(any, body).unwrap().encode_to_vec());
    }
    wire::put_field(&mut sent, 3, name.as_bytes());
    aliases.iter().for_each(|alias| wire::put_field(&mut sent, 4, alias.as_bytes()));
    sent
}

/// Plays the control plane on one stream of the relay.
async fn play(mut stream: OriginStream, script: Arc<Mutex<Script>>, mut changes: watch::Receiver<()>) {
    let vhds = TypeUrl::from(Kind::VirtualHost);
    let mut subscribed: Vec<String> = Vec::new();
    let mut nonce = 0;
    loop {
        let (type_url, resources) = tokio::select! {
            request = stream.next_request() => {
                let Some(request) = request else { return };
                let type_url = TypeUrl::from(request.type_url.as_str());
                if type_url == vhds {
                    subscribed.extend(request.resource_names_subscribe.iter().filter(|name| *name != "*").cloned());
                }
                let Some(resources) = script.lock().answer(&type_url, &request) else { continue };
                (type_url, resources)
            }
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                let script = script.lock();
                (vhds.clone(), subscribed.iter().map(|alias| script.virtual_host(alias)).collect())
            }
        };
        nonce += 1;
        let resources = resources.into_iter().map(BytesMut::freeze).collect();
        stream.send(&DeltaDiscoveryResponse { resources, ..response(&type_url, &nonce.to_string()) });
    }
}

#[test]
fn r_delta_21_envoy_gets_virtual_hosts_on_demand() {
    let Some(()) = require_relay() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut origin = runtime.block_on(Origin::listen(local(0)));
    let Some(fixture) = Fixture::start_of(origin.address().port(), 2) else { return };
    let script = Arc::new(Mutex::new(Script::default()));
    let (change, changes) = watch::channel(());
    let player = Arc::clone(&script);
    runtime.spawn(async move {
        while let Some(stream) = origin.next_stream().await {
            tokio::spawn(play(stream, Arc::clone(&player), changes.clone()));
        }
    });
    let set = |host: &str, answer: &str| {
        script.lock().hosts.insert(host.to_owned(), answer.to_owned());
        change.send(()).unwrap();
    };
    set("one.example", "the first");

    let first = fixture.start_envoy("first", Transport::DeltaAds);
    eventually(PATIENCE, "a virtual host is asked for on demand", || {
        first.request_to(INGRESS, "one.example").and_then(|answer| expect("the first", answer))
    });
    assert_eq!(script.lock().asked, [format!("{ROUTES}/one.example")], "by its alias, once");

    let second = fixture.start_envoy("second", Transport::DeltaAds);
    eventually(PATIENCE, "another Envoy gets it from the relay", || {
        second.request_to(INGRESS, "one.example").and_then(|answer| expect("the first", answer))
    });
    assert_eq!(script.lock().asked.len(), 1, "the control plane was not asked again");

    let began = Instant::now();
    let unknown = first.request_to(INGRESS, "nowhere.example").unwrap_err();
    assert!(unknown.contains("404"), "{unknown}");
    assert!(began.elapsed() < Duration::from_secs(2), "promptly");
    let unknown = second.request_to(INGRESS, "nowhere.example").unwrap_err();
    assert!(unknown.contains("404"), "{unknown}");
    assert_eq!(script.lock().asked.len(), 2, "also that there is none comes from the cache");

    set("one.example", "the second");
    for envoy in [&first, &second] {
        eventually(PATIENCE, "the route changes", || {
            envoy.request_to(INGRESS, "one.example").and_then(|answer| expect("the second", answer))
        });
    }
    set("nowhere.example", "here");
    eventually(PATIENCE, "a host appears", || {
        first.request_to(INGRESS, "nowhere.example").and_then(|answer| expect("here", answer))
    });
    always(Duration::from_millis(500), "it stays", || {
        first.request_to(INGRESS, "one.example").and_then(|answer| expect("the second", answer)).map(drop)
    });
}

fn expect(expected: &str, answer: String) -> Result<(), String> {
    if answer == expected { Ok(()) } else { Err(answer) }
}
