//! A relay that is killed and starts from its snapshot on disk.

use deltafan_test_support::process::run;
use deltafan_test_support::small_disk::SmallDisk;

use crate::prelude::*;

const SNAPSHOT: &str = "snapshot: {path: ./snapshot}\n";
const NOT_CONFIGURED: &str = "the snapshot is of a control plane that is not in upstream.servers; serving it until one that is has answered";

fn clusters(nonce: &str, versions: &[(&str, &str)]) -> DeltaDiscoveryResponse {
    changes(Kind::Cluster, nonce, versions, &[])
}

fn content(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
}

/// Waits until everything so far is on disk: for two looks of its thread nothing was left to write.
/// Sets have settled, and are in the file.
fn wait_until_written(relay: &Process) {
    relay.wait_for_snapshot(Duration::from_millis(2_500));
}

/// A relay that was killed with these clusters, and the address of its control plane, which is away.
async fn killed_with(has: &[(&str, &str)]) -> (Process, std::net::SocketAddr) {
    let (relay, origin, mut upstream) = relay_and_origin(SNAPSHOT).await;
    let mut client = relay.client("envoy", &["*"]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", has));
    client.response().await;
    wait_until_written(&relay);
    let address = origin.address();
    drop((origin, upstream, client));
    (relay.killed_and_restarted(|_| {}), address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_order_writes_whatever_came_last() {
    let (relay, _origin, mut upstream) = relay_and_origin(SNAPSHOT).await;
    let mut client = relay.client("envoy", &["*"]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[("a", "1")]));
    client.response().await;
    upstream.send(&clusters("2", &[("a", "2")]));
    client.response().await;
    drop((client, upstream, _origin));
    let relay = relay.restarted();
    let mut client = relay.client("envoy", &["*"]).await;
    assert_eq!(versions(&client.response().await), content(&[("a", "2")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_survive_only_if_asked_for() {
    for (keys, survives) in
        [(SNAPSHOT, false), ("snapshot: {path: ./snapshot, secrets: true, ready: false}\n", true)]
    {
        let (relay, origin, mut upstream) = relay_and_origin(keys).await;
        let mut client = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
        let (text, sds) = (b"body of the key", TypeUrl::from(Kind::Secret));
        let resources = vec![resource(&sds, "key", "1", text)];
        let secrets = DeltaDiscoveryResponse { resources, ..response(&sds, "2") };
        let answers = [(CDS, "*", clusters("1", &[("a", "1")])), (SDS, "key", secrets)];
        for (type_url, name, answer) in answers {
            client.subscribe("first", type_url, &[name]).await;
            assert_eq!(upstream.expect_request().await.type_url, type_url);
            upstream.send(&answer);
            upstream.expect_ack(&answer.nonce).await;
            client.take().await;
        }
        wait_until_written(&relay);
        let file = std::fs::read(relay.home().join("snapshot/cache.redb")).unwrap();
        assert_eq!(file.windows(text.len()).any(|window| window == text), survives);
        drop((origin, upstream, client));
        let relay = relay.killed_and_restarted(|_| {});
        assert_eq!(
            relay.admin_get("/ready").0 == 200,
            !survives,
            "`snapshot.ready` is false the second time"
        );
        let mut client = Delta::asking(&connect(&relay.uri()).await, "second", SDS, &["key"]).await;
        if survives {
            assert_eq!(versions(&client.response().await), content(&[("key", "1")]));
        } else {
            client.silence().await;
        }
    }
}

/// A group for each word before a hyphen.
const GROUPS: &str = "groups: {default: refuse, rules: [{name: fleet, match: {node.id: \"(?P<fleet>.*)-.*\"}, key: \"${fleet}\", node: {id: \"${fleet}\"}}]}\n";

#[tokio::test(flavor = "multi_thread")]
async fn each_node_group_has_its_own_content_again_with_its_first_client() {
    let (relay, mut origin, _own) = relay_and_origin(&format!("{SNAPSHOT}{GROUPS}")).await;
    let mut streams = Vec::new();
    for fleet in ["x", "y"] {
        let mut client = relay.client(&format!("{fleet}-1"), &["*"]).await;
        let mut upstream = origin.accept().await;
        assert_eq!(upstream.expect_request().await.node.unwrap().id, fleet);
        upstream.send(&clusters("1", &[(fleet, "1")]));
        client.response().await;
        streams.push((client, upstream));
    }
    wait_until_written(&relay);
    drop((origin, streams, _own));
    let relay = relay.killed_and_restarted(|_| {});
    relay.wait_for("readiness, though the own group has nothing", || relay.admin_get("/ready").0 == 200);
    let line = relay.wait_for_message("loaded the snapshot");
    assert_eq!((&line[0]["resources"], &line[0]["node_groups"]), (&0.into(), &2.into()), "{line:?}");
    let page: serde_json::Value = serde_json::from_str(&relay.admin_get("/upstreams").1).unwrap();
    assert_eq!(page["snapshot"]["loaded"]["node_groups"], 2, "{page}");
    for fleet in ["y", "x"] {
        let mut client = relay.client(&format!("{fleet}-2"), &["*"]).await;
        assert_eq!(versions(&client.response().await), content(&[(fleet, "1")]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_see_the_age_of_what_is_served() {
    let (relay, _) = killed_with(&[("a", "1")]).await;
    let (status, page) = relay.admin_get("/upstreams");
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    assert_eq!(status, 200);
    let server = &page["servers"][0];
    assert_eq!((&server["connected"], &server["active"]), (&false.into(), &true.into()));
    assert!(page["stale_seconds"].as_f64().unwrap() > 1.0, "{page}");
    assert!(page["last_answer_seconds_ago"].as_f64().unwrap() > 1.0, "{page}");
    assert_eq!(page["snapshot"]["loaded"]["resources"], 1);
    assert!(relay.metric("deltafan_upstream_stale_seconds") > 1.0);
    assert!(relay.metric("deltafan_upstream_last_answer_age_seconds") > 1.0);
    assert_eq!(relay.metric("deltafan_snapshot_loaded_resources"), 1.0);
    assert!(relay.metric("deltafan_snapshot_bytes") > 0.0);
    relay.wait_for_message("loaded the snapshot");
    relay.wait_for_message("control plane unreachable; serving cached resources");

    let command = |arguments: &[&str], path: &std::path::Path| {
        let ran = run(&[&["snapshot"], arguments, &[path.to_str().unwrap()]].concat());
        (ran.code, ran.stdout + &ran.stderr)
    };
    let (code, said) = command(&["verify"], &relay.home().join("snapshot"));
    assert!(code == Some(1) && said.contains("a relay has it open"), "{said}");
    let look = move |home: &std::path::Path| {
        let folder = home.join("snapshot");
        let (code, said) = command(&["verify"], &folder);
        assert_eq!((code, &*said), (Some(0), "intact: groups 1, types 1, records 1\n"));
        let (code, said) = command(&["show", "-o", "json"], &folder.join("cache.redb"));
        let shown: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((code, &shown["groups"][0]["types"][0]["resources"][0]["name"]), (Some(0), &"a".into()));
        assert_eq!(command(&["verify"], home).0, Some(1), "there is none");
    };
    relay.killed_and_restarted(look);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_read_only_costs_the_snapshot_until_it_is_writable() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(home.path(), "size=40m") else { return };
    disk.remount("ro");
    let mut origin = Origin::start().await;
    let keys = format!("snapshot: {{path: \"{}\"}}\n", home.path().join("snapshot").display());
    let relay = Process::behind(&origin.uri(), &keys);
    let said = relay.wait_for_message("cannot open the snapshot; running without it");
    assert!(said[0]["remedy"].as_str().unwrap().contains("writable"), "{said:?}");
    let mut upstream = origin.accept().await;
    let mut client = relay.client("envoy", &["*"]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[("a", "1")]));
    client.response().await;
    disk.remount("rw");
    relay.wait_for_message("the snapshot is written again");
    drop((origin, upstream, client));
    let relay = relay.killed_and_restarted(|_| {});
    assert_eq!(versions(&relay.client("envoy", &["*"]).await.response().await), content(&[("a", "1")]));
    // Content that is there is read, though nothing can be written.
    let read_only = |_: &std::path::Path| disk.remount("ro");
    let relay = relay.killed_and_restarted(read_only);
    assert_eq!(versions(&relay.client("envoy", &["*"]).await.response().await), content(&[("a", "1")]));
    let said = relay.wait_for_message("cannot write the snapshot; serving goes on");
    assert!(said[0]["error"].as_str().unwrap().contains("Read-only"), "{said:?}");
}

/// Its control plane is away meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_relay_has_open_is_read_when_that_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let keys = format!("snapshot: {{path: \"{}\"}}\n", home.path().join("snapshot").display());
    let (first, origin, mut upstream) = relay_and_origin(&keys).await;
    let (uri, address) = (origin.uri(), origin.address());
    let mut client = first.client("envoy", &["*"]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[("a", "1")]));
    client.response().await;
    wait_until_written(&first);
    drop((origin, upstream, client));
    let second = Process::unready_with(&uri, &keys);
    second.wait_for_message("cannot open the snapshot; running without it");
    let mut client = second.client("envoy", &["*"]).await;
    client.silence().await;
    assert_eq!(second.admin_get("/ready").0, 503);
    drop(first);
    second.wait_for_message("loaded the snapshot");
    second.wait_for("readiness", || second.admin_get("/ready").0 == 200);
    let response = client.response().await;
    assert_eq!(versions(&response), content(&[("a", "1")]));
    client.ack(&response).await;
    second
        .wait_for("the end of the fault", || second.admin_json("/upstreams")["snapshot"]["error"].is_null());
    let mut origin = Origin::listen(address).await;
    let upstream = origin.accept_asked().await;
    upstream.send(&clusters("2", &[("a", "2")]));
    assert_eq!(versions(&client.response().await), content(&[("a", "2")]));
}

/// The control plane takes streams and leaves them unanswered.
#[tokio::test(flavor = "multi_thread")]
async fn so_is_that_of_a_node_group_whose_client_waits_for_it() {
    let home = tempfile::tempdir().unwrap();
    let keys = format!("snapshot: {{path: \"{}\"}}\n{GROUPS}", home.path().join("snapshot").display());
    let (first, mut origin, own) = relay_and_origin(&keys).await;
    let mut of_first = first.client("x-1", &["*"]).await;
    let upstream = origin.accept_asked().await;
    upstream.send(&clusters("1", &[("a", "1"), ("b", "1")]));
    of_first.response().await;
    wait_until_written(&first);
    drop((own, upstream, of_first));
    let second = Process::unready_with(&origin.uri(), &keys);
    let mut client = second.client("x-2", &["*"]).await;
    client.silence().await;
    drop(first);
    assert_eq!(versions(&client.response().await), content(&[("a", "1"), ("b", "1")]));
    // Streams before are of the other relay, of the second one's own group, or of the time before the file was read.
    let claimed = async {
        let mut held = Vec::new();
        loop {
            let mut stream = origin.accept().await;
            let request = tokio::time::timeout(MOMENT, stream.next_request()).await;
            held.push(stream);
            match request {
                Ok(Some(request)) if !request.initial_resource_versions.is_empty() => {
                    return request.initial_resource_versions;
                }
                _ => {}
            }
        }
    };
    let claimed = tokio::time::timeout(Duration::from_secs(10), claimed).await.expect("a new stream");
    assert_eq!(claimed.values().collect::<Vec<_>>(), ["1", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_a_control_plane_that_is_not_configured_is_told() {
    let (relay, address) = killed_with(&[("a", "1")]).await;
    let before = format!("http://{address}");
    assert_eq!(relay.admin_json("/upstreams")["snapshot"]["loaded"]["from"], before);
    let from = before.clone();
    let moved = move |home: &std::path::Path| {
        let config = home.join("relay.yaml");
        let text = std::fs::read_to_string(&config).unwrap();
        assert!(text.contains(&from), "{text}");
        std::fs::write(&config, text.replace(&from, "http://127.0.0.1:1")).unwrap();
    };
    assert!(relay.said(NOT_CONFIGURED).is_empty());
    let relay = relay.killed_and_restarted(moved);
    assert_eq!(versions(&relay.client("envoy", &["*"]).await.response().await), content(&[("a", "1")]));
    assert_eq!(relay.admin_json("/upstreams")["snapshot"]["loaded"]["from"], before);
    let said = relay.wait_for_message(NOT_CONFIGURED);
    let field = |name: &str| said[0][name].as_str().unwrap_or_default().to_owned();
    assert_eq!((said.len(), field("level"), field("from")), (1, "WARN".to_owned(), before));
    assert!(field("configured").contains("http://127.0.0.1:1"), "{said:?}");
}
