//! Dynamic parameters on the real binary: a control plane that speaks locators, and clients of every kind (R-DP-*).

use bytes::BytesMut;
use deltafan::proto::{ResourceLocator, ResourceName};
use deltafan::resource::{Envelope, wire as fields};
use deltafan_test_support::process::run;
use deltafan_test_support::wire;

use crate::prelude::*;

const GIVEN: &str = "dynamic_parameters:\n  - {key: env, from: node.cluster}\n";

fn cds() -> TypeUrl {
    Kind::Cluster.into()
}

/// A variant of a cluster, with nothing in it but its name.
fn variant(name: &str, rule: &str, version: &str) -> Bytes {
    let (mut any, mut inner, mut out) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    fields::put_field(&mut inner, 1, name.as_bytes());
    fields::put_field(&mut inner, 2, &wire::constraints(rule));
    let body = [&[10, name.len() as u8], name.as_bytes()].concat();
    fields::put_field(&mut any, 1, CDS.as_bytes());
    fields::put_field(&mut any, 2, &body);
    fields::put_field(&mut out, 8, &inner);
    fields::put_field(&mut out, 1, version.as_bytes());
    fields::put_field(&mut out, 2, &any);
    out.freeze()
}

fn shared() -> Bytes {
    resource(&cds(), "shared", "1", &[10, 6, b's', b'h', b'a', b'r', b'e', b'd'])
}

fn gone(name: &str, rule: &str) -> ResourceName {
    ResourceName { name: name.to_owned(), dynamic_parameter_constraints: wire::constraints(rule).into() }
}

/// Locators of a request, as `name k=v`.
fn located(request: &DeltaDiscoveryRequest) -> Vec<String> {
    assert_eq!(request.resource_names_subscribe, [""; 0], "nothing without parameters");
    let text = |locator: &ResourceLocator| {
        let pairs = locator.dynamic_parameters.iter().map(|(key, value)| format!(" {key}={value}"));
        format!("{}{}", locator.name, pairs.collect::<String>())
    };
    request.resource_locators_subscribe.iter().map(text).collect()
}

fn node(cluster: &str) -> Option<Node> {
    Some(Node { id: "n".to_owned(), cluster: cluster.to_owned(), ..Node::default() })
}

async fn delta(relay: &Process, cluster: &str, located: &[&str]) -> Delta {
    let stream = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    let locator = |name: &&str| ResourceLocator {
        name: (*name).to_owned(),
        dynamic_parameters: [("env".to_owned(), "prod".to_owned())].into(),
    };
    let request = DeltaDiscoveryRequest {
        node: node(cluster),
        type_url: CDS.to_owned(),
        resource_locators_subscribe: located.iter().map(locator).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    stream.send(request).await;
    stream
}

fn versions(response: &DeltaDiscoveryResponse) -> Vec<String> {
    let text = |bytes: &Bytes| {
        let envelope = Envelope::parse(bytes, &cds()).unwrap();
        let constraints =
            envelope.constraints.unwrap().map(|rule| format!(" for {rule}")).unwrap_or_default();
        format!("{}:{}{constraints}", envelope.name, envelope.version)
    };
    let mut all: Vec<String> = response.resources.iter().map(text).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn r_dp_17_one_stream_upstream_serves_many_kinds_of_node_on_every_transport() {
    let (relay, _origin, mut upstream) = relay_and_origin(GIVEN).await;

    // Envoys say nothing of parameters: they are given theirs, and get plain names (R-DP-09).
    let mut prod = delta(&relay, "prod", &[]).await;
    assert_eq!(located(&upstream.expect_request().await), ["* env=prod"]);
    upstream.send(&DeltaDiscoveryResponse {
        resources: vec![variant("web", "env=prod", "1"), variant("web", "env=test", "9"), shared()],
        ..response(&cds(), "a")
    });
    upstream.expect_ack("a").await;
    let told = prod.take().await;
    assert_eq!(versions(&told), ["shared:1", "web:1"], "and no variant that is for others");

    let mut dev = Sotw::open(&connect(&relay.uri()).await, SOTW_ADS).await;
    let request =
        DiscoveryRequest { node: node("dev"), type_url: CDS.to_owned(), ..DiscoveryRequest::default() };
    dev.send(request).await;
    assert_eq!(located(&upstream.expect_request().await), ["* env=dev"]);
    upstream.send(&DeltaDiscoveryResponse {
        resources: vec![variant("web", "env=dev", "2"), shared()],
        ..response(&cds(), "b")
    });
    upstream.expect_ack("b").await;
    let told = dev.response().await;
    assert_eq!(told.resources.len(), 2);
    dev.ack(&told, &[]).await;

    // A client that asks by locator is told the constraints, from the cache.
    let mut locator = delta(&relay, "anything", &["*"]).await;
    let told = locator.take().await;
    assert_eq!(versions(&told), ["shared:1", r#"web:1 for env = "prod""#]);

    // A variant is replaced: one response for each, never one without it (R-DP-13).
    upstream.send(&DeltaDiscoveryResponse {
        resources: vec![variant("web", "env=prod,!canary", "3")],
        removed_resource_names: vec![gone("web", "env=prod")],
        ..response(&cds(), "c")
    });
    upstream.expect_ack("c").await;
    let told = prod.take().await;
    assert_eq!((versions(&told), told.removed_resources), (vec!["web:3".to_owned()], vec![]));
    let told = locator.response().await;
    assert_eq!(versions(&told), [r#"web:3 for (env = "prod" and not exists(canary))"#]);
    let removed = &told.removed_resource_names;
    assert_eq!(removed.len(), 1);
    assert_eq!(removed[0].name, "web");
    dev.silence().await;

    let (uri, listener) = (relay.uri(), relay.listener);
    let checks = tokio::task::spawn_blocking(move || {
        let poll = |body: &str| Http1::connect(listener).poll("clusters", body).json();
        let plain = poll(r#"{"node":{"cluster":"prod"},"resource_names":["*"]}"#);
        assert_eq!(plain["resources"][1]["name"], "web", "{plain}");
        let wrapped = poll(
            r#"{"node":{"cluster":"x"},"resource_locators":[{"name":"*","dynamic_parameters":{"env":"prod"}}]}"#,
        );
        let web = &wrapped["resources"][1];
        assert_eq!(web["@type"], "type.googleapis.com/envoy.service.discovery.v3.Resource", "{wrapped}");
        assert_eq!((&web["resourceName"]["name"], &web["resource"]["name"]), (&"web".into(), &"web".into()));
        assert!(
            web["resourceName"]["dynamicParameterConstraints"]["andConstraints"].is_object(),
            "{wrapped}"
        );
        assert_ne!(plain["versionInfo"], wrapped["versionInfo"], "another form is another answer");

        let get = |parameter: &str| run(&["get", "cds", "--server", &uri, "--param", parameter]).stdout;
        assert!(
            get("env=dev").lines().any(|line| line.contains("web") && line.contains(" 2 ")),
            "{}",
            get("env=dev")
        );
        relay
    });
    let _relay = checks.await.unwrap();
    assert!(upstream.is_quiet_for(deltafan_test_support::client::MOMENT).await, "all of that from the cache");
    let told = prod.response();
    upstream.send(&DeltaDiscoveryResponse {
        removed_resource_names: vec![gone("web", "env=prod,!canary")],
        ..response(&cds(), "d")
    });
    let told = told.await;
    assert_eq!((names(&told), told.removed_resources), (vec![], vec!["web".to_owned()]));
}

/// Passes the field of the node on from which the first relay takes the parameters.
const GROUPS: &str = "groups:
  rules:
    - name: env
      match: {node.cluster: \"(?P<env>.+)\"}
      key: \"${env}\"
      node: {id: \"env-${env}\", cluster: \"${env}\"}
";

/// A relay behind a relay has one set of parameters on a stream, and a stream for each node group.
#[tokio::test(flavor = "multi_thread")]
async fn r_dp_17_several_sets_of_parameters_pass_through_tiers_by_node_groups() {
    let (first, _origin, mut upstream) = relay_and_origin(GIVEN).await;
    let second = Process::behind_keys(&first.uri(), "", "", GROUPS);
    let third = Process::behind_keys(&second.uri(), "", "", GROUPS);
    let mut clients = Vec::new();
    for (env, nonce) in [("prod", "a"), ("test", "b")] {
        let mut client = delta(&third, env, &[]).await;
        assert_eq!(located(&upstream.expect_request().await), [format!("* env={env}")]);
        upstream.send(&DeltaDiscoveryResponse {
            resources: vec![variant("web", "env=prod", "1"), variant("web", "env=test", "9"), shared()],
            ..response(&cds(), nonce)
        });
        upstream.expect_ack(nonce).await;
        let told = client.take().await;
        clients.push((client, versions(&told)));
    }
    assert_eq!(clients[0].1, ["shared:1", "web:1"]);
    assert_eq!(clients[1].1, ["shared:1", "web:9"]);

    // One variant is replaced: that is nothing to the others.
    upstream.send(&DeltaDiscoveryResponse {
        resources: vec![variant("web", "env=test,!canary", "10")],
        removed_resource_names: vec![gone("web", "env=test")],
        ..response(&cds(), "c")
    });
    upstream.expect_ack("c").await;
    let told = clients[1].0.response().await;
    assert_eq!((versions(&told), told.removed_resources), (vec!["web:10".to_owned()], vec![]));
    clients[0].0.silence().await;
}
