//! Commands of docs/troubleshooting.md, which print what that page says.

use deltafan::proto::Status;
use regex::Regex;

use super::admin_commands::ask;
use crate::prelude::*;

/// Commands of a page, each with its output. A command is in a block of code, behind `$`.
fn commands(page: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    let mut is_open = false;
    for line in page.lines() {
        if let Some(command) = line.strip_prefix("    $ deltafan ") {
            commands.push((command.to_owned(), String::new()));
            is_open = true;
        } else if let Some((_, output)) = commands.last_mut().filter(|_| is_open) {
            is_open = line.is_empty() || line.starts_with("    ");
            if is_open {
                output.push_str(line.strip_prefix("    ").unwrap_or_default());
                output.push('\n');
            }
        }
    }
    commands
}

/// Output without that which differs from run to run: addresses, times, the commit, and the spaces that these shift.
fn stable(output: &str) -> String {
    let mut output = output.trim_end().to_owned();
    for (pattern, stands_for) in [
        (r"http://[^ ,]+", "URI"),
        (r"\b\d{4}-\d\d-\d\dT[0-9:]{8}Z", "TIME"),
        (r"\b\d+[smhd]\b", "AGE"),
        (r"\([0-9a-f]{12}(-dirty)?\)", "(COMMIT)"),
        (r"\b\d+\.\d+\.\d+ ", "VERSION "),
        (r" +", " "),
    ] {
        output = Regex::new(pattern).unwrap().replace_all(&output, stands_for).into_owned();
    }
    output
}

fn clusters(version: &str, names: &[&str]) -> DeltaDiscoveryResponse {
    let cds: TypeUrl = Kind::Cluster.into();
    // With version 18 the timeout, field 4, is 2 s.
    let timeout = if version == "18" { 2 } else { 1 };
    let body = |name: &&str| [&[10, name.len() as u8], name.as_bytes(), &[34, 2, 8, timeout]].concat();
    let resources = names.iter().map(|name| resource(&cds, name, version, &body(name))).collect();
    DeltaDiscoveryResponse { resources, system_version_info: version.to_owned(), ..response(&cds, version) }
}

/// NACK with a text as Envoy gives it.
fn rejection(nonce: String) -> DeltaDiscoveryRequest {
    let message = "Error adding/updating cluster(s) backend: no such transport socket".to_owned();
    DeltaDiscoveryRequest {
        type_url: CDS.to_owned(),
        response_nonce: nonce,
        error_detail: Some(Status { code: 13, message }),
        ..DeltaDiscoveryRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_questions_shows_what_its_commands_print() {
    let page = include_str!("../../docs/troubleshooting.md");
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut clients = Vec::new();
    for node in ["edge-1", "edge-2", "edge-3"] {
        let client = Delta::asking(&channel, node, CDS, &["*"]).await;
        clients.push(client);
        let known = clients.len() as f64;
        relay.wait_for("the request", || {
            let states = ["waiting", "synced"];
            let count = |state| relay.metric(&format!("deltafan_clients{{type=\"cds\",state=\"{state}\"}}"));
            states.map(count).iter().sum::<f64>() == known
        });
    }
    upstream.expect_request().await;
    for (version, changed) in [("17", &["backend", "website"][..]), ("18", &["backend"])] {
        upstream.deliver(&clusters(version, changed)).await;
        for (client, number) in clients.iter_mut().zip(1..) {
            let told = client.response().await;
            if version == "18" && number == 3 {
                client.send(rejection(told.nonce)).await;
            } else {
                client.ack(&told).await;
            }
        }
    }
    relay.wait_for("the answers", || {
        let count = |state| relay.metric(&format!("deltafan_clients{{type=\"cds\",state=\"{state}\"}}"));
        count("synced") == 2.0 && count("rejected") == 1.0
    });
    let commands = commands(page);
    assert_eq!(commands.len(), 7, "{commands:?}");
    for (command, output) in commands {
        let args: Vec<&str> = command.split(' ').collect();
        let ran = ask(&relay, &args).await;
        assert_eq!(stable(&ran.stdout), stable(&output), "deltafan {command} prints\n{}", ran.stdout);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(if command == "status" { 3 } else { 0 }), ""));
    }
}
