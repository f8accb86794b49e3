//! Fleets of real clients behind a SnapshotCache of go-control-plane that keys on the id of the node: one relay, one connection, a
//! node group for each fleet.

use std::{thread, time::Duration};

use crate::fixture::{
    CallResult, ControlPlane, Envoy, Fixture, GrpcClient, Implementation, Transport, http_backend,
    require_relay,
    resources::{api_listener, cluster, endpoints, listener, routes},
    wait_until_answers,
};

const GROUPS: &str = r#"
groups:
  default: refuse
  rules:
    - name: fleet
      match: {node.id: "(?P<fleet>[a-z]+)-.*"}
      key: "${fleet}"
      node: {id: "${fleet}"}
"#;
const FLEETS: [&str; 3] = ["red", "green", "blue"];
const TARGET: &str = "greeter.example";
const INGRESS: &str = "ingress";

/// Resources of a fleet: names are those of all fleets, and lead to other endpoints.
fn fill(fixture: &Fixture, fleet: &str, http: u16, grpc: u16) {
    let source = Transport::DeltaAds.config_source();
    let resources = [
        endpoints("backend", http),
        endpoints("greeter", grpc),
        cluster("backend", &source, "1s"),
        cluster("greeter", &source, "1s"),
        routes("routes", "backend"),
        routes("greeter-routes", "greeter"),
        listener(INGRESS, &source, "routes"),
        api_listener(TARGET, &source, "greeter-routes"),
    ];
    resources.iter().for_each(|resource| fixture.origin.put_for(fleet, resource));
}

#[test]
fn a_snapshot_cache_by_node_serves_three_fleets_through_one_relay() {
    let Some(()) = require_relay() else { return };
    let plane = ControlPlane::Go("v0.14.0", &["--cache", "fleets"]);
    let Some(fixture) = Fixture::start_with(plane, FLEETS.len(), GROUPS) else { return };
    let Some(()) = Implementation::Go.require() else { return };
    let backends = fixture.start_grpc_backends(&["red", "green", "blue", "other"]);
    for fleet in FLEETS {
        fill(&fixture, fleet, http_backend(fleet), backends.port(fleet));
    }
    let clients: Vec<(&str, Envoy, GrpcClient)> = FLEETS
        .into_iter()
        .zip([Transport::DeltaAds, Transport::SotwAds, Transport::DeltaAds])
        .map(|(fleet, transport)| {
            let envoy = fixture.start_envoy(&format!("{fleet}-envoy"), transport);
            let id = format!("{fleet}-grpc");
            (fleet, envoy, fixture.start_grpc_client(Implementation::Go, &id, TARGET))
        })
        .collect();
    for (fleet, envoy, client) in &clients {
        envoy.wait_until_answered_by(INGRESS, fleet);
        wait_until_answers(client, fleet);
    }
    let stats = fixture.origin.stats();
    assert_eq!(stats.connections.ever, 1, "one connection for all fleets: {stats:?}");
    assert!((fixture.relay_metric("deltafan_groups{") - 3.0).abs() < f64::EPSILON);

    // A change for one fleet reaches its clients, and those of no other.
    fixture.origin.put_for("green", &endpoints("greeter", backends.port("other")));
    fixture.origin.put_for("green", &endpoints("backend", http_backend("other")));
    let (_, envoy, client) = &clients[1];
    envoy.wait_until_answered_by(INGRESS, "other");
    wait_until_answers(client, "other");
    thread::sleep(Duration::from_secs(1));
    for (fleet, envoy, client) in [&clients[0], &clients[2]] {
        assert_eq!(envoy.request(INGRESS).as_deref(), Ok(*fleet));
        let is_own = |result: &CallResult| matches!(result, CallResult::Answer { answer } if answer == fleet);
        let results = client.results();
        assert!(results.iter().skip_while(|result| !is_own(result)).all(is_own), "{results:?}");
    }
    assert_eq!(fixture.origin.stats().connections.ever, 1);
}
