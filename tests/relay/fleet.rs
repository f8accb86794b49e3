//! Pages about clients: what each was sent, accepted and rejected.

use std::io::Write as _;
use std::net::TcpStream;

use deltafan::proto::Status;

use crate::prelude::*;

/// Clients of a page by their nodes.
fn nodes(page: &Json) -> Vec<&str> {
    page["clients"].as_array().unwrap().iter().map(|one| one["node"]["id"].as_str().unwrap()).collect()
}

/// One type of the only client of a page.
fn only_type(page: &Json) -> &Json {
    let clients = page["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 1, "{page}");
    &clients[0]["types"][0]
}

/// Waits until the state of a client is this.
pub(crate) fn wait_for_state(relay: &Process, node: &str, state: &str) -> Json {
    let mut found = Json::Null;
    relay.wait_for(&format!("{node} to be {state}"), || {
        found = relay.admin_json(&format!("/clients?node={node}"));
        found["clients"].as_array().unwrap().iter().any(|client| client["state"] == state)
    });
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_what_each_client_was_sent_accepted_and_rejected() {
    let (relay, _origin, mut upstream) = relay_and_origin("rest: {hold: 1h}\n").await;
    let channel = connect(&relay.uri()).await;
    let mut delta = Delta::asking(&channel, "delta-1", CDS, &["*"]).await;
    upstream.expect_request().await;
    let waiting = wait_for_state(&relay, "delta-1", "waiting");
    assert_eq!(only_type(&waiting)["sent"], Json::Null);

    upstream.deliver(&clusters_at("17", &["a", "b"])).await;
    let told = delta.response().await;
    let unacked = wait_for_state(&relay, "delta-1", "unacked");
    let cds = only_type(&unacked);
    assert_eq!((&cds["sent"]["version"], &cds["acked"]), (&json!("17"), &Json::Null));
    delta.ack(&told).await;
    let synced = wait_for_state(&relay, "delta-1", "synced");
    let client = &synced["clients"][0];
    assert_eq!((&client["transport"], &client["node"]["cluster"]), (&json!("delta"), &json!("test")));
    assert_eq!((&client["peer"], &client["identity"]), (&json!("127.0.0.1"), &Json::Null));
    let cds = only_type(&synced);
    assert_eq!((&cds["type"], &cds["wildcard"], &cds["names"]), (&json!("cds"), &json!(true), &json!(0)));
    assert_eq!((&cds["acked"]["version"], &cds["lag"]), (&json!("17"), &json!(0)));

    // A second client, and a third that polls.
    let mut sotw = Sotw::asking(&channel, "sotw-1", CDS, &["a"]).await;
    let told = sotw.response().await;
    sotw.ack(&told, &["a"]).await;
    wait_for_state(&relay, "sotw-1", "synced");
    let mut poll = Http1::connect(relay.listener);
    let node = r#""node": {"id": "rest-1"}, "resource_names": ["a"]"#;
    let held = poll.poll("clusters", &format!("{{{node}}}")).version();
    poll.request("POST /v3/discovery:clusters", "", &format!("{{{node}, \"version_info\": \"{held}\"}}"));
    let rest = wait_for_state(&relay, "rest-1", "synced");
    assert_eq!(only_type(&rest)["held"], json!(held));
    let all = relay.admin_json("/clients");
    assert_eq!((&all["open"], &all["states"]["synced"]), (&json!(3), &json!(3)));

    // A change that one of them rejects.
    upstream.deliver(&clusters_at("18", &["b"])).await;
    let told = delta.response().await;
    delta.nack(&told).await;
    let rejected = wait_for_state(&relay, "delta-1", "rejected");
    let cds = only_type(&rejected);
    assert_eq!((&cds["sent"]["version"], &cds["acked"]["version"]), (&json!("18"), &json!("17")));
    let rejection = &cds["rejected"];
    assert_eq!((&rejection["version"], &rejection["code"]), (&json!("18"), &json!(13)));
    assert_eq!(rejection["text"], "rejected by the test");
    assert_eq!(nodes(&relay.admin_json("/clients?state=rejected&type=cds")), ["delta-1"]);
    let clients = |state: &str| relay.metric(&format!("deltafan_clients{{type=\"cds\",state=\"{state}\"}}"));
    assert_eq!((clients("rejected"), clients("synced"), clients("waiting")), (1.0, 2.0, 0.0));

    let nacks = relay.admin_json("/nacks");
    let nack = &nacks["nacks"][0];
    assert_eq!(nacks["remembered"], 1);
    assert_eq!((&nack["node"]["id"], &nack["type"]), (&json!("delta-1"), &json!("cds")));
    assert_eq!((&nack["version"], &nack["changed"]), (&json!("18"), &json!(["b"])));
    assert_eq!((&nack["text"], &nack["state"]), (&json!("rejected by the test"), &json!("rejected")));
    let line = &relay.wait_for_message("1 client rejects cds 18 (NACK); node and text are of the first")[0];
    assert_eq!((&line["version"], &line["changed"]), (&json!("18"), &json!("b")));

    // It is mended.
    upstream.deliver(&clusters_at("19", &["b"])).await;
    let told = delta.response().await;
    assert_eq!(names(&told), ["b"]);
    delta.ack(&told).await;
    let mended = wait_for_state(&relay, "delta-1", "synced");
    assert_eq!(only_type(&mended)["acked"]["version"], "19");
    assert_eq!(relay.admin_json("/nacks")["nacks"][0]["state"], "synced");

    // One client, with the names that it asks for.
    let id = &relay.admin_json("/clients?node=sotw*")["clients"][0]["id"];
    let one = relay.admin_json(&format!("/clients/{id}"));
    assert_eq!(one["types"][0]["listed"], json!(["a"]));
    drop(delta);
    relay.wait_for("the end of the stream", || {
        relay.admin_json("/clients?node=delta-1")["clients"] == json!([])
    });
    assert_eq!(relay.admin_json("/nacks")["nacks"][0]["state"], Json::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_rejects_a_version_is_told_of_in_one_line() {
    const CLIENTS: usize = 200;
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let (channel, mut streams) = (connect(&relay.uri()).await, Vec::new());
    for number in 0..CLIENTS {
        // Not all streams fit on one connection.
        let channel = if number % 50 == 0 { connect(&relay.uri()).await } else { channel.clone() };
        let stream = Delta::asking(&channel, &format!("envoy-{number}"), CDS, &["*"]).await;
        streams.push((channel, stream));
        if number == 0 {
            upstream.answer(&clusters_at("17", &["a"])).await;
        }
    }
    for (_, stream) in &mut streams {
        let told = stream.response().await;
        stream.nack(&told).await;
    }
    let mut events = Vec::new();
    let summary = format!("{CLIENTS} clients reject cds 17 (NACK); node and text are of the first");
    relay.wait_for("a line about all", || {
        events.extend(relay.events());
        events.iter().any(|event| event["message"] == summary.as_str())
    });
    let line = events.iter().find(|event| event["message"] == summary.as_str()).unwrap();
    assert_eq!((&line["clients"], &line["text"]), (&json!(CLIENTS), &json!("rejected by the test")));
    let nacks = relay.admin_json("/nacks?limit=150");
    assert_eq!((&nacks["remembered"], nacks["nacks"].as_array().unwrap().len()), (&json!(CLIENTS), 150));
    let rest = relay.admin_json(&format!("/nacks?limit=150&after={}", nacks["next"]));
    assert_eq!((rest["nacks"].as_array().unwrap().len(), &rest["next"]), (50, &Json::Null));

    // Pages of clients hold each of them once.
    let mut seen = std::collections::BTreeSet::new();
    let mut after = json!(0);
    while after != Json::Null {
        let page = relay.admin_json(&format!("/clients?node=envoy-*&limit=70&after={after}"));
        assert_eq!(page["states"]["rejected"], json!(CLIENTS));
        assert!(nodes(&page).into_iter().all(|node| seen.insert(node.to_owned())));
        after = page["next"].clone();
    }
    assert_eq!(seen.len(), CLIENTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_and_no_query_breaks_a_page() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let stream = |node: &'static str| {
        let channel = channel.clone();
        async move { Delta::asking(&channel, node, CDS, &["*"]).await }
    };
    let mut evil = stream("a\u{1b}[2J\n\"},{\u{0}\u{9b}\u{7f}\u{202e}*").await;
    upstream.expect_request().await;
    upstream.send(&clusters_at("17", &["a"]));
    let told = evil.response().await;
    // A text of a megabyte, cut within a character.
    let text = "\u{1f4a5}".repeat(1 << 18);
    let answer = DeltaDiscoveryRequest {
        type_url: CDS.to_owned(),
        response_nonce: told.nonce,
        error_detail: Some(Status { code: -1, message: text.clone() }),
        ..DeltaDiscoveryRequest::default()
    };
    evil.send(answer).await;
    let mut nacks = Json::Null;
    relay.wait_for("the rejection", || {
        nacks = relay.admin_json("/nacks?node=a%1b*");
        nacks["nacks"] != json!([])
    });
    let kept = nacks["nacks"][0]["text"].as_str().unwrap();
    assert!(kept.len() <= 500 && text.starts_with(kept) && !kept.is_empty(), "{}", kept.len());
    let (_, raw) = relay.admin_get("/clients");
    // `curl` writes a page to a terminal as it is.
    let steers = |c: char| c.is_control() || c == '\u{202e}';
    assert!(!raw.trim_end().contains(steers), "{raw:?}");
    assert_eq!(nodes(&relay.admin_json("/clients")), ["a\u{1b}[2J\n\"},{\u{0}\u{9b}\u{7f}\u{202e}*"]);

    // A stream without a request is a client too.
    let _silent = Delta::open(&channel, DELTA_ADS).await;
    relay.wait_for("the other stream", || relay.admin_json("/clients")["states"]["new"] == 1);

    let (status, text) = relay.admin_get("/clients?nodes=a");
    assert!(status == 400 && text.contains("unknown key"), "{status} {text}");
    // A line of megabytes is not read to its end.
    let mut socket = TcpStream::connect(relay.admin).unwrap();
    let line = format!("GET /clients?{} HTTP/1.1\r\n", "node=a&".repeat(1_000_000));
    assert!(socket.write_all(line.as_bytes()).is_err() || relay.admin_get("/healthz").0 == 200);
    for path in ["/clients/0", "/clients/x", "/clients/99999999999999999999", "/clients/", "/nothing"] {
        assert_eq!(relay.admin_get(path).0, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_which_resources_are_held_and_how_many_clients_ask_for_each() {
    let (relay, mut origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut all = Delta::asking(&channel, "all", CDS, &["*", "b"]).await;
    upstream.answer(&clusters_at("17", &["a", "b"])).await;
    // Names beside the wildcard have a stream of their own. Unanswered, they would have streams opened anew on a busy machine.
    let mut names = origin.accept().await;
    tokio::spawn(async move {
        while let Some(request) = names.next_request().await {
            let asked: Vec<_> = request.resource_names_subscribe.iter().map(String::as_str).collect();
            if !asked.is_empty() {
                names.send(&clusters_at("17", &asked));
            }
        }
    });
    all.response().await;
    let mut one = Delta::asking(&channel, "one", CDS, &["a"]).await;
    one.response().await;

    let secret = "the text of a key";
    let sds: TypeUrl = Kind::Secret.into();
    one.subscribe("one", SDS, &["key", "none"]).await;
    upstream.expect_request().await;
    upstream.send(&DeltaDiscoveryResponse {
        resources: vec![resource(&sds, "key", "1", secret.as_bytes())],
        removed_resources: vec!["none".to_owned()],
        ..response(&sds, "1")
    });
    upstream.expect_ack("1").await;

    let held = relay.admin_json("/resources");
    assert_eq!(held["matched"], json!({"cds": 2, "sds": 2}));
    let find = |name: &str| {
        let all = held["resources"].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).cloned().unwrap()
    };
    let (a, b, key, none) = (find("a"), find("b"), find("key"), find("none"));
    assert_eq!((&a["clients"], &a["version"], &a["wildcard"]), (&json!(2), &json!("17"), &json!(true)));
    assert_eq!(b["clients"], 1, "once, though it asks for it twice");
    assert_eq!(key["state"], "present");
    assert!(key["bytes"].as_u64().unwrap() > secret.len() as u64, "{key}");
    assert_eq!(
        (&none["state"], &none["version"], &none["clients"]),
        (&json!("absent"), &Json::Null, &json!(1))
    );
    assert!(!relay.admin_get("/resources").1.contains(secret));

    let some = relay.admin_json("/resources?type=cds&name=*&limit=1");
    assert_eq!((&some["resources"][0]["name"], &some["next"]), (&json!("a"), &json!(1)));
    let rest = relay.admin_json("/resources?type=cds&name=*&limit=1&after=1");
    assert_eq!((&rest["resources"][0]["name"], &rest["next"]), (&json!("b"), &Json::Null));
    assert_eq!(relay.admin_json("/resources?name=k*y")["matched"], json!({"sds": 1}));
    let counts = relay.admin_json("/resources?limit=0");
    assert_eq!((&counts["matched"], &counts["next"]), (&held["matched"], &Json::Null));
}

/// A client that came back lacks nothing while the control plane is silent: it is told apart from one that has nothing.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_came_back_are_not_waiting() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let _newcomer = Delta::asking(&channel, "newcomer", CDS, &["*"]).await;
    let mut back = Delta::open(&channel, DELTA_ADS).await;
    back.send(DeltaDiscoveryRequest {
        initial_resource_versions: [("a".to_owned(), "17".to_owned())].into(),
        ..subscription("back", CDS, &["*"])
    })
    .await;
    let sotw = Sotw::open(&channel, SOTW_ADS).await;
    sotw.send(DiscoveryRequest { version_info: "17".to_owned(), ..sotw_subscription("sotw", CDS, &[]) })
        .await;
    wait_for_state(&relay, "newcomer", "waiting");
    wait_for_state(&relay, "sotw", "resuming");
    let resuming = wait_for_state(&relay, "back", "resuming");
    assert_eq!(only_type(&resuming)["sent"], Json::Null);
    let clients = |state: &str| relay.metric(&format!("deltafan_clients{{type=\"cds\",state=\"{state}\"}}"));
    assert_eq!((clients("waiting"), clients("resuming")), (1.0, 2.0));
    assert_eq!(nodes(&relay.admin_json("/clients?state=resuming")), ["back", "sotw"]);

    upstream.answer(&clusters_at("17", &["a"])).await;
    back.take().await;
    wait_for_state(&relay, "back", "synced");
}

/// The pages wake no stream and ask nothing of the control plane.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_the_clients_changes_nothing() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let mut client = relay.client("client", &["*"]).await;
    upstream.answer(&clusters_at("1", &["a"])).await;
    client.take().await;
    client.subscribe("client", EDS, &["e"]).await;
    upstream.expect_request().await;
    wait_for_state(&relay, "client", "waiting");
    let counted = |name: &str| relay.metric(name);
    let before = ["deltafan_responses_total", "deltafan_encodes_total", "deltafan_cohorts"].map(counted);
    for _ in 0..50 {
        for path in ["/clients", "/clients?type=lds&node=nobody", "/nacks", "/resources"] {
            relay.admin_json(path);
        }
    }
    assert!(upstream.is_quiet_for(Duration::from_millis(300)).await);
    client.silence().await;
    let after = ["deltafan_responses_total", "deltafan_encodes_total", "deltafan_cohorts"].map(counted);
    assert_eq!(before, after);
}
