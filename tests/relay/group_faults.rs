//! Node groups that the control plane does not answer, or whose streams it ends: what operators are told, and of which group.

use tonic::Status;

use crate::admin_commands::ask;
use crate::groups::{BORROWED, FLEETS, client};
use crate::prelude::*;
use crate::status;

/// Lines of this kind in the log since the last look that are about the control plane.
fn lines(relay: &Process) -> Vec<Json> {
    let is_one = |event: &Json| event["message"].as_str().is_some_and(|text| text.contains("control plane"));
    relay.events().into_iter().filter(is_one).collect()
}

/// Answers the first request of a stream.
async fn answer(stream: &mut OriginStream, version: &str) {
    stream.expect_request().await;
    stream.send(&clusters_at(version, &["c"]));
    stream.expect_ack(version).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_never_answered_has_nothing_that_is_out_of_date() {
    let mut origin = Origin::start().await;
    let relay = Process::behind_several(&[origin.uri()], "backoff: {initial: 50ms, max: 500ms}", FLEETS);
    let own = origin.accept().await;
    let _made_up = client(&relay, "made-1").await;
    let silent = origin.accept_asked().await;
    // The relay looks every second for what is unanswered.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let stale = || relay.metric("deltafan_group_stale_seconds{group=\"fleet\"}");
    assert_eq!(stale(), 0.0);
    let (code, check) = status::wait_for(&relay, "node groups", "ok").await;
    assert_eq!((code, &check["finding"]), (Some(0), &json!("answered")));

    let mut fleet = client(&relay, "red-1").await;
    let mut red = origin.accept().await;
    answer(&mut red, "1").await;
    fleet.response().await;
    drop((origin, own, silent, red));
    relay.wait_for("age of what is held", || stale() > 0.0);
    assert!(ask(&relay, &["status"]).await.stdout.contains("fleet: resources may be out of date for "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_group_that_fails_again_and_again_is_told_seldom_and_by_its_group() {
    let mut origin = Origin::start().await;
    let relay = Process::behind_several(&[origin.uri()], "backoff: {initial: 20ms, max: 50ms}", FLEETS);
    let _own = origin.accept().await;
    let _client = client(&relay, "red-1").await;
    relay.events();
    for version in 0..20 {
        let mut stream = origin.accept().await;
        answer(&mut stream, &version.to_string()).await;
        stream.fail(Status::unavailable("not today"));
    }
    let mut last = origin.accept().await;
    answer(&mut last, "last").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let told = lines(&relay);
    let told: Vec<_> = told.iter().map(|line| (&line["message"], &line["level"], &line["group"])).collect();
    let line = |text: &str, level: &str| (json!(text), json!(level), json!("fleet"));
    let expected = [
        line("the control plane ended the stream; serving cached resources", "WARN"),
        line("the control plane answers again", "INFO"),
    ];
    let expected: Vec<_> = expected.iter().map(|(text, level, group)| (text, level, group)).collect();
    assert_eq!(told, expected);
}

/// The control plane is as well as before for all other groups, and what is said of it does not wait for such a node.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_outage_is_told_though_one_group_is_never_answered() {
    let mut origin = Origin::start().await;
    let relay = Process::behind_several(&[origin.uri()], "backoff: {initial: 50ms, max: 200ms}", FLEETS);
    let own = origin.accept().await;
    let (_client, _made_up) = (client(&relay, "red-1").await, client(&relay, "made-1").await);
    let address = origin.address();
    let mut streams = [origin.accept().await, origin.accept().await];
    for stream in &mut streams {
        let request = stream.expect_request().await;
        if request.node.expect("a node").id == "fleet-red" {
            stream.send(&clusters_at("1", &["c"]));
            stream.expect_ack("1").await;
        }
    }
    drop((origin, own, streams));
    let told = relay.wait_for_message("control plane unreachable; serving cached resources");
    assert_eq!(told[0]["group"], Json::Null, "it concerns all of them");
    let mut origin = Origin::listen(address).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = origin.accept().await;
        let asked = tokio::time::timeout(Duration::from_secs(2), stream.next_request()).await;
        let is_red = |request: deltafan::proto::DeltaDiscoveryRequest| {
            request.node.is_some_and(|node| node.id == "fleet-red")
        };
        if asked.ok().flatten().is_some_and(is_red) {
            stream.send(&clusters_at("2", &["c"]));
        }
        streams.push(stream);
    }
    relay.wait_for_message("the control plane answers again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_for_one_group_names_the_group() {
    let (mut first, mut second) = (Origin::start().await, Origin::start().await);
    let keys = "failover: {after: 1s, return_after: 1h}, backoff: {initial: 50ms, max: 500ms}";
    let relay = Process::behind_several(&[first.uri(), second.uri()], keys, FLEETS);
    let _own = first.accept().await;
    let mut fleet = client(&relay, "red-1").await;
    let mut red = first.accept().await;
    answer(&mut red, "1").await;
    fleet.response().await;
    let _made_up = client(&relay, "made-1").await;
    let _silent = first.accept_asked().await;
    let mut moved = second.accept().await;
    assert_eq!(moved.expect_request().await.node.expect("a node").id, "fleet-made");
    let mut told = Vec::new();
    relay.wait_for("a line about it", || {
        told.extend(lines(&relay));
        told.iter().any(|line| line["message"].as_str().unwrap().contains("; using http://"))
    });
    let line = told.iter().find(|line| line["message"].as_str().unwrap().contains("; using http://"));
    let line = line.expect("it was found");
    assert_eq!((&line["group"], &line["node"]), (&json!("fleet"), &json!("fleet-made")), "{line}");
    // Each group has its own server.
    assert_eq!(relay.metric("deltafan_upstream_active_server"), 0.0);
    red.send(&clusters_at("2", &["c"]));
    red.expect_ack("2").await;
    assert!(fleet.response().await.resources.len() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_each_group_at_its_control_plane() {
    let mut origin = Origin::start().await;
    let uri = origin.uri();
    let relay = Process::behind_several(&[uri], "backoff: {initial: 50ms, max: 500ms}", BORROWED);
    let _own = origin.accept().await;
    assert_eq!(relay.admin_json("/upstreams")["groups"]["rules"][1]["groups"], 0, "before the first client");
    let mut streams = Vec::new();
    for id in ["odd-1", "red-1", "blue-1", "blue-2"] {
        let mut client = client(&relay, id).await;
        if id == "blue-2" {
            streams.push((client, None));
            break;
        }
        let mut stream = origin.accept().await;
        if id == "blue-1" {
            stream.expect_request().await;
        } else {
            answer(&mut stream, "1").await;
            client.response().await;
        }
        streams.push((client, Some(stream)));
    }
    relay.wait_for("the last client and a look for what is unanswered", || {
        let rule = &relay.admin_json("/upstreams")["groups"]["rules"][1];
        rule["clients"] == 3 && rule["unanswered_subscriptions"] == 1
    });
    let groups = &relay.admin_json("/upstreams")["groups"];
    assert_eq!((&groups["listed"], &groups["rules"][0]["rule"]), (&Json::Null, &json!("odd")), "{groups}");
    let fleets = &groups["rules"][1];
    assert_eq!(
        [&fleets["rule"], &fleets["groups"], &fleets["protocols"], &fleets["not_connected"]],
        [&json!("fleet"), &json!(2), &json!({"delta": 2, "sotw": 0}), &json!(0)],
        "{fleets}"
    );
    assert_eq!((&fleets["never_answered"], &fleets["stale_seconds"]), (&json!(1), &json!(0.0)), "{fleets}");
    assert!(fleets["oldest_answer_seconds_ago"].as_f64().unwrap() > 0.0, "{fleets}");

    let all = relay.admin_json("/upstreams?group=*");
    let listed = all["groups"]["listed"].as_array().unwrap();
    let names: Vec<_> = listed.iter().map(|group| group["group"].as_str().unwrap()).collect();
    assert_eq!(names, ["fleet:blue", "fleet:red", "odd"]);
    assert_eq!((&all["groups"]["matched"], &all["groups"]["next"]), (&json!(3), &Json::Null));
    let (blue, red, odd) = (&listed[0], &listed[1], &listed[2]);
    assert_eq!((&blue["values"], &blue["clients"]), (&json!(["blue"]), &json!(2)), "{blue}");
    assert_eq!(blue["node"], json!({"id": "fleet-blue", "of_client": false, "shown_seconds": null}));
    assert_eq!(
        (&blue["last_answer_seconds_ago"], &blue["unanswered_subscriptions"]),
        (&Json::Null, &json!(1))
    );
    assert!(blue["first_answer_awaited_seconds"].as_f64().unwrap() > 0.0, "{blue}");
    assert_eq!(
        (&red["server"], &red["connected"], &red["protocol"]),
        (&json!(origin.uri()), &json!(true), &json!("delta"))
    );
    assert_eq!(
        (&red["first_answer_awaited_seconds"], &red["last_error"]),
        (&json!(0.0), &Json::Null),
        "{red}"
    );
    assert_eq!((&odd["node"]["id"], &odd["node"]["of_client"]), (&json!("odd-1"), &json!(true)), "{odd}");
    assert!(odd["node"]["shown_seconds"].as_f64().is_some(), "{odd}");

    let names = |query: &str| {
        let groups = relay.admin_json(&format!("/upstreams?{query}"))["groups"].take();
        let listed = groups["listed"].as_array().unwrap().iter();
        let names: Vec<String> = listed.map(|group| group["group"].as_str().unwrap().to_owned()).collect();
        (names.join(" "), groups["matched"].clone(), groups["next"].clone())
    };
    assert_eq!(names("group=fleet:*&limit=1"), ("fleet:blue".to_owned(), json!(2), json!(1)));
    assert_eq!(names("group=fleet:*&limit=1&after=1"), ("fleet:red".to_owned(), json!(2), Json::Null));
    assert_eq!(names("limit=0"), (String::new(), json!(3), Json::Null));
    assert_eq!(relay.admin_get("/upstreams?groups=x").0, 400);
}
