//! A relay that is killed and starts from its snapshot on disk.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest};
use deltafan::resource::{Kind, TypeUrl};
use deltafan_test_support::client::{
    CDS, DELTA_ADS, Delta, EDS, SDS, SOTW_ADS, Sotw, connect, node, subscription, versions,
};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response};
use deltafan_test_support::process::{Process, program};
use deltafan_test_support::small_disk::SmallDisk;

const SNAPSHOT: &str = "snapshot: {path: ./snapshot}\n";
const NOT_CONFIGURED: &str = "the snapshot is of a control plane that is not in upstream.servers; serving it until one that is has answered";

/// A relay with a snapshot behind a control plane, and the stream between them once a client has asked.
async fn relay(keys: &'static str) -> (Process, Origin, OriginStream) {
    let mut origin = Origin::start().await;
    let relay = Process::behind(&origin.uri(), keys);
    let stream = origin.accept().await;
    (relay, origin, stream)
}

fn clusters(nonce: &str, versions: &[(&str, &str)]) -> DeltaDiscoveryResponse {
    of(Kind::Cluster, nonce, versions)
}

fn of(kind: Kind, nonce: &str, versions: &[(&str, &str)]) -> DeltaDiscoveryResponse {
    let type_url: TypeUrl = kind.into();
    let body = |name: &str, version: &str| format!("body of {name} at {version}");
    let resources = versions
        .iter()
        .map(|(name, version)| resource(&type_url, name, version, body(name, version).as_bytes()));
    DeltaDiscoveryResponse { resources: resources.collect(), ..response(&type_url, nonce) }
}

fn content(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
}

/// Waits until everything so far is on disk: for two looks of its thread nothing was left to write.
/// Sets have settled, and are in the file.
fn wait_until_written(relay: &Process) {
    relay.wait_for_snapshot(Duration::from_millis(2_500));
}

async fn kill(relay: Process) -> Process {
    relay.killed_and_restarted(|_| {})
}

async fn sotw_clusters(relay: &Process) -> usize {
    let mut stream = Sotw::open(&connect(&relay.uri()).await, SOTW_ADS).await;
    let request =
        DiscoveryRequest { node: Some(node("sotw")), type_url: CDS.to_owned(), ..Default::default() };
    stream.send(request).await;
    stream.response().await.resources.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_serves_its_clients_while_the_control_plane_is_away() {
    let (relay, origin, mut upstream) = relay(SNAPSHOT).await;
    let mut client = Delta::asking(&connect(&relay.uri()).await, "first", CDS, &["*"]).await;
    client.subscribe("first", EDS, &["e"]).await;
    let mut asked = 0;
    while asked < 2 {
        asked += usize::from(!upstream.expect_request().await.type_url.is_empty());
    }
    upstream.send(&clusters("1", &[("a", "1"), ("b", "1")]));
    upstream.send(&of(Kind::Endpoint, "2", &[("e", "7")]));
    let mut held = BTreeMap::new();
    while held.len() < 3 {
        let response = client.response().await;
        held.extend(versions(&response));
        client.ack(&response).await;
    }
    // A set that has settled is taken for what there is, without a client that asks for proof.
    relay.wait_for_snapshot(Duration::from_millis(7_500));
    let address = origin.address();
    drop((origin, upstream, client));
    let relay = kill(relay).await;
    relay.wait_for("readiness", || relay.admin_get("/ready").0 == 200);

    // New clients, in both protocols.
    let mut client = Delta::asking(&connect(&relay.uri()).await, "second", CDS, &["*"]).await;
    client.subscribe("second", EDS, &["e"]).await;
    let mut held = BTreeMap::new();
    while held.len() < 3 {
        let response = client.response().await;
        assert!(response.removed_resources.is_empty());
        held.extend(versions(&response));
        client.ack(&response).await;
    }
    assert_eq!(held, content(&[("a", "1"), ("b", "1"), ("e", "7")]));
    assert_eq!(sotw_clusters(&relay).await, 2);

    // The control plane is back: it is told the versions, and clients that hold them are sent no resource.
    let mut origin = Origin::listen(address).await;
    let mut upstream = origin.accept().await;
    let back = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    let initial = HashMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "1".to_owned())]);
    back.send(DeltaDiscoveryRequest {
        initial_resource_versions: initial,
        ..subscription("first", CDS, &["*"])
    })
    .await;
    let mut claimed = HashMap::new();
    while claimed.is_empty() {
        let request = upstream.expect_request().await;
        if request.type_url == CDS {
            claimed = request.initial_resource_versions;
        }
    }
    assert!(claimed.values().all(|version| version == "1") && !claimed.is_empty(), "{claimed:?}");
}

/// A client of all clusters that holds these versions.
async fn returning(relay: &Process, held: &[(&str, &str)]) -> Delta {
    let client = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
    client
        .send(DeltaDiscoveryRequest {
            initial_resource_versions: content(held).into_iter().collect(),
            ..subscription("returning", CDS, &["*"])
        })
        .await;
    client
}

/// Answers a relay that asks for clusters as a control plane does that has these: with what differs from the versions that it is
/// told. Returns when `done` says so.
async fn answer_until(
    mut upstream: OriginStream,
    origin: &mut Origin,
    has: &[(&str, &str)],
    done: impl AsyncFnOnce(),
) {
    let has = content(has);
    let serve = async {
        let mut nonce = 0;
        loop {
            let Some(request) = upstream.next_request().await else {
                upstream = origin.accept().await;
                continue;
            };
            if request.type_url != CDS || !request.response_nonce.is_empty() {
                continue;
            }
            let told = &request.initial_resource_versions;
            let news: Vec<(&str, &str)> = has
                .iter()
                .filter(|(name, version)| told.get(*name) != Some(version))
                .map(|(name, version)| (name.as_str(), version.as_str()))
                .collect();
            let removed = told.keys().filter(|name| !has.contains_key(*name)).cloned().collect();
            nonce += 1;
            let response = clusters(&nonce.to_string(), &news);
            upstream.send(&DeltaDiscoveryResponse { removed_resources: removed, ..response });
        }
    };
    tokio::select! {
        () = serve => {}
        () = done() => {}
    }
}

/// A relay that was killed with these clusters, and the address of its control plane, which is away.
async fn killed_with(has: &[(&str, &str)]) -> (Process, std::net::SocketAddr) {
    let (relay, origin, mut upstream) = relay(SNAPSHOT).await;
    let mut client = returning(&relay, &[]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", has));
    client.response().await;
    wait_until_written(&relay);
    let address = origin.address();
    drop((origin, upstream, client));
    (kill(relay).await, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hold_what_is_so_are_sent_no_resource_and_lose_what_is_gone() {
    let before = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")];
    let (relay, address) = killed_with(&before).await;
    // It came in the second that the disk lacks: nobody is told that it is gone.
    let mut ahead = returning(&relay, &[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("new", "1")]).await;
    let mut current = returning(&relay, &before).await;
    ahead.silence().await;
    let mut origin = Origin::listen(address).await;
    let upstream = origin.accept().await;
    let after = [("a", "1"), ("b", "2"), ("d", "1"), ("new", "1")];
    answer_until(upstream, &mut origin, &after, async || {
        for (client, is_ahead) in [(&mut current, false), (&mut ahead, true)] {
            let (mut told_of, mut removed) = (BTreeMap::new(), Vec::new());
            while removed.is_empty() || !told_of.contains_key("b") {
                let response = client.response().await;
                told_of.extend(versions(&response));
                removed.extend(response.removed_resources.clone());
                client.ack(&response).await;
            }
            assert_eq!(removed, ["c"]);
            told_of.remove("b");
            if !is_ahead {
                assert_eq!(told_of.remove("new").as_deref(), Some("1"));
            }
            assert_eq!(told_of, BTreeMap::new(), "no resource that the client holds");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_order_writes_whatever_came_last() {
    let (relay, _origin, mut upstream) = relay(SNAPSHOT).await;
    let mut client = returning(&relay, &[]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[("a", "1")]));
    client.response().await;
    upstream.send(&clusters("2", &[("a", "2")]));
    client.response().await;
    drop((client, upstream, _origin));
    let relay = relay.restarted();
    let mut client = returning(&relay, &[]).await;
    assert_eq!(versions(&client.response().await), content(&[("a", "2")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_survive_only_if_asked_for() {
    for (keys, survives) in
        [(SNAPSHOT, false), ("snapshot: {path: ./snapshot, secrets: true, ready: false}\n", true)]
    {
        let (relay, origin, mut upstream) = relay(keys).await;
        let mut client = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
        let answers =
            [(CDS, "*", clusters("1", &[("a", "1")])), (SDS, "key", of(Kind::Secret, "2", &[("key", "1")]))];
        for (type_url, name, answer) in answers {
            client.subscribe("first", type_url, &[name]).await;
            assert_eq!(upstream.expect_request().await.type_url, type_url);
            upstream.send(&answer);
            upstream.expect_ack(&answer.nonce).await;
            client.take().await;
        }
        wait_until_written(&relay);
        let text = b"body of key at 1";
        let file = std::fs::read(relay.home().join("snapshot/cache.redb")).unwrap();
        assert_eq!(file.windows(text.len()).any(|window| window == text), survives);
        drop((origin, upstream, client));
        let relay = kill(relay).await;
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

async fn subscribed(relay: &Process, id: &str) -> Delta {
    Delta::asking(&connect(&relay.uri()).await, id, CDS, &["*"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_group_has_its_own_content_again_with_its_first_client() {
    let (relay, mut origin) = {
        let origin = Origin::start().await;
        let (uri, keys) = (origin.uri(), format!("snapshot: {{path: ./snapshot}}\n{GROUPS}"));
        let relay = Process::behind(&uri, &keys);
        (relay, origin)
    };
    let _own = origin.accept().await;
    let mut streams = Vec::new();
    for fleet in ["x", "y"] {
        let mut client = subscribed(&relay, &format!("{fleet}-1")).await;
        let mut upstream = origin.accept().await;
        assert_eq!(upstream.expect_request().await.node.unwrap().id, fleet);
        upstream.send(&clusters("1", &[(fleet, "1")]));
        client.response().await;
        streams.push((client, upstream));
    }
    wait_until_written(&relay);
    drop((origin, streams, _own));
    let relay = kill(relay).await;
    relay.wait_for("readiness, though the own group has nothing", || relay.admin_get("/ready").0 == 200);
    let line = relay.wait_for_message("loaded the snapshot");
    let figures = ["resources", "node_groups", "in_node_groups"].map(|field| &line[0][field]);
    assert_eq!(figures, [&2.into(), &2.into(), &2.into()] as [&serde_json::Value; 3], "{line:?}");
    let page: serde_json::Value = serde_json::from_str(&relay.admin_get("/upstreams").1).unwrap();
    assert_eq!(page["snapshot"]["loaded"]["node_groups"], 2, "{page}");
    for fleet in ["y", "x"] {
        let mut client = subscribed(&relay, &format!("{fleet}-2")).await;
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
    assert!(relay.metric("deltafan_cache_age_seconds") > 1.0);
    assert_eq!(relay.metric("deltafan_snapshot_loaded_resources"), 1.0);
    assert!(relay.metric("deltafan_snapshot_bytes") > 0.0);
    relay.wait_for_message("loaded the snapshot");
    relay.wait_for_message("control plane unreachable; serving cached resources");

    let command = |arguments: &[&str], path: &std::path::Path| {
        let mut command = std::process::Command::new(program());
        let output = command.arg("snapshot").args(arguments).arg(path).output().unwrap();
        let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), texts.concat())
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
async fn a_snapshot_that_cannot_be_used_costs_nothing_but_itself() {
    let (relay, address) = killed_with(&[("a", "1")]).await;
    let spoil = |home: &std::path::Path| {
        let file = home.join("snapshot/cache.redb");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    };
    let relay = relay.killed_and_restarted(spoil);
    let said = relay.wait_for_message("cannot open the snapshot; running without it");
    assert!(said[0]["remedy"].as_str().unwrap().contains("moved aside"), "{said:?}");
    let mut origin = Origin::listen(address).await;
    let mut client = returning(&relay, &[]).await;
    let upstream = origin.accept_asked().await;
    upstream.send(&clusters("1", &[("a", "2")]));
    assert_eq!(versions(&client.response().await), content(&[("a", "2")]));
    relay.wait_for("a transaction", || relay.metric("deltafan_snapshot_writes_total") > 0.0);
    assert!(relay.home().join("snapshot/cache.redb.corrupt").exists());
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
    let mut client = returning(&relay, &[]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[("a", "1")]));
    client.response().await;
    disk.remount("rw");
    relay.wait_for_message("the snapshot is written again");
    drop((origin, upstream, client));
    let relay = kill(relay).await;
    assert_eq!(versions(&returning(&relay, &[]).await.response().await), content(&[("a", "1")]));
    // Content that is there is read, though nothing can be written.
    let read_only = |_: &std::path::Path| disk.remount("ro");
    let relay = relay.killed_and_restarted(read_only);
    assert_eq!(versions(&returning(&relay, &[]).await.response().await), content(&[("a", "1")]));
    let said = relay.wait_for_message("cannot write the snapshot; serving goes on");
    assert!(said[0]["error"].as_str().unwrap().contains("Read-only"), "{said:?}");
}

/// Its control plane is away meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_relay_has_open_is_read_when_that_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let keys = format!("snapshot: {{path: \"{}\"}}\n", home.path().join("snapshot").display());
    let mut origin = Origin::start().await;
    let (uri, address) = (origin.uri(), origin.address());
    let first = Process::behind(&uri, &keys);
    let mut upstream = origin.accept().await;
    let mut client = returning(&first, &[]).await;
    upstream.expect_request().await;
    upstream.send(&clusters("1", &[("a", "1")]));
    client.response().await;
    wait_until_written(&first);
    drop((origin, upstream, client));
    let second = Process::unready_in_environment(&uri, &keys, Vec::new());
    second.wait_for_message("cannot open the snapshot; running without it");
    let mut client = returning(&second, &[]).await;
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

/// The control plane is away, or takes streams and leaves them unanswered.
#[tokio::test(flavor = "multi_thread")]
async fn so_is_that_of_a_node_group_whose_client_waits_for_it() {
    for is_away in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let keys = format!("snapshot: {{path: \"{}\"}}\n{GROUPS}", home.path().join("snapshot").display());
        let mut origin = Origin::start().await;
        let uri = origin.uri();
        let first = Process::behind(&uri, &keys);
        let own = origin.accept().await;
        let mut client = subscribed(&first, "x-1").await;
        let upstream = origin.accept_asked().await;
        upstream.send(&clusters("1", &[("a", "1"), ("b", "1")]));
        client.response().await;
        wait_until_written(&first);
        drop((own, upstream, client));
        let (tell, mut requests) = tokio::sync::mpsc::unbounded_channel();
        if is_away {
            drop(origin);
        } else {
            tokio::spawn(async move {
                while let Some(mut stream) = origin.next_stream().await {
                    let tell = tell.clone();
                    tokio::spawn(async move {
                        while let Some(request) = stream.next_request().await {
                            _ = tell.send(request);
                        }
                    });
                }
            });
        }
        let second = Process::unready_in_environment(&uri, &keys, Vec::new());
        let mut client = subscribed(&second, "x-2").await;
        client.silence().await;
        drop(first);
        let response = client.response().await;
        assert_eq!(versions(&response), content(&[("a", "1"), ("b", "1")]));
        if !is_away {
            // Requests before are of the other relay, or of the time before the file was read.
            let claims = async {
                loop {
                    let request = requests.recv().await.expect("an origin");
                    if !request.initial_resource_versions.is_empty() {
                        return request.initial_resource_versions;
                    }
                }
            };
            let claimed = tokio::time::timeout(Duration::from_secs(10), claims).await.expect("a new stream");
            assert_eq!(claimed.values().collect::<Vec<_>>(), ["1", "1"]);
        }
    }
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
    assert_eq!(versions(&returning(&relay, &[]).await.response().await), content(&[("a", "1")]));
    assert_eq!(relay.admin_json("/upstreams")["snapshot"]["loaded"]["from"], before);
    let said = relay.wait_for_message(NOT_CONFIGURED);
    let field = |name: &str| said[0][name].as_str().unwrap_or_default().to_owned();
    assert_eq!((said.len(), field("level"), field("from")), (1, "WARN".to_owned(), before));
    assert!(field("configured").contains("http://127.0.0.1:1"), "{said:?}");
}
