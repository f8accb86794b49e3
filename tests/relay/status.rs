//! `deltafan status`, by the real binary: whether all is well, and what is not.
use std::io::Write as _;
use std::net::TcpStream;

use deltafan_test_support::client::LDS;
use deltafan_test_support::process::http1;

use super::admin_commands::{admin_options, ask, run};
use crate::prelude::*;

/// Waits until a check has a state, and returns the exit status and the check.
pub(crate) async fn wait_for(relay: &Process, check: &str, state: &str) -> (Option<i32>, Json) {
    let deadline = std::time::Instant::now() + deltafan_test_support::PATIENCE;
    loop {
        let ran = ask(relay, &["status", "-o", "json"]).await;
        let status: Json = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        assert_eq!(status["well"], json!(ran.code == Some(0)), "{status}");
        let checks = status["checks"].as_array().unwrap();
        let found = checks.iter().find(|one| one["check"] == check).unwrap_or_else(|| panic!("{status}"));
        if found["state"] == state {
            return (ran.code, found.clone());
        }
        assert!(std::time::Instant::now() < deadline, "{check} is not {state}: {status}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_says_whether_all_is_well_and_what_is_not() {
    let (relay, origin, mut upstream) = relay_and_origin("").await;
    let mut client = relay.client("client", &["*"]).await;
    upstream.answer(&clusters_at("17", &["a"])).await;
    client.take().await;
    relay.wait_for("the ACK", || relay.metric("deltafan_clients{type=\"cds\",state=\"synced\"}") == 1.0);
    let ran = ask(&relay, &["status"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert!(ran.stdout.starts_with("all is well: deltafan 0."), "{}", ran.stdout);
    let line = |begins: &str| {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        ran.stdout
            .lines()
            .map(words)
            .find(|line| line.starts_with(begins))
            .unwrap_or_else(|| panic!("{}", ran.stdout))
    };
    let source = line("ok control plane");
    assert!(source.contains(&origin.uri()) && source.contains(", delta, answered "), "{source}");
    assert_eq!(line("ok clients"), "ok clients open streams and polls: 1; synced 1");
    assert_eq!(line("ok rejections"), "ok rejections none");

    upstream.deliver(&clusters_at("18", &["a"])).await;
    let told = client.response().await;
    client.nack(&told).await;
    let (code, rejections) = wait_for(&relay, "rejections", "FAULT").await;
    assert_eq!(code, Some(3));
    let finding = "cds by 1 of 1 clients; the newest is of cds 18 by client: rejected by the test; see `deltafan nacks`";
    assert_eq!(rejections["finding"], finding);
    assert!(ask(&relay, &["status"]).await.stdout.starts_with("not well: deltafan 0."));
    upstream.deliver(&clusters_at("19", &["a"])).await;
    client.take().await;
    assert_eq!(wait_for(&relay, "rejections", "ok").await.0, Some(0));

    relay.reconfigure("nonsense: 1\n");
    let (code, configuration) = wait_for(&relay, "configuration", "FAULT").await;
    assert!(configuration["finding"].as_str().unwrap().starts_with("the file is wrong"), "{configuration}");
    assert_eq!(code, Some(3));
    relay.reconfigure(&relay.config_with(""));
    assert_eq!(wait_for(&relay, "configuration", "ok").await.0, Some(0));

    drop((upstream, origin));
    let (code, away) = wait_for(&relay, "control plane", "FAULT").await;
    assert_eq!(code, Some(3));
    let finding = away["finding"].as_str().unwrap();
    assert!(finding.contains(" is not connected: ") && finding.contains("out of date for "), "{away}");
}

/// Nothing else would tell that all clients still have the state before it.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_was_refused_is_a_fault_until_a_usable_one_comes() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let mut client = relay.client("client", &["*"]).await;
    upstream.answer(&clusters_at("17", &["a"])).await;
    client.take().await;
    assert_eq!(wait_for(&relay, "control plane", "ok").await.0, Some(0));

    let mut twice = clusters_at("18", &["a"]);
    twice.resources.push(twice.resources[0].clone());
    upstream.send(&twice);
    let (code, fault) = wait_for(&relay, "control plane", "FAULT").await;
    let finding = fault["finding"].as_str().unwrap();
    assert_eq!(code, Some(3));
    assert!(
        finding.contains(": cds for ") && finding.ends_with("resource `a` is in one response twice"),
        "{finding}"
    );
    let refused = relay.admin_json("/upstreams")["refused"][0].take();
    assert_eq!((&refused["type"], &refused["type_url"]), (&json!("cds"), &json!(CDS)), "{refused}");
    assert_eq!(relay.metric("deltafan_upstream_refused_types"), 1.0);

    upstream.send(&clusters_at("19", &["a"]));
    assert_eq!(wait_for(&relay, "control plane", "ok").await.0, Some(0));
    assert_eq!(relay.metric("deltafan_upstream_refused_types"), 0.0);
}

const ONLY_GOOD: &str = "authorization: {rules: [{peers: [127.0.0.0/8], node_ids: [\"good-*\"]}]}\n";

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_refused_are_named_in_the_log_and_nothing_is_well_meanwhile() {
    let relay = relay(ONLY_GOOD);
    let denied = |node: &str| {
        let lines = relay.wait_for_message("denied to a client");
        assert_eq!((&lines[0]["node"], &lines[0]["peer"]), (&json!(node), &json!("127.0.0.1")), "{lines:?}");
    };
    assert_eq!(wait_for(&relay, "refusals", "ok").await.0, Some(0));
    let channel = connect(&relay.uri()).await;
    Delta::asking(&channel, "bad-1", CDS, &["*"]).await.end().await;
    denied("bad-1");
    Sotw::asking(&channel, "bad-2", CDS, &[]).await.end().await;
    denied("bad-2");
    let poll = Http1::connect(relay.listener).poll("clusters", r#"{"node": {"id": "bad-3"}}"#);
    assert_eq!(poll.status, 403);
    denied("bad-3");
    let (code, refusals) = wait_for(&relay, "refusals", "FAULT").await;
    let finding = "denied by authorization or groups: node_id 3; the log has the clients and the remedy";
    assert_eq!((code, &refusals["finding"]), (Some(3), &json!(finding)));

    // The most frequent mistakes of a bootstrap.
    let post =
        format!("POST {DELTA_ADS} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let (status, told) = http1(relay.listener, &post);
    assert!(status == 426 && told.contains("http2_protocol_options"), "{told}");
    let mut tls = TcpStream::connect(relay.listener).unwrap();
    let mut lines = Vec::new();
    tls.write_all(b"\x16\x03\x01\x02\0\x01").unwrap();
    for (message, remedy) in [
        ("a client sends gRPC over HTTP/1", "http2_protocol_options"),
        ("a client speaks TLS to a listener without `tls`", "transport_socket"),
    ] {
        relay.wait_for(message, || {
            lines.extend(relay.events());
            lines.iter().any(|line| {
                let text = line["message"].as_str().unwrap_or_default();
                text.starts_with(message) && text.contains(remedy) && line["peer"] == "127.0.0.1"
            })
        });
    }
    let refusals = wait_for(&relay, "refusals", "FAULT").await.1;
    let finding = refusals["finding"].as_str().unwrap();
    assert!(
        finding.contains("TLS handshakes: to_cleartext 1; ") && finding.contains("gRPC over HTTP/1: 1; "),
        "{finding}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn r_relay_04_a_directory_with_a_broken_file_at_start_serves_the_rest() {
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], "");
    let broken = "resources/broken.yaml";
    let relay =
        relay.killed_and_restarted(|home| std::fs::write(home.join(broken), "resources: [1").unwrap());
    let channel = connect(&relay.uri()).await;
    // It may hold resources of that file.
    let mut resuming = Delta::open(&channel, DELTA_ADS).await;
    let resumption = || DeltaDiscoveryRequest {
        initial_resource_versions: [("of-the-file".to_owned(), "17".to_owned())].into(),
        ..subscription("resuming", CDS, &["*"])
    };
    resuming.send(resumption()).await;
    let mut fresh = Delta::asking(&channel, "fresh", CDS, &["*"]).await;
    assert_eq!(names(&fresh.take().await), ["a"]);
    let others = Delta::asking(&channel, "others", LDS, &["*"]).await;

    let (code, directory) = wait_for(&relay, "directory", "FAULT").await;
    assert!(directory["finding"].as_str().unwrap().contains("in force as they are: 1;"), "{directory}");
    assert_eq!(code, Some(3));
    let (_, ready) = wait_for(&relay, "ready", "FAULT").await;
    assert!(ready["finding"].as_str().unwrap().contains("broken.yaml: "), "{ready}");
    relay.wait_for_message("files of the directory were never readable: clients that hold nothing are served the others, all other clients wait until these are corrected or removed");
    let get = ["get", "lds", "--subscribe", "--server", &relay.uri(), "--timeout", "15"];
    let asked = run(&get).await;
    assert_eq!(asked.code, Some(1));
    assert!(asked.stderr.contains("a file of the relay's directory cannot be read"), "{}", asked.stderr);

    let ended = resuming.end().await;
    assert!(ended.message().contains("a file of the relay's directory cannot be read"), "{ended}");

    relay.write("broken.yaml", &clusters(["b"]));
    wait_for(&relay, "directory", "ok").await;
    let mut resuming = Delta::open(&channel, DELTA_ADS).await;
    resuming.send(resumption()).await;
    let mut came = names(&resuming.take().await);
    came.sort_unstable();
    assert_eq!(came, ["a", "b"]);
    assert_eq!(resuming.take().await.removed_resources, ["of-the-file"]);
    assert_eq!(names(&fresh.take().await), ["b"]);
    drop(others);
    assert_eq!(wait_for(&relay, "directory", "ok").await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_relays_are_asked_and_compared() {
    let relays = [(); 3].map(|()| Process::start(&[("clusters.yaml", &clusters(["a", "b"]))], ""));
    let mut named: Vec<String> = relays.iter().map(|relay| format!("http://{}", relay.admin)).collect();
    named.push(named[0].clone());
    let ran = run(&[&["status"], &*admin_options(&named)].concat()).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    named.pop();
    assert_eq!(
        ran.stdout.matches("\nall is well: deltafan ").count(),
        3,
        "one is named twice: {}",
        ran.stdout
    );
    assert!(
        ran.stdout.ends_with("\n==> the relays that answered serve equal resources <==\n"),
        "{}",
        ran.stdout
    );

    relays[2].write("clusters.yaml", &clusters(["a", "c"]));
    relays[2].wait_for("the change", || relays[2].admin_get("/resources?name=c").1.contains("\"present\""));
    let ran = run(&[&["resources", "--type", "cds"], &*admin_options(&named)].concat()).await;
    let (_, compared) =
        ran.stdout.split_once("==> the relays that answered serve different resources <==\n").unwrap();
    let mut rows: Vec<Vec<&str>> = compared.lines().map(|line| line.split_whitespace().collect()).collect();
    rows[1..].sort_by_key(|row| row.len());
    assert_eq!((rows[0].len(), rows.len(), rows[1][3]), (4, 3, &*named[2]), "{compared}");
    assert_eq!(
        (&rows[2][..2], &rows[2][3..]),
        (&["cds", "2"][..], &[&*format!("{},", named[0]), &*named[1]][..])
    );
    let fingerprint =
        |relay: &Process| relay.admin_json("/resources?limit=0")["fingerprints"][0]["digest"].clone();
    assert_eq!(fingerprint(&relays[0]), fingerprint(&relays[1]));
    assert_ne!(fingerprint(&relays[0]), fingerprint(&relays[2]));
    let status = async |named: &[String]| {
        let ran = run(&[&["status", "-o", "json"], &*admin_options(named)].concat()).await;
        (ran.code, serde_json::from_str::<Json>(&ran.stdout).unwrap())
    };
    let (code, answers) = status(&named).await;
    assert_eq!(code, Some(0), "a difference is no fault: {answers}");
    assert_eq!(answers[2]["answer"]["fingerprints"][0]["digest"], fingerprint(&relays[2]));

    relays[2].write("clusters.yaml", "resources: [1");
    wait_for(&relays[2], "directory", "FAULT").await;
    let (code, answers) = status(&named).await;
    let well = |at: usize| answers[at]["answer"]["well"].clone();
    assert_eq!((code, [well(0), well(1), well(2)]), (Some(3), [true, true, false].map(Json::from)));
    named.push(format!(
        "http://{}",
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    ));
    let (code, answers) = status(&named).await;
    assert_eq!((code, &answers[3]["relay"]), (Some(1), &json!(named[3])), "worse than a fault");
    assert!(answers[3]["error"].as_str().unwrap().contains("could not connect"), "{answers}");
    assert_eq!(answers[2]["answer"]["well"], false);
}
