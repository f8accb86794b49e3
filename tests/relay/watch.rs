//! `deltafan watch`, by the real binary.

use std::process::Stdio;

use deltafan_test_support::certificates::{Authority, put};
use deltafan_test_support::process::{program, signal};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use super::admin_commands::run;
use crate::prelude::*;

/// A watch that runs.
struct Watching {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: Lines<BufReader<ChildStderr>>,
}

impl Watching {
    fn start(server: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.arg("watch").args(args).args(["--server", server]).kill_on_drop(true);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let err = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, out, err }
    }

    /// The next line of stdout.
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.out.next_line()).await.expect("a line in time");
        line.unwrap().expect("a line, not the end")
    }

    /// Cells of the next line, without the time.
    async fn row(&mut self) -> Vec<String> {
        self.line().await.split_whitespace().skip(1).map(str::to_owned).collect()
    }

    /// Event and name of the next lines, in any order.
    async fn events(&mut self, count: usize) -> Vec<String> {
        let mut events = Vec::new();
        for _ in 0..count {
            let row = self.row().await;
            events.push(format!("{} {}", row[0], row[2]));
        }
        events.sort();
        events
    }

    /// Whether nothing is printed for a moment.
    async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(MOMENT, self.out.next_line()).await.is_err()
    }

    async fn told(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.err.next_line()).await.expect("a line in time");
        line.unwrap().expect("a line, not the end")
    }

    async fn signal(&mut self, name: &str) -> Option<i32> {
        signal(self.child.id().unwrap(), name);
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("its end").unwrap().code()
    }
}

fn delta(nonce: &str, resources: &[(&str, &str)], removed: &[&str]) -> DeltaDiscoveryResponse {
    changes(Kind::Cluster, nonce, resources, removed)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_a_line_over_each_transport() {
    for transport in ["delta", "sotw", "rest"] {
        let relay = Process::start(&[("clusters.yaml", &clusters(["a", "b"]))], "");
        let mut watch = Watching::start(&relay.uri(), &["cds", "--transport", transport]);
        assert_eq!(watch.row().await, ["EVENT", "TYPE", "NAME", "VERSION", "BYTES"]);
        let first = watch.line().await;
        let cells: Vec<&str> = first.split_whitespace().collect();
        assert!(cells[0].starts_with("20") && cells[0].ends_with('Z') && cells[0].len() == 24, "{first}");
        assert_eq!((cells[1], cells[2], cells[3]), ("added", "cds", "a"), "{first}");
        assert!(cells[5].parse::<usize>().unwrap() > 40, "{first}");
        assert_eq!(watch.events(1).await, ["added b"]);
        relay.write("clusters.yaml", &clusters(["a", "b"]).replacen("1s", "2s", 1));
        assert_eq!(watch.events(1).await, ["changed a"], "{transport}");
        relay.write("clusters.yaml", &clusters(["b", "c"]));
        assert_eq!(watch.events(2).await, ["added c", "removed a"], "{transport}");
        assert!(watch.is_quiet().await);
        assert_eq!(watch.signal(if transport == "delta" { "INT" } else { "TERM" }).await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_a_document_in_json_and_yaml() {
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], "");
    let mut watch = Watching::start(&relay.uri(), &["cds", "a", "none", "-o", "json"]);
    let mut documents: Vec<Json> = Vec::new();
    for _ in 0..2 {
        documents.push(serde_json::from_str(&watch.line().await).unwrap());
    }
    documents.sort_by_key(|document| document["name"].as_str().unwrap().to_owned());
    assert_eq!((&documents[0]["event"], &documents[0]["type_url"]), (&"added".into(), &CDS.into()));
    assert_eq!(documents[0]["resource"]["connectTimeout"], "1s");
    assert_eq!(documents[1]["event"], "absent");
    relay.write("clusters.yaml", &clusters(["none"]));
    for (event, name) in [("added", "none"), ("removed", "a")] {
        let document: Json = serde_json::from_str(&watch.line().await).unwrap();
        assert_eq!((&document["event"], &document["name"]), (&event.into(), &name.into()), "{document}");
        assert_eq!(document["resource"].is_null(), event == "removed");
    }
    drop(watch);
    let yaml = run(&["watch", "cds", "--server", &relay.uri(), "-o", "yaml", "--for", "1s"]).await;
    assert_eq!((yaml.code, yaml.stderr.as_str()), (Some(0), ""));
    assert!(yaml.stdout.starts_with("---\n") && yaml.stdout.contains("\nevent: added\n"), "{}", yaml.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_is_told_and_opened_again_with_what_is_held() {
    let mut origin = Origin::start().await;
    let mut watch = Watching::start(&origin.uri(), &["cds"]);
    watch.line().await;
    let mut stream = origin.accept().await;
    let request = stream.expect_request().await;
    assert!(request.initial_resource_versions.is_empty());
    assert_eq!(request.node.unwrap().id, "deltafan-watch");
    stream.deliver(&delta("1", &[("a", "1"), ("b", "1")], &[])).await;
    assert_eq!(watch.events(2).await, ["added a", "added b"]);
    stream.fail(tonic::Status::unavailable("going \u{1b}[2J away"));
    let told = watch.told().await;
    let start = "deltafan: the server answered Unavailable: going \\u{1b}[2J away; connecting again in ";
    assert!(told.starts_with(start) && told.ends_with(" s"), "{told}");

    let mut stream = origin.accept().await;
    let held = stream.expect_request().await.initial_resource_versions;
    assert_eq!((held["a"].as_str(), held["b"].as_str(), held.len()), ("1", "1", 2));
    // A server that looks at no versions, and does not say that `b` is gone.
    stream.deliver(&delta("2", &[("a", "1"), ("c", "1")], &[])).await;
    assert_eq!(watch.events(1).await, ["added c"]);
    assert_eq!(watch.told().await, "deltafan: connected again");
    stream.send(&delta("3", &[], &["b"]));
    assert_eq!(watch.events(1).await, ["removed b"]);
    stream.close();
    assert!(watch.told().await.starts_with("deltafan: the server ended the stream; connecting again in "));
    let address = origin.address();
    drop(origin);
    assert!(watch.told().await.contains("could not connect to "));
    let mut origin = Origin::listen(address).await;
    let stream = origin.accept_asked().await;
    stream.send(&delta("1", &[("a", "2")], &[]));
    assert_eq!(watch.events(1).await, ["changed a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_the_server_cannot_be_asked_or_the_time_is_over() {
    let origin = Origin::start().await;
    let ran = run(&["watch", "cds", "--transport", "sotw", "--server", &origin.uri()]).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["Unimplemented", "--transport delta"]);
    let ran = run(&["watch", "cds", "--server", "http://127.0.0.1:1"]).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["could not connect to http://127.0.0.1:1: "]);
    let ran = run(&["watch", "cds", "--server", &origin.uri(), "--for", "6s"]).await;
    assert_eq!(ran.code, Some(1), "no answer ever came");
    let lines = format!(
        "deltafan: connected; the server has not answered yet\ndeltafan: {} has not answered\n",
        origin.uri()
    );
    assert_eq!(ran.stderr, lines);
    let ran = run(&["watch", "cds", "--server", &origin.uri(), "--for", "6"]).await;
    assert_eq!(ran.code, Some(2));
    ran.complains(&["has no unit; durations are written `300ms`, `20s`"]);

    // A relay says what it lacks.
    let relay = Process::behind(&origin.uri(), "");
    let ran = run(&["watch", "cds", "--server", &relay.uri()]).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["no client of it asks for it", "--subscribe"]);
    let ran = run(&["watch", "cds", "--server", &relay.uri(), "--transport", "rest", "--for", "2s"]).await;
    assert_eq!(ran.code, Some(1));
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines[0].starts_with("deltafan: no answer yet: the control plane has not answered"), "{lines:?}");
    let end = format!("deltafan: {} has not answered: the control plane has not answered", relay.uri());
    assert!(lines[1].starts_with(&end), "{lines:?}");
}

/// An answer without resources is one.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_answered_succeeds_without_a_change() {
    let mut origin = Origin::start().await;
    let uri = origin.uri();
    let watch = tokio::spawn(async move { run(&["watch", "cds", "--server", &uri, "--for", "2s"]).await });
    let stream = origin.accept_asked().await;
    stream.send(&delta("1", &[], &[]));
    let ran = watch.await.unwrap();
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
}

/// The system accepts connections for a server that does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_accepts_is_no_success_and_no_connection() {
    let frozen = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = frozen.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let authority = put(folder.path(), "ca.pem", &Authority::new("servers").pem());
    let (plain, secure) = (format!("http://{address}"), format!("https://{address}"));
    let secure = ["--server", &secure, "--ca-file", authority.to_str().unwrap()];
    for (transport, server, is_connected) in [
        ("delta", &["--server", &*plain][..], false),
        ("rest", &["--server", &plain], true),
        ("rest", &secure, false),
    ] {
        let args = [&["watch", "cds", "--transport", transport, "--for", "6s"][..], server].concat();
        let ran = run(&args).await;
        assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.ends_with(" has not answered\n"), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.contains("connected"), is_connected, "{args:?}: {}", ran.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_nobody_reads() {
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], "");
    let mut watch = Watching::start(&relay.uri(), &["cds"]);
    assert_eq!(watch.events(2).await.len(), 2);
    let Watching { mut child, out, .. } = watch;
    drop(out);
    for at in 0..200 {
        relay.write("clusters.yaml", &clusters([format!("c{at}")]));
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(500), child.wait()).await {
            assert_eq!(ended.unwrap().code(), Some(0));
            return;
        }
    }
    panic!("it goes on");
}
