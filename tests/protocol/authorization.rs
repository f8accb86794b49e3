//! What a peer may ask for, on every transport and in every order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Change, Completeness, Limits, Op, OriginError, Resend, Seen, View};
use deltafan::config::name_pattern;
use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node, ResourceLocator};
use deltafan::resource::{Patterns, Scope};
use deltafan::subscription::{
    Code, Denied, HiddenCounts, NextStep, Permissions, Poll, PollHistory, PollPeer, PollVerdict, SessionError,
};

use crate::support::{Bed, Client, strings, url};
use crate::wire::{self, variant};

fn patterns(texts: &[&str]) -> Patterns {
    texts.iter().map(|text| name_pattern(text).unwrap()).collect()
}

fn may_see(texts: &[&str]) -> Permissions {
    Permissions { names: Scope::only(patterns(texts)), ..Permissions::default() }
}

fn may_send(key: &str, values: &[&str]) -> Permissions {
    let values: BTreeSet<Box<str>> = values.iter().map(|value| (*value).into()).collect();
    Permissions { parameters: BTreeMap::from([(key.into(), values)]), ..Permissions::default() }
}

/// A bed whose clients, from here on, may no more than this.
fn bed(permissions: Permissions) -> Bed {
    let mut bed = Bed::knowing(&["cds", "eds", "lds", "rds"]);
    bed.rules.permissions = permissions;
    bed
}

fn denied(result: Result<impl std::fmt::Debug, SessionError>) -> Option<Denied> {
    let refusal = result.expect_err("it is refused");
    assert_eq!(refusal.code, Code::PermissionDenied, "{refusal}");
    refusal.denied
}

fn poll(bed: &Bed, short: &str, names: &[&str], node: Option<Node>) -> Result<Poll, SessionError> {
    let rules = Arc::new(bed.rules.clone());
    let request = DiscoveryRequest { node, resource_names: strings(names), ..DiscoveryRequest::default() };
    let (memory, hold) = (PollHistory::default(), Duration::from_secs(1));
    Poll::new(&bed.cache, &rules, &memory, url(short).kind(), request, PollPeer::default(), hold, bed.now)
}

/// The names of what a poll is answered with; `None` where it is not answered.
fn answered(bed: &Bed, poll: &Poll) -> Option<Vec<String>> {
    match poll.next(bed.now, bed.upstream) {
        PollVerdict::Answer(_) => {
            Some(poll.found().resources.iter().map(|found| found.name().to_string()).collect())
        }
        _ => None,
    }
}

#[test]
fn a_refused_name_is_answered_as_absent_and_nobody_upstream_hears_of_it() {
    let mut bed = bed(may_see(&["mine/**"]));
    let mut client = bed.delta();
    client.change(&bed, "eds", "mine/a theirs/b");
    let wanted: Vec<_> = bed.cache.take_interest();
    let asked: Vec<String> = wanted
        .iter()
        .flat_map(|wanted| wanted.interest.names.iter().map(|(name, _)| name.to_string()))
        .collect();
    assert_eq!(asked, ["mine/a"]);
    wanted.iter().for_each(|wanted| bed.writer.fill(wanted, bed.now).unwrap());
    assert_eq!(client.acked(&bed), ["eds -theirs/b"]);
    assert_eq!(client.session.take_hidden(), HiddenCounts { names: 1, wildcards: 0 });
    assert_eq!(client.session.take_hidden(), HiddenCounts::default(), "it is counted once");

    // It exists, for others; it comes, changes and goes, and this client hears nothing of it.
    bed.named("eds mine/a:1 theirs/b:1");
    assert_eq!(client.acked(&bed), ["eds mine/a:1"]);
    bed.named("eds theirs/b:2");
    assert_eq!(client.acked(&bed), Vec::<String>::new());
    bed.named("eds -theirs/b");
    assert_eq!(client.acked(&bed), Vec::<String>::new());

    // Asked for once more, the answer is the same.
    bed.named("eds theirs/b:3");
    client.change(&bed, "eds", "theirs/b");
    bed.fill();
    assert_eq!(client.acked(&bed), ["eds -theirs/b"]);
}

#[test]
fn r_relay_05_a_client_that_may_see_some_waits_for_the_set_as_all_others_do() {
    let mut bed = Bed::new();
    bed.rules.permissions = may_see(&["mine/**"]);
    bed.origin("cds mine/a:1 theirs/b:1");
    bed.know("cds", Completeness::Presumed);
    let (mut fresh, mut back) = (bed.sotw(), bed.sotw());
    fresh.ask(&bed, "cds", &[]);
    let version_info = "of an earlier stream".to_owned();
    let type_url = url("cds").as_str().to_owned();
    back.on_sotw_request(&bed, DiscoveryRequest { version_info, type_url, ..DiscoveryRequest::default() })
        .unwrap();
    bed.fill();
    assert_eq!(fresh.acked(&bed), ["cds mine/a:1"]);
    assert!(back.told(&bed).is_empty());
    bed.origin("cds mine/c:1");
    bed.known("cds");
    assert_eq!(fresh.acked(&bed), ["cds mine/a:1 mine/c:1"]);
    assert_eq!(back.told(&bed), ["cds mine/a:1 mine/c:1"]);

    // A store that is filled later inherits what is known by then.
    bed.know("cds", Completeness::Presumed);
    bed.rules.permissions = may_see(&["theirs/**"]);
    let mut other = bed.sotw();
    other.ask(&bed, "cds", &[]);
    bed.fill();
    assert_eq!(other.acked(&bed), ["cds theirs/b:1"]);
}

#[test]
fn a_refused_name_is_no_more_than_one_that_does_not_exist() {
    let mut told = Vec::new();
    for exists in [false, true] {
        let mut bed = bed(may_see(&["mine/**"]));
        bed.origin("cds mine/a:1");
        if exists {
            bed.origin("cds theirs/b:1");
        }
        let mut client = bed.delta();
        client.resume(&bed, "cds", &["*", "theirs/b"], &[("theirs/b", "1"), ("theirs/c", "1")]);
        bed.fill();
        told.push(client.acked(&bed));
    }
    assert_eq!(told[0], told[1]);
    assert!(told[0].iter().any(|said| said.contains("-theirs/b") && said.contains("-theirs/c")), "{told:?}");
}

#[test]
fn a_wildcard_is_filtered_on_streams_of_both_kinds_and_in_polls() {
    let mut bed = bed(may_see(&["mine/**"]));
    bed.origin("cds mine/a:1 theirs/b:1");
    let (mut delta, mut sotw) = (bed.delta(), bed.sotw());
    delta.change(&bed, "cds", "*");
    sotw.ask(&bed, "cds", &[]);
    let first = poll(&bed, "cds", &[], None).unwrap();
    bed.fill();
    assert_eq!(delta.acked(&bed), ["cds mine/a:1"]);
    assert_eq!(sotw.acked(&bed), ["cds mine/a:1"]);
    assert_eq!(answered(&bed, &first).unwrap(), ["mine/a"]);
    assert_eq!(first.hidden().wildcards, 1);
    assert_eq!(delta.session.take_hidden().wildcards, 1);

    bed.origin("cds theirs/b:2 mine/c:1 -mine/a");
    assert_eq!(delta.acked(&bed), ["cds mine/c:1 -mine/a"]);
    assert_eq!(sotw.acked(&bed), ["cds mine/c:1"]);
    let version = first.found().version;
    bed.origin("cds theirs/d:1 -theirs/b");
    assert_eq!((delta.acked(&bed), sotw.acked(&bed)), (vec![], vec![]));
    assert_eq!(first.found().version, version, "nor can it be told from the version");
}

#[test]
fn a_wildcard_that_becomes_known_before_its_clients_are_heard_of_lacks_nothing() {
    let mut bed = Bed::new();
    bed.rules.permissions = may_see(&["mine/**"]);
    bed.origin("cds mine/a:1 theirs/b:1");
    let (mut delta, mut sotw) = (bed.delta(), bed.sotw());
    delta.change(&bed, "cds", "*");
    sotw.ask(&bed, "cds", &[]);
    bed.known("cds");
    for _ in 0..2 {
        assert_eq!(
            (delta.acked(&bed), sotw.acked(&bed)),
            (vec!["cds mine/a:1".to_owned()], vec!["cds mine/a:1".to_owned()])
        );
        bed.fill();
        (delta, sotw) = (bed.delta(), bed.sotw());
        delta.change(&bed, "cds", "*");
        sotw.ask(&bed, "cds", &[]);
    }
}

#[test]
fn a_refused_name_holds_no_state_of_the_world_back() {
    let mut bed = bed(may_see(&["mine/**"]));
    bed.origin("cds mine/a:1 theirs/b:1");
    let mut sotw = bed.sotw();
    sotw.ask(&bed, "cds", &["mine/a", "theirs/b"]);
    let polled = poll(&bed, "cds", &["mine/a", "theirs/b"], None).unwrap();
    bed.fill();
    bed.named("cds mine/a:1 theirs/b:1");
    assert_eq!(sotw.acked_with(&bed, &[("cds", &["mine/a", "theirs/b"])]), ["cds mine/a:1"]);
    assert_eq!(answered(&bed, &polled).unwrap(), ["mine/a"]);
}

#[test]
fn r_relay_07_that_a_name_may_not_be_seen_says_nothing_of_the_others() {
    let mut bed = bed(may_see(&["mine/**"]));
    bed.upstream = deltafan::subscription::Upstream::Away;
    let mut sotw = bed.sotw();
    sotw.ask(&bed, "cds", &["mine/a", "theirs/b"]);
    let polled = poll(&bed, "cds", &["mine/a", "theirs/b"], None).unwrap();
    bed.fill();
    bed.after(bed.rules.settle * 2);
    assert_eq!(sotw.told(&bed), Vec::<String>::new());
    assert_eq!(answered(&bed, &polled), None);
    bed.named("cds mine/a:1");
    assert_eq!(sotw.told(&bed), ["cds mine/a:1"]);
}

#[test]
fn what_is_told_to_some_never_reaches_those_who_may_see_less() {
    let mut bed = bed(Permissions::default());
    bed.origin("cds mine/a:1 theirs/b:1");
    let mut all = bed.delta();
    bed.rules.permissions = may_see(&["mine/**"]);
    let mut some = bed.delta();
    let mut same = bed.delta();
    for client in [&mut all, &mut some, &mut same] {
        client.change(&bed, "cds", "* theirs/b");
    }
    bed.fill();
    assert_eq!(all.acked(&bed), ["cds mine/a:1 theirs/b:1"]);
    assert_eq!(some.acked(&bed), ["cds mine/a:1 -theirs/b"]);
    assert_eq!(same.acked(&bed), ["cds mine/a:1 -theirs/b"]);
    let before = bed.cache.encoder().encodes();
    bed.origin("cds mine/a:2 theirs/b:2");
    assert_eq!(all.acked(&bed), ["cds mine/a:2 theirs/b:2"]);
    assert_eq!(some.acked(&bed), ["cds mine/a:2"]);
    assert_eq!(same.acked(&bed), ["cds mine/a:2"]);
    assert_eq!(
        bed.cache.encoder().encodes() - before,
        2,
        "those who may see the same share what they are told"
    );
}

#[test]
fn another_name_of_what_may_not_be_seen_shows_nothing() {
    let mut bed = bed(may_see(&["mine/**"]));
    let mut client = bed.delta();
    client.change(&bed, "vhds", "mine/alias");
    bed.fill();
    let resource = wire::resource(&url("vhds"), "theirs/b", "1", 0);
    let alias = |resource| Op::Alias { name: "mine/alias".into(), resource, resend: Resend::Unsolicited };
    let change = Change { ops: vec![alias(resource)], ..Change::default() };
    bed.apply("vhds", change);
    assert_eq!(client.acked(&bed), ["vhds -mine/alias"]);
    // It stands for something else now.
    let resource = wire::resource(&url("vhds"), "mine/c", "1", 0);
    bed.apply("vhds", Change { ops: vec![alias(resource)], ..Change::default() });
    assert_eq!(client.acked(&bed), ["vhds mine/c:1"]);
}

#[test]
fn a_collection_shows_the_members_that_may_be_seen() {
    let mut bed = bed(may_see(&["xdstp://mine/**", "xdstp://shared/envoy.E/foo/a*"]));
    let mut client = bed.delta();
    let (shared, theirs) = ("xdstp://shared/envoy.E/foo/*", "xdstp://theirs/envoy.E/foo/*");
    client.change(&bed, "eds", &format!("{shared} {theirs}"));
    bed.fill();
    assert_eq!(client.acked(&bed), [format!("eds -{theirs}")]);
    let text =
        "xdstp://shared/envoy.E/foo/a1:1 xdstp://shared/envoy.E/foo/b1:1 xdstp://theirs/envoy.E/foo/a1:1";
    bed.named(&format!("eds {text}"));
    assert_eq!(client.acked(&bed), ["eds xdstp://shared/envoy.E/foo/a1:1"]);
}

#[test]
fn another_spelling_is_the_same_name() {
    let mut bed = bed(may_see(&["xdstp://mine/envoy.E/a"]));
    let mut client = bed.delta();
    // The one name is spelled with an escape; the other hides a segment.
    client.change(&bed, "eds", "xdstp://mine/envoy.E/%61 xdstp://mine/envoy.E/a%2F..%2Fb");
    bed.fill();
    assert_eq!(client.acked(&bed), ["eds -xdstp://mine/envoy.E/a%2F..%2Fb"]);
    bed.named("eds xdstp://mine/envoy.E/a:1");
    assert_eq!(client.acked(&bed), ["eds xdstp://mine/envoy.E/%61:1"]);
}

#[test]
fn neither_context_parameters_nor_dot_segments_lead_out_of_a_pattern() {
    let mut bed = bed(may_see(&["xdstp://mine/envoy.E/foo/*", "plain/**"]));
    let mut client = bed.delta();
    let hidden = ["plain/../theirs", "xdstp://mine/envoy.E/foo/..", "xdstp://mine/envoy.E/foo/x?env=prod"];
    client.change(&bed, "eds", &hidden.join(" "));
    bed.fill();
    assert_eq!(client.acked(&bed), [format!("eds -{}", hidden.join(" -"))]);
    bed.named("eds plain/../theirs:1 xdstp://mine/envoy.E/foo/x?env=prod:1");
    assert_eq!(client.acked(&bed), [""; 0], "nor if the control plane tells them");
}

#[test]
fn an_error_of_what_may_not_be_seen_is_not_told() {
    let mut bed = bed(may_see(&["mine/**"]));
    let mut client = bed.client_with(&["xds.config.resource-in-sotw"], deltafan::cache::Protocol::Delta);
    client.change(&bed, "eds", "mine/a theirs/b");
    bed.fill();
    client.acked(&bed);
    let failure = |name: &str| Op::Fail {
        name: name.into(),
        failure: Arc::new(OriginError::new(7, "the owner is somebody")),
        listed: false,
    };
    bed.apply("eds", Change { ops: vec![failure("theirs/b"), failure("mine/a")], ..Change::default() });
    assert_eq!(client.acked(&bed), ["eds !mine/a:7"]);
}

#[test]
fn names_that_are_let_go_leave_nothing_behind() {
    let mut bed = bed(may_see(&["mine/**"]));
    let mut stays = bed.delta();
    stays.change(&bed, "eds", "mine/a");
    let mut client = bed.delta();
    client.change(&bed, "eds", "mine/a");
    for round in 0..20 {
        let names: Vec<String> = (0..50).map(|at| format!("theirs/{round}-{at}")).collect();
        client.change(&bed, "eds", &names.join(" "));
        bed.fill();
        client.acked(&bed);
        let gone: Vec<String> = names.iter().map(|name| format!("-{name}")).collect();
        client.change(&bed, "eds", &gone.join(" "));
        bed.fill();
        client.acked(&bed);
    }
    let held: usize = bed.cache.types().iter().map(|of| of.snapshot().entries().count()).sum();
    assert!(held < 10, "{held} names are still known");
}

#[test]
fn a_node_that_may_not_be_claimed_ends_the_stream_whatever_comes_first() {
    let permissions = Permissions {
        node_ids: Some(patterns(&["prod-*"])),
        clusters: Some(patterns(&["edge"])),
        ..Permissions::default()
    };
    let node =
        |id: &str, cluster: &str| Node { id: id.to_owned(), cluster: cluster.to_owned(), ..Node::default() };
    let bed = bed(permissions);
    let delta = |client: &mut Client, node: Option<Node>| {
        client.node = node;
        let type_url = url("cds").as_str().to_owned();
        let names = strings(&["*"]);
        client.on_delta_request(
            &bed,
            DeltaDiscoveryRequest {
                type_url,
                resource_names_subscribe: names,
                ..DeltaDiscoveryRequest::default()
            },
        )
    };
    for (id, cluster, expected) in [
        ("dev-1", "edge", Some(Denied::NodeId)),
        ("", "edge", Some(Denied::NodeId)),
        ("prod-1", "core", Some(Denied::Cluster)),
        ("prod-1", "edge", None),
    ] {
        let node = node(id, cluster);
        let mut client = bed.sotw();
        client.node = Some(node.clone());
        let type_url = url("cds").as_str().to_owned();
        let heard =
            client.on_sotw_request(&bed, DiscoveryRequest { type_url, ..DiscoveryRequest::default() });
        let polled = poll(&bed, "cds", &[], Some(node.clone()));
        let changed = delta(&mut bed.delta(), Some(node));
        if let Some(expected) = expected {
            assert_eq!(denied(heard), Some(expected));
            assert_eq!(denied(changed), Some(expected));
            assert_eq!(denied(polled), Some(expected));
        } else {
            assert!(heard.is_ok() && changed.is_ok() && polled.is_ok());
        }
    }
    assert_eq!(denied(poll(&bed, "cds", &[], None)), Some(Denied::NodeId), "saying nothing is no way in");
    // Who a stream is, its first request says: another node later changes nothing (R-EP-05).
    let mut client = bed.delta();
    delta(&mut client, Some(node("prod-1", "edge"))).unwrap();
    delta(&mut client, Some(node("dev-1", "core"))).unwrap();
    assert_eq!(client.session.client().unwrap().node_id, "prod-1");
}

#[test]
fn a_type_that_may_not_be_asked_for_ends_the_stream() {
    let permissions = Permissions { types: Some(BTreeSet::from([url("cds")])), ..Permissions::default() };
    let mut bed = bed(permissions);
    bed.origin("cds a:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    bed.fill();
    assert_eq!(client.acked(&bed), ["cds a:1"]);
    let request = |short: &str| DeltaDiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(denied(client.on_delta_request(&bed, request("eds"))), Some(Denied::Type));
    let mut only = bed.client(deltafan::cache::Protocol::Sotw, Some("eds"));
    assert_eq!(denied(only.on_sotw_request(&bed, DiscoveryRequest::default())), Some(Denied::Type));
    assert_eq!(denied(poll(&bed, "eds", &[], None)), Some(Denied::Type));
    bed.rules.serve_secrets = false;
    bed.rules.permissions = Permissions::default();
    assert_eq!(denied(poll(&bed, "sds", &["a"], None)), Some(Denied::Secret));
}

#[test]
fn who_finds_no_room_for_what_it_may_see_is_told_so() {
    let limits = Limits { parameter_sets: 1, ..Limits::default() };
    let mut bed = Bed::with_limits(limits);
    bed.rules.permissions =
        Permissions { names: Scope::only(patterns(&["mine/**"])), ..may_send("env", &["prod", "test"]) };
    let locator = ResourceLocator {
        name: "mine/a".to_owned(),
        dynamic_parameters: [("env".to_owned(), "prod".to_owned())].into(),
    };
    let request = DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_locators_subscribe: vec![locator],
        ..DeltaDiscoveryRequest::default()
    };
    let refusal = bed.delta().on_delta_request(&bed, request).expect_err("it would wait for ever");
    assert_eq!(refusal.code, Code::ResourceExhausted, "{refusal}");
}

#[test]
fn secrets_are_not_had_by_another_url_of_their_type() {
    let mut bed = bed(Permissions::default());
    bed.rules.serve_secrets = false;
    for type_url in [
        url("sds").as_str(),
        "example.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "envoy.extensions.transport_sockets.tls.v3.Secret",
        "type.googleapis.com/envoy.api.v2.auth.Secret",
        "type.googleapis.com//envoy.api.v2.auth.Secret",
    ] {
        let request = DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: strings(&["s"]),
            ..DeltaDiscoveryRequest::default()
        };
        assert_eq!(denied(bed.delta().on_delta_request(&bed, request)), Some(Denied::Secret), "{type_url}");
    }
}

#[test]
fn who_may_nothing_is_told_so_at_its_first_request() {
    let bed = bed(Permissions::nothing());
    let type_url = url("cds").as_str().to_owned();
    let delta = DeltaDiscoveryRequest { type_url: type_url.clone(), ..DeltaDiscoveryRequest::default() };
    assert_eq!(denied(bed.delta().on_delta_request(&bed, delta)), Some(Denied::Peer));
    let sotw = DiscoveryRequest { type_url, ..DiscoveryRequest::default() };
    assert_eq!(denied(bed.sotw().on_sotw_request(&bed, sotw)), Some(Denied::Peer));
    assert_eq!(denied(poll(&bed, "cds", &[], None)), Some(Denied::Peer));
    assert!(
        matches!(bed.delta().session.next(bed.now, bed.upstream), NextStep::Wait(_)),
        "nothing before it asks"
    );
}

fn locate(
    client: &mut Client,
    bed: &Bed,
    name: &str,
    pairs: &str,
) -> Result<impl std::fmt::Debug, SessionError> {
    let parameters = wire::parameters(pairs);
    let dynamic_parameters =
        parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let request = DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_locators_subscribe: vec![ResourceLocator { name: name.to_owned(), dynamic_parameters }],
        ..DeltaDiscoveryRequest::default()
    };
    client.on_delta_request(bed, request)
}

#[test]
fn r_dp_17_parameters_of_others_can_neither_be_sent_nor_evaded() {
    let mut bed = bed(may_send("env", &["prod"]));
    let set = |rule: &str, version: &str| Op::Set {
        view: View::Named,
        resource: variant(&url("eds"), "a", version, rule),
        resend: Resend::Unsolicited,
        lease: None,
    };
    // Another's, and one for all who do not say that they are of production.
    let mut client = bed.delta();
    assert_eq!(denied(locate(&mut client, &bed, "a", "env=dev")), Some(Denied::Parameters));
    assert_eq!(denied(locate(&mut bed.delta(), &bed, "a", "env=")), Some(Denied::Parameters));
    let mut client = bed.delta();
    locate(&mut client, &bed, "a", "v=1").unwrap();
    let mut plain = bed.sotw();
    plain.ask(&bed, "eds", &["a"]);
    bed.fill();
    for (pairs, op) in [("env=prod", set("env=prod", "1")), ("", set("!env=prod", "2"))] {
        let change = Change { ops: vec![op], ..Change::default() };
        bed.writer.apply_seen(&url("eds"), &wire::parameters(pairs), change, bed.now).unwrap();
    }
    let change = Change { ops: vec![set("env=prod", "1")], ..Change::default() };
    bed.writer.apply_seen(&url("eds"), &wire::parameters("env=prod v=1"), change, bed.now).unwrap();
    assert_eq!(client.acked(&bed).len(), 1, "what it leaves out it is given");
    assert_eq!(plain.acked_with(&bed, &[("eds", &["a"])]), ["eds a:1"]);

    // Where more than one value is allowed, one has to be said.
    bed.rules.permissions = may_send("env", &["prod", "canary"]);
    assert_eq!(denied(locate(&mut bed.delta(), &bed, "a", "v=1")), Some(Denied::Parameters));
    locate(&mut bed.delta(), &bed, "a", "env=canary").unwrap();
    assert_eq!(denied(poll(&bed, "eds", &["a"], None)), Some(Denied::Parameters));
}

#[test]
fn who_asks_by_name_for_a_member_of_the_wildcard_set_sees_it() {
    let mut bed = bed(may_see(&["mine/**"]));
    bed.origin("cds mine/a:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "mine/a");
    bed.fill();
    assert_eq!(client.acked(&bed), ["cds mine/a:1"]);
    bed.origin("cds mine/a:2");
    assert_eq!(client.acked(&bed), ["cds mine/a:2"]);
    bed.named("cds -mine/a");
    bed.origin("cds -mine/a");
    assert_eq!(client.acked(&bed), ["cds -mine/a"]);
}

#[test]
fn who_comes_with_the_wildcard_is_told_all_of_it_whatever_is_said_first() {
    let mut bed = bed(may_see(&["mine/**"]));
    bed.origin("cds mine/a:1 theirs/b:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    // The origin speaks before the store of this client is filled.
    bed.known("cds");
    assert_eq!(client.acked(&bed), ["cds mine/a:1"]);
    bed.fill();
    assert_eq!(client.acked(&bed), Vec::<String>::new());
}

/// What a client holds, as it goes by what it is told.
#[derive(Default)]
struct Holding {
    names: BTreeSet<String>,
    wildcard: bool,
    held: BTreeMap<String, String>,
}

impl Holding {
    fn change(&mut self, client: &mut Client, bed: &Bed, name: &str) {
        match name.strip_prefix('-') {
            Some("*") => self.wildcard = false,
            Some(name) => drop(self.names.remove(name)),
            None if name == "*" => self.wildcard = true,
            None => drop(self.names.insert(name.to_owned())),
        }
        client.change(bed, "cds", name);
        let (names, wildcard) = (&self.names, self.wildcard);
        self.held.retain(|name, _| wildcard || names.contains(name));
    }

    fn hear(&mut self, client: &mut Client, bed: &Bed) {
        while let Some(told) = client.poll(bed) {
            told.resources.iter().for_each(|(name, text)| drop(self.held.insert(name.clone(), text.clone())));
            told.removed.iter().for_each(|name| drop(self.held.remove(name)));
            client.ack(bed, &told, &[]);
        }
    }
}

#[test]
fn who_may_see_less_and_asks_again_is_not_told_what_went_meanwhile() {
    let mut bed = bed(Permissions::default());
    bed.rules.permissions = may_see(&["mine/**"]);
    let (mut client, mut holding) = (bed.delta(), Holding::default());
    bed.origin("cds mine/b:0");
    holding.change(&mut client, &bed, "mine/b");
    bed.fill();
    holding.hear(&mut client, &bed);
    assert_eq!(holding.held.len(), 1);
    // It is let go, removed and asked for again before the upstream hears that it was let go.
    holding.change(&mut client, &bed, "-mine/b");
    bed.origin("cds -mine/b");
    holding.change(&mut client, &bed, "mine/b");
    bed.fill();
    holding.hear(&mut client, &bed);
    assert_eq!(holding.held, BTreeMap::new());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

    /// Whatever happens, who may see less holds what who may see all holds of it, and nothing else.
    #[test]
    fn who_may_see_less_holds_what_is_left_of_what_all_hold(
        steps in proptest::collection::vec((0_u8..8, 0_usize..4, 0_u8..4), 1..40),
    ) {
        const NAMES: [&str; 4] = ["mine/a", "mine/b", "theirs/a", "theirs/b"];
        let mut bed = bed(Permissions::default());
        let mut all = (bed.delta(), Holding::default());
        bed.rules.permissions = may_see(&["mine/**"]);
        let mut some = (bed.delta(), Holding::default());
        for (what, at, version) in steps {
            let name = NAMES[at];
            match what {
                0 => bed.origin(&format!("cds {name}:{version}")),
                1 => bed.origin(&format!("cds -{name}")),
                2 => bed.named(&format!("cds {name}:{version}")),
                3 => bed.named(&format!("cds -{name}")),
                _ => {
                    let change = ["*", "-*", name, &format!("-{name}")][usize::from(what) - 4].to_owned();
                    for (client, holding) in [&mut all, &mut some] {
                        holding.change(client, &bed, &change);
                    }
                }
            }
            if version > 0 {
                bed.fill();
            }
            for (client, holding) in [&mut all, &mut some] {
                holding.hear(client, &bed);
            }
        }
        bed.fill();
        // In the end the origin answers for each name: a client that was told of a member by its name keeps it until then.
        for name in NAMES {
            if matches!(bed.cache.of(&url("cds")).unwrap().snapshot().by_name(name), Seen::Unknown) {
                bed.named(&format!("cds -{name}"));
            }
        }
        for (client, holding) in [&mut all, &mut some] {
            holding.hear(client, &bed);
        }
        let expected: BTreeMap<_, _> =
            all.1.held.iter().filter(|(name, _)| name.starts_with("mine/")).collect();
        proptest::prop_assert_eq!(some.1.held.iter().collect::<BTreeMap<_, _>>(), expected);
    }
}

/// A rule's own views are as many as there are rules: clients that choose parameters leave room for them.
#[test]
fn views_that_the_rules_impose_have_room_whatever_clients_choose() {
    let mut bed = Bed::with_limits(Limits { parameter_sets: 1, ..Limits::default() });
    let located = |env: &str| DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_locators_subscribe: vec![ResourceLocator {
            name: "mine/a".to_owned(),
            dynamic_parameters: [("env".to_owned(), env.to_owned())].into(),
        }],
        ..DeltaDiscoveryRequest::default()
    };
    let mut greedy = bed.delta();
    greedy.on_delta_request(&bed, located("1")).unwrap();
    assert_eq!(bed.delta().on_delta_request(&bed, located("2")).unwrap_err().code, Code::ResourceExhausted);
    for permissions in [may_see(&["mine/**"]), may_send("env", &["prod"])] {
        bed.rules.permissions = permissions;
        bed.delta().change(&bed, "eds", "mine/a");
    }
    // A parameter that is imposed on a client has room, one that it chooses has none.
    assert!(bed.delta().on_delta_request(&bed, located("prod")).is_ok());
    bed.rules.permissions = may_send("env", &["prod", "test"]);
    assert_eq!(
        bed.delta().on_delta_request(&bed, located("test")).unwrap_err().code,
        Code::ResourceExhausted
    );
}

/// A rule imposes a view, and a client chooses the types all the same.
#[test]
fn made_up_types_are_bounded_whatever_the_rules_impose() {
    let mut bed = Bed::with_limits(Limits { types: 5, ..Limits::default() });
    bed.rules.permissions = may_send("env", &["prod"]);
    let asked = |number: u32| DeltaDiscoveryRequest {
        type_url: format!("t/{number}"),
        resource_names_subscribe: strings(&["a"]),
        ..DeltaDiscoveryRequest::default()
    };
    let mut client = bed.delta();
    assert!((0..5).all(|number| client.on_delta_request(&bed, asked(number)).is_ok()));
    assert_eq!(client.on_delta_request(&bed, asked(5)).unwrap_err().code, Code::ResourceExhausted);
    drop(client);
    bed.cache.take_interest();
    assert!(bed.delta().on_delta_request(&bed, asked(6)).is_ok(), "what nobody uses makes room");
}
