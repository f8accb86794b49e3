//! `deltafan load`, by the real binary.

use std::process::Stdio;

use deltafan_test_support::process::{program, signal};
use tokio::process::{Child, Command};

use super::admin_commands::run;
use crate::prelude::*;

fn start(server: &str, args: &[&str]) -> Child {
    let mut command = Command::new(program());
    command.arg("load").args(args).args(["--server", server, "-o", "json"]).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Exit status and report of a load that ends, which says nothing on stderr.
async fn report(load: Child) -> (Option<i32>, Json) {
    let output = tokio::time::timeout(PATIENCE, load.wait_with_output()).await.expect("its end").unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no bar where there is no terminal");
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_is_counted_and_opened_again() {
    let cds: TypeUrl = Kind::Cluster.into();
    let eds: TypeUrl = Kind::Endpoint.into();
    let mut origin = Origin::start().await;
    let args = ["cds", "eds=x", "eds=y", "--clients", "1", "--node-id", "fleet", "--duration", "30s"];
    let load = start(&origin.uri(), &args);
    let mut stream = origin.accept().await;
    let (first, second) = (stream.expect_request().await, stream.expect_request().await);
    assert_eq!(
        (first.type_url.as_str(), &first.resource_names_subscribe[..]),
        (cds.as_str(), &["*".to_owned()][..])
    );
    assert_eq!(first.node.unwrap().id, "fleet-0");
    assert_eq!(second.type_url, eds.as_str());
    assert_eq!(second.resource_names_subscribe, ["x", "y"]);
    assert!(second.node.is_none());
    stream.send(&clusters_at("1", &["a"]));
    stream.expect_ack("1").await;
    stream.fail(tonic::Status::unavailable("going away"));
    let mut stream = origin.accept().await;
    assert_eq!(stream.expect_request().await.node.unwrap().id, "fleet-0");
    stream.expect_request().await;
    stream.send(&clusters_at("1", &["a"]));
    stream.expect_ack("1").await;
    signal(load.id().unwrap(), "TERM");
    let (code, report) = report(load).await;
    assert_eq!(
        (code, &report["answered"], &report["lost_streams"]),
        (Some(0), &1.into(), &1.into()),
        "{report}"
    );
    assert_eq!(report["first_answer"]["count"], 2);
    assert_eq!(report["causes"]["the server answered Unavailable: going away"], 1, "{report}");
    assert_eq!(report["spread"]["count"], 0, "one client alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_loaded_is_told_at_once() {
    let begun = Instant::now();
    let ran =
        run(&["load", "--server", "http://127.0.0.1:1", "--clients", "3", "--rate", "4000000000"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    ran.complains(&["could not connect to http://127.0.0.1:1: "]);
    let origin = Origin::start().await;
    let ran = run(&["load", "--transport", "sotw", "--server", &origin.uri(), "--clients", "2"]).await;
    ran.complains(&["use --transport delta"]);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let ran = run(&["load", "--server", &origin.uri(), "--clients", "2", "--timeout", "1"]).await;
    assert!(ran.stderr.ends_with(" has answered no client\n"), "{}", ran.stderr);
    for wrong in [
        ["--clients", "0"],
        ["--rate", "0"],
        ["--transport", "rest"],
        ["--duration", "5"],
        ["--timeout", "1e19"],
    ] {
        assert_eq!(run(&[&["load"], &wrong[..]].concat()).await.code, Some(2), "{wrong:?}");
    }
    assert_eq!(run(&["load", "cows"]).await.code, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_results_are_a_table_for_people() {
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], "");
    let fixed = ["load", "--server", &relay.uri(), "--clients", "5", "--duration", "100ms"];
    let ran = run(&fixed).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("TIME ") && lines[2].starts_with("first answer  5 "), "{}", ran.stdout);
    assert!(lines[3].starts_with("spread ") && lines[3].ends_with(" -"), "{}", ran.stdout);
    assert_eq!(lines[6], "clients: 5 of 5 answered; failed attempts: 0; lost streams: 0");
    let yaml = run(&[&fixed[..], &["-o", "yaml"]].concat()).await.stdout;
    assert!(yaml.lines().any(|line| line == "answered: 5"), "{yaml}");
}
