//! Status of a real gRPC client, as the admin address tells it to a client of CSDS that grpc-go's own messages make.

use std::process::Command;

use serde_json::Value as Json;

use crate::fixture::{
    Fixture, Implementation, PATIENCE, Transport, eventually, is_direct,
    resources::{api_listener, cluster, endpoints, routes},
    wait_until_answers,
};

const TARGET: &str = "greeter.example";
const BACKEND: &str = "greeter-cluster";

#[test]
fn a_grpc_client_is_synced_with_all_that_it_asks_for() {
    if is_direct() || Implementation::Go.require().is_none() {
        return;
    }
    let Some(fixture) = Fixture::start(0) else { return };
    let backends = fixture.start_grpc_backends(&["a"]);
    let source = Transport::SotwAds.config_source();
    fixture.origin.put(&api_listener(TARGET, &source, "greeter-routes"));
    fixture.origin.put(&routes("greeter-routes", BACKEND));
    fixture.origin.put(&cluster(BACKEND, &source, "1s"));
    fixture.origin.put(&endpoints(BACKEND, backends.port("a")));
    let client = fixture.start_grpc_client(Implementation::Go, "grpc-client", TARGET);
    wait_until_answers(&client, "a");

    let admin = format!("127.0.0.1:{}", fixture.relay_admin_port());
    eventually(PATIENCE, "four resources are SYNCED", || {
        let mut program = Command::new(Implementation::go());
        let output = program.args(["status", &admin, "grpc-client"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found: Json = serde_json::from_slice(&output.stdout).unwrap();
        let configs = found["config"][0]["genericXdsConfigs"].as_array().cloned().unwrap_or_default();
        let is_synced = |one: &&Json| one["configStatus"] == "SYNCED" && one["clientStatus"] == "ACKED";
        let synced = configs.iter().filter(is_synced).count();
        if (configs.len(), synced) == (4, 4) { Ok(()) } else { Err(found.to_string()) }
    });
}
