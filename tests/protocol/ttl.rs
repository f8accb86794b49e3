//! Times that clients are told: R-TTL.

use std::time::Duration;

use deltafan::cache::{Lease, Limits, Op, Protocol, Resend, View};
use deltafan::proto;
use deltafan::subscription::{NextStep, Upstream};
use deltafan_test_support::bell::Bell;
use deltafan_test_support::fixture::{Client, Fixture, strings, url};

const TTL: &str = "xds.config.supports-resource-ttl";
const WRAPS: &str = "xds.config.resource-in-sotw";
const NOTHING: [&str; 0] = [];

fn delta(fixture: &Fixture) -> Client {
    fixture.client_with(&[TTL], Protocol::Delta)
}

fn sotw(fixture: &Fixture) -> Client {
    fixture.client_with(&[TTL, WRAPS], Protocol::Sotw)
}

fn delta_of(fixture: &Fixture, short: &str, names: &str) -> Client {
    let mut client = delta(fixture);
    client.change(fixture, short, names);
    client
}

fn sotw_of(fixture: &Fixture, short: &str, names: &[&str]) -> Client {
    let mut client = sotw(fixture);
    client.ask(fixture, short, names);
    client
}

fn after(fixture: &mut Fixture, millis: u64) {
    fixture.after(Duration::from_millis(millis));
}

fn named_after(fixture: &mut Fixture, millis: u64, text: &str) {
    after(fixture, millis);
    fixture.named(text);
}

fn origin_after(fixture: &mut Fixture, millis: u64, text: &str) {
    after(fixture, millis);
    fixture.origin(text);
}

#[test]
fn r_ttl_07_times_are_told_to_clients_that_understand_them() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1@10000 b:1");
    for (features, delta, sotw) in [
        (&[][..], false, false),
        (&["other", TTL], true, false),
        (&["envoy.config.supports-resource-ttl"], true, false),
        (&[WRAPS], false, false),
        (&[TTL, WRAPS], true, true),
        (&[TTL, "xds.config.supports-resource-in-sotw"], true, true),
        (&[TTL, "envoy.config.resource-in-sotw"], true, true),
        (&["xds.config.supports-resource-ttl2", "xds.config"], false, false),
    ] {
        for (protocol, is_told) in [(Protocol::Delta, delta), (Protocol::Sotw, sotw)] {
            let mut client = fixture.client_with(features, protocol);
            match protocol {
                Protocol::Delta => client.change(&fixture, "cds", "*"),
                Protocol::Sotw => client.ask(&fixture, "cds", &["*"]),
            };
            let expected = if is_told { "cds a:1@10000 b:1" } else { "cds a:1 b:1" };
            assert_eq!(client.told(&fixture), [expected], "{features:?} {protocol:?}");
        }
    }
}

#[test]
fn r_ttl_07_features_beyond_a_bound_are_not_looked_at() {
    let fixture = Fixture::new().with_named("eds a:1@10000");
    for (before, expected) in [(1023, "eds a:1@10000"), (1024, "eds a:1")] {
        let features: Vec<&str> = std::iter::repeat_n("x", before).chain([TTL]).collect();
        let mut client = fixture.client_with(&features, Protocol::Delta);
        client.change(&fixture, "eds", "a");
        assert_eq!(client.told(&fixture), [expected]);
    }
}

#[test]
fn r_ttl_03_a_resource_that_may_have_expired_at_the_client_is_sent_in_full() {
    let mut fixture = Fixture::new().with_named("eds e:1@10000 short:1@400");
    let mut client = delta_of(&fixture, "eds", "e short");
    client.acked(&fixture);
    named_after(&mut fixture, 299, "eds ~short@400");
    assert_eq!(client.acked(&fixture), ["eds short:~1@400"], "more than a quarter is left");
    named_after(&mut fixture, 300, "eds ~short@400");
    assert_eq!(client.acked(&fixture), ["eds short:1@400"], "a quarter is the margin");

    named_after(&mut fixture, 8_400, "eds ~e@10000");
    assert_eq!(client.acked(&fixture), ["eds e:~1@10000"], "a second and a millisecond is left");
    named_after(&mut fixture, 9_000, "eds ~e@10000");
    assert_eq!(client.acked(&fixture), ["eds e:1@10000"], "a second is the margin");
    named_after(&mut fixture, 1_000, "eds ~e@10000");
    assert_eq!(client.acked(&fixture), ["eds e:~1@10000"]);
}

/// V5: Envoy drops every cluster for a heartbeat over state of the world, so that a renewal is the whole set.
#[test]
fn r_ttl_05_over_state_of_the_world_a_renewal_is_the_whole_set() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds a:1@10000 b:1");
    fixture.origin("lds l:1@10000");
    fixture.named("eds e:1@10000 f:1@10000");
    let mut client = sotw_of(&fixture, "cds", &["*"]);
    client.ask(&fixture, "eds", &["e", "f"]);
    client.ask(&fixture, "lds", &["*"]);
    let names: [(&str, &[&str]); 3] = [("cds", &["*"]), ("eds", &["e", "f"]), ("lds", &["*"])];
    assert_eq!(
        client.acked_with(&fixture, &names),
        ["cds a:1@10000 b:1", "eds e:1@10000 f:1@10000", "lds l:1@10000"]
    );
    let before = client.newest("cds").clone();
    let endpoints = client.newest("eds").version.clone();
    for _ in 0..3 {
        origin_after(&mut fixture, 5_000, "cds ~a@10000");
        fixture.named("eds ~e@10000");
        assert_eq!(client.acked_with(&fixture, &names), ["cds a:1@10000 b:1", "eds e:1@10000"]);
        assert_eq!(client.newest("cds").version, before.version);
        assert_eq!(client.newest("eds").version, endpoints);
        assert_ne!(client.newest("cds").nonce, before.nonce);
    }
    // A change in between is one of version too.
    fixture.origin("cds b:2");
    after(&mut fixture, 5_000);
    assert_eq!(client.acked_with(&fixture, &names), ["cds a:1@5000 b:2"]);
    assert_ne!(client.newest("cds").version, before.version);
}

/// R-SotW-24: what Envoy takes for the version is that of the response.
#[test]
fn r_sotw_23_only_timed_resources_are_wrapped_and_only_for_clients_that_unwrap() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1@10000 b:1 c:1");
    let (mut wraps, mut plain) = (sotw_of(&fixture, "cds", &[]), fixture.sotw_of("cds", &[]));
    let read = |client: &mut Client| {
        let NextStep::Send(outgoing) = client.next(&fixture) else { panic!("the clusters") };
        prost::Message::decode(deltafan_test_support::wire::message_in(&outgoing.frame)).unwrap()
    };
    let (wrapped, unwrapped): (proto::DiscoveryResponse, proto::DiscoveryResponse) =
        (read(&mut wraps), read(&mut plain));
    assert_eq!(wrapped.version_info, unwrapped.version_info, "a time is no change");
    let shared = wrapped.resources.iter().filter(|any| unwrapped.resources.contains(any)).count();
    assert_eq!((wrapped.resources.len(), unwrapped.resources.len(), shared), (3, 3, 2));
}

#[test]
fn r_ttl_06_grpc_is_never_sent_a_heartbeat() {
    let mut fixture = Fixture::new().with_named("eds e:1@10000");
    let mut told = fixture.client_as("gRPC C-core", Protocol::Delta, None);
    told.node.as_mut().unwrap().client_features = strings(&[TTL]);
    let mut untold = fixture.client_as("gRPC C-core", Protocol::Delta, None);
    untold.node.as_mut().unwrap().client_features = strings(&[WRAPS]);
    let mut over_sotw = fixture.client_as("gRPC C-core", Protocol::Sotw, None);
    over_sotw.node.as_mut().unwrap().client_features = strings(&[WRAPS]);
    told.change(&fixture, "eds", "e");
    untold.change(&fixture, "eds", "e");
    over_sotw.ask(&fixture, "eds", &["e"]);
    assert_eq!(told.acked(&fixture), ["eds e:1@10000"]);
    assert_eq!(untold.acked(&fixture), ["eds e:1"]);
    assert_eq!(over_sotw.acked_with(&fixture, &[("eds", &["e"])]), ["eds e:1"]);
    fixture.named("eds ~e@10000");
    assert_eq!(told.acked(&fixture), ["eds e:1@10000"]);
    assert_eq!(untold.acked(&fixture), NOTHING);
    assert_eq!(over_sotw.told(&fixture), NOTHING);
}

#[test]
fn r_ttl_07_a_renewal_is_nothing_to_a_client_that_is_told_no_times() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1@10000");
    let mut timed = delta(&fixture);
    let (mut delta, mut sotw) = (fixture.delta(), fixture.sotw());
    timed.change(&fixture, "cds", "*");
    delta.change(&fixture, "cds", "* a");
    sotw.ask(&fixture, "cds", &["*", "a"]);
    assert_eq!(timed.acked(&fixture), ["cds a:1@10000"]);
    assert_eq!(delta.acked(&fixture), ["cds a:1"]);
    let told = sotw.poll(&fixture).unwrap();
    sotw.ack(&fixture, &told, &["*", "a"]);

    let bell = Bell::new();
    for client in [&timed, &delta, &sotw] {
        client.session.wake_handle().register(&bell.waker());
    }
    fixture.origin("cds ~a@10000");
    assert_eq!(bell.take(), 1, "the one that is told");
    assert_eq!((delta.acked(&fixture), sotw.told(&fixture)), (vec![], vec![]));
    assert_eq!(timed.acked(&fixture), ["cds a:~1@10000"]);
    let mut fresh = fixture.sotw_of("cds", &["*", "a"]);
    assert_eq!(fresh.poll(&fixture).unwrap().version, told.version, "the digest is that of the bodies");
}

#[test]
fn r_ttl_09_members_of_a_glob_and_other_spellings_are_told_their_times() {
    let mut fixture = Fixture::new();
    let (member, glob) = ("xdstp://auth/t/dir/a?x=1&y=2", "xdstp://auth/t/dir/*?x=1&y=2");
    fixture.named(&format!("eds {member}:1@10000"));
    fixture.apply(
        "eds",
        deltafan::cache::Change { ops: vec![Op::Complete { name: glob.into() }], ..Default::default() },
    );
    let mut collects = delta_of(&fixture, "eds", glob);
    let other = "xdstp://auth/t/dir/a?y=2&x=1";
    let mut spells = delta_of(&fixture, "eds", other);
    assert_eq!(collects.acked(&fixture), [format!("eds {member}:1@10000")]);
    assert_eq!(spells.acked(&fixture), [format!("eds {other}:1@10000")]);
    fixture.named(&format!("eds ~{member}@10000"));
    assert_eq!(collects.acked(&fixture), [format!("eds {member}:~1@10000")]);
    assert_eq!(spells.acked(&fixture), [format!("eds {other}:~1@10000")]);
    fixture.named("eds plain:1");
    spells.change(&fixture, "eds", "plain");
    fixture.named(&format!("eds ~{member}@10000"));
    assert_eq!(spells.acked(&fixture), [format!("eds plain:1 {other}:~1@10000")]);
}

#[test]
fn r_ttl_09_a_frame_with_times_is_shared_for_a_moment_only() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1@10000").with_named("eds e:1");
    let mut clients: Vec<Client> = (0..6).map(|_| delta(&fixture)).collect();
    for client in &mut clients {
        client.change(&fixture, "cds", "*");
        client.change(&fixture, "eds", "e");
    }
    after(&mut fixture, 1_000);
    let mut counts = Vec::new();
    for (client, passed) in clients.iter_mut().zip([0, 50, 50, 1, 99, 60_000]) {
        after(&mut fixture, passed);
        let told = client.acked(&fixture);
        counts.push((told[0].clone(), told[1].clone(), fixture.cache.encoder().encodes()));
    }
    let first = counts[0].2;
    let said = |left: u64, more: u64| (format!("cds a:1@{left}"), "eds e:1".to_owned(), first + more);
    assert_eq!(
        counts,
        [said(9_000, 0), said(9_000, 0), said(9_000, 0), said(8_899, 1), said(8_899, 1), said(1, 2)],
        "what has no time is encoded once"
    );
}

/// Many renewals are small: they fit in one response, where the bodies would not.
#[test]
fn r_ttl_02_heartbeats_of_many_are_one_response() {
    let mut fixture = Fixture::with_limits(Limits { response_bytes: 64 << 10, ..Limits::default() });
    fixture.known("cds");
    let all = |form: &dyn Fn(usize) -> String| {
        let all: Vec<String> = (0..500).map(form).collect();
        format!("cds {}", all.join(" "))
    };
    fixture.bulky(&all(&|at| format!("c{at:03}:1@10000")));
    let mut client = delta_of(&fixture, "cds", "*");
    assert!(client.acked(&fixture).len() > 5);
    fixture.origin(&all(&|at| format!("~c{at:03}@10000")));
    assert_eq!(client.acked(&fixture), [all(&|at| format!("c{at:03}:~1@10000"))]);
}

#[test]
fn r_ttl_02_a_renewal_is_no_change_of_which_the_age_is_measured() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1@10000 b:1");
    let (mut delta, mut sotw) = (delta_of(&fixture, "cds", "*"), sotw_of(&fixture, "cds", &["*"]));
    delta.acked(&fixture);
    sotw.acked_with(&fixture, &[("cds", &["*"])]);
    let mut changed_at = |fixture: &Fixture| {
        [&mut delta, &mut sotw].map(|client| {
            let NextStep::Send(outgoing) = client.next(fixture) else { panic!("something is to be said") };
            client.session.on_flushed(fixture.now);
            outgoing.changed_at
        })
    };
    fixture.origin("cds ~a@10000");
    assert_eq!(changed_at(&fixture), [None, None]);
    origin_after(&mut fixture, 6_000, "cds b:2");
    let change = Some(fixture.now);
    origin_after(&mut fixture, 6_000, "cds ~a@10000");
    assert_eq!(changed_at(&fixture), [change, change], "that of the change, not of the renewal after it");
}

/// Endpoints follow a cluster that changed (R-ADS-05), not one whose time was renewed.
#[test]
fn r_ttl_02_a_heartbeat_of_a_cluster_repeats_no_endpoints() {
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds eds-a:1@10000").with_named("eds eds-a:1");
    let mut delta = delta(&fixture);
    let mut sotw = sotw(&fixture);
    delta.change(&fixture, "cds", "*");
    delta.change(&fixture, "eds", "eds-a");
    sotw.ask(&fixture, "cds", &["*"]);
    sotw.ask(&fixture, "eds", &["eds-a"]);
    let names: [(&str, &[&str]); 2] = [("cds", &["*"]), ("eds", &["eds-a"])];
    delta.acked(&fixture);
    sotw.acked_with(&fixture, &names);
    origin_after(&mut fixture, 5_000, "cds ~eds-a@10000");
    assert_eq!(delta.acked(&fixture), ["cds eds-a:~1@10000"]);
    assert_eq!(sotw.acked_with(&fixture, &names), ["cds eds-a:1@10000"]);
    origin_after(&mut fixture, 9_500, "cds ~eds-a@10000");
    assert_eq!(delta.acked(&fixture), ["cds eds-a:1@10000", "eds eds-a:1"], "it may have lost the cluster");
    assert_eq!(sotw.acked_with(&fixture, &names), ["cds eds-a:1@10000", "eds eds-a:1"]);
}

#[test]
fn r_rest_15_a_set_is_another_version_without_a_resource_that_ended() {
    use deltafan::subscription::{PollHistory, PollVerdict};
    let mut fixture = Fixture::knowing(&["cds"]).with_members("cds a:1@10000 b:1");
    let poll = |fixture: &Fixture| {
        let (memory, request) = (PollHistory::default(), proto::DiscoveryRequest::default());
        let poll = fixture.poll(&memory, "cds", request, Duration::from_secs(10)).unwrap();
        let found =
            poll.found().resources.iter().map(|resource| resource.name().to_string()).collect::<Vec<_>>();
        (poll.next(fixture.now, Upstream::Answering), found)
    };
    let (first, found) = poll(&fixture);
    assert_eq!(found, ["a", "b"]);
    fixture.origin("cds ~a@10000");
    assert_eq!(poll(&fixture).0, first, "a renewal is no change");
    fixture.origin("cds -a");
    let (last, found) = poll(&fixture);
    assert_eq!(found, ["b"]);
    assert!(matches!(last, PollVerdict::Answer(_)) && last != first);
}

#[test]
fn r_ttl_01_a_time_beyond_all_clocks_is_no_limit_to_clients() {
    let mut fixture = Fixture::new();
    fixture.now += Duration::from_secs(1);
    assert_eq!(Lease::new(Duration::from_secs(1 << 40), fixture.now), None);
    let resource = deltafan_test_support::wire::resource(&url("eds"), "e", "1", 0);
    let lease = Lease::new(Duration::from_secs(9_000_000_000), fixture.now);
    let set = Op::Set { view: View::Named, resource, resend: Resend::Answer, lease };
    fixture.apply("eds", deltafan::cache::Change { ops: vec![set], ..Default::default() });
    let mut client = delta_of(&fixture, "eds", "e");
    assert_eq!(client.acked(&fixture), ["eds e:1@9000000000000"]);
}
